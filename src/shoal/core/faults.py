"""Named fault points: `reach("store.commit")` does nothing unless a test armed that name.

Product code marks the few places where being killed, delayed or failed matters most. In tests within one
process `shoal.testing.faults` arms a point with a callable. In tests on real processes the environment variable
`SHOAL_FAULTS` does, as `name=action[@n]` separated by commas: the n-th time (first by default) the point is
reached, the process kills itself (`kill`), stops itself (`stop`), exits (`exit`) or raises (`raise`).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

from shoal.core.errors import InternalError, InvalidError, Problem, problem

POINTS: dict[str, str] = {
    "store.commit.before": "a batch of changes is decided and not yet durable",
    "store.commit.after": "a batch of changes is durable and not yet acknowledged",
    "control.register.committed": "a registration is durable; the agent has no answer",
    "control.apply.accepted": "a request is durable; the caller has no answer and the agent has no command",
    "control.place.committed": "a placement is durable; the agent has no command",
    "control.send.before": "a command is about to be sent to an agent",
    "control.send.after": "an agent has answered; the answer was not yet taken in",
    "control.delete.before_forget": "an agent confirmed a removal; the record is still there",
    "jobs.requested": "a request about a job is durable; the caller has no answer",
    "jobs.planned": "a transition of a job is planned; nothing of the plan is recorded",
    "jobs.applied": "the workloads of a transition are requested; the step is not recorded",
    "jobs.removed": "the deletion of surplus workloads is requested; the step is not recorded",
    "jobs.settled": "the state after a transition is durable; its workflow has not ended",
    "artifacts.upload": "a part of a blob has arrived and is not written",
    "artifacts.stored": "a blob is stored; its uploader has no answer",
    "artifacts.fetched": "an agent has a part of a blob and has not written it",
    "artifacts.cached": "a blob is in the cache of an agent and not yet linked",
    "agent.register.after": "the control plane accepted the registration",
    "agent.heartbeat.before": "a heartbeat is about to be sent",
    "agent.intent.before": "an order was checked and is not yet durable",
    "agent.intent.after": "an order is durable; nothing has been done about it",
    "agent.start.before": "a run is about to be started",
    "agent.start.after": "a run was started; the agent has not noted it",
    "agent.stop.before": "a run is about to be stopped",
    "agent.forget.before": "a removed workload is about to be forgotten",
    "keeper.spawn.after": "the keeper started a child and has not answered yet",
    "keeper.exit.before": "a child ended and its exit is not yet on disk",
    "vm.image.found": "the base image of a disk is there; the disk is not",
    "vm.disk.made": "a disk of a guest is made; QEMU was not started",
    "vm.start.before": "everything that a guest needs is made; the keeper was not told to start QEMU",
    "vm.start.after": "the keeper has started QEMU; the agent has not heard that it answers",
    "container.create.before": "an image is there; no container was made for the run",
    "container.create.after": "a container was made and not started",
    "container.start.after": "a container was started; nothing of it is written down",
    "container.end.before": "a container has ended; its end is not written down",
    "container.remove.before": "the end of a run is written down; its container is still there",
    "container.trial.after": "a container was made to see that it can be; the run that it is to replace goes on",
    "compose.create.before": "the images of a project are there; no container was made for the run",
    "compose.create.after": "the containers of a guarded project were made and not started",
    "compose.start.after": "a project was started; nothing of it is written down",
    "compose.update.begun": "the record of a project says that an update has begun; nothing was done",
    "compose.update.stored": "a changed project is stored; the record of the run names the previous one",
    "compose.update.after": "the record of a run names the changed project; the previous one is still stored",
    "compose.commit.listed": "the files of a commit are written and listed; its directory has no name",
    "compose.commit.doomed": "the directory of a commit has lost its name; its files are still there",
    "compose.end.before": "every service of a project has ended; its end is not written down",
    "compose.remove.before": "the end of a project is written down; its containers are still there",
    "compose.delete.volumes": "the containers of a project that is deleted are gone; its volumes are still there",
    "vm.disks.removed": "the disks of a VM that is deleted are gone from one place and still in others",
    "volume.removed": "a managed volume is removed; its record is still there",
    "dataflow.start.claimed": "a job is claimed under a new epoch; its sinks are not fenced",
    "dataflow.start.fenced": "every sink of a job is fenced; no checkpoint is chosen",
    "dataflow.recover.before": "a checkpoint is chosen; what it had prepared is not visible",
    "dataflow.recover.after": "what the chosen checkpoint had prepared is visible; the job's record does not say so",
    "dataflow.snapshot.before": "a task has all barriers of a checkpoint and has snapshotted nothing",
    "dataflow.snapshot.after": "a task has snapshotted and passed the barrier on; nothing of it is written",
    "dataflow.upload.before": "a task is about to write its state in the background; rows of the next checkpoint go on",
    "dataflow.upload.after": "a task has written its state; the coordinator has not heard of it",
    "dataflow.prepare.before": "a sink is about to write ahead what belongs to a checkpoint",
    "dataflow.prepare.after": "a sink has written ahead; the checkpoint is not complete",
    "dataflow.manifest.before": "every task's part of a checkpoint is written, its manifest is not",
    "dataflow.manifest.after": "a checkpoint is complete; no sink was told",
    "dataflow.publish.before": "a checkpoint is complete; the coordinator has made nothing of it visible",
    "dataflow.publish.after": "the coordinator has committed the sinks that it commits; no task was told",
    "dataflow.commit.before": "a task was told that a checkpoint is complete and has committed nothing",
    "dataflow.commit.after": "a task has committed a checkpoint; the coordinator has not heard of it",
    "dataflow.record.before": "every sink has committed a checkpoint; the job's record does not say so",
    "dataflow.record.after": "the job's record says that every sink has committed a checkpoint",
    "taskhost.build.before": "a task host listens and was told where the others do; its tasks are not built",
    "taskhost.build.after": "a task host has built its tasks; the coordinator has not heard of it",
    "export.file.after": "a file of an export is written; the version is not there",
    "export.manifest.before": "every file of an export is written, its document is not",
    "export.manifest.after": "an export is written with its document; the version is not there",
    "export.rename.after": "a version of an export is there; the state file does not name it",
    "export.state.after": "the state file of an export names every version",
    "export.gone.after": "a version of an export is gone; its files are still there under another name",
    "dump.previous.removed": "a file of the previous dump is removed; the new dump is written, and not in its place",
    "dump.counts.after": "the counts of a file of a dump are in place; its entries are not",
    "dump.file.after": "a file of a dump is in its place; others may follow",
    "topics.append.before": "records are about to be written to a segment",
    "topics.append.written": "records are in a segment; no entry of the journal names them",
    "topics.append.after": "an append is visible; its caller has no answer",
    "topics.commit.before": "a transaction is about to be committed",
    "topics.entry.appended": "an entry is in the journal; its author has not read whether it counts",
    "topics.roll.before": "a journal has ended and the next one is not made yet",
    "topics.collect.looked": "what a log needs is known; no file that it does not need is removed",
}
"""Every point there is, with what is true when it is reached."""

Action = Callable[[str], None]

_armed: dict[str, Action] = {}


def reach(name: str) -> None:
    """Mark that execution is at the named point."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action(name)


def arm(name: str, action: Action) -> None:
    """Run `action` whenever the point is reached."""
    if name not in POINTS:
        raise InvalidError([problem("fault point", name, f"must be one of {', '.join(POINTS)}")])
    _armed[name] = action


def disarm_all() -> None:
    """Forget every armed point."""
    _armed.clear()


def arm_from_environment(value: str | None = None) -> None:
    """Arm what `SHOAL_FAULTS` asks for. Called once at process start by the composition roots."""
    text = os.environ.get("SHOAL_FAULTS", "") if value is None else value
    wanted: list[tuple[str, Action]] = []
    problems: list[Problem] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = entry.partition("=")
        action, _, count = rest.partition("@")
        if name not in POINTS:
            problems.append(problem("SHOAL_FAULTS", entry, f"the point must be one of {', '.join(POINTS)}"))
        elif action not in _ACTIONS:
            problems.append(problem("SHOAL_FAULTS", entry, f"the action must be one of {', '.join(_ACTIONS)}"))
        elif not re.fullmatch(r"[1-9][0-9]{0,8}", count or "1"):
            problems.append(problem("SHOAL_FAULTS", entry, "the count after @ must be a whole number from 1"))
        else:
            wanted.append((name, _on_nth(_ACTIONS[action], int(count or "1"))))
    if problems:
        raise InvalidError(problems)
    for name, counting in wanted:
        arm(name, counting)


def _on_nth(action: Action, count: int) -> Action:
    seen = 0

    def counting(name: str) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            action(name)

    return counting


def _kill(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit(_name: str) -> None:
    os._exit(70)


def _raise(name: str) -> None:
    raise InternalError(f"fault point {name} was armed to raise", point=name)


_ACTIONS: dict[str, Action] = {"kill": _kill, "stop": _stop, "exit": _exit, "raise": _raise}

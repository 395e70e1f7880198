"""Runs a plan: task hosts run its tasks, and the coordinator here finds splits, makes checkpoints and commits.

`run` runs a bounded plan to its end, `start` starts one that is stopped some day. Both prepare what users wrote
(`shoal.dataflow.plan.prepare`), plan it (`physical`), write that down (`prepared`) and let task hosts build their tasks
from the document: in threads of this process, or in child processes (`processes`). What fails in a task stops all of
them, and is raised to whoever waits; a host that is lost takes all tasks back to the last checkpoint in a new epoch.
Called by `shoal.dataflow.api.stream`, `shoal.dataflow.api.app` and `shoal.cli`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.core import files
from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import DeadlineError, InvalidError, PreconditionError, UnavailableError, problem
from shoal.dataflow.checkpoint.coordinator import CheckpointCounts, Coordinator
from shoal.dataflow.checkpoint.messages import Order, Report, StopReading, TaskId
from shoal.dataflow.checkpoint.protocol import Members, Rules
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.checkpoint.start import PlannedSink, StartedJob, start_job
from shoal.dataflow.connectors.abilities import SupportsCollect
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.connectors.brokers import find_kafka_interface
from shoal.dataflow.execution.building import layout_of, stateful_uids
from shoal.dataflow.execution.chain import StepCounts, is_over
from shoal.dataflow.execution.control_link import HostShare
from shoal.dataflow.execution.hosts import Hosts, LocalHosts
from shoal.dataflow.execution.routing import all_tasks
from shoal.dataflow.language.logical import Node, Sink, Source, walk
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from shoal.dataflow.plan.physical import PhysicalPlan, Step
from shoal.dataflow.plan.physical import plan as plan_physically
from shoal.dataflow.plan.prepare import Prepared, check_connectors, prepare
from shoal.dataflow.plan.prepared import PreparedPlan, read_prepared, write_prepared
from shoal.exchange.errors import Cancelled

log = logging.getLogger(__name__)

_JOB_RULE = "must be letters, digits, dots, dashes and underscores, and begin with a letter or a digit"
#: Names that an error lists at most.
_MAX_NAMED = 5
#: Task hosts may be lost so often within so many seconds; then something is wrong that no restart mends.
_MOST_RECOVERIES = 10
_RECOVERY_SECONDS = 60.0
#: Child processes of one run.
_MOST_PROCESSES = 128


@dataclass(frozen=True, slots=True)
class FlowMetrics:
    """A run at one moment."""

    steps: tuple[StepCounts, ...]
    #: Bytes that wait in the queues of each task, by its name.
    waiting_bytes: Mapping[str, int]
    checkpoints: CheckpointCounts
    #: How this process talks to Kafka; empty when the flow does not.
    kafka: str = ""
    #: Bytes that the queue in front of a task may hold.
    queue_bytes: int = 0
    #: How often tasks went back to the last checkpoint because a host was lost.
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run went."""

    name: str
    seconds: float
    #: What each step put out, over all of its tasks.
    steps: tuple[StepCounts, ...]
    checkpoints: CheckpointCounts
    #: The number of the checkpoint that it went on from; None when it began at the beginning.
    restored: int | None
    #: What sinks that collect have collected, by their uid.
    tables: Mapping[str, Any]

    def rows(self, uid: str) -> int:
        """The rows that a step put out, over all of its tasks."""
        return sum(each.rows for each in self.steps if each.uid == uid)


def run(
    plan: Sequence[Node],
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunReport:
    """Run a plan to its end. Raises what any of its tasks raised.

    With `is_look` it is a look at one stream, as `collect()` is: side outputs of process functions need no reader. With
    `processes`, tasks run in so many child processes.
    """
    return run_prepared(
        prepare(plan),
        name=name,
        parallelism=parallelism,
        settings=settings,
        clock=clock,
        is_look=is_look,
        processes=processes,
    )


def start(
    plan: Sequence[Node],
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunningFlow:
    """Start a plan, and return at once."""
    return start_prepared(
        prepare(plan),
        name=name,
        parallelism=parallelism,
        settings=settings,
        clock=clock,
        is_look=is_look,
        processes=processes,
    )


def run_prepared(
    prepared: Prepared,
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunReport:
    """The same for a plan that was prepared before."""
    flow = start_prepared(
        prepared,
        name=name,
        parallelism=parallelism,
        settings=settings,
        clock=clock,
        is_look=is_look,
        processes=processes,
    )
    try:
        return flow.wait()
    except BaseException:
        flow.abort()
        raise


def start_prepared(
    prepared: Prepared,
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunningFlow:
    """The same for a plan that was prepared before. With `processes`, tasks run in so many child processes."""
    _check_name(name)
    _check_processes(processes)
    chosen = settings or FlowSettings()
    physical = plan_physically(prepared.sinks, parallelism=parallelism, key_groups=chosen.key_groups)
    for stage in physical.stages:
        sinks = [step.node for step in stage.steps]
        checked = {"parallelism": stage.parallelism, "has_checkpoints": chosen.checkpoint is not None}
        check_connectors(sinks, "check_run", **checked)
        if chosen.checkpoint is not None:
            check_connectors(sinks, "check_checkpoints", settings=chosen.checkpoint)
    # Tasks are built from the document and nothing else, in this process as in any other.
    document = write_prepared(prepared, physical, is_local=processes == 0)
    plan = read_prepared(document)
    time = clock or SystemClock()
    hosts: Hosts = LocalHosts(plan, time)
    if processes:
        from shoal.dataflow.execution.processes import ProcessHosts

        hosts = ProcessHosts(plan, document, processes=processes, clock=time)
    flow = RunningFlow(name, plan, chosen, time, hosts, is_look=is_look)
    flow.begin()
    return flow


def _check_name(name: str) -> None:
    if not name or not name[0].isalnum() or not all(each.isalnum() or each in "._-" for each in name):
        raise InvalidError([problem("name", name, _JOB_RULE)], what="flow")


def _check_processes(processes: int) -> None:
    if not isinstance(processes, int) or isinstance(processes, bool) or not 0 <= processes <= _MOST_PROCESSES:
        raise InvalidError([problem("processes", processes, f"must be a whole number from 0 to {_MOST_PROCESSES}")])


# ---------------------------------------------------------------------------------------------------------
# Jobs that had come to their end before


def _read_splits(checkpoint: Checkpoint, uid: str) -> dict[str, bool]:
    """The splits of a source that a checkpoint knows, and whether each had come to its end."""
    known: dict[str, bool] = {}
    for _subtask, state in checkpoint.states.get(uid, ()):
        if state.shared:
            known |= {name: bool(entry["ended"]) for name, entry in json.loads(state.shared)["splits"].items()}
    return known


def _over_steps(plan: PhysicalPlan, checkpoint: Checkpoint) -> list[Step]:
    """The steps that had put everything out: whatever comes to them now stays in them."""
    return [
        step
        for stage in plan.stages
        for step in stage.steps
        if (states := checkpoint.states.get(step.uid)) and all(is_over(state.shared) for _subtask, state in states)
    ]


def _lost_splits(plan: PhysicalPlan, checkpoint: Checkpoint, splits: Mapping[str, tuple[Split, ...]]) -> list[str]:
    """Splits that a checkpoint does not know, in front of a step that has put everything out.

    Where only stateless steps follow there is none: new files are read, and their rows come out.
    """
    closed = set(walk(*(step.node for step in _over_steps(plan, checkpoint))))
    sources = [step for stage in plan.stages for step in stage.steps if isinstance(step.node, Source)]
    lost: list[str] = []
    for step in sources:
        if step.node in closed and step.uid in checkpoint.states:
            known = _read_splits(checkpoint, step.uid)
            lost += [split.name for split in splits[step.uid] if split.name not in known]
    return lost


def _had_ended(plan: PhysicalPlan, checkpoint: Checkpoint, splits: Mapping[str, tuple[Split, ...]]) -> bool:
    """Whether there is nothing left to read, and no step that still holds something."""
    for stage in plan.stages:
        for step in stage.steps:
            if isinstance(step.node, Source):
                known = _read_splits(checkpoint, step.uid)
                if not step.node.connector.is_bounded or not all(known.get(each.name) for each in splits[step.uid]):
                    return False
    over = {step.uid for step in _over_steps(plan, checkpoint)}
    keeping = {
        step.uid for stage in plan.stages for step in stage.steps if not isinstance(step.node, Source | Sink)
    } & stateful_uids(plan)
    return keeping <= over


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")


class RunningFlow:
    """A plan that runs. Every method may be called from any thread but its own tasks'."""

    def __init__(
        self,
        name: str,
        plan: PreparedPlan,
        settings: FlowSettings,
        clock: Clock,
        hosts: Hosts,
        *,
        is_look: bool = False,
    ) -> None:
        self.name = name
        self._is_look = is_look
        self.plan = plan.physical
        self._facts = plan.facts
        self._settings = settings
        self._clock = clock
        self._hosts = hosts
        self._attempt: _Attempt | None = None
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._done = threading.Event()
        #: What sources were told; whoever begins anew is told it again.
        self._stopping: StopReading | None = None
        self._restored: int | None = None
        #: How often tasks went back to the last checkpoint because a host was lost.
        self.recoveries = 0
        self._lost_at: list[float] = []
        self._began = clock.monotonic()
        self._ended: float | None = None
        self._job: StartedJob | None = None
        nodes = [step.node for stage in self.plan.stages for step in stage.steps]
        self._kafka = find_kafka_interface(nodes)

    # -- starting ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Build the tasks and start them. Called once, by whoever made it."""
        self._clear_collected()
        try:
            attempt = self._build()
        except BaseException:
            self._clear_up()
            self._hosts.close()
            raise
        self._attempt = attempt
        attempt.run()

    def _build(self) -> _Attempt:
        checkpoint = self._settings.checkpoint
        if checkpoint is not None:
            if self.recoveries:  # it goes on from the last one, whatever it was started from
                checkpoint = replace(checkpoint, from_checkpoint=None, accept_duplicates=False)
            self._job = start_job(
                self.name,
                checkpoint,
                layout_of(self.plan),
                self._planned_sinks(),
                stateful=stateful_uids(self.plan),
                clock=self._clock,
            )
        job = self._job
        found = None if job is None else job.checkpoint
        splits = self._find_splits()
        if found is not None and checkpoint is not None and not self.recoveries:
            self._look_at_end(found, splits, files.join(checkpoint.directory, self.name))
        if found is not None:
            self._restored = found.number
            log.info("flow %s goes on from checkpoint %d", self.name, found.number)
        share = HostShare(
            job=self.name,
            tasks=tuple(all_tasks(self.plan)),
            settings=self._settings,
            splits=splits,
            checkpoint=None if found is None else found.number,
            incarnation=0 if job is None else job.claim.record.incarnation,
            epoch=0 if job is None else job.history.epoch,
            is_look=self._is_look,
        )
        attempt = _Attempt(self)
        if job is not None and checkpoint is not None:
            attempt.coordinator = self._make_coordinator(job, checkpoint)
        self._hosts.begin(share, found, attempt)
        return attempt

    def _planned_sinks(self) -> list[PlannedSink]:
        return [
            PlannedSink(step.uid, step.node.connector, stage.parallelism)
            for stage in self.plan.stages
            for step in stage.steps
            if isinstance(step.node, Sink)
        ]

    def _look_at_end(self, found: Checkpoint, splits: Mapping[str, tuple[Split, ...]], directory: str) -> None:
        """Say so when the job had come to its end before. Input that would be read and never come out is refused."""
        new = _lost_splits(self.plan, found, splits)
        if new:
            raise PreconditionError(
                f"job {self.name!r} had come to its end with checkpoint {found.number}: its results are out, and it "
                f"cannot take in what is new since then: {_listed(new)}",
                hint="run it anew, over all of its input, with another app id or data_dir; or remove its checkpoints, "
                f"{directory}",
                job=self.name,
                checkpoint=found.number,
                new=", ".join(new),
            )
        if _had_ended(self.plan, found, splits):
            log.warning(
                "job %s had come to its end with checkpoint %d; there is nothing more to do. To run it anew remove its "
                "checkpoints, %s, or give the app another id or data_dir",
                self.name,
                found.number,
                directory,
            )

    def _make_coordinator(self, job: StartedJob, settings: CheckpointSettings) -> Coordinator:
        members = Members(
            everyone=frozenset(all_tasks(self.plan)),
            sources=frozenset(self._tasks_with(Source)),
            committing=frozenset(self._tasks_with(Sink)),
        )
        rules = Rules(settings.interval, settings.min_pause, settings.timeout, settings.tolerated_failures)
        return Coordinator(
            members=members,
            rules=rules,
            storage=job.storage,
            claim=job.claim,
            committers=job.committers,
            layout=layout_of(self.plan),
            highest=job.history.highest,
            clock=self._clock,
            send=self._send,
            write_ahead_bytes=settings.write_ahead_bytes,
        )

    def _tasks_with(self, kind: type[Node]) -> list[TaskId]:
        """The tasks that have a step of a kind."""
        stages = {
            stage.number for stage in self.plan.stages if any(isinstance(step.node, kind) for step in stage.steps)
        }
        return [task for task in all_tasks(self.plan) if task.stage in stages]

    def _find_splits(self) -> dict[str, tuple[Split, ...]]:
        return {
            step.uid: tuple(step.node.connector.find_splits())
            for stage in self.plan.stages
            for step in stage.steps
            if isinstance(step.node, Source)
        }

    # -- while it runs ----------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end, good or bad."""
        return self._done.is_set()

    @property
    def failed(self) -> BaseException | None:
        """What stopped it; None while nothing did."""
        return self._error

    @property
    def restored(self) -> int | None:
        """The number of the checkpoint that it went on from."""
        return self._restored

    def metrics(self) -> FlowMetrics:
        """What it has done so far."""
        counts = self._hosts.counts()
        coordinator = None if self._attempt is None else self._attempt.coordinator
        return FlowMetrics(
            steps=counts.steps,
            waiting_bytes=counts.waiting_bytes,
            checkpoints=CheckpointCounts() if coordinator is None else coordinator.counts,
            kafka=self._kafka,
            queue_bytes=self._settings.queue_bytes,
            recoveries=self.recoveries,
        )

    def stop(self, *, finish: bool = False, timeout: float | None = None) -> RunReport:
        """Stop reading, let what is under way come through, make the last checkpoint, and wait for all of that.

        Windows that are open stay so in the checkpoint. With `finish` event time comes to its end and they are put out
        as they are: for a flow that will not go on.
        """
        with self._lock:
            self._stopping = StopReading(finish)
            attempt = self._attempt
        if attempt is not None:
            self._stop_sources(self._stopping)
        return self.wait(timeout)

    def _stop_sources(self, order: StopReading) -> None:
        for task in self._tasks_with(Source):
            self._send(task, order)

    def abort(self) -> None:
        """End at once: nothing more is put out, no checkpoint is made. Does nothing when it has ended."""
        if not self._done.is_set():
            self._fail(Cancelled())
            self._done.wait(timeout=10.0)

    def wait(self, timeout: float | None = None) -> RunReport:
        """Until it has ended. Raises what stopped it, or `DeadlineError` when it still runs after `timeout` seconds."""
        if not self._done.wait(timeout):
            raise DeadlineError(f"flow {self.name!r} still runs after {timeout:g} seconds")
        self._hosts.join()
        if self._error is not None and not isinstance(self._error, Cancelled):
            raise self._error
        return self._report_run()

    def _report_run(self) -> RunReport:
        ended = self._ended if self._ended is not None else self._clock.monotonic()
        now = self.metrics()
        return RunReport(
            name=self.name,
            seconds=ended - self._began,
            steps=now.steps,
            checkpoints=now.checkpoints,
            restored=self._restored,
            tables=self._tables(),
        )

    def _collectors(self) -> dict[str, Any]:
        return {
            step.uid: step.node.connector.into
            for stage in self.plan.stages
            for step in stage.steps
            if isinstance(step.node, Sink) and isinstance(step.node.connector, SupportsCollect)
        }

    def _clear_collected(self) -> None:
        for into in self._collectors().values():
            into.clear()

    def _tables(self) -> dict[str, Any]:
        schemas = {
            step.uid: self._facts[step.node.inputs[0]].schema
            for stage in self.plan.stages
            for step in stage.steps
            if isinstance(step.node, Sink)
        }
        return {uid: into.table(schemas[uid]) for uid, into in self._collectors().items()}

    # -- what attempts say ------------------------------------------------------------------------------------

    def ended(self, attempt: _Attempt) -> None:
        """Everything of an attempt has ended. Called by its last thread."""
        with self._lock:
            if attempt is not self._attempt:
                return  # another one goes on
        self._ended = self._clock.monotonic()
        self._clear_up()
        self._hosts.close()
        self._done.set()

    def _fail(self, error: BaseException) -> None:
        """The first failure counts; everyone else is told to end."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            attempt = self._attempt
        if attempt is not None:
            attempt.cancel()

    def fail(self, attempt: _Attempt, error: BaseException) -> None:
        """A task of an attempt failed, or its checkpoints."""
        if attempt is self._attempt:
            self._fail(error)

    def lose(self, attempt: _Attempt, reason: str) -> None:
        """A task host of an attempt is lost."""
        with self._lock:
            if attempt is not self._attempt or self._error is not None:
                return
            if self._may_recover():
                self._attempt = None
                threading.Thread(
                    target=self._recover, args=(attempt, reason), name=f"{self.name}/recovery", daemon=True
                ).start()
                return
        hint = "" if self._settings.checkpoint else "with checkpoints it would go on from the last one"
        often = f" for the {self.recoveries + 1}th time" if self.recoveries else ""
        self._fail(UnavailableError(f"job {self.name!r} lost a task host{often}: {reason}", hint=hint))

    def _may_recover(self) -> bool:
        """Whether to go on after a loss: not without checkpoints, and not when hosts die again and again."""
        now = self._clock.monotonic()
        self._lost_at = [*(each for each in self._lost_at if now - each < _RECOVERY_SECONDS), now]
        return (
            self._hosts.can_recover and self._settings.checkpoint is not None and len(self._lost_at) <= _MOST_RECOVERIES
        )

    def _recover(self, lost: _Attempt, reason: str) -> None:
        """Take all tasks back to the last complete checkpoint, under a new epoch."""
        log.warning("job %s lost a task host (%s) and goes back to its last checkpoint", self.name, reason)
        try:
            attempt = self._begin_anew(lost)
        except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits for the run
            self._clear_up()
            with self._lock:
                self._error = self._error or error
                self._attempt = lost
            self.ended(lost)
            return
        with self._lock:
            self._attempt = attempt
            stopping, error_ = self._stopping, self._error
        attempt.run()
        if error_ is not None:
            attempt.cancel()
        elif stopping is not None:
            self._stop_sources(stopping)

    def _begin_anew(self, lost: _Attempt) -> _Attempt:
        """End an attempt and build the next one. One whose hosts die while they are built is tried again."""
        lost.close()
        while True:
            self.recoveries += 1
            self._clear_up()
            try:
                return self._build()
            except (UnavailableError, DeadlineError) as error:
                if not self._may_recover():
                    raise
                log.warning("job %s could not go back to its last checkpoint and tries again: %s", self.name, error)

    def _clear_up(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.release()

    def _send(self, task: TaskId, order: Order) -> None:
        self._hosts.send(task, order)


class _Attempt:
    """One epoch of a run: its coordinator, and what its task hosts say. Implements `HostListener`."""

    def __init__(self, flow: RunningFlow) -> None:
        self._flow = flow
        self._hosts = flow._hosts  # noqa: SLF001 - a part of it
        self.coordinator: Coordinator | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._left = 1

    def run(self) -> None:
        """Start the coordinator and the tasks."""
        if self.coordinator is not None:
            self._left += 1
            name = f"{self._flow.name}/checkpoints"[:60]
            self._thread = threading.Thread(target=self._run_coordinator, args=(self.coordinator,), name=name)
            self._thread.daemon = True
            self._thread.start()
        self._hosts.run()

    def cancel(self) -> None:
        """End soon."""
        self._hosts.cancel()
        if self.coordinator is not None:
            self.coordinator.stop()

    def close(self) -> None:
        """End, and wait for it: nothing of this epoch runs when this returns."""
        if self.coordinator is not None:
            self.coordinator.stop()
        self._hosts.end()
        if self._thread is not None:
            self._thread.join()

    def _run_coordinator(self, coordinator: Coordinator) -> None:
        try:
            coordinator.run()
        except Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits for the run
            self._flow.fail(self, error)
        self._part_ended()

    def reported(self, report: Report) -> None:
        """A task says something."""
        if self.coordinator is not None:
            self.coordinator.report(report)

    def failed(self, error: BaseException) -> None:
        """A task failed."""
        self._flow.fail(self, error)

    def lost(self, reason: str) -> None:
        """A task lost a peer, or its host is gone."""
        self._flow.lose(self, reason)

    def ended(self) -> None:
        """All tasks have ended."""
        self._part_ended()

    def _part_ended(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._flow.ended(self)

"""A task host: builds its share of a job's tasks from the prepared plan and runs each in a thread.

In one process the engine has one; with `--processes N` each child process has one (`host_process`). It knows nothing of
checkpoints or commits beyond what its tasks are told: commands come in by `send`, reports go out by `HostListener`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from shoal.core.clock import Clock
from shoal.core.threads import threads_of
from shoal.dataflow.checkpoint.copies import LocalCopies
from shoal.dataflow.checkpoint.messages import Command, Report, TaskId
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.checkpoint.restore import share_states
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.execution.alignment import ChannelLost
from shoal.dataflow.execution.building import Program, build_tasks
from shoal.dataflow.execution.hosts.control_messages import HostCounts, HostShare
from shoal.dataflow.execution.routing import Channels, Connect
from shoal.dataflow.execution.scratch import Scratch, make_scratch
from shoal.dataflow.execution.task import Task
from shoal.dataflow.language.logical import Aggregate, Custom, Join, Process, Reduce
from shoal.dataflow.plan.physical import PhysicalPlan, key_groups_of
from shoal.dataflow.plan.prepared import PreparedPlan
from shoal.dataflow.settings import FlowSettings
from shoal.exchange.base import Endpoint
from shoal.exchange.errors import Cancelled

log = logging.getLogger(__name__)


class HostListener(Protocol):
    """Who hears of a task host. Called from the threads of its tasks."""

    def reported(self, report: Report) -> None:
        """A task says something."""
        ...

    def failed(self, error: BaseException) -> None:
        """A task failed; the others of this host are ending."""
        ...

    def lost(self, reason: str, channel: str = "") -> None:
        """A task lost a peer that another host runs, by this channel; the others of this host are ending."""
        ...

    def ended(self, at: float) -> None:
        """The last task has ended at this time, good or bad. Called once, after all else."""
        ...


class TaskHost:
    """A share of the tasks of a job, in threads of this process."""

    def __init__(
        self, plan: PreparedPlan, share: HostShare, listener: HostListener, *, clock: Clock, copies: str = ""
    ) -> None:
        """`copies`: a folder of this machine for copies of state that is stored elsewhere; none without it."""
        self._copies_in = copies
        self._copies: LocalCopies | None = None
        self._plan = plan
        self._share = share
        self._listener = listener
        self._clock = clock
        self._channels = Channels(
            plan.physical, share.tasks, queue_bytes=share.settings.queue_bytes, threads=threads_of(clock)
        )
        self._tasks: dict[TaskId, Task] = {}
        self._threads: list[threading.Thread] = []
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()
        self._left = 0
        self._is_over = False

    def listen(self, endpoint: Endpoint) -> None:
        """Let tasks of other hosts send to those of this one."""
        self._channels.serve(endpoint)

    def build(self, connect: Connect | None = None, *, found: Checkpoint | None = None) -> None:
        """Build the tasks and bring them to their checkpoint, which is read here when it is not handed over."""
        share, physical = self._share, self._plan.physical
        if connect is not None:
            self._channels.reach_others(connect)
        if _needs_scratch(physical, share.settings):
            self._scratch = make_scratch(share.settings.scratch)
        storage = self._open_storage()
        try:
            self._tasks = {
                task.task: task for task in build_tasks(self._program(storage), self._channels, self._report)
            }
            if found is None and share.checkpoint is not None and storage is not None:
                found = storage.read(share.checkpoint)
            if self._copies is not None:
                self._look_for_copies(self._copies, found)
            if found is not None:
                self._restore(found)
        except BaseException:
            self._clear_up()
            raise

    def _open_storage(self) -> CheckpointStorage | None:
        settings = self._share.settings.checkpoint
        if settings is None:
            return None
        if self._copies_in and "://" in settings.directory:
            self._copies = LocalCopies(self._copies_in)
        return CheckpointStorage(settings.directory, self._share.job, keep=settings.keep, copies=self._copies)

    def _look_for_copies(self, copies: LocalCopies, found: Checkpoint | None) -> None:
        here = copies.restore_from(() if found is None else found.handles)
        if found is not None:
            count = len(found.handles)
            log.info("checkpoint %d has %d state files, and copies of %d are here", found.number, count, here)

    def _program(self, storage: CheckpointStorage | None) -> Program:
        share = self._share
        return Program(
            job=share.job,
            tasks=share.tasks,
            plan=self._plan.physical,
            facts=self._plan.facts,
            settings=share.settings,
            clock=self._clock,
            splits=share.splits,
            incarnation=share.incarnation,
            scratch="" if self._scratch is None else self._scratch.path,
            is_look=share.is_look,
            storage=storage,
            epoch=share.epoch,
        )

    def _restore(self, found: Checkpoint) -> None:
        physical = self._plan.physical
        for ident, task in self._tasks.items():
            width = physical.stages[ident.stage].parallelism
            mine = key_groups_of(ident.subtask, width, physical.key_groups)
            task.restore_from(share_states(found, mine), found.handles)

    # -- while it runs ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start the tasks."""
        self._left = len(self._tasks)
        self._threads = [
            threads_of(self._clock).thread(self._body, task, name=f"{self._share.job}/{task.name}")
            for task in self._tasks.values()
        ]
        for thread in self._threads:
            thread.start()

    def send(self, task: TaskId, command: Command) -> None:
        """Send a command to a task."""
        self._tasks[task].mailbox.put(command)

    def cancel(self) -> None:
        """End every task soon, whatever it does. From any thread."""
        with self._lock:
            self._is_over = True
        for task in self._tasks.values():
            task.cancel()

    def join(self) -> None:
        """Wait until the threads of all tasks have ended."""
        for thread in self._threads:
            thread.join()

    def counts(self) -> HostCounts:
        """What its tasks have done so far."""
        tasks = self._tasks.values()
        return HostCounts(
            steps=tuple(counts for task in tasks for counts in task.counts()),
            waiting_bytes={task.name: task.waiting_bytes for task in tasks},
        )

    def _report(self, report: Report) -> None:
        if not self._is_over:
            self._listener.reported(report)

    def _body(self, task: Task) -> None:
        try:
            task.run()
        except ChannelLost as lost:
            channel = str(lost.error.facts.get("channel", ""))
            self._stop_all(partial(self._listener.lost, lost.error.message, channel))
        except Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where the run is waited for
            self._stop_all(partial(self._listener.failed, error))
        with self._lock:
            self._left -= 1
            if self._left:
                return
        at = self._clock.monotonic()
        self._clear_up()
        self._listener.ended(at)

    def _stop_all(self, tell: Callable[[], None]) -> None:
        """The first failure counts; every other task is told to end."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        tell()
        for task in self._tasks.values():
            task.cancel()

    def _clear_up(self) -> None:
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.remove()


#: Nodes whose steps may have their state in RocksDB.
_STORED = Process | Join | Aggregate | Reduce


def _needs_scratch(plan: PhysicalPlan, settings: FlowSettings) -> bool:
    """Whether a step may put something on disk while it runs: state in RocksDB, or what a user's operator likes to."""
    nodes = [step.node for stage in plan.stages for step in stage.steps]
    with_state = settings.state == "rocks" and any(isinstance(node, _STORED) for node in nodes)
    return with_state or any(isinstance(node, Custom) for node in nodes)

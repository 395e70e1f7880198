"""A job that runs, as its coordinator sees it: starts it, watches it, recovers it, ends it.

Made by `shoal.dataflow.execution.engine`. Task hosts (`shoal.dataflow.execution.hosts`) run the tasks. A failed task
stops all of them, and its error is raised where the run is waited for. A lost host takes all tasks back to the last
checkpoint under a new epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.core import files
from shoal.core.clock import Clock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import DeadlineError, PreconditionError, ShoalError, UnavailableError
from shoal.core.threads import threads_of
from shoal.dataflow.checkpoint.claim import Claimant
from shoal.dataflow.checkpoint.coordinator import CheckpointCounts, Coordinator
from shoal.dataflow.checkpoint.messages import Command, Report, SourceTime, StopReading, TaskId
from shoal.dataflow.checkpoint.protocol import Members, Rules
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.checkpoint.savepoints import check_name
from shoal.dataflow.checkpoint.start import PlannedSink, StartedJob, start_job
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.connectors.abilities import SupportsCollect
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.connectors.topics.brokers import find_kafka_interface
from shoal.dataflow.execution.building import layout_of, stateful_uids
from shoal.dataflow.execution.chain import StepCounts
from shoal.dataflow.execution.coordinator.finished import find_lost_splits, had_ended, list_names
from shoal.dataflow.execution.coordinator.sources import SourceCoordinator
from shoal.dataflow.execution.coordinator.splits import Assignment, assign_splits
from shoal.dataflow.execution.hosts.base import HostLostError, Hosts
from shoal.dataflow.execution.hosts.control_messages import HostShare
from shoal.dataflow.execution.routing import all_tasks
from shoal.dataflow.language.logical import Node, Sink, Source
from shoal.dataflow.plan.prepared import PreparedPlan
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.exchange.errors import Cancelled
from shoal.topics.errors import FencedError

log = logging.getLogger(__name__)

#: Seconds within which losses of task hosts are counted.
_RECOVERY_SECONDS = 60.0
#: How often sinks may be fenced by somebody else within that time.
_MOST_FENCED = 3
#: Seconds before tasks are built again that could not be: twice as long each time, up to the second number.
_PAUSES = (0.05, 5.0)
#: How often the pause is doubled at most.
_MOST_DOUBLED = 10
#: Seconds between two looks whether there is a new checkpoint.
_SAVE_LOOK = 0.05


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
    #: From the start of its tasks to the end of the last, and of the last checkpoint: building the tasks, and starting
    #: and ending processes, is not in it.
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
        before_claim: Callable[[], object] | None = None,
    ) -> None:
        """`before_claim` is called before each claim of the job, and raises when another coordinator is to have it."""
        self.name = name
        self._before_claim = before_claim or _nothing
        self._is_look = is_look
        self.plan = plan.physical
        self._facts = plan.facts
        self._settings = settings
        self._clock = clock
        self._hosts = hosts
        self._attempt: _Attempt | None = None
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._threads = threads_of(clock)
        self._done = self._threads.event()
        #: The last command to stop reading; sources of a new attempt get it again.
        self._stopping: StopReading | None = None
        self._restored: int | None = None
        #: How often tasks went back to the last checkpoint because a host was lost.
        self.recoveries = 0
        self._lost_at: list[float] = []
        self._fenced_at: list[float] = []
        self._last_loss = ""
        self._began = clock.monotonic()
        self._ended: float | None = None
        self._job: StartedJob | None = None
        self._claimant = Claimant(SystemEntropy().token())
        #: Of the last job that was started; it stays when that has ended.
        self._storage: CheckpointStorage | None = None
        nodes = [step.node for stage in self.plan.stages for step in stage.steps]
        self._kafka = find_kafka_interface(nodes)

    # -- starting ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Build the tasks and start them. Called once, by the engine."""
        self._clear_collected()
        try:
            attempt = self._build_first()
        except BaseException:
            self._clear_up()
            self._hosts.close()
            raise
        self._attempt = attempt
        self._began = self._clock.monotonic()
        attempt.run()

    def _build_first(self) -> _Attempt:
        """Nothing was read yet: a host that is lost now is replaced, also without checkpoints.

        On a fleet the caller does so, which has to tell why.
        """
        while True:
            try:
                return self._build()
            except HostLostError as error:
                if self._hosts.most_losses is None or self._are_lost_too_often():
                    raise
                log.warning("job %s could not start and tries again: %s", self.name, error)
                self._clear_up()

    def _build(self) -> _Attempt:
        checkpoint = self._settings.checkpoint
        if checkpoint is not None:
            if self.recoveries:  # from the last one; or from where it was started, when there is none since
                checkpoint = replace(checkpoint, from_checkpoint=None, accept_duplicates=False)
            self._job = self._start(checkpoint)
            self._storage = self._job.storage
        job = self._job
        found = None if job is None else job.checkpoint
        assigned = self._assign_splits()
        splits = {uid: each.known for uid, each in assigned.items()}
        if found is not None and checkpoint is not None and not self.recoveries:
            self._look_at_end(found, splits, files.join(checkpoint.directory, self.name))
        if found is not None:
            self._restored = found.number
            log.info("flow %s goes on from checkpoint %d", self.name, found.number)
        share = HostShare(
            job=self.name,
            tasks=tuple(all_tasks(self.plan)),
            settings=self._settings,
            splits={uid: each.by_task for uid, each in assigned.items()},
            checkpoint=None if found is None else found.number,
            incarnation=0 if job is None else job.claim.record.incarnation,
            epoch=0 if job is None else job.claim.record.epoch,
            is_look=self._is_look,
        )
        attempt = _Attempt(self, assigned)
        if job is not None and checkpoint is not None:
            attempt.coordinator = self._make_coordinator(job, checkpoint)
        self._hosts.begin(share, found, attempt)
        return attempt

    def _start(self, checkpoint: CheckpointSettings) -> StartedJob:
        """Start the job. A process that stood still meanwhile, and was taken for dead by a log, starts it again."""
        layout, sinks, stateful = layout_of(self.plan), self._planned_sinks(), stateful_uids(self.plan)
        while True:
            self._before_claim()
            try:
                return start_job(
                    self.name,
                    checkpoint,
                    layout,
                    sinks,
                    stateful=stateful,
                    clock=self._clock,
                    claimant=self._claimant,
                )
            except FencedError as error:
                if self._are_fenced_too_often():
                    raise
                log.warning("job %s was fenced while it started, and starts again: %s", self.name, error)

    def _planned_sinks(self) -> list[PlannedSink]:
        return [
            PlannedSink(step.uid, step.node.connector, stage.parallelism)
            for stage in self.plan.stages
            for step in stage.steps
            if isinstance(step.node, Sink)
        ]

    def _look_at_end(self, found: Checkpoint, splits: Mapping[str, tuple[Split, ...]], directory: str) -> None:
        """Say so when the job had come to its end before. Input that would be read and never come out is refused."""
        new = find_lost_splits(self.plan, found, splits)
        if new:
            raise PreconditionError(
                f"job {self.name!r} had come to its end with checkpoint {found.number}: its results are out, and it "
                f"cannot take in what is new since then: {list_names(new)}",
                hint="run it anew, over all of its input, with another app id or data_dir; or remove its checkpoints, "
                f"{directory}",
                job=self.name,
                checkpoint=found.number,
                new=", ".join(new),
            )
        if had_ended(self.plan, found, splits):
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

    def _assign_splits(self) -> dict[str, Assignment]:
        return {
            step.uid: assign_splits(step.node.connector.find_splits(), stage.parallelism)
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

    @property
    def is_recovering(self) -> bool:
        """Whether its tasks go back to the last checkpoint just now."""
        return self._attempt is None and not self._done.is_set()

    @property
    def epoch(self) -> int:
        """The epoch that it runs under; 0 without checkpoints."""
        return 0 if self._job is None else self._job.claim.record.epoch

    @property
    def last_loss(self) -> str:
        """Why its tasks last went back to a checkpoint."""
        return self._last_loss

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

    def save(self, timeout: float = 600.0, *, name: str = "") -> str:
        """Wait for the next checkpoint and keep it: a savepoint, with a name or without. Returns where it is.

        Raises `InvalidError` for a name that is none or is taken, `PreconditionError` without checkpoints, and
        `DeadlineError` when none is complete in time.
        """
        if name and self._job is not None:
            check_name(self._job.storage, name)
        before = self.metrics().checkpoints.last_number
        ends_at = self._clock.monotonic() + timeout
        while self._clock.monotonic() < ends_at:
            job, newest = self._job, self.metrics().checkpoints.last_number
            if self._settings.checkpoint is None or self._done.is_set():
                raise PreconditionError(f"job {self.name!r} makes no checkpoints now")
            if job is not None and newest > before:
                return job.storage.keep(newest, name)
            self._done.wait(_SAVE_LOOK)
        raise DeadlineError(f"job {self.name!r} had no complete checkpoint within {timeout:g} s")

    def keep_last(self) -> str:
        """Keep the newest complete checkpoint: a savepoint. Returns where it is; empty when there is none."""
        newest = 0 if self._storage is None else self._storage.newest()
        return self._storage.keep(newest) if self._storage is not None and newest else ""

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

    def ended(self, attempt: _Attempt, at: float) -> None:
        """Everything of an attempt has ended, at this time. Called by its last thread."""
        with self._lock:
            if attempt is not self._attempt:
                return  # another one goes on
        self._ended = at
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
            if _is_fenced(error):
                if self._may_fence_again():
                    self.lose(attempt, f"its sinks were fenced: {error}")
                else:
                    self._fail(error)
            elif self._hosts.most_losses != 0 and is_away(error):
                self.lose(attempt, str(error), error)
            else:
                self._fail(error)

    def _may_fence_again(self) -> bool:
        """Whether sinks that were fenced are ours: by a coordinator of an earlier epoch that stood still and woke.

        A sink that is fenced again and again belongs to another job of the same name.
        """
        job = self._job
        if self._are_fenced_too_often() or job is None or self._hosts.most_losses == 0:
            return False
        try:
            job.claim.check()
        except ShoalError as error:
            log.warning("job %s: %s", self.name, error)
            return False
        return True

    def _are_fenced_too_often(self) -> bool:
        """Note that sinks were fenced. Whether they were too often lately."""
        now = self._clock.monotonic()
        self._fenced_at = [*(each for each in self._fenced_at if now - each < _RECOVERY_SECONDS), now]
        return len(self._fenced_at) > _MOST_FENCED

    def lose(self, attempt: _Attempt, reason: str, error: BaseException | None = None) -> None:
        """A task host of an attempt is lost, or something is away. `error`: what the job fails with if it must."""
        with self._lock:
            if attempt is not self._attempt or self._error is not None:
                return
            if self._may_recover():
                self._attempt = None
                self._threads.thread(self._recover, attempt, reason, name=f"{self.name}/recovery").start()
                return
        hint = "" if self._settings.checkpoint else "with checkpoints it would go on from the last one"
        often = f" for the {self.recoveries + 1}th time" if self.recoveries else ""
        self._fail(error or UnavailableError(f"job {self.name!r} lost a task host{often}: {reason}", hint=hint))

    def _may_recover(self) -> bool:
        """Whether to go on after a loss: not without checkpoints, and not when hosts die again and again."""
        return not self._are_lost_too_often() and self._settings.checkpoint is not None

    def _are_lost_too_often(self) -> bool:
        """Note a loss. Whether there were too many lately."""
        now = self._clock.monotonic()
        self._lost_at = [*(each for each in self._lost_at if now - each < _RECOVERY_SECONDS), now]
        most = self._hosts.most_losses
        return most is not None and len(self._lost_at) > most

    def _recover(self, lost: _Attempt, reason: str) -> None:
        """Take all tasks back to the last complete checkpoint, under a new epoch."""
        self._last_loss = reason
        log.warning("job %s goes back to its last checkpoint: %s", self.name, reason)
        try:
            attempt = self._begin_anew(lost)
        except BaseException as error:  # noqa: BLE001 - it is raised where the run is waited for
            self._clear_up()
            with self._lock:
                self._error = self._error or error
                self._attempt = lost
            self.ended(lost, self._clock.monotonic())
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
        pause, longest = _PAUSES
        lately = len(self._lost_at) - 1
        if lately:  # what is away is not asked without a rest
            pause = min(pause * 2 ** min(lately, _MOST_DOUBLED), longest)
            self._done.wait(pause)
        while True:
            self.recoveries += 1
            self._clear_up()
            try:
                return self._build()
            except ShoalError as error:
                if not is_away(error) or not self._may_recover() or self._error is not None:
                    raise
                log.warning("job %s could not go back to its last checkpoint and tries again: %s", self.name, error)
                self._last_loss = str(error)
            self._done.wait(pause)
            pause = min(2 * pause, longest)

    def _clear_up(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.release()

    def _send(self, task: TaskId, command: Command) -> None:
        self._hosts.send(task, command)


def _is_fenced(error: BaseException | None) -> bool:
    """Whether a sink had a newer writer than ours."""
    while error is not None and not isinstance(error, FencedError):
        error = error.__cause__
    return error is not None


def _nothing() -> None:
    """Nobody else decides who runs the job."""


def is_away(error: BaseException | None) -> bool:
    """Whether something that a task needs cannot be reached now, such as a broker or a disk: it may come back."""
    while error is not None and not (isinstance(error, UnavailableError | DeadlineError) and error.retryable):
        error = error.__cause__
    return error is not None


class _Attempt:
    """One epoch of a run: its coordinator, and what its task hosts say. Implements `HostListener`."""

    def __init__(self, flow: RunningFlow, assigned: Mapping[str, Assignment]) -> None:
        self._flow = flow
        self._sources = SourceCoordinator(
            flow.plan,
            assigned,
            settings=flow._settings,  # noqa: SLF001 - a part of it
            clock=flow._clock,  # noqa: SLF001
            send=flow._send,  # noqa: SLF001
            fail=self.failed,
        )
        self._hosts = flow._hosts  # noqa: SLF001 - a part of it
        self.coordinator: Coordinator | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._left = 1
        self._ended_at = 0.0

    def run(self) -> None:
        """Start the coordinator and the tasks."""
        if self.coordinator is not None:
            self._left += 1
            name = f"{self._flow.name}/checkpoints"
            threads = self._flow._threads  # noqa: SLF001 - a part of it
            self._thread = threads.thread(self._run_coordinator, self.coordinator, name=name)
            self._thread.start()
        self._hosts.run()
        self._sources.start(self._flow.name)

    def cancel(self) -> None:
        """End soon."""
        self._sources.stop()
        self._hosts.cancel()
        if self.coordinator is not None:
            self.coordinator.stop()

    def close(self) -> None:
        """End, and wait for it: nothing of this epoch runs when this returns."""
        self._sources.stop()
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
        except BaseException as error:  # noqa: BLE001 - it is raised where the run is waited for
            self._flow.fail(self, error)
        self._part_ended(self._flow._clock.monotonic())  # noqa: SLF001 - a part of it

    def reported(self, report: Report) -> None:
        """A report of a task."""
        if isinstance(report, SourceTime):
            self._sources.report(report)
        elif self.coordinator is not None:
            self.coordinator.report(report)

    def failed(self, error: BaseException) -> None:
        """A task failed."""
        self._flow.fail(self, error)

    def lost(self, reason: str, channel: str = "") -> None:
        """A task lost a peer, or its host is gone."""
        del channel  # whose ends it has is known where the hosts are
        self._flow.lose(self, reason)

    def ended(self, at: float) -> None:
        """All tasks have ended, at this time."""
        self._part_ended(at)

    def _part_ended(self, at: float) -> None:
        with self._lock:
            self._left -= 1
            self._ended_at = max(self._ended_at, at)
            if self._left:
                return
        self._sources.stop()
        self._flow.ended(self, self._ended_at)

"""Runs a plan in this process: one thread for each task, one for checkpoints.

`run` runs a bounded plan to its end, `start` starts one that is stopped some day. Both prepare what users wrote
(`shoal.dataflow.plan.prepare`), plan it (`physical`), build tasks (`planner`), bring them to their last checkpoint and
let them go. Whatever fails in one task stops all of them, and is raised to whoever waits. Called by
`shoal.dataflow.api.stream`, `shoal.dataflow.api.app` and `shoal.cli`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core import files
from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import DeadlineError, InvalidError, PreconditionError, problem
from shoal.dataflow.checkpoint.coordinator import CheckpointCounts, Coordinator
from shoal.dataflow.checkpoint.messages import Order, Report, StopReading, TaskId
from shoal.dataflow.checkpoint.protocol import Members, Rules
from shoal.dataflow.checkpoint.restore import share_states
from shoal.dataflow.checkpoint.start import PlannedSink, StartedJob, start_job
from shoal.dataflow.checkpoint.storage import Checkpoint
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution.chain import StepCounts, is_over
from shoal.dataflow.execution.planner import Program, build_tasks, layout_of, stateful_uids
from shoal.dataflow.execution.scratch import Scratch, make_scratch
from shoal.dataflow.execution.task import SourceTask, Task
from shoal.dataflow.language.logical import Custom, Node, Process, Sink, Source, walk
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.physical import PhysicalPlan, Step, key_groups_of
from shoal.dataflow.plan.physical import plan as plan_physically
from shoal.dataflow.plan.prepare import Prepared, check_connectors, prepare
from shoal.dataflow.plan.prepared import read_prepared, write_prepared
from shoal.exchange.errors import Cancelled

log = logging.getLogger(__name__)

_JOB_RULE = "must be letters, digits, dots, dashes and underscores, and begin with a letter or a digit"
#: Names that an error lists at most.
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class FlowMetrics:
    """A run at one moment."""

    steps: tuple[StepCounts, ...]
    #: Bytes that wait in the queues of each task, by its name.
    waiting_bytes: Mapping[str, int]
    checkpoints: CheckpointCounts


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
) -> RunReport:
    """Run a plan to its end. Raises what any of its tasks raised.

    With `is_look` it is a look at one stream, as `collect()` is: side outputs of process functions need no reader.
    """
    return run_prepared(
        prepare(plan), name=name, parallelism=parallelism, settings=settings, clock=clock, is_look=is_look
    )


def start(
    plan: Sequence[Node],
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
) -> RunningFlow:
    """Start a plan, and return at once."""
    return start_prepared(
        prepare(plan), name=name, parallelism=parallelism, settings=settings, clock=clock, is_look=is_look
    )


def run_prepared(
    prepared: Prepared,
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
) -> RunReport:
    """The same for a plan that was prepared before."""
    flow = start_prepared(prepared, name=name, parallelism=parallelism, settings=settings, clock=clock, is_look=is_look)
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
) -> RunningFlow:
    """The same for a plan that was prepared before."""
    _check_name(name)
    chosen = settings or FlowSettings()
    physical = plan_physically(prepared.sinks, parallelism=parallelism, key_groups=chosen.key_groups)
    for stage in physical.stages:
        sinks = [step.node for step in stage.steps]
        checked = {"parallelism": stage.parallelism, "has_checkpoints": chosen.checkpoint is not None}
        check_connectors(sinks, "check_run", **checked)
    # Tasks are built from the document and nothing else, in this process as in any other.
    plan = read_prepared(write_prepared(prepared, physical, is_local=True))
    flow = RunningFlow(name, plan.physical, plan.facts, chosen, clock or SystemClock(), is_look=is_look)
    flow.begin()
    return flow


def _check_name(name: str) -> None:
    if not name or not name[0].isalnum() or not all(each.isalnum() or each in "._-" for each in name):
        raise InvalidError([problem("name", name, _JOB_RULE)], what="flow")


def _needs_scratch(plan: PhysicalPlan, settings: FlowSettings) -> bool:
    """Whether a step may put something on disk while it runs: state in RocksDB, or what a user's operator likes to."""
    nodes = [step.node for stage in plan.stages for step in stage.steps]
    with_state = settings.state == "rocks" and any(isinstance(node, Process) for node in nodes)
    return with_state or any(isinstance(node, Custom) for node in nodes)


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
        physical: PhysicalPlan,
        facts: Mapping[Node, Facts],
        settings: FlowSettings,
        clock: Clock,
        *,
        is_look: bool = False,
    ) -> None:
        self.name = name
        self._is_look = is_look
        self.plan = physical
        self._facts = facts
        self._settings = settings
        self._clock = clock
        self._tasks: dict[TaskId, Task] = {}
        self._threads: list[threading.Thread] = []
        self._coordinator: Coordinator | None = None
        self._lock = threading.Lock()
        self._left = 0
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._restored: int | None = None
        self._began = clock.monotonic()
        self._ended: float | None = None
        self._scratch: Scratch | None = None
        self._job: StartedJob | None = None

    # -- starting ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Build the tasks and start them. Called once, by whoever made it."""
        try:
            if _needs_scratch(self.plan, self._settings):
                self._scratch = make_scratch(self._settings.scratch)
            self._build()
        except BaseException:
            self._clear_up()
            raise
        bodies = [(str(task.name), task.run) for task in self._tasks.values()]
        if self._coordinator is not None:
            bodies.append(("checkpoints", self._coordinator.run))
        self._left = len(bodies)
        self._threads = [
            threading.Thread(target=self._body, args=(body,), name=f"{self.name}/{label}"[:60], daemon=True)
            for label, body in bodies
        ]
        for thread in self._threads:
            thread.start()

    def _build(self) -> None:
        checkpoint = self._settings.checkpoint
        if checkpoint is not None:
            self._job = start_job(
                self.name,
                checkpoint,
                layout_of(self.plan),
                self._planned_sinks(),
                stateful=stateful_uids(self.plan),
                clock=self._clock,
            )
        found = None if self._job is None else self._job.checkpoint
        splits = self._find_splits()
        if found is not None and checkpoint is not None:
            self._look_at_end(found, splits, files.join(checkpoint.directory, self.name))
        program = Program(
            job=self.name,
            plan=self.plan,
            facts=self._facts,
            settings=self._settings,
            clock=self._clock,
            splits=splits,
            incarnation=0 if self._job is None else self._job.claim.record.incarnation,
            scratch="" if self._scratch is None else self._scratch.path,
            is_look=self._is_look,
            storage=None if self._job is None else self._job.storage,
            epoch=0 if self._job is None else self._job.history.epoch,
        )
        self._clear_collected()
        self._tasks = {task.task: task for task in build_tasks(program, self._report)}
        if found is not None:
            self._restore(found)
        if self._job is not None and checkpoint is not None:
            self._coordinator = self._make_coordinator(self._job, checkpoint)

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

    def _restore(self, found: Checkpoint) -> None:
        self._restored = found.number
        log.info("flow %s goes on from checkpoint %d", self.name, found.number)
        for ident, task in self._tasks.items():
            width = self.plan.stages[ident.stage].parallelism
            mine = key_groups_of(ident.subtask, width, self.plan.key_groups)
            task.restore_from(share_states(found, mine), found.handles)

    def _make_coordinator(self, job: StartedJob, settings: CheckpointSettings) -> Coordinator:
        members = Members(
            everyone=frozenset(self._tasks),
            sources=frozenset(ident for ident, task in self._tasks.items() if isinstance(task, SourceTask)),
            committing=frozenset(ident for ident, task in self._tasks.items() if task.has_sinks),
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
        return FlowMetrics(
            steps=tuple(counts for task in self._tasks.values() for counts in task.counts()),
            waiting_bytes={task.name: task.waiting_bytes for task in self._tasks.values()},
            checkpoints=CheckpointCounts() if self._coordinator is None else self._coordinator.counts,
        )

    def stop(self, *, finish: bool = False, timeout: float | None = None) -> RunReport:
        """Stop reading, let what is under way come through, make the last checkpoint, and wait for all of that.

        Windows that are open stay so in the checkpoint. With `finish` event time comes to its end and they are put out
        as they are: for a flow that will not go on.
        """
        for ident, task in self._tasks.items():
            if isinstance(task, SourceTask):
                self._send(ident, StopReading(finish))
        return self.wait(timeout)

    def abort(self) -> None:
        """End at once: nothing more is put out, no checkpoint is made. Does nothing when it has ended."""
        if not self._done.is_set():
            self._fail(Cancelled())
            self._done.wait(timeout=10.0)

    def wait(self, timeout: float | None = None) -> RunReport:
        """Until it has ended. Raises what stopped it, or `DeadlineError` when it still runs after `timeout` seconds."""
        if not self._done.wait(timeout):
            raise DeadlineError(f"flow {self.name!r} still runs after {timeout:g} seconds")
        for thread in self._threads:
            thread.join()
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
            if isinstance(step.node, Sink) and hasattr(step.node.connector, "into")
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

    # -- threads ----------------------------------------------------------------------------------------------

    def _body(self, body: Any) -> None:
        try:
            body()
        except Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits for the run
            self._fail(error)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._ended = self._clock.monotonic()
        self._clear_up()
        self._done.set()

    def _fail(self, error: BaseException) -> None:
        """The first failure counts; everyone else is told to end."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        for task in self._tasks.values():
            task.cancel()
        if self._coordinator is not None:
            self._coordinator.stop()

    def _clear_up(self) -> None:
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.remove()
        job, self._job = self._job, None
        if job is not None:
            job.release()

    def _send(self, task: TaskId, order: Order) -> None:
        self._tasks[task].mailbox.put(order)

    def _report(self, message: Report) -> None:
        if self._coordinator is not None:
            self._coordinator.report(message)

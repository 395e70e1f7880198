"""Builds the tasks of a run from a physical plan: operators, chains, channels and routers.

Called by `shoal.dataflow.execution.engine`. `make_operator` chooses the operator of a node; sources,
sinks and steps that only say where rows go are built here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.core import files
from shoal.core.clock import Clock
from shoal.core.threads import threads_of
from shoal.dataflow.checkpoint.messages import Report, TaskId, Waiting
from shoal.dataflow.checkpoint.records import Layout
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.checkpoint.uploads import StateUploads
from shoal.dataflow.connectors.abilities import takes_hidden
from shoal.dataflow.connectors.base import SinkContext, Split
from shoal.dataflow.execution.chain import Chain, RunningStep, StepTimer
from shoal.dataflow.execution.event_time import AssignTimes
from shoal.dataflow.execution.factories import Work, make_operator
from shoal.dataflow.execution.morsels import MorselStep, find_runs, find_workers
from shoal.dataflow.execution.routing import Channels, channels_into
from shoal.dataflow.execution.sinks import SinkStep
from shoal.dataflow.execution.sources import SourceDriver, SourceShare
from shoal.dataflow.execution.task import InboxTask, Reporting, SourceTask, Task
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Custom,
    Distinct,
    Join,
    KeyBy,
    Merge,
    Node,
    Process,
    Reduce,
    Sink,
    Source,
    Union,
    walk,
)
from shoal.dataflow.operators.base import Context, OperatorState, StepOperator
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.merging import can_keep_apart
from shoal.dataflow.plan.physical import PhysicalPlan, Role, Stage, Step, key_groups_of, kind_of
from shoal.dataflow.settings import FlowSettings

#: Nodes whose steps keep something that a restart needs. How far a step that names event time had come is not: without
#: it time begins anew behind it, and nothing is late that was not.
_STATEFUL = (Aggregate, Custom, Distinct, Join, Merge, Process, Reduce, Sink, Source)
#: Nodes that only say where rows go.
_TRANSPARENT = (KeyBy, Union)


@dataclass(frozen=True, slots=True)
class Program:
    """Everything that the tasks of a run are made from."""

    job: str
    #: Those that are built here; others run elsewhere.
    tasks: Sequence[TaskId]
    plan: PhysicalPlan
    facts: Mapping[Node, Facts]
    settings: FlowSettings
    clock: Clock
    #: The splits of each source, by its uid, and of each of its tasks, as they were when the run started.
    splits: Mapping[str, tuple[tuple[Split, ...], ...]]
    #: The incarnation of the job, which its sinks' markers carry.
    incarnation: int
    scratch: str
    #: Whether somebody looks at one stream, as `collect()` does: then side outputs need no reader.
    is_look: bool = False
    #: Where tasks write their state, and the epoch of the run; None without checkpoints.
    storage: CheckpointStorage | None = None
    epoch: int = 0

    @property
    def exactly_once(self) -> bool:
        """Whether sinks put their output out with checkpoints."""
        checkpoint = self.settings.checkpoint
        return checkpoint is not None and checkpoint.exactly_once

    @property
    def write_ahead_bytes(self) -> int:
        """Bytes of output that may wait in memory for a checkpoint."""
        checkpoint = self.settings.checkpoint
        return 1 if checkpoint is None else checkpoint.write_ahead_bytes


def layout_of(plan: PhysicalPlan) -> Layout:
    """What a plan looks like to its checkpoints."""
    steps = [(step, stage.parallelism) for stage in plan.stages for step in stage.steps]
    return Layout(
        key_groups=plan.key_groups,
        kinds={step.uid: kind_of(step.node) for step, _width in steps},
        widths={step.uid: width for step, width in steps},
    )


def stateful_uids(plan: PhysicalPlan) -> frozenset[str]:
    """The steps that a checkpoint has to have something of. Before an exchange, which may come and go, nothing is."""
    steps = [step for stage in plan.stages for step in stage.steps if step.role is not Role.PARTIAL]
    return frozenset(step.uid for step in steps if isinstance(step.node, _STATEFUL))


def carries_headers(source: Source, plan: PhysicalPlan) -> bool:
    """Whether rows of a source get to a sink that writes traces and event times down."""
    sinks = [
        step.node
        for stage in plan.stages
        for step in stage.steps
        if isinstance(step.node, Sink) and takes_hidden(step.node.connector)
    ]
    return any(node is source for node in walk(*sinks))


def build_tasks(program: Program, channels: Channels, report: Callable[[Report], None]) -> list[Task]:
    """The tasks of a host, none of them started."""
    stages = program.plan.stages
    return [
        _TaskPlan(program, stages[task.stage], task.subtask, channels=channels, report=report).build()
        for task in program.tasks
    ]


# ---------------------------------------------------------------------------------------------------------
# Tasks


class _TaskPlan:
    """One task being built."""

    def __init__(
        self,
        program: Program,
        stage: Stage,
        subtask: int,
        *,
        channels: Channels,
        report: Callable[[Report], None],
    ) -> None:
        self._program = program
        self._stage = stage
        self._subtask = subtask
        self._channels = channels
        self._ident = TaskId(stage.number, subtask)
        self._reporting = Reporting(report, self._make_uploads(report))
        self._driver = self._make_driver()

    def build(self) -> Task:
        """The task."""
        program = self._program
        chain = Chain(self._steps())
        name = f"{self._stage.name}.{self._subtask}"
        if self._driver is not None:
            return SourceTask(
                self._ident,
                name,
                chain,
                self._driver,
                clock=program.clock,
                settings=program.settings,
                reporting=self._reporting,
            )
        return InboxTask(
            self._ident,
            name,
            chain,
            self._channels.inboxes[self._ident],
            clock=program.clock,
            settings=program.settings,
            reporting=self._reporting,
            channels=len(channels_into(program.plan, self._ident)),
        )

    def _steps(self) -> list[RunningStep]:
        timer = StepTimer(self._program.clock.monotonic)
        steps = [self._step(each, timer) for each in self._stage.steps]
        for step in steps:
            step.output.is_look = self._program.is_look
        self._cut_into_morsels(steps)
        for index, planned in enumerate(self._stage.steps):
            for link in planned.links:
                steps[link.step].output.connect(link.tag, steps[index].receiver(link.port))
        for edge in self._program.plan.outputs_of(self._stage.number):
            router = self._channels.router(edge, self._subtask)
            steps[edge.source_step].output.connect(edge.tag, router.send)
            steps[edge.source_step].routers.append(router)
        return steps

    def _step(self, step: Step, timer: StepTimer) -> RunningStep:
        operator = self._operator(step)
        return RunningStep(
            uid=step.uid,
            name=step.name,
            context=self._context(step),
            operator=operator,
            at=step.node.at,
            parents=tuple((link.step, link.port) for link in step.links),
            sink=operator if isinstance(operator, SinkStep) else None,
            is_source=isinstance(step.node, Source),
            schemas=tuple(self._program.facts[each].schema for each in step.node.inputs),
            timer=timer,
        )

    def _cut_into_morsels(self, steps: list[RunningStep]) -> None:
        """Where workers are asked for, the last of several stateless steps does the work of all of them."""
        settings = self._program.settings
        workers = find_workers(settings.morsel_workers, os.environ)
        if workers < 2:
            return
        for run in find_runs(self._stage, self._program.plan.outputs_of(self._stage.number)):
            for index in run:
                steps[index].operator = None
            steps[run[-1]].operator = MorselStep(
                partial(self._operators_of, run), workers=workers, rows=settings.morsel_rows
            )

    def _operators_of(self, run: range) -> list[StepOperator]:
        made = (self._operator(self._stage.steps[index]) for index in run)
        return [operator for operator in made if operator is not None]

    def _context(self, step: Step) -> Context:
        width = self._stage.parallelism
        return Context(
            name=step.name,
            subtask=self._subtask,
            parallelism=width,
            key_groups=key_groups_of(self._subtask, width, self._program.plan.key_groups),
            clock=self._program.clock,
            scratch=self._scratch(step),
            max_rows=self._program.settings.batch_rows,
        )

    def _scratch(self, step: Step) -> str:
        root = self._program.scratch
        return files.join(root, f"{self._stage.number}.{step.uid}", str(self._subtask)) if root else ""

    def _operator(self, step: Step) -> StepOperator | None:
        node = step.node
        if isinstance(node, Source) and self._driver is not None:
            return _SourceStep(self._driver)
        if isinstance(node, Sink):
            return self._sink(step, node)
        if isinstance(node, AssignTime):
            return AssignTimes(node.time)
        if isinstance(node, _TRANSPARENT):
            return None
        facts = self._program.facts
        inputs = [facts[each] for each in node.inputs]
        outputs = self._program.plan.outputs_of(self._stage.number)
        apart = can_keep_apart(self._stage, self._stage.steps.index(step), outputs, facts)
        return make_operator(Work(node, inputs, facts[node], step.role, self._program.settings.state, apart))

    def _sink(self, step: Step, node: Sink) -> SinkStep:
        program = self._program
        context = SinkContext(
            job=program.job,
            sink=step.uid,
            subtask=self._subtask,
            parallelism=self._stage.parallelism,
            clock=program.clock,
            exactly_once=program.exactly_once,
            has_checkpoints=program.settings.checkpoint is not None,
            incarnation=program.incarnation,
            write_ahead_bytes=program.write_ahead_bytes,
            report_waiting=partial(self._report_waiting, step.uid),
        )
        return SinkStep(node.connector, program.facts[node.inputs[0]].schema, context)

    def _make_uploads(self, report: Callable[[Report], None]) -> StateUploads | None:
        program = self._program
        if program.storage is None:
            return None
        groups = key_groups_of(self._subtask, self._stage.parallelism, program.plan.key_groups)
        store = program.storage.open_store()
        return StateUploads(
            store=store,
            task=self._ident,
            epoch=program.epoch,
            key_groups=groups,
            report=report,
            threads=threads_of(program.clock),
        )

    def _report_waiting(self, sink: str, waiting_bytes: int) -> None:
        self._reporting.report(Waiting(self._ident, sink, waiting_bytes))

    def _make_driver(self) -> SourceDriver | None:
        step = self._stage.steps[0]
        if not isinstance(step.node, Source):
            return None
        program, facts = self._program, self._program.facts[step.node]
        share = SourceShare(
            node=step.node,
            schema=facts.schema,
            splits=program.splits[step.uid][self._subtask],
            needs_time=facts.needs_time,
            carries_headers=carries_headers(step.node, program.plan),
        )
        return SourceDriver(share, program.settings, program.clock)


class _SourceStep(StepOperator):
    """The first step of a source task: the task reads, this keeps the places."""

    def __init__(self, driver: SourceDriver) -> None:
        self._driver = driver

    def statistics(self) -> Mapping[str, int]:
        """Rows that could not be read."""
        aside = {"put_aside": self._driver.put_aside} if self._driver.put_aside else {}
        return {"skipped": self._driver.skipped, **aside}

    def snapshot(self) -> OperatorState:
        """The places that its splits have reached."""
        return self._driver.snapshot()

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Go on from there."""
        self._driver.restore(states)

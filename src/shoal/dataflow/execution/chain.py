"""The steps of one task, called one by the other; and the routers, by which rows leave the task.

Built by `shoal.dataflow.execution.building`, driven by `shoal.dataflow.execution.task` from one thread. A step is
called with a batch and puts its rows into its output, which calls the steps behind it: no queue, no thread and no copy
lies between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from shoal.core.errors import ShoalError
from shoal.dataflow.checkpoint.uploads import RestoredState
from shoal.dataflow.errors import CheckpointError, Location, OperatorFailedError, StepInput
from shoal.dataflow.execution.alignment import Idle, send
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Barrier, Batch, End, Schema, Watermark
from shoal.dataflow.operators.base import Context, OperatorState, StepOperator
from shoal.dataflow.operators.policies import shown_rows, shown_schema
from shoal.dataflow.plan.physical import MAIN
from shoal.exchange.base import Sender

Receiver: TypeAlias = Callable[[Batch], None]


def _never() -> float:
    """The time of a step that is not measured."""
    return 0.0


#: One of so many batches is weighed: counting the bytes of a batch costs more than reading its number of rows.
_WEIGHED = 16


class StepTimer:
    """Charges the time of a task's thread to the step that works. A step that puts rows out is not the one that works.

    It reads the clock twice for a batch, and never for a row.
    """

    __slots__ = ("_now", "_since", "_working")

    def __init__(self, now: Callable[[], float] = _never) -> None:
        self._now = now
        self._working: RunningStep | None = None
        self._since = 0.0

    def enter(self, step: RunningStep) -> RunningStep | None:
        """This step works from now on. Returns the one that called it."""
        now, caller = self._now(), self._working
        if caller is not None:
            caller.seconds += now - self._since
        self._working, self._since = step, now
        return caller

    def leave(self, step: RunningStep, caller: RunningStep | None) -> None:
        """It has done its work, and its caller goes on."""
        now = self._now()
        step.seconds += now - self._since
        self._working, self._since = caller, now


class StepOutput:
    """Where a step puts its rows; counts them on the way."""

    __slots__ = ("_width", "batches", "bytes", "dropped", "is_look", "rows", "settle", "sides", "targets")

    def __init__(self) -> None:
        #: Lets event time move on while a step is still putting rows out. Set by the chain.
        self.settle: Callable[[], None] = _nothing
        self.targets: list[Receiver] = []
        self.sides: dict[str, list[Receiver]] = {}
        self.rows = 0
        self.batches = 0
        #: Bytes of its rows, by the width of every sixteenth batch.
        self.bytes = 0.0
        self._width = 0.0
        self.dropped = 0
        #: Whether the run is a look at one stream, such as `collect()`, which need not read all. Set when it is built.
        self.is_look = False

    def emit(self, batch: Batch) -> None:
        """Rows for the steps behind. A batch without rows goes nowhere."""
        rows = batch.num_rows
        if rows:
            self.rows += rows
            if not self.batches % _WEIGHED:
                self._width = batch.nbytes / rows
            self.batches += 1
            self.bytes += rows * self._width
            for target in self.targets:
                target(batch)

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Rows for a side output; counted as dropped when nobody reads it."""
        if not batch.num_rows:
            return
        targets = self.sides.get(tag)
        if not targets:
            self.dropped += batch.num_rows
            return
        for target in targets:
            target(batch)

    @property
    def read_tags(self) -> Collection[str]:
        """The side outputs that somebody reads."""
        return self.sides.keys()

    def connect(self, tag: str, target: Receiver) -> None:
        """Let somebody have what is put out ahead, or on the side."""
        (self.targets if tag == MAIN else self.sides.setdefault(tag, [])).append(target)


def _nothing() -> None:
    """There is no chain yet."""


class Router:
    """The sending end of an edge, in one task: shares rows out over channels, and tells all of them the rest."""

    def __init__(self, channels: Sequence[Sender], share: Share) -> None:
        self._channels = tuple(channels)
        self._share = share
        self._watermark = START_OF_TIME
        self._idle = False
        self._has_ended = False

    def send(self, batch: Batch) -> None:
        """Rows, each to the task that it belongs to. Waits while a channel is full."""
        if self._idle and self._watermark > START_OF_TIME:
            # Everyone is to hear that rows come again, also who gets none of them: the tasks behind have one watermark.
            self._tell(Watermark(self._watermark))
        self._idle = False
        for index, part in self._share(batch):
            send(self._channels[index], part)

    @property
    def blocked_seconds(self) -> float:
        """How long its channels were full."""
        return sum(channel.blocked_seconds for channel in self._channels)

    def advance(self, watermark: int) -> None:
        """Tell the watermark when it has grown."""
        if watermark > self._watermark:
            self._watermark = watermark
            self._tell(Watermark(watermark))
            self._idle = False

    def rest(self) -> None:
        """Tell that nothing is expected for now."""
        if not self._idle:
            self._idle = True
            self._tell(Idle())

    def barrier(self, checkpoint: int) -> None:
        """Pass a barrier on. Behind the end nobody waits for one."""
        if not self._has_ended:
            self._tell(Barrier(checkpoint))

    def end(self) -> None:
        """Nothing comes any more."""
        self._tell(End())
        self._has_ended = True

    def _tell(self, element: Watermark | Barrier | End | Idle) -> None:
        for channel in self._channels:
            send(channel, element)


#: How rows are shared out: parts of a batch, with the number of the channel for each.
Share: TypeAlias = Callable[[Batch], Iterable[tuple[int, Batch]]]


@runtime_checkable
class TimeMaker(Protocol):
    """An operator that makes event time of its own, and so says itself when it is idle."""

    def is_idle(self) -> bool:
        """Whether no row came for so long that nobody should wait for its time."""
        ...


class SinkOperator(Protocol):
    """An operator that commits with checkpoints."""

    def prepare(self, checkpoint: int) -> OperatorState:
        """The write-ahead of a checkpoint."""
        ...

    def commit(self, checkpoint: int) -> None:
        """The checkpoint is complete."""
        ...

    def flush(self) -> None:
        """Without checkpoints: make everything visible."""
        ...


@dataclass(slots=True)
class RunningStep:
    """A step in a task. Without an operator rows go through it as they are."""

    uid: str
    name: str
    context: Context
    operator: StepOperator | None
    at: Location | None = None
    #: The steps of this chain that it reads, each with the input that it is to this one; none for the first.
    parents: tuple[tuple[int, int], ...] = ()
    output: StepOutput = field(default_factory=StepOutput)
    routers: list[Router] = field(default_factory=list)
    sink: SinkOperator | None = None
    is_source: bool = False
    #: Whether it has put out what was left, now or before the checkpoint that it goes on from.
    has_ended: bool = False
    watermark: int = START_OF_TIME
    #: Rows that its operator was called with.
    received: int = 0
    #: The watermark of what comes out of it, and of each of its inputs.
    behind: int = START_OF_TIME
    port_watermarks: dict[int, int] = field(default_factory=dict)
    #: What is known of its inputs before any row: the columns of each.
    schemas: tuple[Schema | None, ...] = ()
    #: That of its task; and the seconds that it has charged to this step: its work, and waiting for room behind it.
    timer: StepTimer = field(default_factory=StepTimer)
    seconds: float = 0.0
    #: Seconds of its work alone, as they were last told.
    busy_seconds: float = 0.0
    #: Seconds that its last snapshot took.
    snapshot_seconds: float = 0.0

    def tell_busy(self) -> float:
        """Seconds of its work, without waiting for room. Never fewer: a wait may be known before its work."""
        self.busy_seconds = max(self.busy_seconds, self.seconds - self.blocked_seconds)
        return self.busy_seconds

    @property
    def blocked_seconds(self) -> float:
        """How long the channels behind it were full."""
        return sum(router.blocked_seconds for router in self.routers)

    def overrides(self, method: str) -> bool:
        """Whether the operator does something of its own there: what nobody listens to is not called."""
        return self.operator is not None and getattr(type(self.operator), method) is not getattr(StepOperator, method)

    def receiver(self, port: int) -> Receiver:
        """What calls the operator with a batch, and says which one it was when it raises."""
        if self.operator is None:
            return self.output.emit
        process, output, failed = self.operator.process, self.output, self.failed
        enter, leave = self.timer.enter, self.timer.leave

        def receive(batch: Batch) -> None:
            self.received += batch.num_rows
            caller = enter(self)
            try:
                process(batch, output, port=port)
            except OperatorFailedError:  # of a step behind this one: it has its name already
                raise
            except Exception as error:
                raise failed(error, batch) from error
            finally:
                leave(self, caller)

        return receive

    def failed(self, error: Exception, batch: Batch | None = None) -> OperatorFailedError:
        """The error with the step's name, and what it worked on."""
        given = StepInput(schema=" | ".join(shown_schema(each) for each in self.schemas if each is not None))
        if batch is not None:
            known = error.facts.get("rows", "").splitlines() if isinstance(error, ShoalError) else []
            given = StepInput(
                shown_schema(batch.schema), tuple(known) or shown_rows(batch), batch.num_rows, bool(known)
            )
        return OperatorFailedError(self.name, error, at=self.at, subtask=self.context.subtask, given=given)

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the operator, with the step's name on what it raises."""
        caller = self.timer.enter(self)
        try:
            return self.guard(method, *arguments)
        finally:
            self.timer.leave(self, caller)

    def guard(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """The same without taking the time."""
        try:
            return method(*arguments)
        except OperatorFailedError:
            raise
        except Exception as error:
            raise self.failed(error) from error


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What a step has put out so far."""

    uid: str
    name: str
    subtask: int
    rows: int
    batches: int
    #: Rows for side outputs that nobody reads.
    dropped: int
    watermark: int
    #: What the operator counts itself: rows that were late or skipped, keys that it holds.
    statistics: Mapping[str, int]
    #: Rows that came in; a source has none.
    received: int = 0
    #: Bytes in the queue in front of it; 0 for a step that is called by another one.
    waiting_bytes: int = 0
    #: Of the task that begins with it, 0 for a step that is called by another one: bytes that came in (of a source a
    #: figure from samples), seconds in which it worked, and seconds in which it waited for room behind it.
    received_bytes: int = 0
    busy_seconds: float = 0.0
    backpressured_seconds: float = 0.0
    #: Of the step alone: bytes that it put out, by samples; seconds of its work, and of waiting for room behind it.
    emitted_bytes: int = 0
    step_busy_seconds: float = 0.0
    step_backpressured_seconds: float = 0.0
    #: Bytes of its keyed state in the last checkpoint, and seconds that the snapshot for it took.
    state_bytes: int = 0
    snapshot_seconds: float = 0.0


#: Bytes of state that a step takes in at once, where it can.
_PIECE_BYTES = 32 * 1024 * 1024
#: The state of a step that has put everything out: there is nothing left in it, and nothing more to come.
_ENDED = b"ended"
_OVER = OperatorState(shared=_ENDED)


def is_over(shared: bytes) -> bool:
    """Whether a step had put everything out when this was its state."""
    return shared == _ENDED


class Chain:
    """The steps of one task, in an order in which none comes before those that it reads."""

    def __init__(self, steps: Sequence[RunningStep]) -> None:
        self._steps = tuple(steps)
        self._sinks = [(step, step.sink) for step in steps if step.sink is not None]
        self._opened: list[RunningStep] = []
        self._heard = START_OF_TIME
        self._has_routers = any(step.routers for step in steps)
        self._shifting = {index for index, step in enumerate(steps) if step.overrides("output_watermark")}
        self._hearing = {index for index, step in enumerate(steps) if step.overrides("on_port_watermark")}
        self._idlers = _time_makers(steps)
        self.makes_time = bool(self._idlers)
        self._ticking = [step for step in steps if step.overrides("next_tick")]
        self.has_preferences = self._steps[0].overrides("preferred_ports")
        for step in steps:
            step.output.settle = self.settle

    @property
    def has_sinks(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._sinks)

    @property
    def sink_uids(self) -> list[str]:
        """The steps that have something to commit."""
        return [step.uid for step, _sink in self._sinks]

    @property
    def first(self) -> RunningStep:
        """The step that the task's own input goes to."""
        return self._steps[0]

    # -- life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open every step, from the last to the first: a step that emits finds those behind it ready."""
        for step in reversed(self._steps):
            if step.operator is not None:
                self._opened.append(step)
                step.call(step.operator.open, step.context)

    def restore(self, states: Mapping[str, Sequence[RestoredState]]) -> None:
        """Go on from the states of each step. Those of sinks are committed before any task runs."""
        for step in self._steps:
            found = states.get(step.uid, ())
            if step.sink is None and step.operator is not None and found:
                self._restore_step(step, step.operator, found)

    def _restore_step(self, step: RunningStep, operator: StepOperator, states: Sequence[RestoredState]) -> None:
        ended = [is_over(state.shared) for state in states]
        place, width = step.context.subtask, step.context.parallelism
        step.has_ended = all(ended) or (len(ended) == width and ended[place])
        going = [state for state, over in zip(states, ended, strict=True) if not over]
        if not operator.restores_in_pieces:
            step.call(operator.restore, [piece for state in going for piece in state.pieces()])
            return
        try:
            operator.restore(piece for state in going for piece in state.pieces(_PIECE_BYTES))
        except CheckpointError:  # of a file, not of the step
            raise
        except Exception as error:
            raise step.failed(error) from error

    def end(self) -> None:
        """All inputs have ended. Steps put out what is left only if event time has come to its end, too."""
        if self._heard == END_OF_TIME:
            for step in self._steps:
                self._end_step(step)
                self.settle()  # a step that held rows back has let go of them, and of event time behind it
        for step in self._steps:
            for router in step.routers:
                router.end()

    def _end_step(self, step: RunningStep) -> None:
        """Let a step put out what is left, once in the life of a job: what a checkpoint has of its end is its output.

        Called when event time comes to its end, before those behind it hear of that: what it puts out is not late.
        """
        operator = step.operator
        if operator is None or step.has_ended:
            return
        step.has_ended = True
        if len(step.parents) > 1:
            for _parent, port in step.parents:
                step.call(operator.on_port_end, port, step.output)
        step.call(operator.on_end, step.output)

    def close(self) -> list[Exception]:
        """Close every step that was opened, whatever the others do; gives what they raised."""
        errors: list[Exception] = []
        while self._opened:
            step = self._opened.pop()
            try:
                if step.operator is not None:
                    step.operator.close()
            except Exception as error:  # noqa: BLE001 - the others are to be closed all the same; it is handed on
                errors.append(step.failed(error))
        return errors

    # -- event time -------------------------------------------------------------------------------------------

    def advance(self, watermark: int) -> None:
        """Event time has come so far on all inputs of the task: tell each step, in order."""
        if watermark > self._heard:
            self._heard = watermark
            self._propagate()

    def advance_port(self, port: int, watermark: int) -> None:
        """Event time has come so far on one input of the task."""
        if 0 in self._hearing:
            self._tell_port(self._steps[0], port, watermark)
            self.settle()

    def end_port(self, port: int) -> None:
        """One input of the task has ended, with event time at its end."""
        step = self._steps[0]
        if step.operator is not None:
            step.call(step.operator.on_port_end, port, step.output)
            self.settle()

    def settle(self) -> None:
        """Something went through: steps that shift event time may have moved on."""
        if self._shifting:
            self._propagate()

    def rest(self, *, is_empty: bool = False, is_quiet: bool = True) -> None:
        """All inputs of the task are idle; with `is_empty` there are none, so that nothing can be expected at all.

        Without `is_quiet` there is still something to read: steps that make event time of their own are not idle.
        """
        if self._has_routers:
            self._spread_rest(True, is_empty=is_empty, is_quiet=is_quiet)

    def look_idle(self) -> None:
        """Steps that make event time of their own may have become idle, whatever the task's inputs are."""
        if self.makes_time:
            self._spread_rest(False, is_empty=False)

    def _spread_rest(self, first: bool, *, is_empty: bool, is_quiet: bool = True) -> None:
        resting: list[bool] = []
        for index, step in enumerate(self._steps):
            if index in self._idlers:
                rests = is_empty or (is_quiet and self._idlers[index].is_idle())
            else:
                rests = all(resting[parent] for parent, _port in step.parents) if step.parents else first
            resting.append(rests)
            if rests:
                for router in step.routers:
                    router.rest()

    def _propagate(self) -> None:
        for index, step in enumerate(self._steps):
            before = self._heard
            if step.parents:
                before = min(self._steps[parent].behind for parent, _port in step.parents)
                if index in self._hearing:
                    for parent, port in step.parents:
                        self._tell_port(step, port, self._steps[parent].behind)
            self._tell(index, step, before)

    def _tell(self, index: int, step: RunningStep, watermark: int) -> None:
        operator = step.operator
        if watermark > step.watermark:
            step.watermark = watermark
            if operator is not None:
                step.call(operator.on_watermark, watermark, step.output)
            if watermark == END_OF_TIME:
                self._end_step(step)
        behind = watermark if operator is None or index not in self._shifting else operator.output_watermark(watermark)
        if behind > step.behind:
            step.behind = behind
            for router in step.routers:
                router.advance(behind)

    def _tell_port(self, step: RunningStep, port: int, watermark: int) -> None:
        if watermark > step.port_watermarks.get(port, START_OF_TIME) and step.operator is not None:
            step.port_watermarks[port] = watermark
            step.call(step.operator.on_port_watermark, watermark, port, step.output)

    # -- the time of day --------------------------------------------------------------------------------------

    def next_tick(self) -> int | None:
        """When a step wants to be called for the time of day, in microseconds since 1970."""
        due = [tick for step in self._ticking if (tick := _next_tick(step)) is not None]
        return min(due) if due else None

    def tick(self, now: int) -> None:
        """Call the steps whose time has come."""
        for step in self._ticking:
            due = _next_tick(step)
            if due is not None and due <= now and step.operator is not None:
                step.call(step.operator.on_tick, now, step.output)
        self.settle()

    # -- checkpoints ------------------------------------------------------------------------------------------

    def snapshot(self, checkpoint: int) -> dict[str, OperatorState]:
        """The state of every step, in order."""
        found: dict[str, OperatorState] = {}
        for step in self._steps:
            before = step.seconds
            if step.sink is not None:
                found[step.uid] = step.call(step.sink.prepare, checkpoint)
            elif step.operator is not None:
                is_over = step.has_ended and not step.is_source and step.overrides("snapshot")
                found[step.uid] = _OVER if is_over else step.call(step.operator.snapshot)
            step.snapshot_seconds = step.seconds - before
        return found

    def pass_barrier(self, checkpoint: int) -> None:
        """Tell all tasks behind this one."""
        for step in self._steps:
            for router in step.routers:
                router.barrier(checkpoint)

    def commit(self, checkpoint: int) -> None:
        """Sinks make visible what they prepared."""
        for step, sink in self._sinks:
            step.call(sink.commit, checkpoint)

    def flush(self) -> None:
        """Sinks make everything visible."""
        for step, sink in self._sinks:
            step.call(sink.flush)

    # -- looking ----------------------------------------------------------------------------------------------

    @property
    def blocked_seconds(self) -> float:
        """How long it has waited for room in the channels behind it."""
        return sum(step.blocked_seconds for step in self._steps)

    def preferred_ports(self) -> frozenset[int]:
        """The inputs that the first step would rather read."""
        operator = self.first.operator
        return frozenset() if operator is None else operator.preferred_ports()

    def counts(self) -> tuple[StepCounts, ...]:
        """What each step has put out; read from other threads too."""
        return tuple(
            StepCounts(
                uid=step.uid,
                name=step.name,
                subtask=step.context.subtask,
                rows=step.output.rows,
                batches=step.output.batches,
                dropped=step.output.dropped,
                watermark=step.watermark,
                statistics={} if step.operator is None else step.operator.statistics(),
                received=step.output.rows if step.operator is None else step.received,
                emitted_bytes=int(step.output.bytes),
                step_busy_seconds=step.tell_busy(),
                step_backpressured_seconds=step.blocked_seconds,
                snapshot_seconds=step.snapshot_seconds,
            )
            for step in self._steps
        )


def _time_makers(steps: Sequence[RunningStep]) -> dict[int, TimeMaker]:
    found: dict[int, TimeMaker] = {}
    for index, step in enumerate(steps):
        operator: object = step.operator
        if isinstance(operator, TimeMaker):
            found[index] = operator
    return found


def _next_tick(step: RunningStep) -> int | None:
    return None if step.operator is None else step.operator.next_tick()

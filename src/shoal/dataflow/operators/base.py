"""The operator: one step of a chain, in one task, called by one thread.

`StepOperator` is what the engine drives. `shoal.dataflow.operators.users.custom` wraps users' own operators, which are
those of `shoal.dataflow.operators.users.own`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from shoal.core.clock import Clock
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.keys import KeyGroups
from shoal.dataflow.state.tables import Tables


class Output(Protocol):
    """Where an operator puts its rows. Calling it may block: that is how a slow sink slows the source."""

    def emit(self, batch: Batch) -> None:
        """Rows for the next operator."""
        ...

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Rows for a side output; dropped, and counted, when nobody reads it."""
        ...


@runtime_checkable
class SettlingOutput(Protocol):
    """An output that can let event time move on while a step is still putting rows out, as that of a task can."""

    def settle(self) -> None:
        """Tell the steps behind how far event time has come."""
        ...


@runtime_checkable
class TaskOutput(Output, Protocol):
    """An output that knows who reads it, as that of a task does. Others, such as those of a probe, only take rows."""

    @property
    def is_look(self) -> bool:
        """Whether the run is a look at one stream, such as `collect()`, which need not read all."""
        ...

    @property
    def read_tags(self) -> Collection[str]:
        """The side outputs that somebody reads."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What a task tells its operators when they open."""

    name: str
    subtask: int
    parallelism: int
    key_groups: KeyGroups
    clock: Clock
    #: A directory of this operator's own, for state that does not fit into memory.
    scratch: str = ""
    #: How many rows the batches that it emits should have at most.
    max_rows: int = 16_384


@dataclass(frozen=True, slots=True)
class OperatorState:
    """What an operator needs to go on from a checkpoint; nothing changes it once `snapshot` has returned.

    What belongs to keys is apart for each key group, so that another number of tasks can share it out anew: `tables`,
    of which a snapshot has what changed since the last one, or `keyed`, the bytes of each group, whole each time. What
    belongs to no key is `shared`: a restored operator gets that of every task of the checkpoint, and takes what
    concerns it. It gets its tables merged.
    """

    keyed: Mapping[int, bytes] = field(default_factory=dict)
    shared: bytes = b""
    tables: Tables = field(default_factory=dict)
    #: Whether this is all keyed state there is; else it is what changed since the last snapshot.
    is_whole: bool = True


_ANY_PORT: frozenset[int] = frozenset()


class StepOperator:
    """A step. Every method has a default that does nothing and keeps nothing."""

    def open(self, context: Context) -> None:
        """Called once, before anything else."""

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Take a batch in. `port` is which input it came by."""
        raise NotImplementedError

    def on_watermark(self, time: int, out: Output) -> None:
        """Event time has come this far on all inputs. It is passed on by the task afterwards."""

    def on_port_watermark(self, time: int, port: int, out: Output) -> None:
        """Event time has come this far on one of several inputs.

        Called before `on_watermark`, and whether or not the least over all inputs has moved.
        """

    def on_port_end(self, port: int, out: Output) -> None:
        """One of several inputs has ended; nothing more comes by it. Called before `on_end`."""

    def output_watermark(self, time: int) -> int:
        """How far event time has come behind this operator, when it is at `time` before it.

        Only operators that hold rows back return less than `time`. The task asks after each call and passes on what is
        greater than before.
        """
        return time

    def preferred_ports(self) -> frozenset[int]:
        """The inputs that it waits for now; empty when any will do.

        The task reads of them first, and of the others only when a barrier has to be aligned or nothing else can go on.
        """
        return _ANY_PORT

    def statistics(self) -> Mapping[str, int]:
        """Counts for people: rows that were late, skipped, put aside; keys and rows held."""
        return {}

    def on_tick(self, now: int, out: Output) -> None:
        """Processing time has come this far, in microseconds; called when `next_tick` asked for it."""

    def next_tick(self) -> int | None:
        """When `on_tick` is to be called next; None when there is no need."""
        return None

    def on_end(self, out: Output) -> None:
        """All inputs have ended, and what is left is emitted now.

        Called once in the life of a job: behind `on_watermark` with the end of time, before anyone else hears of that.
        """

    def snapshot(self) -> OperatorState:
        """Its state as of now. The rows before the barrier are in it, those after are not."""
        return OperatorState()

    #: Whether `restore` takes the state of a task in pieces of some key groups each, with the shared part in every one:
    #: for operators that need not have all of it in memory.
    restores_in_pieces: ClassVar[bool] = False

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Go on from every task's state of the checkpoint; of keyed state only this task's key groups are in it."""

    def close(self) -> None:
        """Let go of files and the like. Called once, also after a failure."""

"""The operator that users write: `class Sessions(Operator)`, and `stream.apply(Sessions)`.

A protocol whose methods have defaults, but for `process_batch`: a class that only has that method will do as well.
`stream.apply` calls `find_hint`, which refuses what can be no operator; `shoal.dataflow.operators.users.custom` drives
it. The engine's own operators are in `shoal.dataflow.operators.base`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from shoal.dataflow.errors import Location, refuse
from shoal.dataflow.operators import base


@runtime_checkable
class Operator(Protocol):
    """A step of one's own. One is made in each task by the factory that `apply` was given; one thread calls it.

    A method emits rows by returning a RecordBatch, an Arrow table, a mapping of columns or a list of these, or by
    yielding them. None is no rows.
    """

    #: In how many tasks it wants to run, where nobody says `with_parallelism`; 0 for as many as the flow has.
    parallelism_hint: int = 0

    def open(self, context: Any) -> None:
        """Called once, before anything else, with its place: `subtask`, `parallelism`, `key_groups`, `clock`."""

    def process_batch(self, batch: Any) -> Any:
        """Rows in, rows out."""
        raise NotImplementedError

    def process_morsel(self, morsel: Any) -> Any:
        """A slice of a batch that fits into a core's cache. This is what is called; by default it is a batch as any."""
        return self.process_batch(morsel)

    def on_watermark(self, time: int) -> Any:
        """Event time has come this far, in microseconds. May emit rows."""

    def finish(self) -> Any:
        """All rows have come. May emit the last ones."""

    def snapshot(self) -> Any:
        """Its state as of now: any value that can be pickled, or `KeyedState` with the bytes of each key group.

        None is no state: then `restore` is not called for it.
        """

    def restore(self, states: Any) -> None:
        """Go on from a checkpoint: with `KeyedState` for its own key groups, or with a list of each task's value."""

    def close(self) -> None:
        """Called once, at the end, also after a failure."""


def find_hint(factory: Any, *, at: Location | None = None) -> int | None:
    """In how many tasks an operator wants to run, where it says so. Raises `PlanError` for a class that is none.

    What a factory that is no class makes is seen in the task.
    """
    if isinstance(factory, type) and not issubclass(factory, base.StepOperator):
        own = getattr(factory, "process_batch", None) not in (None, Operator.process_batch)
        if not own and getattr(factory, "process_morsel", None) in (None, Operator.process_morsel):
            form = "def process_batch(self, batch): … gets an Arrow batch, and returns one, or None for no rows"
            raise refuse(f"operator {factory.__name__}", None, "must have a method process_batch", at=at, hint=form)
    hint = getattr(factory, "parallelism_hint", 0)
    if isinstance(hint, bool) or not isinstance(hint, int) or hint < 0:
        name = getattr(factory, "__name__", type(factory).__name__)
        shown = "a method" if callable(hint) else hint
        rule = "must be a whole number from 0 on, known before an operator is made"
        raise refuse(
            f"operator {name}: parallelism_hint", shown, rule, at=at, hint="parallelism_hint = 2, in the class"
        )
    return hint or None

"""What an operator of a user's own may have: one small protocol for each ability. Only `UserOperator` is required.

`shoal.dataflow.api.own_operator` has the class that users derive from; a class of their own will do as well. Driven by
`shoal.dataflow.operators.users.custom`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class UserOperator(Protocol):
    """An operator of a user's own."""

    def process_batch(self, batch: Any) -> Any:
        """Rows in, rows out."""
        ...


@runtime_checkable
class SupportsMorsels(Protocol):
    """It takes slices of batches; then this is called."""

    def process_morsel(self, morsel: Any) -> Any:
        """Rows in, rows out."""
        ...


@runtime_checkable
class SupportsOpen(Protocol):
    """It wants to know its place."""

    def open(self, context: Any) -> None:
        """Called once, before anything else."""
        ...


@runtime_checkable
class SupportsWatermarks(Protocol):
    """It wants to know the event time."""

    def on_watermark(self, time: int) -> Any:
        """Event time has come this far. May emit rows."""
        ...


@runtime_checkable
class SupportsFinish(Protocol):
    """It has rows left at the end."""

    def finish(self) -> Any:
        """All rows have come. May emit the last ones."""
        ...


@runtime_checkable
class SupportsSnapshot(Protocol):
    """It has state."""

    def snapshot(self) -> Any:
        """Its state as of now."""
        ...


@runtime_checkable
class SupportsRestore(Protocol):
    """It goes on from a checkpoint."""

    def restore(self, states: Any) -> None:
        """Take the state back."""
        ...


@runtime_checkable
class SupportsClose(Protocol):
    """It has something to let go of."""

    def close(self) -> None:
        """Called once, at the end, also after a failure."""
        ...

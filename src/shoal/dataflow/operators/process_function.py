"""What users subclass for logic of their own by key: state, timers and side outputs.

    class Alert(ProcessFunction):
        def open(self, context):
            self.count = context.value_state("count", ttl=timedelta(hours=1))

        def process(self, record, context):
            count = self.count.get(0) + 1
            self.count.set(count)
            if count == 3:
                context.set_timer(context.time + 60_000_000)

        def on_timer(self, time, context):
            yield {"user": context.key, "count": self.count.get()}

`shoal.dataflow.operators.process` runs it. Times are whole microseconds since 1970; where one is given a `datetime`
will do, and where a duration is given a `timedelta` will.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias

from shoal.dataflow.language.record import Record
from shoal.dataflow.state.handles import AggregatingState, ListState, MapState, ReducingState, ValueState

Time: TypeAlias = int | datetime
Duration: TypeAlias = int | timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class FunctionContext(Protocol):
    """What a process function is given. State and timers are those of the current key."""

    @property
    def key(self) -> Any:
        """The current key: its value, or a tuple when it is made of several columns."""
        ...

    @property
    def time(self) -> int:
        """The event time of the record, or of the timer."""
        ...

    @property
    def watermark(self) -> int:
        """How far event time has come."""
        ...

    @property
    def processing_time(self) -> int:
        """Now."""
        ...

    def emit(self, row: Any) -> None:
        """Put a row out, besides those that the function returns or yields."""
        ...

    def emit_side(self, tag: str, row: Mapping[str, Any]) -> None:
        """Put a row out on the side."""
        ...

    def set_timer(self, time: Time) -> None:
        """Call `on_timer` for this key when the watermark has come to a time."""
        ...

    def delete_timer(self, time: Time) -> None:
        """Do not."""
        ...

    def set_processing_timer(self, time: Time) -> None:
        """Call `on_timer` for this key at a time of the clock."""
        ...

    def delete_processing_timer(self, time: Time) -> None:
        """Do not."""
        ...

    def value_state(self, name: str, *, ttl: Duration = 0) -> ValueState[Any]:
        """One value for each key. Only in `open`, like all of these."""
        ...

    def list_state(self, name: str, *, ttl: Duration = 0) -> ListState[Any]:
        """A list for each key."""
        ...

    def map_state(self, name: str, *, ttl: Duration = 0) -> MapState[Any, Any]:
        """A map for each key."""
        ...

    def reducing_state(
        self, name: str, function: Callable[[Any, Any], Any], *, ttl: Duration = 0
    ) -> ReducingState[Any]:
        """One value for each key, made by a function of two."""
        ...

    def aggregating_state(
        self,
        name: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = ...,
        ttl: Duration = 0,
    ) -> AggregatingState:
        """What an accumulator makes of the values of each key."""
        ...


class ProcessFunction:
    """Logic by key. One is made for each task; `process` is required, the rest may be left out."""

    def open(self, context: FunctionContext) -> None:
        """Called once, before anything else: the place to name state."""

    def process(self, record: Record, context: FunctionContext) -> Any:
        """A record. Rows are returned, yielded, or put out by the context."""
        raise NotImplementedError

    def on_timer(self, time: int, context: FunctionContext) -> Any:
        """A timer of the current key is due."""

    def close(self) -> None:
        """Called once, at the end."""


def as_micros(time: Time | Duration) -> int:
    """A time or a duration in microseconds. A datetime without a zone is UTC."""
    if isinstance(time, timedelta):
        return time // _MICROSECOND
    if isinstance(time, datetime):
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    return time

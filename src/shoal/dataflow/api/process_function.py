"""What users subclass for logic of their own by key: state, timers and side outputs.

    class Alert(ProcessFunction):
        def open(self, context):
            self.count = context.value_state("count", ttl=timedelta(hours=1))

        def process(self, record, context):
            count = self.count.get(0) + 1
            self.count.set(count)
            if count == 3:
                context.set_timer("1m")

        def on_timer(self, time, context):
            yield {"user": context.key, "count": self.count.get()}

`shoal.dataflow.operators.users.process` runs it. Points in time are whole microseconds since 1970, or a `datetime`.
Lengths of time are as everywhere: a number of seconds, a text such as "5s", or a `timedelta`. A timer takes both: a
number or a `datetime` is the time itself, a text or a `timedelta` is a delay from now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from shoal.dataflow.language.lengths import Span
from shoal.dataflow.operators.record import Record
from shoal.dataflow.operators.users.moments import Delay, Time
from shoal.dataflow.state.handles import AggregatingState, ListState, MapState, ReducingState, ValueState


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

    def set_timer(self, time: Time | Delay) -> int:
        """Call `on_timer` for this key when the watermark has come to a time. A delay counts from `context.time`.

        Gives the time that was set, in microseconds since 1970, which `delete_timer` takes.
        """
        ...

    def delete_timer(self, time: Time) -> None:
        """Do not."""
        ...

    def set_processing_timer(self, time: Time | Delay) -> int:
        """Call `on_timer` for this key at a time of the clock. A delay counts from `context.processing_time`.

        Gives the time that was set, in microseconds since 1970, which `delete_processing_timer` takes.
        """
        ...

    def delete_processing_timer(self, time: Time) -> None:
        """Do not."""
        ...

    def value_state(self, name: str, *, ttl: Span = 0) -> ValueState[Any]:
        """One value for each key. Only in `open`, like all of these.

        With `ttl` it is forgotten when it was not written for so long, by the clock: seconds, "5s" or a timedelta.
        """
        ...

    def list_state(self, name: str, *, ttl: Span = 0) -> ListState[Any]:
        """A list for each key."""
        ...

    def map_state(self, name: str, *, ttl: Span = 0) -> MapState[Any, Any]:
        """A map for each key."""
        ...

    def reducing_state(self, name: str, function: Callable[[Any, Any], Any], *, ttl: Span = 0) -> ReducingState[Any]:
        """One value for each key, made by a function of two."""
        ...

    def aggregating_state(
        self,
        name: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = ...,
        ttl: Span = 0,
    ) -> AggregatingState:
        """What an accumulator makes of the values of each key."""
        ...


class ProcessFunction:
    """Logic by key. One is made for each task; `process` is required, the rest may be left out."""

    def open(self, context: FunctionContext) -> None:
        """Called once, before anything else: the place to name state."""

    def process(self, record: Record, context: FunctionContext) -> Any:
        """A record. Rows are returned, yielded, or emitted through the context."""
        raise NotImplementedError

    def on_timer(self, time: int, context: FunctionContext) -> Any:
        """A timer of the current key is due."""

    def close(self) -> None:
        """Called once, at the end."""


def is_maker(function: Any) -> bool:
    """Whether it is a process function, or may make one."""
    return isinstance(function, ProcessFunction) or callable(function)

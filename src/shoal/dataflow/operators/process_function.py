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

`shoal.dataflow.operators.process` runs it. Points in time are whole microseconds since 1970, or a `datetime`. Lengths
of time are as everywhere: a number of seconds, a text such as "5s", or a `timedelta`. A timer takes both: a number or a
`datetime` is the time itself, a text or a `timedelta` is a delay from now.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME
from shoal.dataflow.language.errors import refuse
from shoal.dataflow.language.logical import Location
from shoal.dataflow.language.record import Record
from shoal.dataflow.language.spans import Span, micros
from shoal.dataflow.state.handles import AggregatingState, ListState, MapState, ReducingState, ValueState

#: A point in time: microseconds since 1970, or a datetime. One without a zone is UTC.
Time: TypeAlias = int | datetime
#: A length of time, counted from the current time: "5s", or a timedelta. A bare number would be a point in time.
Delay: TypeAlias = str | timedelta

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
        """A record. Rows are returned, yielded, or put out by the context."""
        raise NotImplementedError

    def on_timer(self, time: int, context: FunctionContext) -> Any:
        """A timer of the current key is due."""

    def close(self) -> None:
        """Called once, at the end."""


def life_micros(ttl: Span) -> int:
    """How long state lives, in microseconds; 0 is for ever. Raises `PlanError` for what is no length of time."""
    return micros(ttl, "ttl")


def time_micros(time: Time, field: str = "time") -> int:
    """A point in time in microseconds. Raises `InvalidError` for anything else, also for a delay."""
    if isinstance(time, datetime):
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    # Numbers from NumPy and Arrow columns are whole, too.
    whole = getattr(time, "__index__", None)
    if whole is None or isinstance(time, bool):
        raise InvalidError([problem(field, time, "must be microseconds since 1970, or a datetime")])
    found = int(whole())
    if not START_OF_TIME <= found <= END_OF_TIME:
        raise InvalidError([problem(field, time, "must be microseconds since 1970 that fit into 64 bits")])
    return found


def timer_micros(time: Time | Delay, now: int) -> int:
    """The time of a timer, in microseconds: a point in time, or a delay from `now`."""
    if isinstance(time, str | timedelta):
        return now + micros(time, "timer")
    return time_micros(time, "timer")


HOW_TO_PROCESS = (
    "class Totals(ProcessFunction): def process(self, record, context): …, and .process(Totals); a function of a "
    "record alone is .records().map(f)"
)


def is_maker(function: Any) -> bool:
    """Whether it is a process function, or may make one."""
    return isinstance(function, ProcessFunction) or callable(function)


def make_process(function: Any, *, at: Location | None = None) -> ProcessFunction:
    """A process function of a task's own. Raises `PlanError` for what makes none.

    The plan holds one object for all tasks; each task has a copy.
    """
    if isinstance(function, ProcessFunction):
        return copy.copy(function)
    try:
        inspect.signature(function).bind()
    except TypeError:
        rule = "must be a ProcessFunction, its class, or a function without arguments that makes one"
        raise refuse("process", getattr(function, "__name__", function), rule, at=at, hint=HOW_TO_PROCESS) from None
    except ValueError:
        pass  # nothing says what it takes
    made = function()
    if not hasattr(made, "process"):
        rule = f"must make a ProcessFunction, and made a {type(made).__name__}"
        raise refuse("process", getattr(function, "__name__", function), rule, at=at, hint=HOW_TO_PROCESS)
    found: ProcessFunction = made
    return found

"""The context of a process function: the current key, its state, its timers, and the rows it emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.core.clock import Clock
from shoal.dataflow.language.elements import START_OF_TIME
from shoal.dataflow.language.lengths import Span
from shoal.dataflow.operators.batches import processing_time
from shoal.dataflow.operators.users.moments import Delay, Time, life_micros, time_micros, timer_micros
from shoal.dataflow.state import handles
from shoal.dataflow.state.base import StateKey
from shoal.dataflow.state.keycodec import decode_key
from shoal.dataflow.state.timers import Timers


class CurrentKey:
    """The context of a process function."""

    def __init__(self, state: handles.FunctionState, timers: Timers, clock_timers: Timers, clock: Clock) -> None:
        self._state = state
        self._timers, self._clock_timers = timers, clock_timers
        self._clock = clock
        self.watermark = START_OF_TIME
        self._decoded: Any = None
        self._decoded_of: StateKey | None = None
        self.time = START_OF_TIME
        self.rows: list[Any] = []
        self.times: list[int] = []
        #: The trace of the current record, and that of each row: a timer has none.
        self.trace: bytes | None = None
        self.traces: list[bytes | None] = []
        #: What the current call is for, a record or a timer, and that of each row.
        self.origin: Any = None
        self.origins: list[Any] = []
        self.sides: dict[str, list[Any]] = {}

    def move(self, place: StateKey, time: int, origin: Any, trace: bytes | None = None) -> None:
        """Another key is current."""
        self.origin = origin
        self._state.key = place
        self.time = time
        self.trace = trace

    def take(self, returned: Any) -> None:
        """Rows that the function returned or yielded."""
        if returned is None:
            return
        if isinstance(returned, Mapping) or not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
            self.emit(returned)
            return
        for row in returned:
            self.emit(row)

    @property
    def key(self) -> Any:
        """The current key."""
        place = self._state.key
        if place is not None and place != self._decoded_of:
            values = decode_key(place[1])
            self._decoded = values[0] if len(values) == 1 else values
            self._decoded_of = place
        return self._decoded

    @property
    def processing_time(self) -> int:
        """Now."""
        return processing_time(self._clock)

    def emit(self, row: Any) -> None:
        """Put a row out."""
        self.rows.append(row)
        self.times.append(self.time)
        self.traces.append(self.trace)
        self.origins.append(self.origin)

    def emit_side(self, tag: str, row: Mapping[str, Any]) -> None:
        """Put a row out on the side."""
        self.sides.setdefault(tag, []).append(row)

    def set_timer(self, time: Time | Delay) -> int:
        """Ask to be called, at a time or after a delay. Gives the time."""
        moment = timer_micros(time, self.time)
        self._timers.set(moment, self._place())
        return moment

    def delete_timer(self, time: Time) -> None:
        """Ask no more."""
        self._timers.delete(time_micros(time), self._place())

    def set_processing_timer(self, time: Time | Delay) -> int:
        """Ask to be called, at a time or after a delay. Gives the time."""
        moment = timer_micros(time, self.processing_time)
        self._clock_timers.set(moment, self._place())
        return moment

    def delete_processing_timer(self, time: Time) -> None:
        """Ask no more."""
        self._clock_timers.delete(time_micros(time), self._place())

    def value_state(self, name: str, *, ttl: Span = 0) -> handles.ValueState[Any]:
        """One value for each key."""
        return handles.ValueState(self._state, name, ttl=life_micros(ttl))

    def list_state(self, name: str, *, ttl: Span = 0) -> handles.ListState[Any]:
        """A list for each key."""
        return handles.ListState(self._state, name, ttl=life_micros(ttl))

    def map_state(self, name: str, *, ttl: Span = 0) -> handles.MapState[Any, Any]:
        """A map for each key."""
        return handles.MapState(self._state, name, ttl=life_micros(ttl))

    def reducing_state(
        self, name: str, function: Callable[[Any, Any], Any], *, ttl: Span = 0
    ) -> handles.ReducingState[Any]:
        """One value for each key, made by a function of two."""
        return handles.ReducingState(self._state, name, function, ttl=life_micros(ttl))

    def aggregating_state(
        self,
        name: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = lambda accumulator: accumulator,
        ttl: Span = 0,
    ) -> handles.AggregatingState:
        """What an accumulator makes of the values of each key."""
        return handles.AggregatingState(self._state, name, create=create, add=add, result=result, ttl=life_micros(ttl))

    def _place(self) -> StateKey:
        return self._state.key or (0, b"")

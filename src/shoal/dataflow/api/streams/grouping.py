"""Streams that are grouped by keys and cut into windows: what is aggregated. Part of `Stream`.

`group_by` returns `Grouped`, `window` returns `Windowed`; both make one node when an aggregate is named.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic

from shoal.core.errors import problem
from shoal.dataflow.api.streams.missing import Named
from shoal.dataflow.api.streams.reading import check_unit
from shoal.dataflow.api.streams.steps import S_co, Steps
from shoal.dataflow.api.streams.transforms import column_names, refuse_unknown
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.aggregates import ALIASES
from shoal.dataflow.language.functions import find_location, make_ref
from shoal.dataflow.language.lengths import Span, micros
from shoal.dataflow.language.logical import (
    Aggregate,
    Aggregation,
    AssignTime,
    Distinct,
    EventTime,
    Reduce,
)
from shoal.dataflow.language.windows import CountWindow, Firing, SessionWindow, SlidingWindow, Window
from shoal.dataflow.plan.inference import check_firing

_AT_THE_END = Firing()
_WINDOWS = (SlidingWindow, SessionWindow, CountWindow)


class Windowed(Named, Generic[S_co]):
    """A stream cut into windows, by key where there are keys."""

    __slots__ = ("_firing", "_keys", "_stream", "_window")

    called = "a stream in windows, which has to be aggregated first,"

    def __init__(
        self, stream: Steps[S_co], keys: tuple[str, ...], window: Window | None, firing: Firing = _AT_THE_END
    ) -> None:
        self._stream = stream
        self._keys = keys
        self._window = window
        self._firing = firing

    def aggregate(self, aggregations: Mapping[str, Any] | None = None, **named: Any) -> S_co:
        """Results by name: `aggregate({"total": ("amount", "sum")})` or `aggregate(total=("amount", "sum"))`.

        `("*", "count")` counts rows. A word alone is over the column of its own name: `{"amount": "sum"}`; "count"
        alone counts rows. Options are a third part: `("x", "variance", {"ddof": 1})`.
        """
        at = find_location()
        if aggregations is not None and not isinstance(aggregations, Mapping):
            hint = 'aggregate({"total": ("amount", "sum")})'
            raise PlanError([problem("aggregate", aggregations, "must be results by name")], at=at, hint=hint)
        wanted = {**(aggregations or {}), **named}
        if not wanted:
            keys = ", ".join(f'"{key}"' for key in self._keys)
            hint = f"for the keys alone: .distinct({keys})" if keys else 'aggregate(total=("amount", "sum"))'
            raise PlanError([problem("aggregate", None, "needs a result")], at=at, hint=hint)
        made = tuple(_aggregation(name, value, at) for name, value in wanted.items())
        return self._aggregated(made, at)

    def count(self, name: str = "count") -> S_co:
        """How many rows."""
        return self._aggregated((Aggregation(name, "*", "count"),), find_location())

    def sum(self, column: str, name: str | None = None) -> S_co:
        """The sum of a column."""
        return self._aggregated((Aggregation(name or column, column, "sum"),), find_location())

    def mean(self, column: str, name: str | None = None) -> S_co:
        """The mean of a column."""
        return self._aggregated((Aggregation(name or column, column, "mean"),), find_location())

    def min(self, column: str, name: str | None = None) -> S_co:
        """The least value of a column."""
        return self._aggregated((Aggregation(name or column, column, "min"),), find_location())

    def max(self, column: str, name: str | None = None) -> S_co:
        """The greatest value of a column."""
        return self._aggregated((Aggregation(name or column, column, "max"),), find_location())

    def reduce(self, function: Callable[[Any, Any], Any], **unknown: Any) -> S_co:
        """Two records become one, again and again, until there is one.

        It has no `on_error`: when the function raises, two records are at hand, and neither is known to be the bad one.
        """
        at = find_location()
        refuse_unknown("reduce", unknown, at)
        node = Reduce(
            inputs=(self._stream.node,),
            keys=self._keys,
            function=make_ref(function, at=at, what="reduce"),
            window=self._window,
            firing=self._firing,
            at=at,
        )
        return self._stream.then(node)

    def distinct(self, *columns: str) -> S_co:
        """The first row of each combination of the keys and these columns.

        It goes out when it comes. In a window a combination counts anew, and rows are taken until `allowed_lateness`
        behind its end.
        """
        at = find_location()
        named = column_names(columns, "distinct column", at)
        chosen = tuple(dict.fromkeys((*self._keys, *named)))
        if not chosen:
            chosen = all_columns(self._stream, "distinct", at)
        node = Distinct(inputs=(self._stream.node,), columns=chosen, window=self._window, firing=self._firing, at=at)
        return self._stream.then(node)

    def _aggregated(self, aggregations: tuple[Aggregation, ...], at: Location | None) -> S_co:
        node = Aggregate(
            inputs=(self._stream.node,),
            keys=self._keys,
            aggregations=aggregations,
            window=self._window,
            firing=self._firing,
            at=at,
        )
        return self._stream.then(node)


class WindowedStream(Windowed[S_co]):
    """What `window` returns."""

    __slots__ = ()

    def group_by(self, *keys: Any) -> WindowedStream[S_co]:
        """The same by key: each key has windows of its own."""
        names = column_names(keys, "group key", find_location())
        return WindowedStream(self._stream, (*self._keys, *names), self._window, self._firing)


class Cuttable(Generic[S_co]):
    """What can be cut into windows: a stream, and one by key."""

    __slots__ = ()

    @abstractmethod
    def _to_cut(self) -> tuple[Steps[S_co], tuple[str, ...]]:
        """The rows to cut, and the keys of which each has windows of its own."""

    def window(
        self,
        window: Window,
        *,
        time_column: str | None = None,
        time_unit: str = "",
        disorder: Span = 0,
        allowed_lateness: Span = 0,
        early_every: Span = 0,
    ) -> WindowedStream[S_co]:
        """Cut into windows, each key its own: `window(tumbling(seconds=60)).aggregate(…)`.

        Windows are made of event time: that of the source, or the column named here. Rows that come later than
        `allowed_lateness` behind their window's end go to the side output `late`; earlier ones correct its result.
        `early_every` emits preliminary results. Both make the results change: see `changes_as_rows`.
        """
        firing = make_firing(window, allowed_lateness, early_every)
        stream, keys = self._to_cut()
        return WindowedStream(with_time(stream, window, time_column, time_unit, disorder), keys, window, firing)


class GroupedStream(Windowed[S_co], Cuttable[S_co]):
    """What `group_by` returns."""

    __slots__ = ()

    called = "a stream in groups, which has to be aggregated first,"

    def __init__(self, stream: Steps[S_co], keys: tuple[str, ...]) -> None:
        super().__init__(stream, keys, None)

    def _to_cut(self) -> tuple[Steps[S_co], tuple[str, ...]]:
        return self._stream, self._keys


def make_firing(window: Any, allowed_lateness: Span, early_every: Span) -> Firing:
    """When results are emitted besides at the end of a window."""
    at = find_location()
    late = micros(allowed_lateness, "allowed_lateness", at=at)
    firing = Firing(micros(early_every, "early_every", at=at), late)
    check_firing(window, firing, at)
    return firing


def with_time(stream: Steps[S_co], window: Any, column: str | None, unit: str, disorder: Span) -> Steps[S_co]:
    """The stream with the event time that its window uses."""
    at = find_location()
    if not isinstance(window, _WINDOWS):
        hint = "tumbling(seconds=60), sliding(size_seconds=60, slide_seconds=10), session(gap_seconds=30), count(100)"
        raise PlanError([problem("window", window, "must be a window")], at=at, hint=hint)
    if column is None:
        return stream
    check_unit(unit, at)
    time = EventTime(column, micros(disorder, "disorder", at=at), unit)
    made: Any = stream.then(AssignTime(inputs=(stream.node,), time=time, at=at))
    timed: Steps[S_co] = made
    return timed


def all_columns(stream: Steps[Any], what: str, at: Location | None) -> tuple[str, ...]:
    """Every column, where they are known."""
    if stream.facts.schema is None:
        hint = f'name them: .{what}("user_id")'
        raise PlanError([problem(what, None, "needs columns: which there are is known at run only")], at=at, hint=hint)
    return tuple(stream.facts.schema.names)


def _aggregation(name: str, value: Any, at: Location | None) -> Aggregation:
    if isinstance(value, str):
        value = ("*", value) if value == "count" else (name, value)
    if (
        not isinstance(value, tuple | list)
        or not 2 <= len(value) <= 3
        or not all(isinstance(e, str) for e in value[:2])
    ):
        pair = '("amount", "sum")'
        hint = f".aggregate({name}={pair})" if str(name).isidentifier() else f".aggregate({{{name!r}: {pair}}})"
        raise PlanError([problem(name, value, "must be a column and an aggregate")], at=at, hint=hint)
    column, function = str(value[0]), str(ALIASES.get(value[1], value[1]))
    if not isinstance(name, str):
        raise PlanError([problem("aggregate", name, "must be the name of a result")], at=at)
    options = value[2] if len(value) == 3 else {}
    if not isinstance(options, Mapping) or not all(isinstance(each, str) for each in options):
        hint = f'("{column}", "{function}", {{"ddof": 1}})'
        raise PlanError([problem(f"{name}: options", options, "must be options by name")], at=at, hint=hint)
    return Aggregation(name, column, function, tuple(options.items()))

"""Joins as users write them. Part of `Stream`.

`join` chooses how long rows wait for partners by its arguments: a window, an interval, a table, a small side, or for
ever. `interval_join` and `asof_join` are those two under the names that people know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from shoal.core.errors import problem
from shoal.dataflow.api.streams.steps import S_co, Steps
from shoal.dataflow.api.streams.tables import Table
from shoal.dataflow.api.streams.transforms import column_names, one_of, refuse_others
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.functions import find_location
from shoal.dataflow.language.lengths import Span, bounded, micros
from shoal.dataflow.language.logical import (
    AssignTime,
    EventTime,
    Join,
    JoinKind,
    JoinMode,
)
from shoal.dataflow.language.windows import Window

Keys: TypeAlias = str | Sequence[str]

_HOWS = tuple(kind.value for kind in JoinKind)
_DIRECTIONS = ("backward", "forward", "nearest")


class Joins(Steps[S_co]):
    """Two streams."""

    __slots__ = ()

    def join(
        self,
        other: Any,
        left_keys: Keys | None = None,
        right_keys: Keys | None = None,
        how: str = "inner",
        *,
        on: Keys | None = None,
        window: Window | None = None,
        within: tuple[Span, Span] | Span | None = None,
        broadcast: bool = False,
        ttl: Span = 0,
        right_is_unique: bool = False,
        suffix: str = "_right",
    ) -> S_co:
        """Rows with equal keys: `join(users, on="user_id")`.

        With `window` partners have to be in one window; `within=("-5s", "10s")` is how much later the right row may be;
        `broadcast` gives every task all of the right side; a table (`app.table`) is asked for its newest row. Else rows
        wait for ever, or for `ttl`. With `right_is_unique` the right side has at most one row for each key, and a left
        row is kept only until it has met it. A right column whose name is taken gets the suffix.
        """
        at = find_location()
        table = _changelog(other, at)
        right: Steps[Any] = other if table is None else table
        if table is not None and on is None and left_keys is not None and right_keys is None:
            right_keys = other.keys_of_rows
        left, theirs = _keys(on, left_keys, right_keys, at)
        said = [bool(window), within is not None, broadcast, table is not None]
        if sum(said) > 1:
            rule = "takes one of window, within, broadcast and a table"
            raise PlanError([problem("join", None, rule)], at=at)
        if right_is_unique and (any(said) or ttl):
            rule = "is for a join without window, within, broadcast, table and ttl"
            raise PlanError([problem("right_is_unique", None, rule)], at=at)
        modes = (JoinMode.WINDOW, JoinMode.INTERVAL, JoinMode.BROADCAST, JoinMode.TABLE)
        mode = next((mode for mode, wanted in zip(modes, said, strict=True) if wanted), JoinMode.REGULAR)
        lower, upper = _interval(within, at)
        node = Join(
            inputs=(self._node, _node_of(right, at)),
            kind=JoinKind(one_of(how, _HOWS, "how", at)),
            mode=mode,
            left_keys=left,
            right_keys=theirs,
            window=window,
            lower=lower,
            upper=upper,
            ttl=micros(ttl, "ttl", at=at),
            suffix=suffix,
            right_is_unique=right_is_unique,
            at=at,
        )
        return self._next(node, right)

    def interval_join(
        self,
        other: Steps[Any],
        time_column: str | None = None,
        lower_bound: Span = 0,
        upper_bound: Span = 0,
        *,
        on: Keys | None = None,
        left_keys: Keys | None = None,
        right_keys: Keys | None = None,
        how: str = "inner",
        suffix: str = "_right",
    ) -> S_co:
        """Rows with equal keys whose times are near: the right one's lies between the bounds around the left one's.

        Bounds that are whole numbers are milliseconds; others are as everywhere, "-5s" or a timedelta.
        """
        at = find_location()
        refuse_others("interval_join", (other,), at)
        left, theirs = _keys(on, left_keys, right_keys, at, needed=False)
        mine, right = self._timed(time_column, at), _timed(other, time_column, at)
        node = Join(
            inputs=(mine.node, right.node),
            kind=JoinKind(one_of(how, _HOWS, "how", at)),
            mode=JoinMode.INTERVAL,
            left_keys=left,
            right_keys=theirs,
            lower=_bound(lower_bound, "lower_bound", at),
            upper=_bound(upper_bound, "upper_bound", at),
            suffix=suffix,
            at=at,
        )
        return mine.then(node, right)

    def asof_join(
        self,
        other: Steps[Any],
        time_column: str | None = None,
        direction: str = "backward",
        *,
        on: Keys | None = None,
        left_keys: Keys | None = None,
        right_keys: Keys | None = None,
        how: str = "left",
        tolerance: Span = 0,
        suffix: str = "_right",
    ) -> S_co:
        """Each row with the one of the right side that is nearest in time and has the same keys.

        That is the last before it (backward), the first behind it (forward) or either (nearest), no further away than
        `tolerance` where one is set.
        """
        at = find_location()
        refuse_others("asof_join", (other,), at)
        left, theirs = _keys(on, left_keys, right_keys, at, needed=False)
        mine, right = self._timed(time_column, at), _timed(other, time_column, at)
        node = Join(
            inputs=(mine.node, right.node),
            kind=JoinKind(one_of(how, _HOWS, "how", at)),
            mode=JoinMode.ASOF,
            left_keys=left,
            right_keys=theirs,
            tolerance=micros(tolerance, "tolerance", at=at),
            direction=one_of(direction, _DIRECTIONS, "direction", at),
            suffix=suffix,
            at=at,
        )
        return mine.then(node, right)

    def _timed(self, column: str | None, at: Location | None) -> Steps[S_co]:
        return _timed(self, column, at)


def _timed(stream: Steps[S_co], column: str | None, at: Location | None) -> Steps[S_co]:
    """The stream with its event time in a column, if one was named."""
    if column is None:
        return stream
    made: Any = stream.then(AssignTime(inputs=(stream.node,), time=EventTime(column), at=at))
    timed: Steps[S_co] = made
    return timed


def _keys(
    on: Keys | None, left: Keys | None, right: Keys | None, at: Location | None, *, needed: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if on is not None:
        if left is not None or right is not None:
            raise PlanError([problem("join", None, "takes on=, or left_keys= and right_keys=")], at=at)
        both = column_names((on,), "join key", at)
        return both, both
    if left is None and right is None and not needed:
        return (), ()
    if left is None:
        hint = 'name them: .join(other, on="user_id"), or left_keys= and right_keys='
        raise PlanError([problem("join keys", None, "are needed")], at=at, hint=hint)
    mine = column_names((left,), "left join key", at)
    return mine, mine if right is None else column_names((right,), "right join key", at)


def _changelog(other: Any, at: Location | None) -> Any:
    """The stream whose newest rows a table holds; None for what is no table."""
    if not isinstance(other, Table):
        return None
    if other.changelog is None:
        rule = "has no source: it is a mapping of this process, and joins read the rows of a stream"
        hint = f'say where its rows come from: app.table("{other.name}", source, key="id")'
        raise PlanError([problem(f"table {other.name!r}", None, rule)], at=at, hint=hint)
    return other.changelog


def _node_of(stream: Any, at: Location | None) -> Any:
    if not isinstance(stream, Steps):
        raise PlanError([problem("join", type(stream).__name__, "takes a Stream or a table")], at=at)
    return stream.node


def _interval(within: tuple[Span, Span] | Span | None, at: Location | None) -> tuple[int, int]:
    if within is None:
        return 0, 0
    if isinstance(within, tuple):
        low, high = within
        return micros(low, "within", at=at, least=None), micros(high, "within", at=at, least=None)
    reach = micros(within, "within", at=at)
    return -reach, reach


def _bound(value: Span, field: str, at: Location | None) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return bounded(value * 1000, value, field, at=at)
    return micros(value, field, at=at, least=None)

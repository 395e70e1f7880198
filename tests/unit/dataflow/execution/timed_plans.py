"""Random plans over event time, and a naive reading of them: joins, windows, unions, groups, distinct.

Nothing is late in them, so a plan has one result, whatever the widths, the batches and the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.memory import BatchesSource
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.windows import SECOND, SessionWindow, SlidingWindow, Window
from tests.unit.dataflow.execution.flows import SCHEMA

Row = dict[str, Any]
#: A row and its event time.
Timed = tuple[int, Row]

WINDOWS: tuple[Window, ...] = (SlidingWindow(10, 10), SlidingWindow(12, 4), SlidingWindow(20, 1), SessionWindow(3))
HOWS = ("inner", "left", "right", "outer")
#: More than the times of rows differ by: no row is ever late.
DISORDER = 1_000


@dataclass(frozen=True, slots=True)
class Flow:
    """A stream and what comes out of it. The columns are `key`, `value` and `time` all along."""

    stream: Stream
    rows: tuple[Timed, ...]
    #: Whether rows have an event time.
    timed: bool = True


@st.composite
def sources(draw: st.DrawFn) -> Flow:
    row = st.tuples(
        st.one_of(st.none(), st.sampled_from("abc")), st.one_of(st.none(), st.integers(-3, 9)), st.integers(0, 40)
    )
    rows = draw(st.lists(row, max_size=12))
    size = draw(st.integers(1, 5))
    records = [dict(zip(SCHEMA.names, each, strict=True)) for each in rows]
    batches = tuple(
        pa.RecordBatch.from_pylist(records[at : at + size], schema=SCHEMA) for at in range(0, max(1, len(rows)), size)
    )
    stream = Stream.from_source(
        BatchesSource(batches), schema=SCHEMA, event_time="time", time_unit="us", disorder=DISORDER / SECOND
    )
    return Flow(stream, tuple((each["time"], each) for each in records))


@st.composite
def timed_plans(draw: st.DrawFn) -> Flow:
    """A source and some steps behind it; joins and unions bring others in."""
    flow = draw(sources())
    for _ in range(draw(st.integers(1, 4))):
        step = draw(st.sampled_from(STEPS))
        flow = step(draw, flow)
    return flow


# -- steps ------------------------------------------------------------------------------------------------


def _filter(draw: st.DrawFn, flow: Flow) -> Flow:
    name, least = draw(st.sampled_from(["value", "time"])), draw(st.integers(-2, 20))
    kept = tuple(each for each in flow.rows if each[1][name] is not None and each[1][name] >= least)
    return replace(flow, stream=flow.stream.filter(col(name) >= least), rows=kept)


def _with(draw: st.DrawFn, flow: Flow) -> Flow:
    more = draw(st.integers(-5, 5))
    made = tuple((time, row | {"value": _plus(row["value"], more)}) for time, row in flow.rows)
    return replace(flow, stream=flow.stream.with_columns(value=col("value") + more), rows=made)


def _plus(value: int | None, more: int) -> int | None:
    return None if value is None else value + more


def _union(draw: st.DrawFn, flow: Flow) -> Flow:
    other = draw(st.sampled_from([None, draw(sources())])) or flow
    return Flow(flow.stream.union(other.stream), flow.rows + other.rows, flow.timed and other.timed)


def _key(draw: st.DrawFn, flow: Flow) -> Flow:
    return replace(flow, stream=flow.stream.key_by("key").batches())


def _group(draw: st.DrawFn, flow: Flow) -> Flow:
    stream = flow.stream.group_by("key").aggregate(value=("value", "sum"), time=("time", "max"))
    return Flow(stream, tuple((0, row) for row in _grouped(flow.rows, lambda row: ())), timed=False)


def _grouped(rows: tuple[Timed, ...], more: Callable[[Row], tuple[Any, ...]]) -> list[Row]:
    groups: dict[Any, list[Row]] = {}
    for _time, row in rows:
        groups.setdefault((row["key"], *more(row)), []).append(row)
    return [
        {"key": key[0], "value": _sum(row["value"] for row in each), "time": max(row["time"] for row in each)}
        for key, each in groups.items()
    ]


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _window(draw: st.DrawFn, flow: Flow) -> Flow:
    if not flow.timed:
        return flow
    window, keyed = draw(st.sampled_from(WINDOWS)), draw(st.booleans())
    windowed = flow.stream.window(window)
    if keyed:
        windowed = windowed.group_by("key")
    stream = windowed.aggregate(value=("value", "sum"), time=("time", "max"))
    made = [
        (
            end - 1,
            {
                "key": key,
                "value": _sum(row["value"] for row in rows),
                "time": max(row["time"] for row in rows),
            },
        )
        for (key, end), rows in _windows_of(flow.rows, window, keyed=keyed).items()
    ]
    if not keyed:
        stream = stream.with_columns(key=col("value").cast("string"))
        made = [(time, row | {"key": _text(row["value"])}) for time, row in made]
    return Flow(stream.select("key", "value", "time"), tuple(made))


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _windows_of(rows: tuple[Timed, ...], window: Window, *, keyed: bool) -> dict[tuple[Any, int], list[Row]]:
    """Rows by key and window's end."""
    found: dict[tuple[Any, int], list[Row]] = {}
    if isinstance(window, SlidingWindow):
        for time, row in rows:
            for end in ends_of(window, time):
                found.setdefault((row["key"] if keyed else None, end), []).append(row)
        return found
    assert isinstance(window, SessionWindow)
    for key in {row["key"] for _time, row in rows} if keyed else {None}:
        mine = sorted((each for each in rows if not keyed or each[1]["key"] == key), key=lambda each: each[0])
        session: list[Row] = []
        for place, (time, row) in enumerate(mine):
            session.append(row)
            if place + 1 == len(mine) or mine[place + 1][0] - time >= window.gap:
                found[key, time + window.gap] = session
                session = []
    return found


def ends_of(window: SlidingWindow, time: int) -> list[int]:
    first = time // window.slide * window.slide
    return [start + window.size for start in range(first, time - window.size, -window.slide)]


def _distinct(draw: st.DrawFn, flow: Flow) -> Flow:
    seen: dict[tuple[Any, ...], Timed] = {}
    for _time, row in flow.rows:
        seen.setdefault((row["key"], row["value"]), (0, {**row, "time": 0}))
    # Which of the rows comes first is open: the times are made the same before, and no event time is left behind.
    stream = flow.stream.with_columns(time=col("time") * 0).distinct("key", "value")
    return Flow(stream, tuple(seen.values()), timed=False)


def _join(draw: st.DrawFn, flow: Flow) -> Flow:
    other: Flow = draw(sources())
    mode = draw(st.sampled_from(["regular", "interval", "window"])) if flow.timed else "regular"
    how = draw(st.sampled_from(HOWS))
    window = SlidingWindow(*draw(st.sampled_from([(10, 10), (8, 4)])))
    lower = draw(st.integers(-5, 3))
    upper = draw(st.integers(lower, 6))
    if mode == "regular":
        joined = flow.stream.join(other.stream, on="key", how=how)
        pairs = _pairs(flow, other, how, lambda one, two: [None])
    elif mode == "interval":
        joined = flow.stream.join(other.stream, on="key", how=how, within=(lower / SECOND, upper / SECOND))
        pairs = _pairs(flow, other, how, lambda one, two: [None] if lower <= two - one <= upper else [])
    else:
        joined = flow.stream.join(other.stream, on="key", how=how, window=window)
        pairs = _window_pairs(flow, other, how, window)
    made = tuple((time, _both(one, two)) for time, one, two in pairs)
    stream = joined.select("key", value=col("value").fill_null(0) + col("value_right").fill_null(0), time=_LATER)
    return Flow(stream, made, timed=flow.timed)


_LATER = col("time").fill_null(0) + col("time_right").fill_null(0)


def _both(one: Row | None, two: Row | None) -> Row:
    left, right = (one or dict.fromkeys(SCHEMA.names)), (two or dict.fromkeys(SCHEMA.names))
    return {
        "key": left["key"] if one is not None else right["key"],
        "value": (left["value"] or 0) + (right["value"] or 0),
        "time": (left["time"] or 0) + (right["time"] or 0),
    }


Pair = tuple[int, Row | None, Row | None]


def _pairs(flow: Flow, other: Flow, how: str, meet: Callable[[int, int], list[Any]]) -> list[Pair]:
    found: list[Pair] = []
    ones, twos = set(), set()
    for left, (one_time, one) in enumerate(flow.rows):
        for right, (two_time, two) in enumerate(other.rows):
            if one["key"] is not None and one["key"] == two["key"] and meet(one_time, two_time):
                found.append((max(one_time, two_time), one, two))
                ones.add(left)
                twos.add(right)
    if how in ("left", "outer"):
        found += [(time, row, None) for at, (time, row) in enumerate(flow.rows) if at not in ones]
    if how in ("right", "outer"):
        found += [(time, None, row) for at, (time, row) in enumerate(other.rows) if at not in twos]
    return found


def _window_pairs(flow: Flow, other: Flow, how: str, window: SlidingWindow) -> list[Pair]:
    found: list[Pair] = []
    times = [time for time, _row in flow.rows + other.rows]
    for end in sorted({end for time in times for end in ends_of(window, time)}):
        inside = [
            replace(each, rows=tuple(row for row in each.rows if end - window.size <= row[0] < end))
            for each in (flow, other)
        ]
        found += [(end - 1, one, two) for _time, one, two in _pairs(*inside, how, lambda one, two: [None])]
    return found


STEPS = (_filter, _filter, _with, _union, _key, _group, _window, _window, _window, _distinct, _join, _join, _join)

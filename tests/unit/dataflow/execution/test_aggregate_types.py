"""Every aggregate over every type: refused with the user's line before anything runs, or it runs and gives its type."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import count, session, sliding, tumbling
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.aggregates import AGGREGATES

DAY, NOON, TEN = date(2026, 1, 1), datetime(2026, 1, 1, 12, tzinfo=UTC), Decimal("1.5")

COLUMNS: list[Any] = [
    pa.nulls(3),
    pa.array([True, False, None]),
    *(
        pa.array([1, 2, None], kind)
        for kind in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
            *(pa.float32(), pa.float64()),
        )
    ),
    pa.array([1, 2, None], pa.float32()).cast(pa.float16()),
    *(
        pa.array([TEN, None, TEN], kind)
        for kind in (pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(10, 2), pa.decimal256(50, 2))
    ),
    *(pa.array(["a", "b", None], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(
        pa.array([b"ab", b"cd", None], kind)
        for kind in (pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view())
    ),
    *(pa.array([DAY, DAY, None], kind) for kind in (pa.date32(), pa.date64())),
    *(pa.array([NOON, NOON, None], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
    pa.array([NOON, NOON, None], pa.timestamp("us", "Europe/Paris")),
    *(pa.array([1, 2, None], pa.int32()).cast(pa.time32(unit)) for unit in ("s", "ms")),
    *(pa.array([1, 2, None], pa.int64()).cast(pa.time64(unit)) for unit in ("us", "ns")),
    *(pa.array([1, 2, None], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")),
    pa.array([(1, 2, 3), None, (1, 2, 4)], pa.month_day_nano_interval()),
    *(pa.array([[1], [2], None], kind) for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64()))),
    pa.array([[1], [2], None], pa.list_(pa.int64(), 1)),
    pa.array([{"a": 1}, {"a": 2}, None]),
    pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    pa.array(["a", "b", None]).dictionary_encode(),
    pa.array([1, 2, None]).dictionary_encode(),
]

SHAPES: dict[str, Callable[[Stream], Any]] = {
    "all rows": lambda stream: stream,
    "keys": lambda stream: stream.group_by("k"),
    "tumbling": lambda stream: stream.group_by("k").window(tumbling(5)),
    "sliding": lambda stream: stream.group_by("k").window(sliding(5, 1)),
    "session": lambda stream: stream.group_by("k").window(session(5)),
    "count": lambda stream: stream.group_by("k").window(count(1)),
}


def stream_of(column: Any) -> Stream:
    table = pa.table({"k": [1, 1, 2], "x": column, "at": [1, 2, 30]})
    return Stream.from_table(table, event_time="at", time_unit="s")


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_what_is_not_refused_runs_and_gives_the_type_that_was_said(column: Any) -> None:
    stream = stream_of(column)
    refused: dict[str, PlanError] = {}
    for name in AGGREGATES:
        try:
            stream.aggregate(r=("x", name))
        except PlanError as error:
            refused[name] = error
    for name, told in refused.items():
        assert told.at is not None
        assert f"r: {name}: takes {AGGREGATES[name].takes}, and x is" in str(told)
    able = [name for name in AGGREGATES if name not in refused]
    assert {"count", "list"} <= set(able)
    wanted = {name: ("x", name) for name in able}
    for shape in SHAPES.values():
        said = shape(stream).aggregate(wanted)
        given = said.collect()
        assert [given.schema.field(name).type for name in able] == [said.schema.field(name).type for name in able]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    ],
)
def test_distinct_values_are_single_ones(column: Any) -> None:
    with pytest.raises(PlanError, match=r"test_aggregate_types.*n: count_distinct: takes single values, and x is "):
        Stream.from_table(pa.table({"x": column})).aggregate(n=("x", "count_distinct"))


@pytest.mark.parametrize("name", ["min", "max", "first", "last"])
def test_a_view_is_refused_with_what_to_write(name: str) -> None:
    stream = Stream.from_table(pa.table({"x": pa.array(["b"], pa.string_view())}))
    with pytest.raises(PlanError) as caught:
        stream.aggregate(r=("x", name))
    assert '.with_columns(x=col("x").cast("string"))' in caught.value.hint

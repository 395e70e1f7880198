"""Event time follows its column through functions over batches, which may give rows in another order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shoal.dataflow.api.own_operator import Operator
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.errors import OperatorFailedError
from shoal.dataflow.execution.event_time import to_micros
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.operators.users.opaque import TimeColumn

ROWS = [{"v": 2, "at": 15}, {"v": 1, "at": 5}, {"v": 3, "at": 25}]


def timed(rows: list[dict[str, Any]] | None = None) -> Stream:
    return Stream.from_dicts(rows or ROWS, event_time="at", time_unit="s", disorder=60)


def windows(stream: Stream, column: str = "at") -> list[tuple[int, list[int]]]:
    found = stream.window(tumbling(seconds=10)).aggregate(times=(column, "list")).to_pylist()
    return [(row["window_start"].second, row["times"]) for row in found]


EXPECTED = [(0, [5]), (10, [15]), (20, [25])]


class Sorting(Operator):
    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.sort_by("at")


@pytest.mark.parametrize(
    "stream",
    [
        timed().map(lambda batch: batch.sort_by("at")),
        timed().map(lambda batch: batch.sort_by("at"), schema={"v": "int64", "at": "int64"}),
        timed().map(lambda batch: pa.Table.from_batches([batch]).sort_by("at")),
        timed().map(lambda batch: batch.sort_by("at")).map(lambda batch: batch.sort_by("v")),
        timed().key_by("v").filter(col("v") > 0).map(lambda batch: batch.sort_by("at")),
        timed().union(timed().filter(col("v") > 9)).map(lambda batch: batch.sort_by("at")),
        Stream.from_dicts(ROWS)
        .event_time("at", unit="s", disorder=60)
        .map(lambda batch: batch.sort_by([("at", "descending")])),
        timed().apply(Sorting, schema={"v": "int64", "at": "int64"}),
    ],
)
def test_rows_that_a_function_sorts_keep_their_times(stream: Stream) -> None:
    assert sorted(windows(stream)) == EXPECTED


def test_a_column_that_was_renamed_is_followed() -> None:
    assert windows(timed().rename(at="t").map(lambda batch: batch.sort_by("t")), "t") == EXPECTED


def test_times_that_a_function_changes_are_the_new_ones() -> None:
    later = timed().map(lambda batch: batch.set_column(1, "at", pc.add(batch["at"], 10)))
    assert windows(later) == [(10, [15]), (20, [25]), (30, [35])]


def test_an_expression_keeps_the_times_that_rows_had() -> None:
    """Row by row it is known what became of which row: there time stays until `event_time` names it anew."""
    later = timed().with_columns(at=col("at") + 10)
    assert windows(later) == [(0, [15]), (10, [25]), (20, [35])]
    again = later.map(lambda batch: batch.set_column(1, "at", pc.add(batch["at"], 10)))
    assert windows(again) == [(0, [25]), (10, [35]), (20, [45])]


def test_a_time_that_is_none_any_more_follows_the_policy() -> None:
    def without_second(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "at", pc.if_else(pc.equal(batch["v"], 1), pa.scalar(None, pa.int64()), batch["at"]))

    declared = {"v": "int64", "at": "int64"}
    with pytest.raises(OperatorFailedError, match=r"event time column 'at': must be a time of the years 1 to 9999"):
        windows(timed().map(without_second, schema=declared))
    assert windows(timed().map(without_second, schema=declared, on_error="skip")) == EXPECTED[1:]


def test_a_column_of_another_type_or_none_leaves_the_times() -> None:
    texts = timed().map(lambda batch: {"v": batch["v"], "at": pc.cast(batch["at"], pa.string())})
    assert windows(texts, "v") == [(0, [1]), (10, [2]), (20, [3])]
    without = timed().map(lambda batch: {"v": batch["v"]})
    assert windows(without, "v") == [(0, [1]), (10, [2]), (20, [3])]


def test_a_column_that_was_not_touched_is_not_read() -> None:
    def never(_column: Any) -> Any:
        raise AssertionError("read")

    batch = pa.record_batch({"at": pa.array(range(9)), "v": pa.array(range(9))}).slice(2, 5)
    assert TimeColumn("at", never).times(batch.select(["v", "at"]), batch) is None
    copied = pa.record_batch({"at": pa.array([2, 3, 4, 5, 6])})
    assert TimeColumn("at", never).times(copied, batch) is None
    moved = TimeColumn("at", lambda column: to_micros(column, "s")).times(batch.take(pa.array([1, 0, 2, 3, 4])), batch)
    assert moved is not None
    assert moved.to_pylist() == [3_000_000, 2_000_000, 4_000_000, 5_000_000, 6_000_000]

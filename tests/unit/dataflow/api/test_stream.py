"""Streams that are run at once, and what building them leaves behind."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from shoal.dataflow.api.process_function import ProcessFunction
from shoal.dataflow.api.streams.stream import KeyedStream, RecordStream, Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.errors import OperatorFailedError, PlanError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Custom,
    Join,
    JoinKind,
    JoinMode,
    KeyBy,
    MapRecords,
    Process,
    Project,
    Sink,
    Source,
)
from shoal.dataflow.language.windows import Firing, SlidingWindow
from tests.unit.dataflow.plan.plans import Same

ROWS = [{"id": n, "user": "ab"[n % 2]} for n in range(10)]


def orders() -> Stream:
    return Stream.from_dicts(ROWS, batch_size=3)


def timed() -> Stream:
    return orders().event_time("id", unit="s")


# ---------------------------------------------------------------------------------------------------------
# Running


def test_collect_gives_a_table() -> None:
    assert orders().collect().to_pylist() == ROWS
    assert orders().to_pylist() == ROWS


def test_a_flat_map_may_give_one_batch() -> None:
    some = orders().flat_map(lambda batch: batch.slice(1))
    assert [row["id"] for row in some.to_pylist()] == [1, 2, 4, 5, 7, 8]


def no_return(batch: Any) -> None:
    batch.column("id")


def test_a_function_that_returns_no_rows_is_refused_at_its_line_before_anything_runs() -> None:
    for on_error in ("fail", "skip"):  # it is the function that is wrong, and no row
        with pytest.raises(PlanError, match=r"map no_return: must return .*, and returned nothing") as caught:
            orders().map(no_return, on_error=on_error).collect()
        assert caught.value.at is not None
        assert caught.value.at.file.endswith("test_stream.py")


def test_a_function_that_raises_for_plain_values_is_decided_by_its_first_batch() -> None:
    def strict(batch: Any) -> Any:
        if set(batch["user"].to_pylist()) - {"a", "b"} or batch["id"][0].as_py() == 1:
            raise ValueError("not mine")
        return {"twice": [each * 2 for each in batch["id"].to_pylist()]}

    assert orders().map(strict).collect()["twice"].to_pylist() == [n * 2 for n in range(10)]


class Halving(ProcessFunction):
    def process(self, record: Any, context: Any) -> Any:
        return {"half": record.id / 2}


def test_what_a_process_function_emits_follows_on_error_too() -> None:
    halves = orders().key_by("user").process(Halving, schema={"half": "int64"}, on_error="side")
    bad = halves.side_output("errors").to_pylist()
    assert sorted(row["id"] for row in bad) == [1, 3, 5, 7, 9]
    assert all("half: is no whole number" in row["error"] for row in bad)
    skipping = orders().key_by("user").process(Halving, schema={"half": "int64"}, on_error="skip")
    assert sorted(skipping.collect()["half"].to_pylist()) == [0, 1, 2, 3, 4]
    with pytest.raises(OperatorFailedError, match="half: is no whole number"):
        orders().key_by("user").process(Halving, schema={"half": "int64"}).collect()


def test_a_stream_without_rows_still_has_columns() -> None:
    empty = Stream.from_table(pa.schema([("a", pa.int64())]).empty_table())
    assert empty.collect().schema == pa.schema([("a", pa.int64())])


@pytest.mark.parametrize("what", ["collect", "to_pylist", "count"])
def test_nobody_waits_for_the_end_of_an_endless_stream(what: str) -> None:
    rows = lambda: ({"n": n} for n in itertools.count())  # noqa: E731
    endless = Stream.from_iterable(rows, schema={"n": "int64"}, bounded=False)
    for stream in (endless, orders().join(endless, left_keys="id", right_keys="n", ttl="1h")):
        with pytest.raises(PlanError, match=rf"test_stream\.py:\d+: {what}\(\): waits for the end") as raised:
            getattr(stream, what)()
        assert "take(n)" in raised.value.hint
        assert "bounded=True" in raised.value.hint
    assert len(endless.take(2)) == 2
    for batch in endless:
        assert batch.num_rows
        break


class Sorting(ProcessFunction):
    def process(self, record: Any, context: Any) -> Any:
        context.emit_side("odd" if record.id % 2 else "even", {"id": record.id})
        return {"id": record.id}


def test_rows_for_a_side_output_that_nobody_reads_are_refused() -> None:
    def run(*tags: str) -> Any:
        sorted_rows = orders().process(Sorting, schema={"id": "int64"})
        sides = [sorted_rows.side_output(tag, schema={"id": "int64"}).to_callback(len).node for tag in tags]
        return engine.run([sorted_rows.to_callback(len).node, *sides])

    run("odd", "even")
    with pytest.raises(OperatorFailedError, match=r"side output 'odd': gets rows .* nobody reads it; .*'od'") as raised:
        run("even", "od")
    assert isinstance(raised.value.__cause__, PlanError)
    assert 'side_output("odd")' in raised.value.hint
    with pytest.raises(OperatorFailedError, match="there are no side outputs that are read"):
        run()


def test_a_look_at_a_stream_need_not_read_its_sides(caplog: pytest.LogCaptureFixture) -> None:
    sorted_rows = orders().process(Sorting, schema={"id": "int64"})
    assert sorted_rows.count() == 10
    assert caplog.text.count("side output 'odd', which is not read here") == 1
    assert sum(batch.num_rows for batch in sorted_rows) == 10
    assert len(sorted_rows.side_output("odd", schema={"id": "int64"}).to_pylist()) == 5


def test_an_expression_that_fails_names_its_column_and_line() -> None:
    big = Stream.from_dicts([{"a": 2**62}])
    with pytest.raises(OperatorFailedError, match=r"test_stream\.py:\d+\): column 'b': a \* 4.*overflow"):
        big.select(b=col("a") * 4).collect()


def test_count_take_and_foreach() -> None:
    assert orders().count() == 10
    seen: list[int] = []
    orders().foreach(lambda batch: seen.append(batch.num_rows))
    assert sum(seen) == 10
    assert [row for batch in orders().take(100) for row in batch.to_pylist()] == ROWS
    assert orders().take(0) == []


def test_iteration_goes_batch_by_batch() -> None:
    assert [row for batch in orders() for row in batch.to_pylist()] == ROWS


def test_leaving_a_loop_stops_an_endless_stream() -> None:
    closed = threading.Event()

    def numbers() -> Iterator[dict[str, int]]:
        try:
            for n in itertools.count():
                yield {"n": n}
        finally:
            closed.set()

    stream = Stream.from_iterable(numbers, schema={"n": "int64"}, bounded=False, batch_size=10)
    (first,) = stream.take(1)
    assert first.column("n")[0].as_py() == 0
    assert closed.wait(10)


def test_what_fails_is_raised_to_whoever_iterates() -> None:
    def failing() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise ValueError("out of numbers")

    stream = Stream.from_iterable(failing, schema={"n": "int64"})
    with pytest.raises(Exception, match="out of numbers"):
        list(stream)


async def test_an_output_can_be_run_and_started() -> None:
    seen: list[Any] = []
    output = orders().to_callback(lambda batch: seen.extend(batch.to_pylist()))
    report = output.run()
    assert seen == ROWS
    assert report.seconds >= 0
    seen.clear()
    await output.start(name="again")
    await output.stop()
    with pytest.warns(RuntimeWarning, match="was not started"):
        await output.stop()


# ---------------------------------------------------------------------------------------------------------
# Nodes


def test_every_step_leaves_the_stream_before_as_it_was() -> None:
    stream = orders()
    before = stream.node
    stream.filter(col("id") > 1)
    stream.with_parallelism(3).uid("other")
    assert stream.node is before
    assert (before.parallelism, before.uid) == (None, "")


def test_settings_of_a_step() -> None:
    node = orders().filter(col("id") > 1).uid("big").with_parallelism(3).with_resources(memory="1.5GiB", cpu=2).node
    assert (node.uid, node.parallelism, node.memory, node.cpu) == ("big", 3, 3 * 2**29, 2.0)
    assert orders().with_resources(memory=1000).node.memory == 1000


def test_sources_know_their_columns_where_they_are_there() -> None:
    for stream in (
        orders(),
        Stream.from_pylist(ROWS),
        Stream.from_list(ROWS),
        Stream.from_table(pa.Table.from_pylist(ROWS)),
        Stream.from_batches([pa.RecordBatch.from_pylist(ROWS)]),
        Stream.from_generator(lambda: iter(ROWS), schema={"id": int, "user": str}),
    ):
        assert stream.schema == pa.schema([("id", pa.int64()), ("user", pa.string())])
    assert Stream.from_list([1, 2]).schema == pa.schema([("value", pa.int64())])
    assert Stream.from_iterable(lambda: iter(ROWS)).schema is None


def test_only_functions_and_lists_can_be_read_again() -> None:
    def again(items: Any) -> bool:
        node = Stream.from_iterable(items).node
        assert isinstance(node, Source)
        replayable: bool = node.connector.replayable
        return replayable

    assert again(lambda: iter(ROWS))
    assert again(ROWS)
    assert not again(iter(ROWS))
    assert not again(row for row in ROWS)


def test_files_and_queries_are_described_and_not_opened() -> None:
    parquet = Stream.from_parquet("/nowhere/*.parquet", columns=["a"], batch_size=5).node
    assert isinstance(parquet, Source)
    assert (parquet.connector.path, parquet.connector.columns) == ("/nowhere/*.parquet", ("a",))
    for stream in (
        Stream.from_csv("/nowhere.csv"),
        Stream.from_json("/nowhere.jsonl"),
        Stream.from_sql("select 1", "/nowhere"),
    ):
        assert stream.schema is None
        assert stream.facts.bounded


def test_sinks_are_described_and_not_opened() -> None:
    stream = orders()
    kinds = [
        type(output.node.connector).__name__  # type: ignore[attr-defined]
        for output in (
            stream.to_parquet("/nowhere", partition_by=["user"]),
            stream.to_csv("/nowhere"),
            stream.to_json("/nowhere"),
            stream.to_sql("t", "/nowhere.db", key="id"),
        )
    ]
    assert kinds == ["ParquetSink", "CsvSink", "JsonLinesSink", "SqlSink"]


def test_event_time_right_behind_a_source_is_the_sources() -> None:
    node = timed().node
    assert isinstance(node, Source)
    assert node.time is not None
    later = orders().filter(col("id") > 1).event_time("id", unit="s", disorder="2s", idle_after="1s").node
    assert isinstance(later, AssignTime)
    assert (later.time.disorder, later.time.idle_after) == (2_000_000, 1_000_000)


def test_a_window_may_name_its_time() -> None:
    node = orders().window(tumbling(seconds=5), time_column="id", time_unit="s", disorder=1).count().node
    assert isinstance(node, Aggregate)
    assert isinstance(node.inputs[0], AssignTime)
    assert node.inputs[0].time.disorder == 1_000_000
    assert node.window == SlidingWindow(5_000_000, 5_000_000)


def test_keys_may_come_before_or_after_the_window() -> None:
    window = tumbling(seconds=5)
    nodes = [
        timed().group_by("user").window(window, early_every="1s", allowed_lateness=2).sum("id").node,
        timed().key_by("user").window(window, early_every="1s", allowed_lateness=2).sum("id").node,
        timed().window(window, early_every="1s", allowed_lateness=2).group_by("user").sum("id").node,
    ]
    for node in nodes:
        assert isinstance(node, Aggregate)
        assert isinstance(node.inputs[0], Source)  # no exchange of its own before the aggregate's
        assert (node.keys, node.window, node.firing) == (("user",), window, Firing(1_000_000, 2_000_000))


def test_a_keyed_stream_is_a_stream() -> None:
    keyed = orders().key_by("user")
    assert isinstance(keyed, KeyedStream)
    assert keyed.keys == ("user",)
    behind = keyed.filter(col("id") > 1)
    assert type(behind) is Stream
    assert isinstance(behind.node.inputs[0], KeyBy)
    assert keyed.with_parallelism(2).keys == ("user",)
    processed = keyed.process(Halving, schema={"a": int}).node
    assert isinstance(processed, Process)
    assert processed.keys == ("user",)
    assert isinstance(processed.inputs[0], Source)
    assert orders().key_by(["user", "id"]).keys == orders().key_by(col("user"), "id").keys == ("user", "id")


def test_records_go_one_by_one_until_they_are_batches_again() -> None:
    records = orders().records()
    assert isinstance(records, RecordStream)
    mapped = records.map(lambda r: r).filter(lambda r: True).flat_map(lambda r: [r])
    node = mapped.node
    assert isinstance(node, MapRecords)
    assert (node.kind, node.inputs[0].kind) == ("flat_map", "filter")  # type: ignore[attr-defined]
    assert isinstance(records.filter(col("id") > 1), RecordStream)
    assert isinstance(mapped.select("id").node, Project)
    assert type(mapped.batches()) is Stream


def test_joins_in_all_their_modes() -> None:
    def joined(**options: Any) -> Join:
        node = timed().join(timed(), on="user", **options).node
        assert isinstance(node, Join)
        return node

    assert joined().mode is JoinMode.REGULAR
    assert joined(how="outer", ttl="1h").kind is JoinKind.OUTER
    assert joined(window=tumbling(seconds=1)).mode is JoinMode.WINDOW
    assert joined(broadcast=True).mode is JoinMode.BROADCAST
    assert (joined(within="5s").lower, joined(within="5s").upper) == (-5_000_000, 5_000_000)
    assert (joined(within=("-1s", 2)).lower, joined(within=("-1s", 2)).upper) == (-1_000_000, 2_000_000)
    node = timed().interval_join(timed(), None, -500, "2s", on="user").node
    assert isinstance(node, Join)
    assert (node.lower, node.upper, node.mode) == (-500_000, 2_000_000, JoinMode.INTERVAL)
    asof = timed().asof_join(timed(), direction="forward").node
    assert isinstance(asof, Join)
    assert (asof.mode, asof.left_keys, asof.direction, asof.kind) == (JoinMode.ASOF, (), "forward", JoinKind.LEFT)


def test_operators_of_ones_own_may_have_two_inputs() -> None:
    node = orders().apply(Same, orders(), keys=["user"]).node
    assert isinstance(node, Custom)
    assert len(node.inputs) == 2
    assert node.keys == ("user",)


def test_words_for_people() -> None:
    assert repr(orders()) == "<Stream source (id, user)>"
    assert repr(Stream.from_iterable(list)) == "<Stream source (columns known at run)>"


def test_a_sink_can_be_named() -> None:
    output = orders().to_callback(print).uid("results").with_parallelism(2)
    assert isinstance(output.node, Sink)
    assert (output.node.uid, output.node.parallelism) == ("results", 2)

"""A program that has changed goes on with the state of the old one, or says what does not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.core.errors import PreconditionError
from shoal.dataflow.api.process_function import ProcessFunction
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import count, session, sliding, tumbling
from shoal.dataflow.errors import CheckpointError, OperatorFailedError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.dataflow.state.groups import KeyedState
from tests.unit.dataflow.execution.flows import SCHEMA, Recording, RecordingSink, Tap, TapSource, rows

Program = Callable[[Stream], Stream]
TEN = tumbling(milliseconds=0.01)


class Adding(ProcessFunction):
    """A sum for each key."""

    def open(self, context):
        self.total = context.value_state("total")

    def process(self, record, context):
        self.total.set(self.total.get(0) + record.value)
        return {"key": context.key, "total": self.total.get()}


def lives(tmp_path: Path, *programs: Program, **options) -> list[dict]:
    """Each program reads one batch more; what they made visible in the end."""
    tap, recording = Tap(), Recording()
    for number, program in enumerate(programs, start=1):
        is_last = number == len(programs)
        tap.give(rows(("a", number, number), ("b", 10 * number, number)))
        if is_last:
            tap.close()
        source = Stream.from_source(TapSource(tap, is_last), schema=SCHEMA, event_time="time", time_unit="us")
        node = program(source.uid("in")).to_sink(RecordingSink(recording)).uid("out").node
        settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path), interval=60, **options))
        flow = engine.start([node], name="job", parallelism=number, settings=settings)
        if is_last:
            flow.wait()
        else:
            tap.wait_fetched(number)
            flow.stop()
    return recording.rows


def sums(stream: Stream) -> Stream:
    return stream.key_by("key").window(TEN).aggregate(total=("value", "sum")).uid("sums")


def totals(found: list[dict]) -> list[tuple[str, int]]:
    return sorted((row["key"], row["total"]) for row in found)


@pytest.mark.parametrize(
    "upgraded",
    [
        lambda stream: sums(stream.filter(col("value") > 0).with_columns(other=col("value") * 2)),
        lambda stream: sums(stream.records().map(dict, schema=SCHEMA).batches()),
        lambda stream: sums(stream).rename(total="sum").rename(sum="total"),
        lambda stream: (
            stream.key_by("key").window(TEN).aggregate(result=("value", "sum")).uid("sums").rename(result="total")
        ),
        lambda stream: sums(stream).filter(col("total") > 0).with_columns(more=col("total") + 1),
    ],
)
def test_state_is_found_again_whatever_stands_around_it(tmp_path, upgraded):
    assert totals(lives(tmp_path, sums, upgraded)) == [("a", 3), ("b", 30)]
    assert totals(lives(tmp_path / "back", upgraded, sums)) == [("a", 3), ("b", 30)]


def test_where_event_time_is_named_may_change(tmp_path):
    """In the middle of a stream it is a step with a state of its own, right behind a source it is the source's."""

    def named(stream: Stream) -> Stream:
        return sums(stream.event_time("time", unit="us"))

    def behind(stream: Stream) -> Stream:
        return sums(stream.filter(col("value") > 0).event_time("time", unit="us"))

    assert totals(lives(tmp_path, behind, named)) == [("a", 3), ("b", 30)]
    assert totals(lives(tmp_path / "back", named, behind)) == [("a", 3), ("b", 30)]


def test_a_process_function_finds_its_state(tmp_path):
    found = lives(
        tmp_path,
        lambda stream: stream.key_by("key").process(Adding).uid("adding"),
        lambda stream: stream.filter(col("value") > 0).key_by("key").process(Adding).uid("adding"),
        lambda stream: stream.key_by("key").process(Adding).uid("adding"),
    )
    assert totals(found) == [("a", 1), ("a", 3), ("a", 6), ("b", 10), ("b", 30), ("b", 60)]


def aggregated(window, *keys: str, **wanted) -> Program:
    return lambda stream: stream.key_by(*keys).window(window).aggregate(wanted).uid("kept")


def joined(on: str, **how) -> Program:
    return lambda stream: stream.join(stream.select("key", "value", other=col("value") * 2), on=on, **how).uid("kept")


TOTAL = {"total": ("value", "sum")}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (aggregated(TEN, "key", **TOTAL), aggregated(tumbling(milliseconds=0.007), "key", **TOTAL), "size=7"),
        (
            aggregated(TEN, "key", **TOTAL),
            aggregated(sliding(size_milliseconds=0.01, slide_milliseconds=0.005), "key", **TOTAL),
            "slide=5",
        ),
        (aggregated(TEN, "key", **TOTAL), aggregated(TEN, "value", **TOTAL), "by value"),
        (aggregated(TEN, "key", **TOTAL), aggregated(TEN, "key", total=("time", "sum")), r"sum\(time\)"),
        (aggregated(TEN, "key", **TOTAL), aggregated(TEN, "key", n=("*", "count"), **TOTAL), r"count\(\*\)"),
        (
            aggregated(session(gap_milliseconds=0.01), "key", **TOTAL),
            aggregated(session(gap_milliseconds=0.02), "key", **TOTAL),
            "gap=20",
        ),
        (aggregated(count(5), "key", **TOTAL), aggregated(count(6), "key", **TOTAL), "size=6"),
        (
            lambda stream: stream.distinct("key").uid("kept"),
            lambda stream: stream.distinct("key", "value").uid("kept"),
            "distinct rows by key, value",
        ),
        (joined("key"), joined("value"), "by value"),
        (joined("key", window=TEN), joined("key", window=tumbling(milliseconds=0.007)), "size=7"),
        (joined("key", within="5s"), joined("key", within="5s", how="left"), "left join"),
        (joined("key", broadcast=True), joined("value", broadcast=True), "by value"),
    ],
)
def test_state_of_something_else_is_refused_and_not_misread(tmp_path, before, after, said):
    with pytest.raises(OperatorFailedError, match=f"its state in the checkpoint is of .*{said}") as caught:
        lives(tmp_path, before, after)
    assert isinstance(caught.value.__cause__, PreconditionError)
    assert "uid" in caught.value.__cause__.hint


def reduced(stream: Stream) -> Stream:
    return stream.key_by("key").window(TEN).reduce(lambda a, b: {**b, "value": a["value"] + b["value"]}).uid("kept")


@pytest.mark.parametrize(
    "program",
    [
        sums,
        aggregated(session(gap_milliseconds=0.01), "key", **TOTAL),
        aggregated(count(5), "key", **TOTAL),
        reduced,
        lambda stream: stream.group_by("key").aggregate(TOTAL).changes_as_rows().uid("changes"),
        lambda stream: stream.distinct("key", "value").uid("kept"),
    ],
    ids=["tumbling", "session", "count", "reduce", "running", "distinct"],
)
def test_rows_of_another_type_are_refused_and_not_misread(tmp_path, program):
    def changed(stream: Stream) -> Stream:
        return program(stream.with_columns(value=col("value").cast("double") * 1.5))

    # Endless both times: a running aggregate of bounded input has no changes.
    tap, recording = Tap(), Recording()
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path), interval=60))
    for number, life in enumerate((program, changed), start=1):
        tap.give(rows(("a", number, number)))
        source = Stream.from_source(TapSource(tap), schema=SCHEMA, event_time="time", time_unit="us").uid("in")
        flow = engine.start(
            [life(source).to_sink(RecordingSink(recording)).uid("out").node], name="job", settings=settings
        )
        if number == 1:
            tap.wait_fetched(number)
            flow.stop()
    with pytest.raises(OperatorFailedError, match=r"'value'.*must be int64"):
        flow.wait(10)


def test_a_record_with_another_column_is_refused_by_a_reduction(tmp_path):
    more = lambda stream: reduced(stream.with_columns(more=col("value")))  # noqa: E731  as programs are written here
    with pytest.raises(OperatorFailedError, match="column 'more': must be no column"):
        lives(tmp_path, reduced, more)
    with pytest.raises(OperatorFailedError, match="column 'more': must be int64"):
        lives(tmp_path / "less", more, reduced)


def test_a_key_of_another_type_is_refused_and_not_taken_for_text(tmp_path):
    with pytest.raises(OperatorFailedError, match=r"key 'key': must be string.*'int64'"):
        lives(tmp_path, sums, lambda stream: sums(stream.with_columns(key=col("time"))))


def test_a_step_that_is_called_something_else_now_is_named(tmp_path):
    other = lambda stream: sums(stream).uid("totals")  # noqa: E731  as programs are written here
    with pytest.raises(PreconditionError, match="'totals' has no state in it; the state of 'sums' has no operator"):
        lives(tmp_path, sums, other)
    found = lives(tmp_path / "anyway", sums, other, allow_missing_state=True, allow_unknown_state=True)
    assert totals(found) == [("a", 2), ("b", 20)]  # what the window had before is given up, as was asked for


def test_a_source_of_another_topic_is_not_begun_at_this_ones_place(tmp_path):
    class Topical(TapSource):
        """A tap that is a topic."""

        __slots__ = ()
        topic = "orders"

    class Other(Topical):
        __slots__ = ()
        topic = "payments"

    tap, recording = Tap(), Recording()
    tap.give(rows(("a", 1, 1)))
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path), interval=60))

    def plan(kind: type[TapSource]):
        return [
            Stream.from_source(kind(tap), schema=SCHEMA).uid("in").to_sink(RecordingSink(recording)).uid("out").node
        ]

    flow = engine.start(plan(Topical), name="job", settings=settings)
    tap.wait_fetched(1)
    flow.stop()
    with pytest.raises(OperatorFailedError, match="in topic 'orders', and the program reads 'payments'"):
        engine.start(plan(Other), name="job", settings=settings).wait(10)


# -- recorded checkpoints ---------------------------------------------------------------------------------

RECORDED = Path(__file__).parents[3] / "golden" / "dataflow" / "own_operator"


def recorded_flow(
    directory: Path, by_group: type, plain: type, parallelism: int, recorded: Path = RECORDED
) -> engine.RunningFlow:
    """The job whose checkpoint was recorded when a plain mapping of bytes by key group was state by key."""
    shutil.copytree(recorded, directory, dirs_exist_ok=True)
    source = Stream.from_source(TapSource(Tap()), schema=pa.schema({"key": pa.string()})).uid("rows")
    schema = {"key": "string"}
    sinks = [
        source.apply(by_group, keys=("key",), schema=schema).uid("by-group").to_callback(lambda batch: None).uid("a"),
        source.apply(plain, schema=schema).uid("plain").to_callback(lambda batch: None).uid("b"),
    ]
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(directory), interval=60))
    return engine.start([sink.node for sink in sinks], name="own", parallelism=parallelism, settings=settings)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_keyed_state_of_a_recorded_checkpoint_is_restored(tmp_path, parallelism):
    groups: dict[int, bytes] = {}
    values: list[Any] = []

    class ByGroup:
        def process_batch(self, batch):
            raise AssertionError("nothing is read")

        def restore(self, states):
            assert isinstance(states, KeyedState)
            groups.update(states)

    class Plain(ByGroup):
        def restore(self, states):
            values.append(states)

    flow = recorded_flow(tmp_path, ByGroup, Plain, parallelism)
    assert flow.stop(timeout=20).restored == 2
    assert sorted(groups.values()) == [b"adaada", b"bob", b"eve"]
    assert values
    assert all(states == [{"rows": 4}] for states in values)


def test_a_recorded_checkpoint_of_the_format_before_is_refused_with_a_way_out(tmp_path):
    class Own:
        def process_batch(self, batch):
            raise AssertionError("nothing is read")

    with pytest.raises(CheckpointError, match="has format 1, and this version reads and writes format 2") as caught:
        recorded_flow(tmp_path, Own, Own, 1, RECORDED.with_name("own_operator_format_1"))
    assert "from_checkpoint=0" in caught.value.hint

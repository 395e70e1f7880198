"""Records of topics that cannot be used: event times that are missing or overflow, bad records in samples."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from shoal.dataflow.api.apps.app import App
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSource
from shoal.dataflow.errors import OperatorFailedError, PlanError, PoisonError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import EventTime, OnError, SideOutput, Source
from shoal.topics.base import records
from shoal.topics.headers import make_headers
from tests.unit.dataflow.execution.flows import SCHEMA, collect, window_sums

pytestmark = pytest.mark.integration

HUGE = 2**62
UNFIT = f"event time column 'time': must be a time of the years 1 to 9999, in s since 1970 (got {HUGE})"
GOOD = b'{"key": "a", "value": 1, "time": 1}'
MISSING = b'{"key": "a", "value": 2}'
OVERFLOWS = f'{{"key": "a", "value": 3, "time": {HUGE}}}'.encode()


@pytest.fixture
def broker(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def fill(broker: str, values: list[bytes | None], **columns) -> None:
    with topics_of(broker) as topics:
        topics.create("in", partitions=1)
        with topics.writer() as writer:
            writer.append("in", records(values, **columns))
            writer.flush()


def source(broker: str, policy: OnError, *, time: EventTime | None = None, **options) -> Source:
    connector = TopicSource("in", broker, schema=SCHEMA, on_error=policy, bounded=True, **options)
    return Source(connector=connector, schema=SCHEMA, time=time or EventTime("time", unit="s"), uid="in")


def errors_of(read: Source) -> tuple[list[int], list[dict]]:
    """The sums of the windows, and what went to the side."""
    side = SideOutput(inputs=(read,), tag="errors")
    report = engine.run([collect(window_sums(read)), collect(side, "bad")])
    return report.tables["out"]["total"].to_pylist(), report.tables["bad"].to_pylist()


# -- event times ------------------------------------------------------------------------------------------


def test_a_time_that_overflows_fails_with_its_place_its_column_its_value_and_the_rule(broker):
    fill(broker, [GOOD, OVERFLOWS], keys=[b"k0", b"k1"])
    with pytest.raises(OperatorFailedError) as caught:
        engine.run([collect(window_sums(source(broker, OnError.FAIL)))])
    assert isinstance(caught.value.__cause__, PoisonError)
    said = f"topic in, split 0: 1 rows cannot be read, such as offset 1, key b'k1', value {OVERFLOWS!r}: {UNFIT}"
    assert said in caught.value.message
    assert caught.value.hint == "let them be skipped or put out on the side: on_error='skip' or on_error='side'"


def test_or_it_is_skipped_and_counted(broker):
    fill(broker, [GOOD, OVERFLOWS, MISSING])
    report = engine.run([collect(window_sums(source(broker, OnError.SKIP)))])
    assert report.tables["out"]["total"].to_pylist() == [1]
    assert next(each.statistics for each in report.steps if each.uid == "in") == {"skipped": 2}


def test_or_goes_to_the_side_with_its_offset_its_key_and_its_bytes(broker):
    fill(broker, [b"{rubbish", MISSING, GOOD, OVERFLOWS], keys=[None, b"k1", b"k2", b"k3"])
    sums, bad = errors_of(source(broker, OnError.SIDE))
    assert sums == [1]
    assert bad[0]["value"] == b"{rubbish"
    assert bad[1:] == [
        {"split": "0", "offset": 1, "key": b"k1", "value": MISSING, "error": "no event time"},
        {"split": "0", "offset": 3, "key": b"k3", "value": OVERFLOWS, "error": UNFIT},
    ]


def test_a_batch_of_nothing_but_bad_times(broker):
    fill(broker, [MISSING, OVERFLOWS])
    sums, bad = errors_of(source(broker, OnError.SIDE))
    assert sums == []
    assert [each["offset"] for each in bad] == [0, 1]


def test_the_records_own_time_is_held_to_the_same_rule(broker):
    headers = make_headers({"x-shoal-event-time": pa.array([b"5", b"999999999999999999"])}, 2)
    fill(broker, [GOOD, MISSING], headers=headers)
    sums, bad = errors_of(source(broker, OnError.SIDE, time=EventTime()))
    assert sums == [1]
    rule = "the record's own time: must be a time of the years 1 to 9999, in us since 1970 (got 999999999999999999)"
    assert [(each["offset"], each["value"], each["error"]) for each in bad] == [(1, MISSING, rule)]


def stream_of(rows: list[dict], schema: pa.Schema = SCHEMA) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    return sink.getvalue()


def test_a_record_of_many_rows_is_put_out_once(broker):
    rows = [{"key": "a", "value": each, "time": 1 if each < 3 else None} for each in range(10)]
    value = stream_of(rows)
    fill(broker, [value])
    sums, bad = errors_of(source(broker, OnError.SIDE, codec="arrow"))
    assert sums == [0 + 1 + 2]
    error = "no event time, and 6 more rows of this record"
    assert bad == [{"split": "0", "offset": 0, "key": None, "value": value, "error": error}]


# -- samples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [b"{oops", b"null", b"", b"[]", b'{"a": "x"}', b'{"a": 7}{"a": 8}', b"\xff"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_bad_record_in_the_sample_follows_the_policy(broker, bad, place):
    values: list[bytes | None] = [b'{"a": 1}', b'{"a": 2, "b": "y"}', b'{"a": 3}', None]
    values.insert(place, bad)
    fill(broker, values)
    schema = TopicSource("in", broker, on_error=OnError.SKIP).find_schema()
    assert schema == pa.schema([("a", pa.int64()), ("b", pa.utf8())])
    read = Source(connector=TopicSource("in", broker, on_error=OnError.SIDE, bounded=True), uid="in")
    report = engine.run([collect(read), collect(SideOutput(inputs=(read,), tag="errors"), "bad")])
    assert report.tables["out"]["a"].to_pylist() == [1, 2, 3]
    assert bad in report.tables["bad"]["value"].to_pylist()
    with pytest.raises(PlanError, match="could not tell its columns: topic in: has records that are no json"):
        engine.run([collect(Source(connector=TopicSource("in", broker, bounded=True)))])


def test_most_records_of_the_sample_decide(broker):
    fill(broker, [b'{"a": "x"}', b'{"a": "y"}', b'{"a": 1}', b'{"a": 2.5}', b'{"a": 3, "b": 1}', b'{"a": 4, "c": 1}'])
    schema = TopicSource("in", broker, on_error=OnError.SIDE).find_schema()
    assert schema == pa.schema([("a", pa.float64()), ("b", pa.int64()), ("c", pa.int64())])


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        (["2026-01-01T10:00:00Z", "2026-01-01T12:00:00+02:00"], pa.timestamp("s", "UTC")),
        (["2026-01-01T10:00:00", "2026-01-01T11:00:00"], pa.timestamp("s")),
        (["2026-01-01T10:00:00Z", "2026-01-01T11:00:00"], pa.utf8()),
    ],
)
def test_times_of_a_sample_have_a_zone_if_all_have(broker, times, kind):
    fill(
        broker,
        [json.dumps({"at": each}, indent=indent).encode() for each, indent in zip(times, (1, None), strict=True)],
    )
    assert TopicSource("in", broker).find_schema() == pa.schema([("at", kind)])
    report = engine.run([collect(Source(connector=TopicSource("in", broker, bounded=True)))])
    assert report.tables["out"].num_rows == 2


def test_a_sample_of_nothing_but_rubbish_is_an_error_whatever_the_policy(broker):
    fill(broker, [b"null", b"zzz"])
    read = Source(connector=TopicSource("in", broker, bounded=True, on_error=OnError.SKIP))
    with pytest.raises(PlanError, match="none of those that were looked at is one JSON object"):
        engine.run([collect(read)])


def test_a_sample_of_streams_of_arrow(broker):
    fill(broker, [None, b"rubbish", stream_of([{"key": "a", "value": 1, "time": 1}])])
    assert TopicSource("in", broker, codec="arrow", on_error=OnError.SKIP).find_schema() == SCHEMA
    with pytest.raises(PlanError, match="has records that are no arrow"):
        engine.run([collect(Source(connector=TopicSource("in", broker, codec="arrow", bounded=True)))])


# -- definitions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["wibble", "", None, 5, ["latest"]])
def test_a_start_that_is_none_is_refused_at_the_users_line(tmp_path, start):
    app = App("shop", data_dir=tmp_path)
    with pytest.raises(
        PlanError, match=r"test_topic_poison\.py:\d+: start: must be one of earliest, latest, committed"
    ):
        app.stream("in", start=start)
    with pytest.raises(
        PlanError, match=r"test_topic_poison\.py:\d+: start: must be one of earliest, latest, committed"
    ):
        Stream.from_kafka("localhost:9092", "in", "group", start=start)


def test_an_app_goes_on_over_what_cannot_be_timed(tmp_path):
    app = App("shop", data_dir=tmp_path)
    fill(app.broker, [GOOD, OVERFLOWS, MISSING])
    app.topic("in", schema=SCHEMA, event_time="time", time_unit="s")
    total = app.stream("in", bounded=True, on_error="skip").window(tumbling(10)).sum("value")
    assert [row["value"] for row in total.to_pylist()] == [1]

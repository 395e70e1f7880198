"""Topics as sources and sinks, on the local log: exact over crashes, headers carried."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError
from shoal.dataflow.checkpoint.claim import claim_job
from shoal.dataflow.connectors.base import SinkContext
from shoal.dataflow.connectors.topics import brokers
from shoal.dataflow.connectors.topics.brokers import is_kafka, topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.errors import OperatorFailedError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import EventTime, Node, OnError, SideOutput, Sink, Source
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.topics.base import TopicPartition, records
from shoal.topics.errors import FencedError
from shoal.topics.headers import make_headers, trace_ids
from shoal.topics.local import LocalTopics
from shoal.topics.local.history.entries import EndSession
from tests.unit.dataflow.execution.flows import (
    SCHEMA,
    Multiply,
    collect,
    custom,
    expected_sums,
    rows,
    sums_of,
    table_source,
    window_sums,
)

pytestmark = pytest.mark.integration

ROWS = [(f"k{each % 11}", each, each) for each in range(200)]


@pytest.fixture
def broker(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def fill(broker: str, topic: str = "in", *, partitions: int = 3, values=None, **columns) -> None:
    """Rows by key, so that each partition is in order."""
    with topics_of(broker) as topics:
        if topic not in topics.names():
            topics.create(topic, partitions=partitions)
        given = (
            [json.dumps({"key": k, "value": v, "time": t}).encode() for k, v, t in ROWS] if values is None else values
        )
        keys = [k.encode() for k, _v, _t in ROWS] if values is None else None
        with topics.writer() as writer:
            writer.append(topic, records(given, keys=keys, **columns))
            writer.flush()


def read(broker: str, topic: str = "out") -> list[dict]:
    """What a reader of committed records sees."""
    found: list[dict] = []
    with topics_of(broker) as topics:
        if topic not in topics.names():
            return []
        partitions = topics.describe(topic).topic_partitions()
        ends = topics.next_offsets(partitions)
        with topics.reader() as reader:
            reader.assign(topics.first_offsets(partitions))
            while any(reader.positions()[each] < ends[each] for each in partitions):
                for fetched in reader.read(timeout=1.0):
                    found += [json.loads(value) for value in fetched.batch["value"].to_pylist()]
    return found


def source(broker: str, **options) -> Source:
    time = options.pop("time", EventTime("time", unit="us"))
    options.setdefault("bounded", True)
    return Source(connector=TopicSource("in", broker, schema=SCHEMA, **options), schema=SCHEMA, time=time)


def job(broker: str) -> list[Node]:
    return [Sink(inputs=(window_sums(source(broker)),), connector=TopicSink("out", broker, key="key"), uid="out")]


def settings(tmp_path: Path, **options) -> FlowSettings:
    options.setdefault("interval", 60)
    checkpoint = CheckpointSettings(directory=str(tmp_path / "checkpoints"), **options)
    return FlowSettings(batch_rows=16, checkpoint=checkpoint)


def sums(found: list[dict]) -> list[tuple]:
    return sorted((row["key"], row["start"], row["total"]) for row in found)


EXPECTED = expected_sums([rows(*ROWS)])


def test_brokers_are_told_apart():
    assert [is_kafka(each) for each in ("localhost:9092", "kafka://x", "a:1,b:2", "/var/log", "./here", "memory")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_topic_is_read_by_partitions(broker, parallelism):
    fill(broker)
    report = engine.run([collect(window_sums(source(broker)))], parallelism=parallelism)
    assert sums_of(report.tables["out"]) == EXPECTED


def test_the_columns_come_from_a_sample_where_none_are_declared(broker):
    fill(broker)
    assert TopicSource("in", broker).find_schema() == SCHEMA


def test_an_empty_topic_says_what_to_write(broker):
    with topics_of(broker) as topics:
        topics.create("in")
        with pytest.raises(InvalidError, match="is empty") as caught:
            TopicSource("in", broker).find_schema()
    assert 'app.topic("in", schema=pa.schema(' in caught.value.hint


def test_a_topic_that_is_not_there(broker):
    with pytest.raises(NotFoundError):
        TopicSource("nope", broker).find_splits()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_output_is_exact_without_a_crash(broker, tmp_path, parallelism):
    fill(broker)
    engine.run(job(broker), name="job", parallelism=parallelism, settings=settings(tmp_path))
    assert sums(read(broker)) == EXPECTED


@pytest.mark.parametrize("point", [name for name in faults.POINTS if name.startswith("dataflow.")])
@pytest.mark.parametrize("widths", [(1, 1), (3, 1), (1, 2)])
def test_a_crash_loses_and_doubles_nothing(broker, tmp_path, point, widths):
    fill(broker)
    faults.arm(point, _crash)
    with pytest.raises(Crash):
        engine.run(job(broker), name="job", parallelism=widths[0], settings=settings(tmp_path))
    faults.disarm_all()
    engine.run(job(broker), name="job", parallelism=widths[1], settings=settings(tmp_path))
    assert sums(read(broker)) == EXPECTED


class Crash(BaseException):
    pass


def _crash(name: str) -> None:
    raise Crash(name)


def declare_dead(broker):
    """What another process says in the journal of one that stood still for too long."""
    with LocalTopics(broker) as others:
        for name in list(others._view.state.sessions):
            others._view.submit(EndSession(name))


@pytest.mark.parametrize("point", ["dataflow.start.fenced", "dataflow.recover.before"])
def test_a_start_that_stood_still_and_was_taken_for_dead_begins_again(broker, tmp_path, point):
    fill(broker)
    left = iter([True])
    faults.arm(point, lambda _name: declare_dead(broker) if next(left, False) else None)
    engine.run(job(broker), name="job", settings=settings(tmp_path))
    assert next(left, None) is None
    assert sums(read(broker)) == EXPECTED


@pytest.mark.parametrize("point", ["dataflow.start.fenced", "dataflow.recover.before"])
def test_a_start_that_stood_still_does_not_take_the_job_from_the_next_one(broker, tmp_path, point):
    """Where checkpoints lie at a URL no lock keeps it out."""
    fill(broker)
    directory = f"file://{tmp_path}/checkpoints"

    def stand_still(_name: str) -> None:
        faults.disarm_all()
        claim_job(directory, "job", SystemEntropy(), is_new=False)
        declare_dead(broker)

    faults.arm(point, stand_still)
    with pytest.raises(PreconditionError, match="was claimed under a newer epoch, 2; this coordinator has epoch 1"):
        engine.run(job(broker), name="job", settings=FlowSettings(checkpoint=CheckpointSettings(directory=directory)))


def test_a_start_that_is_fenced_again_and_again_says_so(broker, tmp_path):
    fill(broker)
    faults.arm("dataflow.recover.before", lambda _name: declare_dead(broker))
    with pytest.raises(FencedError, match="taken for dead"):
        engine.run(job(broker), name="job", settings=settings(tmp_path))


def test_without_exactness_rows_are_there_at_once(broker):
    engine.run([Sink(inputs=(table_source(rows(*ROWS[:5])),), connector=TopicSink("out", broker))])
    assert [row["value"] for row in read(broker)] == list(range(5))


def test_poison_goes_to_the_side_with_its_offset(broker):
    fill(
        broker, partitions=1, values=[b'{"key": "a", "value": 1, "time": 1}', b"{nonsense", b'{"value": 2, "time": 2}']
    )
    with pytest.raises(OperatorFailedError, match="1 rows cannot be read"):
        engine.run([collect(source(broker))])
    good = source(broker, on_error=OnError.SIDE)
    report = engine.run([collect(good), collect(SideOutput(inputs=(good,), tag="errors"), "errors")])
    assert report.tables["out"]["value"].to_pylist() == [1, 2]
    assert report.tables["errors"].select(["split", "offset", "value"]).to_pylist() == [
        {"split": "0", "offset": 1, "value": b"{nonsense"}
    ]


def test_traces_and_event_times_are_carried_through(broker):
    headers = make_headers(
        {
            "x-shoal-trace-id": pa.array([b"t1", None, b"t3"]),
            "x-shoal-event-time": pa.array([b"11", b"12", b"13"]),
        },
        3,
    )
    values = [json.dumps({"key": "a", "value": each, "time": each}).encode() for each in range(3)]
    fill(broker, partitions=1, values=values, headers=headers)
    moved = custom(source(broker, time=EventTime()), Multiply)
    engine.run([Sink(inputs=(moved,), connector=TopicSink("out", broker))])
    with topics_of(broker) as topics, topics.reader() as reader:
        reader.assign({TopicPartition("out", 0): 0})
        (fetched,) = reader.read(timeout=1.0)
    assert trace_ids(fetched.batch).to_pylist() == [b"t1", None, b"t3"]
    assert fetched.batch["timestamp"].to_pylist() == [11, 12, 13]
    assert [json.loads(value)["value"] for value in fetched.batch["value"].to_pylist()] == [0, 2, 4]


def test_a_topic_read_from_its_end_loses_nothing_over_a_restart(broker, tmp_path):
    fill(broker, values=[b'{"key": "old", "value": 0, "time": 0}'])
    plan = [
        Sink(
            inputs=(source(broker, start="latest", bounded=False, time=None),),
            connector=TopicSink("out", broker),
            uid="out",
        )
    ]
    flow = engine.start(plan, name="job", settings=settings(tmp_path))
    flow.stop()
    fill(broker)
    flow = engine.start(plan, name="job", settings=settings(tmp_path, interval=0.02))
    _wait_for(lambda: len(read(broker)) >= len(ROWS))
    flow.stop()
    assert sorted(row["value"] for row in read(broker)) == list(range(200))


def _wait_for(condition) -> None:
    import time

    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- the writer by itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_writer_that_cannot_be_opened_gives_its_connection_back(broker, exactly_once):
    context = SinkContext("job", "out", 0, 1, SystemClock(), exactly_once=exactly_once)
    with pytest.raises(InvalidError):
        TopicSink("no name", broker).open_writer(None, context)
    assert broker not in brokers._open


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_writer_that_fails_while_it_is_closed_gives_its_connection_back(broker, exactly_once, monkeypatch):
    context = SinkContext("job", "out", 0, 1, SystemClock(), exactly_once=exactly_once)
    writer = TopicSink("out", broker).open_writer(None, context)
    writer.write(rows(("a", 1, 1)))
    inner = writer._current if exactly_once else writer._writer
    monkeypatch.setattr(inner, "close", _Failing(inner.close))
    with pytest.raises(UnavailableError, match="as it was closed"):
        writer.close()
    assert broker not in brokers._open


class _Failing:
    def __init__(self, call) -> None:
        self.call = call

    def __call__(self) -> None:
        self.call()
        raise UnavailableError("the broker went away as it was closed")

"""What a topic knows of a record as columns of its rows, for every codec and every choice of facts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.topics.brokers import add_settings, topics_of
from shoal.dataflow.connectors.topics.metadata import TYPES
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.expressions.trees import col
from shoal.topics.base import records
from shoal.topics.codecs import codec
from shoal.topics.kafka import KafkaSettings
from shoal.topics.kafka.interface import interface
from tests.services.kafka import KafkaBroker, kafka_broker

pytestmark = pytest.mark.integration

__all__ = ["kafka_broker"]

SCHEMA = {"json": {"n": "int64"}, "raw": {"value": "binary"}, "string": {"value": "string"}, "arrow": {"n": "int64"}}
COUNT = 7


@pytest.fixture
def broker(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def fill(broker: str, name: str, topic: str = "t") -> None:
    """Records with keys, times and headers, over two partitions."""
    rows = pa.RecordBatch.from_pydict({"n": list(range(COUNT))})
    values = (
        codec(name).encode(rows).values.to_pylist()
        if name == "json"
        else [codec("arrow").encode(rows.slice(each, 1)).values[0].as_py() for each in range(COUNT)]
        if name == "arrow"
        else [str(each).encode() for each in range(COUNT)]
    )
    batch = records(
        values,
        keys=[f"k{each}".encode() for each in range(COUNT)],
        timestamps=[1_700_000_000_000_000 + each * 1_000 for each in range(COUNT)],
        headers=[{"source": str(each).encode()} for each in range(COUNT)],
    )
    with topics_of(broker) as topics:
        topics.create(topic, partitions=2)
        with topics.writer() as writer:
            writer.append(topic, batch, partition=pa.array([each % 2 for each in range(COUNT)]))
            writer.flush()


def expected(number: int) -> dict[str, Any]:
    return {
        "key": f"k{number}".encode(),
        "partition": number % 2,
        "offset": number // 2,
        "timestamp": 1_700_000_000_000_000 + number * 1_000,
        "headers": [("source", str(number).encode())],
    }


def found(table: Any, fact: str) -> list[Any]:
    column = table.column(f"record_{fact}")
    assert column.type == TYPES[fact]
    return (column.cast(pa.int64()) if fact == "timestamp" else column).to_pylist()


CHOICES = [chosen for count in (1, 2, 5) for chosen in itertools.combinations(TYPES, count)]


@pytest.mark.parametrize("name", SCHEMA)
@pytest.mark.parametrize("chosen", CHOICES, ids="-".join)
def test_facts_of_records_are_columns(broker, name, chosen):
    fill(broker, name)
    stream = Stream.from_kafka(
        broker, "t", "g", schema=SCHEMA[name], codec_type=name, bounded=True, metadata=chosen
    )  # fmt: skip
    alone = stream.select(*(col(f"record_{fact}") for fact in chosen))  # the values are not looked at
    order = "value" if name in {"raw", "string"} else "n"
    table = stream.collect().sort_by(order)
    assert table.column_names == [order, *(f"record_{fact}" for fact in chosen)]
    for fact in chosen:
        assert found(table, fact) == [expected(number)[fact] for number in range(COUNT)]
        assert sorted(map(str, found(alone.collect(), fact))) == sorted(str(expected(n)[fact]) for n in range(COUNT))


@pytest.mark.parametrize("native", [True, False], ids=["C interface", "Python interface"])
@pytest.mark.parametrize("name", ["json", "raw"])
def test_facts_of_records_on_kafka_are_columns(kafka_broker: KafkaBroker, name, native):
    broker = f"kafka://native-{native}@{kafka_broker.address}"
    add_settings({broker: KafkaSettings(kafka_broker.address, native=native)})
    topic = f"facts-{SystemEntropy().token(8)}"
    fill(broker, name, topic)
    with topics_of(broker) as topics:
        assert (topics._settings.native, interface().binding is not None) == (native, True)
    stream = Stream.from_kafka(
        broker, topic, "g", schema=SCHEMA[name], codec_type=name, bounded=True, metadata=list(TYPES)
    )
    order = "n" if name == "json" else "value"
    table = stream.collect().sort_by(order)
    for fact in TYPES:
        assert found(table, fact) == [expected(number)[fact] for number in range(COUNT)]


def test_columns_may_have_names_of_ones_own_and_are_found_without_a_schema(broker):
    fill(broker, "json")
    stream = Stream.from_kafka(broker, "t", "g", bounded=True, metadata={"offset": "position", "partition": "part"})
    rows = stream.filter(col("part") == 1).collect().to_pylist()
    assert sorted((row["n"], row["position"]) for row in rows) == [(1, 0), (3, 1), (5, 2)]


def test_a_record_that_is_poison_leaves_the_facts_of_the_others_in_place(broker):
    fill(broker, "json")
    with topics_of(broker) as topics, topics.writer() as writer:
        writer.append("t", records([b"{", b'{"n": 7}'], keys=[b"bad", b"k7"]), partition=1)
        writer.flush()
    stream = Stream.from_kafka(broker, "t", "g", schema={"n": "int64"}, bounded=True, on_error="skip",
                               metadata=["key", "offset"])  # fmt: skip
    rows = {row["n"]: row for row in stream.collect().to_pylist()}
    assert rows[7] == {"n": 7, "record_key": b"k7", "record_offset": 4}
    assert rows[5]["record_key"] == b"k5"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (["ofset"], "records have key, partition, offset"),
        ({"offset": "n"}, "column of the values already"),
        ({"offset": "x", "key": "x"}, "named once"),
        ({"offset": "__time"}, "beginning with __"),
        ({"offset": ""}, "must name a column"),
    ],
)
def test_what_cannot_be_is_refused_with_the_line(metadata, words):
    with pytest.raises(PlanError, match=words) as caught:
        Stream.from_kafka("./nowhere", "t", "g", schema={"n": "int64"}, metadata=metadata)
    assert "test_topic_metadata.py" in str(caught.value.at)


def test_a_sampled_column_of_the_same_name_is_refused(broker):
    fill(broker, "json")
    with pytest.raises(InvalidError, match="column of the values already"):
        Stream.from_kafka(broker, "t", "g", bounded=True, metadata={"offset": "n"}).collect()

"""Positions of complete checkpoints are committed to the group of a source, and never read back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from shoal import Stream
from shoal.core.entropy import SystemEntropy
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.testing.streams import Recording, RecordingSink
from shoal.topics.base import TopicPartition
from tests.integration.dataflow.test_topics import ROWS, fill
from tests.services.kafka import KafkaBroker, kafka_broker
from tests.unit.dataflow.execution.flows import SCHEMA

pytestmark = pytest.mark.integration

__all__ = ["kafka_broker"]


class Place:
    """A topic and a group of one test."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.topic = f"in-{SystemEntropy().token(8)}"
        self.group = f"group-{SystemEntropy().token(8)}"
        self.recording = Recording()
        fill(broker, self.topic)

    def run(self, group: str | None = None, *, has_checkpoints: bool = True) -> None:
        """Until another set of rows is visible; then it is stopped."""
        wanted = len(self.recording.rows) + len(ROWS)
        source = TopicSource(self.topic, self.broker, self.group if group is None else group, schema=SCHEMA)
        stream = Stream.from_source(source, schema=SCHEMA).uid("in").filter(lambda batch: batch["value"].is_valid())
        checkpoint = CheckpointSettings(directory=str(self.folder / "checkpoints"), interval=0.05)
        flow = engine.start(
            [stream.to_sink(RecordingSink(self.recording)).uid("out").node],
            name="offsets",
            parallelism=2,
            settings=FlowSettings(checkpoint=checkpoint if has_checkpoints else None),
        )
        try:
            while len(self.recording.rows) < wanted and not flow.is_done:
                threading.Event().wait(0.01)
            flow.stop()
        finally:
            flow.abort()

    def committed(self) -> dict[TopicPartition, int]:
        with topics_of(self.broker) as topics:
            return topics.committed(self.group)

    def ends(self) -> dict[TopicPartition, int]:
        with topics_of(self.broker) as topics:
            return topics.next_offsets(topics.describe(self.topic).topic_partitions())


@pytest.fixture(params=["local", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(str(tmp_path / "log"), tmp_path)
    broker: KafkaBroker = request.getfixturevalue("kafka_broker")
    return Place(broker.address, tmp_path)


def test_the_group_shows_how_far_a_job_has_read(place: Place) -> None:
    place.run()
    assert place.committed() == place.ends()
    assert len(place.recording.rows) == len(ROWS)


def test_a_job_never_reads_them_back(place: Place) -> None:
    place.run()
    with topics_of(place.broker) as topics:
        topics.store_offsets(place.group, dict.fromkeys(place.ends(), 0))
    fill(place.broker, place.topic)
    place.run()
    assert len(place.recording.rows) == 2 * len(ROWS)  # those since the checkpoint, and no others
    assert sorted(row["value"] for row in place.recording.rows) == sorted(value for _key, value, _time in ROWS * 2)
    assert place.committed() == place.ends()


def test_without_a_group_or_checkpoints_nothing_is_committed(place: Place) -> None:
    place.run(group="")
    place.run(has_checkpoints=False)
    assert place.committed() == {}


def test_a_group_with_members_is_left_alone_and_the_job_goes_on(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with topics_of(place.broker) as topics, topics.member(place.group, [place.topic]) as member:
        while not member.poll(1.0).partitions:
            pass
        place.run()
    assert len(place.recording.rows) == len(ROWS)
    assert place.committed() == {}
    assert [each for each in caplog.messages if "cannot be committed" in each]

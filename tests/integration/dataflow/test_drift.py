"""On catch-up no partition is read far ahead of another in event time, so that windows do not pile up."""

from __future__ import annotations

import json
import threading

import pytest

from shoal.dataflow.connectors.memory import CallbackSink
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.logical import Sink, Source
from shoal.dataflow.settings import FlowSettings
from shoal.topics.base import records
from tests.unit.dataflow.execution.flows import MICROS, SCHEMA, window_sums

pytestmark = pytest.mark.integration

SECOND = 1_000_000


def fill(broker: str, *, dense: int, sparse: int) -> None:
    """Two partitions over the same hours: one has a row each second, of the other a row has many times the bytes."""
    with topics_of(broker) as topics:
        topics.create("in", partitions=2)
        with topics.writer() as writer:
            for partition, count in ((0, dense), (1, sparse)):
                step = dense // count
                rows = [
                    {"key": "k" * (1 if step == 1 else 500), "value": 1, "time": at * step * SECOND}
                    for at in range(count)
                ]
                writer.append("in", records([json.dumps(row).encode() for row in rows]), partition=partition)
            writer.flush()


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("drift", [60.0, 0.0])
def test_the_distance_between_partitions_is_bounded(tmp_path, bounded, drift):
    broker = str(tmp_path / "log")
    fill(broker, dense=4000, sparse=4000 // 2)
    newest = {"0": 0, "1": 0}
    most = 0

    class Watching(TopicSource):
        """The source, with a look at what its reader gives."""

        def open_reader(self, splits, schema, *, clock):
            reader = super().open_reader(splits, schema, clock=clock)
            fetch = reader.fetch

            def watched(*, max_rows: int, timeout: float):
                nonlocal most
                found = fetch(max_rows=min(max_rows, 20), timeout=timeout)
                if found is not None and found.batch.num_rows:
                    newest[found.split.name] = max(found.batch["time"].to_pylist())
                    if max(newest.values()) < 3900 * SECOND:
                        most = max(most, abs(newest["0"] - newest["1"]) // SECOND)
                return found

            reader.fetch = watched
            return reader

    source = Source(connector=Watching("in", broker, schema=SCHEMA, bounded=bounded), schema=SCHEMA, time=MICROS)
    seen: list[int] = []
    sink = Sink(inputs=(window_sums(source),), connector=CallbackSink(make_ref(lambda batch: seen.append(1))))
    flow = engine.start([sink], settings=FlowSettings(batch_rows=20, split_drift=drift))
    if bounded:
        flow.wait(60)
    else:
        while flow.metrics().steps[0].rows < 6000:
            assert not flow.is_done
            threading.Event().wait(0.01)
        flow.stop(timeout=60)
    assert flow.metrics().steps[0].rows == 6000  # nothing is left unread
    # A partition that reads 20 seconds at a time beside one that reads 40 runs away without a bound.
    assert (most <= 60 + 2 * 40) == bool(drift)

"""A windowed job on topics, as a process of its own: `python windowed_job.py BROKER CHECKPOINTS PARALLELISM`.

Reads the topic `in` to its end, sums by key and window, and writes the topic `out` once. Fault points are armed by
the environment. Ends with 0 when everything is done.
"""

from __future__ import annotations

import sys
import time

from shoal.core import faults
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import EventTime, Sink, Source
from shoal.dataflow.operators.base import StepOperator
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import SCHEMA, custom, window_sums


class Slow(StepOperator):
    """Takes its time, so that there are several checkpoints before the end."""

    def process(self, batch, out, *, port=0):
        time.sleep(0.01)
        out.emit(batch)


def main(broker: str, checkpoints: str, parallelism: str, suffix: str = "") -> None:
    """Run it."""
    faults.arm_from_environment()
    connector = TopicSource(f"in{suffix}", broker, schema=SCHEMA, bounded=True)
    source = Source(connector=connector, schema=SCHEMA, time=EventTime("time", unit="us"))
    sink = Sink(
        inputs=(window_sums(custom(source, Slow)),), connector=TopicSink(f"out{suffix}", broker, key="key"), uid="out"
    )
    # Small batches and many checkpoints: the process dies in the middle of its work, not at its end.
    settings = FlowSettings(
        batch_rows=8, checkpoint=CheckpointSettings(directory=checkpoints, interval=0.02, min_pause=0.0)
    )
    engine.run([sink], name=f"job{suffix}", parallelism=int(parallelism), settings=settings)


if __name__ == "__main__":
    main(*sys.argv[1:])

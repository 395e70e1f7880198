"""A job over child processes, as a process of its own: `python -m tests.integration.dataflow.process_job BROKER DIR N`.

Reads the topic `in` to its end, sums by key and window, and writes the topic `out` and files once. With `N` 0 tasks are
threads. Fault points of host n in epoch m are armed by the environment, `SHOAL_FAULTS_HOST_n_EPOCH_m`; those of the
coordinator as usual. With `SHOAL_TEST_ZOMBIE` a host that is stopped is not killed, and wakes up in the next epoch.
Prints a line when it runs, and how often it recovered at its end.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from shoal.core import faults
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.connectors.files.sinks import JsonLinesSink
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Node
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.integration.dataflow.zombies import Zombies
from tests.unit.dataflow.execution.flows import SCHEMA


def slowly(batch: Any) -> Any:
    """Takes its time, so that there are several checkpoints before the end."""
    time.sleep(float(os.environ.get("SHOAL_TEST_SLEEP", "0.02")))
    return batch


def plan(broker: str, directory: str, suffix: str = "") -> list[Node]:
    """Two sinks, behind an exchange by key."""
    source = TopicSource(f"in{suffix}", broker, schema=SCHEMA, bounded=True)
    rows = Stream.from_source(source, schema=SCHEMA, event_time="time", time_unit="us").map(slowly, schema=SCHEMA)
    sums = rows.group_by("key").window(tumbling(seconds=0.00001)).sum("value").uid("sums")
    return [
        _named(sums.to_sink(TopicSink(f"out{suffix}", broker, key="key")).node, "topic"),
        _named(sums.to_sink(JsonLinesSink(f"{directory}/files")).node, "files"),
    ]


def _named(node: Node, uid: str) -> Node:
    return replace(node, uid=uid)


def main(broker: str, directory: str, processes: str, suffix: str = "") -> None:
    """Run it."""
    faults.arm_from_environment()
    zombies = Zombies(pytest.MonkeyPatch()) if "SHOAL_TEST_ZOMBIE" in os.environ else None
    settings = FlowSettings(
        batch_rows=8,
        checkpoint=CheckpointSettings(directory=f"{directory}/checkpoints", interval=0.1, min_pause=0.0),
    )
    flow = engine.start(
        plan(broker, directory, suffix),
        name=f"job{suffix}",
        parallelism=2,
        settings=settings,
        processes=int(processes),
    )
    print("running", flush=True)
    try:
        if zombies is not None:
            zombies.wake(flow)
        flow.wait()
    except BaseException:
        flow.abort()
        raise
    print(f"recovered {flow.recoveries}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

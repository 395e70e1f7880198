"""The programs that are measured as jobs: plans, and apps over topics.

    python -m bench.jobs.flows ROWS FOLDER

runs the windowed sum in two child processes of this one, as `shoal run --processes 2` does, and prints what
`bench.jobs.rows.read_marks` finds.
"""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.dataflow.kafka_job import SCHEMA
from bench.dataflow.memory import WINDOW_SECONDS
from bench.jobs.rows import MarkedSource, StateSource, read_marks
from shoal import App, CheckpointSettings, FlowSettings, Stream, col, tumbling
from shoal.dataflow.connectors.topics.endpoints import TopicSink
from shoal.dataflow.execution import engine

#: Seconds from one checkpoint to the next.
INTERVAL = 1.0


def settings_in(folder: Path) -> FlowSettings:
    """Checkpoints every second, and sinks that are exact."""
    return FlowSettings(checkpoint=CheckpointSettings(directory=str(folder / "checkpoints"), interval=INTERVAL))


def windowed_sum(source: MarkedSource, folder: Path) -> list[Any]:
    """The sum of each key in windows of 10 s behind a hash exchange, into Parquet files."""
    rows = Stream.from_source(source, event_time="ts").group_by("key").window(tumbling(seconds=WINDOW_SECONDS))
    return [rows.aggregate({"total": ("v", "sum")}).uid("sums").to_parquet(str(folder / "sums")).node]


def large_state(keys: int, broker: str, topic: str, folder: Path) -> list[Any]:
    """A window of a day that holds every key, and beside it the rows that came now and then, into a topic."""
    rows = Stream.from_source(StateSource(keys), event_time="time")
    sums = rows.group_by("key").window(tumbling(days=1)).aggregate({"total": ("v", "sum")}).uid("sums")
    live = rows.filter(col("due") > 0).select("id", "due")
    return [sums.to_parquet(str(folder / "sums")).node, live.to_sink(TopicSink(topic, broker)).node]


def make_records(broker: str, source: str, targets: tuple[str, str], directory: str) -> App:
    """The same function of a record as an agent of the old form, and as a dataflow."""
    app = App("bench-records", broker=broker, data_dir=directory, checkpoint_interval=timedelta(seconds=INTERVAL))
    app.topic(source, schema=SCHEMA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        app.agent(source, "agent", sink=targets[0])(fee_of)
    app.dataflow("dataflow")(
        lambda: Stream.from_kafka(source, schema=SCHEMA).with_columns(fee=col("amount") * 0.03).to_kafka(targets[1])
    )
    return app


async def fee_of(row: Any) -> Any:
    """A record with one value more."""
    return {"id": row["id"], "fee": row["amount"] * 0.03}


def main(rows: int, folder: Path) -> None:
    """Run, and print when it began to read and when it was through."""
    engine.run(
        windowed_sum(MarkedSource(rows, 2, str(folder)), folder),
        name="bench",
        parallelism=2,
        settings=settings_in(folder),
        processes=2,
    )
    print(json.dumps(read_marks(folder)))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

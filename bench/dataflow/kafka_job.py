"""Our side of the jobs through topics: JSON or Arrow from a topic, a filter, the same to another. Run as a program.

    python -m bench.dataflow.kafka_job BROKER INPUT OUTPUT DIRECTORY CODEC [--exactly-once] [--interval SECONDS]
        [--processes N]

Until it is told to stop. `BROKER` is host:port, or the directory of a local log. `--interval` is from one checkpoint to
the next.
"""

from __future__ import annotations

import argparse
from datetime import timedelta

import pyarrow as pa

from shoal import App, Stream, col

LIMIT = 1000
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("user", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("ts", pa.int64()),
        pa.field("note", pa.string()),
    ]
)


def make_app(
    broker: str,
    source: str,
    target: str,
    directory: str,
    codec: str = "json",
    *,
    exactly_once: bool = False,
    interval: float = 1.0,
) -> App:
    """An app of one dataflow, with its own checkpoints below a directory."""
    app = App(
        f"bench-{source}",
        broker=broker,
        data_dir=directory,
        exactly_once=exactly_once,
        checkpoint_interval=timedelta(seconds=interval),
    )

    def define() -> object:
        rows = Stream.from_kafka(source, schema=SCHEMA, codec_type=codec).filter(col("amount") > float(LIMIT))
        return rows.to_kafka(target, codec_type=codec)

    app.dataflow("filter")(define)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("broker", "source", "target", "directory", "codec"):
        parser.add_argument(name)
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=0)
    given = vars(parser.parse_args())
    count = given.pop("processes")
    make_app(**given).run(parallelism=max(1, count), processes=count)

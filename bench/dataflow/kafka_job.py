"""Our side of the jobs through topics: JSON or Arrow from a topic, a filter, the same to another. Run as a program.

    python -m bench.dataflow.kafka_job BROKER INPUT OUTPUT DIRECTORY CODEC [exactly-once]

Until it is told to stop. `BROKER` is host:port, or the directory of a local log.
"""

from __future__ import annotations

import sys

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
    broker: str, source: str, target: str, directory: str, codec: str = "json", *, exactly_once: bool = False
) -> App:
    """An app of one dataflow, with its own checkpoints below a directory. A checkpoint begins every second."""
    app = App(f"bench-{source}", broker=broker, data_dir=directory, exactly_once=exactly_once)

    def define() -> object:
        rows = Stream.from_kafka(source, schema=SCHEMA, codec_type=codec).filter(col("amount") > float(LIMIT))
        return rows.to_kafka(target, codec_type=codec)

    app.dataflow("filter")(define)
    return app


if __name__ == "__main__":
    given = sys.argv[1:6]
    make_app(*given, exactly_once=sys.argv[6:] == ["exactly-once"]).run()

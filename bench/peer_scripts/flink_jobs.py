"""The peer Flink SQL: rows that are made in memory, and JSON from a topic to another, with object reuse.

    flink_jobs.py map_filter ROWS        rows per second
    flink_jobs.py tumbling ROWS [2]      the sum of 1,000 keys in windows of 10 s; with a parallelism of 2 it has
                                         checkpoints every second
    flink_jobs.py kafka BROKER INPUT PARALLELISM:OUTPUT[:exactly-once] ...

Its rows come from its sequence of numbers, the quickest source that it has, and are made of them by expressions. Jobs
run one after the other in one machine (JVM), so that all but the first find it warm. Planning does not count: a job is
timed from when it was submitted to its end.
"""

# Its packages are installed in an environment of its own, so that here nothing is known of their types.
# mypy: ignore-errors

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import Schema, StreamTableEnvironment

JARS = Path(sys.prefix) / "jars"
KEYS = 1000
LIMIT = 1000.0
FEE = 0.03
FIRST = 1_700_000_000_000
KEY = f"CAST(1000000 + MOD(f0 * 7919, {KEYS}) AS STRING)"
#: How many rows are worked on before it counts, as a share.
WARM = 4


def environment(parallelism: int, *, checkpoints: bool) -> tuple[StreamExecutionEnvironment, StreamTableEnvironment]:
    """One that runs its jobs in this process' own JVM."""
    settings = Configuration()
    settings.set_string("pipeline.object-reuse", "true")
    settings.set_string("parallelism.default", str(parallelism))
    settings.set_string("pipeline.jars", ";".join(path.as_uri() for path in JARS.glob("*.jar")))
    if checkpoints:
        settings.set_string("execution.checkpointing.interval", "1s")
    stream = StreamExecutionEnvironment.get_execution_environment(settings)
    return stream, StreamTableEnvironment.create(stream)


def make_rows(rows: int, parallelism: int) -> StreamTableEnvironment:
    """Rows as ours: an id, a moment (a row a millisecond), one of the keys and a value from 0 to 2,000."""
    stream, tables = environment(parallelism, checkpoints=parallelism > 1)
    source = NumberSequenceSource(0, rows - 1)
    numbers = stream.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", type_info=Types.LONG())
    schema = (
        Schema.new_builder()
        .column("f0", "BIGINT")
        .column_by_expression("ts", f"TO_TIMESTAMP_LTZ({FIRST} + f0, 3)")
        .column_by_expression("k", KEY)
        .column_by_expression("v", "CAST(MOD(f0 * 104729, 2000) AS DOUBLE)")
        .watermark("ts", "ts")
        .build()
    )
    tables.create_temporary_view("numbers", numbers, schema)
    return tables


def timed(rows: int, job: str, parallelism: int) -> float:
    """Seconds that a job takes."""
    tables = make_rows(rows, parallelism)
    if job == "map_filter":
        columns = "id BIGINT, ts TIMESTAMP_LTZ(3), k STRING, v DOUBLE, fee DOUBLE"
        query = f"SELECT f0, ts, k, v, v * {FEE}e0 FROM numbers WHERE v > {LIMIT}e0"
    else:
        columns = "k STRING, begins TIMESTAMP(3), total DOUBLE"
        query = (
            "SELECT k, window_start, SUM(v) FROM TABLE(TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '10' SECOND)) "
            "GROUP BY k, window_start, window_end"
        )
    tables.execute_sql(f"CREATE TEMPORARY TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')")
    submitted = tables.execute_sql(f"INSERT INTO nowhere {query}")
    began = time.perf_counter()
    submitted.wait()
    return time.perf_counter() - began


def kafka(broker: str, source: str, targets: list[str]) -> None:
    """JSON to JSON, once for each target."""
    columns = "id BIGINT, `user` STRING, amount DOUBLE, ts BIGINT, note STRING"
    for number, target in enumerate(targets):
        parallelism, topic, *rest = target.split(":")
        _stream, tables = environment(int(parallelism), checkpoints=True)
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE source ({columns}) WITH ('connector' = 'kafka', 'topic' = '{source}', "
            f"'properties.bootstrap.servers' = '{broker}', 'properties.group.id' = 'flink-{number}', "
            "'format' = 'json', 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset')"
        )
        guarantee = (
            f"'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'flink-{number}', "
            "'properties.transaction.timeout.ms' = '600000'"
            if rest == ["exactly-once"]
            else "'sink.delivery-guarantee' = 'at-least-once'"
        )
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE target ({columns}) WITH ('connector' = 'kafka', 'topic' = '{topic}', "
            f"'properties.bootstrap.servers' = '{broker}', 'format' = 'json', 'properties.linger.ms' = '5', "
            f"'properties.batch.size' = '1000000', {guarantee})"
        )
        tables.execute_sql(f"INSERT INTO target SELECT * FROM source WHERE amount > {LIMIT}e0").wait()


def main(arguments: list[str]) -> None:
    """Measure, or run."""
    if arguments[0] == "kafka":
        kafka(arguments[1], arguments[2], arguments[3:])
        return
    job, rows, parallelism = arguments[0], int(arguments[1]), int((*arguments[2:], "1")[0])
    timed(rows // WARM, job, parallelism)
    print(json.dumps({"rate": rows / timed(rows, job, parallelism)}))


if __name__ == "__main__":
    main(sys.argv[1:])

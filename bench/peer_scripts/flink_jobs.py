"""The peer Flink SQL: rows that are made in memory, and JSON from a topic to another, with object reuse.

    flink_jobs.py map_filter ROWS        rows per second
    flink_jobs.py tumbling ROWS [2]      the sum of 1,000 keys in windows of 10 s; with a parallelism of 2 it has
                                         checkpoints every second
    flink_jobs.py nexmark QUERY EVENTS   events that the query reads per second, with a parallelism of 2 and checkpoints
                                         every second
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
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import Schema, StreamTableEnvironment

JARS = Path(sys.prefix) / "jars"
#: For checkpoints; it is removed when this program ends.
FOLDER = tempfile.TemporaryDirectory(prefix="flink-checkpoints-")
KEYS = 1000
LIMIT = 1000.0
FEE = 0.03
FIRST = 1_700_000_000_000
KEY = f"CAST(1000000 + MOD(f0 * 7919, {KEYS}) AS STRING)"
#: How many rows are worked on before it counts, as a share.
WARM = 4


@dataclass(frozen=True)
class View:
    """A table whose rows are made of numbers."""

    name: str
    rows: int
    #: The column with event time.
    time: str
    columns: dict[str, str]


def environment(parallelism: int, *, checkpoints: bool) -> tuple[StreamExecutionEnvironment, StreamTableEnvironment]:
    """One that runs its jobs in this process' own JVM."""
    settings = Configuration()
    settings.set_string("pipeline.object-reuse", "true")
    settings.set_string("parallelism.default", str(parallelism))
    settings.set_string("pipeline.jars", ";".join(path.as_uri() for path in JARS.glob("*.jar")))
    # A job that fails ends the measurement. By default it starts again, for ever.
    settings.set_string("restart-strategy.type", "none")
    if checkpoints:
        settings.set_string("execution.checkpointing.interval", "1s")
        # In files: the default keeps them in memory, and refuses state beyond 5 MB.
        settings.set_string("execution.checkpointing.storage", "filesystem")
        settings.set_string("execution.checkpointing.dir", Path(FOLDER.name).as_uri())
    stream = StreamExecutionEnvironment.get_execution_environment(settings)
    return stream, StreamTableEnvironment.create(stream)


def make_view(stream: StreamExecutionEnvironment, tables: StreamTableEnvironment, view: View) -> None:
    """Rows made of the numbers from 0 on."""
    source = NumberSequenceSource(0, view.rows - 1)
    numbers = stream.from_source(source, WatermarkStrategy.no_watermarks(), view.name, type_info=Types.LONG())
    schema = Schema.new_builder().column("f0", "BIGINT")
    for name, expression in view.columns.items():
        schema = schema.column_by_expression(name, expression)
    tables.create_temporary_view(view.name, numbers, schema.watermark(view.time, view.time).build())


def make_rows(rows: int, parallelism: int) -> StreamTableEnvironment:
    """Rows as ours: an id, a moment (a row a millisecond), one of the keys and a value from 0 to 2,000."""
    stream, tables = environment(parallelism, checkpoints=parallelism > 1)
    columns = {
        "ts": f"TO_TIMESTAMP_LTZ({FIRST} + f0, 3)",
        "k": KEY,
        "v": "CAST(MOD(f0 * 104729, 2000) AS DOUBLE)",
    }
    make_view(stream, tables, View("numbers", rows, "ts", columns))
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
    return until_done(tables, query)


def until_done(tables: StreamTableEnvironment, query: str) -> float:
    """Seconds from the submission of a job to its end."""
    submitted = tables.execute_sql(f"INSERT INTO nowhere {query}")
    began = time.perf_counter()
    submitted.wait()
    return time.perf_counter() - began


# ---------------------------------------------------------------------------------------------------------
# Nexmark: of each 50 events one is a person, three are auctions and 46 are bids; 5,000 events make a second. Half of
# the bids go to hot auctions, the others to recent ones.

PER_SECOND = 5
MAX_BID = """
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
"""
TENS = "TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
PRICES = """
    SELECT a.id, a.category, a.seller, a.expires, MAX(b.price) AS final
    FROM auction a JOIN bid b ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category, a.seller, a.expires
"""
AVERAGES = "COUNT(*), SUM(final), SUM(final) / COUNT(*)"
AVERAGE_COLUMNS = "auctions BIGINT, total_price BIGINT, avg_price BIGINT"
BIDS = "auction BIGINT, bidder BIGINT, price BIGINT, date_time TIMESTAMP_LTZ(3), extra STRING"
BOUNDS = "begins TIMESTAMP(3), ends TIMESTAMP(3)"
#: What each query reads, the columns of its result, and what it is.
NEXMARK = {
    "q0": (("bid",), BIDS, "SELECT auction, bidder, price, date_time, extra FROM bid"),
    "q1": (("bid",), BIDS, "SELECT auction, bidder, (price * 908 + 500) / 1000 AS price, date_time, extra FROM bid"),
    "q2": (("bid",), "auction BIGINT, price BIGINT", "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"),
    "q3": (
        ("person", "auction"),
        "name STRING, city STRING, state STRING, auction BIGINT",
        "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    ),
    "q4": (
        ("auction", "bid"),
        f"category BIGINT, {AVERAGE_COLUMNS}",
        f"SELECT category, {AVERAGES} FROM ({PRICES}) GROUP BY category",
    ),
    "q5": (
        ("bid",),
        f"{BOUNDS}, auction BIGINT, num BIGINT",
        f"SELECT c.window_start, c.window_end, c.auction, c.num FROM ({MAX_BID}) c JOIN "
        f"(SELECT MAX(num) AS most, window_start, window_end FROM ({MAX_BID}) GROUP BY window_start, window_end) m "
        "ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.most",
    ),
    "q6": (
        ("auction", "bid"),
        f"seller BIGINT, {AVERAGE_COLUMNS}",
        f"SELECT seller, {AVERAGES} FROM (SELECT *, ROW_NUMBER() OVER "
        f"(PARTITION BY seller ORDER BY expires DESC, id DESC) AS place FROM ({PRICES})) WHERE place <= 10 "
        "GROUP BY seller",
    ),
    "q7": (
        ("bid",),
        f"{BOUNDS}, auction BIGINT, bidder BIGINT, price BIGINT, extra STRING",
        "SELECT b.window_start, b.window_end, b.auction, b.bidder, b.price, b.extra "
        f"FROM (SELECT * FROM {TENS.format(table='bid')}) b JOIN (SELECT MAX(price) AS price, window_start, window_end "
        f"FROM {TENS.format(table='bid')} GROUP BY window_start, window_end) m "
        "ON b.window_start = m.window_start AND b.window_end = m.window_end AND b.price = m.price",
    ),
    "q8": (
        ("person", "auction"),
        f"id BIGINT, name STRING, {BOUNDS}",
        "SELECT p.id, p.name, p.window_start, p.window_end "
        f"FROM (SELECT id, name, window_start, window_end FROM {TENS.format(table='person')} "
        "GROUP BY id, name, window_start, window_end) p JOIN "
        f"(SELECT seller, window_start, window_end FROM {TENS.format(table='auction')} "
        "GROUP BY seller, window_start, window_end) a "
        "ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end",
    ),
}


def nexmark_views(events: int) -> dict[str, View]:
    """The three tables."""
    turns = events // 50

    def moment(event: str) -> str:
        return f"TO_TIMESTAMP_LTZ({FIRST} + ({event}) / {PER_SECOND}, 3)"

    person = {
        "id": "1000 + f0",
        "name": "'Peter Shultz ' || CAST(MOD(f0, 100) AS STRING)",
        "city": "'Portland'",
        "state": "ELT(CAST(1 + MOD(f0, 6) AS INT), 'OR', 'ID', 'CA', 'WA', 'AZ', 'WY')",
        "date_time": moment("f0 * 50"),
    }
    opened = "f0 / 3 * 50 + 1 + MOD(f0, 3)"
    auction = {
        "id": "1000 + f0",
        # Mostly one of the newest hundred persons, as somebody has to be new to sell in the same window.
        "seller": "1000 + f0 / 3 - MOD(f0 * 7919, 100)",
        "category": "10 + MOD(f0, 5)",
        "date_time": moment(opened),
        # Open for ten to twenty seconds.
        "expires": moment(f"{opened} + 50000 + MOD(f0 * 7919, 50000)"),
    }
    bid = {
        "auction": "1000 + f0 / 46 * 3 - CASE WHEN MOD(f0, 2) = 0 THEN MOD(f0 / 46 * 3, 300) "
        "ELSE MOD(f0 * 7919, 100) END",
        "bidder": "1000 + MOD(f0 * 104729, f0 / 46 + 1)",
        "price": "100 + MOD(f0 * 15485863, 999983)",
        "extra": "'quick brass lamp, a plain red chair ' || CAST(MOD(f0, 1000) AS STRING)",
        "date_time": moment("f0 / 46 * 50 + 4 + MOD(f0, 46)"),
    }
    return {
        "person": View("person", turns, "date_time", person),
        "auction": View("auction", turns * 3, "date_time", auction),
        "bid": View("bid", turns * 46, "date_time", bid),
    }


def nexmark(query: str, events: int) -> tuple[float, int]:
    """Seconds, and the events that were read."""
    stream, tables = environment(2, checkpoints=True)
    reads, columns, text = NEXMARK[query]
    views = [nexmark_views(events)[name] for name in reads]
    for view in views:
        make_view(stream, tables, view)
    tables.execute_sql(f"CREATE TEMPORARY TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')")
    return until_done(tables, text), sum(view.rows for view in views)


# ---------------------------------------------------------------------------------------------------------
# Kafka


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
    if arguments[0] == "nexmark":
        query, events = arguments[1], int(arguments[2])
        nexmark(query, events // WARM)
        seconds, read = nexmark(query, events)
        print(json.dumps({"rate": read / seconds}))
        return
    job, rows, parallelism = arguments[0], int(arguments[1]), int((*arguments[2:], "1")[0])
    timed(rows // WARM, job, parallelism)
    print(json.dumps({"rate": rows / timed(rows, job, parallelism)}))


if __name__ == "__main__":
    main(sys.argv[1:])

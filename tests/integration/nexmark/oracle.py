"""What the queries should give, in SQL, by DuckDB on the same files; and how two results are compared.

Written from the semantics alone: nothing here knows how the queries are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

TS = pa.timestamp("ms")

COLUMNS: dict[str, dict[str, Any]] = {
    "q0": {
        "auction": pa.int64(),
        "bidder": pa.int64(),
        "price": pa.int64(),
        "date_time": TS,
        "extra": pa.string(),
        "arrival": pa.int64(),
    },
    "q1": {
        "auction": pa.int64(),
        "bidder": pa.int64(),
        "price": pa.int64(),
        "date_time": TS,
        "extra": pa.string(),
    },
    "q2": {"auction": pa.int64(), "price": pa.int64()},
    "q3": {"name": pa.string(), "city": pa.string(), "state": pa.string(), "auction": pa.int64()},
    "q4": {
        "category": pa.int64(),
        "auctions": pa.int64(),
        "total_price": pa.int64(),
        "avg_price": pa.int64(),
    },
    "q5": {"window_start": TS, "window_end": TS, "auction": pa.int64(), "num": pa.int64()},
    "q6": {"seller": pa.int64(), "auctions": pa.int64(), "total_price": pa.int64(), "avg_price": pa.int64()},
    "q7": {
        "window_start": TS,
        "window_end": TS,
        "auction": pa.int64(),
        "bidder": pa.int64(),
        "price": pa.int64(),
        "date_time": TS,
        "extra": pa.string(),
    },
    "q8": {"id": pa.int64(), "name": pa.string(), "window_start": TS, "window_end": TS},
}

LATE_COLUMNS = {"stream": pa.string(), "arrival": pa.int64()}

#: The files that each query reads.
READS: dict[str, tuple[str, ...]] = {
    "q0": ("bid",),
    "q1": ("bid",),
    "q2": ("bid",),
    "q3": ("person", "auction"),
    "q4": ("auction", "bid"),
    "q5": ("bid",),
    "q6": ("auction", "bid"),
    "q7": ("bid",),
    "q8": ("person", "auction"),
}

#: Each stream with the time in milliseconds and the watermark that each row meets, which is null for the first.
_TIMED = """
    with timed as (
        select *, epoch_ms(date_time) as ms,
               max(epoch_ms(date_time)) over (order by arrival rows between unbounded preceding and 1 preceding)
                   - {lateness} as watermark
        from {stream})
"""

_FINAL = """
    with final as (
        select a.id, a.category, a.seller, a.expires, max(b.price) as price
        from auction a join bid b on b.auction = a.id and b.date_time between a.date_time and a.expires
        group by all)
"""

_QUERIES = {
    "q0": "select auction, bidder, price, date_time, extra, arrival from bid",
    "q1": "select auction, bidder, (price * 908 + 500) // 1000 as price, date_time, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id as auction
        from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "q4": _FINAL
    + """
        select category, count(*) as auctions, sum(price)::bigint as total_price,
               sum(price)::bigint // count(*) as avg_price
        from final group by category""",
    "q5": _TIMED
    + """
        , counted as (
            select start, auction, count(*) as num
            from (select auction, watermark, unnest(range(ms // 2000 * 2000 - 8000, ms + 1, 2000)) as start from timed)
            where watermark is null or start + 10000 > watermark
            group by start, auction)
        select make_timestamp_ms(start) as window_start, make_timestamp_ms(start + 10000) as window_end, auction, num
        from counted qualify num = max(num) over (partition by start)""",
    "q6": _FINAL
    + """
        , last as (
            select * from final
            qualify row_number() over (partition by seller order by expires desc, id desc) <= 10)
        select seller, count(*) as auctions, sum(price)::bigint as total_price,
               sum(price)::bigint // count(*) as avg_price
        from last group by seller""",
    "q7": _TIMED
    + """
        , counted as (
            select *, ms // 10000 * 10000 as start from timed
            where watermark is null or ms // 10000 * 10000 + 10000 > watermark)
        select make_timestamp_ms(start) as window_start, make_timestamp_ms(start + 10000) as window_end,
               auction, bidder, price, date_time, extra
        from counted qualify price = max(price) over (partition by start)""",
    "q8": """
        with marked as (
            select 'p' as kind, id as person, name, epoch_ms(date_time) as ms, arrival from person
            union all select 'a', seller, null, epoch_ms(date_time), arrival from auction),
        timed as (
            select *, max(ms) over (order by arrival rows between unbounded preceding and 1 preceding) - {lateness}
                as watermark
            from marked),
        counted as (
            select *, ms // 10000 * 10000 as start from timed
            where watermark is null or ms // 10000 * 10000 + 10000 > watermark)
        select p.person as id, p.name, make_timestamp_ms(p.start) as window_start,
               make_timestamp_ms(p.start + 10000) as window_end
        from counted p
        where kind = 'p' and exists (
            select 1 from counted a where a.kind = 'a' and a.person = p.person and a.start = p.start)""",
}

#: The last window that a row is in begins at the multiple of the slide before it, and is ten seconds long.
_LATE = (
    _TIMED
    + """
    select '{stream}' as stream, arrival from timed where ms // {slide} * {slide} + 10000 <= watermark"""
)
_LATE_OF_TWO = """
    with timed as (
        select *, max(ms) over (order by arrival rows between unbounded preceding and 1 preceding) - {lateness}
            as watermark
        from (select 'person' as stream, epoch_ms(date_time) as ms, arrival from person
              union all select 'auction', epoch_ms(date_time), arrival from auction))
    select stream, arrival from timed where ms // 10000 * 10000 + 10000 <= watermark"""


class Oracle:
    """Answers for one folder of events."""

    def __init__(self, folder: Path) -> None:
        self._database = duckdb.connect()
        self._database.execute("set threads = 2")
        for name in ("person", "auction", "bid"):
            self._database.execute(f"create view {name} as select * from read_parquet('{folder / name}.parquet')")

    def rows(self, query: str, lateness_ms: int) -> Any:
        """The result of a query as a table."""
        return self._ask(_QUERIES[query].format(lateness=lateness_ms, stream="bid"), COLUMNS[query])

    def late(self, query: str, lateness_ms: int) -> Any:
        """The rows that are late altogether."""
        if query in ("q5", "q7"):
            slide = 2000 if query == "q5" else 10_000
            text = _LATE.format(lateness=lateness_ms, stream="bid", slide=slide)
        elif query == "q8":
            text = _LATE_OF_TWO.format(lateness=lateness_ms)
        else:
            text = "select null::varchar as stream, null::bigint as arrival where false"
        return self._ask(text, LATE_COLUMNS)

    def count(self, query: str) -> int:
        """How many rows a query reads."""
        return sum(self._database.execute(f"select count(*) from {each}").fetchone()[0] for each in READS[query])

    def _ask(self, text: str, columns: dict[str, Any]) -> Any:
        table = self._database.sql(text).to_arrow_table()
        return table.select(list(columns)).cast(pa.schema(columns))


def difference(found: Any, wanted: Any, columns: dict[str, Any]) -> str:
    """What is wrong with a table of results, in words; empty when it is right. The order of rows does not matter."""
    types = {field.name: field.type for field in found.schema}
    if types != columns:
        return f"columns are {types}, not {columns}"
    database = duckdb.connect()
    database.register("found", found.select(list(columns)))
    database.register("wanted", wanted.select(list(columns)))
    more = database.execute("select * from found except all select * from wanted").fetchall()
    less = database.execute("select * from wanted except all select * from found").fetchall()
    if not more and not less:
        return ""
    return f"{len(more)} rows too many, such as {more[:3]}; {len(less)} are missing, such as {less[:3]}"

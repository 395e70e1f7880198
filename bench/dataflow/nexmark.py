"""The Nexmark queries of `examples/nexmark` over files, beside DuckDB on the same files.

Ours are run as users run them; what counts is the time from the first read to the closed output, which the program
tells. DuckDB reads the same files and writes its result to a file too, in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "nexmark"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "nexmark"
QUERIES = tuple(f"q{number}" for number in range(9))
SEED = 7
DISORDER_MS = 2000
_WITHIN = 1800.0

_PRICES = """
    SELECT a.id, a.category, a.seller, a.expires, max(b.price) AS final
    FROM auction a JOIN bid b ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires GROUP BY ALL
"""


def _windowed(size: int, time: str = "date_time") -> str:
    return f"make_timestamp({size * 1000} * (epoch_us({time}) // {size * 1000}))"


#: What DuckDB runs; the semantics are those of the example.
SQL = {
    "q0": "SELECT * FROM bid",
    "q1": "SELECT auction, bidder, (price * 908 + 500) // 1000 AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": "SELECT p.name, p.city, p.state, a.id AS auction FROM auction a JOIN person p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    "q4": f"WITH prices AS ({_PRICES}) SELECT category, count(*) AS auctions, sum(final)::BIGINT AS total_price, "
    "(sum(final) // count(*))::BIGINT AS avg_price FROM prices GROUP BY category",
    "q5": f"""
        WITH panes AS (SELECT auction, {_windowed(2000)} AS pane, count(*) AS num FROM bid GROUP BY ALL),
        counted AS (
            SELECT auction, pane - INTERVAL (2 * back) SECOND AS window_start, sum(num)::BIGINT AS num
            FROM panes, range(5) AS shift(back) GROUP BY ALL
        )
        SELECT window_start, window_start + INTERVAL 10 SECOND AS window_end, auction, num FROM counted
        QUALIFY num = max(num) OVER (PARTITION BY window_start)
    """,
    "q6": f"""
        WITH prices AS ({_PRICES}),
        newest AS (
            SELECT seller, final FROM prices
            QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10
        )
        SELECT seller, count(*) AS auctions, sum(final)::BIGINT AS total_price,
            (sum(final) // count(*))::BIGINT AS avg_price
        FROM newest GROUP BY seller
    """,
    "q7": f"""
        SELECT {_windowed(10_000)} AS window_start, {_windowed(10_000)} + INTERVAL 10 SECOND AS window_end,
            auction, bidder, price, date_time, extra
        FROM bid QUALIFY price = max(price) OVER (PARTITION BY {_windowed(10_000)})
    """,
    "q8": f"""
        SELECT DISTINCT p.id, p.name, {_windowed(10_000, "p.date_time")} AS window_start,
            {_windowed(10_000, "p.date_time")} + INTERVAL 10 SECOND AS window_end
        FROM person p JOIN auction a ON a.seller = p.id
            AND {_windowed(10_000, "p.date_time")} = {_windowed(10_000, "a.date_time")}
    """,
}


def make_events(events: int) -> Path:
    """A folder of events, made once and kept in the cache while the program that makes them stays as it is."""
    program = hashlib.sha256((EXAMPLE / "generate.py").read_bytes()).hexdigest()[:12]
    folder = CACHE / f"{events}-{SEED}-{DISORDER_MS}-{program}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        arguments = ["--events", str(events), "--seed", str(SEED), "--disorder-ms", str(DISORDER_MS)]
        command = [sys.executable, str(EXAMPLE / "generate.py"), *arguments, "--output", str(folder)]
        subprocess.run(command, check=True, timeout=_WITHIN, stdout=subprocess.DEVNULL)
        (folder / "complete").touch()
    return folder


def run_ours(query: str, folder: Path, target: Path, *, processes: int = 0) -> tuple[float, int]:
    """Seconds, and events that were read. With processes each step has as many tasks."""
    command = [sys.executable, str(EXAMPLE / "run.py"), "--query", query, "--input", str(folder)]
    command += ["--output", str(target), "--parallelism", str(max(1, processes)), "--processes", str(processes)]
    done = subprocess.run(command, check=True, timeout=_WITHIN, capture_output=True, text=True)
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return float(told["seconds"]), int(told["events"])


def run_duckdb(query: str, folder: Path, target: Path) -> float:
    """Seconds."""
    command = [sys.executable, "-m", "bench.dataflow.nexmark", query, str(folder), str(target)]
    done = subprocess.run(command, check=True, timeout=_WITHIN, capture_output=True, text=True)
    return float(json.loads(done.stdout))


def row_count(path: Path) -> int:
    """Rows of a Parquet file."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _main(query: str, folder: str, target: str) -> None:
    import duckdb

    database = duckdb.connect()
    database.execute("SET preserve_insertion_order = false")
    for name in ("person", "auction", "bid"):
        database.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{folder}/{name}.parquet')")
    began = time.perf_counter()
    database.execute(f"COPY ({SQL[query]}) TO '{target}' (FORMAT parquet)")
    print(json.dumps(time.perf_counter() - began))


if __name__ == "__main__":
    _main(*sys.argv[1:])

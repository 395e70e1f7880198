"""The events that `generate.py` writes are such as they should be."""

from __future__ import annotations

import duckdb
import pytest

from tests.integration.nexmark.harness import call, generate, script

pytestmark = pytest.mark.integration

_ALL = """
    select date_time, arrival, epoch_ms(date_time) as ms from '{0}/person.parquet'
    union all select date_time, arrival, epoch_ms(date_time) from '{0}/auction.parquet'
    union all select date_time, arrival, epoch_ms(date_time) from '{0}/bid.parquet'"""


def ask(text: str) -> tuple[object, ...]:
    return duckdb.connect().execute(text).fetchone()


def behind(folder: object) -> str:
    """How far each row is behind the newest before it."""
    window = "(order by arrival rows between unbounded preceding and 1 preceding)"
    return f"select max(ms) over {window} - ms as lag from ({_ALL.format(folder)})"


def test_the_same_arguments_give_the_same_rows(tmp_path):
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        generate(tmp_path / name, 2000, seed, 3000)
    for kind in ("person", "auction", "bid"):
        one, two, other = ((tmp_path / name / f"{kind}.parquet").read_bytes() for name in ("one", "two", "other"))
        assert one == two
        assert one != other


@pytest.mark.parametrize("disorder", [0, 1, 4000, 10_000])
def test_rows_are_out_of_order_as_far_as_was_said(tmp_path, disorder):
    folder = generate(tmp_path, 20_000, 3, disorder)
    most, exact = ask(f"select max(lag), count(*) filter (lag = {disorder}) from ({behind(folder)})")
    assert (most == disorder and exact > 50) if disorder else most <= 0


def test_what_the_events_are_like(tmp_path):
    folder = generate(tmp_path, 50_000, 4, 4000)
    counts = [ask(f"select count(*) from '{folder}/{kind}.parquet'")[0] for kind in ("person", "auction", "bid")]
    assert counts == [1000, 3000, 46_000]
    rows, arrivals = ask(f"select count(*), count(distinct arrival) from ({_ALL.format(folder)})")
    assert rows == arrivals == 50_000
    on_edge, before = ask(
        f"select count(*) filter (ms % 2000 = 0), count(*) filter (ms % 2000 = 1999) from ({_ALL.format(folder)})"
    )
    assert on_edge > 200
    assert before > 200
    gap = "select max(ms - before) from (select ms, lag(ms) over (order by ms) as before from ({}))"
    assert ask(gap.format(_ALL.format(folder)))[0] > 20_000
    joined = f"'{folder}/bid.parquet' b left join '{folder}/auction.parquet' a on a.id = b.auction"
    parts = ask(f"""
        select count(*) filter (a.id is null), count(*) filter (b.arrival < a.arrival),
               count(*) filter (b.date_time > a.expires), count(*) filter (b.date_time < a.date_time) from {joined}""")
    assert all(part > 100 for part in parts)
    hot = f"select count(*) as bids from '{folder}/bid.parquet' group by auction order by bids desc limit 60"
    assert ask(f"select sum(bids) from ({hot})")[0] > 46_000 * 0.45
    sellers = f"select seller from '{folder}/auction.parquet'"
    assert ask(f"select count(*) from '{folder}/person.parquet' where id not in ({sellers})")[0] >= 500
    nulls, beyond_ascii = ask(
        f"""select count(*) filter (extra is null), count(*) filter (strlen(extra) > length(extra))
            from '{folder}/bid.parquet'"""
    )
    assert nulls > 1000
    assert beyond_ascii > 1000


def test_rows_that_are_far_too_late(tmp_path):
    folder = generate(tmp_path, 20_000, 4, 1000, "--late-rows", "300", "--late-by-ms", "30000")
    late, between = ask(
        f"select count(*) filter (lag >= 30000), count(*) filter (lag > 1000 and lag < 29000) from ({behind(folder)})"
    )
    assert 290 <= late <= 300
    assert between == 0


def test_few_events_and_none(tmp_path):
    for events in (0, 1, 2, 49, 51):
        folder = generate(tmp_path / str(events), events, 1, 4000)
        assert ask(f"select count(*) from ({_ALL.format(folder)})")[0] == events
        assert call("--query", "q5", "--input", str(folder), "--output", str(tmp_path / "o.parquet")).status == 0


@pytest.mark.parametrize("more", [["--events", "-1"], ["--events", "x"], ["--events", "5", "--disorder-ms", "-1"]])
def test_arguments_that_cannot_be(tmp_path, capsys, more):
    with pytest.raises(SystemExit, match="2"):
        script("generate").main([*more, "--output", str(tmp_path / "events")])
    assert "error" in capsys.readouterr().err
    assert not (tmp_path / "events").exists()

"""The measuring of tables, with little of everything."""

from __future__ import annotations

import numpy as np

from bench.tables import AREA, parsing
from bench.tables.stage import make_batches, make_table, scatter
from bench.tables.steps import Scale, measure_tables

LITTLE = Scale(rows=5000, small=1000, large=8000, beside=0, batch=256, batches=3, short=64, passes=2)


def test_every_figure_is_measured() -> None:
    found = measure_tables(0, LITTLE)
    measured = [each for each in AREA.figures if each.quotient is None and not each.optional]
    of_parsing = parsing.measure_ours(parsing.Rows(64), seconds=0.01)
    assert {*found, *of_parsing} == {each.name for each in measured}
    assert all(value > 0 for value in (*found.values(), *of_parsing.values()))
    again = {*measure_tables(1, LITTLE), *of_parsing}
    assert again == {each.name for each in measured if not each.once}


def test_the_batches_are_of_ids_in_the_table() -> None:
    with make_table(2000, 4, threads=1) as table:
        assert len(table) == 2000
        for ids in make_batches(2000, 300, 4):
            table.apply(ids, np.ones((300, 4), np.float32), event_times=86_400)
        assert len(table) == 2000
        assert table.statistics().not_admitted == 0
    assert np.unique(scatter(np.arange(100_000))).size == 100_000


def test_the_ids_are_zipf() -> None:
    counts = np.sort(np.unique(np.concatenate(make_batches(10_000, 4096, 20)), return_counts=True)[1])[::-1]
    assert counts[0] > 1.5 * counts[1] > 1.5 * counts[3]
    assert counts[:10].sum() > 0.2 * counts.sum()

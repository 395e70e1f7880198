"""The measuring of tables, with little of everything."""

from __future__ import annotations

import itertools

import numpy as np

from bench.tables import AREA, parsing
from bench.tables.stage import make_batches, make_table, scatter, with_new_ids
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


def test_new_ids_pass_the_filter_of_admission() -> None:
    batches = make_batches(2000, 640, 6)
    mixed = with_new_ids(batches, 2000)
    new = [set(after[after != before].tolist()) for before, after in zip(batches, mixed, strict=True)]
    assert [len(each) for each in new] == [3, 6, 9, 9, 9, 9]
    assert [len(one & other) for one, other in itertools.pairwise(new)] == [3, 6, 6, 6, 6]
    with make_table(2000, 4, threads=1) as table:
        for ids in mixed:
            table.apply(ids, np.ones((640, 4), np.float32), event_times=86_400)
        assert len(table) == 2000 + 4 * 3  # those of the first four batches came three times
        assert table.statistics().not_admitted > 0


def test_the_ids_are_zipf() -> None:
    counts = np.sort(np.unique(np.concatenate(make_batches(10_000, 4096, 20)), return_counts=True)[1])[::-1]
    assert counts[0] > 1.5 * counts[1] > 1.5 * counts[3]
    assert counts[:10].sum() > 0.2 * counts.sum()

"""Nexmark against DuckDB over the whole range: seeds, batches, widths, disorders and sizes.

Single rows and small batches cost most. So seeds are not crossed with all the rest, but go along with it: every query
has every disorder and every seed, and every late bound every width.
"""

from __future__ import annotations

import pytest

from tests.integration.nexmark.harness import QUERIES, check, generate

pytestmark = pytest.mark.integration


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("query", "disorder_ms", "seed"),
    [
        (query, disorder_ms, (number + at) % 3)
        for number, query in enumerate(QUERIES)
        for at, disorder_ms in enumerate([0, 1, 2500, 4000, 10_000])
    ],
)
def test_disorder_within_the_bound(tmp_path, query, disorder_ms, seed):
    folder = generate(tmp_path / "events", 6000, seed, disorder_ms)
    for batch_rows, parallelism in [(1, 3), (3, 2), (64, 3), (1000, 2), (50_000, 1)]:
        place = tmp_path / f"{batch_rows}-{parallelism}"
        place.mkdir()
        options = {"batch_rows": batch_rows, "parallelism": parallelism, "lateness_ms": max(disorder_ms, 4000)}
        check(folder, place, query, **options)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("parallelism", "seed"), [(1, 0), (2, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize("query", ["q5", "q7"])
def test_disorder_beyond_the_bound(tmp_path, query, parallelism, seed):
    folder = generate(tmp_path / "events", 4000, seed, 10_000)
    for lateness_ms in (0, 1, 777, 4000, 9999):
        place = tmp_path / str(lateness_ms)
        place.mkdir()
        check(folder, place, query, batch_rows=1, parallelism=parallelism, lateness_ms=lateness_ms)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("query", "seed"), [(query, number % 3) for number, query in enumerate(QUERIES)])
def test_rows_far_beyond_the_bound(tmp_path, query, seed):
    folder = generate(tmp_path / "events", 100_000, seed, 4000, "--late-rows", "1000", "--late-by-ms", "90000")
    for batch_rows, parallelism in [(20, 3), (300, 1), (300, 2)]:
        place = tmp_path / f"{batch_rows}-{parallelism}"
        place.mkdir()
        check(folder, place, query, batch_rows=batch_rows, parallelism=parallelism)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("query", QUERIES)
def test_a_million_events(tmp_path_factory, tmp_path, query, parallelism):
    folder = tmp_path_factory.getbasetemp() / "million"
    if not folder.exists():
        generate(folder, 1_000_000, 9, 4000)
    check(folder, tmp_path, query, batch_rows=50_000, parallelism=parallelism)

"""What the processes of a job have used while they worked."""

from __future__ import annotations

import pytest

from bench.jobs.stage import Usage


def test_what_a_process_used_before_it_worked_does_not_count() -> None:
    usage = Usage(samples={1: [(0.0, 0.5), (10.0, 2.5), (20.0, 4.5)], 2: [(12.0, 0.75), (20.0, 1.5)]})
    assert usage.between(5.0, 20.0, {1: 1.5, 2: 0.5}) == pytest.approx(3.0 + 1.0)


def test_one_that_reads_nothing_counts_between_the_two_moments() -> None:
    usage = Usage(samples={3: [(0.0, 1.0), (10.0, 2.0)]})
    assert usage.between(2.5, 7.5, {}) == pytest.approx(0.5)


def test_one_that_was_not_seen_until_it_ended_costs_nothing() -> None:
    assert Usage().between(0.0, 1.0, {7: 1.0}) == 0.0

"""Bars, medians and comparisons."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import Against, Figure, at_least, at_most, judge, percentile, rounded
from shoal.core.errors import InternalError

FINITE = st.floats(min_value=1e-9, max_value=1e9)


def figure(name: str = "latency", **fields) -> Figure:
    return Figure(name, "ms", "From here to there.", **fields)


def test_the_median_and_the_spread_of_the_runs() -> None:
    (measured,) = judge([figure(bar=at_most(500))], [{"latency": 40.0}, {"latency": 10.0}, {"latency": 20.0}])
    assert measured.to_json() == {
        "name": "latency",
        "value": 20.0,
        "unit": "ms",
        "spread": 30.0,
        "bar": "<= 500 ms",
        "ok": True,
        "peer": None,
        "ratio": None,
    }


@pytest.mark.parametrize(
    ("bar", "value", "kept"),
    [
        (at_most(500), 500.0, True),
        (at_most(500), 500.01, False),
        (at_least(500), 500.0, True),
        (at_least(500), 499.99, False),
    ],
)
def test_a_bar_judges_the_value_before_it_is_rounded(bar, value, kept) -> None:
    (measured,) = judge([figure(bar=bar)], [{"latency": value}])
    assert measured.ok is kept


def test_without_a_bar_nothing_is_judged() -> None:
    (measured,) = judge([figure()], [{"latency": 1e9}])
    assert (measured.bar, measured.ok) == (None, None)


def test_a_peer_gives_the_ratio_of_the_medians() -> None:
    figures = [figure(against=Against("bare echo", "echo")), figure("echo")]
    ours, theirs = judge(figures, [{"latency": 30.0, "echo": 3.0}, {"latency": 50.0, "echo": 5.0}])
    assert (ours.peer, ours.ratio) == ("bare echo", 10.0)
    assert (theirs.peer, theirs.ratio) == (None, None)


def test_what_is_measured_once_is_missing_in_later_runs_alone() -> None:
    figures = [figure(), figure("slow", once=True)]
    fast, slow = judge(figures, [{"latency": 1.0, "slow": 30.0}, {"latency": 2.0}])
    assert (fast.spread, slow.value, slow.spread) == (1.0, 30.0, None)
    with pytest.raises(InternalError, match=r"run 1 .*slow"):
        judge(figures, [{"latency": 1.0}])


def test_what_needs_something_that_is_missing_is_left_out() -> None:
    figures = [figure(), figure("replaced", optional=True)]
    assert [each.name for each in judge(figures, [{"latency": 1.0}])] == ["latency"]
    there = judge(figures, [{"latency": 1.0, "replaced": 6.0}])
    assert [each.value for each in there] == [1.0, 6.0]
    with pytest.raises(InternalError, match=r"run 1 .*figures: latency"):
        judge(figures, [{"replaced": 6.0}])


@pytest.mark.parametrize("run", [{}, {"latency": 1.0, "stranger": 1.0}, {"latency": math.nan}, {"latency": math.inf}])
def test_a_run_has_exactly_the_declared_figures(run) -> None:
    with pytest.raises(InternalError):
        judge([figure()], [run])


def test_a_peer_that_is_not_measured_is_our_mistake() -> None:
    with pytest.raises(InternalError, match="echo"):
        judge([figure(against=Against("bare echo", "echo"))], [{"latency": 1.0}])


@given(st.lists(FINITE, min_size=1), st.floats(min_value=0.001, max_value=1.0))
def test_a_percentile_is_a_sample_that_enough_others_do_not_exceed(samples, share) -> None:
    found = percentile(samples, share)
    assert found in samples
    assert sum(each <= found for each in samples) >= share * len(samples)
    assert sum(each < found for each in samples) < share * len(samples)


def test_percentiles_by_nearest_rank() -> None:
    samples = [float(each) for each in range(1, 101)]
    assert (percentile(samples, 0.5), percentile(samples, 0.99), percentile(samples, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0


@given(FINITE)
def test_rounding_keeps_four_digits(value) -> None:
    assert rounded(value) == pytest.approx(value, rel=5.1e-4)


def test_rounding_drops_what_says_nothing() -> None:
    assert [rounded(each) for each in (0.0, 0.00123456, 12.3456, 98_765.4)] == [0.0, 0.001235, 12.35, 98_765.0]


def test_a_quotient_is_the_ratio_of_the_medians() -> None:
    figures = [figure(), figure("echo"), figure("ratio", quotient=("latency", "echo"), bar=at_least(3))]
    runs = [{"latency": 2.0, "echo": 1.0}, {"latency": 9.0, "echo": 2.0}, {"latency": 8.0, "echo": 4.0}]
    ratio = judge(figures, runs)[2]
    assert (ratio.value, ratio.spread, ratio.ok) == (4.0, 2.5, True)


def test_a_quotient_of_something_that_is_missing_is_left_out() -> None:
    figures = [figure(), figure("echo", optional=True), figure("ratio", quotient=("latency", "echo"))]
    assert [each.name for each in judge(figures, [{"latency": 2.0}])] == ["latency"]
    with pytest.raises(InternalError, match="nobody"):
        judge([figure(), figure("ratio", quotient=("latency", "nobody"))], [{"latency": 2.0}])


def test_a_missing_peer_leaves_no_ratio() -> None:
    figures = [figure(against=Against("bare echo", "echo")), figure("echo", optional=True)]
    (measured,) = judge(figures, [{"latency": 2.0}])
    assert measured.ratio is None

from __future__ import annotations

from hypothesis import given

from shoal.model.resources import Resources
from tests.strategies import values_of

amounts = values_of(Resources)


def test_what_is_missing_says_how_much() -> None:
    have, want = Resources(500, 256, 10, 1), Resources(1000, 128, 20, 1)
    assert have.missing(want) == (("cpu", 1000, 500), ("disk", 20, 10))
    assert not have.covers(want)


@given(amounts, amounts)
def test_covers_and_missing_agree(have: Resources, want: Resources) -> None:
    assert have.covers(want) == (have.missing(want) == ())
    assert have.covers(Resources())
    assert (have + want).covers(want)
    assert (have + want) - want == have


@given(amounts, amounts, amounts)
def test_two_requests_fit_together_exactly_when_their_sum_does(have: Resources, one: Resources, two: Resources) -> None:
    assert have.covers(one + two) == (have.covers(one) and (have - one).covers(two))


def test_an_amount_of_nothing_is_covered_by_less_than_nothing() -> None:
    overcommitted = Resources(100, 0, 0, 0) - Resources(200, 0, 0, 0)
    assert overcommitted.covers(Resources(memory_mb=0))
    assert not overcommitted.covers(Resources(cpu_millicores=1))

"""The check of the demo's stream finds every row that is lost, doubled or wrong, and nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clicks.audit import Came, Rules, Sent, Total, audit, count, expect, sent

RULES = Rules()
SENT: Sent = sent(1_700_000_000_000, 200)
WANTED = expect(SENT, RULES)
LATE = frozenset(number for number in WANTED if SENT.clicks[number].delay > RULES.disorder)


def right(joined: frozenset[int] = WANTED, late: frozenset[int] = frozenset()) -> Came:
    """Results in which nothing is wrong."""
    totals = [Total(ad, start, *found) for (start, ad), found in count(SENT, joined, RULES).items()]
    return Came(tuple(joined), tuple(totals), late)


def test_there_is_something_to_check() -> None:
    assert len(WANTED) > 500
    assert len(WANTED) < len(SENT.clicks)
    assert 0 < len(LATE) < len(WANTED) / 10


def test_right_results_are_right() -> None:
    assert audit(SENT, right(), RULES).good
    assert str(audit(SENT, right(), RULES)) == "nothing"


def test_a_late_click_may_be_missing_if_it_was_put_aside() -> None:
    assert audit(SENT, right(WANTED - LATE, LATE), RULES).good
    assert audit(SENT, right(WANTED - LATE), RULES).lost == tuple(sorted(LATE))
    # An event that was sent twice may stand in `late` for its second time, though its first was counted.
    assert audit(SENT, right(WANTED, LATE), RULES).good


@given(st.sampled_from(sorted(WANTED - LATE)))
def test_a_lost_row_is_found_also_if_it_is_called_late(number: int) -> None:
    found = audit(SENT, right(WANTED - {number}, LATE | {number}), RULES)
    assert found.lost == (number,)
    assert not found.good


@given(st.sampled_from(sorted(WANTED)))
def test_a_doubled_row_is_found(number: int) -> None:
    came = right()
    found = audit(SENT, replace(came, joined=(*came.joined, number)), RULES)
    assert found.doubled == (number,)
    assert str(found) == "1 doubled"


@given(st.sampled_from(sorted(SENT.clicks.keys() - WANTED)))
def test_a_row_that_should_not_be_is_found(number: int) -> None:
    assert audit(SENT, right(WANTED | {number}), RULES).invented == (number,)


@pytest.mark.parametrize("where", [0, 7, -1])
@pytest.mark.parametrize("shown", [-1, 0, 1])
@pytest.mark.parametrize("clicked", [-1, 0, 1])
def test_a_total_that_is_off_is_found(where: int, shown: int, clicked: int) -> None:
    came = right()
    totals = list(came.totals)
    totals[where] = replace(totals[where], shown=totals[where].shown + shown, clicked=totals[where].clicked + clicked)
    assert audit(SENT, replace(came, totals=totals), RULES).good == (shown == clicked == 0)


def test_a_window_that_is_missing_or_there_twice_is_found() -> None:
    came = right()
    assert len(audit(SENT, replace(came, totals=came.totals[1:]), RULES).totals) == 1
    assert len(audit(SENT, replace(came, totals=(*came.totals, came.totals[3])), RULES).totals) == 1
    unheard = Total("nobody's", 0, 1, 1)
    assert len(audit(SENT, replace(came, totals=(*came.totals, unheard)), RULES).totals) == 1

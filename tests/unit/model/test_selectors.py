"""Label selectors mean what they mean to kubectl."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.model.selectors import parse_selector

WEB = {"app": "web", "zone": "a", "example.com/tier": "front"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        ("app=db", False),
        ("app!=db", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("missing=x", False),
        ("zone in (a,b)", True),
        ("zone in ( b , c )", False),
        ("zone notin (b, c)", True),
        ("zone notin (a)", False),
        ("missing notin (a)", True),
        ("app", True),
        ("gpu", False),
        ("!gpu", True),
        ("! app", False),
        ("app=web,zone=a", True),
        ("app=web, zone=b", False),
        ("zone in (a,b),app=web,!gpu", True),
        ("example.com/tier=front", True),
        ("app=", False),
    ],
)
def test_what_a_selector_matches(text, matches):
    assert parse_selector(text).matches(WEB) is matches


@pytest.mark.parametrize(
    "text", ["=web", "app=web=x", "app in a", "app in (a", "a b", "app=web,", ",", "(a)", "-l", "app=(a)", "x" * 5000]
)
def test_what_is_wrong_is_named(text):
    with pytest.raises(InvalidError) as caught:
        parse_selector(text, field="-l")
    assert all(each.field == "-l" for each in caught.value.problems)


labels = st.dictionaries(st.sampled_from(["app", "zone", "gpu"]), st.sampled_from(["a", "b", "c"]))


@given(labels, labels)
def test_equalities_hold_for_exactly_the_labels_that_have_them(wanted, found):
    selector = parse_selector(",".join(f"{key}={value}" for key, value in wanted.items()))
    assert selector.matches(found) is (wanted.items() <= found.items())

"""Whatever a parser is given, it reads it or raises the error that it documents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.testing.fuzz import check_parser
from tests.fuzz.discovery import find_parsers
from tests.fuzz.parsers import NO_PARSERS, PARSERS


def test_every_parser_is_in_the_registry():
    found = find_parsers()
    assert found - set(PARSERS) - set(NO_PARSERS) == set()
    assert set(NO_PARSERS) - found == set()
    assert set(NO_PARSERS) & set(PARSERS) == set()


@pytest.mark.parametrize("name", sorted(name for name, case in PARSERS.items() if case.good))
def test_what_is_right_is_taken(name):
    for each in PARSERS[name].good:
        PARSERS[name].parse(each)


@pytest.mark.parametrize("name", sorted(PARSERS))
@settings(max_examples=20)
@given(data=st.data())
def test_a_parser_raises_nothing_but_its_own_errors(name, data):
    check_parser(PARSERS[name], data.draw(PARSERS[name].inputs, label=name))

"""Whatever a parser is given, it reads it or raises the error that it documents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.testing.fuzz import check_parser
from tests.fuzz.discovery import exists, find_parsers
from tests.fuzz.parsers import NO_PARSERS, PARSERS


def function_of(name):
    """The function that a line is for; what follows it says which of its inputs."""
    return name.partition(" of ")[0]


def test_every_parser_is_in_the_registry():
    found, registered = find_parsers(), {function_of(name) for name in PARSERS}
    assert found - registered - set(NO_PARSERS) == set()
    assert set(NO_PARSERS) - found == set()
    assert set(NO_PARSERS) & registered == set()


def test_the_codecs_are_found():
    names = ("arrow.ArrowCodec", "objects.JsonCodec", "protobuf.ProtobufCodec", "raw.RawCodec")
    assert {f"shoal.topics.codecs.{name}.decode" for name in names} <= find_parsers()


def test_no_line_is_for_a_function_that_is_gone():
    assert [name for name in PARSERS if not exists(function_of(name))] == []
    assert not exists("shoal.core.durations.parse_hours")
    assert not exists("shoal.cli.commands.common.specs.parse_duration"), "or was only moved"
    assert not exists("shoal.topics.codecs.objects.JsonCodec.parse")


@pytest.mark.parametrize("name", sorted(name for name, case in PARSERS.items() if case.good))
def test_what_is_right_is_taken(name):
    for each in PARSERS[name].good:
        PARSERS[name].parse(each)


@pytest.mark.parametrize("name", sorted(PARSERS))
@settings(max_examples=20)
@given(data=st.data())
def test_a_parser_raises_nothing_but_its_own_errors(name, data):
    check_parser(PARSERS[name], data.draw(PARSERS[name].inputs, label=name))

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import NodeId
from shoal.core.shape import (
    MAX_PROBLEMS,
    Check,
    MaxLength,
    NumberToo,
    OneOf,
    Pattern,
    Range,
    build,
    check,
    field_kinds,
    find_problems,
    json_schema,
    plain_kind,
    read_value,
    to_mapping,
)
from tests.strategies import values_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Probe:
    port: Annotated[int, Range(1, 65535)]
    path: Annotated[str, MaxLength(10)] = "/"


@dataclass(frozen=True, slots=True)
class Thing:
    name: Annotated[str, Pattern(r"[a-z.]{1,8}", "must be lower-case")]
    wait: timedelta = timedelta(seconds=1)
    colour: Colour = Colour.RED
    size: float = 1.0
    on: bool = False
    probe: Probe | None = None
    probes: Annotated[tuple[Probe, ...], MaxLength(3)] = ()
    words: Annotated[tuple[Annotated[str, MaxLength(5, 1)], ...], MaxLength(4)] = ()
    tags: frozenset[str] = frozenset()
    env: Annotated[Mapping[Annotated[str, Pattern(r"[A-Z]+", "must be upper-case")], str], MaxLength(3)] = field(
        default_factory=dict
    )
    mode: Annotated[str, OneOf(("", "x", "y"))] = ""
    node: NodeId | None = None
    port: Annotated[str, NumberToo(), MaxLength(5)] = "0"
    even: Annotated[int, Check(lambda value: None if value % 2 == 0 else "must be even", "an even number")] = 0

    def extra_problems(self, at: str) -> Iterator[Problem]:
        if self.on and self.probe is None:
            yield problem(f"{at}.probe" if at else "probe", None, "is required when on")


def broken(given_value: object, cls: Any = Thing, at: str = "") -> dict[str, str]:
    with pytest.raises(InvalidError) as raised:
        build(cls, given_value, at=at)
    return {each.field: each.rule for each in raised.value.problems}


def test_a_value_is_read_with_its_defaults() -> None:
    assert build(Thing, {"name": "a"}) == Thing(name="a")


def test_every_kind_of_field_is_read() -> None:
    assert build(
        Thing,
        {
            "name": "a",
            "wait": "1.5s",
            "colour": "blue",
            "size": 2,
            "on": True,
            "probe": {"port": 80},
            "probes": [{"port": 1, "path": "/x"}],
            "words": ["a", "b"],
            "tags": ["x", "x"],
            "env": {"A": "1"},
            "mode": "x",
            "node": "n1",
            "port": 8080,
            "even": 2,
        },
    ) == Thing(
        name="a",
        wait=timedelta(seconds=1.5),
        colour=Colour.BLUE,
        size=2.0,
        on=True,
        probe=Probe(80),
        probes=(Probe(1, "/x"),),
        words=("a", "b"),
        tags=frozenset({"x"}),
        env={"A": "1"},
        mode="x",
        node=NodeId("n1"),
        port="8080",
        even=2,
    )


def test_everything_that_is_wrong_is_reported_at_once_with_its_path() -> None:
    found = broken(
        {
            "nam": "a",
            "wait": 5,
            "colour": "green",
            "size": float("inf"),
            "on": "yes",
            "probe": {"port": 70000, "path": "x" * 11, "colour": 1},
            "probes": [{"port": 1}, {"path": 3}, 7],
            "words": ["ok", "", 3, "too long"],
            "tags": "x",
            "env": {"a": "1", "B": 2, 3: "x"},
            "mode": "z",
            "node": 5,
            "port": True,
            "even": 3,
        },
        at="spec",
    )
    assert set(found) == {
        "spec.nam",
        "spec.name",
        "spec.wait",
        "spec.colour",
        "spec.size",
        "spec.on",
        "spec.probe.port",
        "spec.probe.path",
        "spec.probe.colour",
        "spec.probes[1].port",
        "spec.probes[1].path",
        "spec.probes[2]",
        "spec.words[1]",
        "spec.words[2]",
        "spec.words[3]",
        "spec.tags",
        "spec.env",
        "spec.env.a",
        "spec.env.B",
        "spec.mode",
        "spec.node",
        "spec.port",
        "spec.even",
    }
    assert "did you mean name" in found["spec.nam"]
    assert found["spec.name"] == "is required"
    assert "quotes" in found["spec.node"]


def test_a_null_counts_as_absent() -> None:
    assert build(Thing, {"name": "a", "wait": None, "env": None, "probes": None, "probe": None}) == Thing(name="a")
    assert broken({"name": None}) == {"name": "is required"}


def test_a_rule_across_fields_is_applied_once_the_fields_are_right() -> None:
    assert broken({"name": "a", "on": True}) == {"probe": "is required when on"}
    assert broken({"name": "a", "on": True}, at="x") == {"x.probe": "is required when on"}
    assert broken({"name": "A", "on": True}) == {"name": "must be lower-case"}


def test_two_dots_are_never_part_of_a_name() -> None:
    assert set(broken({"name": "a..b"})) == {"name"}


@pytest.mark.parametrize("wrong", [None, 5, "x", [], [{}]])
def test_what_is_no_mapping(wrong: object) -> None:
    assert broken(wrong) == {"Thing": "must be a mapping"}


def test_a_value_that_was_made_in_code_is_checked_by_the_same_rules() -> None:
    wrong = Thing(name="A", probes=(Probe(0),), env={"a": "1"}, on=True)
    assert {each.field for each in find_problems(wrong)} == {"name", "probes[0].port", "env.a", "probe"}
    with pytest.raises(InvalidError):
        check(wrong)
    with pytest.raises(InvalidError):
        read_value(Thing, wrong)
    check(Thing(name="a"))


def test_a_list_that_is_too_long_is_not_looked_into() -> None:
    assert broken({"name": "a", "probes": [{}] * 1_000_000}) == {"probes": "must have at most 3 entries"}


def test_problems_are_bounded() -> None:
    with pytest.raises(InvalidError) as raised:
        build(Thing, {"name": "a", **{f"field{number}": 1 for number in range(1000)}})
    assert len(raised.value.problems) == MAX_PROBLEMS + 1
    assert "900 more" in raised.value.problems[-1].rule


def test_hostile_input_is_refused_and_does_not_crash() -> None:
    deep: Any = "x"
    for _ in range(50_000):
        deep = {"name": deep}
    for value in (
        {"name": deep},
        {"name": "a" * 10_000_000},
        {"a" * 10_000_000: 1},
        {"name": "a", "size": 10**400},
        {"name": "a", "size": float("nan")},
        {"name": "a", "port": 10**400},
        {"name": "a", "even": True},
        {"name": "a", "wait": "9" * 1_000_000 + "s"},
        {"name": "a", "colour": []},
        {5: 1, ("a",): 2, None: 3},
    ):
        with pytest.raises(InvalidError) as raised:
            build(Thing, value)
        assert len(str(raised.value)) < 10_000


@given(values_of(Thing))
def test_what_is_written_is_read_back(value: Thing) -> None:
    assert build(Thing, to_mapping(value)) == value
    assert build(Thing, json.loads(json.dumps(to_mapping(value)))) == value


def test_equal_values_have_equal_bytes() -> None:
    words = [f"word{number}" for number in range(100)]
    one, two = Thing(name="a", tags=frozenset(words)), Thing(name="a", tags=frozenset(reversed(words)))
    assert json.dumps(to_mapping(one)) == json.dumps(to_mapping(two))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values | st.dictionaries(st.sampled_from(list(field_kinds(Thing))), json_values, max_size=6))
def test_anything_is_either_read_or_refused(value: object) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        thing = build(Thing, value)
    except InvalidError as error:
        problems = error.problems
    assert problems or find_problems(thing) == []
    assert all(each.field and each.rule for each in problems)


# ---------------------------------------------------------------------------------------------------------
# Publishing


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


VALIDATOR = jsonschema.Draft202012Validator(json_schema(Thing))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(Thing))
    assert json_schema(Thing, title="A thing")["title"] == "A thing"


@given(values_of(Thing))
def test_the_schema_accepts_what_is_read(value: Thing) -> None:
    VALIDATOR.validate(without_nulls(to_mapping(value)))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"name": "A"},
        {"name": "a..b"},
        {"name": "a", "nam": "b"},
        {"name": "a", "wait": "5"},
        {"name": "a", "colour": "green"},
        {"name": "a", "probe": {"port": 0}},
        {"name": "a", "probes": [{"port": 1}] * 4},
        {"name": "a", "words": [""]},
        {"name": "a", "env": {"a": "1"}},
        {"name": "a", "mode": "z"},
        {"name": "a", "on": 1},
    ],
)
def test_the_schema_refuses_what_is_refused(wrong: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(wrong)
    with pytest.raises(InvalidError):
        build(Thing, wrong)


def test_kinds() -> None:
    kinds = field_kinds(Thing)
    assert list(kinds)[:2] == ["name", "wait"]
    assert plain_kind(kinds["name"]) is str
    assert plain_kind(kinds["node"]) is str
    assert plain_kind(kinds["probe"]) is Probe

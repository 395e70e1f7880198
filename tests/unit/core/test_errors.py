from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from shoal.core import errors
from shoal.core.errors import (
    MAX_SHOWN_VALUE,
    CorruptError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    Problem,
    SessionSupersededError,
    ShoalError,
    StaleGenerationError,
    StaleTermError,
    problem,
)


def types_below(cls: type[ShoalError]) -> Iterator[type[ShoalError]]:
    yield cls
    for each in cls.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from types_below(each)


SPECIAL: dict[type[ShoalError], ShoalError] = {
    InvalidError: InvalidError([problem("a", 1, "must be 2")], what="spec", hint="write 2"),
    CorruptError: CorruptError("events.pb", 12, "must end here", hint="fetch it again"),
    NotFoundError: NotFoundError("node", "n1", hint="look again"),
    StaleGenerationError: StaleGenerationError("w", offered=1, highest=2),
    SessionSupersededError: SessionSupersededError("n1"),
    NotLeaderError: NotLeaderError("127.0.0.1:8085"),
    StaleTermError: StaleTermError(offered=1, highest=2),
}


@pytest.mark.parametrize("kind", list(types_below(ShoalError)))
def test_every_error_survives_pickling(kind: type[ShoalError]) -> None:
    error = SPECIAL.get(kind) or kind("it happened", hint="do this", node="n1", count=3)
    error.add_note("seen on the way")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.args == error.args
    assert copy.retryable == error.retryable


def test_an_error_of_another_package_keeps_its_own_fields() -> None:
    error = OutsideError("n1", code=7)
    copy = pickle.loads(pickle.dumps(error))
    assert copy.code == 7
    assert copy.facts == {"node": "n1"}


class OutsideError(ShoalError):
    def __init__(self, node: str, *, code: int) -> None:
        super().__init__(f"{node} failed with {code}", node=node)
        self.code = code


def test_every_error_is_drawn_in_the_header() -> None:
    for kind in types_below(ShoalError):
        assert kind.__name__ in (errors.__doc__ or "")


def test_not_found_says_so_in_the_words_that_others_look_for() -> None:
    assert "not found" in str(NotFoundError("workload", "w1"))


def test_invalid_lists_every_problem() -> None:
    error = InvalidError([problem("a", 1, "must be 2"), problem("b", None, "is required")], what="spec.yaml")
    assert str(error) == "spec.yaml: a: must be 2 (got 1); b: is required"
    assert error.problems == (Problem("a", "1", "must be 2"), Problem("b", "", "is required"))


def test_values_are_shown_short() -> None:
    nested: object = "x"
    for _ in range(100_000):
        nested = [nested]
    for value in ("x" * 10_000_000, list(range(1_000_000)), {"a" * 1000: "b" * 1000}, 10**100, b"x" * 1000, nested):
        shown = problem("a", value, "is wrong").value
        assert 0 < len(shown) <= MAX_SHOWN_VALUE + 1
    assert problem("a", 10**10_000, "is wrong").value

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from shoal.core.garbage import Collections


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


def cycle() -> tuple[Node, weakref.ref[Node]]:
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one, weakref.ref(one)


def is_looked_at(value: object) -> bool:
    return any(each is value for each in gc.get_objects())


@pytest.fixture
def collections() -> Iterator[Collections]:
    made = Collections(growth=1000.0)
    with made.instead_of_pythons():
        yield made


def test_a_young_cycle_is_collected(collections: Collections) -> None:
    one, seen = cycle()
    del one
    collections.collect()
    assert seen() is None


def test_what_survives_is_not_looked_at_again(collections: Collections) -> None:
    one, _ = cycle()
    assert is_looked_at(one)
    collections.collect()
    assert not is_looked_at(one)


@pytest.mark.parametrize(("growth", "stays"), [(1000.0, True), (0.0, False)])
def test_a_cycle_that_was_set_aside_goes_when_memory_has_grown(growth: float, stays: bool) -> None:
    collections = Collections(growth=growth)
    with collections.instead_of_pythons():
        one, seen = cycle()
        gc.collect(0)
        del one
        collections.collect()
        assert (seen() is not None) == stays


def grown(times: float) -> list[list[None]]:
    """Objects that make this process so many times as large."""
    return [[] for _ in range(int(sys.getallocatedblocks() * (times - 1)))]


def test_after_a_look_at_everything_that_found_nothing_the_next_one_waits_longer() -> None:
    collections = Collections()
    gc.collect()
    with collections.instead_of_pythons():
        one, seen = cycle()
        gc.collect(0)
        del one
        more = grown(2.0)
        collections.collect()
        assert seen() is not None
        more += grown(2.0)
        collections.collect()
        assert seen() is None
    del more


def test_after_a_look_that_found_much_the_next_one_comes_soon() -> None:
    collections = Collections()
    gc.collect()
    with collections.instead_of_pythons():
        garbage = grown(4.0)
        garbage.append(garbage)  # type: ignore[arg-type]
        gc.collect(0)
        del garbage
        collections.collect()
        one, seen = cycle()
        gc.collect(0)
        del one
        more = grown(2.0)
        collections.collect()
        assert seen() is None
    del more


def test_everything_is_as_before_after_it() -> None:
    before = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    with Collections().instead_of_pythons():
        one, seen = cycle()
        gc.collect(0)
    assert (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()) == before
    del one
    gc.collect()
    assert seen() is None

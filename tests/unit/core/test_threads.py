"""Items that are made one ahead, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shoal.core.threads import SYSTEM, one_ahead

PATIENCE = 30.0


def test_all_items_come_in_their_order() -> None:
    assert list(one_ahead(iter(range(100)), SYSTEM)) == list(range(100))
    assert list(one_ahead(iter(()), SYSTEM)) == []


def test_an_item_is_made_while_the_one_before_is_in_use() -> None:
    is_made = threading.Event()

    def make() -> Iterator[int]:
        yield 1
        is_made.set()
        yield 2

    items = one_ahead(make(), SYSTEM)
    assert next(items) == 1
    assert is_made.wait(PATIENCE)
    assert list(items) == [2]


def test_what_fails_is_raised_behind_the_items_before_it() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    items = one_ahead(make(), SYSTEM)
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_nothing_is_made_any_more_when_nobody_takes_it() -> None:
    made: list[int] = []

    def make() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    before = set(threading.enumerate())
    items = one_ahead(make(), SYSTEM)
    assert next(items) == 0
    started = set(threading.enumerate()) - before
    items.close()  # type: ignore[attr-defined]
    for thread in started:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(made) <= 2

"""The keeper's loop: timers in order, descriptors, and nothing that stops it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shoal.runtimes.keeper.loop import Loop


class HandClock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def boottime(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return round(self.now * 1000)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def loop(clock: HandClock) -> Loop:
    return Loop(clock)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_timers_go_off_in_order_and_not_before(loop: Loop, clock: HandClock) -> None:
    done: list[str] = []
    loop.call_at(102.0, lambda: done.append("late"))
    loop.call_at(101.0, lambda: done.append("early"))
    loop.call_at(101.5, lambda: done.append("never")).cancel()
    loop.run_once(longest=0)
    assert done == []
    clock.now = 101.0
    loop.run_once(longest=0)
    assert done == ["early"]
    clock.now = 500.0
    loop.run_once(longest=0)
    assert done == ["early", "late"]


def test_a_callback_that_raises_does_not_stop_the_others(
    loop: Loop, clock: HandClock, capfd: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("on purpose")

    loop.call_at(100.0, fail)
    loop.call_at(100.0, lambda: done.append("after"))
    loop.run_once(longest=0)
    assert done == ["after"]
    assert "on purpose" in capfd.readouterr().err


def test_a_descriptor_that_was_removed_in_the_same_round_is_left_alone(loop: Loop, pipe: tuple[int, int]) -> None:
    other_out, other_in = os.pipe()
    done: list[str] = []

    def first(name: str) -> None:
        done.append(name)
        for handle in (pipe[0], other_out):
            loop.remove(handle)

    loop.add_reader(pipe[0], lambda: first("one"))
    loop.add_reader(other_out, lambda: first("other"))
    os.write(pipe[1], b"x")
    os.write(other_in, b"x")
    loop.run_once(longest=0)
    assert len(done) == 1
    os.close(other_out)
    os.close(other_in)


def test_it_runs_until_it_is_stopped(loop: Loop, pipe: tuple[int, int]) -> None:
    read: list[bytes] = []

    def take() -> None:
        read.append(os.read(pipe[0], 1))
        if read[-1] == b"z":
            loop.stop()

    loop.add_reader(pipe[0], take)
    os.write(pipe[1], b"xyz")
    loop.run()
    assert b"".join(read) == b"xyz"

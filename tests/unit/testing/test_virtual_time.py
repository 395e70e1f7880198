"""Virtual time for threads: it passes only while all wait, the same seed gives the same run, and a stall is told."""

from __future__ import annotations

import queue
from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.clock import SystemClock
from shoal.core.threads import SYSTEM, threads_of
from shoal.testing.virtual_time import StalledError, VirtualTime

pytestmark = pytest.mark.timeout(30)


def test_time_passes_only_while_all_threads_wait():
    seen: list[tuple[str, float]] = []

    def sleep(name: str, seconds: float) -> None:
        for _ in range(3):
            clock.event().wait(seconds)
            seen.append((name, clock.monotonic()))

    with VirtualTime() as clock:
        for name, seconds in (("hour", 3600.0), ("minute", 60.0)):
            clock.thread(sleep, name, seconds, name=name).start()
        assert clock.monotonic() == 0.0
        with pytest.raises(StalledError):  # the limit is an hour
            clock.event().wait(7300)
    assert seen[:4] == [("minute", 60.0), ("minute", 120.0), ("minute", 180.0), ("hour", 3600.0)]


def test_the_date_follows():
    start = datetime(2030, 5, 1, tzinfo=UTC)
    with VirtualTime(start=start) as clock:
        assert not clock.event().wait(90)
        assert clock.wall() == start + timedelta(seconds=90)


def test_a_wait_that_is_too_short_to_tell_still_moves_time():
    with VirtualTime() as clock:
        clock.event().wait(1e-17)
        assert clock.monotonic() > 0


def test_an_event_ends_a_wait_at_once():
    with VirtualTime() as clock:
        event = clock.event()
        thread = clock.thread(lambda: (clock.event().wait(5), event.set()), name="setter")
        thread.start()
        assert event.wait(60)
        assert clock.monotonic() == 5
        thread.join()
        assert not thread.is_alive()


def test_mail_keeps_its_order_and_a_wait_for_it_ends():
    with VirtualTime() as clock:
        mail = clock.mail()
        clock.thread(lambda: [mail.put(number) for number in range(3)], name="sender").start()
        assert [mail.get(), mail.get(), mail.get()] == [0, 1, 2]
        with pytest.raises(queue.Empty):
            mail.get(timeout=7)
        assert clock.monotonic() == 7


def test_a_condition_is_waited_for_with_its_lock_released():
    with VirtualTime() as clock:
        condition = clock.condition()
        found: list[int] = []

        def put() -> None:
            with condition:
                found.append(1)
                condition.notify()

        clock.thread(put, name="putter").start()
        with condition:
            assert condition.wait_for(lambda: found, timeout=1)
            assert not condition.wait_for(lambda: len(found) > 1, timeout=1)
        assert clock.monotonic() == 1


def run_order(seed: int) -> list[int]:
    order: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            order.append(number)
            clock.event().wait(1)

    with VirtualTime(seed=seed) as clock:
        threads = [clock.thread(work, number, name=str(number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return order


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    assert run_order(7) == run_order(7)
    assert len({tuple(run_order(seed)) for seed in range(5)}) > 1


def test_with_a_delay_threads_that_are_woken_together_run_one_after_the_other():
    seen: list[float] = []

    def wait() -> None:
        event.wait()
        seen.append(clock.monotonic())

    with VirtualTime(delay=1.0) as clock:
        event = clock.event()
        for number in range(5):
            clock.thread(wait, name=str(number)).start()
        clock.event().wait(10)
        event.set()
    assert len(set(seen)) == 5
    assert all(10 < each < 13 for each in seen)


def waits_forever(clock: VirtualTime) -> None:
    clock.event().wait()


def test_a_thread_that_does_not_end_is_a_stall_and_it_says_where_each_waits():
    said = r"no thread can go on at 0 s(?s:.*)lost one:(?s:.*)waits_forever"
    with pytest.raises(StalledError, match=said), VirtualTime() as clock:
        clock.thread(waits_forever, clock, name="lost one").start()


def test_going_past_the_limit_is_a_stall_and_what_ends_it_may_take_time():
    with VirtualTime(limit=10) as clock:
        stop = clock.event()

        def tick() -> None:
            while not stop.wait(1):
                pass

        thread = clock.thread(tick, name="ticker")
        thread.start()
        with pytest.raises(StalledError, match=r"has not ended after 10 s"):
            thread.join()
        stop.set()
        thread.join(timeout=100)
        assert not thread.is_alive()


def test_a_thread_of_others_cannot_wait_in_it():
    with pytest.raises(RuntimeError, match="does not follow"):
        VirtualTime().event().wait(1)


def test_other_clocks_have_the_threads_of_the_system():
    assert threads_of(SystemClock()) is SYSTEM

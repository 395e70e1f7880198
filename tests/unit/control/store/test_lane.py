"""Lanes: gathering, order, bounds, and a thread that hangs. On virtual time, so patience costs nothing."""

import asyncio
import threading

import pytest

from shoal.control.store import lane
from shoal.control.store.errors import StoreError
from shoal.control.store.lane import ThreadLane
from shoal.core.errors import ConflictError, InternalError, UnavailableError


class Desk:
    """What the thread works on: it notes what it was given, and hangs while it is shut."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.busy = threading.Event()
        self.seen = []
        self.cuts = 0
        self.gone = threading.Event()

    def perform(self, requests):
        self.busy.set()
        self.open.wait()
        self.seen.append(list(requests))
        if "bug" in requests:
            raise InternalError("a bug")
        return [ConflictError(request) if request.startswith("bad") else f"{request} done" for request in requests]

    def cut_off(self):
        self.cuts += 1
        self.open.set()

    def on_end(self):
        self.gone.set()


@pytest.fixture
async def desk():
    return Desk()


@pytest.fixture
async def make(desk):
    made = []

    def make(**settings):
        new = ThreadLane("test", desk.perform, on_end=desk.on_end, cut_off=desk.cut_off, **settings)
        new.start()
        made.append(new)
        return new

    yield make
    desk.open.set()
    for each in made:
        await each.stop()


async def shut(desk, new):
    """Shut the desk with one request on it; what is submitted from now on waits."""
    desk.open.clear()
    first = asyncio.ensure_future(new.submit("first"))
    await asyncio.to_thread(desk.busy.wait)
    return first


async def test_what_waits_is_taken_together_and_each_gets_its_own_answer(desk, make):
    new = make()
    first = await shut(desk, new)
    others = [asyncio.ensure_future(new.submit(request)) for request in ("a", "bad", "c")]
    await asyncio.sleep(0)
    desk.open.set()
    outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    assert desk.seen == [["first"], ["a", "bad", "c"]]
    assert [outcomes[0], outcomes[1], outcomes[3]] == ["first done", "a done", "c done"]
    assert isinstance(outcomes[2], ConflictError)


async def test_a_job_runs_alone_and_in_its_turn(desk, make):
    new = make()
    first = await shut(desk, new)
    work = [
        asyncio.ensure_future(new.submit("a")),
        asyncio.ensure_future(new.run(lambda: desk.seen.append("job"))),
        asyncio.ensure_future(new.submit("b")),
        asyncio.ensure_future(new.submit("c")),
    ]
    await asyncio.sleep(0)
    desk.open.set()
    await asyncio.gather(first, *work)
    assert desk.seen == [["first"], ["a"], "job", ["b", "c"]]


async def test_a_group_has_a_bound(desk, make, monkeypatch):
    monkeypatch.setattr(lane, "MAX_TOGETHER", 2)
    new = make()
    first = await shut(desk, new)
    others = [asyncio.ensure_future(new.submit(request)) for request in "abcde"]
    await asyncio.sleep(0)
    desk.open.set()
    await asyncio.gather(first, *others)
    assert desk.seen == [["first"], ["a", "b"], ["c", "d"], ["e"]]


async def test_the_queue_has_a_bound(desk, make):
    new = make(max_waiting=3)
    first = await shut(desk, new)
    others = [asyncio.ensure_future(new.submit(request)) for request in "abc"]
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="3 changes wait"):
        await new.submit("d")
    with pytest.raises(StoreError):
        await new.run(lambda: None)
    desk.open.set()
    assert await asyncio.gather(first, *others) == ["first done", "a done", "b done", "c done"]
    assert await new.submit("d") == "d done"


async def test_an_error_of_the_thread_reaches_everybody_and_ends_nothing(desk, make):
    new = make()
    first = await shut(desk, new)
    others = [asyncio.ensure_future(new.submit(request)) for request in ("a", "bug")]
    await asyncio.sleep(0)
    desk.open.set()
    outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(each) for each in outcomes[1:]] == [InternalError, InternalError]
    assert outcomes[1] is not outcomes[2]
    with pytest.raises(ZeroDivisionError):
        await new.run(lambda: 1 // 0)
    assert await new.submit("b") == "b done"


async def test_a_request_whose_caller_is_gone_is_settled(desk, make):
    new, told = make(), []
    first = await shut(desk, new)
    gone = asyncio.ensure_future(new.submit("a", settled=told.append))
    other = asyncio.ensure_future(new.submit("b", settled=told.append))
    await asyncio.sleep(0)
    gone.cancel()
    desk.open.set()
    assert [await first, await other] == ["first done", "b done"]
    assert gone.cancelled()
    assert told == ["a done", "b done"]


async def test_the_caller_goes_on_after_the_one_who_is_told_and_hears_of_its_mishap(desk, make):
    new, told = make(), []

    def mishap(_outcome):
        told.append("mishap")
        raise InternalError("a bug")

    outcomes = await asyncio.gather(
        new.submit("a", settled=mishap), new.submit("b", settled=told.append), return_exceptions=True
    )
    assert isinstance(outcomes[0], InternalError)
    assert outcomes[1] == "b done"
    assert told == ["mishap", "b done"]


async def test_what_was_unknown_is_settled_again_when_it_was_done_after_all(desk, make):
    new, told = make(patience=0.05), []
    desk.open.clear()
    with pytest.raises(UnavailableError):
        await new.submit("first", settled=told.append)
    assert await new.run(lambda: "goes on", patience=60) == "goes on"
    assert [type(each) for each in told[:1]] == [StoreError]
    assert told[1:] == ["first done"]


async def test_stopping_finishes_the_queue(desk, make):
    new = make()
    first = await shut(desk, new)
    waiting = asyncio.ensure_future(new.submit("a"))
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(new.stop())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="closed"):
        await new.submit("late")
    desk.open.set()
    assert await stopping
    assert [await first, await waiting] == ["first done", "a done"]
    assert desk.gone.is_set()
    assert await new.stop()


async def test_a_thread_that_hangs_is_cut_off_and_goes_on(desk, make):
    new = make(patience=0.05)
    desk.open.clear()
    with pytest.raises(UnavailableError):
        await new.submit("first")
    assert desk.cuts == 1
    assert await new.run(lambda: "goes on", patience=60) == "goes on"


class TestHanging:
    """The thread hangs; nothing but virtual time passes until the lane loses its patience."""

    pytestmark = pytest.mark.looptime

    async def test_callers_are_told_what_is_known(self, desk, make, looptime):
        new = make(patience=15)
        desk.open.clear()
        new._cut_off = lambda: None  # it cannot be cut off either
        first = asyncio.ensure_future(new.submit("first"))
        await asyncio.sleep(0)
        desk.busy.wait()
        second = asyncio.ensure_future(new.submit("second"))
        job = asyncio.ensure_future(new.run(lambda: desk.seen.append("job")))
        outcomes = await asyncio.gather(first, second, job, return_exceptions=True)
        assert looptime == 15
        assert [type(each) for each in outcomes] == [StoreError] * 3
        assert [each.facts["outcome"] for each in outcomes] == ["unknown", "none", "none"]
        desk.open.set()
        await new.stop()
        desk.gone.wait()
        assert desk.seen == [["first"]]  # what was told to have changed nothing was not done later

    async def test_the_shortest_patience_counts(self, desk, make, looptime):
        new = make(patience=15)
        desk.open.clear()
        slow = asyncio.ensure_future(new.run(lambda: desk.perform(["slow"]), patience=300))
        await asyncio.sleep(0)
        desk.busy.wait()
        with pytest.raises(UnavailableError):
            await new.submit("quick")
        assert looptime == 15
        assert desk.cuts == 0  # the call under way has more patience than those who wait behind it
        with pytest.raises(UnavailableError):
            await slow
        assert looptime == 300
        assert desk.cuts == 1

    async def test_a_thread_that_never_ends_is_left_behind(self, desk, make):
        new = make(patience=15)
        desk.open.clear()
        new._cut_off = lambda: None
        first = asyncio.ensure_future(new.submit("first"))
        await asyncio.sleep(0)
        desk.busy.wait()  # else the patience may end, in this quick time, before the thread has begun
        with pytest.raises(UnavailableError):
            await first
        assert not await new.stop()
        desk.open.set()

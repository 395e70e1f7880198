"""Runs calls that may block in a thread, one after the other, away from the event loop.

A `ThreadLane` is one thread with a bounded queue. Requests (the batches of `commit`) that arrive while the thread is
busy are passed to it together, so that they share one transaction; a job is any other call and runs alone. A caller
that has waited too long gets a `StoreError`, and the call in which the thread hangs is cut off. An `InlineLane` does
the same work at once, for a database in memory, which never blocks: so tests on virtual time need no thread.

Called by `shoal.control.store.database`; knows nothing of databases.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from shoal.control.store.errors import StoreError, StoreOutcome

log = logging.getLogger(__name__)

T = TypeVar("T")
Request = TypeVar("Request")
Answer = TypeVar("Answer")
Request_contra = TypeVar("Request_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)

MAX_WAITING = 10_000
"""Requests and jobs that may wait in one lane; more than this is a store that cannot keep up."""

MAX_TOGETHER = 1000
"""Requests that are passed on together: enough to share a commit, few enough to bound the time that one takes."""

GATHER_SECONDS = 0.005
"""How long the thread waits for more requests after several came together. A commit costs the same for all of them. A
single request never waits."""

PATIENCE = 7.0
"""Seconds until a caller is told that the store does not answer. Well below the ten seconds that clients wait."""

Perform = Callable[[Sequence[Request]], Sequence[Answer | Exception]]

Settled = Callable[[Answer | Exception], None]
"""Called on the event loop with the outcome of a request, before its caller gets it, and also when that one is gone."""


class Lane(Protocol[Request_contra, Answer_co]):
    """Where work is done in order."""

    def start(self) -> None:
        """Begin. Called on the event loop that will submit."""
        ...

    async def submit(self, request: Request_contra, *, settled: Callable[[Any], None] | None = None) -> Answer_co:
        """Submit a request and wait for its answer. Cancelling the caller does not cancel the request."""
        ...

    async def run(self, job: Callable[[], T], *, patience: float | None = None) -> T:
        """Run a job alone and wait for what it returns."""
        ...

    async def stop(self) -> bool:
        """Finish what was accepted, then end. False when the thread hangs and was left behind."""
        ...


class InlineLane(Generic[Request, Answer]):
    """Does the work within the call."""

    def __init__(self, perform: Perform[Request, Answer], *, on_end: Callable[[], None]) -> None:
        self._perform = perform
        self._on_end = on_end
        self._open = False

    def start(self) -> None:
        """Begin."""
        self._open = True

    async def submit(self, request: Request, *, settled: Settled[Answer] | None = None) -> Answer:
        """Do it now. Other tasks run first, as they would with a thread."""
        await asyncio.sleep(0)
        self._check_open()
        answer = self._perform([request])[0]
        if settled is not None:
            settled(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run(self, job: Callable[[], T], *, patience: float | None = None) -> T:
        """Do it now."""
        self._check_open()
        return job()

    async def stop(self) -> bool:
        """End."""
        if self._open:
            self._open = False
            self._on_end()
        return True

    def _check_open(self) -> None:
        if not self._open:
            raise _closed()


@dataclass(slots=True, eq=False)
class _Entry:
    """Something that waits for the thread."""

    work: Any
    is_job: bool
    future: asyncio.Future[Any]
    #: When its caller loses patience, by the loop's clock.
    until: float
    settled: Callable[[Any], None] | None = None
    taken: bool = False

    def finish(self, outcome: Any) -> None:
        """Tell what became of it."""
        if self.settled is not None:
            try:
                self.settled(outcome)
            except Exception as error:  # noqa: BLE001 its caller hears of it; the others go on
                outcome = error
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class ThreadLane(Generic[Request, Answer]):
    """One thread and its queue.

    Args:
        name: of the thread.
        perform: answers requests together, with one answer or error for each.
        on_end: called by the thread when it ends.
        cut_off: called on the event loop when the thread hangs, to make whatever it waits for fail.
        patience: seconds that a caller waits at most.
        max_waiting: requests and jobs that may wait.
    """

    def __init__(
        self,
        name: str,
        perform: Perform[Request, Answer],
        *,
        on_end: Callable[[], None],
        cut_off: Callable[[], None],
        patience: float = PATIENCE,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._name = name
        self._perform = perform
        self._on_end = on_end
        self._cut_off = cut_off
        self._patience = patience
        self._max_waiting = max_waiting
        # Shared with the thread, under the condition's lock.
        self._wake = threading.Condition(threading.Lock())
        self._queue: deque[_Entry] = deque()
        self._closing = True
        self._told_to_end = threading.Event()
        # Of the event loop alone.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._unanswered: dict[_Entry, None] = {}
        self._watch: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._closing = False
        self._told_to_end.clear()
        # A daemon: what was acknowledged is stored, so a process may end without waiting for the rest.
        threading.Thread(target=self._work, args=(self._loop,), name=self._name, daemon=True).start()

    async def submit(self, request: Request, *, settled: Settled[Answer] | None = None) -> Answer:
        """Queue a request and wait for its answer."""
        answer: Answer = await self._enqueue(request, is_job=False, patience=self._patience, settled=settled)
        return answer

    async def run(self, job: Callable[[], T], *, patience: float | None = None) -> T:
        """Queue a job and wait for what it returns."""
        answer: T = await self._enqueue(job, is_job=True, patience=patience or self._patience)
        return answer

    async def stop(self) -> bool:
        """Let the thread finish its queue and end."""
        ended = self._ended
        if ended is None:
            return True
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._told_to_end.set()
        if not await _done_within(ended, self._patience):
            self._cut_off()
            if not await _done_within(ended, self._patience):
                log.error("%s does not end; it is left behind", self._name)
                return False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._ended = None
        return True

    # -----------------------------------------------------------------------------------------------------
    # On the event loop

    def _enqueue(
        self, work: Any, *, is_job: bool, patience: float, settled: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        loop = self._loop
        if self._closing or loop is None:
            raise _closed()
        if len(self._queue) >= self._max_waiting:
            raise StoreError(
                f"{len(self._queue):,} changes wait for the store already",
                hint="the database cannot keep up; try again later",
                waiting=len(self._queue),
            )
        entry = _Entry(work, is_job, loop.create_future(), loop.time() + patience, settled)
        self._unanswered[entry] = None
        with self._wake:
            self._queue.append(entry)
            self._wake.notify()
        if self._watch is None or self._watch.when() > entry.until:
            self._look_at(entry.until)
        return entry.future

    def _answer(self, entries: Sequence[_Entry], answers: Sequence[Any]) -> None:
        for entry, answer in zip(entries, answers, strict=True):
            if entry in self._unanswered:
                del self._unanswered[entry]
                entry.finish(answer)
            elif entry.settled is not None and not isinstance(answer, Exception):
                entry.settled(answer)  # its caller was told that this is not known; now it is

    def _look(self) -> None:
        """Answer those who have waited too long, and cut off what they wait for."""
        now = asyncio.get_running_loop().time()
        late = [entry for entry in self._unanswered if entry.until <= now]
        with self._wake:
            dropped = {entry for entry in late if not entry.taken}
            if dropped:
                self._queue = deque(entry for entry in self._queue if entry not in dropped)
        for entry in late:
            del self._unanswered[entry]
            entry.finish(_late(known=entry in dropped or entry.is_job))
        if late:
            log.warning("%s does not answer; %d callers were told", self._name, len(late))
        # What only waited behind others says nothing about the call under way: that one may have more patience.
        if any(entry.taken for entry in late):
            self._cut_off()
        self._watch = None
        if self._unanswered:
            self._look_at(min(entry.until for entry in self._unanswered))

    def _look_at(self, moment: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_at(moment, self._look)

    # -----------------------------------------------------------------------------------------------------
    # On the thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while entries := self._take():
            if entries[0].is_job:
                answers: Sequence[Any] = [_run(entries[0].work)]
            else:
                answers = self._perform_safely([entry.work for entry in entries])
            if not _tell(loop, self._answer, entries, answers):
                break
            if len(entries) > 1:
                self._told_to_end.wait(GATHER_SECONDS)
        _run(self._on_end)
        _tell(loop, self._end)

    def _take(self) -> list[_Entry]:
        with self._wake:
            while not self._queue and not self._closing:
                self._wake.wait()
            taken: list[_Entry] = []
            while self._queue and len(taken) < MAX_TOGETHER:
                if taken and (self._queue[0].is_job or taken[0].is_job):
                    break
                entry = self._queue.popleft()
                entry.taken = True
                taken.append(entry)
            return taken

    def _perform_safely(self, requests: list[Request]) -> Sequence[Answer | Exception]:
        try:
            return self._perform(requests)
        except Exception as error:  # noqa: BLE001 the thread must go on, and its callers must hear of it
            return [error] + [copy.copy(error) for _ in requests[1:]]

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _run(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except Exception as error:  # noqa: BLE001 it is the answer
        return error


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> bool:
    """Call on the loop. False when the loop is gone, and so every caller."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
        return True
    return False


async def _done_within(future: asyncio.Future[None], seconds: float) -> bool:
    done, _pending = await asyncio.wait([future], timeout=seconds)
    return bool(done)


def _closed() -> StoreError:
    return StoreError("the store is closed")


def _late(*, known: bool) -> StoreError:
    if known:
        return StoreError("the store does not answer; nothing was changed")
    sentence = "the store does not answer; whether the change was stored is not known"
    return StoreError(sentence, outcome=StoreOutcome.UNKNOWN)

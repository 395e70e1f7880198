"""Commits batches to the store, and to the working set once they are durable.

`Ledger.commit` is the one way to change both. After a commit whose outcome is unknown, what is stored is read again
before anything else is decided. Called by every module of the control plane that stores something.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable
from functools import partial

from shoal.control.state.fleet import Fleet
from shoal.control.store.base import Batch, Settled, Store
from shoal.control.store.errors import LeadershipLostError, StoreError, StoreOutcome
from shoal.core.errors import ConflictError, ShoalError
from shoal.core.ids import WorkloadId
from shoal.core.tasks import TaskScope
from shoal.model.events import Event
from shoal.model.workloads import WorkloadRecord

CONFLICT_RETRIES = 20
CONFLICTS_UNTIL_RELOAD = 5
#: How long a change waits until the store was read again. With the timeout of the store it stays below that of clients.
SETTLE_SECONDS = 2.0
#: A commit without an answer after this long never gets one. Above the timeout of the store.
ANSWER_SECONDS = 10.0
#: Memory is read anew at most this often.
RELOAD_SECONDS = 1.0


EventListener = Callable[[tuple[Event, ...]], None]


class Ledger:
    """Commits batches to the store and, once they are durable, to the working set."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        *,
        term: int = 0,
        scope: TaskScope | None = None,
        on_commit: Callable[[Batch], None] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.fleet = fleet
        self._term = term
        self._on_commit = on_commit or (lambda _batch: None)
        self._on_failure = on_failure or (lambda: None)
        self._scope = scope or TaskScope("ledger")
        self._listeners: list[EventListener] = []
        self._reload_listeners: list[Callable[[], None]] = []
        self._batch_listeners: list[Callable[[Batch], None]] = []
        #: Counts how often memory was read. A decision is valid only for the picture that it was made on.
        self.picture = 0
        #: Whether the store may have a commit that memory does not have.
        self._doubtful = False
        self._settling: asyncio.Future[None] | None = None
        #: When memory was last read for that reason, on the event loop's clock.
        self._settled_at = -math.inf
        #: Commits that are not answered yet.
        self._under_way: set[asyncio.Future[None]] = set()

    def on_events(self, listener: EventListener) -> None:
        """Call `listener` with the events of each committed batch."""
        self._listeners.append(listener)

    def on_batch(self, listener: Callable[[Batch], None]) -> None:
        """Call `listener` with each committed batch, also when its caller is gone."""
        self._batch_listeners.append(listener)

    def on_reload(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever memory was read anew."""
        self._reload_listeners.append(listener)

    async def load(self, *, again: bool = False) -> None:
        """Fill the working set from the store."""
        self.fleet.load(await self.store.load(again=again))
        self.picture += 1

    async def commit(self, batch: Batch, *, picture: int | None = None) -> None:
        """Make a batch durable. Cancelling the caller does not undo it: memory follows the store.

        `picture`: the one that it was decided on. Raises ConflictError when memory was read again since then, because
        versions only guard the records of a batch, not the other records that it was decided from.
        """
        if batch.is_empty():
            return
        await self.settle()
        if picture is not None and picture != self.picture:
            raise ConflictError("memory was read anew after this was decided", decided_on=picture, now=self.picture)
        answered = asyncio.get_running_loop().create_future()
        self._under_way.add(answered)
        answered.add_done_callback(self._under_way.discard)
        try:
            # The listeners belong to the trace of the caller.
            mine = partial(self._settled, batch, answered)
            settled = partial(_run_in, contextvars.copy_context(), mine)
            await self.store.commit(batch, term=self._term, settled=settled)
        except Exception as error:
            _finish(answered)  # a batch that the store refused at once is never settled
            if isinstance(error, StoreError):
                self._on_failure()
                error.hint = error.hint or (_way_to_look(batch) if _is_unknown(error) else _LATER)
            raise

    async def change(self, decide: Callable[[], Batch | None]) -> Batch | None:
        """Decide on the present state and commit; decide again when another writer was faster.

        `decide` returns None when there is nothing to change, or raises to refuse.
        """
        for attempt in range(CONFLICT_RETRIES):
            if attempt == CONFLICTS_UNTIL_RELOAD:
                self.doubt()  # too often for chance: memory may be wrong
            await self.settle()
            picture, batch = self.picture, decide()
            if batch is None:
                return None
            try:
                await self.commit(batch, picture=picture)
            except ConflictError:
                await asyncio.sleep(0)
                continue
            return batch
        raise ConflictError("the same record was changed by others again and again", retries=CONFLICT_RETRIES)

    async def change_workload(
        self,
        workload_id: WorkloadId,
        change: Callable[[WorkloadRecord], Batch | None],
        *,
        only: WorkloadRecord | None = None,
    ) -> bool:
        """Commit the batch that `change` makes of the newest record; with `only`, if it is still that one.

        Returns whether something was committed.
        """

        def decide() -> Batch | None:
            current = self.fleet.workloads.get(workload_id)
            if current is None or (only is not None and current.version != only.version):
                return None
            return change(current)

        return await self.change(decide) is not None

    def doubt(self) -> None:
        """Memory may be wrong: read the store before anything else is committed."""
        self._doubtful = True

    async def settle(self) -> None:
        """After a commit with an unknown outcome, read the store before anything else is decided."""
        while self._doubtful:  # another commit may be in doubt before this caller continues
            # One read for all callers, which goes on without them: a store that hangs is not asked by each of them.
            if self._scope.is_closing:
                raise LeadershipLostError("")
            if self._settling is None or self._settling.done():
                self._settling = asyncio.get_running_loop().create_future()
                self._scope.start(self._settle(self._settling), name="settle")
            settling = self._settling
            await asyncio.wait({settling}, timeout=SETTLE_SECONDS)
            if not settling.done():
                raise StoreError("the store does not answer; nothing was changed", hint=_LATER)
            settling.result()

    def call_when_answered(self, then: Callable[[], None]) -> None:
        """Call `then` when every commit that is under way now has its answer, or when the leadership ends."""
        if self._scope.is_closing:
            then()
        else:
            waiting = self._scope.start(self._answered(), name="answers")
            waiting.add_done_callback(lambda _answered: then())

    async def _answered(self) -> None:
        """Wait until every commit that is under way now has its answer. One without an answer leaves a doubt."""
        waiting = {each for each in self._under_way if not each.done()}
        if waiting:
            _, unanswered = await asyncio.wait(waiting, timeout=ANSWER_SECONDS)
            self._doubtful = self._doubtful or bool(unanswered)

    async def _settle(self, settled: asyncio.Future[None]) -> None:
        # Commits under way may be stored after the read began, and memory would miss them. So they are waited for; new
        # ones wait until this is done. The store answers within its timeout.
        try:
            if self._under_way:
                await asyncio.wait(set(self._under_way), timeout=ANSWER_SECONDS)
                for each in list(self._under_way):
                    _finish(each)  # an answer after this is in doubt again
                self._under_way.clear()
            # Each read starts new commits: a store with only unknown outcomes would be read without a pause.
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._settled_at + RELOAD_SECONDS - loop.time())
            await self.load()
            self._settled_at = loop.time()
            self._doubtful = False
            for reloaded in self._reload_listeners:
                reloaded()
        except BaseException as error:
            settled.set_exception(error if isinstance(error, ShoalError) else LeadershipLostError(""))
            settled.exception()  # read here: the callers may be gone
            if not isinstance(error, ShoalError):
                raise
        else:
            settled.set_result(None)

    def _settled(self, batch: Batch, answered: asyncio.Future[None], outcome: tuple[Event, ...] | Exception) -> None:
        """Memory follows the store, whether or not the caller still waits."""
        if answered.done():
            self.doubt()  # stored after its outcome was reported as unknown, perhaps after memory was read
            return
        _finish(answered)
        if isinstance(outcome, Exception):
            self._doubtful = self._doubtful or _is_unknown(outcome)
            return
        self.fleet.take(batch)
        self._on_commit(batch)
        for told in self._batch_listeners:
            told(batch)
        for listener in self._listeners:
            listener(outcome)


def _run_in(context: contextvars.Context, told: Settled, outcome: tuple[Event, ...] | Exception) -> None:
    context.run(told, outcome)


def _finish(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)


def _is_unknown(error: Exception) -> bool:
    """Whether the change may have been stored all the same."""
    return isinstance(error, StoreError) and error.outcome is StoreOutcome.UNKNOWN


_LATER = "the control plane cannot write now; what runs goes on, so ask again later"


def _way_to_look(batch: Batch) -> str:
    """How to find out whether a batch with an unknown outcome was stored."""
    if batch.groups:
        command = f"shoal group get {batch.groups[0].group_id}"
    elif batch.jobs:
        command = f"shoal job get {batch.jobs[0].job_id}"
    elif batch.workloads:
        command = f"shoal workload get {batch.workloads[0].workload_id}"
    elif batch.nodes:
        command = f"shoal node get {batch.nodes[0].node_id}"
    else:
        command = "shoal events"
    return f"it may have been stored: look with `{command}` before you ask again"

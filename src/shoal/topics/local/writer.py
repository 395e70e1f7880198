"""A writer of the local log: records into segments of its own, then one entry into the journal.

Called through `shoal.topics.base.Writer`; made by `shoal.topics.local.topics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, problem
from shoal.core.faults import reach
from shoal.topics.base import Member, TopicPartition, check_records
from shoal.topics.errors import FencedError, LogFullError, RebalancedError
from shoal.topics.local.drafts import Drafts
from shoal.topics.local.history.entries import ChunkDraft, CloseWriter, Commit, MemberFence, OpenWriter
from shoal.topics.local.history.replay import Outcome, Verdict
from shoal.topics.local.history.view import View
from shoal.topics.local.leases import HostClock
from shoal.topics.local.member import LocalMember, stored_offsets
from shoal.topics.local.session import Session
from shoal.topics.partitioning import split


class LocalWriter:
    """A `shoal.topics.base.Writer`."""

    def __init__(
        self, view: View, session: Session, drafts: Drafts, clock: HostClock, *, transactional_id: str | None
    ) -> None:
        self._view = view
        self._session = session
        self._drafts = drafts
        self._clock = clock
        self._id = transactional_id or ""
        self._epoch = 0
        self._turn = 0
        self._open: list[ChunkDraft] | None = None
        self._refused: FencedError | None = None
        self._closed = False
        if transactional_id is not None:
            outcome = view.submit(OpenWriter(session.name, transactional_id))
            self._check(outcome)
            self._epoch = outcome.value

    def append(self, topic: str, batch: Any, *, partition: int | Any | None = None) -> None:
        """Write records. Visible when this returns, or with the transaction."""
        self._require_usable()
        batch = _stamped(check_records(batch), self._clock)
        if self._id and self._open is None:
            raise PreconditionError("a transactional writer appends within a transaction", hint="call begin() first")
        found = self._view.topic(topic)
        if not batch.num_rows:
            return
        self._turn += 1
        shares = list(
            split(
                batch,
                count=len(found.partitions),
                partition=partition,
                without_key=self._turn % len(found.partitions),
            )
        )
        reach("topics.append.before")
        drafts = self._drafts.write(found, shares)
        reach("topics.append.written")
        if self._open is None:
            self._drafts.sync_if_always()
            self._submit(drafts, offsets=(), fence=None, topic=topic)
            self._drafts.settle()
            reach("topics.append.after")
        else:
            self._open.extend(drafts)

    def flush(self) -> None:
        """Nothing to wait for: an append is written when it returns."""
        self._require_usable()

    def begin(self) -> None:
        """Open a transaction."""
        self._require_usable()
        if not self._id:
            raise PreconditionError("this writer has no transactional id", hint="topics.writer(transactional_id=…)")
        if self._open is not None:
            raise PreconditionError("a transaction is open", hint="commit or abort it first")
        self._open = []

    def commit(
        self,
        *,
        offsets: Mapping[str, Mapping[TopicPartition, int]] | None = None,
        member: Member | None = None,
    ) -> None:
        """Make the transaction visible with one entry."""
        self._require_usable()
        if self._open is None:
            raise PreconditionError("no transaction is open", hint="call begin() first")
        drafts, stored, fence = self._open, self._offsets(offsets or {}), _fence(member)
        reach("topics.commit.before")
        try:
            if drafts or stored:
                self._drafts.sync_if_always()
                self._submit(drafts, offsets=stored, fence=fence, topic="")
        except LogFullError:  # nothing happened: it may be tried again when there is room
            raise
        except BaseException:
            self._end_transaction()
            raise
        self._end_transaction()

    def abort(self) -> None:
        """Forget the transaction. Its bytes are garbage."""
        self._end_transaction()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Let go."""
        if self._closed:
            return
        self._closed = True
        self.abort()
        self._drafts.close()
        if self._id and self._refused is None and self._session.is_alive():
            self._view.submit(CloseWriter(self._session.name, self._id, self._epoch))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _end_transaction(self) -> None:
        self._open = None
        self._drafts.settle()

    def _submit(
        self,
        drafts: Iterable[ChunkDraft],
        *,
        offsets: tuple[tuple[str, int, int, int], ...],
        fence: MemberFence | None,
        topic: str,
    ) -> None:
        entry = Commit(
            session=self._session.name,
            writer=self._id,
            epoch=self._epoch,
            at_us=self._clock.wall_us(),
            chunks=tuple(drafts),
            offsets=offsets,
            fence=fence,
        )
        self._check(self._view.submit(entry), topic=topic, fence=fence)

    def _check(self, outcome: Outcome, *, topic: str = "", fence: MemberFence | None = None) -> None:
        if outcome.verdict is Verdict.VALID:
            return
        if outcome.verdict is Verdict.REBALANCED and fence is not None:
            raise RebalancedError(fence.group, offered=fence.generation, current=outcome.value)
        if outcome.verdict is Verdict.NO_TOPIC:
            raise NotFoundError("topic", topic, hint="it was deleted in the meantime")
        self._refuse(outcome.verdict)

    def _refuse(self, verdict: Verdict) -> None:
        reason = verdict.value
        if verdict is Verdict.SESSION_ENDED:
            reason = "it gave no sign of life for too long and was taken for dead"
        self._refused = FencedError(self._id or self._session.name, epoch=self._epoch, reason=reason)
        self._open = None
        raise self._refused

    def _require_usable(self) -> None:
        if self._closed:
            raise PreconditionError("the writer is closed")
        if self._refused is not None:
            raise self._refused
        # What follows would be void anyway: this says so sooner, before anything is written.
        with self._view.lock:
            state = self._view.refresh()
            if self._session.name not in state.sessions:
                self._refuse(Verdict.SESSION_ENDED)
            holder = state.writers.get(self._id)
            if self._epoch and (holder is None or holder.epoch != self._epoch):
                self._refuse(Verdict.SUPERSEDED)

    def _offsets(self, offsets: Mapping[str, Mapping[TopicPartition, int]]) -> tuple[tuple[str, int, int, int], ...]:
        return tuple(entry for group, wanted in offsets.items() for entry in stored_offsets(self._view, group, wanted))


def _fence(member: Member | None) -> MemberFence | None:
    if member is None:
        return None
    if not isinstance(member, LocalMember):
        raise InvalidError([problem("member", type(member).__name__, "must be a member of the same log")])
    return member.fence()


def _stamped(batch: Any, clock: HostClock) -> Any:
    """The batch with the time of the append where it has none."""
    timestamps = batch.column(2)
    if not timestamps.null_count:
        return batch
    return batch.set_column(2, batch.schema.field(2), pc.fill_null(timestamps, pa.scalar(clock.wall_us(), pa.int64())))

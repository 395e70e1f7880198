"""A member of a consumer group of the local log. Who has what follows from the journal; see `replay` and `groups`.

Called through `shoal.topics.base.Member`; made by `shoal.topics.local.topics`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.topics.base import Assignment, TopicPartition
from shoal.topics.errors import RebalancedError
from shoal.topics.local.history.entries import Commit, JoinGroup, LeaveGroup, MemberFence
from shoal.topics.local.history.replay import State, Verdict
from shoal.topics.local.history.view import View
from shoal.topics.local.history.watch import Watch
from shoal.topics.local.leases import HostClock
from shoal.topics.local.session import Session

_NOBODY = Assignment(generation=0, partitions=frozenset())


class LocalMember:
    """A `shoal.topics.base.Member`.

    Args:
        sessions: returns the session in use, a new one if the last has ended.
    """

    def __init__(
        self,
        view: View,
        clock: HostClock,
        sessions: Callable[[], Session],
        *,
        group: str,
        topics: Sequence[str],
        name: str,
    ) -> None:
        self._view = view
        self._clock = clock
        self._sessions = sessions
        self._group = group
        self._topics = tuple(dict.fromkeys(topics))
        self._name = name
        self._watch = Watch(view.places.journals)
        self._last = _NOBODY
        self._closed = False
        self._polling = threading.Lock()
        self._polled = clock.since_boot()
        self._session = self._join()

    @property
    def group(self) -> str:
        """The group's name."""
        return self._group

    @property
    def member_id(self) -> str:
        """Its own name."""
        return self._name

    def poll(self, timeout: float = 0.0) -> Assignment:
        """The assignment; waits while it is the same as before."""
        deadline = self._clock.since_boot() + timeout
        with self._polling:
            while True:
                self._require_open()
                self._watch.settle()
                found = self._look()
                self._polled = now = self._clock.since_boot()
                if found is None:
                    self._session = self._join()
                elif found != self._last or now >= deadline:
                    self._last = found
                    self._watch.found()
                    return found
                else:
                    self._watch.wait(min(deadline - now, 1.0))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets, if the generation is still the one of the last poll."""
        self._require_open()
        foreign = sorted(offsets.keys() - self._last.partitions)
        if foreign:
            if self._look() != self._last:  # it had them: they moved on
                raise self._rebalanced()
            rules = [problem("partition", str(each), "must be one that this member has") for each in foreign]
            raise InvalidError(rules, what="commit")
        entry = Commit(
            session=self._session.name,
            writer="",
            epoch=0,
            at_us=self._clock.wall_us(),
            chunks=(),
            offsets=tuple(stored_offsets(self._view, self._group, offsets)),
            fence=self.fence(),
        )
        outcome = self._view.submit(entry)
        if outcome.verdict is not Verdict.VALID:
            raise self._rebalanced()

    def fence(self) -> MemberFence:
        """What ties a commit to the generation of the last poll."""
        return MemberFence(group=self._group, member=self._name, generation=self._last.generation)

    def give_up_if_hung(self, limit: float) -> None:
        """Leave on behalf of a caller that has not polled for so many seconds. Called by the session's thread."""
        if not self._closed and self._clock.since_boot() - self._polled > limit:
            self._leave()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Leave. A poll that waits in another thread ends with `PreconditionError`."""
        if self._closed:
            return
        self._closed = True
        self._watch.wake()
        with self._polling:
            try:
                self._leave()
            finally:
                self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _join(self) -> Session:
        while True:
            session = self._sessions()
            outcome = self._view.submit(JoinGroup(session.name, self._group, self._name, self._topics))
            if outcome.verdict is Verdict.VALID:
                return session

    def _leave(self) -> None:
        with self._view.lock:
            group = self._view.refresh().groups.get(self._group)
            if group is not None and self._name in group.members:
                self._view.submit(LeaveGroup(self._session.name, self._group, self._name))

    def _look(self) -> Assignment | None:
        with self._view.lock:
            return _assignment(self._view.refresh(), self._group, self._name)

    def _rebalanced(self) -> RebalancedError:
        with self._view.lock:
            group = self._view.state.groups.get(self._group)
            current = group.generation if group is not None else 0
        return RebalancedError(self._group, offered=self._last.generation, current=current)

    def _require_open(self) -> None:
        if self._closed:
            raise PreconditionError("the member has left")


def stored_offsets(view: View, group: str, offsets: Mapping[TopicPartition, int]) -> list[tuple[str, int, int, int]]:
    """Offsets as entries have them. Raises `NotFoundError`, or `InvalidError` for what is no offset."""
    result: list[tuple[str, int, int, int]] = []
    for wanted, offset in offsets.items():
        if not isinstance(offset, int) or not 0 <= offset < 2**63:
            raise InvalidError([problem(str(wanted), offset, "must be an offset, from 0 on")], what="commit")
        view.partition(wanted)
        result.append((group, view.topic(wanted.topic).number, wanted.partition, offset))
    return result


def _assignment(state: State, group: str, member: str) -> Assignment | None:
    """What a member has; None for one that is not in the group."""
    found = state.groups.get(group)
    if found is None or member not in found.members:
        return None
    return Assignment(
        generation=found.generation,
        partitions=frozenset(
            TopicPartition(state.topics[topic].name, partition)
            for (topic, partition), owner in found.owners.items()
            if owner == member
        ),
    )

"""Decides whether a node is alive, from the time of its last heartbeat. Pure.

The control plane counts a lease by its own steady clock from the receipt of a heartbeat; the agent's clock plays no
part. The agent counts from the sending of the heartbeat, which is earlier, so its lease always ends before the control
plane's.

    receipt ─────────── half ─────────── lease ──── margin ───▶
       Ready             Suspect          NotReady    at-most-one work may move

An agent stops at-most-one work `margin` before its lease ends, and the control plane moves it `margin` after its own
count ends. That is safe while the rates of the two clocks differ by less than a tenth; their readings do not matter.

Called by the other modules of this room; `contacts` keeps the time of the last heartbeat of each node in memory.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from shoal.core.durations import format_duration
from shoal.core.errors import Problem, problem
from shoal.core.ids import NO_SESSION, SessionId
from shoal.core.shape import Check
from shoal.model.nodes import LEASE_MARGIN, NodeState

#: A timer set for a moment may wake a rounding error before it; a shorter wait than this could then never end.
_SHORTEST_WAIT = 0.001

_SHORTEST = timedelta(milliseconds=1)
_LONGEST = timedelta(days=1)


def _is_reasonable(value: timedelta) -> str | None:
    return None if _SHORTEST <= value <= _LONGEST else "must be above 0s (at least 1ms) and at most 24h"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How often agents send heartbeats, and how long a lease lasts."""

    #: How often an agent sends a heartbeat. With the default, a thousand nodes send a hundred heartbeats a second.
    heartbeat_interval: Annotated[timedelta, Check(_is_reasonable)] = timedelta(seconds=10)
    #: How long a node counts as alive after a heartbeat. With the default, two heartbeats in a row may be lost.
    lease: Annotated[timedelta, Check(_is_reasonable)] = timedelta(seconds=30)

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        if self.lease < 2 * self.heartbeat_interval:
            prefix = f"{at}." if at else ""
            interval = format_duration(self.heartbeat_interval)
            yield problem(
                f"{prefix}lease",
                format_duration(self.lease),
                f"must be at least twice {prefix}heartbeat_interval, which is {interval}",
            )

    @property
    def interval_seconds(self) -> float:
        """The heartbeat interval."""
        return self.heartbeat_interval.total_seconds()

    @property
    def lease_seconds(self) -> float:
        """The lease."""
        return self.lease.total_seconds()

    def suspect_after(self, lease: float) -> float:
        """Seconds of silence after which a node is Suspect: half its lease.

        But at least one and a half intervals, which is the same at the defaults. With a lease of only two intervals,
        every heartbeat that is a little late would otherwise make its node Suspect.
        """
        return min(lease, max(lease / 2, 1.5 * self.interval_seconds))

    def margin(self, lease: float) -> float:
        """Seconds kept between two owners of at-most-one work, on each side."""
        return lease * LEASE_MARGIN


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of one node: when its last heartbeat was received, and how long that counts."""

    last_receipt: float
    seconds: float
    #: False until the first heartbeat after a start of the control plane: until then the receipt is presumed.
    heard: bool = True

    @property
    def ends_at(self) -> float:
        """When the node counts as lost."""
        return self.last_receipt + self.seconds


@dataclass(frozen=True, slots=True)
class LeaseVerdict:
    """What a node's silence means now."""

    #: READY, SUSPECT or NOT_READY.
    state: NodeState
    #: Seconds until silence means something else; None when nothing is left to happen.
    next_change_in: float | None
    #: Whether even an agent that is alive but cut off has stopped its at-most-one work by now.
    may_give_away_at_most_one: bool
    #: Seconds since the last receipt, and the lease that it began.
    silence: float
    lease: float
    #: False while the receipt that this is judged from is only presumed.
    heard: bool = True

    @property
    def reason(self) -> str:
        """The verdict in words. Made on demand: few of them are told, and every node is judged in every round."""
        said = _silence_words(self.silence, heard=self.heard)
        return f"{said}; its lease of {_short(self.lease)} ran out" if self.state is NodeState.NOT_READY else said


def first_deadline_after_restart(*, started: float, promised: float, settings: LeaseSettings) -> Lease:
    """The lease of a known node when the control plane starts.

    The control plane received nothing while it was down, which is no fault of the node: its last heartbeat is presumed
    to have arrived at the start. A longer lease that was promised before is kept.
    """
    return Lease(last_receipt=started, seconds=max(promised, settings.lease_seconds), heard=False)


def renew(lease: Lease | None, *, receipt: float, settings: LeaseSettings) -> Lease:
    """The lease after an accepted heartbeat.

    Its end never moves back. After a restart with a shorter setting the answer to this heartbeat may be lost, and then
    the agent still counts on the longer lease.
    """
    seconds = settings.lease_seconds
    if lease is not None:
        seconds = max(seconds, lease.ends_at - receipt)
    return Lease(last_receipt=receipt, seconds=seconds)


def judge(
    *, last_receipt: float, lease: float, now: float, settings: LeaseSettings, heard: bool = True
) -> LeaseVerdict:
    """Say what a node's silence means. All times are of the control plane's own steady clock, in seconds."""
    silence = max(0.0, now - last_receipt)
    suspect_after = settings.suspect_after(lease)
    given_away_after = lease + settings.margin(lease)
    if silence < suspect_after and silence < lease:
        return LeaseVerdict(NodeState.READY, _wait(suspect_after - silence), False, silence, lease, heard)
    if silence < lease:
        return LeaseVerdict(NodeState.SUSPECT, _wait(lease - silence), False, silence, lease, heard)
    if silence < given_away_after:
        return LeaseVerdict(NodeState.NOT_READY, _wait(given_away_after - silence), False, silence, lease, heard)
    return LeaseVerdict(NodeState.NOT_READY, None, True, silence, lease, heard)


#: The next state for each state and verdict. Silence never makes a state better, so NotReady does not become Suspect.
#: Draining and Drained are set by an operator and no heartbeat undoes them; but a lost node is NotReady all the same.
_NEXT: Mapping[NodeState, Mapping[NodeState, NodeState]] = {
    NodeState.READY: {
        NodeState.READY: NodeState.READY,
        NodeState.SUSPECT: NodeState.SUSPECT,
        NodeState.NOT_READY: NodeState.NOT_READY,
    },
    NodeState.SUSPECT: {
        NodeState.READY: NodeState.READY,
        NodeState.SUSPECT: NodeState.SUSPECT,
        NodeState.NOT_READY: NodeState.NOT_READY,
    },
    NodeState.NOT_READY: {
        NodeState.READY: NodeState.READY,
        NodeState.SUSPECT: NodeState.NOT_READY,
        NodeState.NOT_READY: NodeState.NOT_READY,
    },
    NodeState.DRAINING: {
        NodeState.READY: NodeState.DRAINING,
        NodeState.SUSPECT: NodeState.DRAINING,
        NodeState.NOT_READY: NodeState.NOT_READY,
    },
    NodeState.DRAINED: {
        NodeState.READY: NodeState.DRAINED,
        NodeState.SUSPECT: NodeState.DRAINED,
        NodeState.NOT_READY: NodeState.NOT_READY,
    },
}

_DRAINING_STATES = (NodeState.DRAINING, NodeState.DRAINED)


def next_state(current: NodeState, verdict: LeaseVerdict, *, desired: NodeState | None = None) -> NodeState:
    """The state that follows from a verdict.

    A draining node that is lost is NotReady, and one state cannot hold both facts. So the operator's request
    (`desired`: DRAINING or DRAINED) is stored beside the state and passed here; it shows again when the node returns.

    A presumed receipt, because the control plane has just started, makes no state better either: a node that was lost
    before stays lost until a heartbeat arrives.
    """
    after = _NEXT[current][verdict.state]
    if after is NodeState.READY and not verdict.heard:
        after = current
    if desired in _DRAINING_STATES and after in (NodeState.READY, NodeState.SUSPECT):
        return desired
    return after


class HeartbeatVerdict(enum.Enum):
    """What to do with a heartbeat."""

    ACCEPT = "accept"  # from the agent that holds the node, and newer than all before
    REPEAT = "repeat"  # acknowledged and ignored: it renews nothing
    SUPERSEDED = "superseded"  # a later registration holds the node; this agent has to be told
    UNKNOWN_SESSION = "unknown session"  # no such session; the agent has to register first


def make_session(registered_ms: int, agent: str, *, after: SessionId = NO_SESSION) -> SessionId:
    """The id of a session: the time of registration, so that the later of two is known, and the agent's instance.

    It is later than `after`, the session that it ends, even if the clock was set back in between.
    """
    before = after.partition("-")[0]
    earliest = int(before) + 1 if before.isdigit() else 0
    return SessionId(f"{max(registered_ms, earliest):015d}-{agent}")


def same_agent(session: SessionId, other: SessionId) -> bool:
    """Whether two sessions belong to one instance of one agent."""
    return bool(session) and session.partition("-")[2] == other.partition("-")[2]


def judge_heartbeat(
    session_on_record: SessionId | None, session_given: SessionId, sequence_on_record: int, sequence_given: int
) -> HeartbeatVerdict:
    """Judge a heartbeat by its session and its sequence number.

    The session on record is None for an unknown node, and empty for an agent without sessions. Such agents number
    nothing, so all of their heartbeats are accepted. A heartbeat with an older session than the record comes from an
    agent that was replaced, unless both sessions are its own: then it has registered and the answer was lost. The
    sequence on record is 0 until the first heartbeat of a session arrives; an agent that does not count sends 0.

    A repeated or older number proves nothing: it may be a packet that lay in a queue while its sender died. It is
    acknowledged, so that a sender whose answer was lost continues, but it does not renew the lease.
    """
    if session_on_record is None:
        return HeartbeatVerdict.UNKNOWN_SESSION
    if session_given != session_on_record:
        # A session later than the record was not replaced: the record comes from an older copy of the database.
        older = bool(session_given) and session_given < session_on_record
        lost = older and not same_agent(session_given, session_on_record)
        return HeartbeatVerdict.SUPERSEDED if lost else HeartbeatVerdict.UNKNOWN_SESSION
    if session_on_record and sequence_given <= sequence_on_record and (sequence_given, sequence_on_record) != (0, 0):
        return HeartbeatVerdict.REPEAT
    return HeartbeatVerdict.ACCEPT


def _silence_words(silence: float, *, heard: bool) -> str:
    if heard:
        return f"no heartbeat for {_short(silence)}"
    return f"no heartbeat since the control plane started {_short(silence)} ago"


def _short(seconds: float) -> str:
    return format_duration(round(seconds, 1 if seconds >= 1 else 3))


def _wait(seconds: float) -> float:
    return max(seconds, _SHORTEST_WAIT)

"""Whether a node is alive, judged from when it was last heard of.

A lease is counted by the control plane's own steady clock from the receipt of a beat; what an agent's clock says
plays no part. The agent counts from when it sent the beat, which is earlier, so it always believes in an earlier end
than the control plane does.

    receipt ─────────── half ─────────── lease ──── margin ───▶
       Ready             Suspect          NotReady    at-most-one work is given away

At-most-one work stops on the agent `margin` before its end and is given away `margin` after ours. That is safe as
long as the two clocks run equally fast within a tenth; what they show does not matter.

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
    """How often agents beat and how long their silence is borne."""

    #: How often an agent is asked to beat. The default keeps a thousand nodes at a hundred beats a second.
    heartbeat_interval: Annotated[timedelta, Check(_is_reasonable)] = timedelta(seconds=10)
    #: How long a node counts as alive after a beat. At the default two beats may be lost before the third is late.
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

        But never less than one and a half intervals, which is the same at the defaults: with a lease of only two
        intervals every beat that is a little late would otherwise make its node Suspect.
        """
        return min(lease, max(lease / 2, 1.5 * self.interval_seconds))

    def margin(self, lease: float) -> float:
        """Seconds kept between two owners of at-most-one work, on each side."""
        return lease * LEASE_MARGIN


@dataclass(frozen=True, slots=True)
class Lease:
    """One node's lease: when the node was last heard of, and for how long that counts."""

    last_receipt: float
    seconds: float
    #: False until the first beat after a start of the control plane: then the receipt is only presumed.
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
    reason: str
    #: False while the receipt that this is judged from is only presumed.
    heard: bool = True


def first_deadline_after_restart(*, started: float, promised: float, settings: LeaseSettings) -> Lease:
    """The lease of a known node when the control plane starts.

    Nothing was heard while it was away, and that is no fault of the node: it counts as heard of at the start. What
    was promised before is honoured even if the setting is shorter now.
    """
    return Lease(last_receipt=started, seconds=max(promised, settings.lease_seconds), heard=False)


def renew(lease: Lease | None, *, receipt: float, settings: LeaseSettings) -> Lease:
    """The lease after an accepted beat.

    Its end never moves back. After a restart with a shorter setting the answer to this beat may be lost, and then
    the agent goes on believing in the longer lease it was promised before.
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
    said = _silence_words(silence, heard=heard)
    if silence < suspect_after and silence < lease:
        return LeaseVerdict(NodeState.READY, _wait(suspect_after - silence), False, said, heard)
    if silence < lease:
        return LeaseVerdict(NodeState.SUSPECT, _wait(lease - silence), False, said, heard)
    reason = f"{said}; its lease of {_short(lease)} ran out"
    if silence < given_away_after:
        return LeaseVerdict(NodeState.NOT_READY, _wait(given_away_after - silence), False, reason, heard)
    return LeaseVerdict(NodeState.NOT_READY, None, True, reason, heard)


#: What a state becomes by a verdict. Silence alone never makes a state better, so NotReady does not become Suspect.
#: Draining and Drained are a person's wish, which no beat undoes; but a lost node is lost, whatever was wished of it.
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

    A node that was being emptied and is then lost is NotReady, and one state cannot hold both facts. Whoever lets
    people drain nodes keeps their `wish` (DRAINING or DRAINED) beside the state and passes it here: it comes back
    into sight when the node does. Without one, what `current` shows of a wish counts.

    A receipt that is only presumed, because the control plane has just started, makes no state better either: a node
    that was lost before stays so until it really beats.
    """
    after = _NEXT[current][verdict.state]
    if after is NodeState.READY and not verdict.heard:
        after = current
    if desired in _DRAINING_STATES and after in (NodeState.READY, NodeState.SUSPECT):
        return desired
    return after


class HeartbeatVerdict(enum.Enum):
    """What to do with a heartbeat."""

    ACCEPT = "accept"  # it is from the agent that holds the node, and newer than any before it
    REPEAT = "repeat"  # acknowledged, and ignored: it says nothing new and renews nothing
    SUPERSEDED = "superseded"  # a later registration holds the node; this agent has to be told
    UNKNOWN_SESSION = "unknown session"  # nobody registered so; this agent has to register first


def make_session(registered_ms: int, agent: str, *, after: str = "") -> str:
    """A session's name: when it was made, so that of two the later one is known, and the run of the agent that has it.

    It is later than `after`, the session that it ends, also when the clock was set back meanwhile.
    """
    before = after.partition("-")[0]
    earliest = int(before) + 1 if before.isdigit() else 0
    return f"{max(registered_ms, earliest):015d}-{agent}"


def same_agent(session: str, other: str) -> bool:
    """Whether two sessions were given to one run of one agent."""
    return bool(session) and session.partition("-")[2] == other.partition("-")[2]


def judge_heartbeat(
    session_on_record: str | None, session_given: str, sequence_on_record: int, sequence_given: int
) -> HeartbeatVerdict:
    """Judge a heartbeat by its session and its sequence number.

    The session on record is None when the node is not known and empty when its agent knows no sessions; such agents
    number nothing, so all of their beats are accepted. A beat that names an older session than the record is from an
    agent whose place another has taken, unless both are its own: then it has registered and the answer was lost. The
    sequence on record is 0 until a session's first beat arrived here; an agent that does not count sends 0 always.

    A repeated or older number proves no life: it may be a packet that lay in a queue while its sender died. It is
    acknowledged, so that a sender whose answer was lost goes on to its next beat, but it does not renew the lease.
    """
    if session_on_record is None:
        return HeartbeatVerdict.UNKNOWN_SESSION
    if session_given != session_on_record:
        # A later session than the one on record is no loser: the record is from an older copy of the database.
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

"""Registers the agent with the control plane and sends its heartbeats.

Each heartbeat is a full snapshot with a sequence number. One is sent each interval, and at once when a status changed
(at most ten a second). The lease is counted from the sending of the last acknowledged heartbeat
(`shoal.agent.workloads.contact`). Each acknowledgement extends the deadlines of at-most-one runs; when the lease ends
by this agent's count, they are stopped.

Errors change nothing for running workloads. The agent tries all addresses in turn, with jittered backoff. When the
stream breaks, a heartbeat is sent soon on a new one: until then the node is Suspect. An acknowledgement of an earlier
term is ignored. An acknowledgement of a control plane that cannot confirm its leadership counts as contact but extends
no deadline, and the next heartbeat goes to the next address.

A command may bring a newer term than the last acknowledgement. Then the agent sends a heartbeat at once and waits only
briefly for the control plane that it knows, because that one may hang.

An agent whose node id was taken by another agent stops sending and logs it. The agent drains only after an acknowledged
answer said so. Called by `shoal.agent.server`; calls `shoal.agent.contact.link`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.contact.link import ControlLink
from shoal.agent.contact.states import RegistrationChange, RegistrationState, change_registration
from shoal.agent.contact.terms import Terms
from shoal.agent.facts import WorkloadReport
from shoal.agent.metrics import AgentMetrics
from shoal.agent.workloads.contact import Contact
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import NotFoundError, SessionSupersededError, ShoalError, StaleTermError, UnavailableError
from shoal.core.faults import reach
from shoal.core.ids import NO_SESSION, SessionId, WorkloadId
from shoal.core.retry import Backoff
from shoal.core.tasks import Signal, running
from shoal.model.nodes import HeartbeatMark, NodeCondition, NodeSpec, NodeUsage
from shoal.model.workloads import RunState, RunStatus, Usage
from shoal.wire import convert
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Service

log = logging.getLogger(__name__)

#: Heartbeats that follow from changes are at least this far apart.
MIN_GAP = 0.1
#: A workload that is accepted usually starts a moment later: one heartbeat reports both.
SETTLE = 0.02
DEFAULT_INTERVAL = 10.0
#: The lease in intervals, if the control plane names none.
LEASE_INTERVALS = 3.0
MAX_CALL_SECONDS = 10.0
MIN_CALL_SECONDS = 1.0
#: When a control plane stops, all agents notice at once. They come back spread over so many seconds.
RECONNECT_SPREAD = 0.5
#: How long to wait for a control plane once a newer term is known. A leader whose database hangs takes a second to
#: answer.
TURN_SECONDS = 2.0
#: A control plane with an earlier term is logged at most so often.
STALE_TERM_SECONDS = 60.0
#: So many reasons are logged while there is no contact.
MOST_REASONS = 20

RETRY = Backoff(first=0.5, cap=15.0)

T = TypeVar("T")


class Reports(Protocol):
    """What a heartbeat is made of, and what its answer changes."""

    def statuses(self) -> tuple[WorkloadReport, ...]:
        """Every workload of the node."""
        ...

    async def measure(self) -> None:
        """Measure what the node and its workloads use. Never waits for a sampling interval."""
        ...

    def usages(self) -> dict[WorkloadId, Usage]:
        """What workloads used when it was last measured."""
        ...

    def node_usage(self) -> NodeUsage:
        """What the node used when it was last measured, and what is reserved now."""
        ...

    def conditions(self) -> tuple[NodeCondition, ...]:
        """What is wrong with the node."""
        ...

    def set_draining(self, draining: bool) -> None:
        """Set by the control plane."""
        ...

    async def extend_deadlines(self, silence: float) -> None:
        """There is contact after a silence of so long: runs with a deadline that has not passed go on."""
        ...

    def lose_contact(self, silence: float) -> None:
        """There was no contact for so long: runs that depend on it end."""
        ...


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often to send heartbeats, and how long each counts, as the control plane says."""

    interval: float = DEFAULT_INTERVAL
    lease: float = DEFAULT_INTERVAL * LEASE_INTERVALS

    @property
    def patience(self) -> float:
        """How long to wait for an answer: short enough for another try within the lease."""
        return min(MAX_CALL_SECONDS, max(MIN_CALL_SECONDS, self.lease / LEASE_INTERVALS))


class Registration:
    """Keeps one node registered."""

    def __init__(
        self,
        *,
        client: ControlClient,
        services: Sequence[Service],
        stream_only: bool,
        spec: Callable[[], NodeSpec],
        reports: Reports,
        contact: Contact,
        changed: Signal,
        clock: Clock,
        entropy: Entropy,
        metrics: AgentMetrics,
        terms: Terms,
        previous_session: SessionId = NO_SESSION,
        remember_session: Callable[[SessionId], Awaitable[None]] | None = None,
    ) -> None:
        self.state = RegistrationState.OFFLINE
        #: Why, when it is not registered.
        self.reason = "not reached yet"
        self.rhythm = Rhythm()
        self._client = client
        self._link = ControlLink(
            client, services, stream_only=stream_only, observer=metrics, on_broken=self._on_stream_broken
        )
        self._spec_now = spec
        #: What was registered last.
        self._spec = spec()
        self._reports = reports
        self._contact = contact
        self._changed = changed
        self._clock = clock
        self._entropy = entropy
        self._metrics = metrics
        self._terms = terms
        self._previous_session = previous_session
        self._remember_session = remember_session
        #: Identifies this process: a registration whose answer was lost is recognized as this agent's.
        self._instance = entropy.token()
        self._session = NO_SESSION
        self._sequence = 0
        self._measured_at = -math.inf
        self._registered_at = -math.inf
        #: Calls in a row that brought no acknowledgement.
        self._failures = 0
        self._stream_broke = False
        #: When the last heartbeat was sent that was acknowledged at all.
        self._acknowledged_at = -math.inf
        self._unconfirmed = False
        self._stale_told_at = -math.inf
        #: The address and the error of the last call that failed, for `report_outages`.
        self._failure = ("", "")
        self._failed = Signal()
        #: Addresses and errors since the last contact, and the reasons that were logged for them.
        self._told: set[tuple[str, str]] = set()
        #: Set while a newer term is known that has not acknowledged a heartbeat.
        self._newer = asyncio.Event()
        #: Ends the wait for the next try.
        self._hurry = Signal()
        terms.on_newer(self._on_newer_term)

    @property
    def address(self) -> str:
        """The control plane in use."""
        return self._client.address

    async def close(self) -> None:
        """Close the stream and the connection."""
        await self._link.close()

    def next_heartbeat(self) -> HeartbeatMark:
        """The next heartbeat; without a session while there is none."""
        return HeartbeatMark(self._session, self._sequence + 1)

    # -----------------------------------------------------------------------------------------------------
    # Loops

    async def run(self) -> None:
        """Stay registered until cancelled; returns only when another agent took the node id."""
        while True:
            try:
                await self._confirm_session()
                await self._register()
                await self._heartbeat_loop()
            except SessionSupersededError as error:
                self._change(RegistrationChange.SUPERSEDED, error.message)
                log.error("%s; %s. Workloads go on and are left alone", error.message, error.hint)
                await self._link.close()
                return
            except NotFoundError:
                # The control plane has no record of this node: no outage, but retries are spread all the same.
                self._change(RegistrationChange.FORGOTTEN, "the control plane does not know this node")
                self._previous_session, self._session = self._session or self._previous_session, NO_SESSION
            except ShoalError as error:
                self._change(RegistrationChange.LOST, error.message)
                await self._link.use_next()
            self._failures += 1
            await self._hurry.wait(timeout=self._retry_delay())

    async def _confirm_session(self) -> None:
        """Ask whether another agent took the node id while this one was away.

        If so, this agent sends nothing more: a new registration would take the id back from an agent that may run the
        work by now. Only a restart of this agent by a person does that.
        """
        if not self._session:
            return
        try:
            await self._heartbeat(self._clock.monotonic())
        except SessionSupersededError:
            raise
        except ShoalError as error:
            self._change(RegistrationChange.LOST, error.message)

    def _retry_delay(self) -> float:
        """At most an interval, so that a control plane that comes back is found within one."""
        longest = max(self.rhythm.interval, RETRY.first)
        return min(longest, RETRY.delay(self._failures, self._entropy))

    async def watch_lease(self) -> None:
        """Stop at-most-one runs when the lease ends, whatever the other loop waits for."""
        while True:
            await self._contact.wait_for_lease()
            while (left := self._contact.time_left()) > 0:
                await self._clock.sleep(left)
            log.warning("no contact for a lease with a control plane that is certain to lead")
            self._reports.lose_contact(self._contact.silence())

    async def report_outages(self) -> None:
        """Log why the control plane cannot be reached: each reason once, until there is contact again."""
        while True:
            await self._failed.wait()
            failure = self._failure
            if self.state is not RegistrationState.OFFLINE or failure in self._told or len(self._told) >= MOST_REASONS:
                continue
            self._told.add(failure)
            known = await self._client.diagnose(failure[0])
            if self.state is not RegistrationState.OFFLINE:
                continue
            found = failure[0], known.reason if known is not None else failure[1]
            if found == failure or found not in self._told:
                self._told.add(found)
                log.warning("no contact with the control plane at %s: %s", *found)

    async def _heartbeat_loop(self) -> None:
        """Send heartbeats until the control plane does not know this node, or was not reached for a lease."""
        sent_at = self._clock.monotonic()
        await self._try_heartbeat(sent_at)
        while True:
            next_at = sent_at + self.rhythm.interval
            if self._failures:
                next_at = self._clock.monotonic() + self._retry_delay()
            await self._wait_for_heartbeat(next_at, sent_at, hurry=self._failures == 0)
            if self._lease_is_over():
                raise UnavailableError("the lease has run out")
            if self._unconfirmed and self._client.has_others:
                self._unconfirmed = False
                await self._link.use_next()
            if self._spec_now() != self._spec:
                log.info("what this node can run has changed: it registers again")
                await self._register()
            sent_at = self._clock.monotonic()
            await self._try_heartbeat(sent_at)

    async def _try_heartbeat(self, sent_at: float) -> None:
        """Send one heartbeat. While the lease lasts, a failed one is sent again on this registration."""
        try:
            await self._heartbeat(sent_at)
        except (NotFoundError, SessionSupersededError):
            self._metrics.heartbeat("refused")
            raise
        except ShoalError as error:
            self._metrics.heartbeat("failed")
            if self._lease_is_over():
                raise
            self._failures += 1
            self._change(RegistrationChange.LOST, error.message)
            await self._link.use_next()

    def _lease_is_over(self) -> bool:
        since = self._registered_at if self._acknowledged_at == -math.inf else self._acknowledged_at
        return self._clock.monotonic() - since >= self.rhythm.lease

    async def _wait_for_heartbeat(self, next_at: float, sent_at: float, *, hurry: bool) -> None:
        wait = next_at - self._clock.monotonic()
        if wait <= 0:
            return
        if not hurry:
            await self._hurry.wait(timeout=wait)
        elif await self._changed.wait(timeout=wait):
            if self._stream_broke:
                spread = min(RECONNECT_SPREAD, self.rhythm.interval / 2)
                await self._clock.sleep(self._entropy.uniform(0.0, spread))
            gap = sent_at + MIN_GAP - self._clock.monotonic()
            await self._clock.sleep(max(gap, SETTLE))

    def _on_stream_broken(self) -> None:
        self._stream_broke = True
        self._changed.set()

    def _on_newer_term(self, term: int, of: str) -> None:
        """A newer term is known. If its leader said so on this agent's own stream, there is nothing to do."""
        if of != self.address:
            log.info("term %d was heard of from %s, and not from %s", term, of, self.address)
            self._newer.set()
            self._hurry.set()
            self._changed.set()

    # -----------------------------------------------------------------------------------------------------
    # Calls

    async def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for an answer; only briefly when a newer term is known."""
        async with running(call, name="call") as asking, running(self._newer.wait(), name="newer term") as hearing:
            await asyncio.wait({asking, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await asyncio.wait({asking}, timeout=TURN_SECONDS)
            if not asking.done():
                raise UnavailableError(f"term {self._terms.highest} has begun, and {self.address} does not answer")
            return asking.result()

    async def send_last_heartbeat(self, stopped: frozenset[WorkloadId], *, seconds: float) -> None:
        """Report that this agent has stopped these workloads. A failure is logged only."""
        if not self._session or self.state is RegistrationState.SUPERSEDED:
            return
        request = self._snapshot(stopped)
        try:
            async with asyncio.timeout(seconds):
                await self._link.heartbeat(request, timeout=seconds)
        except (ShoalError, TimeoutError) as error:
            log.info("the control plane was not told that workloads were stopped: %s", error)

    async def _register(self) -> None:
        self._spec = self._spec_now()
        request = convert.node_spec_to_proto(
            self._spec,
            timestamp=self._clock.wall(),
            previous_session=self._session or self._previous_session,
            instance=self._instance,
        )
        try:
            answer = await self._answer(self._link.register_node(request, timeout=MAX_CALL_SECONDS))
        except ShoalError:
            self._metrics.registration("failed")
            raise
        if not answer.accepted:
            self._metrics.registration("refused")
            reason = answer.reason or "no reason was given"
            if (self.state, self.reason) != (RegistrationState.REFUSED, reason):
                log.error("the control plane at %s refuses this node: %s", self.address, reason)
            self._change(RegistrationChange.REFUSED, reason)
            raise UnavailableError(reason)
        self._metrics.registration("accepted")
        self._change(RegistrationChange.ACCEPTED, self.reason)
        self._session, self._sequence = SessionId(answer.session), 0
        self._registered_at = self._clock.monotonic()
        interval = answer.heartbeat_interval_ms / 1000 or float(answer.heartbeat_interval_seconds)
        interval = interval if interval > 0 else DEFAULT_INTERVAL
        self.rhythm = Rhythm(interval, self._lease_of(answer, otherwise=interval * LEASE_INTERVALS))
        reach("agent.register.after")
        log.info("registered with the control plane at %s", self.address)
        if self._remember_session is not None and answer.session:
            await self._remember_session(self._session)

    async def _heartbeat(self, sent_at: float) -> None:
        if sent_at - self._measured_at >= self.rhythm.interval:
            # Heartbeats after changes must be quick, and rates over tenths of a second say little.
            self._measured_at = sent_at
            await self._reports.measure()
        request = self._snapshot()
        self._stream_broke = False
        reach("agent.heartbeat.before")
        answer = await self._answer(self._link.heartbeat(request, timeout=self.rhythm.patience))
        if not answer.acknowledged:
            raise UnavailableError("the control plane did not acknowledge a heartbeat")
        await self._hear_term(answer.term)
        self._newer.clear()  # the leader of the newest term answered, or one without terms
        interval = answer.heartbeat_interval_ms / 1000 or self.rhythm.interval
        self.rhythm = Rhythm(interval, self._lease_of(answer, otherwise=self.rhythm.lease))
        self._failures = 0
        self._acknowledged_at = sent_at
        self._change(RegistrationChange.ACKNOWLEDGED, "")
        self._note_certainty(unconfirmed=answer.unconfirmed)
        self._metrics.heartbeat("unconfirmed" if answer.unconfirmed else "acknowledged")
        if not answer.unconfirmed:
            await self._take_in(answer, sent_at)

    def _note_certainty(self, *, unconfirmed: bool) -> None:
        if unconfirmed:
            if self._contact.leader:
                log.warning("the control plane at %s cannot tell whether it still leads", self.address)
            self._contact.leader = ""
        self._unconfirmed = unconfirmed

    async def _hear_term(self, term: int) -> None:
        try:
            await self._terms.hear(term, of=self.address)
        except StaleTermError:
            now = self._clock.monotonic()
            level = logging.WARNING if now - self._stale_told_at >= STALE_TERM_SECONDS else logging.DEBUG
            if level == logging.WARNING:
                self._stale_told_at = now
            log.log(level, "the control plane at %s speaks for term %d, which is over", self.address, term)
            raise
        except ShoalError as error:
            log.warning("term %d could not be stored: %s", term, error.message)

    async def _take_in(self, answer: pb.HeartbeatResponse, sent_at: float) -> None:
        silence, was_lost = self._contact.silence(), self._contact.has_lapsed()
        if was_lost:
            # Another node may own the at-most-one work by now. What still runs of it ends before ownership is asked for
            # again, also if this process was stopped and noticed nothing.
            self._reports.lose_contact(silence)
        self._contact.renew(sent_at=sent_at, lease=self.rhythm.lease, leader=self.address)
        self._reports.set_draining(answer.drain_node)
        await self._reports.extend_deadlines(silence if was_lost else 0.0)

    def _snapshot(self, stopped: frozenset[WorkloadId] = frozenset()) -> pb.HeartbeatRequest:
        reports, usages = self._reports.statuses(), self._reports.usages()
        if stopped:
            at = self._clock.wall()
            reports = tuple(
                replace(each, status=_stopped_with_agent(each.status, at))
                if each.status.workload_id in stopped
                else each
                for each in reports
            )
        self._sequence += 1
        measured = [
            convert.usage_to_control(usages.get(each.status.workload_id), each.status.workload_id, each.type.value)
            for each in reports
        ]
        return pb.HeartbeatRequest(
            node_id=self._spec.node_id,
            usage=convert.node_usage_to_proto(self._reports.node_usage()),
            workload_statuses=[convert.run_status_to_control(each.status, each.type.value) for each in reports],
            timestamp=convert.timestamp_to_proto(self._clock.wall()),
            workload_usage=[each for each in measured if each is not None],
            session=self._session,
            sequence=self._sequence,
            conditions=[convert.node_condition_to_proto(each) for each in self._reports.conditions()],
        )

    def _lease_of(self, answer: pb.RegisterNodeResponse | pb.HeartbeatResponse, *, otherwise: float) -> float:
        """The lease in the answer: in milliseconds, else by its date, else `otherwise`."""
        if answer.lease_ms > 0:
            return answer.lease_ms / 1000
        if answer.HasField("lease_expires_at"):
            ends_at = answer.lease_expires_at.seconds + answer.lease_expires_at.nanos / 1e9
            left = ends_at - self._clock.wall().timestamp()
            if left > 0:
                return left
        return otherwise

    def _change(self, what: RegistrationChange, reason: str) -> None:
        before, after = self.state, change_registration(self.state, what)
        if before is not after and what is RegistrationChange.ACKNOWLEDGED:
            log.info("in contact with the control plane at %s", self.address)
            self._told.clear()
        elif before is not after and what is RegistrationChange.FORGOTTEN:
            log.warning("no contact with the control plane at %s: %s", self.address, reason)
        self.state = after
        if after is not RegistrationState.REFUSED or what is RegistrationChange.REFUSED:
            self.reason = reason
        if what is RegistrationChange.LOST:
            self._failure = self.address, reason
            self._failed.set()


def _stopped_with_agent(status: RunStatus, at: datetime) -> RunStatus:
    """The status of a workload that was stopped with its agent: it starts again with the next one."""
    return replace(
        status,
        state=RunState.PENDING,
        message="it was stopped with its agent, and starts again with it",
        last_transition=at,
        ready=False,
        pid=0,
        usage=None,
    )

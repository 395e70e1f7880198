"""The client of the control plane: one coroutine for each RPC, values instead of protos, errors as they were raised.

    async with ControlPlane(["127.0.0.1:8085"], GrpcTransport()) as control:
        await control.apply(document)
        await control.wait_for("web", lambda view: view is not None and view.status == "Running", timeout=30)

With several addresses a call that can be repeated without harm goes to the next one when the first cannot be reached;
one that cannot (it compares and sets, or its second time would be an error) is made once, at an address that has just
answered. A control plane that does not lead names the one that does, and that one is asked next, whether it is in the
list or not. What changes too fast to be stored (heartbeats, usage) is read from the leader as long as there is one in
reach, and otherwise from any, without it. Waiting follows the control plane's events and looks again from time to time,
so it is quick when events flow and still right when they do not. Called by `shoal.cli`, by workloads that have an
identity and by tests; agents register and beat through `shoal.agent.contact.registration`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self, TypeVar

from google.protobuf.message import Message

from shoal.core.clock import Clock, SystemClock
from shoal.core.durations import format_duration
from shoal.core.errors import (
    DeadlineError,
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    PreconditionError,
    Problem,
    ShoalError,
    UnavailableError,
    UnsupportedError,
    problem,
)
from shoal.core.retry import Backoff
from shoal.core.tasks import Signal, TaskScope
from shoal.model.documents import GroupDocument, WorkloadDocument
from shoal.model.events import Event
from shoal.model.identity import CONTROL_PLANE
from shoal.model.trust import JoinTokenView, SecretView
from shoal.model.views import ClusterSummary, GroupView, NodeView, PlannedPlacement, WorkloadView
from shoal.model.workloads import DesiredState, FailureReason
from shoal.wire import convert
from shoal.wire.access import Access
from shoal.wire.addresses import Address, parse_address
from shoal.wire.methods import LIVE_HEADER, AgentControl, Credentials, Secrets
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.pb.shoal.v1 import secrets_pb2
from shoal.wire.routes import ControlAddresses, Route, in_doubt, was_said
from shoal.wire.transport import DEFAULT_TIMEOUT, Channel, Method, Transport

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

PagedT = TypeVar("PagedT", pb.ListNodesRequest, pb.ListWorkloadsRequest, pb.ListGroupsRequest)
PageT = TypeVar("PageT", pb.ListNodesResponse, pb.ListWorkloadsResponse, pb.ListGroupsResponse)

PAGE_SIZE = 1000
"""How many entries of a list are asked for at once."""

LOOK_EVERY = 2.0
"""Seconds after which a wait looks again although no event came: an event can be lost, a look cannot."""

COMES_BACK_WITHIN = 2.0
"""Seconds that a control plane which has answered before may be away until a call fails: it is being restarted, or it
is back and the connection has not noticed yet. One that was never reached fails at once, because then the address is
likely to be wrong."""

LIVE_WITHIN = 3.0
"""Seconds that a leader is waited for when something is read and another control plane could answer as well."""

LEADER_WITHIN = 10.0
"""Seconds that a call waits for a leader, when a control plane has said that it does not lead."""

_RETRY_EVERY = 0.1
_LIST_FROM = 8
"""From this many workloads on, one list of all costs less than a call for each."""

_RECONNECT = Backoff(first=0.2, cap=2.0)
_HELD = 1.0

Condition = Callable[[WorkloadView | None], bool]
"""Given the workload as it is now, or None when there is none; says whether the wait is over."""


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """What became of a wish for one workload."""

    workload_id: str
    revision_id: str
    generation: int
    #: created | updated | unchanged; empty from a control plane that does not say.
    outcome: str


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What became of a wish for a group."""

    group_id: str
    generation: int
    #: created | updated | unchanged
    outcome: str
    members: tuple[WorkloadView, ...]


@dataclass(frozen=True, slots=True)
class PlacementPreview:
    """What applying would do, although nothing was stored."""

    placements: tuple[PlannedPlacement, ...]
    placeable: bool


@dataclass(frozen=True, slots=True)
class NewJoinToken:
    """A join token, this once."""

    text: str
    view: JoinTokenView
    #: Of the control plane that made it.
    join_port: int
    #: Where nodes may join: at the control plane that made it, and at those that could lead next.
    join_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events in order, and where to go on."""

    events: tuple[Event, ...]
    #: The cursor to pass as `after` for what comes next.
    next: int
    #: The oldest cursor that is still kept.
    oldest: int


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some bytes that a workload printed."""

    data: bytes
    #: stdout | stderr
    stream: str


class ControlPlane:
    """A client of one control plane, which may have several addresses.

    Args:
        addresses: host:port of each; tried in turn.
        transport: how they are reached.
        clock: tells and waits time.
        timeout: seconds that one call may take.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        transport: Transport,
        *,
        clock: Clock | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        #: The address that answered last is asked first. It may be the leader's, by another control plane's word.
        self._addresses = ControlAddresses(addresses, field="addresses")
        self.addresses = self._addresses.configured
        self._transport = transport
        self._clock: Clock = clock or SystemClock()
        self._timeout = timeout
        self._channels: dict[str, Channel] = {}
        self._answered = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """A client as the environment says, which is how an agent tells a workload that has an identity.

        Reads SHOAL_CONTROL, and SHOAL_CA, SHOAL_CERT and SHOAL_KEY, or SHOAL_INSECURE. Raises `InvalidError`.
        """
        from shoal.wire.channel import GrpcTransport

        given = os.environ if environment is None else environment
        insecure = given.get("SHOAL_INSECURE", "").lower() in {"1", "true", "yes", "on"}
        ca, cert, key = (given.get(f"SHOAL_{name}", "") for name in ("CA", "CERT", "KEY"))
        access = Access(ca, cert, key, insecure)
        addresses = [each.strip() for each in given.get("SHOAL_CONTROL", "").split(",") if each.strip()]
        problems = list(access.problems("SHOAL_", otherwise="give the files of a certificate"))
        problems = [replace(each, field=each.field.upper()) for each in problems]
        if not addresses:
            problems.insert(0, problem("SHOAL_CONTROL", None, "is required: where is the control plane?"))
        if problems:
            raise InvalidError(problems)
        return cls(addresses, GrpcTransport(security=access.security()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of every connection."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    # -----------------------------------------------------------------------------------------------------
    # Workloads

    async def apply(self, document: WorkloadDocument, *, expected_revision: str = "") -> ApplyOutcome:
        """Store a wish. Raises `InvalidError` or another reason why not; nothing was changed then."""
        request = pb.ApplyWorkloadRequest(
            workload_id=document.id,
            spec=convert.workload_spec_to_proto(document.spec),
            revision_id=document.revision,
            desired_state=document.desired_state,
            expected_revision=expected_revision,
        )
        answer = await self._call(
            AgentControl.APPLY_WORKLOAD, request, once=bool(expected_revision), look=f"shoal workload get {document.id}"
        )
        if not answer.success:
            raise _apply_error(document.id, answer)
        return ApplyOutcome(document.id, answer.revision_id, answer.generation, answer.outcome)

    async def delete(self, workload_id: str) -> None:
        """Store the wish to remove a workload. It is gone once `get_workload` does not find it any more."""
        request = pb.DeleteWorkloadRequest(workload_id=workload_id)
        answer = await self._call(AgentControl.DELETE_WORKLOAD, request, look=f"shoal workload get {workload_id}")
        if not answer.success:
            raise _refusal("workload", workload_id, answer.error_message or "the deletion was refused")

    async def retry(self, workload_id: str) -> None:
        """Start a failed workload again at once."""
        request = pb.RetryWorkloadRequest(workload_id=workload_id)
        answer = await self._call(AgentControl.RETRY_WORKLOAD, request, look=f"shoal workload get {workload_id}")
        if not answer.accepted:
            raise _refusal("workload", workload_id, answer.error_message or "there is nothing to retry")

    async def set_desired_state(self, workload_id: str, desired: DesiredState) -> WorkloadView:
        """Start or stop a workload without a change of its spec."""
        request = pb.SetDesiredStateRequest(workload_id=workload_id, desired_state=desired.value)
        answer = await self._call(AgentControl.SET_DESIRED_STATE, request, look=f"shoal workload get {workload_id}")
        return convert.workload_view_from_proto(answer.workload)

    async def list_workloads(
        self, *, node_id: str = "", status: str = "", group_id: str = ""
    ) -> tuple[WorkloadView, ...]:
        """The workloads, narrowed by what is given. Long lists are read page by page."""
        request = pb.ListWorkloadsRequest(node_id=node_id, status=status, group_id=group_id)
        pages = self._pages(AgentControl.LIST_WORKLOADS, request)
        return tuple([convert.workload_view_from_proto(view) async for page in pages for view in page.workloads])

    async def get_workload(self, workload_id: str) -> WorkloadView:
        """One workload. Raises `NotFoundError`."""
        request = pb.GetWorkloadRequest(workload_id=workload_id)
        answer = await self._call(AgentControl.GET_WORKLOAD, request, live=True)
        return convert.workload_view_from_proto(answer.workload)

    async def plan(self, documents: Sequence[WorkloadDocument], *, together: bool = False) -> PlacementPreview:
        """Where workloads would go now, and why. With `together`, all or none, as a group."""
        request = pb.PlanPlacementRequest(members=_members(documents), together=together)
        answer = await self._call(AgentControl.PLAN_PLACEMENT, request)
        return PlacementPreview(
            tuple(convert.planned_placement_from_proto(each) for each in answer.placements), answer.placeable
        )

    def logs(self, workload_id: str, *, tail: int = 0, follow: bool = False) -> AsyncGenerator[LogPiece, None]:
        """What a workload printed, oldest first; the last `tail` lines, or all that is kept when 0."""
        return self._logs(pb.ReadLogsRequest(workload_id=workload_id, tail_lines=tail, follow=follow))

    # -----------------------------------------------------------------------------------------------------
    # Groups

    async def apply_group(self, document: GroupDocument, *, expected_generation: int | None = None) -> GroupOutcome:
        """Store a wish for a whole set of workloads, all or none."""
        request = pb.ApplyGroupRequest(
            group_id=document.id, members=_members(document.members), expected_generation=expected_generation
        )
        answer = await self._call(
            AgentControl.APPLY_GROUP,
            request,
            once=expected_generation is not None,
            look=f"shoal group get {document.id}",
        )
        members = tuple(convert.workload_view_from_proto(view) for view in answer.members)
        return GroupOutcome(document.id, answer.generation, answer.outcome, members)

    async def delete_group(self, group_id: str, *, expected_generation: int | None = None) -> int:
        """Store the wish to remove a group and its members. Returns the group's generation."""
        request = pb.DeleteGroupRequest(group_id=group_id, expected_generation=expected_generation)
        answer = await self._call(
            AgentControl.DELETE_GROUP,
            request,
            once=expected_generation is not None,
            look=f"shoal group get {group_id}",
        )
        return answer.generation

    async def list_groups(self) -> tuple[GroupView, ...]:
        """Every group."""
        pages = self._pages(AgentControl.LIST_GROUPS, pb.ListGroupsRequest())
        return tuple([convert.group_view_from_proto(view) async for page in pages for view in page.groups])

    async def get_group(self, group_id: str) -> GroupView:
        """One group. Raises `NotFoundError`."""
        answer = await self._call(AgentControl.GET_GROUP, pb.GetGroupRequest(group_id=group_id), live=True)
        return convert.group_view_from_proto(answer.group)

    # -----------------------------------------------------------------------------------------------------
    # Nodes and the whole

    async def list_nodes(self, *, status: str = "") -> tuple[NodeView, ...]:
        """The nodes, or those in one state."""
        pages = self._pages(AgentControl.LIST_NODES, pb.ListNodesRequest(status=status))
        return tuple([convert.node_view_from_proto(view) async for page in pages for view in page.nodes])

    async def get_node(self, node_id: str) -> NodeView:
        """One node. Raises `NotFoundError`."""
        answer = await self._call(AgentControl.GET_NODE, pb.GetNodeRequest(node_id=node_id), live=True)
        return convert.node_view_from_proto(answer.node)

    async def remove_node(self, node_id: str) -> None:
        """Forget a node that is gone. Raises `PreconditionError` while it still beats."""
        request = pb.RemoveNodeRequest(node_id=node_id)
        await self._call(AgentControl.REMOVE_NODE, request, once=True, look="shoal node list")

    async def cordon_node(self, node_id: str) -> NodeView:
        """Let no new work go to a node."""
        request = pb.CordonNodeRequest(node_id=node_id)
        answer = await self._call(AgentControl.CORDON_NODE, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def uncordon_node(self, node_id: str) -> NodeView:
        """Let a node take work again, after a cordon or a drain."""
        request = pb.UncordonNodeRequest(node_id=node_id)
        answer = await self._call(AgentControl.UNCORDON_NODE, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def drain_node(self, node_id: str, *, deadline: timedelta | None = None, force: bool = False) -> NodeView:
        """Have a node emptied; past the deadline, or at once with `force`, whatever that costs."""
        millis = max(1, deadline // timedelta(milliseconds=1)) if deadline is not None else 0
        request = pb.DrainNodeRequest(node_id=node_id, deadline_ms=millis, force=force)
        answer = await self._call(AgentControl.DRAIN_NODE, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def mark_node_dead(self, node_id: str, *, force: bool = False) -> NodeView:
        """Say that nothing runs on a node any more. Raises `PreconditionError` while it beats, unless forced."""
        request = pb.MarkNodeDeadRequest(node_id=node_id, force=force)
        answer = await self._call(AgentControl.MARK_NODE_DEAD, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def adopt(self, node_id: str, workload_id: str) -> WorkloadView:
        """Take over a workload that runs on a node and is not known."""
        request = pb.AdoptWorkloadRequest(node_id=node_id, workload_id=workload_id)
        look = f"shoal workload get {workload_id}"
        answer = await self._call(AgentControl.ADOPT_WORKLOAD, request, once=True, look=look)
        return convert.workload_view_from_proto(answer.workload)

    async def summary(self) -> ClusterSummary:
        """The fleet in numbers."""
        answer = await self._call(AgentControl.GET_CLUSTER_SUMMARY, pb.GetClusterSummaryRequest(), live=True)
        return convert.cluster_summary_from_proto(answer)

    # -----------------------------------------------------------------------------------------------------
    # Trust

    async def create_join_token(self, *, ttl: float | None = None, node_id: str = "", uses: int = 1) -> NewJoinToken:
        """Make a token by which agents get their certificates, good for `ttl` seconds. Its text is not shown again."""
        ttl_ms = None if ttl is None else round(ttl * 1000)
        request = enrollment.CreateJoinTokenRequest(ttl_ms=ttl_ms, node_id=node_id, uses=uses)
        answer = await self._call(Credentials.CREATE_JOIN_TOKEN, request, once=True, look="shoal token list")
        maker = self._addresses.current
        others = [address for address in self.addresses if address != maker]
        ports = await asyncio.gather(*(self._join_port(address) for address in others))
        # One that is away now may lead by the time somebody joins; most likely its port is the same.
        known = [
            (maker, answer.join_port),
            *zip(others, (answer.join_port if p is None else p for p in ports), strict=True),
        ]
        where = tuple(str(Address(parse_address(each).host, port)) for each, port in known if port)
        return NewJoinToken(
            answer.token, convert.join_token_from_proto(answer.view), answer.join_port, tuple(dict.fromkeys(where))
        )

    async def _join_port(self, address: str) -> int | None:
        """Where one control plane lets nodes join: 0 for nowhere, None when it does not answer."""
        try:
            request = enrollment.ListJoinTokensRequest()
            timeout = min(LIVE_WITHIN, self._timeout)
            return (await self._channel(address).call(Credentials.LIST_JOIN_TOKENS, request, timeout=timeout)).join_port
        except ShoalError:
            return None

    async def list_join_tokens(self) -> tuple[JoinTokenView, ...]:
        """The tokens that have not expired."""
        answer = await self._call(Credentials.LIST_JOIN_TOKENS, enrollment.ListJoinTokensRequest())
        return tuple(convert.join_token_from_proto(view) for view in answer.tokens)

    async def revoke_join_token(self, token_id: str) -> None:
        """Make a token worthless. Raises `NotFoundError`."""
        request = enrollment.RevokeJoinTokenRequest(token_id=token_id)
        await self._call(Credentials.REVOKE_JOIN_TOKEN, request, once=True, look="shoal token list")

    async def set_secret(self, name: str, value: bytes) -> SecretView:
        """Store the value of a secret. Nobody can read it back."""
        request = secrets_pb2.SetSecretRequest(name=name, value=value)
        answer = await self._call(Secrets.SET_SECRET, request, look="shoal secret list")
        return convert.secret_from_proto(answer.secret)

    async def list_secrets(self) -> tuple[SecretView, ...]:
        """Every secret, without its value."""
        answer = await self._call(Secrets.LIST_SECRETS, secrets_pb2.ListSecretsRequest())
        return tuple(convert.secret_from_proto(each) for each in answer.secrets)

    async def delete_secret(self, name: str) -> None:
        """Forget a secret. Raises `NotFoundError`, and `PreconditionError` while a workload names it."""
        request = secrets_pb2.DeleteSecretRequest(name=name)
        await self._call(Secrets.DELETE_SECRET, request, once=True, look="shoal secret list")

    # -----------------------------------------------------------------------------------------------------
    # Events

    async def list_events(
        self, *, after: int = 0, limit: int = 100, subject_kind: str = "", subject_id: str = "", newest: bool = False
    ) -> EventPage:
        """Events after a cursor, or the newest ones."""
        request = pb.ListEventsRequest(
            after=after, limit=limit, subject_kind=subject_kind, subject_id=subject_id, newest=newest
        )
        answer = await self._call(AgentControl.LIST_EVENTS, request)
        return EventPage(tuple(convert.event_from_proto(each) for each in answer.events), answer.next, answer.oldest)

    async def watch_events(
        self, *, after: int | None = None, subject_kind: str = "", subject_id: str = "", patience: float = 60.0
    ) -> AsyncGenerator[Event, None]:
        """Events as they happen, from a cursor or from now on.

        When the control plane goes away, the watch is taken up again where it was as soon as it is back; after
        `patience` seconds without it, `UnavailableError` is raised.
        """
        if after is None:
            after = (await self.list_events(limit=1, newest=True)).next
        failures, lost_at = 0, math.inf
        while True:
            connected_at = math.inf
            request = pb.WatchEventsRequest(after=after, subject_kind=subject_kind, subject_id=subject_id)
            try:
                if failures:  # a stream says nothing of being connected before its first event; a read does
                    await self.list_events(after=after, limit=1)
                connected_at = self._clock.monotonic()
                async with contextlib.aclosing(self._stream(AgentControl.WATCH_EVENTS, request)) as stream:
                    async for each in stream:
                        failures, after = 0, each.cursor
                        yield convert.event_from_proto(each)
            except (UnavailableError, DeadlineError, NotLeaderError):
                now = self._clock.monotonic()
                # A stream that held for a while was a connection; one that broke at once was none.
                lost_at = now if now - connected_at > _HELD else min(lost_at, now)
                if now - lost_at >= patience:
                    raise
            # A stream that ends without an error, because the server stopped, is taken up again too.
            failures += 1
            await self._clock.sleep(_RECONNECT.plain_delay(failures))

    # -----------------------------------------------------------------------------------------------------
    # Waiting

    async def wait_for(
        self, workload_id: str, condition: Condition, *, timeout: float | None = None
    ) -> WorkloadView | None:
        """Wait until the condition holds. Returns the workload as it was then; raises `DeadlineError`."""
        last: WorkloadView | None = None
        try:
            async with (
                asyncio.timeout(timeout),
                contextlib.aclosing(self.follow([workload_id])) as changes,
            ):
                async for views in changes:
                    last = views[workload_id]
                    if condition(last):
                        return last
        except TimeoutError:
            seen = f"it is {last.status}" if last is not None else "there is no such workload"
            raise DeadlineError(
                f"workload {workload_id!r} did not get there within {format_duration(timeout or 0.0)}: {seen}",
                workload_id=workload_id,
            ) from None
        return last  # pragma: no cover - following never ends by itself

    async def follow(self, workload_ids: Iterable[str]) -> AsyncGenerator[Mapping[str, WorkloadView | None], None]:
        """Some workloads as they are now, and all of them again whenever one has changed. None: there is none.

        The first look raises when the control plane cannot be reached; after it, an absence is waited out.
        """
        wanted = dict.fromkeys(workload_ids)
        touched = set(wanted)
        wake = Signal()
        # The cursor is read before the first look, so that no change can fall between the two.
        cursor = await self._cursor()
        views: dict[str, WorkloadView | None] = {}
        scope = TaskScope("follow")
        if cursor is not None:
            scope.start(self._listen(cursor, wanted, touched, wake), name="events")
        try:
            while True:
                # Emptied before the look: a change during it must be looked at again.
                names = set(touched)
                touched.clear()
                looked = await self._look(names, first=not views)
                touched.update(names - looked.keys())
                if any(name not in views or views[name] != view for name, view in looked.items()):
                    views.update(looked)
                    yield dict(views)
                if not await wake.wait(LOOK_EVERY if cursor is not None else LOOK_EVERY / 4):
                    touched.update(wanted)
        finally:
            await scope.close()

    async def _look(self, names: set[str], *, first: bool) -> dict[str, WorkloadView | None]:
        """What could be seen of the named workloads; less than all when the control plane went away meanwhile."""
        found: dict[str, WorkloadView | None] = {}
        try:
            if len(names) > _LIST_FROM:
                known = {view.workload_id: view for view in await self.list_workloads()}
                return {name: known.get(name) for name in names}
            for name in names:
                found[name] = await self._find_workload(name)
        except (UnavailableError, DeadlineError):
            if first:
                raise
        return found

    async def _find_workload(self, workload_id: str) -> WorkloadView | None:
        try:
            return await self.get_workload(workload_id)
        except NotFoundError:
            return None

    async def _cursor(self) -> int | None:
        try:
            return (await self.list_events(limit=1, newest=True)).next
        except UnsupportedError:
            return None

    async def _listen(self, cursor: int, wanted: Mapping[str, None], touched: set[str], wake: Signal) -> None:
        """Note which of the wanted workloads an event was about. Without events the regular look is all there is."""
        single = next(iter(wanted)) if len(wanted) == 1 else ""
        kind = "workload" if single else ""
        with contextlib.suppress(ShoalError):
            async for event in self.watch_events(after=cursor, subject_kind=kind, subject_id=single):
                if event.subject_kind == "workload" and event.subject_id in wanted:
                    touched.add(event.subject_id)
                    wake.set()

    # -----------------------------------------------------------------------------------------------------
    # Calling

    async def _call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        once: bool = False,
        live: bool = False,
        look: str = "",
    ) -> ResponseT:
        """Call whoever can answer.

        `once`: it must not happen twice. `live`: the leader knows more than the others, which are asked when it is out
        of reach. `look`: for what changes something, the command that shows whether it did.
        """
        began, patience = self._clock.monotonic(), COMES_BACK_WITHIN if self._answered else 0.0
        while True:
            route = Route(self._addresses.in_order())
            for address in route:
                made = False
                try:
                    channel = self._channel(address)
                    if once:
                        # Whether a call that failed had an effect cannot be known: find one that lives, then call it.
                        summary = pb.GetClusterSummaryRequest()
                        with contextlib.suppress(DeniedError):  # whoever refuses it lives
                            await channel.call(AgentControl.GET_CLUSTER_SUMMARY, summary, timeout=self._timeout)
                    made = True
                    timeout = min(LIVE_WITHIN, self._timeout) if live and route.has_more else self._timeout
                    metadata = {LIVE_HEADER: "1"} if live else None
                    answer = await channel.call(method, request, timeout=timeout, metadata=metadata)
                except NotLeaderError as refusal:
                    route.follow(refusal)  # nothing was done, so it may be asked for again
                except (UnavailableError, DeadlineError) as failure:
                    error = in_doubt(failure, look) if look and made else failure
                    if once and made:
                        raise error from None
                    route.fail(address, error)
                else:
                    self._addresses.use(address)
                    self._answered = True
                    return answer
            if live and route.refusal is not None:
                live = False  # no leader is in reach: what the others know is better than nothing
                continue
            await self._wait_to_try_again(route, began, patience)

    async def _pages(self, method: Method[PagedT, PageT], request: PagedT) -> AsyncIterator[PageT]:
        """Every page of a list. A control plane that knows of no pages gives all at once."""
        request.page_size = PAGE_SIZE
        while True:
            page = await self._call(method, request, live=True)
            yield page
            # Tokens grow; one that does not would lead round in a circle.
            if page.next_page_token <= request.page_token:
                return
            request.page_token = page.next_page_token

    async def _stream(self, method: Method[RequestT, ResponseT], request: RequestT) -> AsyncGenerator[ResponseT, None]:
        began = self._clock.monotonic()
        while True:
            route = Route(self._addresses.in_order())
            for address in route:
                begun = False
                try:
                    stream = self._channel(address).stream(method, request)
                    async with contextlib.aclosing(_closable(stream)) as closable:
                        async for each in closable:
                            begun = True
                            self._addresses.use(address)
                            yield each
                except NotLeaderError as refusal:
                    if begun:
                        raise
                    route.follow(refusal)
                except UnavailableError as error:
                    if begun:
                        raise
                    route.fail(address, error)
                else:
                    return
            await self._wait_to_try_again(route, began, 0.0)

    async def _wait_to_try_again(self, route: Route, began: float, patience: float) -> None:
        """Wait before every address is tried again, or raise what it all came to."""
        waited = self._clock.monotonic() - began
        if any(map(was_said, route.failures)):
            raise self._unavailable(route.failures)
        if waited >= (LEADER_WITHIN if route.refusal is not None else patience):
            # Where the leader is said to be says more than whoever does not lead: it may even have done it.
            raise route.failure_of_leader or route.refusal or self._unavailable(route.failures)
        await self._clock.sleep(_RETRY_EVERY)

    async def _logs(self, request: pb.ReadLogsRequest) -> AsyncGenerator[LogPiece, None]:
        async with contextlib.aclosing(self._stream(AgentControl.READ_LOGS, request)) as stream:
            async for chunk in stream:
                yield LogPiece(chunk.data, chunk.stream or "stdout")

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = self._transport.connect(address, peer=CONTROL_PLANE)
        return self._channels[address]

    def _unavailable(self, errors: Sequence[UnavailableError | DeadlineError]) -> UnavailableError | DeadlineError:
        """One error for what every address said. What a control plane itself raised counts more than a silence."""
        for error in filter(was_said, errors):
            return error
        if len(errors) == 1 and isinstance(errors[0], DeadlineError):
            return errors[0]
        where = ", ".join(self.addresses)
        # The last clause is the cause; what comes before it is how the transport got there.
        reasons = dict.fromkeys(error.message.rpartition(": ")[2].strip("[].") for error in errors)
        # Somebody is there, and the two do not trust each other: another address is no help.
        distrust = (error.hint for error in errors if "certificate" in error.hint)
        return UnavailableError(
            f"the control plane at {where} cannot be reached: {'; '.join(reasons)}",
            hint=next(distrust, "start one with `shoal up`, or say where it is with --control or SHOAL_CONTROL"),
            address=where,
        )


async def _closable(stream: AsyncIterator[ResponseT]) -> AsyncGenerator[ResponseT, None]:
    """The same stream, and certain to have `aclose`."""
    try:
        async for each in stream:
            yield each
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _members(documents: Iterable[WorkloadDocument]) -> list[pb.GroupMember]:
    return [
        pb.GroupMember(
            workload_id=document.id,
            spec=convert.workload_spec_to_proto(document.spec),
            revision_id=document.revision,
            desired_state=document.desired_state,
        )
        for document in documents
    ]


def _apply_error(workload_id: str, answer: pb.ApplyWorkloadResponse) -> ShoalError:
    reason = pb.FailureReason.Name(answer.failure_reason) if answer.failure_reason in pb.FailureReason.values() else ""
    message = answer.error_message or "the wish was refused without a reason"
    if answer.problems:
        return InvalidError(
            [Problem(each.field, each.value, each.rule) for each in answer.problems], what=f"workload {workload_id!r}"
        )
    if reason == FailureReason.INVALID_SPEC.value:
        return InvalidError([Problem(f"workload {workload_id}", "", message)])
    if reason == FailureReason.INSUFFICIENT_RESOURCES.value:
        return ExhaustedError(_about("workload", workload_id, message), workload_id=workload_id)
    return _refusal("workload", workload_id, message)


def _refusal(kind: str, name: str, message: str) -> ShoalError:
    """What a plain sentence stands for. A control plane of ours raises the error itself; this is for foreign ones."""
    if "not found" in message.lower():
        return NotFoundError(kind, name)
    return PreconditionError(_about(kind, name, message), **{f"{kind}_id": name})


def _about(kind: str, name: str, message: str) -> str:
    return message if name in message else f"{kind} {name!r}: {message}"

"""One coroutine for each RPC of the control plane: values instead of protos, typed errors, waits.

Waits follow the control plane's events and also look again from time to time: they are quick when events arrive, and
right when events are lost. Called by `shoal.cli`, by workloads that have an identity and by tests; agents use
`shoal.agent.contact`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Self

from shoal.client.artifacts import ArtifactCalls
from shoal.client.calls import LIVE_WITHIN
from shoal.client.jobs import JobCalls
from shoal.client.reconnect import Reconnect
from shoal.client.values import ApplyOutcome, Condition, EventPage, GroupOutcome, NewJoinToken, PlacementPreview
from shoal.core.clock import epoch_ms
from shoal.core.durations import format_duration
from shoal.core.errors import (
    DeadlineError,
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
from shoal.core.ids import TokenId
from shoal.core.tasks import Signal, TaskScope
from shoal.model.documents import GroupDocument, WorkloadDocument
from shoal.model.events import Event, SubjectKind
from shoal.model.execs import ExecCommand, ExecEnd, ExecOutput, WindowSize
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.trust import JoinTokenView, SecretView
from shoal.model.views import ClusterSummary, GroupView, NodeView, WorkloadView
from shoal.model.workloads import DesiredState, FailureReason
from shoal.wire import convert
from shoal.wire.addresses import Address, parse_address
from shoal.wire.methods import AgentControl, Credentials, Jobs, Secrets, WorkloadExec
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.pb.shoal.v1 import exec_pb2 as execution
from shoal.wire.pb.shoal.v1 import jobs_pb2, secrets_pb2
from shoal.wire.trust.access import Access

LOOK_EVERY = 2.0
"""Seconds after which a wait looks again without an event: an event can be lost."""

_LIST_FROM = 8
"""From this many workloads on, one list of all costs less than one call for each."""


MAX_INPUT = 32 * 1024
"""How much input of a command one message carries."""


class ControlPlane(ArtifactCalls, JobCalls):
    """A client of one control plane, which may have several addresses."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """A client with the settings of the environment. An agent sets them for a workload that has an identity.

        Reads SHOAL_CONTROL, and SHOAL_CA, SHOAL_CERT and SHOAL_KEY, or SHOAL_INSECURE. Raises `InvalidError`.
        """
        from shoal.wire.sockets.channel import GrpcTransport

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

    async def report_job(self, request: jobs_pb2.ReportJobRequest) -> jobs_pb2.ReportJobResponse:
        """Say how a workload of a job is, and learn what is asked of the job. Called by the workload itself."""
        return await self._call(Jobs.REPORT, request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -----------------------------------------------------------------------------------------------------
    # Workloads

    async def apply(self, document: WorkloadDocument, *, expected_revision: str = "") -> ApplyOutcome:
        """Create or update a workload. Raises `InvalidError` or another refusal; nothing was changed then."""
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
        """Request the deletion of a workload. It is gone once `get_workload` no longer finds it."""
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
        """Start or stop a workload; its spec stays."""
        request = pb.SetDesiredStateRequest(workload_id=workload_id, desired_state=desired.value)
        answer = await self._call(AgentControl.SET_DESIRED_STATE, request, look=f"shoal workload get {workload_id}")
        return convert.workload_view_from_proto(answer.workload)

    async def list_workloads(
        self, *, node_id: str = "", status: str = "", group_id: str = ""
    ) -> tuple[WorkloadView, ...]:
        """The workloads that match. Long lists are read page by page."""
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

    def logs(
        self,
        workload_id: str,
        *,
        tail: int = 0,
        follow: bool = False,
        since: datetime | None = None,
        previous: bool = False,
        times: bool = False,
        patience: float = 60.0,
    ) -> AsyncGenerator[LogPiece, None]:
        """The output of a workload, oldest first.

        With `follow`, a stream that breaks is opened again where it was, also on another node, until the workload is
        deleted. After `patience` seconds without the control plane or the agent, the error is raised.

        Args:
            workload_id: the workload.
            tail: only the last so many lines; 0 for all that is kept.
            follow: wait for more output.
            since: only output printed at or after this moment.
            previous: only output of the run before the last one.
            times: give every piece its time.
            patience: seconds.
        """
        query = LogQuery(tail_lines=tail, follow=follow, since=since, previous=previous, times=times)
        return self._logs(workload_id, query, Reconnect(self._clock, patience=patience))

    async def exec(
        self, workload_id: str, command: ExecCommand, given: AsyncIterator[bytes | WindowSize] | None = None
    ) -> AsyncGenerator[ExecOutput | ExecEnd, None]:
        """Run a command inside a workload: what it prints, and at last how it ended.

        Closing the generator kills the command.

        Args:
            workload_id: the workload.
            command: what to run.
            given: input, and new sizes of the terminal. Its end is the end of the input.
        """
        start = convert.exec_start_to_proto(workload_id, command)
        async for answer in self._converse(WorkloadExec.EXEC, start, _exec_requests(given)):
            found = convert.exec_response_from_proto(answer)
            if found is not None:
                yield found

    async def _logs(self, workload_id: str, query: LogQuery, reconnect: Reconnect) -> AsyncGenerator[LogPiece, None]:
        has_begun = False
        while True:
            reconnect.opening()
            try:
                async with contextlib.aclosing(
                    self._stream(AgentControl.READ_LOGS, _log_request(workload_id, query))
                ) as stream:
                    async for chunk in stream:
                        piece = convert.log_piece_from_proto(chunk)
                        _check_answered(query, piece)
                        has_begun = has_begun or bool(piece.position)
                        query = replace(query, after=piece.position or query.after)
                        reconnect.received()
                        yield piece
                # It ends by itself when the workload is deleted, and when a server stops.
                if not (query.follow and has_begun) or await self._find_workload(workload_id) is None:
                    return
            except (UnavailableError, DeadlineError, NotLeaderError):
                if not (query.follow and has_begun) or reconnect.lost():
                    raise
            except (PreconditionError, NotFoundError):
                # Between two nodes it has no log for a moment.
                if not (query.follow and has_begun):
                    raise
                if await self._find_workload(workload_id) is None:
                    return
                if reconnect.lost():
                    raise
            await reconnect.wait()

    # -----------------------------------------------------------------------------------------------------
    # Groups

    async def apply_group(self, document: GroupDocument, *, expected_generation: int | None = None) -> GroupOutcome:
        """Create or update a set of workloads, all or none."""
        request = pb.ApplyGroupRequest(
            group_id=document.id,
            members=_members(document.members),
            expected_generation=expected_generation,
            member_changes=(
                convert.member_changes_to_proto(document.member_changes)
                if document.member_changes is not None
                else None
            ),
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
        """Request the deletion of a group and its members. Returns the group's generation."""
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
        """Remove a node that is gone. Raises `PreconditionError` while it still sends heartbeats."""
        request = pb.RemoveNodeRequest(node_id=node_id)
        await self._call(AgentControl.REMOVE_NODE, request, once=True, look="shoal node list")

    async def cordon_node(self, node_id: str) -> NodeView:
        """Let no new work go to a node."""
        request = pb.CordonNodeRequest(node_id=node_id)
        answer = await self._call(AgentControl.CORDON_NODE, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def label_node(
        self, node_id: str, *, set_to: Mapping[str, str] | None = None, remove: Sequence[str] = ()
    ) -> NodeView:
        """Set and remove labels of a node. Raises `InvalidError` for a label that its agent registers."""
        request = pb.LabelNodeRequest(node_id=node_id, set=set_to or {}, remove=remove)
        answer = await self._call(AgentControl.LABEL_NODE, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def uncordon_node(self, node_id: str) -> NodeView:
        """Let a node take work again, after a cordon or a drain."""
        request = pb.UncordonNodeRequest(node_id=node_id)
        answer = await self._call(AgentControl.UNCORDON_NODE, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def drain_node(self, node_id: str, *, deadline: timedelta | None = None, force: bool = False) -> NodeView:
        """Drain a node. After the deadline, or at once with `force`, the rest is moved by force."""
        millis = max(1, deadline // timedelta(milliseconds=1)) if deadline is not None else 0
        request = pb.DrainNodeRequest(node_id=node_id, deadline_ms=millis, force=force)
        answer = await self._call(AgentControl.DRAIN_NODE, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def mark_node_dead(self, node_id: str, *, force: bool = False) -> NodeView:
        """Declare a node dead. Raises `PreconditionError` while it sends heartbeats, unless forced."""
        request = pb.MarkNodeDeadRequest(node_id=node_id, force=force)
        answer = await self._call(AgentControl.MARK_NODE_DEAD, request, look=f"shoal node get {node_id}")
        return convert.node_view_from_proto(answer.node)

    async def adopt(self, node_id: str, workload_id: str) -> WorkloadView:
        """Take over a workload that runs on a node and that the control plane does not know."""
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
        """Make a token with which agents get their certificates, valid for `ttl` seconds. Its text is shown once."""
        ttl_ms = None if ttl is None else round(ttl * 1000)
        request = enrollment.CreateJoinTokenRequest(ttl_ms=ttl_ms, node_id=node_id, uses=uses)
        answer = await self._call(Credentials.CREATE_JOIN_TOKEN, request, once=True, look="shoal token list")
        maker = self._addresses.current
        others = [address for address in self.addresses if address != maker]
        ports = await asyncio.gather(*(self._join_port(address) for address in others))
        # One that does not answer now may lead when a node joins; most likely its port is the same.
        known = [
            (maker, answer.join_port),
            *zip(others, (answer.join_port if p is None else p for p in ports), strict=True),
        ]
        where = tuple(str(Address(parse_address(each).host, port)) for each, port in known if port)
        return NewJoinToken(
            answer.token, convert.join_token_from_proto(answer.view), answer.join_port, tuple(dict.fromkeys(where))
        )

    async def _join_port(self, address: str) -> int | None:
        """The join port of one control plane: 0 without one, None when it does not answer."""
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

    async def revoke_join_token(self, token_id: TokenId) -> None:
        """Revoke a token. Raises `NotFoundError`."""
        request = enrollment.RevokeJoinTokenRequest(token_id=token_id)
        await self._call(Credentials.REVOKE_JOIN_TOKEN, request, once=True, look="shoal token list")

    async def set_secret(self, name: str, value: bytes) -> SecretView:
        """Store the value of a secret. It cannot be read back."""
        request = secrets_pb2.SetSecretRequest(name=name, value=value)
        answer = await self._call(Secrets.SET_SECRET, request, look="shoal secret list")
        return convert.secret_from_proto(answer.secret)

    async def list_secrets(self) -> tuple[SecretView, ...]:
        """Every secret, without its value."""
        answer = await self._call(Secrets.LIST_SECRETS, secrets_pb2.ListSecretsRequest())
        return tuple(convert.secret_from_proto(each) for each in answer.secrets)

    async def delete_secret(self, name: str) -> None:
        """Delete a secret. Raises `NotFoundError`, and `PreconditionError` while a workload names it."""
        request = secrets_pb2.DeleteSecretRequest(name=name)
        await self._call(Secrets.DELETE_SECRET, request, once=True, look="shoal secret list")

    # -----------------------------------------------------------------------------------------------------
    # Events

    async def list_events(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        subject_kind: str = "",
        subject_id: str = "",
        newest: bool = False,
        selector: str = "",
    ) -> EventPage:
        """Events after a cursor, or the newest ones; with a selector those of workloads whose labels matched then."""
        request = pb.ListEventsRequest(
            after=after,
            limit=limit,
            subject_kind=subject_kind,
            subject_id=subject_id,
            newest=newest,
            selector=selector,
        )
        answer = await self._call(AgentControl.LIST_EVENTS, request)
        return EventPage(tuple(convert.event_from_proto(each) for each in answer.events), answer.next, answer.oldest)

    async def watch_events(
        self,
        *,
        after: int | None = None,
        subject_kind: str = "",
        subject_id: str = "",
        selector: str = "",
        patience: float = 60.0,
    ) -> AsyncGenerator[Event, None]:
        """Events as they happen, from a cursor or from now on.

        When the control plane goes away, the watch continues where it was as soon as it is back. After `patience`
        seconds without it, `UnavailableError` is raised.
        """
        if after is None:
            after = (await self.list_events(limit=1, newest=True)).next
        reconnect = Reconnect(self._clock, patience=patience)
        while True:
            request = pb.WatchEventsRequest(
                after=after, subject_kind=subject_kind, subject_id=subject_id, selector=selector
            )
            try:
                if not reconnect.is_first:  # a stream does not show that it is connected before its first event
                    await self.list_events(after=after, limit=1)
                reconnect.opening()
                async with contextlib.aclosing(self._stream(AgentControl.WATCH_EVENTS, request)) as stream:
                    async for each in stream:
                        reconnect.received()
                        after = each.cursor
                        yield convert.event_from_proto(each)
            except (UnavailableError, DeadlineError, NotLeaderError):
                if reconnect.lost():
                    raise
            # A stream that ends without an error, because the server stopped, is opened again too.
            await reconnect.wait()

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
        """Some workloads as they are now, and all of them again whenever one has changed. None: it does not exist.

        The first look raises when the control plane cannot be reached; later ones wait until it is back.
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
        """The named workloads; fewer when the control plane went away meanwhile."""
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
        """Note which of the wanted workloads an event was about. Without events only the regular look is left."""
        single = next(iter(wanted)) if len(wanted) == 1 else ""
        kind = SubjectKind.WORKLOAD if single else ""
        with contextlib.suppress(ShoalError):
            async for event in self.watch_events(after=cursor, subject_kind=kind, subject_id=single):
                if event.subject_kind == SubjectKind.WORKLOAD and event.subject_id in wanted:
                    touched.add(event.subject_id)
                    wake.set()


async def _exec_requests(
    given: AsyncIterator[bytes | WindowSize] | None,
) -> AsyncIterator[execution.ExecRequest]:
    async for each in given or _nothing():
        if isinstance(each, WindowSize):
            yield execution.ExecRequest(resize=convert.window_to_proto(each))
        else:
            for start in range(0, len(each), MAX_INPUT):
                yield execution.ExecRequest(input=each[start : start + MAX_INPUT])
    yield execution.ExecRequest(end_of_input=True)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield  # it makes this a generator


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
    message = answer.error_message or "the request was refused without a reason"
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
    """The error behind a plain sentence. Our control plane raises the error itself; this is for foreign ones."""
    if "not found" in message.lower():
        return NotFoundError(kind, name)
    return PreconditionError(_about(kind, name, message), **{f"{kind}_id": name})


def _about(kind: str, name: str, message: str) -> str:
    return message if name in message else f"{kind} {name!r}: {message}"


def _log_request(workload_id: str, query: LogQuery) -> pb.ReadLogsRequest:
    return pb.ReadLogsRequest(
        workload_id=workload_id,
        tail_lines=query.tail_lines,
        follow=query.follow,
        since_ms=max(1, epoch_ms(query.since)) if query.since is not None else 0,
        previous=query.previous,
        times=query.times,
        after=query.after,
    )


def _check_answered(query: LogQuery, piece: LogPiece) -> None:
    """A control plane of an older version ignores what it does not know, and would print everything."""
    asked = query.since is not None or query.previous or query.times
    if asked and not piece.position:
        raise UnsupportedError("the control plane is of an older version: it reads logs only from their beginning")

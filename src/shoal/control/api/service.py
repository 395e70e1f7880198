"""`persys.control.v1.AgentControl`: convert, call, convert. No decision is made here.

Every request is checked in full before anything is called; what is wrong is answered with the field, the value and the
rule. ApplyWorkload answers a bad spec in its response, as the contract has it; everything else by a status.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta

from shoal.control.agents.calls import Agents
from shoal.control.agents.streams import Streams
from shoal.control.api.event_feed import EventFeed
from shoal.control.api.log_reading import check_log_request, chunk_for_clients, request_to_agent
from shoal.control.api.pages import check_page, first_page, fitting
from shoal.control.api.parsing import (
    check_given,
    check_id,
    check_known_fields,
    check_labels,
    check_state,
    event_query,
    read_members,
    read_workload,
)
from shoal.control.api.views import ACCEPTED_STATUS, NODE_STATES, Views
from shoal.control.nodes.contacts import Contacts, Heartbeat
from shoal.control.nodes.heartbeats import Heartbeats
from shoal.control.nodes.lease_watch import LeaseWatch
from shoal.control.nodes.operations import NodeOperations
from shoal.control.nodes.registration import Registration
from shoal.control.placement.placer import Placer, request_for
from shoal.control.placement.scheduler import place, place_together
from shoal.control.state.causes import cause_of_call
from shoal.control.state.facts import PlacementDecision
from shoal.control.state.fleet import Fleet
from shoal.control.store.base import Store
from shoal.control.trust.entitlements import check_identities, identity_problem
from shoal.control.workloads.adoption import Adoption
from shoal.control.workloads.groups import Groups
from shoal.control.workloads.requests import Applied, RequestOutcome, Workloads, merge
from shoal.core.clock import Clock
from shoal.core.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    PreconditionError,
    ShoalError,
    UnsupportedError,
    problem,
)
from shoal.core.ids import GroupId, NodeId, SessionId, WorkloadId
from shoal.model.identity import Role
from shoal.model.nodes import Feature, NodeRecord, NodeState, NodeUsage
from shoal.model.phases import ContractStatus, WorkloadPhase
from shoal.model.views import NodeScore, PlannedPlacement
from shoal.model.workloads import MAX_DURATION, DesiredState, RunStatus, WorkloadRecord
from shoal.wire import convert
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Call

#: States that the contract names and no workload here is ever in.
OTHER_STATES = ("RetryPending", "Deleted")
#: What `ListWorkloads` can be asked for.
WORKLOAD_STATES = tuple(dict.fromkeys((*WorkloadPhase, *ContractStatus, ACCEPTED_STATUS, *OTHER_STATES)))
MAX_DEADLINE_MS = MAX_DURATION // timedelta(milliseconds=1)


class ControlService:
    """The handlers of the control plane's service."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        contacts: Contacts,
        registration: Registration,
        heartbeats: Heartbeats,
        lease_watch: LeaseWatch,
        operations: NodeOperations,
        adoption: Adoption,
        workloads: Workloads,
        groups: Groups,
        placer: Placer,
        views: Views,
        feed: EventFeed,
        store: Store,
        agents: Agents,
        streams: Streams,
        clock: Clock,
        term: int,
        is_confirmed: Callable[[], bool],
        issues_certificates: bool,
    ) -> None:
        self._fleet = fleet
        self._contacts = contacts
        self._registration = registration
        self._heartbeats = heartbeats
        self._lease_watch = lease_watch
        self._operations = operations
        self._adoption = adoption
        self._workloads = workloads
        self._groups = groups
        self._placer = placer
        self._views = views
        self._feed = feed
        self._store = store
        self._agents = agents
        self._streams = streams
        self._clock = clock
        self._term = term
        self._is_confirmed = is_confirmed
        self._issues_certificates = issues_certificates

    # -----------------------------------------------------------------------------------------------------
    # Agents

    async def register_node(self, request: pb.RegisterNodeRequest, _call: Call) -> pb.RegisterNodeResponse:
        """Register a node. Impossible capacity and types are refused in the answer, as the contract has it."""
        try:
            spec = convert.node_spec_from_proto(request)
        except InvalidError as error:
            if not all(each.field.startswith("capabilities.") for each in error.problems):
                raise
            return pb.RegisterNodeResponse(accepted=False, reason=error.message)
        sent_at = convert.timestamp_from_proto(request.timestamp) if request.HasField("timestamp") else None
        registered = await self._registration.register(
            spec, sent_at=sent_at, previous_session=SessionId(request.previous_session), instance=request.instance
        )
        settings = self._contacts.settings
        answer = pb.RegisterNodeResponse(
            accepted=registered.accepted,
            reason=registered.reason,
            heartbeat_interval_seconds=max(1, math.floor(settings.heartbeat_interval.total_seconds())),
            session=registered.session,
            heartbeat_interval_ms=round(settings.heartbeat_interval.total_seconds() * 1000),
            lease_ms=round(settings.lease.total_seconds() * 1000),
        )
        if registered.accepted:
            answer.lease_expires_at.FromDatetime(self._clock.wall() + settings.lease)
        return answer

    async def heartbeat(self, request: pb.HeartbeatRequest, _call: Call) -> pb.HeartbeatResponse:
        """Process a heartbeat."""
        check_id("node_id", request.node_id)
        heartbeat = Heartbeat(
            node_id=NodeId(request.node_id),
            session=SessionId(request.session),
            sequence=request.sequence,
            statuses=self._statuses(request),
            usage=self._usage(request),
            sent_at=convert.timestamp_from_proto(request.timestamp) if request.HasField("timestamp") else None,
            measured=convert.Measurements(request),
            conditions=convert.node_conditions_from_proto(request.conditions),
        )
        draining = await self._heartbeats.receive(heartbeat)
        settings = self._contacts.settings
        answer = pb.HeartbeatResponse(
            acknowledged=True,
            drain_node=draining,
            lease_ms=round(settings.lease.total_seconds() * 1000),
            heartbeat_interval_ms=round(settings.heartbeat_interval.total_seconds() * 1000),
            term=self._term,
            unconfirmed=not self._is_confirmed(),
            takes_batches=True,
        )
        answer.lease_expires_at.FromDatetime(self._clock.wall() + settings.lease)
        return answer

    def _usage(self, request: pb.HeartbeatRequest) -> NodeUsage | None:
        """The measured usage of a node. Impossible numbers are dropped; the heartbeat counts all the same."""
        if not request.HasField("usage"):
            return None
        try:
            return convert.node_usage_from_proto(request.usage)
        except InvalidError:
            self._heartbeats.ignored(1)
            return None

    def control_stream(
        self, requests: AsyncIterator[pb.ControlMessage], call: Call
    ) -> AsyncIterator[pb.ControlMessage]:
        """Serve an agent's stream: its messages are handled as the calls above, and calls to the agent go back."""
        return self._streams.serve(requests, call, self)

    async def stream_broke(self, node_id: NodeId) -> None:
        """The stream of a node has ended."""
        await self._lease_watch.stream_broke(node_id)

    def _statuses(self, request: pb.HeartbeatRequest) -> Mapping[bytes, RunStatus]:
        """The statuses of a heartbeat. An unreadable one is counted and dropped."""
        contact = self._contacts.get(NodeId(request.node_id))
        statuses = convert.run_statuses_from_heartbeat(request, contact.statuses if contact is not None else {})
        self._heartbeats.ignored(len(request.workload_statuses) - len(statuses))
        return statuses

    # -----------------------------------------------------------------------------------------------------
    # Workloads

    async def apply_workload(self, request: pb.ApplyWorkloadRequest, call: Call) -> pb.ApplyWorkloadResponse:
        """Store a workload. What is wrong with it is answered, not raised: the contract's clients read the response.

        Without a spec only the desired state of a known workload changes.
        """
        check_given("workload_id", request.workload_id)
        try:
            applied = await (self._apply if request.HasField("spec") else self._change_state)(request, call)
        except InvalidError as error:
            return pb.ApplyWorkloadResponse(
                success=False,
                failure_reason=pb.INVALID_SPEC,
                error_message=error.message,
                problems=convert.problems_to_proto(error.problems),
            )
        except NotLeaderError:
            raise  # its term ended under way: as a sentence it would keep clients from following to the next leader
        except (NotFoundError, PreconditionError, ConflictError) as error:
            return pb.ApplyWorkloadResponse(
                success=False, failure_reason=pb.RUNTIME_ERROR, error_message=_sentence(error)
            )
        return pb.ApplyWorkloadResponse(
            success=True,
            revision_id=applied.record.revision_id,
            generation=applied.record.generation,
            outcome=applied.outcome.value,
        )

    async def _apply(self, request: pb.ApplyWorkloadRequest, call: Call) -> Applied:
        requested = read_workload(request.workload_id, request.spec, request.revision_id, request.desired_state)
        found = identity_problem(requested.spec, "spec", grouped=False, issues=self._issues_certificates)
        if found is not None:
            raise InvalidError([found])
        return await self._workloads.apply(
            requested, cause=cause_of_call(call), expected_revision=request.expected_revision
        )

    async def _change_state(self, request: pb.ApplyWorkloadRequest, call: Call) -> Applied:
        if request.expected_revision:
            raise InvalidError([problem("expected_revision", request.expected_revision, "needs a spec")])
        desired = convert.desired_state_from_text(request.desired_state)
        known = self._fleet.workloads.get(WorkloadId(request.workload_id))
        record = await self._workloads.set_desired(WorkloadId(request.workload_id), desired, cause=cause_of_call(call))
        unchanged = known is not None and known.generation == record.generation
        return Applied(record, RequestOutcome.UNCHANGED if unchanged else RequestOutcome.UPDATED)

    async def delete_workload(self, request: pb.DeleteWorkloadRequest, call: Call) -> pb.DeleteWorkloadResponse:
        """Request the deletion of a workload."""
        check_given("workload_id", request.workload_id)
        try:
            await self._workloads.delete(WorkloadId(request.workload_id), cause=cause_of_call(call))
        except NotLeaderError:
            raise
        except (NotFoundError, PreconditionError) as error:
            return pb.DeleteWorkloadResponse(success=False, error_message=_sentence(error))
        return pb.DeleteWorkloadResponse(success=True)

    async def retry_workload(self, request: pb.RetryWorkloadRequest, call: Call) -> pb.RetryWorkloadResponse:
        """Run a workload again now."""
        check_given("workload_id", request.workload_id)
        try:
            accepted = await self._workloads.retry(WorkloadId(request.workload_id), cause=cause_of_call(call))
        except NotLeaderError:
            raise
        except (NotFoundError, PreconditionError) as error:
            return pb.RetryWorkloadResponse(accepted=False, error_message=_sentence(error))
        return pb.RetryWorkloadResponse(accepted=accepted)

    async def set_desired_state(self, request: pb.SetDesiredStateRequest, call: Call) -> pb.SetDesiredStateResponse:
        """Start or stop a workload."""
        check_id("workload_id", request.workload_id)
        desired = convert.desired_state_from_text(request.desired_state)
        record = await self._workloads.set_desired(WorkloadId(request.workload_id), desired, cause=cause_of_call(call))
        return pb.SetDesiredStateResponse(workload=convert.workload_view_to_proto(self._views.workload(record)))

    async def submit_automation_suggestion(
        self, request: pb.SubmitAutomationSuggestionRequest, call: Call
    ) -> pb.SubmitAutomationSuggestionResponse:
        """Carry out the suggestion of an automation, if a client could request the same."""
        suggestion = request.suggestion
        answer = pb.SubmitAutomationSuggestionResponse()
        answer.decided_at.FromDatetime(self._clock.wall())
        try:
            answer.applied_action = await self._follow(suggestion, cause=cause_of_call(call))
        except NotLeaderError:
            raise
        except ShoalError as error:
            answer.decision, answer.reason = "rejected", _sentence(error)
            return answer
        answer.accepted, answer.decision = True, "accepted"
        answer.reason = suggestion.reason
        return answer

    async def _follow(self, suggestion: pb.AutomationSuggestion, *, cause: str) -> str:
        check_id("suggestion.target_workload", suggestion.target_workload)
        target = WorkloadId(suggestion.target_workload)
        if suggestion.action_type not in pb.AutomationActionType.values():
            raise InvalidError([problem("suggestion.action_type", suggestion.action_type, "must be a known action")])
        action = pb.AutomationActionType.Name(suggestion.action_type)
        if suggestion.action_type == pb.SET_DESIRED_STATE:
            desired = convert.desired_state_from_text(suggestion.desired_state)
            await self._workloads.set_desired(target, desired, cause=cause)
        elif suggestion.action_type == pb.RETRY_WORKLOAD:
            await self._workloads.retry(target, cause=cause)
        elif suggestion.action_type == pb.DELETE_WORKLOAD:
            await self._workloads.delete(target, cause=cause)
        else:
            raise UnsupportedError(f"the action {action} is not supported: a workload has one copy")
        return action

    # -----------------------------------------------------------------------------------------------------
    # Groups

    async def apply_group(self, request: pb.ApplyGroupRequest, call: Call) -> pb.ApplyGroupResponse:
        """Store a group: all of its members or none."""
        check_id("group_id", request.group_id)
        expected = request.expected_generation if request.HasField("expected_generation") else None
        members = read_members(request.members)
        check_identities(members, issues=self._issues_certificates)
        if call.identity is not None and call.identity.role is Role.WORKLOAD:
            check_known_fields(request.members)
        applied = await self._groups.apply(
            GroupId(request.group_id),
            members,
            cause=cause_of_call(call),
            expected_generation=expected,
            member_changes=(
                convert.member_changes_from_proto(request.member_changes)
                if request.HasField("member_changes")
                else None
            ),
            by=call.identity,
        )
        view = self._views.group(applied.record)
        return pb.ApplyGroupResponse(
            generation=applied.record.generation,
            outcome=applied.outcome.value,
            members=[convert.workload_view_to_proto(member) for member in view.members],
        )

    async def delete_group(self, request: pb.DeleteGroupRequest, call: Call) -> pb.DeleteGroupResponse:
        """Request the deletion of a group."""
        check_id("group_id", request.group_id)
        expected = request.expected_generation if request.HasField("expected_generation") else None
        generation = await self._groups.delete(
            GroupId(request.group_id), cause=cause_of_call(call), expected_generation=expected
        )
        return pb.DeleteGroupResponse(generation=generation)

    async def get_group(self, request: pb.GetGroupRequest, _call: Call) -> pb.GetGroupResponse:
        """One group."""
        check_id("group_id", request.group_id)
        view = self._views.group(self._fleet.group(request.group_id))
        return pb.GetGroupResponse(group=convert.group_view_to_proto(view))

    async def list_groups(self, request: pb.ListGroupsRequest, _call: Call) -> pb.ListGroupsResponse:
        """Every group, or a page of them."""
        check_page(request.page_size, request.page_token)
        views = self._views.groups(after=request.page_token)
        page, token = await first_page(
            ((view.group_id, convert.group_view_to_proto(view)) for view in views), request.page_size
        )
        return pb.ListGroupsResponse(groups=page, next_page_token=token)

    # -----------------------------------------------------------------------------------------------------
    # Reads

    async def list_nodes(self, request: pb.ListNodesRequest, _call: Call) -> pb.ListNodesResponse:
        """Every node, or a page of them."""
        check_page(request.page_size, request.page_token)
        # "Active" is what the contract calls a Ready node when nodes are filtered.
        status = NodeState.READY.value if request.status.lower() == "active" else request.status
        check_state(status, NODE_STATES)
        views = self._views.nodes(status=status, after=request.page_token)
        page, token = await first_page(
            ((view.node_id, convert.node_view_to_proto(view)) for view in views), request.page_size
        )
        return pb.ListNodesResponse(nodes=page, next_page_token=token)

    async def get_node(self, request: pb.GetNodeRequest, _call: Call) -> pb.GetNodeResponse:
        """One node."""
        check_id("node_id", request.node_id)
        return pb.GetNodeResponse(node=convert.node_view_to_proto(self._views.node(self._fleet.node(request.node_id))))

    async def list_workloads(self, request: pb.ListWorkloadsRequest, _call: Call) -> pb.ListWorkloadsResponse:
        """Every workload, or a page of them."""
        check_page(request.page_size, request.page_token)
        check_state(request.status, WORKLOAD_STATES)
        views = self._views.workloads(
            node_id=request.node_id, status=request.status, group_id=request.group_id, after=request.page_token
        )
        page, token = await first_page(
            ((view.workload_id, convert.workload_view_to_proto(view)) for view in views), request.page_size
        )
        return pb.ListWorkloadsResponse(workloads=page, next_page_token=token)

    async def get_workload(self, request: pb.GetWorkloadRequest, _call: Call) -> pb.GetWorkloadResponse:
        """One workload."""
        check_id("workload_id", request.workload_id)
        view = self._views.workload(self._fleet.workload(request.workload_id))
        return pb.GetWorkloadResponse(workload=convert.workload_view_to_proto(view))

    async def get_cluster_summary(self, _request: pb.GetClusterSummaryRequest, _call: Call) -> pb.ClusterSummary:
        """The fleet in numbers."""
        return convert.cluster_summary_to_proto(await self._views.summary())

    async def remove_node(self, request: pb.RemoveNodeRequest, call: Call) -> pb.RemoveNodeResponse:
        """Remove the record of a node that is gone for good."""
        check_id("node_id", request.node_id)
        await self._operations.remove(NodeId(request.node_id), cause=cause_of_call(call))
        await self._agents.forget(NodeId(request.node_id))
        return pb.RemoveNodeResponse()

    async def cordon_node(self, request: pb.CordonNodeRequest, call: Call) -> pb.CordonNodeResponse:
        """Cordon a node: it gets no new work."""
        check_id("node_id", request.node_id)
        record = await self._operations.cordon(NodeId(request.node_id), cause=cause_of_call(call))
        return pb.CordonNodeResponse(node=self._node_view(record))

    async def uncordon_node(self, request: pb.UncordonNodeRequest, call: Call) -> pb.UncordonNodeResponse:
        """End a cordon or a drain."""
        check_id("node_id", request.node_id)
        record = await self._operations.uncordon(NodeId(request.node_id), cause=cause_of_call(call))
        return pb.UncordonNodeResponse(node=self._node_view(record))

    async def label_node(self, request: pb.LabelNodeRequest, call: Call) -> pb.LabelNodeResponse:
        """Set and remove labels of a node."""
        check_id("node_id", request.node_id)
        check_labels(request.set, request.remove)
        record = await self._operations.label(
            NodeId(request.node_id), set_to=dict(request.set), remove=tuple(request.remove), cause=cause_of_call(call)
        )
        return pb.LabelNodeResponse(node=self._node_view(record))

    async def drain_node(self, request: pb.DrainNodeRequest, call: Call) -> pb.DrainNodeResponse:
        """Drain a node."""
        check_id("node_id", request.node_id)
        if not 0 <= request.deadline_ms <= MAX_DEADLINE_MS:
            rule = f"must be between 0 and {MAX_DEADLINE_MS:,} milliseconds"
            raise InvalidError([problem("deadline_ms", request.deadline_ms, rule)])
        deadline = timedelta(milliseconds=request.deadline_ms) if request.deadline_ms or request.force else None
        if request.force:
            deadline = timedelta(0)
        record = await self._operations.drain(NodeId(request.node_id), deadline=deadline, cause=cause_of_call(call))
        return pb.DrainNodeResponse(node=self._node_view(record))

    async def mark_node_dead(self, request: pb.MarkNodeDeadRequest, call: Call) -> pb.MarkNodeDeadResponse:
        """Declare a node dead, on the word of an operator."""
        check_id("node_id", request.node_id)
        record = await self._operations.mark_dead(
            NodeId(request.node_id), force=request.force, cause=cause_of_call(call)
        )
        return pb.MarkNodeDeadResponse(node=self._node_view(record))

    async def adopt_workload(self, request: pb.AdoptWorkloadRequest, call: Call) -> pb.AdoptWorkloadResponse:
        """Adopt an orphan: a workload that runs on a node without a record here."""
        check_id("node_id", request.node_id)
        check_id("workload_id", request.workload_id)
        record = await self._adoption.adopt(
            NodeId(request.node_id), WorkloadId(request.workload_id), cause=cause_of_call(call)
        )
        return pb.AdoptWorkloadResponse(workload=convert.workload_view_to_proto(self._views.workload(record)))

    def _node_view(self, record: NodeRecord) -> pb.NodeView:
        return convert.node_view_to_proto(self._views.node(record))

    async def plan_placement(self, request: pb.PlanPlacementRequest, _call: Call) -> pb.PlanPlacementResponse:
        """Place workloads on paper: where they would go now, and why."""
        planned = [
            merge(
                requested,
                self._fleet.workloads.get(requested.workload_id),
                clock=self._clock,
                floor=self._fleet.generation_floor,
            )
            for requested in read_members(request.members)
        ]
        running = [each.record for each in planned if each.record.desired is DesiredState.RUNNING]
        requests = [
            dataclasses.replace(request_for(self._fleet, record), needs_generations=_needs_generations(record, request))
            for record in running
        ]
        decide = place_together if request.together else place
        plan = decide(requests, self._fleet.facts(), strategy=self._placer.strategy, explain=True)
        decisions = {decision.workload_id: decision for decision in plan.decisions}
        placements = [
            convert.planned_placement_to_proto(
                _planned(each.record, each.outcome, decisions.get(each.record.workload_id))
            )
            for each in planned
        ]
        return pb.PlanPlacementResponse(placements=placements, placeable=plan.complete)

    async def list_events(self, request: pb.ListEventsRequest, _call: Call) -> pb.ListEventsResponse:
        """A part of the list of events."""
        query = event_query(request, limit=request.limit)
        page = await self._store.events(dataclasses.replace(query, newest=request.newest))
        events = [convert.event_to_proto(event) for event in page.events]
        kept = fitting(events, from_end=request.newest)
        cut_short = len(kept) < len(events) and not request.newest
        return pb.ListEventsResponse(events=kept, next=kept[-1].cursor if cut_short else page.next, oldest=page.oldest)

    async def watch_events(self, request: pb.WatchEventsRequest, _call: Call) -> AsyncIterator[pb.Event]:
        """Events as they happen."""
        query = event_query(request)
        async for event in self._feed.follow(query):
            yield convert.event_to_proto(event)

    async def read_logs(self, request: pb.ReadLogsRequest, _call: Call) -> AsyncIterator[pb.LogChunk]:
        """The output of a workload, from the node that owns it."""
        check_id("workload_id", request.workload_id)
        check_log_request(request)
        record = self._fleet.workload(request.workload_id)
        if record.node_id is None:
            raise PreconditionError(f"workload {record.workload_id!r} has no node yet, so it has printed nothing")
        node = self._fleet.node(record.node_id)
        if not node.spec.has(Feature.LOGS):
            raise UnsupportedError(f"the agent of node {node.node_id!r} does not serve logs", node_id=node.node_id)
        async for chunk in self._agents.read_logs(node, request_to_agent(request, node.spec)):
            yield chunk_for_clients(chunk, node.spec)


def _needs_generations(record: WorkloadRecord, request: pb.PlanPlacementRequest) -> bool:
    return request.together or record.group_id is not None or record.spec.at_most_one


def _planned(record: WorkloadRecord, outcome: RequestOutcome, decision: PlacementDecision | None) -> PlannedPlacement:
    change = {
        RequestOutcome.CREATED: "create",
        RequestOutcome.UPDATED: "update",
        RequestOutcome.UNCHANGED: "unchanged",
    }[outcome]
    if decision is None:
        return PlannedPlacement(record.workload_id, record.node_id or "", change)
    return PlannedPlacement(
        workload_id=record.workload_id,
        node_id=decision.node_id or "",
        change=change,
        rejections=decision.rejections,
        scores=tuple(NodeScore(each.node_id, each.total, each.parts) for each in decision.scores),
    )


def _sentence(error: ShoalError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message

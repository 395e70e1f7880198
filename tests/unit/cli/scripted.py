"""A control plane as a script, and the command line run against it within the process, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import looptime
import pytest

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.core.errors import NotFoundError, PreconditionError
from shoal.model.events import Event
from shoal.model.nodes import NodeUsage
from shoal.model.resources import Resources
from shoal.model.selectors import parse_selector
from shoal.model.views import (
    ClusterSummary,
    GroupView,
    NodeScore,
    NodeView,
    PlannedPlacement,
    WorkloadView,
)
from shoal.model.workloads import Rejection, Usage
from shoal.testing.clock import LoopClock
from shoal.wire import convert
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import AgentControl, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Service

ADDRESS = "127.0.0.1:8085"
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


WEB = "id: web\ntype: process\nprocess: {command: [sleep, '60']}\n"
TWO = f"{WEB}---\n{WEB.replace('web', 'worker')}"
GROUP = "kind: group\nid: trainers\nmembers:\n- " + WEB.replace("web", "t-0").replace("\n", "\n  ").rstrip() + "\n"


def spec(tmp_path, text, name="spec.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@dataclass
class Step:
    """What becomes of a workload some time after it was requested."""

    after: float
    changes: dict[str, Any]


@dataclass
class ScriptedControl:
    """Serves AgentControl from plain values, and notes what it was asked."""

    nodes: dict[str, NodeView] = field(default_factory=dict)
    workloads: dict[str, WorkloadView] = field(default_factory=dict)
    groups: dict[str, GroupView] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    logs: list[tuple[bytes, str]] = field(default_factory=list)
    #: By workload; without a script a request comes true at once on node-1.
    scripts: dict[str, list[Step]] = field(default_factory=dict)
    refuse: dict[str, pb.ApplyWorkloadResponse] = field(default_factory=dict)
    placements: dict[str, PlannedPlacement] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    log_requests: list[pb.ReadLogsRequest] = field(default_factory=list)
    #: Before which chunk of a log the stream breaks, once each, and how.
    log_breaks: dict[int, list[Exception]] = field(default_factory=dict)
    #: Whether it is of a version that knows neither positions nor times.
    is_older: bool = False
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    fail_with: dict[str, Exception] = field(default_factory=dict)
    #: For each of the first calls an error, or None for one that is answered.
    fail_once: dict[str, list[Exception | None]] = field(default_factory=dict)
    #: Runs beside the command.
    at_start: Callable[[], Coroutine[Any, Any, None]] | None = None
    #: How often a call is answered before it fails for good.
    fail_with_after: dict[str, tuple[int, Exception]] = field(default_factory=dict)
    #: (deadline_ms, force) of each drain that was asked for.
    drains: list[tuple[int, bool]] = field(default_factory=list)

    def _note(self, call: Any) -> None:
        name = call.method.rsplit("/", 1)[-1]
        self.calls.append(name)
        if name in self.fail_with:
            raise self.fail_with[name]
        if self.fail_once.get(name):
            once = self.fail_once[name].pop(0)
            if once is not None:
                raise once
        after, error = self.fail_with_after.get(name, (0, None))
        if error is not None and self.calls.count(name) > after:
            raise error

    def _workload(self, name: str) -> WorkloadView:
        if name not in self.workloads:
            raise NotFoundError("workload", name)
        return self.workloads[name]

    async def _change(self, name: str, **changes: Any) -> None:
        if "status" in changes:
            changes = {"state": changes["status"]} | changes
        self.workloads[name] = dataclasses.replace(self.workloads[name], **changes)
        await self._tell("WorkloadChanged", "workload", name)

    async def _tell(self, kind: str, subject_kind: str, subject_id: str) -> None:
        self.events.append(
            Event(START, subject_kind, subject_id, kind, f"{kind} happened", "api", cursor=len(self.events) + 1)
        )
        async with self.news:
            self.news.notify_all()

    def _perform(self, name: str, otherwise: list[Step]) -> None:
        async def perform() -> None:
            for step in self.scripts.get(name, otherwise):
                await asyncio.sleep(step.after)
                if step.changes.get("gone"):
                    del self.workloads[name]
                    await self._tell("WorkloadDeleted", "workload", name)
                else:
                    await self._change(name, **step.changes)

        task = asyncio.ensure_future(perform())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # Workloads

    async def apply_workload(self, request: pb.ApplyWorkloadRequest, call: Any) -> pb.ApplyWorkloadResponse:
        self._note(call)
        name = request.workload_id
        if name in self.refuse:
            return self.refuse[name]
        known = self.workloads.get(name)
        if known is not None and known.revision_id == (request.revision_id or "r1"):
            return pb.ApplyWorkloadResponse(
                success=True, revision_id=known.revision_id, generation=known.generation, outcome="unchanged"
            )
        view = workload(
            name,
            status="Pending",
            assigned_node_id="",
            desired_state=request.desired_state or "Running",
            revision_id=request.revision_id or "r1",
            generation=known.generation + 1 if known else 1,
        )
        self.workloads[name] = view
        requested = "Stopped" if view.desired_state == "Stopped" else "Running"
        self._perform(name, [Step(0.0, {"status": requested, "assigned_node_id": "node-1"})])
        return pb.ApplyWorkloadResponse(
            success=True,
            revision_id=view.revision_id,
            generation=view.generation,
            outcome="updated" if known else "created",
        )

    async def delete_workload(self, request: pb.DeleteWorkloadRequest, call: Any) -> pb.DeleteWorkloadResponse:
        self._note(call)
        if request.workload_id not in self.workloads:
            return pb.DeleteWorkloadResponse(success=False, error_message="workload not found")
        await self._change(request.workload_id, status="Deleting")
        self._perform(request.workload_id, [Step(0.5, {"gone": True})])
        return pb.DeleteWorkloadResponse(success=True)

    async def retry_workload(self, request: pb.RetryWorkloadRequest, call: Any) -> pb.RetryWorkloadResponse:
        self._note(call)
        view = self._workload(request.workload_id)
        if view.status != "Failed":
            return pb.RetryWorkloadResponse(accepted=False)
        await self._change(request.workload_id, status="Pending")
        self._perform(request.workload_id, [Step(0.5, {"status": "Running"})])
        return pb.RetryWorkloadResponse(accepted=True)

    async def set_desired_state(self, request: pb.SetDesiredStateRequest, call: Any) -> pb.SetDesiredStateResponse:
        self._note(call)
        name = request.workload_id
        self._workload(name)
        word = "Stopping" if request.desired_state == "Stopped" else "Pending"
        await self._change(name, desired_state=request.desired_state, status=word)
        self._perform(name, [Step(0.5, {"status": request.desired_state})])
        return pb.SetDesiredStateResponse(workload=convert.workload_view_to_proto(self.workloads[name]))

    async def list_workloads(self, request: pb.ListWorkloadsRequest, call: Any) -> pb.ListWorkloadsResponse:
        self._note(call)
        views = [
            view
            for view in self.workloads.values()
            if request.node_id in ("", view.assigned_node_id)
            and request.status in ("", view.status)
            and request.group_id in ("", view.group_id)
        ]
        return pb.ListWorkloadsResponse(workloads=[convert.workload_view_to_proto(view) for view in views])

    async def get_workload(self, request: pb.GetWorkloadRequest, call: Any) -> pb.GetWorkloadResponse:
        self._note(call)
        view = self._workload(request.workload_id)
        return pb.GetWorkloadResponse(workload=convert.workload_view_to_proto(view))

    async def plan_placement(self, request: pb.PlanPlacementRequest, call: Any) -> pb.PlanPlacementResponse:
        self._note(call)
        planned = [
            self.placements.get(
                member.workload_id,
                PlannedPlacement(
                    member.workload_id, "node-1", "create", scores=(NodeScore("node-1", 0.75), NodeScore("node-2", 0.5))
                ),
            )
            for member in request.members
        ]
        return pb.PlanPlacementResponse(
            placements=[convert.planned_placement_to_proto(each) for each in planned],
            placeable=all(each.node_id for each in planned),
        )

    async def read_logs(self, request: pb.ReadLogsRequest, call: Any) -> AsyncIterator[pb.LogChunk]:
        """Positions count the chunks. With `follow` there is one more, and then the workload is gone."""
        self._note(call)
        self.log_requests.append(request)
        self._workload(request.workload_id)
        chunks = list(enumerate(self.logs, 1))
        if request.after:
            chunks = chunks[int(request.after) :]
        elif request.tail_lines:
            chunks = chunks[-request.tail_lines :]
        if request.follow:
            chunks.append((len(self.logs) + 1, (b"more\n", "stdout")))
        for number, (data, stream) in chunks:
            for error in self.log_breaks.pop(number, ()):
                raise error
            time = START + timedelta(seconds=number)
            since = START + timedelta(milliseconds=request.since_ms) - (START - EPOCH) if request.since_ms else None
            if since is None or time >= since:
                yield pb.LogChunk(
                    data=data,
                    stream=stream,
                    position="" if self.is_older else str(number),
                    time_ms=int(time.timestamp() * 1000) if request.times and not self.is_older else 0,
                )
        if request.follow:
            self.workloads.pop(request.workload_id)

    # Groups

    async def apply_group(self, request: pb.ApplyGroupRequest, call: Any) -> pb.ApplyGroupResponse:
        self._note(call)
        views = []
        for member in request.members:
            view = workload(member.workload_id, status="Pending", assigned_node_id="", group_id=request.group_id)
            self.workloads[view.workload_id] = view
            self._perform(view.workload_id, [Step(0.0, {"status": "Running", "assigned_node_id": "node-2"})])
            views.append(view)
        self.groups[request.group_id] = GroupView(request.group_id, 1, "Pending", "", tuple(views))
        return pb.ApplyGroupResponse(
            generation=1, outcome="created", members=[convert.workload_view_to_proto(view) for view in views]
        )

    async def delete_group(self, request: pb.DeleteGroupRequest, call: Any) -> pb.DeleteGroupResponse:
        self._note(call)
        group = self.groups.pop(request.group_id, None)
        if group is None:
            raise NotFoundError("group", request.group_id)
        for member in group.members:
            self._perform(member.workload_id, [Step(0.5, {"gone": True})])
        return pb.DeleteGroupResponse(generation=group.generation + 1)

    async def get_group(self, request: pb.GetGroupRequest, call: Any) -> pb.GetGroupResponse:
        self._note(call)
        if request.group_id not in self.groups:
            raise NotFoundError("group", request.group_id)
        return pb.GetGroupResponse(group=convert.group_view_to_proto(self.groups[request.group_id]))

    async def list_groups(self, _request: pb.ListGroupsRequest, call: Any) -> pb.ListGroupsResponse:
        self._note(call)
        return pb.ListGroupsResponse(groups=[convert.group_view_to_proto(view) for view in self.groups.values()])

    # Nodes, summary, events

    async def list_nodes(self, request: pb.ListNodesRequest, call: Any) -> pb.ListNodesResponse:
        self._note(call)
        views = [view for view in self.nodes.values() if request.status in ("", view.status)]
        return pb.ListNodesResponse(nodes=[convert.node_view_to_proto(view) for view in views])

    async def get_node(self, request: pb.GetNodeRequest, call: Any) -> pb.GetNodeResponse:
        self._note(call)
        if request.node_id not in self.nodes:
            raise NotFoundError("node", request.node_id)
        return pb.GetNodeResponse(node=convert.node_view_to_proto(self.nodes[request.node_id]))

    async def remove_node(self, request: pb.RemoveNodeRequest, call: Any) -> pb.RemoveNodeResponse:
        self._note(call)
        view = self.nodes.get(request.node_id)
        if view is None:
            raise NotFoundError("node", request.node_id)
        if view.status == "Ready":
            raise PreconditionError(f"node {request.node_id!r} still sends heartbeats", hint="stop its agent first")
        del self.nodes[request.node_id]
        return pb.RemoveNodeResponse()

    def _changed(self, node_id: str, **changes: Any) -> pb.NodeView:
        if node_id not in self.nodes:
            raise NotFoundError("node", node_id)
        self.nodes[node_id] = dataclasses.replace(self.nodes[node_id], **changes)
        return convert.node_view_to_proto(self.nodes[node_id])

    async def cordon_node(self, request: pb.CordonNodeRequest, call: Any) -> pb.CordonNodeResponse:
        self._note(call)
        return pb.CordonNodeResponse(node=self._changed(request.node_id, desired="cordoned"))

    async def label_node(self, request: pb.LabelNodeRequest, call: Any) -> pb.LabelNodeResponse:
        self._note(call)
        labels = {**self.nodes[request.node_id].labels, **request.set}
        return pb.LabelNodeResponse(
            node=self._changed(request.node_id, labels={k: v for k, v in labels.items() if k not in request.remove})
        )

    async def uncordon_node(self, request: pb.UncordonNodeRequest, call: Any) -> pb.UncordonNodeResponse:
        self._note(call)
        return pb.UncordonNodeResponse(node=self._changed(request.node_id, desired="", status="Ready"))

    async def drain_node(self, request: pb.DrainNodeRequest, call: Any) -> pb.DrainNodeResponse:
        """Its workloads leave one by one, one each ten seconds."""
        self._note(call)
        self.drains.append((request.deadline_ms, request.force))
        node_id = request.node_id
        leaving = [name for name, view in self.workloads.items() if view.assigned_node_id == node_id]
        view = self._changed(node_id, desired="draining", status="Draining", leaving=len(leaving))

        async def empty() -> None:
            for left, name in enumerate(leaving, 1):
                await asyncio.sleep(10.0)
                self.workloads[name] = dataclasses.replace(self.workloads[name], assigned_node_id="elsewhere")
                self._changed(node_id, leaving=len(leaving) - left)
            self._changed(node_id, desired="drained", status="Drained")

        task = asyncio.ensure_future(empty())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return pb.DrainNodeResponse(node=view)

    async def mark_node_dead(self, request: pb.MarkNodeDeadRequest, call: Any) -> pb.MarkNodeDeadResponse:
        self._note(call)
        if self.nodes[request.node_id].status == "Ready" and not request.force:
            raise PreconditionError(f"node {request.node_id!r} is Ready", hint="say --force if you know better")
        return pb.MarkNodeDeadResponse(node=self._changed(request.node_id, status="NotReady", failover="dead"))

    async def adopt_workload(self, request: pb.AdoptWorkloadRequest, call: Any) -> pb.AdoptWorkloadResponse:
        self._note(call)
        view = self.workloads[request.workload_id] = workload(request.workload_id, assigned_node_id=request.node_id)
        return pb.AdoptWorkloadResponse(workload=convert.workload_view_to_proto(view))

    async def get_cluster_summary(self, _request: pb.GetClusterSummaryRequest, call: Any) -> pb.ClusterSummary:
        self._note(call)

        def count(*words: str) -> int:
            return sum(view.status in words for view in self.workloads.values())

        summary = ClusterSummary(
            total_nodes=len(self.nodes),
            ready_nodes=sum(node.status == "Ready" for node in self.nodes.values()),
            not_ready_nodes=sum(node.status == "NotReady" for node in self.nodes.values()),
            total_workloads=len(self.workloads),
            running_workloads=count("Running"),
            pending_workloads=count("Pending"),
            failed_workloads=count("Failed"),
            groups=len(self.groups),
            cluster_id="default",
            generated_at=START,
        )
        return convert.cluster_summary_to_proto(summary)

    def _selected(self, request: Any) -> list[Event]:
        return [
            event
            for event in self.events
            if event.cursor > request.after
            and request.subject_kind in ("", event.subject_kind)
            and request.subject_id in ("", event.subject_id)
            and parse_selector(request.selector).matches(event.labels)
        ]

    async def list_events(self, request: pb.ListEventsRequest, call: Any) -> pb.ListEventsResponse:
        self._note(call)
        found = self._selected(request)
        chosen = found[-request.limit :] if request.newest else found[: request.limit]
        last = chosen[-1].cursor if chosen else len(self.events)
        return pb.ListEventsResponse(events=[convert.event_to_proto(each) for each in chosen], next=last, oldest=1)

    async def watch_events(self, request: pb.WatchEventsRequest, call: Any) -> AsyncIterator[pb.Event]:
        self._note(call)
        seen = 0
        while True:
            for event in self._selected(request):
                if event.cursor > seen:
                    seen = event.cursor
                    yield convert.event_to_proto(event)
            async with self.news:
                await self.news.wait()


def workload(name: str, **fields: Any) -> WorkloadView:
    """A workload that runs, unless said otherwise."""
    usual: dict[str, Any] = {
        "type": "process",
        "desired_state": "Running",
        "status": "Running",
        "state": fields.get("status", "Running"),
        "assigned_node_id": "node-1",
        "revision_id": "r1",
        "observed_revision_id": "r1",
        "generation": 1,
        "created_at": START - timedelta(minutes=5),
        "usage": Usage(cpu_percent=12.5, memory_bytes=64 * 2**20),
    }
    return WorkloadView(name, **(usual | fields))


def node(name: str, **fields: Any) -> NodeView:
    """A node that is well, unless said otherwise."""
    usual: dict[str, Any] = {
        "status": "Ready",
        "grpc_endpoint": "127.0.0.1:50051",
        "total": Resources(2000, 4096, 100, 4),
        "available": Resources(1500, 3072, 90, 3),
        "supported_workload_types": ("process",),
        "labels": {"zone": "a"},
        "agent_version": "0.1.0",
        "features": ("generations", "logs"),
        "last_heartbeat": START - timedelta(seconds=3),
        "status_updated_at": START - timedelta(hours=1),
        "lease_expires_at": START + timedelta(seconds=27),
        "usage": NodeUsage(cpu_used_millicores=250, memory_used_mb=700),
        "workload_count": 2,
        "cluster_id": "default",
        "host_id": "host-1",
    }
    return NodeView(name, **(usual | fields))


NO_ROOM = (
    Rejection("node-1", "memory", "memory: needs 64,000 MB, has 3,072 MB"),
    Rejection("node-2", "not_ready", "the node is NotReady: its lease ran out"),
)


@dataclass
class Outcome:
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str
    #: Virtual seconds it took.
    seconds: float


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run_on_terminal(control: ScriptedControl, arguments: list[str], capsys: Any, *, width: int = 80) -> Outcome:
    """Run a command line with a terminal of some width as stdout, without colors."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "dumb")
        patch.setattr(sys, "stdout", screen)
        outcome = run_cli(control, arguments, capsys)
    return dataclasses.replace(outcome, stdout=screen.getvalue())


def run_cli(control: ScriptedControl | None, arguments: list[str], capsys: Any) -> Outcome:
    """Run a command line against the script. None: nobody serves."""
    transport = LocalNetwork().transport("cli")
    seconds = 0.0

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        async def session() -> Any:
            nonlocal seconds
            services = [Service(methods_of(AgentControl), control)] if control is not None else []
            server = await transport.serve(ADDRESS, services) if control is not None else None
            started = asyncio.get_running_loop().time()
            if control is not None and control.at_start is not None:
                control.tasks.add(asyncio.ensure_future(control.at_start()))
            try:
                return await work
            finally:
                seconds = asyncio.get_running_loop().time() - started
                for task in set(control.tasks) if control is not None else ():
                    task.cancel()
                if server is not None:
                    await server.stop()

        with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
            return runner.run(session())

    around = Surroundings(make_transport=lambda _access: transport, make_clock=lambda: LoopClock(START), run=run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_INSECURE", "1")  # there is no network to protect
        code = main.run(arguments, around=around)
    captured = capsys.readouterr()
    return Outcome(code, captured.out, captured.err, seconds)

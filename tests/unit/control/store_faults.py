"""What the matrix of store failures is made of: every write of the API, and every loop of the control plane.

An entry prepares a world, does one thing while the store fails, and says how to see that it was done in the end.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from shoal.control.leadership.routing import READS
from shoal.control.state.fleet import Fleet
from shoal.core.ids import GroupId, WorkloadId
from shoal.model.nodes import DesiredNodeState, NodeState
from shoal.model.workloads import DesiredState
from shoal.testing.control import ControlKit, process_spec
from shoal.testing.hollow import HollowNode
from shoal.wire.methods import AgentControl, Credentials, Enrollment, Secrets, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import secrets_pb2
from tests.unit.control.operating import cordon, drain, ready, wait_event

Step = Callable[[ControlKit], Awaitable[Any]]


async def nothing(_kit: ControlKit) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Write:
    """One RPC that changes something."""

    method: Any
    request: Any
    #: Whether what it asks for is so, by what the control plane knows.
    holds: Callable[[Fleet], bool]
    prepare: Step = nothing

    async def call(self, kit: ControlKit) -> Any:
        """Call it once."""
        return await kit.channel.call(self.method, self.request)


def registration(node_id: str) -> pb.RegisterNodeRequest:
    return pb.RegisterNodeRequest(
        node_id=node_id,
        capabilities=pb.NodeCapabilities(
            cpu_total_millicores=4000, memory_total_mb=4096, supported_workload_types=["process"]
        ),
        grpc_endpoint="nowhere:1",
        features=["sessions", "generations"],
    )


async def running(kit: ControlKit, *, group: bool = False) -> None:
    """A workload, or a group of two, that runs on one of two nodes."""
    await ready(kit, "n1", "n2")
    if group:
        await kit.apply_group("g", {"a": {}, "b": {}})
    else:
        await kit.apply("web")
    for name in ("a", "b") if group else ("web",):
        await kit.wait_status(name, "Running")


async def lost(kit: ControlKit) -> None:
    """A node that went silent long ago."""
    (node,) = await ready(kit, "n1")
    node.silent = True
    await kit.wait_node("n1", "NotReady", seconds=120)
    await kit.clock.sleep(30)


async def orphaned(kit: ControlKit) -> None:
    """A node that runs something which is not known here."""
    (node,) = await ready(kit, "n1")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    _stray(node)
    await kit.clock.sleep(15)


def _stray(node: HollowNode) -> None:
    """Let a node run something that nobody asked it to."""
    run = copy.deepcopy(node.runs["web"])
    run.request.id = "stray"
    node.runs["stray"] = run
    node.changed.set()


async def cordoned(kit: ControlKit) -> None:
    await ready(kit, "n1")
    await cordon(kit, "n1")


async def with_secret(kit: ControlKit) -> None:
    await kit.channel.call(Secrets.SET_SECRET, secrets_pb2.SetSecretRequest(name="s", value=b"1"))


def is_to_be(fleet: Fleet, name: str, desired: DesiredState) -> bool:
    record = fleet.workloads.get(WorkloadId(name))
    return record.desired is desired if record is not None else desired is DesiredState.DELETED


def node_is(fleet: Fleet, *desired: DesiredNodeState) -> bool:
    return fleet.nodes["n1"].desired in desired  # type: ignore[index]


_STOPPED = DesiredState.STOPPED.value
_SUGGESTION = pb.AutomationSuggestion(
    target_workload="web", action_type=pb.SET_DESIRED_STATE, desired_state=_STOPPED, reason="test"
)
WRITES = [
    Write(AgentControl.REGISTER_NODE, registration("new"), lambda fleet: "new" in fleet.nodes),
    Write(
        AgentControl.APPLY_WORKLOAD,
        pb.ApplyWorkloadRequest(workload_id="web", spec=process_spec()),
        lambda fleet: "web" in fleet.workloads,
    ),
    Write(
        AgentControl.DELETE_WORKLOAD,
        pb.DeleteWorkloadRequest(workload_id="web"),
        lambda fleet: is_to_be(fleet, "web", DesiredState.DELETED),
        running,
    ),
    Write(
        AgentControl.SET_DESIRED_STATE,
        pb.SetDesiredStateRequest(workload_id="web", desired_state=_STOPPED),
        lambda fleet: is_to_be(fleet, "web", DesiredState.STOPPED),
        running,
    ),
    Write(
        AgentControl.SUBMIT_AUTOMATION_SUGGESTION,
        pb.SubmitAutomationSuggestionRequest(suggestion=_SUGGESTION),
        lambda fleet: is_to_be(fleet, "web", DesiredState.STOPPED),
        running,
    ),
    Write(
        AgentControl.APPLY_GROUP,
        pb.ApplyGroupRequest(group_id="g", members=[pb.GroupMember(workload_id="a", spec=process_spec())]),
        lambda fleet: "g" in fleet.groups,
        lambda kit: ready(kit, "n1"),
    ),
    Write(
        AgentControl.DELETE_GROUP,
        pb.DeleteGroupRequest(group_id="g"),
        lambda fleet: "g" not in fleet.groups or fleet.groups[GroupId("g")].desired is DesiredState.DELETED,
        lambda kit: running(kit, group=True),
    ),
    Write(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="n1"), lambda fleet: "n1" not in fleet.nodes, lost),
    Write(
        AgentControl.MARK_NODE_DEAD,
        pb.MarkNodeDeadRequest(node_id="n1"),
        lambda fleet: fleet.nodes["n1"].dead,  # type: ignore[index]
        lost,
    ),
    Write(
        AgentControl.CORDON_NODE,
        pb.CordonNodeRequest(node_id="n1"),
        lambda fleet: node_is(fleet, DesiredNodeState.CORDONED),
        lambda kit: ready(kit, "n1"),
    ),
    Write(
        AgentControl.UNCORDON_NODE,
        pb.UncordonNodeRequest(node_id="n1"),
        lambda fleet: node_is(fleet, DesiredNodeState.NONE),
        cordoned,
    ),
    Write(
        AgentControl.LABEL_NODE,
        pb.LabelNodeRequest(node_id="n1", set={"zone": "a"}),
        lambda fleet: "zone" in fleet.nodes["n1"].operator_labels,  # type: ignore[index]
        lambda kit: ready(kit, "n1"),
    ),
    Write(
        AgentControl.DRAIN_NODE,
        pb.DrainNodeRequest(node_id="n1"),
        lambda fleet: node_is(fleet, DesiredNodeState.DRAINING, DesiredNodeState.DRAINED),
        running,
    ),
    Write(
        AgentControl.ADOPT_WORKLOAD,
        pb.AdoptWorkloadRequest(node_id="n1", workload_id="stray"),
        lambda fleet: "stray" in fleet.workloads,
        orphaned,
    ),
]
#: Writes that the matrix of loops, or that of enrollment, has.
ELSEWHERE = {
    AgentControl.HEARTBEAT.path,
    AgentControl.CONTROL_STREAM.path,
    AgentControl.WATCH_EVENTS.path,
    AgentControl.RETRY_WORKLOAD.path,
    Secrets.SET_SECRET.path,
    Secrets.DELETE_SECRET.path,
    Credentials.CREATE_JOIN_TOKEN.path,
    Credentials.REVOKE_JOIN_TOKEN.path,
    Credentials.RENEW_CERTIFICATE.path,
    Credentials.ISSUE_WORKLOAD_CERTIFICATE.path,
    Enrollment.JOIN.path,
}


def every_write() -> set[str]:
    """The paths of all RPCs that may change something."""
    services = (AgentControl, Credentials, Enrollment, Secrets)
    return {each.path for service in services for each in methods_of(service) if each.attribute not in READS}


# ---------------------------------------------------------------------------------------------------------
# Loops


@dataclass(frozen=True)
class Work:
    """Something that the control plane does by itself."""

    name: str
    prepare: Step
    #: While the store fails.
    during: Step
    #: Raises unless it is done in the end.
    done: Step


async def _silence(kit: ControlKit) -> None:
    next(node for node in kit.agents.nodes.values() if "web" in node.runs).silent = True


async def _moved(kit: ControlKit) -> None:
    await kit.wait(
        lambda: any("web" in node.runs and not node.silent for node in kit.agents.nodes.values()), seconds=200
    )


async def _end_run(kit: ControlKit) -> None:
    next(node for node in kit.agents.nodes.values() if "web" in node.runs).complete("web")


async def _completed(kit: ControlKit) -> None:
    await kit.wait_status("web", "Completed", seconds=15)


async def _two_pending(kit: ControlKit) -> None:
    for name in ("a", "b"):
        await kit.apply(name)


async def _join(kit: ControlKit) -> None:
    kit.node("n1")


async def _both_run(kit: ControlKit) -> None:
    for name in ("a", "b"):
        await kit.wait_status(name, "Running", seconds=120)


async def _begin_drain(kit: ControlKit) -> None:
    await running(kit)
    here = next(node.node_id for node in kit.agents.nodes.values() if "web" in node.runs)
    await drain(kit, here)


async def _drained(kit: ControlKit) -> None:
    def emptied() -> bool:
        states = {node.state for node in kit.plane.leadership.fleet.nodes.values()}
        return NodeState.DRAINED in states

    await kit.wait(emptied, seconds=180, what="drained")
    await kit.wait_status("web", "Running")


async def _apply_group(kit: ControlKit) -> None:
    await ready(kit, "n1", "n2")
    await kit.apply_group("g", {"a": {}, "b": {}})


async def _settled(kit: ControlKit) -> None:
    await kit.wait(lambda: not kit.plane.leadership.fleet.groups[GroupId("g")].before, seconds=120)
    await _both_run(kit)


async def _leads(kit: ControlKit) -> None:
    await kit.wait(lambda: kit.plane.leads and kit.plane.is_ready(), seconds=20)
    assert (await kit.apply("later")).success


async def _add_stray(kit: ControlKit) -> None:
    _stray(next(node for node in kit.agents.nodes.values() if "web" in node.runs))


async def _told(kit: ControlKit) -> None:
    await wait_event(kit, "OrphanFound", seconds=30)


async def _wait(kit: ControlKit) -> None:
    await kit.clock.sleep(1)


WORKS = [
    Work("leases", running, _silence, _moved),
    Work("heartbeats", running, _end_run, _completed),
    Work("placement", _two_pending, _join, _both_run),
    Work("drains", _begin_drain, _wait, _drained),
    Work("groups", _apply_group, _wait, _settled),
    Work("leadership", running, _wait, _leads),
    Work("orphans", running, _add_stray, _told),
]


async def stored_fleet(kit: ControlKit) -> Fleet:
    """What a control plane would know that starts now."""
    fleet = Fleet()
    fleet.load(await kit.store.load())
    return fleet


async def is_consistent(kit: ControlKit) -> bool:
    """Whether memory is what is stored, once nothing is under way."""
    await asyncio.sleep(0)
    known, stored = kit.plane.leadership.fleet, await stored_fleet(kit)
    return (known.workloads, known.groups) == (stored.workloads, stored.groups) and {
        name: node.version for name, node in known.nodes.items()
    } == {name: node.version for name, node in stored.nodes.items()}

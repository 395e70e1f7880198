"""Labels that an operator gives a node: kept through registrations, and what placement goes by."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidError, NotFoundError
from shoal.testing.control import ControlKit, process_spec
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

pytestmark = pytest.mark.looptime


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        yield kit


async def label(kit, node_id="n1", *, remove=(), **labels) -> dict[str, str]:
    request = pb.LabelNodeRequest(node_id=node_id, set=labels, remove=remove)
    return dict((await kit.channel.call(AgentControl.LABEL_NODE, request)).node.labels)


async def labels_of(kit, node_id="n1") -> dict[str, str]:
    return dict((await kit.channel.call(AgentControl.GET_NODE, pb.GetNodeRequest(node_id=node_id))).node.labels)


async def test_a_label_is_set_changed_and_removed(kit):
    kit.node("n1", labels={"zone": "a"})
    await kit.wait_node("n1", "Ready")
    assert await label(kit, rack="r1", zone="b") == {"zone": "b", "rack": "r1"}
    assert await label(kit, rack="r2") == {"zone": "b", "rack": "r2"}
    assert await label(kit, remove=["zone", "rack", "nothing"]) == {"zone": "a"}
    events = await kit.channel.call(AgentControl.LIST_EVENTS, pb.ListEventsRequest(subject_kind="node", limit=100))
    told = [event.message for event in events.events if event.kind == "NodeLabeled"]
    assert told[0] == "rack=r1, zone=b"


async def test_labels_outlive_a_registration_and_a_restart(kit):
    kit.node("n1", labels={"zone": "a"})
    await kit.wait_node("n1", "Ready")
    await label(kit, rack="r1")
    kit.agents.kill("n1")
    again = kit.node("n1", labels={"zone": "b"})
    await kit.wait(lambda: again.registrations == 1, what="registered again")
    assert await labels_of(kit) == {"zone": "b", "rack": "r1"}
    await kit.stop_control()
    await kit.start_control()
    assert await labels_of(kit) == {"zone": "b", "rack": "r1"}


async def test_a_workload_that_waits_for_a_label_is_placed_as_soon_as_a_node_has_it(kit):
    kit.node("n1")
    await kit.wait_node("n1", "Ready")
    spec = process_spec()
    spec.placement.constraints.add(key="rack", operator="in", values=["r1"])
    request = pb.ApplyWorkloadRequest(workload_id="web", spec=spec)
    assert (await kit.channel.call(AgentControl.APPLY_WORKLOAD, request)).success
    await kit.clock.sleep(1)
    assert (await kit.workload("web")).assigned_node_id == ""
    await label(kit, rack="r1")
    await kit.wait_status("web", "Running")
    assert (await kit.workload("web")).assigned_node_id == "n1"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"set": {"node_id": "x"}}, "labels.node_id"),
        ({"set": {"bad key!": "x"}}, "labels.bad key!"),
        ({"set": {"a": "x" * 300}}, "labels.a"),
        ({}, "set"),
        ({"set": {"a": "b"}, "remove": ["a"]}, "remove"),
        ({"remove": ["zone"]}, "remove"),
        ({"remove": [f"k{n}" for n in range(300)]}, "remove"),
        ({"set": {f"k{n}": "" for n in range(300)}}, "labels"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_changed(kit, fields, field):
    kit.node("n1", labels={"zone": "a"})
    await kit.wait_node("n1", "Ready")
    with pytest.raises(InvalidError) as caught:
        await kit.channel.call(AgentControl.LABEL_NODE, pb.LabelNodeRequest(node_id="n1", **fields))
    assert field in [each.field for each in caught.value.problems]
    assert await labels_of(kit) == {"zone": "a"}


async def test_a_node_that_nobody_knows(kit):
    with pytest.raises(NotFoundError):
        await label(kit, "nobody", a="b")

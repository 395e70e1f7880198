"""Heartbeats that were made before a command and arrive after its answer: they prove nothing about it."""

import time

import pytest

from shoal.model.nodes import HeartbeatMark
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

pytestmark = pytest.mark.looptime(start=time.monotonic)


def make_empty_heartbeat(node):
    """A heartbeat that lists nothing, made now and delivered later."""
    made = pb.HeartbeatRequest(node_id=node.node_id, session=node.session, sequence=node.sequence)
    node.sequence += 1
    return made


async def quiet_node(kit, node_id="n1"):
    """A node that takes commands; its heartbeats are sent by the test."""
    node = kit.node(node_id)
    await kit.wait_node(node_id, "Ready")
    node.mute = True
    return node


async def deliver(kit, heartbeat):
    assert (await kit.channel.call(AgentControl.HEARTBEAT, heartbeat)).acknowledged
    await kit.clock.sleep(0.5)


def ordered(node, verb):
    return [workload_id for done, workload_id, _generation in node.history if done == verb]


async def test_a_heartbeat_made_before_the_delete_does_not_prove_that_a_workload_is_gone(kit):
    node = await quiet_node(kit)
    late = make_empty_heartbeat(node)
    await kit.apply("web")
    await kit.wait(lambda: ordered(node, "apply Running") == ["web"])
    await kit.delete("web")
    await kit.wait(lambda: ordered(node, "delete") == ["web"])
    await deliver(kit, late)
    assert "web" in kit.plane.leadership.fleet.workloads
    await deliver(kit, make_empty_heartbeat(node))
    assert "web" not in kit.plane.leadership.fleet.workloads


async def test_nor_does_it_prove_that_a_copy_left_behind_is_gone(kit):
    first = kit.node("n1")
    await kit.wait_node("n1", "Ready")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    kit.node("n2")
    await kit.wait_node("n2", "Ready")
    first.silent = True
    await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].left_on == ("n1",), seconds=120)
    first.silent, first.mute = False, True
    before, late = make_empty_heartbeat(first), make_empty_heartbeat(first)
    await deliver(kit, before)  # it is back, and says that it has nothing: it is told to remove all the same
    await kit.wait(lambda: ordered(first, "delete") == ["web"])
    await deliver(kit, late)
    assert kit.plane.leadership.fleet.workloads["web"].left_on == ("n1",)
    await deliver(kit, make_empty_heartbeat(first))
    assert kit.plane.leadership.fleet.workloads["web"].left_on == ()


async def test_a_heartbeat_of_a_later_session_was_made_after_the_answer(kit):
    node = await quiet_node(kit)
    await kit.apply("web")
    await kit.wait(lambda: ordered(node, "apply Running") == ["web"])
    for _ in range(5):
        make_empty_heartbeat(node)
    await kit.delete("web")
    await kit.wait(lambda: ordered(node, "delete") == ["web"])
    request = pb.RegisterNodeRequest(
        node_id="n1",
        capabilities=pb.NodeCapabilities(
            cpu_total_millicores=1000, memory_total_mb=1000, supported_workload_types=["process"]
        ),
        grpc_endpoint="agents:50051",
        features=node.features,
        previous_session=node.session,
    )
    node.session = (await kit.channel.call(AgentControl.REGISTER_NODE, request)).session
    node.sequence = 1
    await deliver(kit, make_empty_heartbeat(node))
    assert "web" not in kit.plane.leadership.fleet.workloads


@pytest.mark.parametrize(
    ("heartbeat", "first", "before"),
    [
        (HeartbeatMark("s1", 4), HeartbeatMark("s1", 5), True),
        (HeartbeatMark("s1", 5), HeartbeatMark("s1", 5), False),
        (HeartbeatMark("s1", 6), HeartbeatMark("s1", 5), False),
        (HeartbeatMark("s2", 1), HeartbeatMark("s1", 5), False),
        (HeartbeatMark("s1", 1), None, False),
    ],
)
def test_marks_are_compared_within_a_session(heartbeat, first, before):
    assert heartbeat.is_before(first) is before

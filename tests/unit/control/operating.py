"""What the tests of loss, drains and retries share: nodes that are ready, and what operators say."""

from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb


async def ready(kit, *names, **settings):
    nodes = [kit.node(name, **settings) for name in names]
    for name in names:
        await kit.wait_node(name, "Ready")
    return nodes


async def running_on(kit, name, **spec):
    """Apply it, and say on which node it runs, and on which of two it does not."""
    await kit.apply(name, **spec)
    view = await kit.wait_status(name, "Running")
    here = kit.agents.nodes[view.assigned_node_id]
    others = [node for node in kit.agents.nodes.values() if node is not here]
    return here, others


async def drain(kit, node_id, *, deadline_ms=0, force=False):
    request = pb.DrainNodeRequest(node_id=node_id, deadline_ms=deadline_ms, force=force)
    return (await kit.channel.call(AgentControl.DRAIN_NODE, request)).node


async def cordon(kit, node_id):
    return (await kit.channel.call(AgentControl.CORDON_NODE, pb.CordonNodeRequest(node_id=node_id))).node


async def uncordon(kit, node_id):
    return (await kit.channel.call(AgentControl.UNCORDON_NODE, pb.UncordonNodeRequest(node_id=node_id))).node


async def declare_dead(kit, node_id, *, force=False):
    request = pb.MarkNodeDeadRequest(node_id=node_id, force=force)
    return (await kit.channel.call(AgentControl.MARK_NODE_DEAD, request)).node


async def wait_event(kit, kind, seconds=10.0):
    deadline = kit.clock.monotonic() + seconds
    while kind not in await kit.event_kinds():
        assert kit.clock.monotonic() < deadline, f"no {kind} within {seconds} s"
        await kit.clock.sleep(0.05)


def copies(kit, name):
    return sorted(node.node_id for node in kit.agents.nodes.values() if name in node.runs)

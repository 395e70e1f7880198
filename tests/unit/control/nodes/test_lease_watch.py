"""A round of the lease watch looks at nodes that are late or may be, and misses none of them."""

import time

import pytest

from shoal.control.nodes.lease_watch import LeaseWatch

pytestmark = pytest.mark.looptime(start=time.monotonic)

NODES = 40
LEASE = 30.0


@pytest.fixture
def looks(monkeypatch):
    """The nodes of every look, in order."""
    found = []
    take_due = LeaseWatch._take_due

    def taken(self, now):
        due = take_due(self, now)
        found.extend(due)
        return due

    monkeypatch.setattr(LeaseWatch, "_take_due", taken)
    return found


async def ready(kit, count=NODES):
    nodes = [kit.node(f"n{number}") for number in range(count)]
    for node in nodes:
        await kit.wait_node(node.node_id, "Ready")
    return nodes


async def test_a_node_that_is_well_is_looked_at_a_few_times_in_a_lease(kit, looks):
    await ready(kit)
    await kit.clock.sleep(LEASE)
    looks.clear()
    await kit.clock.sleep(10 * LEASE)
    each = {node_id: looks.count(node_id) for node_id in looks}
    assert len(each) == NODES
    assert min(each.values()) / 10 >= 2
    assert max(each.values()) / 10 <= 6


async def test_nodes_that_fall_silent_one_after_another_are_all_noticed_and_come_back(kit):
    nodes = await ready(kit, 12)
    for number, node in enumerate(nodes):
        node.silent = number % 2 == 0
        await kit.clock.sleep(1.7)
    for node in nodes:
        await kit.wait_node(node.node_id, "NotReady" if node.silent else "Ready")
    for node in nodes:
        node.silent = False
        node.changed.set()
    for node in nodes:
        await kit.wait_node(node.node_id, "Ready")


async def test_breaks_of_a_stream_leave_nothing_behind(each_kit):
    (node,) = await ready(each_kit, 1)
    watch = each_kit.plane.leadership.lease_watch
    for _ in range(30):
        await watch.stream_broke(node.node_id)
        await each_kit.wait_node(node.node_id, "Suspect")
        node.changed.set()
        await each_kit.wait_node(node.node_id, "Ready")
    await each_kit.clock.sleep(2 * LEASE)
    assert len(watch._due) == 1


async def test_the_time_of_the_last_heartbeat_is_stored_within_two_leases(kit):
    (node,) = await ready(kit, 1)
    await kit.clock.sleep(10 * LEASE)
    stored = await kit.plane.leadership.ledger.store.load(again=True)
    (record,) = stored.nodes
    age = (kit.clock.wall() - record.last_heartbeat).total_seconds()
    assert record.node_id == node.node_id
    assert age <= 2 * LEASE + 1

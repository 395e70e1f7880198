"""Lists that are cut into pages, and lists that are too long for one message."""

import asyncio
import dataclasses
import time

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from shoal.client import ControlPlane
from shoal.control.api import pages
from shoal.control.api.pages import PAGE_BYTES, first_page, fitting
from shoal.control.store.base import Batch
from shoal.core.errors import ExhaustedError, InvalidError
from shoal.model.events import Event
from shoal.model.workloads import Observation, RunState, RunStatus
from shoal.testing.control import CONTROL_ADDRESS
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import MAX_MESSAGE_BYTES

looptime = pytest.mark.looptime(start=time.monotonic)

#: More than a message may have, when each says something.
MANY = 6_000
LONG = "x" * 4000


def read_all(entries, size):
    """Every page, read one after another as a client does."""
    read, token = [], ""
    while True:
        page, token = asyncio.run(first_page(((key, value) for key, value in entries if key > token), size))
        read.append(page)
        if not token:
            return read


@given(st.lists(st.integers(0, PAGE_BYTES * 2), max_size=12), st.integers(1, 5))
def test_pages_have_everything_once_and_fit(sizes, size):
    entries = [(f"id-{number:03}", StringValue(value="x" * length)) for number, length in enumerate(sizes)]
    read = read_all(entries, size)
    assert [value for page in read for value in page] == [value for _, value in entries]
    for page in read:
        assert len(page) <= size
        assert len(page) == 1 or sum(value.ByteSize() for value in page) <= PAGE_BYTES
    assert all(page for page in read[:-1])


def test_without_a_size_everything_is_one_page():
    entries = [(f"{number}", StringValue(value="x" * 1024)) for number in range(10_000)]
    page, token = asyncio.run(first_page(entries, 0))
    assert (len(page), token) == (10_000, "")


def test_what_fits_is_taken_from_either_end():
    large = [StringValue(value=name * (PAGE_BYTES // 2 - 100)) for name in "abcd"]
    assert [each.value[0] for each in fitting(large)] == ["a", "b"]
    assert [each.value[0] for each in fitting(large, from_end=True)] == ["c", "d"]
    assert fitting([StringValue(value="x" * 2 * PAGE_BYTES)])
    assert fitting([]) == []


def client_of(kit):
    return ControlPlane([CONTROL_ADDRESS], kit.network.transport("operator"), clock=kit.clock)


@looptime
@pytest.mark.parametrize(
    ("size", "token", "field"), [(-1, "", "page_size"), (10_001, "", "page_size"), (1, "../x", "page_token")]
)
async def test_a_page_that_cannot_be_is_refused(kit, size, token, field):
    for method, request in (
        (AgentControl.LIST_NODES, pb.ListNodesRequest(page_size=size, page_token=token)),
        (AgentControl.LIST_WORKLOADS, pb.ListWorkloadsRequest(page_size=size, page_token=token)),
        (AgentControl.LIST_GROUPS, pb.ListGroupsRequest(page_size=size, page_token=token)),
    ):
        with pytest.raises(InvalidError, match=field):
            await kit.channel.call(method, request)


@looptime
async def test_pages_of_nodes_workloads_and_groups(kit):
    for number in range(5):
        kit.node(f"n{number}")
        await kit.wait_node(f"n{number}", "Ready")
        await kit.apply_group(f"g{number}", {f"w{number}": {}})

    async def names(method, request, field, name):
        request.page_size, found, answers = 2, [], 0
        while True:
            answer = await kit.channel.call(method, request)
            found += [getattr(each, name) for each in getattr(answer, field)]
            answers += 1
            if not answer.next_page_token:
                return found, answers
            request.page_token = answer.next_page_token

    nodes = await names(AgentControl.LIST_NODES, pb.ListNodesRequest(), "nodes", "node_id")
    assert nodes == (["n0", "n1", "n2", "n3", "n4"], 3)
    workloads = await names(AgentControl.LIST_WORKLOADS, pb.ListWorkloadsRequest(), "workloads", "workload_id")
    assert workloads == (["w0", "w1", "w2", "w3", "w4"], 3)
    groups = await names(AgentControl.LIST_GROUPS, pb.ListGroupsRequest(), "groups", "group_id")
    assert groups == (["g0", "g1", "g2", "g3", "g4"], 3)
    one = await names(AgentControl.LIST_WORKLOADS, pb.ListWorkloadsRequest(group_id="g3"), "workloads", "workload_id")
    assert one == (["w3"], 1)


def fill(kit, count):
    """Let the working set hold very many workloads that all say a lot, without the hours that it takes to run them."""
    fleet = kit.plane.leadership.fleet
    record = fleet.workloads["web"]
    for number in range(count):
        name = f"w{number:05}"
        fleet.workloads[name] = dataclasses.replace(record, workload_id=name, node_id="n1")
        status = RunStatus(name, RunState.FAILED, message=LONG, generation=record.generation, last_output=LONG)
        fleet.observations[name] = Observation("n1", status, kit.clock.wall())


@looptime
async def test_a_list_longer_than_a_message_is_read_whole_by_the_client(kit):
    kit.node("n1")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    fill(kit, MANY)
    with pytest.raises(ExhaustedError):
        await kit.channel.call(AgentControl.LIST_WORKLOADS, pb.ListWorkloadsRequest())
    async with client_of(kit) as control:
        views = await control.list_workloads(node_id="n1")
    assert [view.workload_id for view in views] == [*sorted(f"w{number:05}" for number in range(MANY)), "web"]
    assert sum(len(view.reason.message) for view in views if view.reason) > MAX_MESSAGE_BYTES


@looptime
async def test_many_large_events_are_read_on_from_where_an_answer_was_cut(kit):
    at = kit.clock.wall()
    events = tuple(
        Event(at, "control", "default", "Said", f"{number:04} {'x' * 8000}", "api") for number in range(1000)
    )
    await kit.store.commit(Batch(events=events))
    assert sum(len(event.message) for event in events) > pages.PAGE_BYTES
    async with client_of(kit) as control:
        read, after = [], 0
        while True:
            page = await control.list_events(after=after, limit=1000, subject_kind="control")
            read += [event.message[:4] for event in page.events if event.kind == "Said"]
            if not page.events:
                break
            after = page.next
        newest = await control.list_events(limit=1000, newest=True, subject_kind="control")
    assert read == [f"{number:04}" for number in range(1000)]
    assert 1 < len(newest.events) < 1000
    assert newest.events[-1].message[:4] == "0999"
    assert newest.next == newest.events[-1].cursor


@looptime
async def test_a_list_tells_the_reasons_of_a_few_nodes_and_one_workload_those_of_all(kit):
    for number in range(30):
        kit.node(f"n{number:02}", cpu_millicores=100)
        await kit.wait_node(f"n{number:02}", "Ready")
    await kit.apply("huge", cpu=200)
    await kit.wait(lambda: "huge" in kit.plane.leadership.pending.rejections)
    listed = await kit.channel.call(AgentControl.LIST_WORKLOADS, pb.ListWorkloadsRequest())
    assert len(listed.workloads[0].rejections) == 20
    assert len((await kit.workload("huge")).rejections) == 30


@looptime
@pytest.mark.parametrize("kind", ["nodes", "workloads"])
async def test_others_get_their_turn_while_a_long_page_is_made_and_may_remove_what_it_lists(each_kit, kind):
    fleet, count = each_kit.plane.leadership.fleet, 5 * pages.MADE_TOGETHER
    each_kit.node("n1")
    await each_kit.apply("web")
    await each_kit.wait_status("web", "Running")
    known = fleet.nodes if kind == "nodes" else fleet.workloads
    (record,) = known.values()
    copies = [f"{next(iter(known))}-{number:03d}" for number in range(count)]
    for each in copies:
        if kind == "nodes":
            known[each] = dataclasses.replace(record, spec=dataclasses.replace(record.spec, node_id=each))
        else:
            known[each] = dataclasses.replace(record, workload_id=each)
    turns = []

    async def remove_the_last_ones():
        while len(known) > 1:
            turns.append(known.pop(max(known)))
            await asyncio.sleep(0)

    remover = asyncio.ensure_future(remove_the_last_ones())
    method = AgentControl.LIST_NODES if kind == "nodes" else AgentControl.LIST_WORKLOADS
    answer = await each_kit.channel.call(method, method.request())
    found = len(turns)
    await remover
    assert found > 1
    listed = answer.nodes if kind == "nodes" else answer.workloads
    assert 1 < len(listed) <= count + 1

"""The client: values instead of protos, several addresses, waiting by events."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from shoal.client import ControlPlane
from shoal.core.errors import (
    DeadlineError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)
from shoal.model.documents import GroupDocument, WorkloadDocument
from shoal.model.jobs import JobDesired, JobRecord, JobRequest, JobState
from shoal.model.views import NodeScore, PlannedPlacement
from shoal.model.workloads import DesiredState, ProcessSpec, WorkloadSpec, WorkloadType
from shoal.testing.clock import LoopClock
from shoal.wire import convert
from shoal.wire.local import LocalNetwork
from shoal.wire.local_faults import Outage
from shoal.wire.methods import LIVE_HEADER, AgentControl, Jobs, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1.run_pb2 import FieldProblem
from shoal.wire.transport import Service
from tests.unit.cli.scripted import NO_ROOM, START, ScriptedControl, Step, node, workload

pytestmark = pytest.mark.looptime

FIRST, SECOND = "a:8085", "b:8085"


def document(name: str = "web", **fields) -> WorkloadDocument:
    spec = WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("sleep", "60")))
    return WorkloadDocument(name, spec, **fields)


class Setup:
    """A scripted control plane behind two addresses, and a client of both."""

    def __init__(self) -> None:
        self.network = LocalNetwork()
        self.script = ScriptedControl(nodes={"node-1": node("node-1")}, workloads={"old": workload("old")})
        self.clock = LoopClock(START)

    def client(self, *addresses: str) -> ControlPlane:
        return ControlPlane(addresses or [FIRST], self.network.transport("client"), clock=self.clock)

    async def serve(self, *addresses: str):
        service = Service(methods_of(AgentControl), self.script)
        return [await self.network.transport("control").serve(address, [service]) for address in addresses]


@pytest.fixture
async def setup():
    setup = Setup()
    servers = await setup.serve(FIRST, SECOND)
    yield setup
    for task in set(setup.script.tasks):
        task.cancel()
    for server in servers:
        await server.stop()


async def test_reads_return_values(setup):
    async with setup.client() as control:
        assert await control.list_nodes() == (setup.script.nodes["node-1"],)
        assert await control.get_node("node-1") == setup.script.nodes["node-1"]
        assert await control.list_workloads() == (setup.script.workloads["old"],)
        assert await control.get_workload("old") == setup.script.workloads["old"]
        assert (await control.summary()).total_workloads == 1
        assert await control.list_groups() == ()
        with pytest.raises(NotFoundError):
            await control.get_group("nobody")


async def test_apply_and_what_follows(setup):
    async with setup.client() as control:
        outcome = await control.apply(document())
        assert (outcome.workload_id, outcome.revision_id, outcome.generation, outcome.outcome) == (
            "web",
            "r1",
            1,
            "created",
        )
        view = await control.set_desired_state("web", DesiredState.STOPPED)
        assert view.desired_state == "Stopped"
        await control.delete("web")
        group = await control.apply_group(GroupDocument("g", (document("t-0"), document("t-1"))))
        assert [member.workload_id for member in group.members] == ["t-0", "t-1"]
        assert await control.delete_group("g") == 2
        pieces = [piece async for piece in control.logs("old", follow=True)]
        assert [(piece.data, piece.stream) for piece in pieces] == [(b"more\n", "stdout")]


async def test_a_preview_has_scores_and_reasons(setup):
    setup.script.placements["huge"] = PlannedPlacement("huge", "", "create", rejections=NO_ROOM)
    async with setup.client() as control:
        preview = await control.plan([document(), document("huge")])
    assert not preview.placeable
    assert preview.placements[0].scores[0] == NodeScore("node-1", 0.75)
    assert preview.placements[1].rejections == NO_ROOM


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (pb.ApplyWorkloadResponse(failure_reason=pb.INVALID_SPEC, error_message="no"), InvalidError),
        (pb.ApplyWorkloadResponse(problems=[FieldProblem(field="a", rule="b")]), InvalidError),
        (pb.ApplyWorkloadResponse(failure_reason=pb.INSUFFICIENT_RESOURCES, error_message="full"), ExhaustedError),
        (pb.ApplyWorkloadResponse(failure_reason=pb.RUNTIME_ERROR, error_message="busy"), PreconditionError),
        (pb.ApplyWorkloadResponse(), PreconditionError),
    ],
)
async def test_a_refusal_is_raised(setup, answer, error):
    setup.script.refuse["web"] = answer
    async with setup.client() as control:
        with pytest.raises(error):
            await control.apply(document())


async def test_refusals_of_other_requests(setup):
    async with setup.client() as control:
        with pytest.raises(NotFoundError):
            await control.delete("nobody")
        with pytest.raises(PreconditionError, match="nothing to retry"):
            await control.retry("old")


# ---------------------------------------------------------------------------------------------------------
# Several addresses


async def test_the_next_address_is_tried(setup):
    setup.network.partition("client", FIRST, outage=Outage.REFUSED)
    async with setup.client(FIRST, SECOND) as control:
        assert await control.list_nodes()
        assert (await control.apply(document())).outcome == "created"
        assert [event.kind async for event in _first(control.watch_events(after=0))] == ["WorkloadChanged"]


async def test_what_the_server_itself_raised_counts_more_than_a_silence(setup):
    setup.network.partition("client", FIRST, outage=Outage.REFUSED)
    setup.script.fail_with["ListNodes"] = UnavailableError("the store is away")
    async with setup.client(FIRST, SECOND) as control:
        with pytest.raises(UnavailableError, match=r"^the store is away$"):
            await control.list_nodes()


async def test_nobody_is_there(setup):
    setup.network.partition("client", FIRST, outage=Outage.REFUSED)
    setup.network.partition("client", SECOND, outage=Outage.REFUSED)
    async with setup.client(FIRST, SECOND) as control:
        with pytest.raises(UnavailableError, match=f"{FIRST}, {SECOND} cannot be reached") as caught:
            await control.summary()
    assert "--control" in caught.value.hint


async def test_what_must_not_happen_twice_is_called_once(setup):
    setup.script.fail_with["RemoveNode"] = UnavailableError("the answer was lost")
    setup.script.fail_with["ApplyGroup"] = UnavailableError("the answer was lost")
    async with setup.client(FIRST, SECOND) as control:
        with pytest.raises(UnavailableError):
            await control.remove_node("node-1")
        with pytest.raises(UnavailableError):
            await control.apply_group(GroupDocument("g", (document(),)), expected_generation=3)
        with pytest.raises(UnavailableError):
            await control.apply_group(GroupDocument("g", (document(),)))
    assert setup.script.calls.count("RemoveNode") == 1
    assert setup.script.calls.count("ApplyGroup") == 1 + 2


async def test_a_call_that_is_made_once_goes_where_somebody_is(setup):
    setup.network.partition("client", FIRST, outage=Outage.REFUSED)
    setup.script.nodes["node-1"] = dataclasses.replace(setup.script.nodes["node-1"], status="NotReady")
    async with setup.client(FIRST, SECOND) as control:
        await control.remove_node("node-1")
    assert setup.script.calls.count("RemoveNode") == 1


async def test_one_that_was_never_reached_fails_at_once(setup, looptime):
    setup.network.partition("client", FIRST, outage=Outage.REFUSED)
    async with setup.client() as control:
        with pytest.raises(UnavailableError):
            await control.summary()
    assert looptime == 0


async def test_one_that_has_answered_is_given_a_moment_to_come_back(setup, looptime):
    async with setup.client() as control:
        await control.summary()
        setup.network.partition("client", FIRST, outage=Outage.REFUSED)
        asyncio.get_running_loop().call_later(1.0, setup.network.heal)
        await control.summary()
        assert 1.0 <= looptime < 1.2
        setup.network.partition("client", FIRST, outage=Outage.REFUSED)
        with pytest.raises(UnavailableError):
            await control.summary()
    assert 3.0 <= looptime < 3.4


def test_without_an_address_there_is_no_client():
    with pytest.raises(InvalidError):
        ControlPlane([], LocalNetwork().transport())


# ---------------------------------------------------------------------------------------------------------
# Waiting


def is_running(view):
    return view is not None and view.status == "Running"


async def test_a_wait_ends_with_the_event(setup, looptime):
    setup.script.scripts["web"] = [Step(7.25, {"status": "Running"})]
    async with setup.client() as control:
        await control.apply(document())
        view = await control.wait_for("web", is_running, timeout=30)
    assert view.status == "Running"
    assert looptime == 7.25


async def test_a_wait_works_without_events(setup, looptime):
    setup.script.fail_with["ListEvents"] = UnsupportedError("no events here")
    setup.script.scripts["web"] = [Step(7.25, {"status": "Running"})]
    async with setup.client() as control:
        await control.apply(document())
        assert await control.wait_for("web", is_running, timeout=30)
    assert 7.25 <= looptime <= 8


async def test_a_wait_looks_again_when_events_get_lost(setup, looptime):
    setup.script.fail_with["WatchEvents"] = UnsupportedError("a stream that never works")
    setup.script.scripts["web"] = [Step(7.25, {"status": "Running"})]
    async with setup.client() as control:
        await control.apply(document())
        assert await control.wait_for("web", is_running, timeout=30)
    assert 7.25 <= looptime <= 9.5


async def test_a_wait_ends_in_time(setup, looptime):
    async with setup.client() as control:
        with pytest.raises(DeadlineError, match="within 5s: it is Running"):
            await control.wait_for("old", lambda view: view is None, timeout=5)
        with pytest.raises(DeadlineError, match="there is no such workload"):
            await control.wait_for("nobody", is_running, timeout=1)
    assert looptime == 6


async def test_a_wait_outlives_an_absence_of_the_control_plane(setup, looptime):
    setup.script.scripts["web"] = [Step(20, {"status": "Running"})]
    async with setup.client() as control:
        await control.apply(document())
        waiting = asyncio.ensure_future(control.wait_for("web", is_running, timeout=60))
        await asyncio.sleep(5)
        setup.network.partition("client", FIRST, outage=Outage.REFUSED)
        await asyncio.sleep(10)
        setup.network.heal()
        assert is_running(await waiting)
    assert 20 <= looptime <= 22


async def test_a_wait_does_not_begin_when_nobody_is_there(setup):
    setup.network.partition("client", FIRST, outage=Outage.REFUSED)
    async with setup.client() as control:
        with pytest.raises(UnavailableError):
            await control.wait_for("old", is_running, timeout=60)


async def test_following_many_lists_them_once_a_turn(setup):
    names = [f"w-{number}" for number in range(20)]
    for name in names:
        setup.script.workloads[name] = workload(name)
    async with setup.client() as control, contextlib.aclosing(control.follow(names)) as changes:
        views = await anext(changes)
    assert set(views) == set(names)
    assert setup.script.calls.count("GetWorkload") == 0


async def test_a_change_during_a_look_is_not_missed(setup, looptime):
    """The event arrives while the answer of the look that came too early is still on its way."""
    setup.script.scripts["web"] = [Step(0.05, {"status": "Running"})]
    setup.network.delay(FIRST, 0.1)
    async with setup.client() as control:
        await control.apply(document())
        assert await control.wait_for("web", is_running, timeout=30)
    assert looptime < 1


async def test_events_go_on_after_a_restart(setup):
    async with setup.client() as control:
        seen = []

        async def watch():
            async for event in control.watch_events(after=0):
                seen.append(event.cursor)

        task = asyncio.ensure_future(watch())
        await control.apply(document("w-1"))
        await asyncio.sleep(1)
        setup.network.partition("client", FIRST, outage=Outage.REFUSED)
        async with setup.client(SECOND) as other:
            setup.network.heal("client", SECOND)
            setup.network.partition("client", FIRST, outage=Outage.REFUSED)
            await other.apply(document("w-2"))
        await asyncio.sleep(30)
        setup.network.heal()
        await asyncio.sleep(5)
        await control.apply(document("w-3"))
        await asyncio.sleep(1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert seen == [1, 2, 3]


async def _first(stream):
    async with contextlib.aclosing(stream):
        async for each in stream:
            yield each
            return


async def test_the_patience_of_a_watch_begins_anew_with_each_connection(setup, looptime):
    async with setup.client() as control:
        watching = asyncio.ensure_future(_gather(control.watch_events(after=0, patience=20)))
        for _ in range(5):
            await asyncio.sleep(10)
            setup.network.partition("client", FIRST, outage=Outage.REFUSED)
            await asyncio.sleep(10)
            setup.network.heal()
        await asyncio.sleep(10)
        assert not watching.done()
        setup.network.partition("client", FIRST, outage=Outage.REFUSED)
        with pytest.raises(UnavailableError):
            await watching
    assert 130 <= looptime <= 133


async def _gather(stream):
    return [each async for each in stream]


# ---------------------------------------------------------------------------------------------------------
# Leaders


class Follower:
    """A control plane that answers reads and sends writes to whom it believes to lead."""

    def __init__(self, script: ScriptedControl, leader: str) -> None:
        self._script = script
        self.leader = leader
        self.refused: list[str] = []

    def __getattr__(self, name: str):
        handler = getattr(self._script, name)
        if name.startswith(("get_", "list_")):
            return handler

        def refuse(request, call):
            self.refused.append(call.method.rpartition("/")[2])
            raise NotLeaderError(self.leader)

        return refuse


@contextlib.asynccontextmanager
async def led(*, leader: str, follower_says: str):
    """A leader at one address and a follower at SECOND."""
    made = Setup()
    follower = Follower(made.script, follower_says)
    service = Service(methods_of(AgentControl), follower)
    servers = [
        *(await made.serve(leader)),
        await made.network.transport("follower").serve(SECOND, [service]),
    ]
    try:
        yield made, follower
    finally:
        for task in set(made.script.tasks):
            task.cancel()
        for server in servers:
            await server.stop(0)


async def test_the_leader_that_is_named_is_asked_at_once_and_from_then_on(looptime):
    async with (
        led(leader="elsewhere:9999", follower_says="elsewhere:9999") as (made, follower),
        made.client(SECOND) as control,
    ):
        assert (await control.apply(document())).outcome == "created"
        assert looptime == 0
        await control.set_desired_state("web", DesiredState.STOPPED)
        assert follower.refused == ["ApplyWorkload"]
        assert [event.kind async for event in _first(control.watch_events(after=0))] == ["WorkloadChanged"]


async def test_streams_follow_the_leader_too():
    async with led(leader=FIRST, follower_says=FIRST) as (made, follower), made.client(SECOND) as control:
        async with made.client(FIRST) as direct:
            await direct.apply(document())
        assert [event.kind async for event in _first(control.watch_events(after=0))] == ["WorkloadChanged"]
        assert follower.refused == ["WatchEvents"]


async def test_what_must_not_happen_twice_is_asked_for_again_where_somebody_leads():
    async with led(leader=FIRST, follower_says=FIRST) as (made, follower), made.client(SECOND, FIRST) as control:
        made.script.nodes["node-1"] = dataclasses.replace(made.script.nodes["node-1"], status="NotReady")
        await control.remove_node("node-1")
        assert follower.refused == ["RemoveNode"]
        assert made.script.calls.count("RemoveNode") == 1


async def test_without_a_leader_it_waits_for_one(looptime):
    async with led(leader="new:1", follower_says="") as (made, follower), made.client(SECOND) as control:

        def elect():
            follower.leader = "new:1"

        asyncio.get_running_loop().call_later(4.0, elect)
        await control.apply(document())
        assert 4.0 <= looptime < 4.2
        follower.leader = "dead:1"
        made.network.partition("client", "new:1", outage=Outage.REFUSED)
        with pytest.raises(UnavailableError, match="dead:1") as dead:
            await control.apply(document())
        assert dead.value.facts["address"] == "dead:1"
        assert looptime < 16


async def test_a_leader_that_does_not_answer_is_not_hidden_by_one_that_does_not_lead(looptime):
    async with led(leader=FIRST, follower_says=FIRST) as (made, _follower), made.client(SECOND, FIRST) as control:
        made.network.partition("client", FIRST)
        with pytest.raises(DeadlineError, match="whether the change was stored is not known") as silent:
            await control.apply(document("web"))
        assert "shoal workload get web" in silent.value.hint
        assert silent.value.facts["address"] == FIRST
        assert looptime < 12
        with pytest.raises(DeadlineError) as once:
            await control.apply_group(GroupDocument("shop", (document("a"),)), expected_generation=0)
        assert "stored" not in once.value.hint  # it was not even asked for: nobody there was found alive


class OldNews(Follower):
    """A follower that refuses reads, too, when they are to be the leader's."""

    def __getattr__(self, name: str):
        handler = super().__getattr__(name)

        def answer(request, call):
            if call.metadata.get(LIVE_HEADER):
                self.refused.append(call.method.rpartition("/")[2])
                raise NotLeaderError(self.leader)
            return handler(request, call)

        return answer


@contextlib.asynccontextmanager
async def beside(leader: str):
    """A follower at SECOND that knows one node, and a leader that knows another."""
    made, old = Setup(), ScriptedControl(nodes={"old": node("old")})
    follower = OldNews(old, leader)
    servers = [
        *(await made.serve(FIRST)),
        await made.network.transport("follower").serve(SECOND, [Service(methods_of(AgentControl), follower)]),
    ]
    try:
        yield made, follower
    finally:
        for server in servers:
            await server.stop(0)


async def test_reads_are_the_leaders_as_long_as_it_is_in_reach(looptime):
    async with beside(FIRST) as (made, follower), made.client(SECOND) as control:
        assert [view.node_id for view in await control.list_nodes()] == ["node-1"]
        assert [view.workload_id for view in await control.list_workloads()] == ["old"]
        assert (follower.refused, looptime) == (["ListNodes"], 0)


@pytest.mark.parametrize("outage", [Outage.SILENT, Outage.REFUSED])
async def test_reads_are_anybodys_when_the_leader_is_out_of_reach(outage, looptime):
    async with beside(FIRST) as (made, _follower), made.client(SECOND, FIRST) as control:
        made.network.partition("client", FIRST, outage=outage)
        assert [view.node_id for view in await control.list_nodes()] == ["old"]
        assert looptime <= 3


async def test_reads_are_anybodys_when_nobody_leads(looptime):
    async with beside("") as (made, _follower), made.client(SECOND) as control:
        assert [view.node_id for view in await control.list_nodes()] == ["old"]
        assert looptime == 0


async def test_liars_are_not_followed_for_ever(looptime):
    made = Setup()
    servers = []
    for index in range(20):
        service = Service(methods_of(AgentControl), Follower(made.script, f"liar:{index + 2}"))
        servers.append(await made.network.transport("liar").serve(f"liar:{index + 1}", [service]))
    async with made.client("liar:1") as control:
        with pytest.raises(NotLeaderError):
            await control.apply(document())
        assert len(control._channels) <= 4
    for server in servers:
        await server.stop(0)


async def test_one_that_hangs_is_passed_over(looptime):
    async with led(leader=FIRST, follower_says=FIRST) as (made, _follower):
        await made.serve("third:1")
        made.network.partition("client", FIRST)
        async with made.client(FIRST, "third:1") as control:
            assert await control.list_nodes()
            assert looptime == 3
            await control.list_nodes()
            assert looptime == 3


async def test_lists_are_read_page_by_page(setup):
    setup.script.workloads.clear()
    for number in range(5):
        setup.script.workloads[f"w{number}"] = workload(f"w{number}")
    asked = []

    async def list_workloads(request, _call):
        asked.append((request.page_size, request.page_token))
        names = [name for name in sorted(setup.script.workloads) if name > request.page_token]
        answer = pb.ListWorkloadsResponse(next_page_token=names[1] if len(names) > 2 else "")
        answer.workloads.extend(pb.WorkloadView(workload_id=name, status="Running") for name in names[:2])
        return answer

    setup.script.list_workloads = list_workloads
    await setup.serve("paged:8085")
    async with setup.client("paged:8085") as control:
        assert [view.workload_id for view in await control.list_workloads()] == ["w0", "w1", "w2", "w3", "w4"]
    assert asked == [(1000, ""), (1000, "w1"), (1000, "w3")]


async def test_a_token_that_leads_nowhere_is_not_followed_for_ever(setup):
    async def list_nodes(request, _call):
        return pb.ListNodesResponse(nodes=[pb.NodeView(node_id="n1", status="Ready")], next_page_token="n1")

    setup.script.list_nodes = list_nodes
    await setup.serve("paged:8085")
    async with setup.client("paged:8085") as control:
        assert len(await control.list_nodes()) == 2


# ---------------------------------------------------------------------------------------------------------
# From the environment


def test_a_client_needs_nothing_but_the_environment_of_a_workload():
    made = ControlPlane.from_environment({"SHOAL_CONTROL": "a:8085, b:8085", "SHOAL_INSECURE": "1"})
    assert made.addresses == ("a:8085", "b:8085")


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({}, "SHOAL_CONTROL"),
        ({"SHOAL_CONTROL": "a:8085"}, "SHOAL_CA"),
        ({"SHOAL_CONTROL": "a:8085", "SHOAL_CA": "x", "SHOAL_CERT": "y"}, "SHOAL_KEY"),
        ({"SHOAL_CONTROL": "a:8085", "SHOAL_INSECURE": "1", "SHOAL_CA": "x"}, "SHOAL_INSECURE"),
    ],
)
def test_what_the_environment_lacks_is_named(environment, field):
    with pytest.raises(InvalidError) as caught:
        ControlPlane.from_environment(environment)
    assert field in [each.field for each in caught.value.problems]


@pytest.mark.parametrize(("since", "expected"), [(0, "one"), (1, "one"), (2, "two")])
async def test_a_wait_for_a_job_passes_over_what_a_follower_has_from_before_its_request(since, expected):
    def view(number: int, message: str):
        request = JobRequest(number=number)
        record = JobRecord(
            "j", "service", 1, b"", JobDesired.RUNNING, request, START, START, JobState.RUNNING, message=message
        )
        return convert.job_to_proto(record)

    class LaggingFollower:
        async def watch(self, _request, _call):
            yield view(1, "one")
            await asyncio.sleep(0.5)
            yield view(2, "two")

    network = LocalNetwork()
    server = await network.transport("follower").serve(FIRST, [Service(methods_of(Jobs), LaggingFollower())])
    async with ControlPlane([FIRST], network.transport("client"), clock=LoopClock(START)) as control:
        found = await control.wait_for_job(
            "j", lambda each: each.state is JobState.RUNNING, timeout=10, since_request=since
        )
    assert found.message == expected
    await server.stop()

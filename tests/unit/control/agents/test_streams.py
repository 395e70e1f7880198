"""ControlStream, from both sides: what foreign clients see of it, and whole fleets of real agents that live by it."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.control.agents.streams import Streams
from shoal.control.state.fleet import Fleet
from shoal.core.errors import (
    DeniedError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    SessionSupersededError,
    UnavailableError,
    UnsupportedError,
)
from shoal.core.tasks import TaskScope
from shoal.model.identity import Identity, Role
from shoal.model.nodes import Feature
from shoal.testing.control import ControlKit
from shoal.testing.runtimes import FakeScript
from shoal.wire.calls import messages_in, status_from_proto
from shoal.wire.local import LocalNetwork
from shoal.wire.local_faults import Outage
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.status import error_of
from shoal.wire.transport import Service
from tests.unit.control.real_agents import real_fleet

pytestmark = pytest.mark.looptime(start=time.monotonic)

FEATURES = ("generations", "sessions", "push", "logs", "ports", "stream")


class Talk:
    """One stream, message by message."""

    def __init__(self, channel) -> None:
        self._up: asyncio.Queue[pb.ControlMessage | None] = asyncio.Queue()
        self._replies = channel.converse(AgentControl.CONTROL_STREAM, self._messages())

    async def _messages(self):
        while (message := await self._up.get()) is not None:
            yield message

    def say(self, message_id=0, **member) -> None:
        self._up.put_nowait(pb.ControlMessage(message_id=message_id, **member))

    def say_raw(self, message) -> None:
        self._up.put_nowait(message)

    async def hear(self) -> pb.ControlMessage:
        async with asyncio.timeout(10):
            return await anext(self._replies)

    async def hear_all(self) -> list[pb.ControlMessage]:
        async with asyncio.timeout(10):
            return [reply async for reply in self._replies]

    async def ask(self, **member) -> pb.ControlMessage:
        self.say(**member)
        return await self.hear()

    def end(self) -> None:
        self._up.put_nowait(None)

    async def close(self) -> None:
        await self._replies.aclose()


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as made:
        yield made


@pytest.fixture
async def talk(kit):
    made = []

    def begin(channel=None):
        made.append(Talk(channel or kit.channel))
        return made[-1]

    yield begin
    for each in made:
        await each.close()


def registration(name="n1", **fields):
    request = pb.RegisterNodeRequest(node_id=name, grpc_endpoint="far:1", features=FEATURES, **fields)
    request.capabilities.cpu_total_millicores = 1000
    request.capabilities.memory_total_mb = 1000
    request.capabilities.supported_workload_types.append("process")
    return request


def apply_request(name="web"):
    request = pb.ApplyWorkloadRequest(workload_id=name, revision_id="v1")
    request.spec.type = "process"
    request.spec.process.command.append("true")
    return request


class Garbage:
    """Bytes that are no message."""

    def SerializeToString(self):
        return b"\xff\xff\xff"


class TestForeignClients:
    async def test_without_ids_replies_come_in_order_and_nothing_wrong_ends_the_stream(self, kit, talk):
        stream = talk()
        stream.say(register=registration())
        stream.say(heartbeat=pb.HeartbeatRequest(node_id="ghost"))
        stream.say(apply=apply_request())
        stream.say_raw(pb.ControlMessage())
        stream.say_raw(Garbage())
        stream.say(apply=pb.ApplyWorkloadRequest(workload_id="../etc", spec=pb.WorkloadSpec()))
        stream.say(call=pb.CallRequest(method="ApplyWorkload"))
        stream.say(heartbeat_reply=pb.HeartbeatResponse())
        stream.say(delete=pb.DeleteWorkloadRequest(workload_id="nobody"))
        stream.say(delete=pb.DeleteWorkloadRequest(workload_id="web"))
        stream.say(call_reply=pb.CallReply(), message_id=5)
        stream.end()
        # The node that was registered here is sent a command, too: that is no reply.
        replies = [reply for reply in await stream.hear_all() if not reply.HasField("call")]
        assert [reply.WhichOneof("message") for reply in replies] == [
            "register_reply",
            "error",
            "apply_reply",
            "error",
            "error",
            "apply_reply",
            "error",
            "error",
            "delete_reply",
            "delete_reply",
        ]
        assert replies[0].register_reply.accepted
        assert isinstance(error_of(status_from_proto(replies[1].error)), NotFoundError)
        assert replies[2].apply_reply.outcome == "created"
        for index in (3, 4, 6, 7):
            error = error_of(status_from_proto(replies[index].error))
            assert isinstance(error, InvalidError)
            assert error.problems
        assert replies[5].apply_reply.failure_reason == pb.INVALID_SPEC
        assert not replies[8].delete_reply.success
        assert replies[9].delete_reply.success
        assert {reply.in_reply_to for reply in replies} == {0}

    async def test_with_ids_each_reply_names_its_message(self, kit, talk):
        stream = talk()
        stream.say(apply=apply_request(), message_id=7)
        stream.say(heartbeat=pb.HeartbeatRequest(node_id="ghost"), message_id=3)
        assert [(await stream.hear()).in_reply_to for _ in range(2)] == [7, 3]

    async def test_messages_in_one_are_answered_as_if_each_had_come_alone(self, kit, talk):
        stream = talk()
        parts = [pb.ControlMessage(message_id=number, apply=apply_request(f"w{number}")) for number in (1, 2, 3)]
        # A batch within a batch is no message.
        parts.append(pb.ControlMessage(message_id=4, batch=[pb.ControlMessage(apply=apply_request("hidden"))]))
        stream.say_raw(pb.ControlMessage(batch=parts))
        replies = [await stream.hear() for _ in range(4)]
        assert [reply.in_reply_to for reply in replies] == [1, 2, 3, 4]
        assert [reply.WhichOneof("message") for reply in replies] == [*["apply_reply"] * 3, "error"]

    @pytest.mark.parametrize("batches", [True, False])
    async def test_commands_come_in_one_message_only_to_an_agent_that_takes_them(self, kit, talk, batches):
        stream = talk()
        node = registration()
        node.features.extend([Feature.BATCHES.value] if batches else [])
        session = (await stream.ask(register=node)).register_reply.session
        heartbeat = pb.HeartbeatRequest(node_id="n1", session=session, sequence=1)
        assert (await stream.ask(heartbeat=heartbeat)).heartbeat_reply.takes_batches
        await asyncio.gather(*(kit.channel.call(AgentControl.APPLY_WORKLOAD, apply_request(f"w{n}")) for n in range(4)))
        received = []
        while sum(received) < 4:
            message = await stream.hear()
            parts = messages_in(message)
            assert all(each.HasField("call") for each in parts)
            received.append(len(parts))
        assert (max(received) > 1) is batches

    async def test_a_heartbeat_on_a_stream_counts(self, kit, talk):
        stream = talk()
        session = (await stream.ask(register=registration())).register_reply.session
        heartbeat = pb.HeartbeatRequest(node_id="n1", session=session, sequence=1)
        reply = (await stream.ask(heartbeat=heartbeat)).heartbeat_reply
        assert reply.acknowledged
        assert reply.term == kit.plane.leadership.term
        assert (await kit.node_view("n1")).status == "Ready"


class TestOneStreamPerNode:
    async def test_a_newer_registration_ends_the_older_stream_with_the_reason(self, kit, talk):
        one, two = talk(), talk()
        await one.ask(register=registration())
        await two.ask(register=registration())
        with pytest.raises(SessionSupersededError):
            await one.hear()
        await asyncio.sleep(1)
        assert (await kit.node_view("n1")).status == "Ready"
        assert len(kit.plane.leadership.streams) == 1

    async def test_a_session_goes_on_in_another_stream_and_a_late_word_of_the_old_one_changes_nothing(self, kit, talk):
        one, two = talk(), talk()
        session = (await one.ask(register=registration())).register_reply.session

        def heartbeat(sequence):
            return pb.HeartbeatRequest(node_id="n1", session=session, sequence=sequence)

        await one.ask(heartbeat=heartbeat(1))
        await two.ask(heartbeat=heartbeat(3))
        with pytest.raises(SessionSupersededError):
            await one.hear()
        three = talk()
        assert (await three.ask(heartbeat=heartbeat(2))).heartbeat_reply.acknowledged
        streams = kit.plane.leadership.streams
        node = kit.plane.leadership.fleet.nodes["n1"]
        assert streams.channel(node) is not None
        await three.close()
        await asyncio.sleep(0.1)
        assert (await kit.node_view("n1")).status == "Ready"
        await two.close()
        await asyncio.sleep(0.1)
        assert (await kit.node_view("n1")).status == "Suspect"
        assert streams.channel(node) is None

    async def test_a_stream_without_the_feature_is_nobodys(self, kit, talk):
        stream = talk()
        request = registration()
        del request.features[:]
        await stream.ask(register=request)
        node = kit.plane.leadership.fleet.nodes["n1"]
        assert kit.plane.leadership.streams.channel(node) is None
        await stream.close()
        await asyncio.sleep(0.1)
        assert (await kit.node_view("n1")).status == "Ready"

    async def test_one_that_lost_its_session_to_a_call_is_not_used_any_more(self, kit, talk):
        stream = talk()
        session = (await stream.ask(register=registration())).register_reply.session
        await kit.channel.call(AgentControl.REGISTER_NODE, registration())
        assert kit.plane.leadership.streams.channel(kit.plane.leadership.fleet.nodes["n1"]) is None
        late = pb.HeartbeatRequest(node_id="n1", session=session, sequence=1)
        refused = await stream.ask(heartbeat=late)
        assert isinstance(error_of(status_from_proto(refused.error)), SessionSupersededError)
        await stream.close()
        await asyncio.sleep(0.1)
        assert (await kit.node_view("n1")).status == "Ready"

    async def test_a_second_node_in_one_stream_is_served_and_called_elsewhere(self, kit, talk):
        stream = talk()
        await stream.ask(register=registration("n1"))
        assert (await stream.ask(register=registration("n2"))).register_reply.accepted
        nodes, streams = kit.plane.leadership.fleet.nodes, kit.plane.leadership.streams
        assert streams.channel(nodes["n1"]) is not None
        assert streams.channel(nodes["n2"]) is None

    async def test_a_control_plane_that_stops_says_nothing_about_its_nodes(self, kit, talk):
        stream = talk()
        await stream.ask(register=registration())
        await kit.stop_control()
        with pytest.raises(UnavailableError):
            await stream.hear()
        await kit.start_control()
        assert (await kit.node_view("n1")).status == "Ready"
        assert "NodeSuspect" not in await kit.event_kinds("n1")


class Handlers:
    """Handlers that accept everything."""

    async def register_node(self, request, call):
        return pb.RegisterNodeResponse(accepted=True)

    async def heartbeat(self, request, call):
        if request.node_id == "bug":
            raise ValueError("a bug")
        return pb.HeartbeatResponse(acknowledged=True)

    async def apply_workload(self, request, call):
        return pb.ApplyWorkloadResponse(success=True)

    async def delete_workload(self, request, call):
        return pb.DeleteWorkloadResponse(success=True)


class TestWhoMayWhat:
    @pytest.fixture
    async def secure(self):
        network, scope = LocalNetwork(), TaskScope("test")
        streams, handlers = Streams(Fleet(), scope=scope), Handlers()
        handlers.control_stream = lambda requests, call: streams.serve(requests, call, handlers)
        server = await network.transport("control", identity=Identity(Role.CONTROL, "blue", "c")).serve(
            "control:1", [Service([AgentControl.CONTROL_STREAM], handlers)]
        )
        talks = []

        def begin(role, name, cluster="blue"):
            channel = network.transport(name, identity=Identity(role, cluster, name)).connect("control:1")
            talks.append(Talk(channel))
            return talks[-1]

        yield begin
        for each in talks:
            await each.close()
        await server.stop(0)
        await scope.close()

    async def outcome(self, stream, **member):
        reply = await stream.ask(**member)
        return error_of(status_from_proto(reply.error)) if reply.HasField("error") else None

    @pytest.mark.parametrize(
        ("name", "message"), [("register", pb.RegisterNodeRequest), ("heartbeat", pb.HeartbeatRequest)]
    )
    async def test_an_agent_speaks_for_its_own_node_only(self, secure, name, message):
        stream = secure(Role.AGENT, "n1")
        assert await self.outcome(stream, **{name: message(node_id="n1")}) is None
        denied = await self.outcome(stream, **{name: message(node_id="n2")})
        assert isinstance(denied, DeniedError)
        assert "own node only" in denied.message

    @pytest.mark.parametrize(
        "member",
        [{"apply": apply_request()}, {"delete": pb.DeleteWorkloadRequest(workload_id="web")}],
        ids=["apply", "delete"],
    )
    async def test_requests_are_for_operators(self, secure, member):
        denied = await self.outcome(secure(Role.AGENT, "n1"), **member)
        assert isinstance(denied, DeniedError)
        assert "operator" in denied.message
        assert await self.outcome(secure(Role.OPERATOR, "ann"), **member) is None

    async def test_heartbeats_are_for_agents(self, secure):
        operator = secure(Role.OPERATOR, "ann")
        denied = await self.outcome(operator, heartbeat=pb.HeartbeatRequest(node_id="ann"))
        assert isinstance(denied, DeniedError)

    async def test_a_bug_fails_one_message_only(self, secure, caplog):
        stream = secure(Role.AGENT, "bug")
        assert "internal error" in (await self.outcome(stream, heartbeat=pb.HeartbeatRequest(node_id="bug"))).message
        assert "a bug" in caplog.text
        assert await self.outcome(stream, register=pb.RegisterNodeRequest(node_id="bug")) is None


# ---------------------------------------------------------------------------------------------------------
# Real agents


@pytest.fixture(params=["stream", "no-listen", "unary"])
async def fleet(tmp_path, request, monkeypatch):
    """A fleet whose agents listen and have streams, have only streams, or can be called only."""
    if request.param == "unary":
        monkeypatch.setattr("shoal.control.agents.streams.Streams.serve", _no_streams)
    async with real_fleet(tmp_path) as made:
        made.mode = request.param
        made.options = {"no_listen": request.param == "no-listen"}
        yield made


async def _no_streams(self, requests, call, handlers):
    raise UnsupportedError("no streams here")
    yield


class TestRealAgents:
    async def test_a_life(self, fleet):
        await fleet.start("n1", **fleet.options)
        await fleet.wait_node("n1", "Ready")
        assert len(fleet.plane.leadership.streams) == (0 if fleet.mode == "unary" else 1)
        machine = fleet.machines["n1"]
        machine.scripts["web"] = FakeScript(output="hello\n")
        assert (await fleet.apply("web", revision="v1")).success
        await fleet.wait_status("web", "Running", seconds=1)
        assert await fleet.logs("web") == b"hello\n"
        await fleet.apply("web", revision="v2", command=("sleep", "2"))
        await fleet.wait(lambda: machine.count("started", "web") == 2, seconds=1)
        view = await fleet.wait_status("web", "Running")
        assert view.observed_revision_id == "v2"
        await fleet.delete("web")
        await fleet.wait_gone("web", seconds=2)
        assert not machine.alive("web")

    async def test_a_killed_agent_comes_back_to_what_it_left(self, fleet):
        await fleet.start("n1", **fleet.options)
        await fleet.wait_node("n1", "Ready")
        await fleet.apply("web")
        await fleet.wait_status("web", "Running")
        await fleet.kill("n1")
        if fleet.mode != "unary":
            await fleet.wait_node("n1", "Suspect", seconds=0.5)
            await fleet.apply("late")
            await asyncio.sleep(3)
            assert (await fleet.workload("late")).status == "Pending"
        await fleet.start("n1", **fleet.options)
        await fleet.wait_node("n1", "Ready", seconds=2)
        await fleet.wait_status("web", "Running")
        assert fleet.machines["n1"].count("started", "web") == 1

    async def test_a_control_plane_that_was_away_is_found_and_tells_nothing_twice(self, fleet):
        await fleet.start("n1", **fleet.options)
        await fleet.wait_node("n1", "Ready")
        await fleet.apply("web")
        await fleet.wait_status("web", "Running")
        await fleet.stop_control()
        await asyncio.sleep(5)
        await fleet.start_control()
        await asyncio.sleep(15)
        assert (await fleet.node_view("n1")).status == "Ready"
        assert (await fleet.workload("web")).status == "Running"
        assert (await fleet.event_kinds("n1")).count("NodeRegistered") == 1
        assert "NodeReregistered" not in await fleet.event_kinds("n1")
        await fleet.delete("web")
        await fleet.wait_gone("web", seconds=2)
        assert fleet.machines["n1"].count("started", "web") == 1

    async def test_cut_off_for_longer_than_its_lease_its_work_moves(self, fleet):
        await fleet.start("n1", **fleet.options)
        await fleet.start("n2", **fleet.options)
        for name in ("n1", "n2"):
            await fleet.wait_node(name, "Ready")
        await fleet.apply("once", at_most_one=True)
        first = (await fleet.wait_status("once", "Running")).assigned_node_id
        other = "n2" if first == "n1" else "n1"
        fleet.network.partition(f"agent {first}", "control")
        await fleet.wait(lambda: bool(fleet.machines[other].alive("once")), seconds=120)
        assert not fleet.machines[first].alive("once")
        fleet.network.heal()
        await fleet.wait_node(first, "Ready")
        await asyncio.sleep(30)
        assert not fleet.machines[first].alive("once")
        ends = [each.at for each in fleet.machines[first].history if each.what == "ended"]
        starts = [each.at for each in fleet.machines[other].history if each.what == "started"]
        assert max(ends) < min(starts)

    async def test_a_clone_takes_over_and_the_loser_is_told(self, fleet):
        await fleet.start("n1", **fleet.options)
        await fleet.wait_node("n1", "Ready")
        await fleet.start("n1", directory="clone", **fleet.options)
        loser = fleet.running["n1"]
        await fleet.wait(lambda: loser.registration.state.value == "superseded", seconds=15)
        await fleet.apply("web")
        await fleet.wait_status("web", "Running")
        assert fleet.machines["clone"].alive("web")
        await asyncio.sleep(60)
        assert fleet.running["clone"].registration.state.value == "registered"
        assert (await fleet.node_view("n1")).status == "Ready"


class TestStreamsAreUsed:
    async def test_orders_and_logs_need_no_way_to_the_agents_port(self, tmp_path):
        async with real_fleet(tmp_path) as fleet:
            agent = await fleet.start("n1")
            await fleet.wait_node("n1", "Ready")
            fleet.network.partition("control", agent.address, outage=Outage.REFUSED)
            await fleet.apply("web")
            await fleet.wait_status("web", "Running", seconds=1)
            await fleet.logs("web")
            await fleet.delete("web")
            await fleet.wait_gone("web", seconds=2)

    async def test_a_broken_stream_makes_a_node_suspect_at_once_and_its_next_heartbeat_ready(self, tmp_path):
        async with real_fleet(tmp_path) as fleet:
            await fleet.start("n1")
            await fleet.wait_node("n1", "Ready")
            await fleet.apply("web")
            await fleet.wait_status("web", "Running")
            fleet.network.partition("agent n1", "control", outage=Outage.REFUSED)
            await fleet.wait_node("n1", "Suspect", seconds=0.1)
            assert (await fleet.node_view("n1")).status_reason == "its stream broke"
            fleet.network.heal()
            await fleet.wait_node("n1", "Ready", seconds=1)
            assert "NodeReregistered" not in await fleet.event_kinds("n1")
            assert fleet.machines["n1"].count("started", "web") == 1

    async def test_a_node_whose_stream_broke_is_reached_at_its_port_if_it_has_one(self, tmp_path):
        async with real_fleet(tmp_path) as fleet:
            await fleet.start("n1")
            await fleet.wait_node("n1", "Ready")
            await fleet.apply("web", revision="v1")
            await fleet.wait_status("web", "Running")
            # The agent cannot call out any more, and can still be called.
            fleet.network.partition("agent n1", "control:8085", outage=Outage.REFUSED)
            await fleet.wait_node("n1", "Suspect")
            await fleet.apply("web", revision="v2", command=("sleep", "2"))
            await fleet.wait(lambda: fleet.machines["n1"].count("started", "web") == 2, seconds=5)

    async def test_a_node_that_cannot_be_reached_is_said_to_be_so(self, tmp_path):
        async with real_fleet(tmp_path) as fleet:
            await fleet.start("n1", no_listen=True)
            await fleet.wait_node("n1", "Ready")
            await fleet.apply("web")
            await fleet.wait_status("web", "Running")
            await fleet.kill("n1")
            with pytest.raises(UnavailableError, match="only through a stream"):
                await fleet.logs("web")

    async def test_a_follower_names_the_leader_to_its_callers(self, tmp_path):
        async with real_fleet(tmp_path) as fleet:
            await fleet.start("n1", no_listen=True)
            await fleet.wait_node("n1", "Ready")
            await fleet.apply("web")
            await fleet.wait_status("web", "Running")
            follower = fleet.plane._new_leadership(term=99)
            await follower.refresh()
            with pytest.raises(NotLeaderError):
                async for _chunk in follower.service.read_logs(pb.ReadLogsRequest(workload_id="web"), None):
                    pass
            await follower.end()

    async def test_a_removed_node_has_to_register_and_does(self, tmp_path):
        async with real_fleet(tmp_path) as fleet:
            await fleet.start("n1", no_listen=True)
            await fleet.wait_node("n1", "Ready")
            fleet.network.partition("agent n1", "control")
            await fleet.wait_node("n1", "NotReady")
            await fleet.channel.call(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="n1"))
            fleet.network.heal()
            await fleet.wait_node("n1", "Ready")
            await fleet.apply("web")
            await fleet.wait_status("web", "Running", seconds=1)

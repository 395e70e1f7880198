"""An agent's stream, the leaders it follows and the terms it believes in, with control planes by script."""

from __future__ import annotations

import asyncio

import pytest

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.contact.link import ControlLink
from shoal.agent.contact.states import RegistrationState
from shoal.agent.contact.terms import Terms
from shoal.core.errors import (
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    StaleTermError,
)
from shoal.testing.runtimes import FakeScript
from shoal.wire.local_faults import Outage
from shoal.wire.methods import NODE_HEADER, TERM_HEADER, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.routes import MAX_HOPS
from tests.unit.agent.making import workload
from tests.unit.agent.scene import CONTROL, scene
from tests.unit.agent.scripted_control import ScriptedControl

pytestmark = pytest.mark.looptime


def apply_request(name="w", generation=1, **fields):
    return agent_pb2.ApplyWorkloadRequest(
        id=name, type=agent_pb2.WORKLOAD_TYPE_PROCESS, spec=workload(**fields), generation=generation
    )


def headers(term=None, node="n1"):
    return {NODE_HEADER: node, **({TERM_HEADER: str(term)} if term is not None else {})}


class TestStream:
    async def test_one_stream_carries_the_registration_and_every_heartbeat(self, tmp_path):
        async with scene(tmp_path, streams=True) as it:
            agent = await it.start()
            await asyncio.sleep(35)
            assert (it.control.opened, len(it.control.registrations)) == (1, 1)
            assert it.control.times == [0, 10, 20, 30]
            assert agent.registration.state is RegistrationState.REGISTERED

    async def test_orders_come_through_it_and_are_served_as_on_the_port(self, tmp_path):
        async with scene(tmp_path, streams=True) as it:
            agent = await it.start(no_listen=True)
            assert agent.address == ""
            await asyncio.sleep(1)
            ((_, request),) = it.control.registrations
            assert request.grpc_endpoint == ""
            assert "stream" in request.features
            it.machine.scripts["w"] = FakeScript(output="hello\n")
            answer = await it.control.stream.call(
                AgentService.APPLY_WORKLOAD, apply_request(), metadata=headers(), timeout=5
            )
            assert answer.applied
            await asyncio.sleep(1)
            assert it.machine.alive("w")
            assert it.control.last.workload_statuses[0].state == "Running"
            with pytest.raises(NotFoundError):
                await it.control.stream.call(
                    AgentService.GET_WORKLOAD_STATUS, agent_pb2.GetWorkloadStatusRequest(id="x"), metadata=headers()
                )
            request = agent_pb2.ReadLogsRequest(workload_id="w")
            logs = [chunk.data async for chunk in it.control.stream.stream(AgentService.READ_LOGS, request)]
            assert b"".join(logs) == b"hello\n"

    async def test_a_broken_one_is_replaced_within_a_moment_and_the_session_goes_on(self, tmp_path):
        async with scene(tmp_path, streams=True) as it:
            await it.start()
            await asyncio.sleep(3)
            it.network.partition("agent n1", "control", outage=Outage.REFUSED)
            it.network.heal()
            await asyncio.sleep(0.7)
            assert it.control.opened == 2
            assert len(it.control.registrations) == 1
            assert len(it.control.heartbeats) == 2
            assert it.control.last.session == "session-1"
            assert it.control.last.sequence == 2

    async def test_where_there_are_no_streams_it_calls(self, tmp_path):
        async with scene(tmp_path, streams=False) as it:
            agent = await it.start()
            await asyncio.sleep(25)
            assert it.control.times == [0, 10, 20]
            assert agent.registration.state is RegistrationState.REGISTERED

    async def test_where_there_are_no_streams_an_agent_that_does_not_listen_is_of_no_use(self, tmp_path):
        async with scene(tmp_path, streams=False) as it:
            agent = await it.start(no_listen=True)
            await asyncio.sleep(30)
            assert not it.control.registrations
            assert agent.registration.state is RegistrationState.OFFLINE
            assert "takes no streams" in agent.registration.reason

    async def test_an_agent_that_listens_nowhere_needs_a_control_plane(self, tmp_path):
        async with scene(tmp_path, serve=False) as it:
            with pytest.raises(InvalidError, match="no_listen"):
                await it.start(control=(), standalone=True, no_listen=True)

    async def test_one_that_ends_while_a_heartbeat_waits_is_a_failed_heartbeat(self, tmp_path):
        async with scene(tmp_path, streams=True) as it:
            agent = await it.start()
            await asyncio.sleep(1)
            it.network.drop_replies(CONTROL, 1)
            await asyncio.sleep(12)
            assert agent.registration.state is RegistrationState.REGISTERED
            assert [heartbeat.sequence for _, heartbeat in it.control.heartbeats] == [1, 2, 3]

    async def test_a_control_plane_that_gives_no_numbers_or_nonsense_is_borne(self, tmp_path):
        async with scene(tmp_path, streams=True) as it:
            replies: asyncio.Queue[pb.ControlMessage] = asyncio.Queue()

            async def control_stream(requests, call):
                async for message in requests:
                    yield await replies.get()
                    del message

            it.control.control_stream = control_stream
            await it.server.stop()
            await it.serve()
            client = ControlLink(
                ControlClient(it.network.transport("agent"), [CONTROL]), [it.control.service()], stream_only=True
            )
            try:
                replies.put_nowait(pb.ControlMessage(register_reply=pb.RegisterNodeResponse(accepted=True)))
                assert (await client.register_node(pb.RegisterNodeRequest())).accepted
                replies.put_nowait(pb.ControlMessage(in_reply_to=2, apply_reply=pb.ApplyWorkloadResponse()))
                with pytest.raises(InternalError, match="'apply_reply' instead of 'heartbeat_reply'"):
                    await client.heartbeat(pb.HeartbeatRequest())
                replies.put_nowait(pb.ControlMessage(in_reply_to=999, error=pb.CallStatus(code=5)))
                with pytest.raises(Exception, match="took longer than 3 s"):
                    await client.heartbeat(pb.HeartbeatRequest(), timeout=3)
                assert not client._stream.is_over
                with pytest.raises(ExhaustedError):
                    await client.heartbeat(pb.HeartbeatRequest(node_id="x" * (16 * 1024 * 1024)))
                assert not client._stream.is_over
            finally:
                await client.close()


OTHER, THIRD = "127.0.0.2:8085", "127.0.0.3:8085"


class Follower(ScriptedControl):
    """A control plane that does not lead."""

    def __init__(self, leader, **fields):
        super().__init__(**fields)
        self.leader = leader
        self.asked = 0

    def refuse(self):
        self.asked += 1
        raise NotLeaderError(self.leader)

    async def register_node(self, request, call):
        self.refuse()

    async def heartbeat(self, request, call):
        self.refuse()

    def control_stream(self, requests, call):
        self.refuse()


@pytest.mark.parametrize("streams", [False, True], ids=["unary", "stream"])
class TestLeaders:
    async def follower(self, it, address, leader, streams):
        follower = Follower(leader, streams=streams)
        await it.network.transport(f"follower {address}").serve(address, [follower.service()])
        return follower

    async def test_the_named_leader_is_asked_at_once_known_or_not(self, tmp_path, streams):
        async with scene(tmp_path, streams=streams) as it:
            follower = await self.follower(it, OTHER, CONTROL, streams)
            agent = await it.start(control=(OTHER,))
            await asyncio.sleep(0.1)
            assert agent.registration.state is RegistrationState.REGISTERED
            assert agent.registration.address == CONTROL
            assert follower.asked == 1
            # It goes away: what is in the list is tried again, and names another.
            await it.network.transport("x").serve(THIRD, [it.control.service()])
            follower.leader = THIRD
            await it.server.stop(0)
            await asyncio.sleep(15)
            assert agent.registration.address == THIRD
            assert agent.registration.state is RegistrationState.REGISTERED
            assert len(it.control.registrations) == 1

    async def test_two_that_name_each_other_are_not_asked_for_ever(self, tmp_path, streams):
        async with scene(tmp_path, serve=False, streams=streams) as it:
            one = await self.follower(it, CONTROL, OTHER, streams)
            two = await self.follower(it, OTHER, CONTROL, streams)
            agent = await it.start()
            await asyncio.sleep(0.1)
            assert one.asked + two.asked <= MAX_HOPS + 1
            assert agent.registration.state is RegistrationState.OFFLINE
            await asyncio.sleep(60)
            assert one.asked + two.asked < 100

    async def test_while_nobody_leads_the_list_is_gone_through(self, tmp_path, streams):
        async with scene(tmp_path, serve=False, streams=streams) as it:
            one = await self.follower(it, OTHER, "", streams)
            two = await self.follower(it, THIRD, "not an address", streams)
            agent = await it.start(control=(OTHER, THIRD, CONTROL))
            await it.serve()
            await asyncio.sleep(10)
            assert agent.registration.address == CONTROL
            assert agent.registration.state is RegistrationState.REGISTERED
            assert (one.asked, two.asked) == (1, 1)

    async def test_a_heartbeat_follows_to_the_leader_too(self, tmp_path, streams):
        async with scene(tmp_path, streams=streams) as it:
            agent = await it.start(control=(CONTROL, OTHER))
            await asyncio.sleep(5)
            it.control.error = NotLeaderError(OTHER)
            second = ScriptedControl(streams=streams)
            second.session = "session-1"
            await it.network.transport("second").serve(OTHER, [second.service()])
            await asyncio.sleep(6)
            assert agent.registration.address == OTHER
            assert second.times == [10]
            assert not second.registrations

    async def test_whose_a_workload_is_is_asked_only_of_the_one_that_acknowledges(self, tmp_path, streams):
        async with scene(tmp_path, streams=streams) as it:
            agent = await it.start(control=(CONTROL, OTHER))
            await asyncio.sleep(1)
            second = Follower("", streams=streams)
            second.views["once"] = pb.WorkloadView(
                workload_id="once", assigned_node_id="n1", generation=1, desired_state="Running"
            )
            await it.network.transport("second").serve(OTHER, [second.service()])
            await it.server.stop(0)
            await asyncio.sleep(11)
            await it.apply(agent, "once", at_most_one=True, generation=1)
            await asyncio.sleep(5)
            assert second.asked
            assert not it.machine.history


class TestTerms:
    async def test_orders_of_an_earlier_term_are_refused_also_after_a_restart(self, tmp_path):
        async with scene(tmp_path, streams=True) as it:
            it.control.term = 5
            agent = await it.start()
            await asyncio.sleep(1)

            async def command(method, request, term):
                await it.control.stream.call(method, request, metadata=headers(term))

            with pytest.raises(StaleTermError) as stale:
                await command(AgentService.APPLY_WORKLOAD, apply_request(), 4)
            assert stale.value.facts == {"offered": "4", "highest": "5"}
            with pytest.raises(StaleTermError):
                await command(AgentService.DELETE_WORKLOAD, agent_pb2.DeleteWorkloadRequest(id="w"), 4)
            await command(AgentService.APPLY_WORKLOAD, apply_request(), 5)
            await command(AgentService.APPLY_WORKLOAD, apply_request("v"), 7)
            with pytest.raises(StaleTermError):
                await command(AgentService.APPLY_WORKLOAD, apply_request("u"), 6)
            # Questions do no harm, and a foreign scheduler knows no terms.
            request = agent_pb2.GetWorkloadStatusRequest(id="v")
            await it.control.stream.call(AgentService.GET_WORKLOAD_STATUS, request, metadata=headers(1))
            await it.apply(agent, "foreign")
            with pytest.raises(InvalidError, match="whole number"):
                await command(AgentService.APPLY_WORKLOAD, apply_request("u"), "-1")
            it.control.term = 7
            await agent.stop()
            await it.start()
            await asyncio.sleep(1)
            with pytest.raises(StaleTermError):
                await command(AgentService.APPLY_WORKLOAD, apply_request("u"), 6)

    async def test_an_acknowledgement_of_an_earlier_term_is_none(self, tmp_path):
        async with scene(tmp_path, streams=True) as it:
            it.control.term = 5
            agent = await it.start(control=(CONTROL, OTHER))
            await asyncio.sleep(1)
            sent_at = agent._contact.sent_at
            it.control.term = 4
            await asyncio.sleep(15)
            assert agent._contact.sent_at == sent_at
            assert agent.registration.state is RegistrationState.OFFLINE
            assert "term 4 is over" in agent.registration.reason or "refused" in agent.registration.reason
            second = ScriptedControl(streams=True)
            second.term, second.session = 6, it.control.session
            await it.network.transport("second").serve(OTHER, [second.service()])
            await asyncio.sleep(15)
            assert agent.registration.address == OTHER
            assert agent._contact.sent_at > sent_at

    async def test_a_term_that_cannot_be_written_down_counts_and_is_written_later(self):
        written, broken = [], [True]

        async def remember(term):
            if broken:
                raise ExhaustedError("the disk is full")
            written.append(term)

        terms = Terms(3, remember)
        with pytest.raises(ExhaustedError):
            await terms.hear(4, of="elsewhere:1")
        with pytest.raises(StaleTermError):
            await terms.hear(3, of="elsewhere:1")
        broken.clear()
        await terms.hear(4, of="elsewhere:1")
        await terms.hear(4, of="elsewhere:1")
        await terms.hear(0, of="elsewhere:1")
        assert (written, terms.highest) == ([4], 4)

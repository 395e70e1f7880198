"""An agent and a control plane by script, in virtual time: heartbeats, leases, outages, takeovers."""

from __future__ import annotations

import asyncio

import pytest

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.contact.link import ControlLink
from shoal.agent.contact.states import RegistrationState
from shoal.core.errors import InvalidError, PreconditionError, UnavailableError
from shoal.model.identity import CONTROL_PLANE
from shoal.model.workloads import RestartPolicy
from shoal.testing.runtimes import FakeScript
from shoal.wire.local import LocalTransport
from shoal.wire.local_faults import Outage
from shoal.wire.methods import NODE_HEADER, TERM_HEADER, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Diagnosis
from tests.unit.agent.making import process
from tests.unit.agent.scene import CONTROL, scene
from tests.unit.agent.scripted_control import ScriptedControl

pytestmark = pytest.mark.looptime


@pytest.fixture(autouse=True, params=[False, True], ids=["unary", "stream"])
def streams(request, monkeypatch):
    """Everything here must be the same, whether the control plane takes streams or not."""
    monkeypatch.setattr("tests.unit.agent.scene.STREAMS", request.param)
    return request.param


async def test_it_registers_sends_a_heartbeat_at_once_and_then_each_interval(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start(labels={"zone": "a"}, region="eu", cluster_id="default", host_id="host-1")
        await asyncio.sleep(35)
        ((at, request),) = it.control.registrations
        assert at == 0
        assert (request.node_id, request.grpc_endpoint, request.cluster_id) == ("n1", agent.address, "default")
        assert (request.capabilities.cpu_total_millicores, request.capabilities.memory_total_mb) == (4000, 4096)
        assert (request.slots, request.host_id, list(request.capabilities.supported_workload_types)) == (
            4,
            "host-1",
            ["process"],
        )
        assert dict(request.labels)["zone"] == "a"
        assert dict(request.labels)["region"] == "eu"
        assert set(request.features) == {
            *("generations", "sessions", "push", "logs", "ports", "stream", "stop_alone", "secrets", "log_queries"),
            "batches",
            "artifacts",
            "exec",
        }
        assert it.control.times == [0, 10, 20, 30]
        assert [heartbeat.sequence for _, heartbeat in it.control.heartbeats] == [1, 2, 3, 4]
        assert {heartbeat.session for _, heartbeat in it.control.heartbeats} == {"session-1"}
        assert agent.registration.state is RegistrationState.REGISTERED


@pytest.mark.parametrize("case", [(0, "", True), (0, "nobody", False), (1000, "", False)])
async def test_an_agent_of_root_without_a_default_user_warns(tmp_path, monkeypatch, caplog, case):
    uid, default_user, warns = case
    monkeypatch.setattr("shoal.agent.server.os.geteuid", lambda: uid)
    async with scene(tmp_path) as it:
        await it.start(default_user=default_user)
        await asyncio.sleep(25)
        for _, heartbeat in it.control.heartbeats:
            conditions = {each.type: each.message for each in heartbeat.conditions}
            assert ("--default-user" in conditions.get("RunsAsRoot", "")) == warns
        assert ("RunsAsRoot: the agent runs as root" in caplog.text) == warns


async def test_who_cannot_tell_whether_it_leads_is_contact_for_what_may_exist_more_than_once(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await asyncio.sleep(1)
        await it.apply(agent, "once", generation=1, at_most_one=True)
        await it.apply(agent, "plain", generation=1)
        it.control.views["once"] = pb.WorkloadView(assigned_node_id="n1", generation=1, desired_state="Running")
        await asyncio.sleep(10)
        it.control.unconfirmed = True
        it.control.drain = True
        await asyncio.sleep(60)
        assert agent.registration.state is RegistrationState.REGISTERED
        assert len(it.control.registrations) == 1
        assert not agent.executor.roster.draining
        assert not it.machine.alive("once")
        assert it.machine.count("ended", "plain") == 0
        it.control.unconfirmed = it.control.drain = False
        await asyncio.sleep(15)
        assert it.machine.alive("once")
        assert it.machine.most_at_once("once") == 1


async def test_exact_durations_win_over_whole_seconds(tmp_path):
    async with scene(tmp_path, interval=0.25, lease=0.75) as it:
        agent = await it.start()
        await asyncio.sleep(1.1)
        assert it.control.times == [0, 0.25, 0.5, 0.75, 1.0]
        assert agent.registration.rhythm.lease == 0.75


async def test_a_foreign_control_plane_is_served_by_its_own_numbers(tmp_path):
    async with scene(tmp_path, interval=7.0) as it:
        it.control.foreign = True
        agent = await it.start()
        await asyncio.sleep(15)
        assert it.control.times == [0, 7, 14]
        assert agent.registration.rhythm.lease == 21
        it.control.interval = 0
        it.control.forget_node()
        await asyncio.sleep(30)
        assert agent.registration.rhythm.interval == 10


async def test_a_change_is_told_at_once_and_many_changes_at_once(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await asyncio.sleep(5)
        await it.apply(agent, "a")
        await asyncio.sleep(0.05)
        assert it.control.times[1] == pytest.approx(5.02)  # what comes a moment later is told in the same heartbeat
        for number in range(20):
            await it.apply(agent, f"w{number}")
        await asyncio.sleep(2)
        assert it.control.times[1:3] == pytest.approx([5.02, 5.12])
        assert len(it.control.heartbeats) <= 5
        states = {status.workload_id: status.state for status in it.control.last.workload_statuses}
        assert states == {"a": "Running", **{f"w{number}": "Running" for number in range(20)}}
        # The interval is counted from the last heartbeat, whatever caused it.
        last = it.control.times[-1]
        await asyncio.sleep(11)
        assert it.control.times[-1] == pytest.approx(last + 10)


async def test_a_heartbeat_is_a_full_snapshot(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        it.machine.scripts["job"] = FakeScript(run_for=3, exit_code=2, output="bad\n")
        await it.apply(agent, "a", generation=4)
        await it.apply(agent, "job", generation=9)
        await asyncio.sleep(12)
        heartbeat = it.control.last
        by_id = {status.workload_id: status for status in heartbeat.workload_statuses}
        assert set(by_id) == {"a", "job"}
        assert (by_id["a"].state, by_id["a"].run.generation, by_id["a"].run.ready) == ("Running", 4, True)
        assert by_id["job"].run.generation == 9
        assert {usage.workload_id for usage in heartbeat.workload_usage} >= {"a"}
        assert heartbeat.HasField("timestamp")
        channel = it.network.transport("control").connect(agent.address)
        await channel.call(AgentService.DELETE_WORKLOAD, agent_pb2.DeleteWorkloadRequest(id="a"))
        await asyncio.sleep(1)
        assert [status.workload_id for status in it.control.last.workload_statuses] == ["job"]
        await channel.close()


async def test_a_delete_is_answered_with_the_first_heartbeat_after_it(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await asyncio.sleep(25)
        assert it.control.last.sequence == 3
        channel = it.network.transport("control").connect(agent.address)
        answer = await channel.call(AgentService.DELETE_WORKLOAD, agent_pb2.DeleteWorkloadRequest(id="a"))
        assert (answer.session, answer.next_beat) == ("session-1", 4)
        await asyncio.sleep(10)
        assert (it.control.last.session, it.control.last.sequence) == ("session-1", 4)
        it.control.forget_node()
        await asyncio.sleep(15)
        answer = await channel.call(AgentService.DELETE_WORKLOAD, agent_pb2.DeleteWorkloadRequest(id="a"))
        assert (answer.session, answer.next_beat) == ("session-2", it.control.last.sequence + 1)
        await channel.close()


async def test_what_is_reserved_and_used_is_reported(tmp_path):
    from shoal.model.resources import Resources

    async with scene(tmp_path) as it:
        agent = await it.start()
        await it.apply(agent, "a", request=Resources(cpu_millicores=500, memory_mb=100, slots=2))
        await asyncio.sleep(11)
        usage = it.control.last.usage
        assert (usage.cpu_allocated_millicores, usage.memory_allocated_mb, usage.slots_used) == (500, 100, 2)
        assert usage.memory_used_mb == 1


async def test_without_a_control_plane_it_tries_again_and_again_with_longer_pauses(tmp_path):
    async with scene(tmp_path, serve=False) as it:
        agent = await it.start()
        await it.apply(agent)
        await asyncio.sleep(100)
        assert agent.registration.state is RegistrationState.OFFLINE
        assert it.machine.alive("w")
        await it.serve()
        await asyncio.sleep(16)
        assert agent.registration.state is RegistrationState.REGISTERED


async def test_a_lost_reply_loses_nothing_and_the_next_heartbeat_has_the_next_number(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await asyncio.sleep(5)
        it.network.drop_replies(CONTROL, 2)
        await asyncio.sleep(10)
        numbers = [heartbeat.sequence for _, heartbeat in it.control.heartbeats]
        assert numbers == sorted(set(numbers))
        assert 3 <= len(numbers) <= 4
        assert len(it.control.registrations) == 1
        assert agent.registration.state is RegistrationState.REGISTERED


async def test_a_node_that_was_forgotten_registers_again_at_once(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await it.apply(agent)
        await asyncio.sleep(5)
        it.control.forget_node()
        await asyncio.sleep(10)
        assert len(it.control.registrations) == 2
        assert it.control.registrations[1][1].previous_session == "session-1"
        assert it.control.last.session == "session-2"
        assert it.control.last.sequence == 1
        assert [status.workload_id for status in it.control.last.workload_statuses] == ["w"]
        assert it.machine.count("started", "w") == 1


async def test_a_control_plane_that_always_forgets_is_not_hammered(tmp_path):
    async with scene(tmp_path) as it:
        await it.start()
        it.control.session = ""

        async def forgetful(request, call):
            return pb.RegisterNodeResponse(accepted=True, session="nobody-knows", lease_ms=30_000)

        it.control.register_node = forgetful
        await asyncio.sleep(120)
        assert len(it.control.heartbeats) < 20


async def test_a_restarted_agent_names_its_last_session(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await asyncio.sleep(1)
        await agent.stop()
        await it.start()
        await asyncio.sleep(1)
        assert [request.previous_session for _, request in it.control.registrations] == ["", "session-1"]


async def test_the_agent_whose_id_was_taken_falls_silent_and_leaves_its_workloads_alone(tmp_path, caplog):
    async with scene(tmp_path) as it:
        loser = await it.start()
        await it.apply(loser)
        await asyncio.sleep(1)
        winner = await it.start("clone", node_id="n1", seed=2)
        await asyncio.sleep(60)
        assert loser.registration.state is RegistrationState.SUPERSEDED
        assert winner.registration.state is RegistrationState.REGISTERED
        assert it.machine.alive("w")
        code, body = loser.health()
        assert (code, body["registration"]) == (503, "superseded")
        assert winner.health()[0] == 200
        assert caplog.text.count("superseded by a newer registration") == 1
        before = len(it.control.heartbeats)
        await asyncio.sleep(100)
        assert len(it.control.heartbeats) == before + 10


async def test_a_refused_node_says_why_and_tries_again(tmp_path, caplog):
    async with scene(tmp_path) as it:
        it.control.refusal = "cluster_id is 'blue', and this control plane serves 'green'"
        agent = await it.start()
        await asyncio.sleep(100)
        assert (agent.registration.state, agent.health()[0]) == (RegistrationState.REFUSED, 503)
        assert "serves 'green'" in agent.registration.reason
        assert caplog.text.count("refuses this node") == 1
        assert not it.control.heartbeats
        it.control.refusal = ""
        await asyncio.sleep(20)
        assert agent.registration.state is RegistrationState.REGISTERED


async def test_draining_follows_only_from_an_acknowledged_answer(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await asyncio.sleep(1)
        it.control.drain = True
        it.control.acknowledges = False
        await asyncio.sleep(30)
        assert not agent.executor.roster.draining
        it.control.error = UnavailableError("the store is away")
        await asyncio.sleep(30)
        assert not agent.executor.roster.draining
        it.control.error, it.control.acknowledges = None, True
        await asyncio.sleep(20)
        assert agent.executor.roster.draining
        with pytest.raises(PreconditionError, match="being drained"):
            await it.apply(agent, "new")
        it.control.drain = False
        await asyncio.sleep(20)
        await it.apply(agent, "new")


async def test_addresses_are_tried_in_turn(tmp_path, streams):
    async with scene(tmp_path, serve=False) as it:
        await it.serve("127.0.0.2:8085")
        agent = await it.start(control=("127.0.0.1:8085", "127.0.0.2"))
        await asyncio.sleep(2)
        assert agent.registration.address == "127.0.0.2:8085"
        assert agent.registration.state is RegistrationState.REGISTERED
        second = ScriptedControl(streams=streams)
        await it.network.transport("control b").serve("127.0.0.1:8085", [second.service()])
        it.network.partition("agent n1", "127.0.0.2:8085", outage=Outage.REFUSED)
        await asyncio.sleep(30)
        assert agent.registration.address == "127.0.0.1:8085"
        assert len(second.registrations) == 1


# ---------------------------------------------------------------------------------------------------------
# Leases


async def test_what_may_exist_only_once_lives_by_the_lease_and_the_rest_does_not(tmp_path):
    async with scene(tmp_path, interval=10, lease=30) as it:
        agent = await it.start()
        it.own("once", "n1")
        await it.apply(agent, "once", at_most_one=True, generation=1)
        await it.apply(agent, "free", generation=1)
        await asyncio.sleep(100)
        assert it.machine.alive("once")
        assert it.machine.count("started", "once") == 1
        last_acknowledged = it.control.heartbeats[-1][0]
        it.network.partition("agent n1", "control")
        await asyncio.sleep(60)
        (end,) = [moment for moment in it.machine.history if (moment.what, moment.workload_id) == ("ended", "once")]
        assert end.at <= last_acknowledged + 27 + 0.001
        assert it.machine.alive("free")
        it.network.heal("agent n1", "control")
        await asyncio.sleep(20)
        assert it.machine.alive("once")
        assert it.machine.most_at_once("once") == 1


async def test_given_away_meanwhile_it_is_not_started_again(tmp_path):
    async with scene(tmp_path, interval=10, lease=30) as it:
        agent = await it.start()
        it.own("once", "n1")
        await it.apply(agent, "once", at_most_one=True, generation=1)
        await asyncio.sleep(15)
        it.network.partition("agent n1", "control")
        await asyncio.sleep(60)
        it.own("once", "n2", 2)
        it.network.heal("agent n1", "control")
        await asyncio.sleep(120)
        assert not it.machine.alive("once")
        status = it.control.last.workload_statuses[0]
        assert (status.state, status.run.generation) == ("Pending", 1)
        assert "generation 2 is node n2's" in status.message


async def test_a_lease_is_counted_from_the_sending_of_a_heartbeat(tmp_path):
    async with scene(tmp_path, interval=10, lease=30) as it:
        agent = await it.start()
        await asyncio.sleep(1)
        it.network.delay(CONTROL, 6)
        await asyncio.sleep(16)  # the heartbeat of second 10 was acknowledged at 16
        assert agent._contact.ends_at() == 10 + 27


async def test_a_frozen_agent_that_wakes_late_ends_what_may_exist_only_once(tmp_path):
    async with scene(tmp_path, interval=10, lease=30) as it:
        agent = await it.start()
        it.own("once", "n1")
        await it.apply(agent, "once", at_most_one=True, generation=1)
        await asyncio.sleep(15)
        (alive,) = it.machine.alive("once")
        # Frozen together with its keeper: neither deadline nor timer fired, and then a heartbeat goes through.
        agent._contact._sent_at -= 100
        it.own("once", "n2", 2)
        await asyncio.sleep(10)
        assert not it.machine.alive("once")
        assert all(moment.ended_by != "deadline" for moment in it.machine.history if moment.run_id == alive.run_id)


async def test_an_answer_about_ownership_that_cannot_be_had_holds_it(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await it.apply(agent, "once", at_most_one=True, generation=1)
        await asyncio.sleep(15)
        assert "does not know it" in it.control.last.workload_statuses[0].message
        it.own("once", "n1", 1, desired="Stopped")
        await asyncio.sleep(30)
        assert not it.machine.history
        it.own("once", "n1", 1)
        await asyncio.sleep(30)
        assert it.machine.alive("once")


# ---------------------------------------------------------------------------------------------------------
# What the log says

NO_CONTACT = f"no contact with the control plane at {CONTROL}: "


def warnings_in(caplog):
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("no contact with the control")]


async def test_an_agent_that_reaches_no_control_plane_says_so_once_for_each_outage(tmp_path, caplog):
    async with scene(tmp_path, serve=False) as it:
        await it.start()
        await asyncio.sleep(100)
        (first,) = warnings_in(caplog)
        assert first.startswith(NO_CONTACT)
        await it.serve()
        await asyncio.sleep(100)
        assert warnings_in(caplog) == [first]
        it.network.partition("agent n1", CONTROL, outage=Outage.REFUSED)
        await asyncio.sleep(100)
        second, *others = warnings_in(caplog)[1:]
        assert second.startswith(NO_CONTACT)
        assert others == [f"{NO_CONTACT}the lease has run out"]


async def test_an_agent_says_what_the_transport_finds_out(tmp_path, caplog, monkeypatch):
    reasons = [Diagnosis("its certificate expired", "issue a new one"), Diagnosis("nothing listens there", "")]
    asked = []

    async def diagnose(_self, address, *, peer=None):
        asked.append((address, peer))
        return reasons[0] if address == CONTROL else reasons[1]

    monkeypatch.setattr(LocalTransport, "diagnose", diagnose)
    async with scene(tmp_path, serve=False) as it:
        await it.start(control=(CONTROL, "127.0.0.2:8085"))
        await asyncio.sleep(100)
    assert warnings_in(caplog) == [
        f"{NO_CONTACT}its certificate expired",
        "no contact with the control plane at 127.0.0.2:8085: nothing listens there",
    ]
    assert asked == [(CONTROL, CONTROL_PLANE), ("127.0.0.2:8085", CONTROL_PLANE)]


async def test_a_refused_node_is_told_of_its_refusal_alone(tmp_path, caplog):
    async with scene(tmp_path) as it:
        it.control.refusal = "unknown cluster"
        await it.start()
        await asyncio.sleep(100)
        assert warnings_in(caplog) == []
        assert "refuses this node: unknown cluster" in caplog.text


# ---------------------------------------------------------------------------------------------------------
# The rest


async def test_a_client_makes_each_call_of_an_agent(tmp_path):
    async with scene(tmp_path) as it:
        client = ControlClient(it.network.transport("agent"), [CONTROL])
        link = ControlLink(client)
        assert (await link.register_node(pb.RegisterNodeRequest(node_id="n"))).accepted
        assert (await link.heartbeat(pb.HeartbeatRequest(node_id="n", session="session-1"))).acknowledged
        it.own("a", "n9")
        assert (await client.get_workload("a")).assigned_node_id == "n9"
        await client.close()
        with pytest.raises(InvalidError):
            ControlClient(it.network.transport("agent"), [])


async def test_an_agent_that_stands_alone_takes_commands(tmp_path):
    async with scene(tmp_path, serve=False) as it:
        agent = await it.start(control=(), standalone=True)
        await it.apply(agent)
        await asyncio.sleep(1)
        assert it.machine.alive("w")
        assert (agent.registration, agent.health()[1]["registration"]) == (None, "standalone")


async def test_a_node_without_a_name_gets_the_machines_and_keeps_it(tmp_path, monkeypatch):
    async with scene(tmp_path, serve=False) as it:
        monkeypatch.setattr("socket.gethostname", lambda: "my host!.example..com-")
        agent = await it.start(node_id="")
        assert agent.node_id == "my-host-.example.com"
        await agent.stop()
        monkeypatch.setattr("socket.gethostname", lambda: "renamed")
        agent = await it.start(node_id="")
        assert agent.node_id == "my-host-.example.com"


async def test_two_agents_cannot_share_a_data_directory(tmp_path):
    async with scene(tmp_path, serve=False) as it:
        await it.start()
        with pytest.raises(PreconditionError, match="in use by process"):
            await it.start()


async def test_stopping_leaves_workloads_or_takes_them_along(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await it.apply(agent)
        await asyncio.sleep(1)
        await agent.stop()
        assert it.machine.alive("w")
        agent = await it.start(stop_workloads_on_exit=True)
        await asyncio.sleep(1)
        await agent.stop()
        assert not it.machine.alive("w")
        await it.start()
        await asyncio.sleep(1)
        assert it.machine.alive("w")


async def test_security_has_to_be_declined(tmp_path):
    async with scene(tmp_path, serve=False) as it:
        with pytest.raises(InvalidError, match="ca: is required, with cert and key") as caught:
            await it.start(insecure=False)
        assert "--insecure" in caught.value.message


async def test_a_lease_that_ran_out_leads_to_a_new_registration(tmp_path):
    async with scene(tmp_path, interval=1, lease=3) as it:
        agent = await it.start()
        await it.apply(agent)
        await asyncio.sleep(5)
        it.control.error = UnavailableError("the store is away")
        await asyncio.sleep(2)
        assert len(it.control.registrations) == 1
        await asyncio.sleep(100)
        tries = len(it.control.registrations)
        assert 4 <= tries <= 140, "registrations are tried, hardly more often than heartbeats would be"
        it.control.error = None
        await asyncio.sleep(16)
        assert len(it.control.registrations) == tries + 1
        assert agent.registration.state is RegistrationState.REGISTERED
        assert it.machine.count("started", "w") == 1


OTHER = "127.0.0.2:8085"


async def command_of(it, agent, term):
    """An order of a new leader, which dials the agent."""
    channel = it.network.transport("second").connect(agent.address)
    request = agent_pb2.DeleteWorkloadRequest(id="nobody")
    metadata = {NODE_HEADER: agent.node_id, TERM_HEADER: str(term)}
    await channel.call(AgentService.DELETE_WORKLOAD, request, metadata=metadata)
    await channel.close()


async def second_leader(it, streams, *, term):
    second = ScriptedControl(streams=streams)
    second.term, second.session = term, it.control.session
    await it.network.transport("second").serve(OTHER, [second.service()])
    return second


@pytest.mark.parametrize("heard_at", [0.5, 5.0], ids=["while a heartbeat is under way", "between heartbeats"])
async def test_an_agent_that_hears_of_a_new_leader_does_not_wait_for_the_one_that_hangs(tmp_path, streams, heard_at):
    async with scene(tmp_path) as it:
        it.control.term = 5
        agent = await it.start(control=(CONTROL, OTHER))
        await asyncio.sleep(10 - heard_at + 1.0 if heard_at == 0.5 else 5.0)
        it.network.partition("agent n1", CONTROL)
        second = await second_leader(it, streams, term=6)
        if heard_at == 0.5:
            await asyncio.sleep(10)  # the next heartbeat is on its way to the old leader for half a second
        heard = asyncio.get_running_loop().time()
        await command_of(it, agent, 6)
        await asyncio.sleep(4)
        assert agent.registration.address == OTHER
        assert second.times[0] <= heard + 3
        assert agent.registration.state is RegistrationState.REGISTERED


async def test_a_new_leader_that_answers_is_stayed_with(tmp_path, streams):
    async with scene(tmp_path) as it:
        it.control.term = 5
        agent = await it.start(control=(CONTROL, OTHER))
        await asyncio.sleep(5)
        second = await second_leader(it, streams, term=4)
        it.control.term = 6  # the same control plane leads anew, and a command says so first
        await command_of(it, agent, 6)
        await asyncio.sleep(40)
        assert agent.registration.address == CONTROL
        assert second.heartbeats == []
        assert len(it.control.registrations) == 1


async def test_an_agent_that_stops_its_workloads_says_so(tmp_path):
    async with scene(tmp_path) as it:
        it.machine.scripts["done"] = FakeScript(run_for=1, exit_code=0)
        agent = await it.start(stop_workloads_on_exit=True)
        await it.apply(agent, "web", generation=3)
        await it.apply(agent, "done", process(restart=RestartPolicy(policy="no")), generation=2)
        await asyncio.sleep(5)
        before = len(it.control.heartbeats)
        await agent.stop()
        assert not it.machine.alive("web")
        assert len(it.control.heartbeats) == before + 1
        statuses = {status.workload_id: status for status in it.control.last.workload_statuses}
        assert (statuses["web"].state, statuses["web"].run.generation) == ("Pending", 3)
        assert "stopped with its agent" in statuses["web"].message
        assert statuses["done"].state == "Stopped"


async def test_an_agent_that_is_not_heard_ends_all_the_same(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start(stop_workloads_on_exit=True)
        await it.apply(agent, "web")
        await asyncio.sleep(5)
        it.network.partition("agent n1", CONTROL)
        begun = asyncio.get_running_loop().time()
        await agent.stop()
        assert asyncio.get_running_loop().time() - begun <= 3
        assert not it.machine.alive("web")

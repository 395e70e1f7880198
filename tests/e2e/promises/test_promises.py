"""What operators are promised, on real processes with certificates and a real PostgreSQL.

Each test finds the fleet whole and may leave it in any state: the fixture mends it.
"""

import asyncio
import json
import os
import signal
from datetime import timedelta

import pytest

from shoal.core.errors import DeniedError, PreconditionError, UnavailableError
from shoal.model.workloads import WorkloadType
from shoal.runtimes.process import read_keeper_pid
from shoal.wire import convert
from shoal.wire.methods import AgentControl, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.e2e.fleet.drill import insist, is_alive, process, processes_of, until, until_gone, until_status
from tests.e2e.ha.test_hanging_database import hanging
from tests.e2e.partition.stage import ONLY_ONCE
from tests.e2e.promises.guarded import (
    AGENTS,
    DIALLED,
    JOINED,
    OTHER,
    PLANES,
    SILENT,
    cursor_of,
    has_moved,
    has_status,
    is_on,
    kinds_of,
)

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


def on_node(node):
    return {"placement": {"constraints": [{"key": "node_id", "values": [node]}]}}


def once(name, folder, **fields):
    """A workload that tells when two of it run side by side."""
    return process(name, command=["sh", "-c", ONLY_ONCE, str(folder / f"{name}.lock")], **fields)


def ran_twice(name, folder):
    return (folder / f"{name}.lock.overlap").exists()


def waiting_for(gate, name, *, first):
    """A workload that is ready at once on its first node, and elsewhere when a gate is opened."""
    probe = ["sh", "-c", f'test "$SHOAL_NODE_ID" = {first} || test -e {gate}']
    return process(name, process={"readiness": {"command": {"command": probe}, "interval": "100ms"}})


def other_plane(name):
    return PLANES[1 - PLANES.index(name)]


async def copies(planes, name, count):
    pids = processes_of(planes, name)
    return pids if len(pids) == count else None


async def two_heartbeats(control, node):
    """Wait until a node was heard of two more times."""
    seen = {(await control.get_node(node)).last_heartbeat}

    async def heard():
        seen.add((await control.get_node(node)).last_heartbeat)
        return len(seen - {None}) > 2

    await until(heard, what=f"{node} has sent two heartbeats")


async def acknowledged(planes, node):
    """How many heartbeats of an agent were acknowledged, by its own count; a leader without its store confirms none."""
    found = await planes.metrics(node)
    assert found["shoal_agent_draining"] == 0
    results = ("acknowledged", "unconfirmed")
    return sum(found.get(f'shoal_agent_heartbeats_total{{result="{each}"}}', 0) for each in results)


async def two_acknowledged(planes, node):
    before = await acknowledged(planes, node)

    async def more():
        return await acknowledged(planes, node) >= before + 2

    await until(more, what=f"two heartbeats of {node} were acknowledged")


async def was_told(control, subject, kind, after):
    return kind in await kinds_of(control, subject, after=after)


async def events_of(control, after):
    return (await insist(lambda: control.list_events(after=after, limit=1000))).events


async def command_directly(channel, document):
    """Apply a workload at an agent, past the control plane."""
    request = agent.ApplyWorkloadRequest(
        id=document.id,
        type=convert.workload_type_to_agent(WorkloadType.PROCESS),
        revision_id="r1",
        desired_state=agent.DESIRED_STATE_RUNNING,
        spec=convert.agent_spec_from_control(document.spec, document.id),
        generation=1,
    )
    return await channel.call(AgentService.APPLY_WORKLOAD, request)


# ---------------------------------------------------------------------------------------------------------
# Operators


@pytest.mark.long
async def test_an_agents_certificate_is_no_operators_at_the_leader_and_at_the_follower(planes, control):
    await control.apply(process("web"))
    await until_status(control, "web", "Running")
    leader = await planes.leader()
    for plane in (leader, other_plane(leader)):
        async with planes.channel_to_plane(plane, holder=f"agent-{DIALLED}") as channel:
            for method, request in (
                (AgentControl.DELETE_WORKLOAD, pb.DeleteWorkloadRequest(workload_id="web")),
                (AgentControl.RETRY_WORKLOAD, pb.RetryWorkloadRequest(workload_id="web")),
                (AgentControl.APPLY_WORKLOAD, pb.ApplyWorkloadRequest(workload_id="web")),
            ):
                with pytest.raises(DeniedError, match="needs the role operator"):
                    await channel.call(method, request)
            with pytest.raises(DeniedError, match=OTHER):
                await channel.call(AgentControl.REGISTER_NODE, pb.RegisterNodeRequest(node_id=OTHER))
    await until_status(control, "web", "Running")


@pytest.mark.long
async def test_a_cordoned_node_gets_no_new_work_until_it_is_uncordoned(planes, control):
    await planes.run_on(control, JOINED, process("stays", failover={"policy": "keep"}))
    (pid,) = processes_of(planes, "stays")
    await planes.operate("node", "cordon", JOINED)
    names = [f"w{index}" for index in range(6)]
    for name in names:
        await control.apply(process(name))
    for name in names:
        assert (await until_status(control, name, "Running")).assigned_node_id != JOINED
    await two_heartbeats(control, JOINED)
    await planes.kill(JOINED)
    await planes.start_agent(JOINED)  # it registers anew, and that undoes nothing either
    await two_heartbeats(control, JOINED)
    assert (await control.get_node(JOINED)).desired == "cordoned"
    await control.apply(process("pinned", **on_node(JOINED)))
    await until_status(control, "pinned", "Pending")
    assert processes_of(planes, "stays") == [pid]
    await planes.operate("node", "uncordon", JOINED)
    await until(lambda: is_on(control, "pinned", JOINED), what="it takes work again")


async def test_a_drain_starts_the_replacement_first_and_the_agent_refuses_new_work(planes, control, tmp_path):
    gate = tmp_path / "gate"
    await planes.run_on(control, DIALLED, waiting_for(gate, "web", first=DIALLED))
    (old,) = processes_of(planes, "web")
    await planes.operate("node", "drain", DIALLED, "--detach")
    await until(lambda: copies(planes, "web", 2), what="both copies run")
    await two_heartbeats(control, DIALLED)
    async with planes.channel_to_agent(control, DIALLED) as channel:
        with pytest.raises(PreconditionError, match="being drained") as refused:
            await command_directly(channel, process("late"))
    assert refused.value.facts["reason"] == "draining"
    assert is_alive(old)
    assert (await control.get_node(DIALLED)).status == "Draining"
    gate.touch()
    await planes.operate("node", "drain", DIALLED)  # waits until it is done
    assert (await until_status(control, "web", "Running")).assigned_node_id != DIALLED
    assert not is_alive(old)
    assert len(processes_of(planes, "web")) == 1
    assert (await control.get_node(DIALLED)).status == "Drained"


@pytest.mark.long
async def test_a_drain_starts_the_replacement_after_where_that_was_asked_for(planes, control, tmp_path):
    await planes.run_on(
        control,
        SILENT,
        once("after", tmp_path, failover={"migrate": "after"}),
        once("solo", tmp_path, at_most_one=True),
    )
    await planes.operate("node", "drain", SILENT)
    for name in ("after", "solo"):
        await until(lambda name=name: has_moved(control, name, SILENT), what=f"{name} runs elsewhere")
        assert len(processes_of(planes, name)) == 1
        assert not ran_twice(name, tmp_path)
    assert (await control.get_node(SILENT)).status == "Drained"


@pytest.mark.long
async def test_past_the_deadline_of_a_drain_what_has_no_other_place_goes_too(planes, control):
    await control.apply(process("pinned", **on_node(OTHER)))
    await until_status(control, "pinned", "Running")
    after = await cursor_of(control)
    await control.drain_node(OTHER)
    await until(
        lambda: was_told(control, "pinned", "WorkloadMoveWaiting", after), what="it is told that it has no other place"
    )
    assert len(processes_of(planes, "pinned")) == 1
    await planes.operate("node", "drain", OTHER, "--deadline", "1s")
    await until_status(control, "pinned", "Pending")
    assert processes_of(planes, "pinned") == []
    await planes.operate("node", "uncordon", OTHER)
    await until(lambda: is_on(control, "pinned", OTHER), what="it runs again")


async def test_the_work_of_a_node_that_the_operator_knows_to_be_dead_moves(planes, control, tmp_path):
    await planes.run_on(
        control,
        JOINED,
        process("kept", failover={"policy": "keep"}),
        once("solo", tmp_path, at_most_one=True),
    )
    await planes.kill_machine(JOINED)
    await planes.operate("node", "dead", JOINED, "--force")
    await planes.make_token()  # its certificate is revoked: it comes back by joining again
    for name in ("kept", "solo"):
        await until(lambda name=name: has_moved(control, name, JOINED), what=f"{name} runs elsewhere")
    assert not ran_twice("solo", tmp_path)
    await planes.start_agent(JOINED)
    await until(lambda: has_status(control, JOINED, "Ready"), what="it is back")
    for name in ("kept", "solo"):
        assert len(processes_of(planes, name)) == 1
        assert (await control.get_workload(name)).assigned_node_id != JOINED


@pytest.mark.long
async def test_an_orphan_is_shown_and_left_alone_and_adopted_on_request(planes, control):
    document = process("stray")
    async with planes.channel_to_agent(control, OTHER) as channel:
        assert (await command_directly(channel, document)).applied

    async def shown():
        return "stray" in (await control.get_node(OTHER)).orphans

    await until(shown, what="it is shown as an orphan")
    (pid,) = await until(lambda: copies(planes, "stray", 1), what="it runs")
    await two_heartbeats(control, OTHER)
    assert "stray" not in {view.workload_id for view in await control.list_workloads()}
    assert is_alive(pid)
    await planes.operate("workload", "adopt", OTHER, "stray")
    view = await until_status(control, "stray", "Running", revision="r1")
    assert view.assigned_node_id == OTHER
    await two_heartbeats(control, OTHER)
    assert processes_of(planes, "stray") == [pid]
    assert (await control.get_node(OTHER)).orphans == ()
    await control.delete("stray")
    await until_gone(control, "stray")
    assert not is_alive(pid)


# ---------------------------------------------------------------------------------------------------------
# Faults


@pytest.mark.long
async def test_what_becomes_of_work_whose_agent_is_killed_is_as_its_policy_says(planes, control, tmp_path):
    after = await cursor_of(control)
    names = ("replaced", "kept", "stops", "solo")
    await planes.run_on(
        control,
        SILENT,
        process("replaced"),
        process("kept", failover={"policy": "keep"}),
        once("stops", tmp_path, failover={"policy": "stop", "after": "4s"}),
        once("solo", tmp_path, at_most_one=True),
    )
    old = {name: processes_of(planes, name)[0] for name in names}
    await planes.kill(SILENT)
    await until(lambda: has_status(control, SILENT, "Suspect", "NotReady"), what="it gets no new work")
    for name in ("replaced", "stops", "solo"):
        await until(lambda name=name: has_moved(control, name, SILENT), what=f"{name} runs elsewhere")
    assert is_alive(old["replaced"]), "nobody could stop it there"
    assert not is_alive(old["stops"]), "its keeper stopped it"
    assert not is_alive(old["solo"]), "its keeper stopped it"
    assert not ran_twice("stops", tmp_path)
    assert not ran_twice("solo", tmp_path)
    kept = await control.get_workload("kept")
    assert (kept.status, kept.assigned_node_id) == ("Unknown", SILENT)
    kinds = await kinds_of(control, SILENT, after=after)
    assert kinds.index("NodeSuspect") < kinds.index("NodeNotReady")
    await planes.start_agent(SILENT)
    await until(lambda: is_on(control, "kept", SILENT), what="what was kept is heard of")
    assert processes_of(planes, "kept") == [old["kept"]]
    for name in ("replaced", "stops", "solo"):
        await until(lambda name=name: copies(planes, name, 1), what=f"one {name} is left")
        assert not is_alive(old[name])


async def test_at_most_one_work_runs_once_while_agent_and_keeper_are_stopped(planes, control, tmp_path):
    names = ("stops", "solo")
    await planes.run_on(
        control,
        OTHER,
        once("stops", tmp_path, failover={"policy": "stop", "after": "4s"}),
        once("solo", tmp_path, at_most_one=True),
    )
    old = {name: processes_of(planes, name)[0] for name in names}
    keeper = read_keeper_pid(planes.data_of(OTHER))
    os.kill(keeper, signal.SIGSTOP)
    planes.signal(OTHER, signal.SIGSTOP)
    try:
        for name in names:
            await until(lambda name=name: has_moved(control, name, OTHER), what=f"{name} runs elsewhere")
            assert not is_alive(old[name]), "its watchdog stopped it"
            assert not ran_twice(name, tmp_path)
    finally:
        os.kill(keeper, signal.SIGCONT)
        planes.signal(OTHER, signal.SIGCONT)
    await until(lambda: has_status(control, OTHER, "Ready"), what="it is back")
    await two_heartbeats(control, OTHER)
    for name in names:
        assert len(processes_of(planes, name)) == 1
        assert not ran_twice(name, tmp_path)


async def test_a_run_whose_record_is_damaged_is_found_adopted_and_deleted(planes, control):
    await planes.run_on(control, OTHER, process("web", failover={"policy": "keep"}))
    (pid,) = processes_of(planes, "web")
    after = await cursor_of(control)
    (record,) = (planes.data_of(OTHER) / "keeper" / "runs").glob("web-*.json")
    keeper = read_keeper_pid(planes.data_of(OTHER))
    await planes.kill(OTHER)
    os.kill(keeper, signal.SIGKILL)
    record.write_bytes(b"\x00" * 100)
    await planes.start_agent(OTHER)
    await until(lambda: was_told(control, OTHER, "NodeConditionRaised", after), what="it is reported")
    found = {each.type: each.message for each in (await control.get_node(OTHER)).conditions}
    assert record.stem in found["OrphanedProcesses"]
    await until(lambda: is_on(control, "web", OTHER), what="it is adopted")
    assert processes_of(planes, "web") == [pid]
    await control.delete("web")
    await until_gone(control, "web")
    assert not is_alive(pid)
    await until(lambda: was_told(control, OTHER, "NodeConditionCleared", after), what="it is over")


async def test_nothing_moves_when_most_agents_vanish_at_once(planes, control):
    stopped = (DIALLED, JOINED, SILENT)
    homes = {f"on-{name}": name for name in stopped}
    for each, home in homes.items():
        await planes.run_on(control, home, process(each))  # it might run anywhere
    pids = {each: processes_of(planes, each) for each in homes}
    after = await cursor_of(control)
    for name in stopped:
        planes.signal(name, signal.SIGSTOP)

    async def all_held():
        views = [await control.get_node(name) for name in stopped]
        return all((view.status, view.failover) == ("NotReady", "held") for view in views)

    await until(all_held, what="all are lost and held")
    (fleet,) = {event.subject_id for event in (await events_of(control, after)) if event.kind == "FailoverPaused"}
    # The control plane goes on deciding: new work is placed, and old work is not.
    await control.apply(process("meanwhile"))
    assert (await until_status(control, "meanwhile", "Running")).assigned_node_id == OTHER
    assert {each: (await control.get_workload(each)).assigned_node_id for each in homes} == homes
    assert {each: processes_of(planes, each) for each in homes} == pids
    for name in stopped:  # one after another: the first that is back does not cost the others their work
        planes.signal(name, signal.SIGCONT)
        await until(lambda name=name: has_status(control, name, "Ready"), what=f"{name} is back")
    for each, home in homes.items():
        await until(lambda each=each, home=home: is_on(control, each, home), what=f"{each} is where it was")
    assert {each: processes_of(planes, each) for each in homes} == pids
    await until(lambda: was_told(control, fleet, "FailoverResumed", after), what="the brake has let go")
    assert not any(event.kind == "NodeDeclaredLost" for event in await events_of(control, after))


@pytest.mark.long
async def test_the_next_leader_finishes_a_drain_and_keeps_what_was_acknowledged(planes, control, tmp_path):
    gate = tmp_path / "gate"
    await planes.run_on(control, OTHER, waiting_for(gate, "web", first=OTHER), process("more"))
    old = await planes.leader()
    new = other_plane(old)
    await control.drain_node(OTHER, deadline=timedelta(minutes=10))
    await until(lambda: copies(planes, "web", 2), what="the drain is under way")
    written = {f"w{index}": (await control.apply(process(f"w{index}", revision="v1"))).generation for index in range(5)}
    await planes.kill(old)
    assert await planes.leader(among=[new]) == new
    assert (await insist(lambda: control.get_node(OTHER))).desired == "draining"
    gate.touch()
    await until(lambda: has_status(control, OTHER, "Drained"), what="the new leader has finished it")
    for name in ("web", "more"):
        await until(lambda name=name: has_moved(control, name, OTHER), what=f"{name} has moved")
        await until(lambda name=name: copies(planes, name, 1), what=f"one {name} is left")
    for name, generation in written.items():
        view = await until_status(control, name, "Running", revision="v1")
        assert view.generation >= generation
        assert view.assigned_node_id != OTHER
    await planes.start_plane(old)
    assert (await planes.health(old))["role"] == "follower"


async def test_a_database_that_is_away_stops_writes_and_nothing_else(planes, control, postgres_server):
    if postgres_server.pid is None:
        pytest.skip("the server is not of this test, so it cannot be stopped")
    names = [f"w{index}" for index in range(len(AGENTS))]
    for name, node in zip(names, AGENTS, strict=True):
        await control.apply(process(name, revision="v1", **on_node(node)))
    for name in names:
        await until_status(control, name, "Running", revision="v1")
    pids = {name: processes_of(planes, name) for name in names}
    after = await cursor_of(control)

    async def everybody(status):
        return {(await planes.health(name))["status"] for name in PLANES} == {status}

    with hanging(postgres_server.pid):
        await until(lambda: everybody("degraded"), what="both have noticed")
        with pytest.raises(UnavailableError):  # after some seconds: longer than a lease is, and no node is lost
            await control.apply(process("refused"))
        assert {view.workload_id for view in await control.list_workloads()} == set(names)
        await asyncio.gather(*(two_acknowledged(planes, node) for node in AGENTS))
        shown = json.loads(await planes.operate("node", "list", "--json"))["nodes"]
        assert "NotReady" not in {node["status"] for node in shown}
        assert not any(node["desired"] for node in shown)
        assert {name: processes_of(planes, name) for name in names} == pids
    await until(lambda: everybody("ok"), what="both are well again")
    await planes.leader()
    await insist(lambda: control.apply(process("later")))
    await until_status(control, "later", "Running")
    for name in names:
        await until_status(control, name, "Running", revision="v1")
    assert {name: processes_of(planes, name) for name in names} == pids
    assert not {"NodeNotReady", "NodeDeclaredLost", "WorkloadMoved"} & {
        event.kind for event in await events_of(control, after)
    }

"""Killed, stopped and cut off, on real processes: what goes on, what moves, and what is told."""

import asyncio
import contextlib
import math
import os
import signal
import sys
from datetime import timedelta

import pytest

from shoal.runtimes.process import read_keeper_pid
from tests.e2e.fleet.conftest import HEARTBEAT
from tests.e2e.fleet.drill import (
    insist,
    is_alive,
    process,
    processes_of,
    python,
    until,
    until_gone,
    until_heard,
    until_status,
)

pytestmark = pytest.mark.e2e


async def node_status(control, name):
    return (await control.get_node(name)).status


async def on(control, name):
    return (await control.get_workload(name)).assigned_node_id


def heartbeats_in(lease):
    """How many heartbeats a node sends in a little more than a lease."""
    return math.ceil((lease + 2 * HEARTBEAT) / HEARTBEAT)


def pinned(node):
    return {"placement": {"constraints": [{"key": "node_id", "values": [node]}]}}


class TestAgent:
    @pytest.fixture
    def lease(self):
        """Long enough for an agent to be back within it on a busy machine."""
        return timedelta(seconds=20)

    async def test_killed_alone_its_work_goes_on_and_is_adopted(self, fleet, control):
        await control.apply(process("web"))
        view = await until_status(control, "web", "Running")
        (pid,) = processes_of(fleet, "web")
        await fleet.kill_agent(view.assigned_node_id)
        assert is_alive(pid)
        await fleet.start_agent(view.assigned_node_id)
        await until_status(control, "web", "Running")
        assert processes_of(fleet, "web") == [pid]
        assert (await control.get_workload("web")).run.restarts == 0

    async def test_what_ended_while_it_was_away_is_reported_truly_and_not_run_again(self, fleet, control, tmp_path):
        gate, count = tmp_path / "gate", tmp_path / "count"
        code = (
            f"import pathlib, sys, time\n"
            f"open({str(count)!r}, 'a').write('run\\n')\n"
            f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)\n"
            f"sys.exit(7)\n"
        )
        document = process("job", command=python(code), process={"restart": {"policy": "no"}})
        await control.apply(document)
        view = await until_status(control, "job", "Running")
        node = view.assigned_node_id
        (pid,) = processes_of(fleet, "job")
        # Short of the lease: the node must not count as lost.
        await fleet.kill_agent(node)
        gate.touch()
        await until(lambda: _false(is_alive(pid)), what="the job has ended")
        await fleet.start_agent(node)
        view = await until_status(control, "job", "Failed")
        assert view.run.exit.code == 7
        assert not view.run.exit.unknown
        assert count.read_text() == "run\n"

    async def test_it_converges_with_no_control_plane_in_sight(self, fleet, control):
        await control.apply(process("web", process={"restart": {"delay": "100ms"}}))
        view = await until_status(control, "web", "Running")
        node = view.assigned_node_id
        (pid,) = processes_of(fleet, "web")
        await fleet.kill_control()
        await fleet.kill_agent(node)
        os.kill(pid, signal.SIGKILL)
        await fleet.start_agent(node)
        await until(
            lambda: _true(len(processes_of(fleet, "web")) == 1), what="the agent has started it again by itself"
        )

    async def test_sigterm_leaves_work_running(self, fleet, control):
        await control.apply(process("web"))
        node = (await until_status(control, "web", "Running")).assigned_node_id
        (pid,) = processes_of(fleet, "web")
        await fleet.stop_agent(node)
        assert is_alive(pid)
        await fleet.start_agent(node)
        await until_status(control, "web", "Running")
        assert processes_of(fleet, "web") == [pid]

    async def test_a_second_agent_under_the_same_name_takes_over_and_the_first_is_told(self, fleet, control, tmp_path):
        name = fleet.names[0]
        session = (await control.get_node(name)).session
        twin_dir = tmp_path / "twin"
        twin = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", "agent", "--insecure", "--control", fleet.control_address),
            *("--node-id", name, "--data-dir", str(twin_dir), "--grpc-port", "0", "--cpu", "1", "--memory", "512MB"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await until(lambda: _other_session(control, name, session), what="the twin has registered")
            log = fleet.log_of(name)
            await until(lambda: _true("superseded" in log.read_text()), what="the loser was told")
            taken = (await control.get_node(name)).session
            await until_heard(control, name)
            assert (await control.get_node(name)).session == taken
            await until(lambda: _has_status(control, name, "Ready"), what="the node is Ready")
        finally:
            twin.kill()
            await twin.wait()
            keeper = read_keeper_pid(twin_dir)
            if keeper:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(keeper, signal.SIGKILL)


class TestMachine:
    async def test_stopped_beyond_its_lease_its_work_moves_and_the_old_copy_goes_when_it_wakes(self, fleet, control):
        await control.apply(process("web"))
        first = (await until_status(control, "web", "Running")).assigned_node_id
        (old,) = processes_of(fleet, "web")
        fleet.signal(first, signal.SIGSTOP)
        await until(lambda: _moved(control, "web", first), what="web has moved")
        await until_status(control, "web", "Running")
        assert is_alive(old)  # nobody can reach it there
        fleet.signal(first, signal.SIGCONT)
        await until(lambda: _false(is_alive(old)), what="the old copy is gone")
        await until_heard(control, first)
        assert await on(control, "web") != first
        assert len(processes_of(fleet, "web")) == 1

    async def test_a_dead_machine_is_noticed_and_its_work_moves(self, fleet, control):
        await control.apply(process("web"))
        await control.apply(process("done", command=["true"], process={"restart": {"policy": "no"}}))
        first = (await until_status(control, "web", "Running")).assigned_node_id
        await until_status(control, "done", "Completed")
        await fleet.kill_machine(first)
        await until(lambda: _moved(control, "web", first), what="web has moved")
        await until_status(control, "web", "Running")
        assert (await control.get_workload("done")).status == "Completed"
        events = await control.list_events(limit=200)
        kinds = [event.kind for event in events.events]
        assert "NodeNotReady" in kinds
        assert kinds.index("NodeSuspect") < kinds.index("NodeNotReady")

    async def test_a_deletion_while_it_is_dead_is_done_when_it_returns(self, fleet, control):
        node = fleet.names[0]
        await control.apply(process("web", **pinned(node)))
        await until_status(control, "web", "Running")
        (pid,) = processes_of(fleet, "web")
        await fleet.kill_agent(node)  # the process goes on under its keeper
        await until(lambda: _has_status(control, node, "NotReady"), what="the node is lost")
        await control.delete("web")
        await until_gone(control, "web")
        assert is_alive(pid)
        await fleet.start_agent(node)
        await until(lambda: _false(is_alive(pid)), what="the copy is removed")


class TestAtMostOne:
    @pytest.fixture
    def lease(self):
        """Long enough that on a busy machine nobody is lost but who is killed."""
        return timedelta(seconds=5)

    async def test_never_two_at_once_although_its_agent_is_dead_and_its_process_is_not(self, fleet, control, tmp_path):
        diary = tmp_path / "diary"
        code = (
            "import os, signal, time\n"
            "me = os.environ['SHOAL_RUN_ID']\n"
            "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
            f"diary = open({str(diary)!r}, 'a')\n"
            "while True:\n"
            "    diary.write(f'{time.monotonic_ns()} {me}\\n'); diary.flush(); time.sleep(0.01)\n"
        )
        await control.apply(process("solo", command=python(code), at_most_one=True))
        first = (await until_status(control, "solo", "Running")).assigned_node_id
        await until(lambda: _true(diary.exists() and _owners(diary)), what="the first copy writes")
        before = _owners(diary)[0]
        await fleet.kill_agent(first)
        await until(lambda: _moved(control, "solo", first), what="solo has moved")
        await until_status(control, "solo", "Running")

        async def both_wrote():
            # Some lines, not one: a copy that should be gone would write between them.
            return len([owner for owner in _owners(diary) if owner != before]) >= 30

        await until(both_wrote, what="the second copy writes")
        owners = _owners(diary)
        changes = [owner for index, owner in enumerate(owners) if index == 0 or owners[index - 1] != owner]
        assert len(changes) == 2, f"it ran as {changes}"


class TestControlPlane:
    @pytest.fixture
    def lease(self):
        """Long enough that on a busy machine nobody is lost."""
        return timedelta(seconds=5)

    async def test_its_death_changes_nothing_for_what_runs(self, fleet, control, lease):
        await control.apply(process("web"))
        node = (await until_status(control, "web", "Running")).assigned_node_id
        # What may exist once is stopped when the lease of its node ends: so one sees that it has.
        await control.apply(process("only", at_most_one=True, **pinned(node)))
        await until_status(control, "only", "Running")
        (pid,) = processes_of(fleet, "web")
        await fleet.kill_control()
        await until(lambda: _false(processes_of(fleet, "only")), what="the lease of its node has ended")
        assert is_alive(pid)
        await fleet.start_control()
        await until_status(control, "web", "Running")
        await until_heard(control, *fleet.names, heartbeats=heartbeats_in(lease))
        assert processes_of(fleet, "web") == [pid]
        assert (await control.get_workload("web")).generation == 1

    @pytest.mark.long
    async def test_stopped_beyond_every_lease_it_blames_nobody_when_it_wakes(self, fleet, control, lease):
        await control.apply(process("web"))
        view = await until_status(control, "web", "Running")
        (pid,) = processes_of(fleet, "web")
        fleet.signal("control", signal.SIGSTOP)
        await asyncio.sleep(lease.total_seconds() + 2.0)  # the fault itself: so long it is away
        fleet.signal("control", signal.SIGCONT)
        await until(lambda: _has_status(control, fleet.names[0], "Ready"), what="nodes are Ready")
        await until_heard(control, *fleet.names, heartbeats=heartbeats_in(lease))
        after = await control.get_workload("web")
        assert (after.assigned_node_id, after.generation) == (view.assigned_node_id, view.generation)
        assert processes_of(fleet, "web") == [pid]
        events = await control.list_events(limit=500)
        assert "NodeNotReady" not in [event.kind for event in events.events]

    async def test_acknowledged_requests_survive_kill_after_kill(self, fleet, control):
        acknowledged = []
        for index in range(3):
            outcome = await insist(lambda index=index: control.apply(process(f"w{index}", revision="v1")))
            acknowledged.append(outcome)
            await fleet.kill_control()
            await fleet.start_control()
        for index in range(3):
            await until_status(control, f"w{index}", "Running", revision="v1")
            assert len(processes_of(fleet, f"w{index}")) == 1

    async def test_an_update_and_a_delete_reach_a_healthy_agent_while_another_is_stopped(self, fleet, control):
        healthy, stopped = fleet.names
        await control.apply(process("quick", revision="v1", **pinned(healthy)))
        for index in range(10):
            await control.apply(process(f"stuck-{index}", **pinned(stopped)))
        await until_status(control, "quick", "Running")
        fleet.signal(stopped, signal.SIGSTOP)
        for index in range(10):
            await control.delete(f"stuck-{index}")
        await control.apply(process("quick", revision="v2", command=["sleep", "10"], **pinned(healthy)))
        await until_status(control, "quick", "Running", revision="v2")
        await control.delete("quick")
        await until_gone(control, "quick")
        fleet.signal(stopped, signal.SIGCONT)
        for index in range(10):
            await until_gone(control, f"stuck-{index}")


def _owners(diary):
    """Who wrote each line, in the order of time."""
    lines = [line.split() for line in diary.read_text().splitlines() if len(line.split()) == 2]
    return [owner for _at, owner in sorted(lines, key=lambda line: int(line[0]))]


async def _true(value):
    return value


async def _false(value):
    return not value


async def _moved(control, name, first):
    return await on(control, name) not in ("", first)


async def _has_status(control, node, status):
    return await node_status(control, node) == status


async def _other_session(control, name, session):
    return (await control.get_node(name)).session != session

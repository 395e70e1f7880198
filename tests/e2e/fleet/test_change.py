"""Drained, cordoned, declared dead, adopted: what operators do to nodes, on real processes."""

import signal
from datetime import timedelta

import pytest

from shoal.cli.local.fleet import CONTROL
from shoal.control.store.select import FILE_NAME
from tests.e2e.fleet.drill import insist, is_alive, process, processes_of, python, until, until_heard, until_status

pytestmark = pytest.mark.e2e


@pytest.fixture
def lease():
    """Long enough that on a busy machine nobody is lost but who is killed."""
    return timedelta(seconds=4)


async def has_status(control, node, status):
    return (await control.get_node(node)).status == status


async def other_than(fleet, node):
    (other,) = [name for name in fleet.names if name != node]
    return other


def diary_of(path):
    """A program that writes its name into a diary again and again."""
    code = (
        "import os, signal, time\n"
        "me = os.environ['SHOAL_RUN_ID']\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
        f"diary = open({str(path)!r}, 'a')\n"
        f"open({str(path)!r} + '-' + me, 'w').close()\n"
        "while True:\n"
        "    diary.write(f'{time.monotonic_ns()} {me}\\n'); diary.flush(); time.sleep(0.01)\n"
    )
    return python(code)


def entries(path):
    lines = [line.split() for line in path.read_text().splitlines() if len(line.split()) == 2]
    return sorted((int(at), owner) for at, owner in lines)


async def wrote(path, runs):
    """Wait until so many runs have written."""

    async def holds():
        return path.exists() and len({owner for _at, owner in entries(path)}) >= runs

    await until(holds, what=f"{runs} runs have written")


async def test_a_drain_replaces_first_and_never_leaves_a_gap(fleet, control, tmp_path):
    diary = tmp_path / "diary"
    probe = ["sh", "-c", f'test -e {diary}-"$SHOAL_RUN_ID"']
    readiness = {"command": {"command": probe}, "interval": "50ms"}
    await control.apply(process("web", command=diary_of(diary), process={"readiness": readiness}))
    first = (await until_status(control, "web", "Running")).assigned_node_id
    await control.drain_node(first)
    await until(lambda: has_status(control, first, "Drained"), what="the node is drained")
    view = await until_status(control, "web", "Running")
    assert view.assigned_node_id == await other_than(fleet, first)
    await wrote(diary, 2)
    found = entries(diary)
    old_ended = max(at for at, owner in found if owner == found[0][1])
    new_began = min(at for at, owner in found if owner != found[0][1])
    assert new_began < old_ended  # both ran for a moment: nothing was missed
    assert len(processes_of(fleet, "web")) == 1
    await control.apply(process("more"))
    assert (await until_status(control, "more", "Running")).assigned_node_id != first
    await control.uncordon_node(first)
    await until(lambda: has_status(control, first, "Ready"), what="the node takes work again")


async def test_a_drain_of_what_may_exist_once_never_has_two(fleet, control, tmp_path):
    diary = tmp_path / "diary"
    await control.apply(process("solo", command=diary_of(diary), at_most_one=True))
    first = (await until_status(control, "solo", "Running")).assigned_node_id
    await wrote(diary, 1)
    await control.drain_node(first, deadline=timedelta(seconds=60))
    await until(lambda: has_status(control, first, "Drained"), what="the node is drained")
    await wrote(diary, 2)
    owners = [owner for _at, owner in entries(diary)]
    changes = [owner for index, owner in enumerate(owners) if index == 0 or owners[index - 1] != owner]
    assert len(changes) == 2, f"it ran as {changes}"


async def test_a_drain_goes_on_when_the_control_plane_and_the_agent_are_killed(fleet, control):
    for index in range(4):
        await control.apply(process(f"w{index}"))
    for index in range(4):
        await until_status(control, f"w{index}", "Running")
    node = fleet.names[0]
    await control.drain_node(node)
    await fleet.kill_control()
    await fleet.start_control()
    await fleet.kill_agent(node)
    await fleet.start_agent(node)
    await until(lambda: has_status(control, node, "Drained"), what="the node is drained")
    other = await other_than(fleet, node)
    for index in range(4):
        assert (await until_status(control, f"w{index}", "Running")).assigned_node_id == other
        assert len(processes_of(fleet, f"w{index}")) == 1


async def test_without_contact_it_stops_by_itself_and_is_then_replaced(fleet, control, tmp_path):
    diary = tmp_path / "diary"
    await control.apply(
        process("web", command=diary_of(diary), failover={"policy": "stop", "after": "4s"}),
    )
    first = (await until_status(control, "web", "Running")).assigned_node_id
    await wrote(diary, 1)
    fleet.signal(first, signal.SIGSTOP)  # the agent is away; its keeper and its workload are not
    other = await other_than(fleet, first)

    async def moved():
        view = await control.get_workload("web")
        return view.assigned_node_id == other and view.status == "Running"

    await until(moved, what="it runs elsewhere")
    await wrote(diary, 2)
    owners = [owner for _at, owner in entries(diary)]
    changes = [owner for index, owner in enumerate(owners) if index == 0 or owners[index - 1] != owner]
    assert len(changes) == 2, f"it ran as {changes}"
    fleet.signal(first, signal.SIGCONT)


async def test_a_dead_node_s_work_moves_at_once(fleet, control):
    first, other = fleet.names
    await control.cordon_node(other)
    await control.apply(process("db", failover={"policy": "keep"}))
    await control.apply(process("web"))
    assert (await until_status(control, "db", "Running")).assigned_node_id == first
    await until_status(control, "web", "Running")
    await control.uncordon_node(other)
    await fleet.kill_machine(first)

    async def moved():
        view = await control.get_workload("web")
        return view.assigned_node_id == other and view.status == "Running"

    # What may move has moved. The other workload of the same node waits for the operator.
    await until(moved, what="the work that may move runs elsewhere")
    assert (await control.get_workload("db")).status == "Unknown"
    await control.mark_node_dead(first)
    view = await until_status(control, "db", "Running")
    assert view.assigned_node_id == other


async def test_what_outlived_the_database_is_adopted_and_nothing_restarts(fleet, control):
    await control.apply(process("web", revision="r1", process={"restart": {"policy": "always", "delay": "1s"}}))
    node = (await until_status(control, "web", "Running")).assigned_node_id
    (pid,) = processes_of(fleet, "web")
    await fleet.kill_control()
    lost = list(fleet.directory_of(CONTROL).rglob(f"{FILE_NAME}*"))
    assert lost
    for path in lost:
        path.unlink()
    await fleet.start_control()

    async def shown():
        return "web" in (await control.get_node(node)).orphans

    await until(shown, what="it is shown as an orphan")
    assert await control.list_workloads() == ()
    view = await insist(lambda: control.adopt(node, "web"))
    assert (view.assigned_node_id, view.revision_id) == (node, "r1")
    await until_status(control, "web", "Running", revision="r1")
    await until_heard(control, node)
    assert processes_of(fleet, "web") == [pid]
    assert is_alive(pid)

"""`shoal demo`: the whole system on this machine, in under a minute.

It starts a control plane and three agents as real processes with certificates and puts workloads on them. It shows that
a wrong certificate is refused, then kills an agent, the control plane and a whole machine. It shows the events, checks
every promise, and leaves no process behind. A stream job runs on the fleet all the time (`demo_stream`), and a
container where there is an engine (`demo_container`). Every act is a plain function over `LocalFleet` and the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.cli.local.demo_stage import Report, pid_of, process_document, title, until, wait_for
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import DeniedError, ShoalError
from shoal.core.tasks import task_scope
from shoal.model.documents import WorkloadDocument
from shoal.model.nodes import NodeState
from shoal.model.phases import ContractStatus
from shoal.model.workloads import WorkloadType

if TYPE_CHECKING:
    from shoal.cli.local.demo_container import ContainerOnShow
    from shoal.cli.local.fleet import LocalFleet
    from shoal.client import ControlPlane
    from shoal.model.events import Event
    from shoal.model.views import WorkloadView

#: An agent that was killed has to be back before its node is declared lost.
LEASE = timedelta(seconds=6)
LONGEST_LEASE = timedelta(seconds=20)
HEARTBEAT = timedelta(milliseconds=500)

_TICKER = "import time\nn = 0\nwhile True:\n    n += 1\n    print('tick', n, flush=True)\n    time.sleep(0.5)\n"
_BATCH = "print(sum(range(10**6)))"

_TABLE = (
    Column("WORKLOAD"),
    Column("STATE"),
    Column("NODE"),
    Column("PID", right=True),
    Column("GENERATION", right=True),
    Column("REVISION"),
)


def run_demo() -> int:
    """Run the demo. Returns the exit code."""
    try:
        return asyncio.run(_demo(_fitting_lease(_seconds_since_start())))
    except ShoalError as error:
        output.fail(error)
        return 1
    except KeyboardInterrupt:
        return 130


async def _demo(lease: timedelta) -> int:
    from shoal.cli.local.demo_container import container_on_show
    from shoal.cli.local.fleet import LocalFleet

    clock = SystemClock()
    began = clock.monotonic()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as folder:
        output.words(
            "Starting a control plane and three agents on this machine, with certificates made for the occasion …"
        )
        fleet = LocalFleet(
            Path(folder), agents=3, slots=4, cpu="2", memory="2048MB", lease=lease, heartbeat_interval=HEARTBEAT
        )
        async with container_on_show(Path(folder), clock) as container:
            async with fleet, fleet.client() as control, _narration(control):
                await _perform(fleet, control, container, clock, report)
                pids = [fleet.pid_of(name) for name in ("control", *fleet.names) if fleet.is_running(name)]
            await container.act_gone(report)
    report.note(not any(map(_is_alive, pids)), "nothing was left running")
    _summarize(report, clock.monotonic() - began)
    return 0 if report.good else 1


# ---------------------------------------------------------------------------------------------------------
# Acts


async def _perform(
    fleet: LocalFleet, control: ControlPlane, container: ContainerOnShow, clock: Clock, report: Report
) -> None:
    """All acts, in order."""
    from shoal.cli.local.demo_stream import VICTIM, stream_on_show

    async with stream_on_show(fleet.base_dir, clock) as stream:
        await _act_apply(control, clock, report)
        await stream.act_start(control, report)
        doomed = (await control.get_workload(VICTIM)).assigned_node_id
        await container.act_start(control, report, away_from=doomed)
        await _act_refuse(fleet, report)
        await _act_kill_agent(fleet, control, clock, report)
        await _act_kill_control(fleet, control, clock, report)
        await _act_kill_machine(fleet, control, clock, report, with_workload=VICTIM, after_death=stream.note_kill)
        await stream.act_kill(control, report)
        await container.act_check(control, report)
        await stream.act_stop(control, report)
        await _act_delete(control, clock, report)


async def _act_apply(control: ControlPlane, clock: Clock, report: Report) -> None:
    report.act("apply a web server, three tickers and a batch job")
    documents = [_web(), *(_ticker(number) for number in (1, 2, 3)), _batch()]
    began = clock.monotonic()
    for document in documents:
        await control.apply(document)
    for document in documents:
        wanted = ContractStatus.COMPLETED if document.id == "batch" else ContractStatus.RUNNING
        await wait_for(control, clock, document.id, _has_status(wanted))
    seconds = clock.monotonic() - began
    await _show(control)
    views = await control.list_workloads()
    report.note(len({view.assigned_node_id for view in views}) == 3, f"work spread over three nodes in {seconds:.1f} s")


async def _act_refuse(fleet: LocalFleet, report: Report) -> None:
    from shoal.client import ControlPlane
    from shoal.wire.sockets.channel import GrpcTransport

    name = fleet.names[0]
    report.act(f"a stolen certificate of {name} is used to apply a workload")
    transport = GrpcTransport(security=fleet.security(name))
    refused = ""
    async with ControlPlane([fleet.control_address], transport) as impostor:
        try:
            await impostor.apply(_ticker(9))
        except DeniedError as error:
            refused = error.message
    output.words(f"refused: {refused}" if refused else "it was not refused")
    report.note(bool(refused), "an agent's certificate is good for its own node and for nothing else")


async def _act_kill_agent(fleet: LocalFleet, control: ControlPlane, clock: Clock, report: Report) -> None:
    victim = (await control.get_workload("ticker-1")).assigned_node_id
    report.act(f"kill -9 the agent of {victim}; its processes belong to its keeper and go on")
    before = await _pids(control, victim)
    await fleet.kill_agent(victim)
    await clock.sleep(0.5)
    report.note(bool(before) and all(map(_is_alive, before.values())), f"work on {victim} outlived its agent")
    output.words(f"processes of {victim} still alive: {', '.join(f'{name} ({pid})' for name, pid in before.items())}")
    await fleet.start_agent(victim)
    for name, pid in before.items():
        await wait_for(control, clock, name, _runs_as(pid))
    await _show(control)
    after = await _pids(control, victim)
    report.note(after == before, "the new agent adopted it: same processes, no restart")


async def _act_kill_control(fleet: LocalFleet, control: ControlPlane, clock: Clock, report: Report) -> None:
    report.act("kill -9 the control plane; nothing that runs needs it")
    before = {name: pid for node in fleet.names for name, pid in (await _pids(control, node)).items()}
    await fleet.kill_control()
    await clock.sleep(1.0)
    alive = sum(map(_is_alive, before.values()))
    output.words(f"processes still alive without it: {alive} of {len(before)}")
    report.note(alive == len(before) > 0, f"all {len(before)} processes outlived the control plane")
    await fleet.start_control()
    for name, pid in before.items():
        await wait_for(control, clock, name, _runs_as(pid))
    for node in fleet.names:
        await until(clock, f"{node} is Ready again", functools.partial(_node_is_ready, control, node))
    await _show(control)
    after = {name: pid for node in fleet.names for name, pid in (await _pids(control, node)).items()}
    report.note(after == before, "it came back to the same fleet: same processes, no restart")


async def _act_kill_machine(
    fleet: LocalFleet,
    control: ControlPlane,
    clock: Clock,
    report: Report,
    *,
    with_workload: str,
    after_death: Callable[[], None],
) -> None:
    victim = (await control.get_workload(with_workload)).assigned_node_id
    report.act(f"{victim} dies as a machine would: agent, keeper and every process at once")
    doomed = await _pids(control, victim)
    began = clock.monotonic()
    await fleet.kill_machine(victim)
    after_death()
    for name in doomed:
        await wait_for(control, clock, name, _runs_elsewhere_than(victim))
    seconds = clock.monotonic() - began
    await _show(control)
    moved = f"{_count(len(doomed), 'workload')} of {victim} ran elsewhere {seconds:.1f} s after its death"
    report.note(True, moved)
    batch = await control.get_workload("batch")
    report.note(batch.status == ContractStatus.COMPLETED, "the finished batch job was not run again")
    await fleet.start_agent(victim)
    await until(clock, f"{victim} is back", lambda: _node_is_ready(control, victim))
    report.note(True, f"{victim} came back and is Ready")


async def _act_delete(control: ControlPlane, clock: Clock, report: Report) -> None:
    report.act("delete everything")
    began = clock.monotonic()
    views = await control.list_workloads()
    for view in views:
        await control.delete(view.workload_id)

    async def gone() -> bool:
        return not await control.list_workloads()

    await until(clock, "every workload is gone", gone)
    report.note(True, f"{len(views)} workloads deleted and confirmed in {clock.monotonic() - began:.1f} s")


# ---------------------------------------------------------------------------------------------------------
# Workloads


def _web() -> WorkloadDocument:
    script = "exec python3 -m http.server --bind 127.0.0.1 $SHOAL_PORT_HTTP"
    return process_document(
        "web",
        ["/bin/sh", "-c", script],
        ports=[{"name": "http"}],
        readiness={"http": {"port": "http", "path": "/"}, "deadline": "20s"},
    )


def _ticker(number: int) -> WorkloadDocument:
    return process_document(f"ticker-{number}", [sys.executable, "-c", _TICKER])


def _batch() -> WorkloadDocument:
    return process_document("batch", [sys.executable, "-c", _BATCH], restart={"policy": "no"})


# ---------------------------------------------------------------------------------------------------------
# Looking


@contextlib.asynccontextmanager
async def _narration(control: ControlPlane) -> AsyncIterator[None]:
    """Tell every event as it happens, for the length of a block."""
    async with task_scope("demo") as scope:
        scope.start(_tell(control), name="events")
        yield


async def _tell(control: ControlPlane) -> None:
    with contextlib.suppress(ShoalError):
        async for event in control.watch_events():
            _tell_one(event)


def _tell_one(event: Event) -> None:
    cause = f"  (because {event.cause})" if event.cause else ""
    output.words(f"  {output.local_time(event.time)}  {event.subject_id:<10} {event.kind}: {event.message}{cause}")


async def _show(control: ControlPlane) -> None:
    rows: list[list[str | Cell]] = [
        [
            view.workload_id,
            output.state(view.state),
            view.assigned_node_id,
            str(pid_of(view) or ""),
            str(view.generation),
            view.revision_id,
        ]
        for view in await control.list_workloads()
    ]
    output.table(_TABLE, rows)


def _has_status(wanted: str) -> Callable[[WorkloadView], bool]:
    return lambda view: view.status == wanted


def _runs_as(pid: int) -> Callable[[WorkloadView], bool]:
    return lambda view: view.status == ContractStatus.RUNNING and pid_of(view) == pid


def _runs_elsewhere_than(node_id: str) -> Callable[[WorkloadView], bool]:
    return lambda view: view.status == ContractStatus.RUNNING and view.assigned_node_id != node_id


async def _pids(control: ControlPlane, node_id: str) -> dict[str, int]:
    """What runs on a node as a process of it. The processes of a container may be out of sight."""
    running = [view for view in await control.list_workloads(node_id=node_id) if view.status == ContractStatus.RUNNING]
    return {view.workload_id: pid_of(view) for view in running if view.type == WorkloadType.PROCESS.value}


async def _node_is_ready(control: ControlPlane, node_id: str) -> bool:
    return (await control.get_node(node_id)).status == NodeState.READY


def _fitting_lease(seconds: float) -> timedelta:
    """The lease for a machine on which this program took so long to begin. An agent takes many times as long."""
    return max(LEASE, min(LONGEST_LEASE, timedelta(seconds=seconds) * 16))


def _seconds_since_start() -> float:
    """How long this process has been there."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _summarize(report: Report, seconds: float) -> None:
    title("Summary")
    marks = {True: "ok  ", False: "FAIL", None: "--  "}
    for kept, promise in report.lines:
        output.words(f"  {marks[kept]}  {promise}", style="red" if kept is False else "")
    output.words(f"  {seconds:.1f} s in all")

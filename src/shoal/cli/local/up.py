"""`shoal up`: runs a whole fleet on this machine until Ctrl-C.

All state is in one folder: the next `shoal up` there continues with the same workloads. Calls `LocalFleet`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import START
from shoal.cli.connection.profile import FOLDER
from shoal.cli.output import ProgressRow
from shoal.cli.output.tables import clean
from shoal.cli.servers import daemon
from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.core.tasks import task_scope

if TYPE_CHECKING:
    from shoal.cli.local.fleet import LocalFleet

USUAL_PORTS = (8085, 8084, 8086)
MOST_DEATHS = 5
HEALTHY_AFTER = 60.0
"""A process that dies so often in a row, without serving this many seconds in between, is not started again."""

_LOUD = re.compile(r"^\S+ (WARNING|ERROR|CRITICAL)\s+(?P<rest>.*)")
_AT_ONCE = 64 * 1024
_LOOK_EVERY = 0.5
_REST = 0.5
_ASK_WITHIN = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up", rich_help_panel=START)(up)


def up(
    *,
    agents: Annotated[int, typer.Option("--agents", min=1, max=64, metavar="N", help="How many agents")] = 3,
    cpu: Annotated[
        float | None, typer.Option("--cpu", metavar="CORES", help="Cores of each agent [a share of this machine]")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory of each agent, such as 512MB or 4GB")
    ] = None,
    slots: Annotated[int | None, typer.Option("--slots", min=0, metavar="N", help="Slots of each agent")] = None,
    data_dir: Annotated[str, typer.Option("--data-dir", metavar="PATH", help="Where all state is kept")] = FOLDER,
    grpc_port: Annotated[
        int,
        typer.Option("--grpc-port", min=0, max=65535, metavar="PORT", help="0 is 8085 if it is free, else any"),
    ] = 0,
    http_port: Annotated[
        int,
        typer.Option("--http-port", min=0, max=65535, metavar="PORT", help="0 is 8084 if it is free, else any"),
    ] = 0,
) -> int:
    """Run a control plane and some agents on this machine, until Ctrl-C.

    Ctrl-C stops the workloads, then the agents, then the control plane; a second one does not wait. The next `shoal up`
    in the same folder continues with the same workloads. A process that dies is started again. Only this machine can
    connect, with certificates that are made in the data directory; commands in this folder and below it find them.
    """
    from shoal.agent.node.probes import detect_capacity
    from shoal.cli.local.fleet import LocalFleet

    whole = detect_capacity(data_dir=Path(data_dir).absolute())
    fleet = LocalFleet(
        data_dir,
        agents=agents,
        # A little less than its share for each, rather than a sum above the whole.
        cpu=cpu if cpu is not None else max(1, whole.cpu_millicores // agents) / 1000,
        memory=_checked_memory(memory) or f"{max(1, whole.memory_mb // agents)}MB",
        disk_gb=whole.disk_gb // agents,
        slots=slots,
        grpc_port=grpc_port,
        http_port=http_port,
        usual_ports=USUAL_PORTS,
    )
    result: int = session.surroundings.get(session.Surroundings()).run(_run(fleet))
    return result


def _checked_memory(text: str | None) -> str | None:
    from shoal.agent.node.probes import parse_memory

    try:
        if text is not None:
            parse_memory(text)
    except ValueError as error:
        raise InvalidError([problem("--memory", text, str(error))]) from None
    return text


async def _run(fleet: LocalFleet) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    with daemon.stopping_on_signals(stop, second=hurry.set):
        try:
            return await _watch(fleet, stop) if await _unless(stop, _start(fleet)) else 0
        finally:
            if fleet.is_started:
                output.words("stopping; Ctrl-C again does not wait for workloads to end")
                await _stop(fleet, hurry)
                output.words("stopped")


async def _stop(fleet: LocalFleet, hurry: asyncio.Event) -> None:
    """Stop everything in order and say what is waited for; by force after a second Ctrl-C, or when that fails."""
    try:
        async with task_scope("stop") as scope:
            scope.start(_show_what_still_runs(fleet, await _processes(fleet)), name="progress")
            if await _unless(hurry, fleet.stop()):
                return
    except (ShoalError, OSError) as error:
        output.words(f"{error}; the rest is ended by force", style="yellow")
    await fleet.kill()


async def _processes(fleet: LocalFleet) -> dict[str, dict[str, int]]:
    """The workloads that run, with their process ids, by node; empty when the control plane does not answer."""
    found: dict[str, dict[str, int]] = {name: {} for name in fleet.names}
    with contextlib.suppress(ShoalError, TimeoutError):
        async with asyncio.timeout(_ASK_WITHIN), fleet.client() as control:
            for view in await control.list_workloads():
                if view.run is not None and view.run.pid and view.assigned_node_id in found:
                    found[view.assigned_node_id][view.workload_id] = view.run.pid
    return found


async def _show_what_still_runs(fleet: LocalFleet, processes: Mapping[str, Mapping[str, int]]) -> None:
    """Show each process that has not ended yet, and of an agent the workloads it waits for."""
    with output.progress() as display:
        while True:
            display.show([_ending_row(fleet, name, processes.get(name, {})) for name in ("control", *fleet.names)])
            await session.clock().sleep(_LOOK_EVERY)


def _ending_row(fleet: LocalFleet, name: str, processes: Mapping[str, int]) -> ProgressRow:
    if not fleet.is_running(name):
        return ProgressRow(name, "Stopped", done=True)
    left = sorted(workload for workload, pid in processes.items() if Path(f"/proc/{pid}").exists())
    if left:
        return ProgressRow(name, "Stopping", f"waits for {', '.join(left)}")
    return ProgressRow(name, "Stopping", "waits for the agents" if name == "control" else "")


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, but stop it when the event is set. Returns whether it was done."""
    errors: list[Exception] = []

    async def do() -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  handed over to the caller, below
            errors.append(error)

    async with task_scope("up") as scope:
        doing = scope.start(do(), name="work")
        await asyncio.wait({doing, scope.start(event.wait(), name="event")}, return_when=asyncio.FIRST_COMPLETED)
        done = doing.done()
    if errors:
        raise errors[0]
    return done


async def _start(fleet: LocalFleet) -> None:
    from shoal.cli.local.fleet import together

    await fleet.take_folder()
    rows = {name: ProgressRow(name, "Starting") for name in ("control", *fleet.names)}
    with output.progress() as display:

        def show(name: str, state: str, detail: str = "", *, done: bool = False) -> None:
            rows[name] = ProgressRow(name, state, detail, done)
            display.show(list(rows.values()))

        async def start_agent(name: str) -> None:
            await fleet.start_agent(name)
            show(name, "Starting", "waiting until its node is Ready")

        show("control", "Starting")
        await fleet.start_control()
        show("control", "Ready", f"at {fleet.control_address}", done=True)
        await together(start_agent(name) for name in fleet.names)
        await fleet.wait_ready()
        for name in fleet.names:
            show(name, "Ready", done=True)


async def _watch(fleet: LocalFleet, stop: asyncio.Event) -> int:
    """Show events and warnings, and start again what dies, until Ctrl-C or too many deaths."""
    _say_how(fleet)
    async with task_scope("up") as scope:
        scope.start(_show_events(fleet), name="events")
        scope.start(_show_lines(fleet), name="lines")
        lost = scope.start(_tend(fleet), name="tend")
        told = scope.start(stop.wait(), name="stop")
        await asyncio.wait({lost, told}, return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            return 0
        last = lost.result()
    output.fail_with(
        f"{last.sentence}: {MOST_DEATHS} deaths in a row, so everything is stopped",
        hint=f"its log is {fleet.log_of(last.name)}; start again with `shoal up`",
    )
    return 1


@dataclass(frozen=True, slots=True)
class _Death:
    name: str
    sentence: str


async def _tend(fleet: LocalFleet) -> _Death:
    """Start again each process that dies. Returns the last death of one that dies too often."""
    clock = session.clock()
    seen: asyncio.Queue[_Death] = asyncio.Queue()
    serving_since = dict.fromkeys(("control", *fleet.names), clock.monotonic())
    in_a_row: Counter[str] = Counter()
    async with task_scope("up") as scope:
        scope.start(_see_deaths(fleet, seen), name="deaths")
        while True:
            death = await seen.get()
            since = serving_since.pop(death.name, math.inf)
            if clock.monotonic() - since >= HEALTHY_AFTER:
                in_a_row[death.name] = 0
            in_a_row[death.name] += 1
            if in_a_row[death.name] == MOST_DEATHS:
                return death
            output.words(f"{death.sentence}; it is started again", style="yellow")
            # In a task of its own: one that starts slowly must not delay the others.
            scope.start(_start_again(fleet, death.name, seen, serving_since), name=death.name)


async def _see_deaths(fleet: LocalFleet, seen: asyncio.Queue[_Death]) -> None:
    while True:
        ended = await fleet.wait_exit()
        seen.put_nowait(_Death(ended.name, str(ended)))


async def _start_again(
    fleet: LocalFleet, name: str, seen: asyncio.Queue[_Death], serving_since: dict[str, float]
) -> None:
    await session.clock().sleep(_REST)
    try:
        await fleet.start_again(name)
    except ShoalError as error:
        seen.put_nowait(_Death(name, error.message))
    else:
        serving_since[name] = session.clock().monotonic()
        output.words(f"{name} is back")


def _say_how(fleet: LocalFleet) -> None:
    # Where commands look for the profile.
    is_usual = fleet.base_dir == Path(FOLDER).absolute()
    output.words(f"control plane at {fleet.control_address}, metrics and health at http://{fleet.http_address}")
    output.words(f"agents {', '.join(fleet.names)}; state and logs in {fleet.base_dir}")
    output.words("")
    output.words(f"in another terminal, in this folder or below{'' if is_usual else ', with these variables'}:")
    if not is_usual:
        for name, value in fleet.client_variables.items():
            output.words(f"    export {name}={shlex.quote(value)}")
    output.words("    shoal status")
    output.words("    shoal apply -f spec.yaml")
    output.words("")
    output.words("Ctrl-C stops everything; what happens is shown below")


async def _show_events(fleet: LocalFleet) -> None:
    from shoal.cli.commands.events import line_of

    with contextlib.suppress(ShoalError):
        async with fleet.client() as control:
            async for event in control.watch_events(patience=math.inf):
                output.words(output.to_width(line_of(event)))


async def _show_lines(fleet: LocalFleet) -> None:
    tails = {name: LoudLines(fleet.log_of(name)) for name in ("control", *fleet.names)}
    clock = session.clock()
    while True:
        await clock.sleep(_LOOK_EVERY)
        for name, tail in tails.items():
            for line in tail.read():
                output.words(f"{name}: {line}", style="yellow")


class LoudLines:
    """The warnings and errors that a process writes to its log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def read(self) -> list[str]:
        """The new lines since the last call. A log that grows faster than it is read is shown with gaps."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._at:  # it was truncated
                    self._at, self._rest = 0, b""
                if size - self._at > _AT_ONCE:
                    self._at, self._rest = size - _AT_ONCE, b""
                file.seek(self._at)
                new = file.read(_AT_ONCE)
        except OSError:
            return []
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        self._rest = self._rest[-_AT_ONCE:]
        found = (_LOUD.match(line.decode(errors="replace")) for line in lines)
        return [clean(f"{match[1].lower()}: {match['rest']}") for match in found if match is not None]

"""A drill for fleets of real processes: a full life of a workload, with a nurse that restarts what dies."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from shoal.core.errors import NotFoundError, ShoalError
from shoal.model.documents import read_document
from shoal.model.workloads import DesiredState

PATIENCE = 40.0


def process(name, *, revision="", command=None, resources=None, **fields):
    """A workload document for a process."""
    process_fields = fields.pop("process", {})
    return read_document(
        {
            "id": name,
            "revision": revision,
            "type": "process",
            "resources": resources or {"cpu_millicores": 50, "memory_mb": 32},
            "process": {"command": command or ["sleep", "3600"], "stop": {"grace": "2s"}, **process_fields},
            **fields,
        }
    )


async def insist(call, *, patience=PATIENCE):
    """Repeat a call while the other side is away."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return await call()
        except ShoalError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def until(holds, *, what, patience=PATIENCE):
    """Wait until a condition holds; who is asked may be away meanwhile."""
    deadline = time.monotonic() + patience
    last = None
    while time.monotonic() < deadline:
        with contextlib.suppress(ShoalError):
            last = await holds()
            if last:
                return last
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited {patience:.0f} s in vain until {what}; last seen: {last!r}")


async def until_status(control, name, status, *, revision=None, patience=PATIENCE):
    """Wait for a workload's status, and for the revision its agent reports."""
    seen = {}

    async def holds():
        view = seen["view"] = await control.get_workload(name)
        return view.status == status and (revision is None or view.observed_revision_id == revision)

    try:
        await until(holds, what=f"{name} is {status}", patience=patience)
    except AssertionError as error:
        raise AssertionError(f"{error}; view: {seen.get('view')}") from None
    return seen["view"]


async def until_gone(control, name, *, patience=PATIENCE):
    """Wait until nobody knows a workload any more."""

    async def holds():
        try:
            await control.get_workload(name)
        except NotFoundError:
            return True
        return False

    await until(holds, what=f"{name} is gone", patience=patience)


async def until_heard(control, *nodes, heartbeats=3, patience=PATIENCE):
    """Wait until so many more heartbeats of each node have come: what follows from them has happened by then."""
    seen = {node: set() for node in nodes}

    async def holds():
        for node, times in seen.items():
            times.add((await control.get_node(node)).last_heartbeat)
        return all(len(times) > heartbeats for times in seen.values())

    await until(holds, what=f"{', '.join(nodes)} sent {heartbeats} heartbeats", patience=patience)


def processes_of(fleet, workload_id):
    """The pids of every living process of a workload of this fleet, found by what it carries in its environment."""
    marks = {f"SHOAL_WORKLOAD_ID={workload_id}".encode(), f"SHOAL_CONTROL={fleet.control_address}".encode()}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and marks <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def is_alive(pid):
    """Whether a process lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def life(fleet, control, name):
    """Apply, update, stop, start, delete; each request is kept, and at each moment one process at most runs."""
    await insist(lambda: control.apply(process(name, revision="v1")))
    await until_status(control, name, "Running", revision="v1")
    assert len(processes_of(fleet, name)) == 1
    await insist(lambda: control.apply(process(name, revision="v2", command=["sleep", "7200"])))
    await until_status(control, name, "Running", revision="v2")
    pids = processes_of(fleet, name)
    assert len(pids) == 1
    assert b"7200" in Path(f"/proc/{pids[0]}/cmdline").read_bytes()
    await insist(lambda: control.set_desired_state(name, DesiredState.STOPPED))
    await until_status(control, name, "Stopped")
    assert processes_of(fleet, name) == []
    await insist(lambda: control.set_desired_state(name, DesiredState.RUNNING))
    await until_status(control, name, "Running", revision="v2")
    assert len(processes_of(fleet, name)) == 1
    await insist(lambda: _delete(control, name))
    await until_gone(control, name)
    assert processes_of(fleet, name) == []


async def _delete(control, name):
    with contextlib.suppress(NotFoundError):  # an earlier try whose answer was lost has done it
        await control.delete(name)


@contextlib.asynccontextmanager
async def nurse(fleet):
    """Restart a child, healthy, each time it dies. Yields the list of its deaths."""
    deaths = []

    async def watch():
        while True:
            ended = await fleet.wait_exit()
            deaths.append(ended)
            if fleet.is_running(ended.name):
                continue  # somebody was faster
            if ended.name == "control":
                await fleet.start_control()
            else:
                await fleet.start_agent(ended.name)

    task = asyncio.ensure_future(watch())
    try:
        yield deaths
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def python(code):
    """A command that runs some Python."""
    return [sys.executable, "-u", "-c", code]


async def until_dead(fleet, name, *, patience=PATIENCE):
    """Wait until a process of a fleet was killed, and take it out of the fleet."""

    async def is_dead():
        return not fleet.is_running(name)

    await until(is_dead, what=f"{name} is dead", patience=patience)


async def start_doomed(fleet, name, faults):
    """Start an agent that may die before it serves."""
    with contextlib.suppress(ShoalError):
        await fleet.start_agent(name, env={"SHOAL_FAULTS": faults})

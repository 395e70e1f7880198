"""A local fleet of real processes with a job on it: submits it, waits for it, finds its processes, watches them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from shoal.artifacts.collecting import collect_bundle, current_versions
from shoal.cli.local.fleet import LocalFleet
from shoal.client import ControlPlane
from shoal.core.errors import DeadlineError, ShoalError
from shoal.core.ids import JobId
from shoal.dataflow.execution.remote.submission import pack_job
from shoal.dataflow.execution.remote.submitting import CollectedJob, submit_job
from shoal.dataflow.fleet.progress import COORDINATOR, workload_of
from shoal.dataflow.plan.prepare import prepare
from shoal.dataflow.settings import FlowSettings
from shoal.jobs.states import ENDED
from shoal.model.jobs import JobState, JobView

#: Seconds that anything may take.
PATIENCE = 180.0
#: Seconds that a job runs before something is done to it.
SETTLES = 4.0
_LOOK_EVERY = 0.05
_ROOT = str(Path(__file__).resolve().parent.parent.parent)


@dataclass(slots=True)
class Stage:
    """A fleet, and a folder that every job may write to."""

    fleet: LocalFleet
    control: ControlPlane
    folder: Path
    _numbers: int = 0

    def place(self) -> Path:
        """A new folder."""
        self._numbers += 1
        made = self.folder / str(self._numbers)
        made.mkdir()
        return made

    async def submit_plan(self, name: str, sinks: Sequence[Any], *, width: int, settings: FlowSettings) -> str:
        """Submit a plan as a job. Returns its id."""
        package = await asyncio.to_thread(_pack, name, sinks, width, settings)
        return (await submit_job(self.control, CollectedJob(package))).job_id

    async def wait(self, job_id: str, *states: JobState) -> JobView:
        """Wait until a job is there. Raises `DeadlineError` with its message when it ends elsewhere."""

        def is_there(view: JobView) -> bool:
            return view.state in states or view.state in ENDED

        view = await self.control.wait_for_job(job_id, is_there, timeout=PATIENCE)
        if view.state not in states:
            raise DeadlineError(f"job {job_id} is {view.state}: {view.message}")
        return view

    async def rescale(self, job_id: str, width: int) -> None:
        """Give a job another width, and wait until it runs with it."""
        asked = (await self.control.rescale_job(job_id, width)).request.number

        def is_there(view: JobView) -> bool:
            return view.taken >= asked and view.state is JobState.RUNNING

        await self.control.wait_for_job(job_id, is_there, timeout=PATIENCE, since_request=asked)

    async def cancel(self, job_id: str) -> None:
        """End a job, and wait until its slots are free."""
        await self.control.cancel_job(job_id)
        await self.wait(job_id, JobState.CANCELED)

    async def hosts(self, job_id: str, width: int) -> dict[str, int]:
        """The processes of the task hosts, by workload."""
        return {name: pid for name, pid in (await self.processes(job_id, width)).items() if "-host-" in name}

    async def processes(self, job_id: str, width: int) -> dict[str, int]:
        """The processes of a job, by workload."""
        names = [workload_of(JobId(job_id), part) for part in (COORDINATOR, *map(str, range(width)))]
        found: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(ShoalError):
                run = (await self.control.get_workload(name)).run
                if run is not None and run.pid:
                    found[name] = run.pid
        return found

    async def node_of(self, workload_id: str) -> str:
        """The node of a workload."""
        return str((await self.control.get_workload(workload_id)).assigned_node_id)


def _pack(name: str, sinks: Sequence[Any], width: int, settings: FlowSettings) -> Any:
    bundle = collect_bundle("bench:jobs", [_ROOT], {})
    files = {path: content for path, content in bundle.files.items() if path.endswith(".py")}
    return pack_job(
        prepare(sinks),
        name=name,
        parallelism=width,
        settings=settings,
        entry=bundle.entry,
        files=files,
        versions=current_versions(),
    )


@contextlib.asynccontextmanager
async def running_fleet(*, agents: int, slots: int) -> AsyncIterator[Stage]:
    """A fleet whose agents are ready, with the settings that it has by default."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        fleet = LocalFleet(place / "fleet", agents=agents, slots=slots, cpu="16", memory="6000MB")
        try:
            await fleet.start()
            await fleet.wait_ready()
            async with fleet.client() as control:
                jobs = place / "jobs"
                jobs.mkdir()
                yield Stage(fleet, control, jobs)
        finally:
            await fleet.kill()


@dataclass(slots=True)
class Usage:
    """CPU seconds and memory of processes over time."""

    #: By process: when it was looked at, and what it had used.
    samples: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    #: The most memory that one of them had, in MB of 2^20 bytes.
    memory: float = 0.0

    def look(self, pids: Sequence[int]) -> None:
        """Look once."""
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                used = sum(process.cpu_times()[:2])
                self.memory = max(self.memory, process.memory_info().rss / (1 << 20))
                self.samples.setdefault(pid, []).append((time.monotonic(), used))

    def between(self, begin: float, end: float, starts: Mapping[int, float]) -> float:
        """CPU seconds of all processes from one moment to another; of those in `starts` from these CPU seconds on.

        A process may start, and be found, when others work already: what it used until it worked does not count.
        """
        return sum(
            max(0.0, _used(samples, end) - starts.get(pid, _used(samples, begin)))
            for pid, samples in self.samples.items()
        )


def _used(samples: Sequence[tuple[float, float]], moment: float) -> float:
    """What a process had used at a moment, between the two looks around it."""
    before = [each for each in samples if each[0] <= moment]
    after = [each for each in samples if each[0] >= moment]
    if not before or not after:
        return (before or after)[-1 if before else 0][1]
    (start, low), (end, high) = before[-1], after[0]
    return low if end == start else low + (high - low) * (moment - start) / (end - start)


@contextlib.contextmanager
def feeding(broker: str, topic: str, rate: float, seconds: float) -> Iterator[None]:
    """Feed rows at a rate while the block runs, at most for so long. `broker`: host:port, or the folder of a log."""
    arguments = [broker, topic, "0", str(rate), str(seconds)]
    feeder = subprocess.Popen([sys.executable, "-m", "bench.dataflow.feeder", *arguments])
    try:
        yield
    finally:
        feeder.terminate()
        feeder.wait()


async def until(condition: Callable[[], Any], what: str, *, within: float = PATIENCE) -> Any:
    """What a condition gives once it is true."""
    ends = time.monotonic() + within
    while not (found := await asyncio.to_thread(condition)):
        if time.monotonic() > ends:
            raise DeadlineError(f"{what} was not seen within {within:g} s")
        await asyncio.sleep(_LOOK_EVERY)
    return found

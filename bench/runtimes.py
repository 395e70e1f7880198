"""Containers and processes on one agent: how soon they run, how soon they are gone, and what they cost while idle.

One control plane and one real agent, with a private Podman that this module sets up: its storage, its service and an
image of one static busybox. The peer is `podman run -d` of the same image in the same engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from bench.areas import Area, Note
from bench.figures import Figure, at_most, percentile
from bench.load import PATIENCE, Observations, observations
from shoal.cli.local.fleet import LocalFleet
from shoal.client import ControlPlane
from shoal.core.errors import DeadlineError, UnavailableError
from shoal.model.documents import WorkloadDocument
from shoal.model.events import Event
from shoal.model.workloads import (
    ContainerSpec,
    ProcessSpec,
    StopPolicy,
    Ulimit,
    WorkloadSpec,
    WorkloadType,
)

MB = 2**20
IMAGE = "localhost/shoal-bench:1"
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
_SLEEP = ("sleep", "1000000")
#: So many idle workloads are started at the same time.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A test of the measuring itself takes less of everything."""

    #: Containers that are started one after the other, and as many by the peer.
    starts: int = 50
    #: Idle containers, and as many idle processes.
    idle: int = 200
    #: Seconds that they are left alone, and seconds that they are watched then.
    settle: float = 10.0
    watch: float = 30.0


FULL = Scale()


def _pair(name: str, meaning: str, *, bars: tuple[float, float] | None = None) -> tuple[Figure, Figure]:
    """The median and the 99th percentile of one latency."""
    p50, p99 = (at_most(bars[0]), at_most(bars[1])) if bars else (None, None)
    return (
        Figure(f"{name}_p50", "ms", f"{meaning}: the median.", bar=p50, optional=True),
        Figure(f"{name}_p99", "ms", f"As `{name}_p50`, the 99th percentile.", bar=p99, optional=True),
    )


def _idle(kind: str, who: str, *, optional: bool) -> tuple[Figure, Figure]:
    return (
        Figure(
            f"idle_{kind}_cpu",
            "% of a core",
            f"CPU of {who} together while {FULL.idle} idle {kind} run, over {FULL.watch:g} s.",
            bar=at_most(5),
            once=True,
            optional=optional,
        ),
        Figure(
            f"idle_{kind}_memory",
            "MB each",
            f"How much the resident memory of the agent grows with {FULL.idle} idle {kind}, per workload.",
            bar=at_most(1),
            once=True,
            optional=optional,
        ),
    )


FIGURES = (
    *_pair(
        "container_start",
        f"From the request for a container (`sleep`) to the event, at the client, that it runs, {FULL.starts} "
        "containers one after the other",
    ),
    *_pair("podman_run", f"The peer: `podman run -d` of the same image and command, {FULL.starts} times"),
    *_pair("container_start_over_podman", "What the start takes longer than the peer", bars=(150, 300)),
    *_pair("container_stop", "From the request to delete a running container to the event that it is gone"),
    *_idle("containers", "agent, keeper and engine service", optional=True),
    *_idle("processes", "agent and keeper", optional=False),
)


def measure(run: int, note: Note) -> dict[str, float]:
    """Every figure once; those of idle workloads in the first run."""
    return asyncio.run(measure_all(FULL, note, with_idle=run == 0))


async def measure_all(scale: Scale, note: Note, *, with_idle: bool) -> dict[str, float]:
    """Every figure on one scale."""
    found: dict[str, float] = {}
    if shutil.which("podman") is None or shutil.which("busybox") is None or os.geteuid() != 0:
        note("Containers were not measured: that takes root, podman and busybox-static.")
    else:
        with podman() as engine:
            found |= await measure_containers(scale, engine, with_idle=with_idle)
    if with_idle:
        found |= await measure_processes(scale)
    return found


# ---------------------------------------------------------------------------------------------------------
# The engine


@dataclass(frozen=True, slots=True)
class Podman:
    """A private Podman."""

    folder: Path
    service: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """Where its service listens."""
        return f"unix://{self.folder}/p.sock"

    def call(self, *words: str, given: bytes | None = None) -> None:
        """Run one command. Raises `UnavailableError` when it fails."""
        done = subprocess.run(
            [*_command(self.folder), *words], input=given, capture_output=True, timeout=PATIENCE, check=False
        )
        if done.returncode != 0:
            raise UnavailableError(f"podman {words[0]} failed: {done.stderr.decode(errors='replace').strip()[-500:]}")


def _command(folder: Path) -> list[str]:
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    places = ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp"]
    return ["podman", *places, *runtime, "--cgroup-manager", "cgroupfs"]


@contextlib.contextmanager
def podman() -> Iterator[Podman]:
    """A private Podman with the image, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir="/var/tmp"))
    command = [*_command(folder), "system", "service", "--time", "0", f"unix://{folder}/p.sock"]
    with (folder / "log").open("wb") as output:
        service = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    engine = Podman(folder, service)
    try:
        engine.call("import", "-", IMAGE, given=_image(folder))
        yield engine
    finally:
        with contextlib.suppress(UnavailableError, subprocess.TimeoutExpired):
            engine.call("rm", "--all", "--force", "--time", "0")
        service.terminate()
        service.wait()
        with contextlib.suppress(UnavailableError, subprocess.TimeoutExpired):
            engine.call("system", "reset", "--force")
        shutil.rmtree(folder, ignore_errors=True)


def _image(folder: Path) -> bytes:
    path = folder / "image.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(shutil.which("busybox") or "", arcname="bin/busybox")
        for name in ("sh", "sleep"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name in ("proc", "sys", "dev", "tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return path.read_bytes()


# ---------------------------------------------------------------------------------------------------------
# Measuring


@contextlib.asynccontextmanager
async def _fleet(env: dict[str, str], runtimes: str) -> AsyncIterator[tuple[LocalFleet, ControlPlane, Observations]]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-"))
        fleet = await stack.enter_async_context(
            LocalFleet(
                folder,
                agents=1,
                cpu=1000,
                memory="1000GB",
                stop_workloads_on_exit=False,  # they are removed at once with their engine, or killed with their keeper
                extra_env=env,
                agent_args=("--runtimes", runtimes),
            )
        )
        control = await stack.enter_async_context(fleet.client())
        seen = await stack.enter_async_context(observations(control))
        yield fleet, control, seen


async def measure_containers(scale: Scale, engine: Podman, *, with_idle: bool) -> dict[str, float]:
    """The figures of containers."""
    found: dict[str, float] = {}
    async with _fleet({"DOCKER_HOST": engine.address}, "process,container") as (fleet, control, seen):
        started, peer = [], []
        for number in range(scale.starts):
            name = f"container-{number:03d}"
            started.append(await _start(control, seen, _container(name)))
            peer.append(await asyncio.to_thread(_podman_run, engine, f"peer-{number:03d}"))
        stopped = [await _delete(control, seen, f"container-{number:03d}") for number in range(scale.starts)]
        engine.call("rm", "--all", "--force", "--time", "0")
        found |= _percentiles("container_start", started) | _percentiles("podman_run", peer)
        for share in ("p50", "p99"):
            over = found[f"container_start_{share}"] - found[f"podman_run_{share}"]
            found[f"container_start_over_podman_{share}"] = max(0.0, over)
        found |= _percentiles("container_stop", stopped)
        if with_idle:
            documents = [_container(f"idle-{number:03d}") for number in range(scale.idle)]
            found |= await _idle_cost("containers", scale, (fleet, control, seen), documents, engine)
    return found


async def measure_processes(scale: Scale) -> dict[str, float]:
    """The figures of idle processes."""
    async with _fleet({}, "process") as stage:
        documents = [_process(f"idle-{number:03d}") for number in range(scale.idle)]
        return await _idle_cost("processes", scale, stage, documents, None)


async def _idle_cost(
    kind: str,
    scale: Scale,
    stage: tuple[LocalFleet, ControlPlane, Observations],
    documents: list[WorkloadDocument],
    engine: Podman | None,
) -> dict[str, float]:
    fleet, control, seen = stage
    agent = psutil.Process(fleet.pid_of(fleet.names[0]))
    await asyncio.sleep(scale.settle)
    before = agent.memory_info().rss
    for first in range(0, len(documents), _AT_ONCE):
        await asyncio.gather(*(_start(control, seen, each) for each in documents[first : first + _AT_ONCE]))
    await asyncio.sleep(scale.settle)
    grown = agent.memory_info().rss - before
    watched = _tree(agent.pid, fleet, engine)
    begun = {process.pid: _seconds(process) for process in watched}
    await asyncio.sleep(scale.watch)
    used = sum(_seconds(process) - begun[process.pid] for process in watched)
    return {
        f"idle_{kind}_cpu": 100 * used / scale.watch,
        f"idle_{kind}_memory": max(0.0, grown / MB / len(documents)),
    }


def _tree(agent: int, fleet: LocalFleet, engine: Podman | None) -> list[psutil.Process]:
    """The agent, its keeper, and the service of the engine."""
    from shoal.runtimes.process import read_keeper_pid

    pids = [agent, read_keeper_pid(fleet.directory_of(fleet.names[0]) / "data")]
    pids.append(engine.service.pid if engine is not None else None)
    return [psutil.Process(pid) for pid in pids if pid is not None]


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _start(control: ControlPlane, seen: Observations, document: WorkloadDocument) -> float:
    begun = asyncio.get_running_loop().time()
    await control.apply(document)
    running = await seen.wait_for(functools.partial(_is, kind="WorkloadRunning", name=document.id))
    return running[0] - begun


async def _delete(control: ControlPlane, seen: Observations, name: str) -> float:
    begun = asyncio.get_running_loop().time()
    await control.delete(name)
    gone = await seen.wait_for(functools.partial(_is, kind="WorkloadDeleted", name=name))
    return gone[0] - begun


def _podman_run(engine: Podman, name: str) -> float:
    begun = time.perf_counter()
    engine.call("run", "--detach", "--name", name, *_LIMITS, IMAGE, *_SLEEP)
    return time.perf_counter() - begun


def _is(event: Event, *, kind: str, name: str) -> bool:
    return event.kind == kind and event.subject_id == name


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    if not seconds:
        raise DeadlineError(f"{name} was not measured")
    return {f"{name}_p50": 1000 * percentile(seconds, 0.5), f"{name}_p99": 1000 * percentile(seconds, 0.99)}


_STOP = StopPolicy(signal="KILL", grace=timedelta(seconds=1))


def _container(name: str) -> WorkloadDocument:
    """As the peer makes it. Without limits: a small share of the CPU would slow the engine's own part of the start."""
    limits = tuple(Ulimit(name=each, soft=1024, hard=1024) for each in ("nofile", "nproc"))
    spec = ContainerSpec(image=IMAGE, command=_SLEEP, stop=_STOP, ulimits=limits, pull_policy="never")
    return WorkloadDocument(name, WorkloadSpec(type=WorkloadType.CONTAINER, container=spec))


def _process(name: str) -> WorkloadDocument:
    spec = ProcessSpec(command=_SLEEP, stop=_STOP)
    return WorkloadDocument(name, WorkloadSpec(type=WorkloadType.PROCESS, process=spec))


AREA = Area(
    name="runtimes",
    title="Containers and processes",
    about=(
        "A real control plane and one real agent. Containers run in a private Podman with runc, from an image of one\n"
        "static busybox; the agent speaks to it through its service. `podman run` is the peer, in the same engine."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("grpcio", "httpx", "psutil"),
)

"""Takes the measurements of the area: each part on a fleet of its own. Called by `bench.jobs`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil

from bench import exchange
from bench.areas import Note
from bench.dataflow import logs
from bench.dataflow.kafka_job import SCHEMA, make_app
from bench.dataflow.latency import Watcher
from bench.dataflow.peers import FLINK
from bench.dataflow.pipes import DONE_SHARE, WARM_SHARE, watch_topic
from bench.dataflow.processes import on_one_core, run_module
from bench.figures import percentile
from bench.jobs.appended import measure_appended
from bench.jobs.flows import large_state, make_records, settings_in, windowed_sum
from bench.jobs.rows import MarkedSource, read_marks, read_start_costs
from bench.jobs.scale import Scale
from bench.jobs.stage import PATIENCE, SETTLES, Stage, Usage, feeding, running_fleet, until
from shoal.core.errors import UnavailableError
from shoal.core.ids import JobId
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.execution.remote.submitting import submit_job
from shoal.dataflow.fleet.progress import COORDINATOR, workload_of
from shoal.model.jobs import JobState
from shoal.topics.base import ensure_topic, records
from shoal.topics.codecs import codec

Values = dict[str, float]
M, K = 1e6, 1e3
MB = float(1 << 20)
_WITHIN = 600.0
_SAMPLE = 0.1


# ---------------------------------------------------------------------------------------------------------
# Speed


async def measure_speed(scale: Scale, note: Note) -> Values:
    """The windowed sum on two slots and in two processes of one program, in turn; bare Arrow; Flink."""
    fleet: list[float] = []
    processes: list[float] = []
    memory = 0.0
    async with running_fleet(agents=2, slots=1) as stage:
        for _ in range(scale.turns):
            rate, usage = await _sum_on_fleet(stage, scale.rows, width=2)
            fleet.append(rate)
            memory = max(memory, usage.memory)
            processes.append(await asyncio.to_thread(_sum_in_processes, scale.rows, stage.place()))
    with on_one_core():
        bare = run_module("memory", ["tumbling", scale.bare_rows, scale.bare_rounds], within=_WITHIN)["bare"]
    found = {
        "sum": statistics.median(fleet) / M,
        "sum_processes": statistics.median(processes) / M,
        "sum_bare": statistics.median(bare) / M,
        "slot_memory": memory,
    }
    try:
        rate = FLINK.run(["tumbling", str(scale.flink_rows), "2"], within=_WITHIN)["rate"]
    except UnavailableError as error:
        note(f"Flink is left out: {error.message}")
        return found
    return found | {"sum_flink": rate / M}


async def _sum_on_fleet(stage: Stage, rows: int, *, width: int) -> tuple[float, Usage]:
    """Rows per second from the first that is read to the last, and what the job's processes used."""
    place = stage.place()
    source = MarkedSource(rows, width, str(place))
    job = await stage.submit_plan(
        f"sum-{place.name}", windowed_sum(source, place), width=width, settings=settings_in(place)
    )
    usage = Usage()
    async with _sampled(stage, job, width, usage):
        await stage.wait(job, JobState.FINISHED)
    begin, end = read_marks(place)
    return source.given / (end - begin), usage


@contextlib.asynccontextmanager
async def _sampled(stage: Stage, job: str, width: int, usage: Usage) -> AsyncIterator[None]:
    """Look at the job's processes all the time."""

    async def look() -> None:
        pids: dict[str, int] = {}
        while True:
            if len(pids) < width + 1:
                pids = await stage.processes(job, width)
            usage.look(tuple(pids.values()))
            await asyncio.sleep(_SAMPLE)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


def _sum_in_processes(rows: int, place: Path) -> float:
    command = [sys.executable, "-m", "bench.jobs.flows", str(rows), str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_WITHIN)
    if done.returncode:
        raise UnavailableError(f"the sum in two processes ended with {done.returncode}: {done.stderr[-1500:]}")
    marks: tuple[float, float] = tuple(json.loads(done.stdout))
    begin, end = marks
    return MarkedSource(rows, 2, str(place)).given / (end - begin)


async def measure_agents(scale: Scale, note: Note) -> Values:
    """CPU time of the same job over more and more agents."""
    del note
    found: Values = {}
    for count in scale.agents:
        async with running_fleet(agents=count, slots=1) as stage:
            place = stage.place()
            source = MarkedSource(scale.agent_rows, count, str(place))
            plan = windowed_sum(source, place)
            job = await stage.submit_plan("sum", plan, width=count, settings=settings_in(place))
            usage = Usage()
            async with _sampled(stage, job, count, usage):
                await stage.wait(job, JobState.FINISHED)
            begin, end = read_marks(place)
            used = usage.between(begin, end, read_start_costs(place))
            found[f"cpu_{count}"] = used / source.given * M
    costs = [value for value in found.values() if value > 0]
    return found | {"cpu_growth": 100 * (max(costs) / min(costs) - 1)}


# ---------------------------------------------------------------------------------------------------------
# Delays


async def measure_delays(scale: Scale, note: Note) -> Values:
    """A steady load through a job, and how soon a job has output after it was submitted."""
    del note
    async with running_fleet(agents=2, slots=1) as stage:
        place = stage.place()
        job = await _submit_filter(stage, place, "steady", width=1)
        await stage.wait(job, JobState.RUNNING)
        await asyncio.sleep(SETTLES)
        with (
            _Watched(place, "steady-out") as watched,
            feeding(str(place / "log"), "steady-in", scale.rate, scale.seconds),
        ):
            usage = Usage()
            async with _sampled(stage, job, 1, usage):
                total = round(scale.rate * scale.seconds)
                await until(lambda: watched.rows >= total, f"{total} rows")
        delays = watched.delays()
        await stage.cancel(job)
        starts = [await _first_output(stage) for _ in range(scale.starts)]
    steady = [delay for _due, delay in delays[len(delays) // 4 :]]
    return {
        "steady_p50": percentile(steady, 0.5),
        "steady_p99": percentile(steady, 0.99),
        "steady_memory": usage.memory,
        "start": statistics.median(starts),
    }


async def _first_output(stage: Stage) -> float:
    """Seconds from the submit of a job of two tasks to the first row that it put out."""
    place = stage.place()
    with topics_of(str(place / "log")) as topics:
        ensure_topic(topics, "first-in", partitions=2)
        with topics.writer() as writer:
            for partition in range(2):
                writer.append("first-in", records([logs.message(each) for each in range(500)]), partition=partition)
            writer.flush()
    app = make_app(str(place / "log"), "first-in", "first-out", str(place))
    _topics(place, "first-out")
    packed = await app.dataflows["filter"].pack(2)
    began = time.monotonic()
    job = (await submit_job(stage.control, packed)).job_id
    with watch_topic(str(place / "log"), "first-out") as grown:
        await until(lambda: grown() > 0, "the first row")
    took = time.monotonic() - began
    await stage.cancel(job)
    return took


async def _submit_filter(stage: Stage, place: Path, name: str, *, width: int, exactly_once: bool = False) -> str:
    """The filter from a topic to another of a local log in this folder."""
    _topics(place, f"{name}-in", f"{name}-out", partitions=width)
    app = make_app(str(place / "log"), f"{name}-in", f"{name}-out", str(place), exactly_once=exactly_once)
    return (await submit_job(stage.control, await app.dataflows["filter"].pack(width))).job_id


def _topics(place: Path, *names: str, partitions: int = 1) -> None:
    with topics_of(str(place / "log")) as topics:
        for name in names:
            ensure_topic(topics, name, partitions=partitions)


class _Watched:
    """Reads a topic, and knows when each row was due and when it was seen, in seconds of the machine's clock."""

    def __init__(self, place: Path, topic: str, *, schema: Any = SCHEMA, due: str = "ts") -> None:
        self._watcher = Watcher(str(place / "log"), topic)
        self._schema, self._due = schema, due

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.stop_reading()

    @property
    def rows(self) -> int:
        """How many were seen. Raises what ended the reading."""
        if self._watcher.error is not None:
            raise self._watcher.error
        return self._watcher.rows

    def seen(self, *, since: int = 0) -> list[tuple[float, float]]:
        """When each row was due, and when it was seen, of batches from this one on."""
        decode = codec("json").decode
        found: list[tuple[float, float]] = []
        for moment, batch in self._watcher.seen[since:]:
            due = decode(batch, self._schema).rows.column(self._due).to_pylist()
            found += ((each / 1e6, moment) for each in due)
        return found

    @property
    def batches(self) -> int:
        """How many batches were seen."""
        return len(self._watcher.seen)

    def delays(self) -> list[tuple[float, float]]:
        """When each row was due, and after how many milliseconds it was seen."""
        return [(due, 1000 * (moment - due)) for due, moment in self.seen()]


# ---------------------------------------------------------------------------------------------------------
# Losses


async def measure_losses(scale: Scale, note: Note) -> Values:
    """Seconds without output after a task host, an agent with all that it started, and the coordinator's was killed."""
    del note
    found: Values = {}
    async with running_fleet(agents=3, slots=2) as stage:
        place = stage.place()
        job = await _submit_filter(stage, place, "lossy", width=2, exactly_once=True)
        await stage.wait(job, JobState.RUNNING)
        with _Watched(place, "lossy-out") as watched, feeding(str(place / "log"), "lossy-in", scale.trickle, _WITHIN):
            for name in ("loss_host", "loss_agent", "loss_coordinator"):
                await _has_output(watched)
                await asyncio.sleep(SETTLES)
                found[name] = await _lose(stage, job, name, watched)
                await stage.wait(job, JobState.RUNNING)
    return found


async def _lose(stage: Stage, job: str, what: str, watched: _Watched) -> float:
    """Kill it, and return the seconds until a row is there that came after that."""
    coordinator = await stage.node_of(workload_of(JobId(job), COORDINATOR))
    hosts = await stage.hosts(job, 2)
    nodes = {name: await stage.node_of(name) for name in hosts}
    began = time.monotonic()
    if what == "loss_host":
        psutil.Process(next(iter(hosts.values()))).kill()
        node = ""
    else:
        others = [each for each in nodes.values() if each != coordinator]
        node = coordinator if what == "loss_coordinator" or not others else others[0]
        await stage.fleet.kill_machine(node)
    took = await _has_output(watched, after=began) - began
    if node:
        await stage.fleet.start_agent(node)
        await stage.fleet.wait_ready()
    return took


async def _has_output(watched: _Watched, after: float | None = None) -> float:
    """Wait for a row that was due after a moment, or now. Returns when it was seen."""
    since, moment = watched.batches, time.monotonic() if after is None else after

    def look() -> float:
        return min((seen for due, seen in watched.seen(since=since) if due > moment), default=0.0)

    found: float = await until(look, "a row")
    return found


# ---------------------------------------------------------------------------------------------------------
# Rescale


async def measure_rescale(scale: Scale, note: Note) -> Values:
    """The longest time without output while a job with state gets another width, one way and back."""
    import pyarrow as pa

    gaps: list[float] = []
    async with running_fleet(agents=2, slots=2) as stage:
        place = stage.place()
        _topics(place, "live")
        plan = large_state(scale.keys, str(place / "log"), "live", place)
        job = await stage.submit_plan("large", plan, width=1, settings=settings_in(place))
        await stage.wait(job, JobState.RUNNING)
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("due", pa.int64())])
        with _Watched(place, "live", schema=schema, due="due") as watched:
            await _has_output(watched)  # every key was given
            await asyncio.sleep(SETTLES)
            state = sum(each.stat().st_size for each in (place / "checkpoints").rglob("*.state"))
            for width in (2, 1):
                since, began = watched.batches - 1, time.monotonic()
                await stage.rescale(job, width)
                await _has_output(watched)
                moments = sorted({seen for _due, seen in watched.seen(since=since)} | {began})
                gaps.append(max(later - earlier for earlier, later in itertools.pairwise(moments)))
    note(f"The state of the job that is rescaled has {state / MB:,.0f} MB in its checkpoint.")
    return {"rescale_gap": max(gaps), "rescale_state": state / MB}


# ---------------------------------------------------------------------------------------------------------
# Single records


async def measure_records(scale: Scale, note: Note) -> Values:
    """The same function of a record as an agent of the old form, and as a dataflow of columns."""
    del note
    async with running_fleet(agents=2, slots=1) as stage:
        place = stage.place()
        _topics(place, "in", "agent-out", "dataflow-out")
        with topics_of(str(place / "log")) as topics, topics.writer() as writer:
            for first in range(0, scale.messages, 10_000):
                rows = range(first, min(scale.messages, first + 10_000))
                writer.append("in", records([logs.message(each) for each in rows]))
        app = make_records(str(place / "log"), "in", ("agent-out", "dataflow-out"), str(place))
        found: Values = {}
        for name in ("agent", "dataflow"):
            job = (await submit_job(stage.control, await app.dataflows[name].pack(1))).job_id
            with watch_topic(str(place / "log"), f"{name}-out") as grown:
                found[f"records_{name}"] = await _rate(grown, scale.messages) / K
            await stage.cancel(job)
    return found


async def _rate(grown: Callable[[], int], expected: int) -> float:
    """Messages a second, from a part of them to the end: starting up does not count."""
    sightings = [(time.monotonic(), 0)]
    ends = time.monotonic() + PATIENCE
    while sightings[-1][1] < DONE_SHARE * expected:
        count = await asyncio.to_thread(grown)
        if count > sightings[-1][1]:
            sightings.append((time.monotonic(), count))
        if time.monotonic() > ends:
            raise UnavailableError(f"{count} of {expected} messages after {PATIENCE:g} s")
        await asyncio.sleep(0.01)
    steady = [each for each in sightings if each[1] >= WARM_SHARE * expected]
    (began, first), (ended, last) = (steady if len(steady) > 1 else sightings)[0], sightings[-1]
    return (last - first) / (ended - began)


async def measure_flight(scale: Scale, note: Note) -> Values:
    """How batches go between two hosts, beside bare Flight."""
    found = await asyncio.to_thread(exchange.measure, 0, note, exchange.Scale(batches=scale.batches))
    return dict(found)


#: Groups of figures that can be measured alone.
PARTS: dict[str, Callable[[Scale, Note], Coroutine[Any, Any, Values]]] = {
    "speed": measure_speed,
    "flight": measure_flight,
    "agents": measure_agents,
    "delays": measure_delays,
    "appended": measure_appended,
    "losses": measure_losses,
    "rescale": measure_rescale,
    "records": measure_records,
}


def measure_part(name: str, scale: Scale, note: Note) -> Values:
    """One of them."""
    return asyncio.run(PARTS[name](scale, note))

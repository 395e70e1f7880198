"""A dataflow job on a fleet of real processes: feeds it, submits it, hurts it, and compares what it put out.

The job sums by key and window, behind an exchange by key, and puts each sum out once. The oracle is computed from the
rows that were fed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime as dt
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from shoal.cli.local.fleet import LocalFleet
from shoal.client.control_plane import ControlPlane
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import ShoalError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution.remote.submission import Package, pack_job
from shoal.dataflow.fleet.reports import CoordinatorReport, decode_coordinator
from shoal.dataflow.fleet.spec import encode
from shoal.dataflow.plan.prepare import prepare
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.topics.base import records
from shoal.wire.methods import Jobs
from shoal.wire.pb.shoal.v1 import jobs_pb2 as pb
from tests.e2e.jobs.showing import show_logs, show_places, show_processes, show_series
from tests.unit.dataflow.execution.flows import SCHEMA

LONG = 90.0
#: How many wrong sums a failure shows.
_SHOWN = 10

#: A key, the start of its window, and its sum.
Sum = tuple[str, int, int]
#: Rows of one window of each key, and what closes all windows: a row of this key, far ahead.
WINDOW = 10
LAST = "last"


def _boom() -> Any:
    """A function that travels as a blob: the module of this one is not installed where it runs."""

    def boom(_batch: Any) -> Any:
        raise ValueError("boom")

    boom.__module__ = "__main__"
    return boom


def _deadly() -> Any:
    """A function that ends its process at one row."""

    def end(batch: Any) -> Any:
        import os
        import signal

        if -1 in batch["value"].to_pylist():
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    end.__module__ = "__main__"
    return end


def _hungry() -> Any:
    """A function that takes more memory than its process may have, at one row."""

    def take(batch: Any) -> Any:
        if -1 in batch["value"].to_pylist():
            return b"x" * 1_500_000_000
        return batch

    take.__module__ = "__main__"
    return take


def _difference(expected: list[Sum], found: list[Sum]) -> str:
    """The first sums that are missing, and the first that nobody expected."""
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    return f"{len(expected)} expected, {len(found)} found; missing: {missing[:_SHOWN]}; extra: {extra[:_SHOWN]}"


class World:
    """One job, its topics and its fleet."""

    def __init__(self, fleet: LocalFleet, client: ControlPlane, folder: Path, *, broker: str = "") -> None:
        self.fleet = fleet
        self.client = client
        self.folder = folder
        self.broker = broker or str(folder / "log")
        self.checkpoints = str(folder / "checkpoints")
        self.suffix = f"-{SystemEntropy().token(8)}"
        self.job_id = f"sums{self.suffix}"
        self.fed: list[tuple[str, int, int]] = []
        with topics_of(self.broker) as topics:
            topics.create(self.input, partitions=4)
            topics.create(self.output, partitions=2)

    @property
    def input(self) -> str:
        return f"in{self.suffix}"

    @property
    def output(self) -> str:
        return f"out{self.suffix}"

    # -- rows -----------------------------------------------------------------------------------------------------

    def feed(self, count: int) -> None:
        """More rows, of 11 keys, in the order of their times."""
        start = len(self.fed)
        more = [(f"k{each % 11}", each, each) for each in range(start, start + count)]
        self.fed += more
        self._append(more, [each % 4 for each in range(start, start + count)])

    def feed_one(self, key: str, value: int) -> None:
        """One more row."""
        self.fed.append((key, value, len(self.fed)))
        self._append(self.fed[-1:], [0])

    def close(self) -> None:
        """A row far ahead in every partition: every window of the others is over."""
        self._append([(LAST, 0, 10**9)] * 4, range(4))

    def _append(self, rows: list[tuple[str, int, int]], partitions: Any) -> None:
        values = [json.dumps({"key": key, "value": value, "time": at}).encode() for key, value, at in rows]
        with topics_of(self.broker) as topics, topics.writer() as writer:
            for number in range(4):
                mine = [value for value, each in zip(values, partitions, strict=True) if each == number]
                if mine:
                    writer.append(self.input, records(mine), partition=number)
            writer.flush()

    @contextlib.asynccontextmanager
    async def under_load(self, count: int = 40, pause: float = 0.1) -> AsyncIterator[None]:
        """Feed it all the time. What was begun is fed to its end: rows behind those of `close` would be late."""
        is_over = asyncio.Event()

        async def keep_feeding() -> None:
            while not is_over.is_set():
                await asyncio.to_thread(self.feed, count)
                await asyncio.sleep(pause)

        feeding = asyncio.create_task(keep_feeding())
        try:
            yield
        finally:
            is_over.set()
            await feeding

    def expected(self) -> list[Sum]:
        totals: dict[tuple[str, int], int] = collections.defaultdict(int)
        for key, value, at in self.fed:
            totals[key, at // WINDOW * WINDOW] += value
        return sorted((key, start, total) for (key, start), total in totals.items())

    def found(self) -> list[Sum]:
        """What a reader of committed records sees."""
        values: list[dict[str, Any]] = []
        with topics_of(self.broker) as topics:
            partitions = topics.describe(self.output).topic_partitions()
            ends = topics.next_offsets(partitions)
            with topics.reader() as reader:
                reader.assign(topics.first_offsets(partitions))
                while any(reader.positions()[each] < ends[each] for each in partitions):
                    for fetched in reader.read(timeout=1.0):
                        values += [json.loads(value) for value in fetched.batch["value"].to_pylist()]
        epoch, micro = dt.datetime(1970, 1, 1), dt.timedelta(microseconds=1)  # noqa: DTZ001 - as they are written
        return sorted(
            (row["key"], (dt.datetime.fromisoformat(row["window_start"]) - epoch) // micro, row["value"])
            for row in values
            if row["key"] != LAST
        )

    async def check(self) -> None:
        """Close all windows, and wait until everything is out: nothing lost, nothing doubled."""
        await asyncio.to_thread(self.close)
        expected = self.expected()
        found: list[Sum] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONG):
                while len(found) < len(expected):
                    found = await asyncio.to_thread(self.found)
                    await asyncio.sleep(0.2)
        if found != expected:
            raise AssertionError(f"{_difference(expected, found)}\n{await self.show()}")

    async def wait_output(self, more_than: int = 0) -> int:
        """Wait until there is output, or more than there was."""
        async with self._within(LONG, f"no more output than {more_than}"):
            while (count := len(await asyncio.to_thread(self.found))) <= more_than:
                await asyncio.sleep(0.05)
        return count

    # -- the job --------------------------------------------------------------------------------------------------

    def pack(
        self,
        parallelism: int = 2,
        uid: str = "sums",
        *,
        bounded: bool = False,
        does: str = "",
        checkpoints: str = "",
        **more: Any,
    ) -> Package:
        source = TopicSource(self.input, self.broker, schema=SCHEMA, bounded=bounded)
        # Never idle: who feeds it may be held up for seconds on a busy machine, and no row may be late for that.
        rows = Stream.from_source(source, schema=SCHEMA, event_time="time", time_unit="us", idle_after=None)
        if does:
            rows = rows.map({"boom": _boom, "die": _deadly, "eat": _hungry}[does](), schema=SCHEMA)
        sums = rows.group_by("key").window(tumbling(seconds=WINDOW / 1e6)).sum("value").uid(uid)
        sink = sums.to_sink(TopicSink(self.output, self.broker, key="key"))
        self.checkpoints = checkpoints or self.checkpoints
        settings = FlowSettings(checkpoint=CheckpointSettings(directory=self.checkpoints, interval=0.2, min_pause=0.0))
        return pack_job(prepare([sink.node]), name=self.job_id, parallelism=parallelism, settings=settings, **more)

    async def submit(self, parallelism: int = 2, **more: Any) -> None:
        await self.submit_package(await asyncio.to_thread(self.pack, parallelism, **more))

    async def submit_package(self, package: Package) -> None:
        await self.client.upload_artifact(package.plan)
        await self.client.upload_artifact(package.bundle)
        request = pb.SubmitJobRequest(job_id=self.job_id, engine="dataflow", spec=encode(package.spec))
        await self.client._call(Jobs.SUBMIT, request)

    async def ask(self, method: Any, **more: Any) -> Any:
        return await self.client._call(method, method.request(job_id=self.job_id, **more))

    async def get(self) -> Any:
        return (await self.ask(Jobs.GET)).job

    async def report(self) -> CoordinatorReport | None:
        """What the coordinator last said."""
        said = dict((await self.ask(Jobs.GET)).reports).get(f"{self.job_id}-coordinator")
        return None if said is None else decode_coordinator(said)

    async def wait_state(self, *states: str, seconds: float = LONG) -> Any:
        async with self._within(seconds, f"not {states}"):
            while True:
                with contextlib.suppress(OSError):
                    job = await self.get()
                    if job.state in states:
                        return job
                await asyncio.sleep(0.1)

    async def wait_recovered(self, epoch: int) -> CoordinatorReport:
        """Wait until the job runs under a newer epoch."""
        async with self._within(LONG, f"no epoch after {epoch}"):
            while True:
                found = await self.report()
                if found is not None and found.epoch > epoch and found.phase == "running":
                    return found
                await asyncio.sleep(0.1)

    async def epoch(self) -> int:
        found = await self.report()
        return 0 if found is None else found.epoch

    # -- its processes --------------------------------------------------------------------------------------------

    async def workload(self, part: str) -> Any:
        return await self.client.get_workload(f"{self.job_id}-{part}")

    async def kill(self, part: str, number: int = signal.SIGKILL) -> str:
        """Kill a process of the job. Returns its node."""
        view = await self.workload(part)
        os.kill(view.run.pid, number)
        return str(view.assigned_node_id)

    @contextlib.asynccontextmanager
    async def _within(self, seconds: float, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise AssertionError(f"{what}:\n{await self.show()}") from None

    async def show(self) -> str:
        """Everything that tells why the job is not as it should be."""
        try:
            job = await self.get()
            found = [f"{job}\n{await self.report()}", await show_processes(self.client, self.job_id, job.workload_ids)]
        except (ShoalError, OSError) as error:
            found = [f"the control plane does not say how the job is: {error}"]
        found.append(await asyncio.to_thread(show_places, self.checkpoints, self.job_id, self.broker, self.input))
        folder = self.fleet.base_dir
        return "\n".join([*found, show_series(folder, self.job_id), show_logs(folder, self.job_id)])

"""A job whose tasks run in child processes: killed and stopped at every point, its output is what it has to be.

The children are real processes. The oracle is computed from the rows.
"""

from __future__ import annotations

import collections
import datetime as dt
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.core import faults
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError, ShoalError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.errors import OperatorFailedError, PlanError, StepInput
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.hosts.processes import DEADLINE
from shoal.dataflow.execution.progress import step_progress
from shoal.dataflow.language.logical import OnError
from tests.integration.dataflow.own_source import OwnSource
from tests.integration.dataflow.test_topics import ROWS, fill, read
from tests.services.kafka import KafkaBroker, kafka_broker

pytestmark = pytest.mark.integration

__all__ = ["kafka_broker"]

ROOT = Path(__file__).parents[3]
#: What hosts come to while tasks run, and while they are built; the others are the coordinator's.
HOST_POINTS = [
    f"dataflow.{name}"
    for name in (
        "snapshot.before",
        "snapshot.after",
        "upload.before",
        "upload.after",
        "prepare.before",
        "prepare.after",
        "commit.before",
        "commit.after",
    )
]
BUILD_POINTS = ["taskhost.build.before", "taskhost.build.after"]
COORDINATOR = ("dataflow.start.", "dataflow.recover.", "dataflow.manifest.", "dataflow.publish.", "dataflow.record.")
FEW = {"dataflow.snapshot.after", "dataflow.commit.before"}
LONG = 120.0


def expected() -> list[tuple[str, int, int]]:
    """The sums of each key and window of ten microseconds."""
    totals: dict[tuple[str, int], int] = collections.defaultdict(int)
    for key, value, at in ROWS:
        totals[key, at // 10 * 10] += value
    return sorted((key, start, total) for (key, start), total in totals.items())


def found(rows: list[dict]) -> list[tuple[str, int, int]]:
    start = dt.datetime.fromisoformat
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - as they are written
    micro = dt.timedelta(microseconds=1)
    return sorted((row["key"], (start(row["window_start"]) - epoch) // micro, row["value"]) for row in rows)


class Job:
    """The job, as a process."""

    def __init__(
        self, folder: Path, processes: int = 2, *, broker: str = "", suffix: str = "", **environment: str
    ) -> None:
        self.folder = folder
        self.broker = broker or str(folder / "log")
        self.suffix = suffix
        if broker or not (folder / "log").exists():
            fill(self.broker, f"in{suffix}")
        command = [sys.executable, "-m", "tests.integration.dataflow.process_job"]
        self.process = subprocess.Popen(
            [*command, self.broker, str(folder), str(processes), suffix],
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"} | environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_running(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "running\n"

    def wait(self) -> int:
        """Until it has ended well; how often it recovered."""
        said, _ = self.process.communicate(timeout=LONG)
        assert self.process.returncode == 0
        return int(said.split("recovered ")[1])

    def check(self) -> None:
        """Both sinks have every row once."""
        assert found(read(self.broker, f"out{self.suffix}")) == expected()
        lines = [line for path in sorted(self.folder.glob("files/*.jsonl")) for line in path.read_text().splitlines()]
        assert found([json.loads(line) for line in lines]) == expected()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[object]:
    """Starts jobs, and ends what is left of them."""
    started: list[Job] = []

    def start(processes: int = 2, **environment: Any) -> Job:
        job = Job(tmp_path, processes, **environment)
        started.append(job)
        return job

    yield start
    for job in started:
        job.process.kill()
        job.process.communicate()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_over_processes_it_is_what_it_is_in_one(jobs, processes):
    job = jobs(processes)
    job.wait()
    job.check()


@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize(
    "point", [pytest.param(each, marks=() if each in FEW else pytest.mark.long) for each in HOST_POINTS]
)
def test_a_host_that_is_killed_takes_its_region_back(jobs, point, host):
    job = jobs(**{f"SHOAL_FAULTS_HOST_{host}_EPOCH_1": f"{point}=kill@2"})
    assert job.wait() >= 1
    job.check()


@pytest.mark.parametrize("host", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "point",
    [pytest.param(each, marks=() if each == "dataflow.commit.before" else pytest.mark.long) for each in HOST_POINTS],
)
def test_a_host_that_is_killed_on_kafka(jobs, kafka_broker: KafkaBroker, point, host):
    # One broker serves all workers, and each of them counts its folders from 0.
    where = {"broker": kafka_broker.address, "suffix": f"-{SystemEntropy().token(8)}"}
    job = jobs(**where, **{f"SHOAL_FAULTS_HOST_{host}_EPOCH_1": f"{point}=kill@1"})
    assert job.wait() >= 1
    job.check()


def test_every_point_of_a_job_is_one_of_its_hosts_or_of_its_coordinator():
    points = {name for name in faults.POINTS if name.startswith(("dataflow.", "taskhost."))}
    assert {name for name in points if not name.startswith(COORDINATOR)} == {*HOST_POINTS, *BUILD_POINTS}


@pytest.mark.long
@pytest.mark.parametrize("point", BUILD_POINTS)
def test_a_host_that_is_killed_before_anything_ran_is_replaced(jobs, point):
    job = jobs(SHOAL_FAULTS_HOST_1_EPOCH_1=f"{point}=kill")
    assert job.wait() == 0
    job.check()


@pytest.mark.parametrize("point", BUILD_POINTS)
def test_a_host_that_is_killed_while_tasks_are_built_again_is_replaced(jobs, point):
    job = jobs(SHOAL_FAULTS_HOST_0_EPOCH_1="dataflow.commit.before=kill@1", SHOAL_FAULTS_HOST_1_EPOCH_2=f"{point}=kill")
    assert job.wait() >= 2
    job.check()


def test_a_host_that_is_stopped_longer_than_the_time_out_is_replaced(jobs):
    job = jobs(SHOAL_FAULTS_HOST_1_EPOCH_1="dataflow.commit.before=stop@1")
    job.wait_running()
    assert job.wait() >= 1
    job.check()


ZOMBIE = {"SHOAL_TEST_ZOMBIE": "1", "SHOAL_TEST_SLEEP": "0.2"}


@pytest.mark.parametrize("host", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "point",
    [pytest.param(each, marks=() if each == "dataflow.commit.before" else pytest.mark.long) for each in HOST_POINTS],
)
def test_a_zombie_that_wakes_up_when_its_region_has_gone_on_changes_nothing(jobs, point, host):
    job = jobs(**{f"SHOAL_FAULTS_HOST_{host}_EPOCH_1": f"{point}=stop@1"}, **ZOMBIE)
    assert job.wait() >= 1
    job.check()


@pytest.mark.long
@pytest.mark.parametrize("point", ["dataflow.prepare.after", "dataflow.commit.before"])
def test_a_zombie_on_kafka_changes_nothing(jobs, kafka_broker: KafkaBroker, point):
    where = {"broker": kafka_broker.address, "suffix": f"-{SystemEntropy().token(8)}"}
    job = jobs(**where, SHOAL_FAULTS_HOST_0_EPOCH_1=f"{point}=stop@1", **ZOMBIE)
    assert job.wait() >= 1
    job.check()


def test_a_killed_coordinator_leaves_no_host_and_the_next_goes_on(jobs):
    where = tempfile.mkdtemp(prefix="shoal-test-")
    job = jobs(SHOAL_FAULTS="dataflow.manifest.after=kill@1", SHOAL_TEST_JOB="killed", TMPDIR=where)
    job.wait_running()
    assert processes_of("killed", "shoal.dataflow.execution.hosts.host_process")
    assert processes_of("killed", "shoal.runtimes.keeper")
    job.process.wait(LONG)
    assert job.process.returncode == -signal.SIGKILL
    wait_until(lambda: not processes_of("killed", "shoal.dataflow.execution.hosts.host_process"))
    wait_until(lambda: not processes_of("killed", "shoal.runtimes.keeper"))
    assert list(Path(where).rglob("run-*")), "a killed process cannot clear up"
    again = jobs(TMPDIR=where)
    again.wait()
    again.check()
    assert list(Path(where).iterdir()) == [], "the next one does it"
    Path(where).rmdir()


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_no_host_outlives_a_killed_coordinator_for_long(jobs, seconds):
    """Its deadline is three seconds away at most. Wherever between two extensions of it the coordinator is killed."""
    name = f"outlived-{SystemEntropy().token(8)}"
    job = jobs(SHOAL_TEST_JOB=name, SHOAL_TEST_SLEEP="5")
    job.wait_running()
    assert len(processes_of(name, "shoal.dataflow.execution.hosts.host_process")) == 2
    time.sleep(seconds)
    job.process.kill()
    killed = time.monotonic()
    wait_until(lambda: not processes_of(name, "shoal.dataflow.execution.hosts.host_process"))
    assert time.monotonic() - killed < 2 * DEADLINE
    wait_until(lambda: not processes_of(name, "shoal.runtimes.keeper"))


def processes_of(job: str, module: str) -> list[int]:
    """The processes of a job that run a module; they have its name in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode().split("\0")
            variables = (path / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if module in words and f"SHOAL_TEST_JOB={job}" in variables:
            found.append(int(path.name))
    return found


def wait_until(condition) -> None:
    ends = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.05)


def fails(batch):
    raise ValueError(f"cannot use {batch.num_rows} rows")


def test_an_error_of_a_users_function_comes_out_with_its_step_line_rows_and_offsets(tmp_path):
    stream = Stream.from_dicts([{"a": 1}, {"a": 2}]).map(fails, schema={"a": "int64"})
    with pytest.raises(OperatorFailedError, match=r"map\(fails\).*cannot use 2 rows") as raised:
        engine.run([stream.to_parquet(str(tmp_path / "out")).node], processes=1)
    error = raised.value
    assert error.at is not None
    assert Path(error.at.file).name == Path(__file__).name
    assert error.input == StepInput("a: int64", ("{'a': 1}", "{'a': 2}"), 2, True, error.input.read)
    assert error.input.read.endswith("offsets 0 to 1")


def speaks(batch):
    print(f"a batch of {batch.num_rows} rows")
    logging.getLogger("flow").warning("it is large")
    return batch


def test_what_children_print_and_log_is_shown_with_the_name_of_the_host(tmp_path, capfd):
    stream = Stream.from_dicts([{"a": 1}, {"a": 2}]).map(speaks, schema={"a": "int64"})
    engine.run([stream.to_parquet(str(tmp_path / "out")).node], processes=1)
    told = capfd.readouterr()
    assert "[host 0] a batch of 2 rows\n" in told.err
    assert "[host 0] WARNING:flow:it is large\n" in told.err
    assert told.out == ""


def test_what_cannot_leave_the_process_is_refused_before_anything_runs(tmp_path):
    lock = threading.Lock()
    stream = Stream.from_dicts([{"a": 1}]).map(lambda batch: lock and batch)
    with pytest.raises(PlanError, match="cannot be written down"):
        engine.run([stream.to_parquet(str(tmp_path / "out")).node], processes=2)
    with pytest.raises(InvalidError, match="processes"):
        engine.run([stream.to_parquet(str(tmp_path / "out")).node], processes=-1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("processes", [0, 2])
def test_what_steps_took_and_put_out_is_the_same_over_processes(tmp_path, processes):
    rows = Stream.from_dicts([{"a": each % 10} for each in range(1000)]).map(speaks, schema={"a": "int64"})
    flow = engine.start([rows.to_parquet(str(tmp_path / "out")).node], parallelism=2, processes=processes)
    flow.wait(LONG)
    steps = {each.name.partition("(")[0]: each for each in step_progress(flow.metrics())}
    assert (steps["source"].received, steps["source"].emitted) == (0, 1000)
    assert (steps["map"].received, steps["map"].emitted) == (1000, 1000)
    assert steps["sink"].received == 1000


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("policy", [OnError.SKIP, OnError.SIDE])
def test_a_users_own_source_keeps_its_policy_over_processes(tmp_path, policy, processes):
    stream = Stream.from_source(OwnSource(on_error=policy))
    sinks = [stream.to_json(str(tmp_path / "out")).node]
    if policy is OnError.SIDE:
        sinks.append(stream.side_output("errors").to_json(str(tmp_path / "errors")).node)
    engine.run(sinks, processes=processes)

    def rows(folder: str) -> list[dict[str, Any]]:
        paths = sorted((tmp_path / folder).glob("*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    assert [row["number"] for row in rows("out")] == [1, 2, 4]
    if policy is OnError.SIDE:
        assert [(row["offset"], row["error"]) for row in rows("errors")] == [(2, "is no number")]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_users_own_source_without_a_policy_fails_over_processes(tmp_path, processes):
    stream = Stream.from_source(OwnSource())
    with pytest.raises(ShoalError, match="1 rows cannot be read, such as offset 2"):
        engine.run([stream.to_json(str(tmp_path / "out")).node], processes=processes)

"""A user's package as a job: `flow.start()` and `shoal job submit` on a fleet of real processes with certificates."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sys
import urllib.error
import urllib.request
from datetime import timedelta
from textwrap import dedent

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.entropy import SystemEntropy
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.model.jobs import JobState
from shoal.topics.base import records

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LONG = 90.0
FLOWS = """
    from shoal import App, Stream
    from {package}.rates import scaled

    app = App("shop", data_dir={data!r}, checkpoint_interval=0.2, exactly_once=True)
    app.topic("orders", schema={{"n": "int64"}}, partitions=2)
    app.topic("big", partitions=2)

    @app.dataflow()
    def doubled():
        return Stream.from_kafka("orders").map(scaled(2)).to_kafka("big")
"""
RATES = """
    def scaled(by):
        return lambda row: {"n": times(row["n"], by)}

    def times(number, by):
        return number * by
"""


@pytest.fixture
async def fleet(tmp_path):
    fleet = LocalFleet(
        tmp_path / "fleet",
        agents=2,
        slots=2,
        cpu="4",
        memory="4096MB",
        lease=timedelta(seconds=10),
        heartbeat_interval=timedelta(milliseconds=300),
        agent_args=("--http-port", "0", "--runtimes", "process"),
    )
    try:
        await fleet.start()
        await fleet.wait_ready()
        yield fleet
    finally:
        await fleet.kill()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in a directory that only this process knows."""
    name = f"shop_{SystemEntropy().token(6).lower().replace('-', '_')}"
    folder = tmp_path / "source" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "rates.py").write_text(dedent(RATES))
    (folder / "flows.py").write_text(dedent(FLOWS).format(package=name, data=str(tmp_path / "data")))
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    importlib.invalidate_caches()
    return name


def feed(log: str, numbers: range) -> None:
    with topics_of(log) as topics, topics.writer() as writer:
        for partition in range(2):
            mine = [json.dumps({"n": each}).encode() for each in numbers if each % 2 == partition]
            writer.append("orders", records(mine), partition=partition)
        writer.flush()


def read_topic(log: str, topic: str) -> list[dict[str, int]]:
    with topics_of(log) as topics:
        if topic not in topics.names():
            return []
        partitions = topics.describe(topic).topic_partitions()
        ends = topics.next_offsets(partitions)
        values: list[dict[str, int]] = []
        with topics.reader() as reader:
            reader.assign(topics.first_offsets(partitions))
            while any(reader.positions()[each] < ends[each] for each in partitions):
                for fetched in reader.read(timeout=1.0):
                    values += [json.loads(value) for value in fetched.batch["value"].to_pylist()]
    return values


def found(log: str) -> list[int]:
    return sorted(each["n"] for each in read_topic(log, "big"))


async def shoal_job(tmp_path, fleet, *words: str) -> tuple[int | None, str]:
    """`shoal job …` in the folder of the package."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shoal", "job", *words),
        cwd=tmp_path / "source",
        env={**os.environ, **fleet.client_variables, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await asyncio.wait_for(process.communicate(), LONG))[0].decode()
    return process.returncode, printed


async def until_found(log: str, count: int) -> list[int]:
    async with asyncio.timeout(LONG):
        while len(values := await asyncio.to_thread(found, log)) < count:
            await asyncio.sleep(0.1)
    return values


async def test_a_package_runs_as_a_job_stops_with_a_savepoint_and_goes_on(tmp_path, fleet, package, monkeypatch):
    log = str(tmp_path / "data" / "topics")
    for name, value in fleet.client_variables.items():
        monkeypatch.setenv(name, value)
    flow = importlib.import_module(f"{package}.flows").doubled
    await flow.start(parallelism=2)
    assert flow.job_id == "shop.doubled"
    await asyncio.to_thread(feed, log, range(100))
    assert await until_found(log, 100) == [2 * each for each in range(100)]
    view = await asyncio.wait_for(flow.stop(), LONG)
    assert view.state is JobState.STOPPED
    await asyncio.to_thread(feed, log, range(100, 150))
    code, printed = await shoal_job(tmp_path, fleet, "submit", f"{package}.flows:doubled", "--parallelism", "2")
    assert code == 0, printed
    assert "shop.doubled: submitted" in printed
    assert await until_found(log, 150) == [2 * each for each in range(150)], "nothing lost, nothing doubled"
    await asyncio.wait_for(flow.upgrade(parallelism=1), LONG)
    await asyncio.to_thread(feed, log, range(150, 180))
    assert await until_found(log, 180) == [2 * each for each in range(180)], "the same at another width"
    async with fleet.client() as control:
        await control.cancel_job("shop.doubled")
        await control.wait_for_job("shop.doubled", lambda view: view.state is JobState.CANCELED, timeout=LONG)


EMITTED = "shoal_dataflow_rows_emitted_total"
SUMMED = """
    from shoal import App, Stream
    from {package}.rates import times

    app = App("shop", data_dir={data!r}, checkpoint_interval=0.2, exactly_once=True)
    app.topic("orders", schema={{"n": "int64"}}, partitions=2)
    app.topic("big", partitions=2)

    def scaled(row):
        print("seen", row["n"])
        return {{"n": times(row["n"], {by}), "odd": row["n"] % 2}}

    @app.dataflow()
    def summed():
        rows = Stream.from_kafka("orders").records().map(scaled, schema={{"n": "int64", "odd": "int64"}})
        sums = rows.group_by("odd").{what}("n", "total").uid("sums")
        return [rows.select("n").to_kafka("big"), sums.to_kafka("sums")]
"""


def newest_sums(log: str) -> dict[int, int]:
    """The last sum of each key."""
    sums: dict[int, int] = {}
    for each in read_topic(log, "sums"):
        sums[each["odd"]] = max(each["total"], sums.get(each["odd"], 0))
    return sums


async def test_another_program_goes_on_with_the_state_and_what_does_not_fit_is_refused_first(tmp_path, fleet, package):
    log, text = str(tmp_path / "data" / "topics"), tmp_path / "source" / package / "flows.py"

    def write(by: int, what: str = "sum") -> None:
        text.write_text(dedent(SUMMED).format(package=package, data=str(tmp_path / "data"), by=by, what=what))

    write(2)
    program = f"{package}.flows:summed"
    code, printed = await shoal_job(tmp_path, fleet, "submit", program, "--parallelism", "2")
    assert code == 0, printed
    await asyncio.to_thread(feed, log, range(100))
    await until_found(log, 100)
    await check_metrics(tmp_path, fleet)
    write(3, "max")
    code, printed = await shoal_job(tmp_path, fleet, "upgrade", program)
    assert code != 0
    assert "max(n) by odd" in printed, "the text of the new one"
    assert "sum(n) by odd" in printed, "the text of the old one"
    write(3)
    code, printed = await shoal_job(tmp_path, fleet, "upgrade", program)
    assert code == 0, printed
    assert "shop.summed: upgraded" in printed
    await asyncio.to_thread(feed, log, range(100, 200))
    expected = [2 * each for each in range(100)] + [3 * each for each in range(100, 200)]
    assert await until_found(log, 200) == expected, "each row once, by the program of its time"
    sums = {odd: sum(expected_of(odd)) for odd in (0, 1)}
    async with asyncio.timeout(LONG):
        while await asyncio.to_thread(newest_sums, log) != sums:
            await asyncio.sleep(0.1)
    async with fleet.client() as control:
        view = await control.get_job("shop.summed")
        assert (view.state, len(view.workloads)) == (JobState.RUNNING, 3), "it kept its width, and was not stopped"


async def check_metrics(tmp_path, fleet) -> None:
    """Every process's series are at its agent, and those of all tasks at the job's address."""
    ready = [json.loads(each.read_text()) for each in fleet.base_dir.glob("node-*/ready.json")]
    async with asyncio.timeout(LONG):
        while True:
            own = [await asyncio.to_thread(scrape, f"http://{each['http']}/metrics") for each in ready]
            rows = [line for text in own for line in text.splitlines() if line.startswith(EMITTED)]
            hosts = {host for host in ("host-0", "host-1") if f'host="{host}"' in "".join(rows)}
            if len(hosts) == 2 and any('host="coordinator"' in text for text in own):
                break
            await asyncio.sleep(0.2)
    statuses = [json.loads(await asyncio.to_thread(scrape, f"http://{each['http']}/health")) for each in ready]
    keys = ("running", "active_tasks", "available_slots", "total_slots")
    assert [[each[key] for key in keys] for each in statuses] == [[True, 1, 1, 2]] * 2, "a task host on each"
    assert {each["agent_id"] for each in statuses} == {"node-1", "node-2"}
    code, printed = await shoal_job(tmp_path, fleet, "logs", "shop.summed", "--tail", "5")
    assert code == 0, printed
    lines = [line for line in printed.splitlines() if "seen" in line]
    assert lines, printed
    assert all(line.startswith("shop.summed-host-") for line in lines), printed
    code, printed = await shoal_job(tmp_path, fleet, "get", "shop.summed")
    assert code == 0, printed
    address = re.search(r"http://\S+/jobs/shop.summed/metrics", printed)
    assert address is not None, printed
    async with asyncio.timeout(LONG):
        while f'{EMITTED}{{job="shop.summed",host="coordinator",dataflow="shop.summed",step="sums"}}' not in (
            await asyncio.to_thread(scrape, address[0])
        ):
            await asyncio.sleep(0.2)


def scrape(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        raise AssertionError(f"{url}: {refused.code}: {refused.read().decode()}") from refused


def expected_of(odd: int) -> list[int]:
    return [(2 if each < 100 else 3) * each for each in range(200) if each % 2 == odd]


SCRIPT = """
    import asyncio
    from shoal import App, Stream

    app = App("script", data_dir={data!r}, checkpoint_interval=0.2, exactly_once=True)
    app.topic("orders", schema={{"n": "int64"}}, partitions=2)
    factor = 3

    @app.dataflow()
    def scaled():
        return Stream.from_kafka("orders").map(lambda row: {{"n": row["n"] * factor}}).to_kafka("big")

    async def main():
        await scaled.start(parallelism=1)
        print(scaled.job_id)

    asyncio.run(main())
"""


async def test_a_script_submits_and_ends_and_its_job_goes_on(tmp_path, fleet):
    log, script = str(tmp_path / "data" / "topics"), tmp_path / "script.py"
    script.write_text(dedent(SCRIPT).format(data=str(tmp_path / "data")))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        cwd=tmp_path,
        env={**os.environ, **fleet.client_variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await asyncio.wait_for(process.communicate(), LONG))[0].decode()
    assert (process.returncode, printed.strip()) == (0, "script.scaled")
    script.unlink()
    await asyncio.to_thread(feed, log, range(50))
    assert await until_found(log, 50) == [3 * each for each in range(50)]


async def test_another_version_of_python_is_refused_on_arrival_naming_both(tmp_path, fleet, package, monkeypatch):
    for name, value in fleet.client_variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("shoal.artifacts.collecting.platform.python_version", lambda: "1.2.3")
    flow = importlib.import_module(f"{package}.flows").doubled
    await flow.start(parallelism=1)
    async with fleet.client() as control, asyncio.timeout(LONG):
        view = await control.wait_for_job("shop.doubled", lambda view: view.state is JobState.FAILED)
    assert "made with python 1.2.3, and this is python 3." in view.message

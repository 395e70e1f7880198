"""Dataflows that are submitted to a real control plane over gRPC, by `flow.start()` and by `shoal job submit`."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from contextlib import asynccontextmanager
from textwrap import dedent

import pytest

from shoal import App
from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.core.errors import NotFoundError, PreconditionError, UnavailableError
from shoal.dataflow.fleet import DataflowEngine
from shoal.jobs.engine import Engines
from shoal.model.jobs import JobState
from shoal.wire.sockets.channel import GrpcTransport

PROGRAM = """
    from shoal import App, Stream, col

    app = App("shop", data_dir={data!r}, checkpoint_interval=1)
    app.topic("orders", schema={{"user": "string", "amount": "int64"}})

    @app.dataflow()
    def totals():
        return Stream.from_kafka("orders").filter(col("amount") > 5).to_kafka("big")
"""


@asynccontextmanager
async def control_plane(folder):
    settings = ControlSettings(data_dir=str(folder), grpc_port=0, http_port=0, insecure=True)
    plane = ControlPlaneServer(settings, transport=GrpcTransport(), engines=Engines({"dataflow": DataflowEngine()}))
    await plane.start(http=False)
    try:
        yield plane
    finally:
        await plane.stop()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program in a directory of its own."""
    folder = tmp_path / "program"
    folder.mkdir()
    name = f"submitted_{abs(hash(tmp_path))}"
    (folder / f"{name}.py").write_text(dedent(PROGRAM).format(data=str(tmp_path / "data")))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    importlib.invalidate_caches()
    return name


async def test_start_submits_and_stop_ends_the_job(tmp_path, monkeypatch, program):
    async with control_plane(tmp_path / "control") as plane:
        monkeypatch.setenv("SHOAL_CONTROL", plane.address)
        monkeypatch.setenv("SHOAL_INSECURE", "1")
        flow = importlib.import_module(program).totals
        assert flow.job_id is None
        await flow.start(parallelism=2)
        assert flow.job_id == "shop.totals"
        assert flow.is_running
        async with Client([plane.address], GrpcTransport()) as client:
            view = await client.get_job("shop.totals")
            spec = json.loads(view.spec)
            assert (view.engine, spec["parallelism"], spec["insecure"]) == ("dataflow", 2, True)
            for digest in (spec["plan"], spec["bundle"]):
                assert await client.download_artifact(digest)
            with pytest.raises(PreconditionError, match="cannot take the request submit"):
                await importlib.reload(sys.modules[program]).totals.start()
            await asyncio.wait_for(flow.stop(), 60)
            assert flow.job_id is None
            assert (await client.get_job("shop.totals")).state in (JobState.CANCELED, JobState.STOPPED)
            await flow.start(parallelism=1)  # and again, under the same id
            assert (await client.get_job("shop.totals")).desired == "Running"


async def test_a_job_that_is_waited_for_tells_how_it_ended(tmp_path, monkeypatch, program):
    async with control_plane(tmp_path / "control") as plane:
        monkeypatch.setenv("SHOAL_CONTROL", plane.address)
        monkeypatch.setenv("SHOAL_INSECURE", "1")
        flow = importlib.import_module(program).totals
        await flow.start()
        waiting = asyncio.create_task(flow.wait())
        async with Client([plane.address], GrpcTransport()) as client:
            await client.cancel_job("shop.totals")
        assert (await asyncio.wait_for(waiting, 60)).state is JobState.CANCELED
        assert not flow.is_running


async def test_a_control_plane_that_is_away_is_an_error_and_nothing_was_started(tmp_path, monkeypatch, program):
    monkeypatch.setenv("SHOAL_CONTROL", "127.0.0.1:1")
    monkeypatch.setenv("SHOAL_INSECURE", "1")
    flow = importlib.import_module(program).totals
    with pytest.raises(UnavailableError):
        await flow.start()
    assert flow.job_id is None
    assert not flow.is_running


def test_where_a_flow_runs(tmp_path, monkeypatch):
    def control_of(**given) -> str:
        return App("x", data_dir=tmp_path, **given).control

    monkeypatch.delenv("SHOAL_CONTROL", raising=False)
    assert control_of() == ""
    assert control_of(control="c:1") == "c:1"
    monkeypatch.setenv("SHOAL_CONTROL", "env:1")
    assert control_of() == "env:1"
    assert control_of(control="c:1") == "c:1"
    monkeypatch.setenv("SHOAL_WORKLOAD_ID", "w")
    assert control_of() == "", "a workload is told where the control plane is, and runs its flows itself"
    assert control_of(control="c:1") == "c:1"


async def test_the_command_line_submits(tmp_path, monkeypatch, program):
    async with control_plane(tmp_path / "control") as plane:
        command = [
            sys.executable,
            "-m",
            "shoal",
            "job",
            "submit",
            f"{program}:totals",
            "--parallelism",
            "3",
            "--detach",
        ]
        process = await asyncio.create_subprocess_exec(
            *command,
            "--control",
            plane.address,
            "--insecure",
            cwd=tmp_path / "program",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed = (await asyncio.wait_for(process.communicate(), 60))[0].decode()
        assert process.returncode == 0, printed
        async with Client([plane.address], GrpcTransport()) as client:
            assert json.loads((await client.get_job("shop.totals")).spec)["parallelism"] == 3
            with pytest.raises(NotFoundError):
                await client.get_job("shop")

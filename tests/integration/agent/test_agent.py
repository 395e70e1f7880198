"""A whole agent in this process, with real sockets, a real disk, a real keeper and real children."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import urllib.error
import urllib.request
from datetime import timedelta

import pytest

from shoal.agent.server import Agent, AgentSettings, run_agent
from shoal.core.errors import ExhaustedError, UnavailableError
from shoal.model.resources import Resources
from shoal.model.workloads import CommandProbe, NamedPort, Readiness, RestartPolicy
from shoal.runtimes.process import read_keeper_pid
from shoal.testing.engine import FakeEngine
from shoal.wire.methods import AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport
from tests.unit.agent.making import process, workload

pytestmark = pytest.mark.integration

SERVER = """
import http.server, os
print(os.environ["SHOAL_NODE_ID"], os.environ["SHOAL_WORKLOAD_ID"])
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(os.environ["SHOAL_PORT_HTTP"]))
"""


class Running:
    """An agent and a caller."""

    def __init__(self, data_dir) -> None:
        self.data_dir = data_dir
        self.transport = GrpcTransport()
        self.agent: Agent | None = None
        self.channel = None

    async def start(self, **fields) -> None:
        settings = {
            "data_dir": str(self.data_dir),
            "standalone": True,
            "insecure": True,
            "node_id": "n1",
            "grpc_port": 0,
            "cpu": 4.0,
            "memory": "4GB",
            "slots": 4,
            "runtimes": ("process",),
            **fields,
        }
        self.agent = Agent(AgentSettings(**settings), transport=self.transport)
        await self.agent.start()
        self.channel = self.transport.connect(self.agent.address)

    async def stop(self) -> None:
        if self.agent is not None:
            await self.channel.close()
            await self.agent.stop()
            self.agent = None

    async def apply(self, workload_id="w", spec=None, *, generation=0, desired=0, **fields):
        request = pb.ApplyWorkloadRequest(
            id=workload_id,
            type=pb.WORKLOAD_TYPE_PROCESS,
            spec=workload(spec, **fields),
            generation=generation,
            desired_state=desired,
        )
        return await self.channel.call(AgentService.APPLY_WORKLOAD, request)

    async def delete(self, workload_id="w"):
        return await self.channel.call(AgentService.DELETE_WORKLOAD, pb.DeleteWorkloadRequest(id=workload_id))

    async def status(self, workload_id="w"):
        request = pb.GetWorkloadStatusRequest(id=workload_id)
        return (await self.channel.call(AgentService.GET_WORKLOAD_STATUS, request)).status

    async def wait(self, state, workload_id="w", *, seconds=30.0):
        async with asyncio.timeout(seconds):
            while (status := await self.status(workload_id)).actual_state != state:
                await asyncio.sleep(0.02)
        return status

    async def wait_gone(self, workload_id="w"):
        async with asyncio.timeout(30):
            while workload_id in self.agent.executor.roster.actors:
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(tmp_path, **fields):
    made = Running(tmp_path / "data")
    await made.start(**fields)
    try:
        yield made
    finally:
        if made.agent is None:
            await made.start()
        await made.agent.executor.stop_all(30)
        await made.stop()
        assert read_keeper_pid(made.data_dir) is None


async def has_ended(pid):
    async with asyncio.timeout(30):
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                await asyncio.sleep(0.02)


async def test_a_process_runs_is_replaced_and_is_removed(tmp_path):
    async with running(tmp_path) as it:
        await it.apply(spec=process("sh", "-c", "echo hello; exec sleep 600"))
        status = await it.wait(pb.ACTUAL_STATE_RUNNING)
        first = status.run.pid
        os.kill(first, 0)
        await it.apply(spec=process("sleep", "601"))
        async with asyncio.timeout(30):
            while (status := await it.wait(pb.ACTUAL_STATE_RUNNING)).run.pid == first:
                await asyncio.sleep(0.02)
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        await it.delete()
        await it.wait_gone()
        with pytest.raises(ProcessLookupError):
            os.kill(status.run.pid, 0)


async def test_a_restart_of_the_agent_leaves_processes_running_and_adopts_them(tmp_path):
    async with running(tmp_path) as it:
        await it.apply("stays", process("sleep", "600"))
        sign = tmp_path / "end now"
        script = f"until [ -e '{sign}' ]; do sleep 0.05; done; exit 7"
        await it.apply("ends", process("sh", "-c", script, restart=RestartPolicy(policy="no")))
        pid = (await it.wait(pb.ACTUAL_STATE_RUNNING, "stays")).run.pid
        ending = (await it.wait(pb.ACTUAL_STATE_RUNNING, "ends")).run.pid
        await it.stop()
        os.kill(pid, 0)
        sign.touch()
        await has_ended(ending)
        await it.start()
        assert (await it.wait(pb.ACTUAL_STATE_RUNNING, "stays")).run.pid == pid
        status = await it.wait(pb.ACTUAL_STATE_FAILED, "ends")
        assert (status.run.exit.code, status.failure_reason) == (7, "RUNTIME_ERROR")


async def test_stopping_with_the_agent_leaves_nothing_behind(tmp_path):
    async with running(tmp_path, stop_workloads_on_exit=True) as it:
        await it.apply(spec=process("sleep", "600"))
        pid = (await it.wait(pb.ACTUAL_STATE_RUNNING)).run.pid
        await it.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert read_keeper_pid(it.data_dir) is None


async def test_named_ports_readiness_logs_and_identity(tmp_path):
    async with running(tmp_path) as it:
        spec = process(
            "python3",
            "-u",
            "-c",
            SERVER,
            ports=(NamedPort("http"),),
            readiness=Readiness(tcp_port="http", interval=timedelta(milliseconds=50)),
        )
        await it.apply("web", spec)
        status = await it.wait(pb.ACTUAL_STATE_RUNNING, "web")
        port = status.run.ports["http"]
        with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/") as answer:
            assert answer.status == 200
        request = pb.ReadLogsRequest(workload_id="web")
        chunks = [chunk.data async for chunk in it.channel.stream(AgentService.READ_LOGS, request)]
        assert b"n1 web" in b"".join(chunks)


async def test_a_command_probe_runs_in_the_surroundings_of_the_workload(tmp_path):
    async with running(tmp_path) as it:
        probe = Readiness(command=CommandProbe(("test", "-e", "ready")), interval=timedelta(milliseconds=50))
        await it.apply(spec=process("sh", "-c", "sleep 0.3; touch ready; exec sleep 600", readiness=probe))
        await it.wait(pb.ACTUAL_STATE_PENDING)
        await it.wait(pb.ACTUAL_STATE_RUNNING)


async def test_a_program_that_does_not_exist_fails_with_the_reason(tmp_path):
    async with running(tmp_path) as it:
        await it.apply(spec=process("/no/such/program"))
        status = await it.wait(pb.ACTUAL_STATE_FAILED)
        assert "/no/such/program" in status.message


async def test_refusals_keep_their_type_over_the_wire(tmp_path):
    async with running(tmp_path) as it:
        with pytest.raises(ExhaustedError, match="memory need 99999 MB") as caught:
            await it.apply(request=Resources(memory_mb=99_999))
        assert caught.value.facts["failure"] == "INSUFFICIENT_RESOURCES"


async def test_the_longest_id_works(tmp_path):
    async with running(tmp_path) as it:
        name = "x" * 128
        await it.apply(name, process("sleep", "600"))
        await it.wait(pb.ACTUAL_STATE_RUNNING, name)


async def test_health_and_metrics_over_http(tmp_path):
    async with running(tmp_path, http_port=0) as it:
        await it.apply(spec=process("sleep", "600"))
        await it.wait(pb.ACTUAL_STATE_RUNNING)

        def get(path):
            with urllib.request.urlopen(f"http://{it.agent.http_address}{path}") as answer:
                return answer.read().decode()

        health = json.loads(await asyncio.to_thread(get, "/health"))
        assert (health["status"], health["node_id"], health["runtimes"]) == ("ok", "n1", {"process": "healthy"})
        metrics = await asyncio.to_thread(get, "/metrics")
        assert 'shoal_agent_workloads{state="Running",type="process"} 1.0' in metrics
        assert 'shoal_agent_commands_total{action="apply",result="accepted"} 1.0' in metrics
        assert await asyncio.to_thread(get, "/readyz")


async def test_an_engine_that_appears_later_is_offered(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("shoal.runtimes.container.engine.finding._USUAL_SOCKETS", (str(tmp_path / "docker.sock"),))
    monkeypatch.setattr("shoal.agent.workloads.executor.LOOK_EVERY", 0.1)
    monkeypatch.setattr("shoal.agent.node.health.LOOK_EVERY", 0.1)
    monkeypatch.setattr("shoal.runtimes.finding.has_programs", lambda: False)
    async with running(tmp_path, runtimes=()) as it:
        status, health = it.agent.health()
        assert (status, health["runtimes"]) == (200, {"process": "healthy"})
        assert health["absent"]["container"] == "there is no container engine on this machine"
        async with FakeEngine(tmp_path / "docker.sock"):
            async with asyncio.timeout(30):
                while it.agent.health()[1]["runtimes"].get("container") != "healthy":
                    await asyncio.sleep(0.02)
            assert "container" not in it.agent.health()[1]["absent"]


async def test_an_agent_that_cannot_start_lets_go_of_everything(tmp_path):
    async with running(tmp_path) as it:
        port = int(it.agent.address.rpartition(":")[2])
        other = Running(tmp_path / "other")
        with pytest.raises(UnavailableError, match="cannot listen"):
            await other.start(grpc_port=port)
        assert read_keeper_pid(other.data_dir) is None
        await other.start()
        await other.stop()


async def test_it_runs_until_it_is_told_to_stop(tmp_path):
    stop = asyncio.Event()
    seen = []

    def ready(agent: Agent) -> None:
        seen.append(agent.address)
        stop.set()

    settings = AgentSettings(
        data_dir=str(tmp_path / "data"), standalone=True, insecure=True, grpc_port=0, runtimes=("process",)
    )
    async with asyncio.timeout(60):
        await run_agent(settings, transport=GrpcTransport(), stop=stop, on_ready=ready)
    assert len(seen) == 1
    assert read_keeper_pid(tmp_path / "data") is None

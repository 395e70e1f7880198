"""What a dashboard made for the published programs reads from processes of ours."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.client import ControlPlane
from shoal.core.errors import NotFoundError
from shoal.model.documents import read_document
from shoal.runtimes.process import find_run_pids, read_keeper_pid
from shoal.wire.sockets.channel import GrpcTransport
from tests.peers.foreign import ForeignClient, container, until

pytestmark = pytest.mark.e2e

#: Programs have to start, and this machine may have much else to do.
LONG = 90.0

#: Each published series of an agent that has a counterpart here: its type and its labels. There is none for those about
#: reconciling, which the published agent declares and never records, nor for the collection of garbage.
OF_AGENTS = {
    "persys_agent_workload_count": ("gauge", {"state", "type"}),
    "persys_agent_workload_created": ("counter", {"type"}),
    "persys_agent_workload_deleted": ("counter", {"type"}),
    "persys_agent_workload_failed": ("counter", {"type"}),
    "persys_agent_workload_apply_duration_seconds": ("histogram", set()),
    "persys_agent_workload_delete_duration_seconds": ("histogram", set()),
    "persys_agent_runtime_health_status": ("gauge", {"runtime"}),
    "persys_agent_system_memory_utilization_percent": ("gauge", set()),
    "persys_agent_system_cpu_utilization_percent": ("gauge", set()),
    "persys_agent_system_disk_utilization_percent": ("gauge", set()),
    "persys_agent_errors": ("counter", {"error_code"}),
    "persys_agent_task_queue_depth": ("gauge", set()),
    "persys_agent_task_latency_seconds": ("histogram", {"type"}),
    "persys_agent_task_executions": ("counter", {"type"}),
    "persys_agent_task_failures": ("counter", {"type"}),
}

#: The same of a control plane. There are no cycles here that could be counted.
OF_SCHEDULERS = {
    "persys_scheduler_grpc_server_requests": ("counter", {"method", "code"}),
    "persys_scheduler_grpc_server_request_duration_seconds": ("histogram", {"method"}),
    "persys_scheduler_agent_rpc_requests": ("counter", {"rpc", "code"}),
    "persys_scheduler_agent_rpc_duration_seconds": ("histogram", {"rpc"}),
    "persys_scheduler_reconciliation_results": ("counter", {"action", "success"}),
    "persys_scheduler_nodes_status": ("gauge", {"status"}),
    "persys_scheduler_workloads_status": ("gauge", {"status"}),
    "persys_scheduler_workloads_desired_state": ("gauge", {"desired_state"}),
    "persys_scheduler_state_store_writes": ("counter", {"category"}),
}


@asynccontextmanager
async def started(folder, *words):
    """A server of ours as a process, and where it serves."""
    folder.mkdir()
    ready, log = folder / "ready.json", folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", *words, "--insecure", "--data-dir", str(folder / "data")),
            *("--grpc-port", "0", "--http-port", "0", "--ready-file", str(ready)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=output,
        )
    try:
        await until(lambda: process.returncode is not None or ready.exists(), words[0], seconds=LONG)
        assert process.returncode is None, log.read_text()
        yield json.loads(ready.read_text())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        keeper = read_keeper_pid(folder / "data")
        for pid in [*([keeper] if keeper is not None else []), *find_run_pids(folder / "data")]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def get(addresses, path):
    def read():
        with urllib.request.urlopen(f"http://{addresses['http']}{path}", timeout=LONG) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(read)


async def series(addresses):
    """Everything that is served: families by name, and samples by name and labels."""
    families = {each.name: each for each in text_string_to_metric_families(await get(addresses, "/metrics"))}
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    return families, samples


def published(families, prefix):
    """The type and the labels of each family of theirs that has samples."""
    found = {}
    for name, family in families.items():
        if name.startswith(prefix) and family.samples:
            labels = set().union(*(sample.labels for sample in family.samples))
            found[name] = (family.type, labels - ({"le"} if family.type == "histogram" else set()))
    return found


def process(name, *command, **fields):
    """A workload of ours."""
    resources = {"cpu_millicores": 50, "memory_mb": 32}
    spec = {"command": list(command), "stop": {"grace": "2s"}, **fields}
    return read_document({"id": name, "type": "process", "resources": resources, "process": spec})


async def test_series_are_served_under_the_names_a_dashboard_asks_for(tmp_path):
    async with started(tmp_path / "control", "control") as addresses:
        client = ForeignClient(addresses["grpc"])
        await client.apply("web", container())
        with pytest.raises(grpc.aio.AioRpcError):
            await client.view("nobody")
        await client.close()
        text = await get(addresses, "/metrics")
        service = "/persys.control.v1.AgentControl"
        for line in (
            f'persys_scheduler_grpc_server_requests_total{{code="OK",method="{service}/ApplyWorkload"}} 1.0',
            f'persys_scheduler_grpc_server_requests_total{{code="NotFound",method="{service}/GetWorkload"}} 1.0',
            f'persys_scheduler_grpc_server_request_duration_seconds_count{{method="{service}/ApplyWorkload"}} 1.0',
            'persys_scheduler_workloads_status{status="Pending"} 1.0',
            'persys_scheduler_workloads_desired_state{desired_state="Running"} 1.0',
            'persys_scheduler_nodes_status{status="Ready"} 0.0',
        ):
            assert line in text
        health = json.loads(await get(addresses, "/health"))
        assert (health["status"], health["mode"]) == ("ok", "normal")
        assert {"reason", "modeChangedAt"} <= set(health)


async def test_an_agent_and_its_control_plane_at_work_serve_every_series_that_they_have(tmp_path):
    """Something runs, something fails and something is deleted: then each series has something to tell."""
    async with (
        started(tmp_path / "control", "control") as plane,
        started(tmp_path / "agent", "agent", "--control", plane["grpc"], "--node-id", "n1") as node,
        ControlPlane([plane["grpc"]], GrpcTransport()) as client,
    ):
        await client.apply(process("stays", "sleep", "3600"))
        await client.apply(process("goes", "sleep", "3600"))
        await client.apply(process("breaks", "sh", "-c", "exit 3", restart={"policy": "no"}))
        # No such program: the command itself fails.
        await client.apply(process("never", "/nowhere/at-all", restart={"policy": "no"}))

        async def shows(name, status):
            return (await client.get_workload(name)).status == status

        for name, status in (("stays", "Running"), ("goes", "Running"), ("breaks", "Failed"), ("never", "Failed")):
            await until(lambda name=name, status=status: shows(name, status), f"{name} {status}", seconds=LONG)
        await client.delete("goes")

        async def gone():
            try:
                await client.get_workload("goes")
            except NotFoundError:
                return True
            return False

        await until(gone, "the deletion", seconds=LONG)

        async def counted():
            return ("persys_agent_task_executions_total", ("type", "delete_workload")) in (await series(node))[1]

        await until(counted, "the agent to count it", seconds=LONG)
        families, samples = await series(node)
        assert published(families, "persys_") == OF_AGENTS
        kind = ("type", "process")
        for sample, wanted in {
            ("persys_agent_workload_count", ("state", "running"), kind): 1,
            ("persys_agent_workload_count", ("state", "failed"), kind): 2,
            ("persys_agent_workload_created_total", kind): 4,
            ("persys_agent_workload_deleted_total", kind): 1,
            ("persys_agent_workload_failed_total", kind): 2,
            ("persys_agent_runtime_health_status", ("runtime", "process")): 1,
            ("persys_agent_workload_delete_duration_seconds_count",): 1,
            ("persys_agent_task_executions_total", ("type", "delete_workload")): 1,
            ("persys_agent_task_latency_seconds_count", ("type", "delete_workload")): 1,
            ("persys_agent_task_queue_depth",): 0,
        }.items():
            assert samples.get(sample) == wanted, sample
        for name in ("memory", "cpu", "disk"):
            assert 0 <= samples[f"persys_agent_system_{name}_utilization_percent",] <= 100

        families, samples = await series(plane)
        assert published(families, "persys_") == OF_SCHEDULERS
        for sample, wanted in {
            ("persys_scheduler_nodes_status", ("status", "Ready")): 1,
            ("persys_scheduler_workloads_status", ("status", "Running")): 1,
            ("persys_scheduler_workloads_status", ("status", "Failed")): 2,
        }.items():
            assert samples.get(sample) == wanted, sample
        assert samples["persys_scheduler_agent_rpc_requests_total", ("code", "OK"), ("rpc", "ApplyWorkload")] >= 4
        for name in ("stays", "breaks", "never"):
            await client.delete(name)

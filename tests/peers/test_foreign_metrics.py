"""What a dashboard made for the published programs reads from a control plane process of ours."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from contextlib import suppress

import grpc
import pytest

from tests.peers.foreign import ForeignClient, container, until

pytestmark = pytest.mark.e2e


async def test_series_are_served_under_the_names_a_dashboard_asks_for(tmp_path):
    ready = tmp_path / "ready.json"
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", "control", "--insecure", "--data-dir", str(tmp_path / "data")),
            *("--grpc-port", "0", "--http-port", "0", "--ready-file", str(ready)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=log,
        )
    try:
        await until(lambda: process.returncode is not None or ready.exists(), "the control plane")
        addresses = json.loads(ready.read_text())
        client = ForeignClient(addresses["grpc"])
        await client.apply("web", container())
        with pytest.raises(grpc.aio.AioRpcError):
            await client.view("nobody")
        await client.close()

        def get(path):
            with urllib.request.urlopen(f"http://{addresses['http']}{path}") as answer:
                return answer.read().decode()

        text = await asyncio.to_thread(get, "/metrics")
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
        health = json.loads(await asyncio.to_thread(get, "/health"))
        assert (health["status"], health["mode"]) == ("ok", "normal")
        assert {"reason", "modeChangedAt"} <= set(health)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

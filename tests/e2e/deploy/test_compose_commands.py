"""The commands of the compose file, run here: the same flags, with the names of containers led to this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.local.children import Child, free_port
from shoal.core.clock import SystemClock
from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups
from tests.e2e.deploy.reading import DEPLOY, load_yaml

pytestmark = pytest.mark.e2e

PROGRAM = f"{sys.executable} -m shoal"


class Containers:
    """The services of the file as processes; each has the folder that its container would have."""

    def __init__(self, folder: Path, database: str) -> None:
        (project,) = load_yaml(DEPLOY / "compose.yaml")
        self.services: dict[str, Any] = project["services"]
        self.folder = folder
        self.grpc, self.http = free_port(), free_port()
        self._replaced = {
            "postgresql://shoal:shoal@postgres:5432/shoal": database,
            "=control:8085": f"=127.0.0.1:{self.grpc}",
            "/etc/shoal": str(folder / "certs"),
            "=0.0.0.0": "=127.0.0.1",
        }
        self.children: dict[str, Child] = {}

    def here(self, text: str, name: str = "") -> str:
        for given, found in self._replaced.items():
            text = text.replace(given, found)
        return text.replace("/var/lib/shoal", str(self.folder / name / "data"))

    def run_to_its_end(self, name: str) -> None:
        service = self.services[name]
        (script,) = service["command"]
        line = [*service["entrypoint"], self.here(script).replace("shoal certs", f"{PROGRAM} certs")]
        answer = subprocess.run(line, capture_output=True, text=True, check=False, env=environment())
        assert answer.returncode == 0, answer.stderr

    async def start(self, name: str) -> None:
        arguments = [self.here(each, name) for each in self.services[name]["command"]]
        if name == "control":
            arguments += [f"--grpc-port={self.grpc}", f"--http-port={self.http}"]
            arguments += ["--heartbeat-interval=500ms", "--lease=5s"]
        else:
            port = free_port()
            arguments = [each.replace(f"={name}:50051", f"=127.0.0.1:{port}") for each in arguments]
            arguments += [f"--grpc-port={port}", "--cpu=2", "--memory=1GB"]
        self.children[name] = await Child.start(name, arguments, self.folder / name, environment())
        await self.children[name].wait_serving(SystemClock())

    def shoal(self, *arguments: str) -> Any:
        """What the container with the command line would print."""
        settings = {key: self.here(f"={value}")[1:] for key, value in self.services["shoal"]["environment"].items()}
        answer = subprocess.run(
            [sys.executable, "-m", "shoal", *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
            env={**environment(), **settings},
        )
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    async def end(self) -> None:
        for child in self.children.values():
            await child.end(signal.SIGKILL, within=30.0)
        for directory in self.folder.glob("*/data"):
            while pids := [pid for pid in (read_keeper_pid(directory), *find_run_pids(directory)) if pid]:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.05)
            remove_stray_groups(directory)


def environment() -> dict[str, str]:
    own = ("SHOAL_", "PERSYS_", "GRPC_PORT", "METRICS_PORT", "OTEL_")
    return {key: value for key, value in os.environ.items() if not key.startswith(own)}


async def test_the_fleet_of_the_compose_file_comes_up_and_works(tmp_path: Path, postgres_url: str) -> None:
    containers = Containers(tmp_path, postgres_url)
    spec = tmp_path / "spec.yaml"
    spec.write_text("{id: hello, type: process, process: {command: [sleep, '3600']}}\n")
    try:
        containers.run_to_its_end("certificates")
        containers.run_to_its_end("certificates")  # `up` runs it each time
        for name in ("control", "agent-1", "agent-2"):
            await containers.start(name)
        ready: set[str] = set()
        while ready != {"agent-1", "agent-2"}:
            nodes = containers.shoal("node", "list")["nodes"]
            ready = {node["node_id"] for node in nodes if node["status"] == "Ready"}
        containers.shoal("apply", "-f", str(spec))
        (workload,) = containers.shoal("workload", "list")["workloads"]
        assert workload["status"] == "Running"
        assert workload["assigned_node_id"] in ready
    finally:
        await containers.end()

"""A fleet with certificates on a network that can be cut: a control plane and agents, each on a machine of its own.

Kafka is reached from each machine by a way of its own, which no cut of the network touches: so a process that is cut
off from all others of its job still could write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from shoal.cli.local.certificates import FleetCertificates
from shoal.client.control_plane import ControlPlane
from shoal.core.clock import SystemClock
from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.trust.credentials import CredentialPaths
from shoal.wire.trust.security import MutualTls
from tests.services.lifetime import WITH_US
from tests.services.network import Network

CONTROL = "control"
GRPC, HTTP = 8085, 8084
_DOORWAY = ("-m", "tests.services.doorway")
_START = 100.0


class Machines:
    """Everything, by the names of machines."""

    def __init__(self, folder: Path, network: Network, *, agents: tuple[str, ...], broker: str) -> None:
        self.base_dir = folder
        self.network = network
        self.names = agents
        self._broker = broker
        self._doors = Path(tempfile.mkdtemp(prefix="shoal-door-"))  # the path of a socket has to be short
        self._certificates = FleetCertificates(folder, SystemClock())
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @property
    def _control(self) -> str:
        return f"{self.network.address(CONTROL)}:{GRPC}"

    def client(self) -> ControlPlane:
        """A client of the control plane."""
        files = self._certificates.of_operator()
        return ControlPlane([self._control], GrpcTransport(security=MutualTls(files.ca, files.cert, files.key)))

    async def start(self) -> None:
        """Start everything."""
        self.base_dir.mkdir(exist_ok=True)
        door = f"unix:{self._doors}/kafka"
        await self._run("kafka", sys.executable, *_DOORWAY, door, self._broker)
        for name in self.names:
            inside = self.network.command(name, *WITH_US, sys.executable, *_DOORWAY, self._broker, door)
            await self._run(f"kafka of {name}", *inside)
        host = self.network.address(CONTROL)
        await self._serve(
            CONTROL,
            *("control", *_proof(self._certificates.of_control()), "--ca-key", str(self._certificates.signing_key)),
            *("--grpc-host", host, "--grpc-port", str(GRPC), "--http-host", host, "--http-port", str(HTTP)),
            # So long that nothing passes because a lease has ended.
            *("--lease", "300s", "--heartbeat-interval", "1s"),
        )
        await asyncio.gather(*(self._start_agent(name) for name in self.names))

    async def _start_agent(self, name: str) -> None:
        await self._serve(
            name,
            *("agent", *_proof(self._certificates.of_agent(name)), "--control", self._control, "--node-id", name),
            *("--host-id", name, "--grpc-host", self.network.address(name), "--grpc-port", "50051"),
            *("--slots", "1", "--cpu", "4", "--memory", "4096MB"),
        )

    async def _serve(self, name: str, *arguments: str) -> None:
        ready = self.base_dir / f"{name}.json"
        more = ("--data-dir", str(self.base_dir / name), "--ready-file", str(ready))
        inside = self.network.command(name, *WITH_US, sys.executable, "-m", "shoal", *arguments, *more)
        process = await self._run(name, *inside)
        async with asyncio.timeout(_START):
            while not ready.exists():
                assert process.returncode is None, (self.base_dir / f"{name}.log").read_text()[-3000:]
                await asyncio.sleep(0.05)

    async def _run(self, name: str, *command: str) -> asyncio.subprocess.Process:
        with (self.base_dir / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        self._processes[name] = process
        return process

    def stop_kafka(self, name: str) -> None:
        """Kafka takes what a machine sends, and says nothing."""
        self._processes[f"kafka of {name}"].send_signal(signal.SIGSTOP)

    def continue_kafka(self, name: str) -> None:
        """It answers again."""
        self._processes[f"kafka of {name}"].send_signal(signal.SIGCONT)

    def cut_off(self, name: str, *, control: bool = True) -> None:
        """Let nothing pass between a machine and all others."""
        for other in (*self.names, *((CONTROL,) if control else ())):
            if other != name:
                self.network.cut(name, other)

    async def kill(self) -> None:
        """End everything at once."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
        for name in self.names:
            folder = self.base_dir / name
            if folder.is_dir():
                keeper = read_keeper_pid(folder)
                for pid in [*([keeper] if keeper else []), *find_run_pids(folder)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                remove_stray_groups(folder)
        shutil.rmtree(self._doors, ignore_errors=True)


def _proof(files: CredentialPaths) -> tuple[str, ...]:
    return ("--ca", str(files.ca), "--cert", str(files.cert), "--key", str(files.key))

"""Control planes and agents of any recorded version, as real processes that a test starts and ends one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.cli.local.children import Child, free_port
from shoal.client import ControlPlane as Client
from shoal.core.clock import SystemClock
from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups
from shoal.wire.sockets.channel import GrpcTransport
from tests.services.versions import RecordedVersion

#: Long enough for an agent to be back within it on a busy machine.
LEASE = ("--lease", "10s", "--heartbeat-interval", "300ms")


class Machines:
    """Whatever a test has started, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: dict[str, Child] = {}
        self._clock = SystemClock()

    def data_dir(self, name: str) -> Path:
        return self.folder / name / "data"

    def log_of(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")

    def pid_of(self, name: str) -> int:
        return self._children[name].process.pid

    def http_of(self, name: str) -> str:
        return f"http://{self._children[name].ready['http']}"

    def address_of(self, name: str) -> str:
        return str(self._children[name].ready["grpc"])

    async def start_control(
        self,
        name: str,
        *,
        port: int,
        database: str = "",
        version: RecordedVersion | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a control plane; of this version, or of an earlier one."""
        flags = ["--data-dir", str(self.data_dir(name)), "--grpc-port", str(port), "--http-port", "0", *LEASE]
        await self._start(
            name, ["control", "--insecure", *flags, *(["--database", database] if database else [])], version, env
        )

    async def start_agent(self, name: str, *, control: Sequence[str], version: RecordedVersion | None = None) -> None:
        """Start an agent."""
        flags = ["--control", ",".join(control), "--node-id", name, "--data-dir", str(self.data_dir(name))]
        capacity = ["--cpu", "4", "--memory", "4GB", "--slots", "4"]
        await self._start(name, ["agent", "--insecure", "--grpc-port", "0", *flags, *capacity], version)

    async def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a process in good order; what an agent runs goes on."""
        await self._children.pop(name).end(number, within=30.0)

    def client(self, *addresses: str) -> Client:
        return Client(addresses, GrpcTransport())

    async def end_everything(self) -> None:
        """Leave no process behind, neither ours nor theirs."""
        for name in list(self._children):
            await self.stop(name, signal.SIGKILL)
        for directory in self.folder.glob("*/data"):
            for _ in range(100):
                keeper = read_keeper_pid(directory)
                pids = [*([keeper] if keeper is not None else []), *find_run_pids(directory)]
                if not pids:
                    break
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await self._clock.sleep(0.05)
            remove_stray_groups(directory)

    async def _start(
        self,
        name: str,
        arguments: Sequence[str],
        version: RecordedVersion | None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        assert name not in self._children, f"{name} runs already"
        environment = {**self._environment(version), **(env or {})}
        child = await Child.start(name, arguments, self.folder / name, environment)
        self._children[name] = child
        await child.wait_serving(self._clock)

    def _environment(self, version: RecordedVersion | None) -> Mapping[str, str]:
        own = ("SHOAL_", "PERSYS_", "GRPC_PORT", "METRICS_PORT", "OTEL_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        if version is not None:
            env["PYTHONPATH"] = str(self.unpacked(version))
        return env

    def unpacked(self, version: RecordedVersion) -> Path:
        """Where the program of an earlier version lies."""
        target = self.folder / str(version)
        if not target.exists():
            with tarfile.open(version.folder / "program.tar.xz") as archive:
                # Older maintenance releases of Python 3.11 do not know filters, newer Pythons want one.
                safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(target, **safely)
        return target


def port() -> int:
    """A free one, so that a control plane can come back at the same address."""
    return free_port()


def pids_of(data_dir: Path) -> list[int]:
    """The processes that an agent's keeper holds."""
    return sorted(find_run_pids(data_dir))

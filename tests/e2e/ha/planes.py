"""Several control planes as real processes on one PostgreSQL, and an agent that knows all of them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

from shoal.cli.local.children import free_port
from shoal.client import ControlPlane
from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups
from shoal.wire.sockets.channel import GrpcTransport
from tests.services.lifetime import WITH_US

PATIENCE = 40.0


class Planes:
    """Control planes by name, and agents."""

    def __init__(self, folder, database):
        self.folder = folder
        self.database = database
        self.addresses = {}
        self.http = {}
        self.processes = {}

    @property
    def control_address(self):
        return ",".join(self.addresses.values())

    def client(self, *names):
        chosen = [self.addresses[name] for name in names] or list(self.addresses.values())
        return ControlPlane(chosen, GrpcTransport())

    async def start_plane(self, name, *, env=None):
        self.addresses.setdefault(name, f"127.0.0.1:{free_port()}")
        self.http.setdefault(name, f"127.0.0.1:{free_port()}")
        await self._start(
            name,
            *("control", "--insecure", "--data-dir", str(self.folder / name), "--database", self.database),
            *(
                "--grpc-port",
                self.addresses[name].rpartition(":")[2],
                "--http-port",
                self.http[name].rpartition(":")[2],
            ),
            *("--lease", "3s", "--heartbeat-interval", "500ms"),
            env=env,
        )

    async def start_agent(self, name, *, env=None):
        await self._start(
            name,
            *("agent", "--insecure", "--control", self.control_address, "--node-id", name),
            *("--data-dir", str(self.folder / name), "--grpc-port", "0", "--cpu", "4", "--memory", "4096MB"),
            env=env,
        )

    async def _start(self, name, *arguments, env=None):
        ready = self.folder / f"{name}.json"
        ready.unlink(missing_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *(*WITH_US, sys.executable, "-m", "shoal", *arguments, "--ready-file", str(ready)),
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
            )
        deadline = time.monotonic() + PATIENCE
        while not ready.exists():
            assert self.processes[name].returncode is None, (self.folder / f"{name}.log").read_text()[-2000:]
            assert time.monotonic() < deadline, f"{name} did not serve"
            await asyncio.sleep(0.05)

    def signal(self, name, number):
        os.kill(self.processes[name].pid, number)

    async def kill(self, name):
        process = self.processes.pop(name)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has died by itself just now
                os.kill(process.pid, signal.SIGKILL)
        await process.wait()

    async def health(self, name):
        reader, writer = await asyncio.open_connection(*self.http[name].split(":"))
        try:
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            body = (await reader.read()).partition(b"\r\n\r\n")[2]
            return json.loads(body)
        finally:
            writer.close()
            await writer.wait_closed()

    async def leader(self, *, among=None):
        """The name of the one that leads, once there is exactly one."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = []
            for name in among or self.addresses:
                try:
                    async with asyncio.timeout(2):
                        answer = await self.health(name)
                except (OSError, TimeoutError, ValueError):
                    continue
                if answer["role"] == "leader":
                    found.append(name)
            if len(found) == 1:
                return found[0]
            await asyncio.sleep(0.1)
        raise AssertionError("nobody leads, or more than one does")

    async def close(self):
        for name in list(self.processes):
            await self.kill(name)
        for folder in self.folder.iterdir():
            if not folder.is_dir():
                continue
            keeper = read_keeper_pid(folder)
            for pid in [*([keeper] if keeper else []), *find_run_pids(folder)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            remove_stray_groups(folder)

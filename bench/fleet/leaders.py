"""The leader dies: how long until the next control plane takes a write."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from bench.fleet.stage import spec_of
from bench.load import PATIENCE
from bench.postgres import running
from shoal.cli.local.children import free_port
from shoal.client import ControlPlane
from shoal.core.errors import DeadlineError, ShoalError
from shoal.model.documents import WorkloadDocument
from shoal.wire.sockets.channel import GrpcTransport

_LOOK_EVERY = 0.02


async def next_write(programs: Path) -> float:
    """Kill the one of two that leads, and return the seconds until a write is acknowledged again."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        database = stack.enter_context(running(programs))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        planes = []
        for name in ("one", "two"):
            plane = _Plane(name, folder, database)
            stack.push_async_callback(plane.kill)
            await plane.start()
            planes.append(plane)
        addresses = [plane.address for plane in planes]
        control = await stack.enter_async_context(ControlPlane(addresses, GrpcTransport()))
        await control.apply(WorkloadDocument("before", spec_of("before")))
        # The first to come leads, and the second follows.
        await planes[0].kill()
        killed = loop.time()
        while True:
            try:
                await control.apply(WorkloadDocument("after", spec_of("after")))
            except ShoalError as error:
                if loop.time() - killed > PATIENCE:
                    raise DeadlineError(f"no write was taken within {PATIENCE:g} s: {error.message}") from error
                await asyncio.sleep(_LOOK_EVERY)
            else:
                return loop.time() - killed


class _Plane:
    """One control plane on the shared database."""

    def __init__(self, name: str, folder: Path, database: str) -> None:
        self.name = name
        self._folder = folder
        self._database = database
        self._port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it and wait until it serves."""
        ready = self._folder / f"{self.name}.ready"
        arguments = [
            *("control", "--insecure", "--data-dir", str(self._folder / self.name), "--database", self._database),
            *("--grpc-port", str(self._port), "--http-port", "0", "--ready-file", str(ready)),
        ]
        with (self._folder / f"{self.name}.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "shoal", *arguments, stdout=log, stderr=log
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while not ready.exists():
            if self._process.returncode is not None or loop.time() > deadline:
                said = (self._folder / f"{self.name}.log").read_text(errors="replace")[-500:]
                raise DeadlineError(f"the control plane {self.name} does not serve: {said}")
            await asyncio.sleep(_LOOK_EVERY)

    async def kill(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()

"""`shoal serve` as a process, with the fake model server as its program, for the tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil
import pytest

from shoal.core.errors import ShoalError
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.replicas.records import ServerType
from shoal.wire.sockets.channel import GrpcTransport

MODEL_SERVER = f"{sys.executable} -m shoal.testing.model_server"


class Served:
    """One `shoal serve`."""

    def __init__(self, folder: Path, name: str, conf: str, **env: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.conf = self.folder / "agent.conf"
        self.conf.write_text(conf)
        self.ready_file = self.folder / "ready.json"
        self.env = {
            **{key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "PYTHONPATH")},
            "MONOLITH_TFS_BINARY": MODEL_SERVER,
            "MY_HOST_IP": "127.0.0.1",
            "MY_POD_NAME": name,
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.client: ServingAgentClient | None = None

    async def start(self, *flags: str) -> dict[str, object]:
        command = [
            sys.executable,
            "-m",
            "shoal",
            "serve",
            "--conf",
            str(self.conf),
            "--data-dir",
            str(self.folder / "data"),
        ]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--ready-file", str(self.ready_file), "--drain", "0s", *flags],
                env=self.env, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        async with asyncio.timeout(60):
            while not self.ready_file.exists():
                assert self.process.poll() is None, self.log()
                await asyncio.sleep(0.05)
        ready = json.loads(self.ready_file.read_text())
        self.client = ServingAgentClient(GrpcTransport().connect(ready["agent"]))
        return ready

    async def answers(
        self, expected: dict[str, list[str]], server_type: ServerType = ServerType.PS, *, order: bool = True
    ) -> None:
        """Wait until HeartBeat answers this."""
        found: dict[str, list[str]] | None = None
        try:
            async with asyncio.timeout(60):
                while found != expected:
                    with contextlib.suppress(ShoalError):
                        found = await self.client.heart_beat(server_type)
                        found = found if order else {name: sorted(each) for name, each in found.items()}
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{found} instead of {expected}\n{self.log()}")

    async def answers_any_order(
        self, expected: Mapping[str, Iterable[str]], server_type: ServerType = ServerType.PS
    ) -> None:
        """The same, whatever the order of the addresses."""
        await self.answers({name: sorted(each) for name, each in expected.items()}, server_type, order=False)

    def model_servers(self) -> list[psutil.Process]:
        """The model servers of this agent, by the data directory in their flags."""
        found = []
        for each in psutil.process_iter(["cmdline"]):
            words = " ".join(each.info["cmdline"] or ())
            if "shoal.testing.model_server" in words and f"{self.folder}/" in words:
                found.append(each)
        return found

    async def killed(self) -> None:
        """kill -9, and ready for another start."""
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        self.ready_file.unlink()
        await self.client.close()

    async def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 60)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()
        if self.process is not None and self.process.poll() is None:
            await self.stop()
        for left in self.model_servers():
            left.kill()


@pytest.fixture
async def serve(tmp_path):
    made: list[Served] = []

    def make(name: str, conf: str, **env: str) -> Served:
        made.append(Served(tmp_path, name, conf, **env))
        return made[-1]

    yield make
    for each in made:
        await each.close()

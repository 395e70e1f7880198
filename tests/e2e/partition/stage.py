"""A fleet on a network that can be cut: PostgreSQL, control planes and agents, each on a machine of its own.

What is stopped or killed is a process that was started here, known by its pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from shoal.client import ControlPlane
from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups
from shoal.wire.sockets.channel import GrpcTransport
from tests.services.lifetime import WITH_US
from tests.services.postgres import find_programs

PATIENCE = 40.0
#: A program starts within this time, also beside many others.
START_PATIENCE = 100.0
LEASE = 5.0
INTERVAL = 1.0
GRPC, HTTP, POSTGRES = 8085, 8084, 5432

#: What may exist once holds a lock as long as it lives. One that finds it held says so, and that is the end of a test.
ONLY_ONCE = 'exec 9>>"$0"; flock -n 9 || echo "$SHOAL_NODE_ID" >> "$0.overlap"; exec sleep 3600'


class Database:
    """A PostgreSQL server on one machine, which can be stopped, killed and started again."""

    def __init__(self, network, machine):
        self._network, self._machine = network, machine
        self._home = Path(tempfile.mkdtemp(prefix="shoal-postgres-"))
        self._programs = find_programs()
        self._process = None
        account = pwd.getpwnam("postgres")
        self._user = (account.pw_uid, account.pw_gid)
        os.chown(self._home, *self._user)
        subprocess.run(
            [*self._programs_of("initdb"), "-A", "trust", "-U", "shoal", "-E", "UTF8", "--no-locale", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=self._home,
            user=self._user[0],
            group=self._user[1],
            extra_groups=[],
        )
        with (self._home / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")

    @property
    def url(self):
        return f"postgresql://shoal@{self._network.address(self._machine)}:{POSTGRES}/postgres"

    def _programs_of(self, name):
        return [str(self._programs / name), "-D", str(self._home / "data")]

    async def start(self):
        """Start it, and wait until it answers. After a kill its children may take a moment to end."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if self._process is None or self._process.poll() is not None:
                self._process = self._launch()
            try:
                connection = await asyncio.to_thread(psycopg.connect, self.url, connect_timeout=2)
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    words = (self._home / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start: {words}") from error
                await asyncio.sleep(0.1)
                continue
            connection.close()
            return

    def _launch(self):
        host = self._network.address(self._machine)
        command = [*WITH_US, *self._programs_of("postgres"), "-p", str(POSTGRES), "-k", str(self._home), "-h", host]
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(
                self._network.command(self._machine, *command, user=self._user),
                stdout=log,
                stderr=log,
                cwd=self._home,
            )

    def stop(self):
        """Stop every process of it, as if its machine hung."""
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self):
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill(self):
        """Kill it and everything that it has started: no power, no log."""
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _family(self):
        if self._process is None or self._process.poll() is not None:
            return []
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [self._process.pid, *(int(pid) for pid in listed.read_text().split())]

    def close(self):
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._home, ignore_errors=True)


class Stage:
    """Everything, by name. The names of control planes and agents are those of their machines."""

    def __init__(self, folder, network, *, planes, agents):
        self.folder = folder
        self.network = network
        self.planes = planes
        self.agents = agents
        self.database = Database(network, "db")
        self.processes = {}
        self.logs = folder / "logs"
        self.logs.mkdir()

    @property
    def control_address(self):
        return ",".join(self.address(name) for name in self.planes)

    def address(self, name):
        return f"{self.network.address(name)}:{GRPC}"

    def client(self):
        return ControlPlane([self.address(name) for name in self.planes], GrpcTransport())

    async def start(self):
        await self.database.start()
        await self.start_plane(self.planes[0])  # it makes the schema
        await asyncio.gather(
            *(self.start_plane(name) for name in self.planes[1:]), *(self.start_agent(name) for name in self.agents)
        )

    async def start_plane(self, name):
        host = self.network.address(name)
        await self._start(
            name,
            *("control", "--insecure", "--data-dir", str(self.folder / name), "--database", self.database.url),
            *("--grpc-host", host, "--grpc-port", str(GRPC), "--http-host", host, "--http-port", str(HTTP)),
            *("--lease", f"{LEASE:g}s", "--heartbeat-interval", f"{INTERVAL:g}s"),
        )

    async def start_agent(self, name):
        await self._start(
            name,
            *("agent", "--insecure", "--control", self.control_address, "--node-id", name),
            *("--data-dir", str(self.folder / name), "--grpc-host", self.network.address(name), "--grpc-port", "50051"),
            *("--cpu", "4", "--memory", "4096MB"),
        )

    async def _start(self, name, *arguments):
        ready = self.folder / f"{name}.json"
        ready.unlink(missing_ok=True)
        command = self.network.command(
            name, *WITH_US, sys.executable, "-m", "shoal", *arguments, "--ready-file", str(ready)
        )
        with (self.logs / f"{name}.log").open("ab") as log:
            process = self.processes[name] = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_PATIENCE
        while not ready.exists():
            assert process.returncode is None, f"{name} ended:\n{self.log_of(name)}"
            assert time.monotonic() < deadline, f"{name} did not serve:\n{self.log_of(name)}"
            await asyncio.sleep(0.05)

    def log_of(self, name):
        return (self.logs / f"{name}.log").read_text(errors="replace")[-3000:]

    def signal(self, name, number):
        os.kill(self.processes[name].pid, number)

    async def kill(self, name):
        process = self.processes.pop(name)
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()

    async def health(self, name):
        reader, writer = await asyncio.open_connection(self.network.address(name), HTTP)
        try:
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            return json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        finally:
            writer.close()

    async def leader(self, *, after=0):
        """The name and the term of the newest leader, once there is one of a later term than `after`."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            said = {}
            for name in self.planes:
                with contextlib.suppress(OSError, TimeoutError, ValueError):
                    async with asyncio.timeout(1):
                        answer = await self.health(name)
                    if answer["role"] == "leader" and answer["term"] > after:
                        said[answer["term"]] = name
            if said:
                term = max(said)
                return said[term], term
            await asyncio.sleep(0.1)
        raise AssertionError("nobody leads:\n" + "\n".join(self.log_of(name) for name in self.planes))

    async def close(self):
        for name in list(self.processes):
            await self.kill(name)
        self.database.close()
        for name in self.agents:
            folder = self.folder / name
            if not folder.is_dir():
                continue
            keeper = read_keeper_pid(folder)
            for pid in [*([keeper] if keeper else []), *find_run_pids(folder)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            remove_stray_groups(folder)

"""Finds the container engine of this machine, and runs a Podman service when only its binary is there.

Looked for in this order: `DOCKER_HOST`, the sockets that Docker and Podman usually listen on, the `podman` binary.
An agent that has runs in an engine looks for that one only. Called by `shoal.runtimes.finding` when an agent starts,
and again after the engine was lost; also by the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.disk.durable import replace_file
from shoal.core.errors import ShoalError, UnavailableError
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.engine.choice import ChosenEngine, EngineChoice
from shoal.runtimes.container.engine.podman_settings import service_settings

log = logging.getLogger(__name__)

_USUAL_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_SERVICE_START_SECONDS = 20.0
_SERVICE_STOP_SECONDS = 5.0
#: The service of an agent that was killed ends after so many seconds without a connection, where it does not end with
#: its agent. A runtime keeps one connection open.
_SERVICE_IDLE_SECONDS = 30
#: The kernel takes no longer path for a unix socket.
_MAX_SOCKET_PATH = 100
_SOCKET_NAME = "podman.sock"

#: In an agent's data directory: the socket and the log of the Podman service that it runs.
PODMAN_DIRECTORY = "podman"


def engine_addresses(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where an engine may listen, best first. Pure."""
    if given := environ.get("DOCKER_HOST", ""):
        return (given if "://" in given else f"unix://{given}",)
    sockets = list(_USUAL_SOCKETS)
    if runtime_dir := environ.get("XDG_RUNTIME_DIR", ""):
        sockets.append(f"{runtime_dir}/podman/podman.sock")
    return tuple(f"unix://{path}" for path in sockets)


class EngineFinder:
    """The engine of this machine. Its users share one Podman service, started only when no engine listens.

    An agent keeps to the engine that its runs are in: in another one they would look as if they had ended, and would be
    started a second time. Which engine that is, is stored.
    """

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str],
        *,
        clock: Clock,
        choice: EngineChoice | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        """`directory` is where a Podman service has its socket, `arguments` are its first words. No `choice`: any."""
        self._environ = environ
        self._podman = PodmanService(directory, clock=clock, arguments=arguments)
        self._choice = choice
        self._choosing = asyncio.Lock()
        #: Which engine the Podman service is, once that was looked at.
        self._own_identity = ""

    def is_here(self) -> bool:
        """Whether there is anything that may be an engine: a named address, a usual socket, `podman`, runs in one."""
        if self._environ.get("DOCKER_HOST") or (self._choice is not None and self._choice.is_binding()):
            return True
        sockets = (Path(address.removeprefix("unix://")) for address in engine_addresses(self._environ))
        return PodmanService.is_possible() or any(socket.exists() for socket in sockets)

    async def connect(self) -> EngineApi:
        """A connection to the engine. Raises `UnavailableError`."""
        async with self._choosing:
            if self._choice is None:
                return await self._first()
            chosen = await asyncio.to_thread(self._choice.read)
            if chosen is not None and await asyncio.to_thread(self._choice.is_binding):
                return await self._same(self._choice, chosen)
            api = await self._first()
            try:
                api.expected = await api.identity()
                await asyncio.to_thread(self._choice.write, ChosenEngine(api.address, api.expected))
            except ShoalError:
                await api.close()
                raise
            return api

    async def _first(self) -> EngineApi:
        """The first engine that answers; a Podman service when there is none."""
        for address in engine_addresses(self._environ):
            if (api := await _reach(address)) is not None:
                return api
        if not PodmanService.is_possible() or self._environ.get("DOCKER_HOST"):
            raise UnavailableError("no container engine answers, and there is no podman to start")
        return await self._podman.open()

    async def _same(self, choice: EngineChoice, chosen: ChosenEngine) -> EngineApi:
        """The engine that has the runs of this agent, wherever it listens now."""
        others = []
        for address in dict.fromkeys((chosen.address, *engine_addresses(self._environ))):
            if address != self._podman.address and (api := await _reach(address)) is not None:
                if await self._is_chosen(api, choice, chosen):
                    return api
                others.append(address)
        if self._may_be_own(chosen):
            api = await self._podman.open()
            if await self._is_chosen(api, choice, chosen):
                return api
            self._own_identity = api.expected
            await self._podman.close()
            others.append(api.address)
        words = f"the container engine of this agent's runs ({chosen.identity}) does not answer"
        if others:
            words += f"; the one at {others[0]} is another"
        raise UnavailableError(words, hint=f"if it is gone for good, remove {choice.path} and restart the agent")

    def _may_be_own(self, chosen: ChosenEngine) -> bool:
        """Whether a Podman service of the agent's own may be the engine, with the same storage."""
        if chosen.address != self._podman.address and self._environ.get("DOCKER_HOST"):
            return False
        return chosen.is_podman and PodmanService.is_possible() and self._own_identity in ("", chosen.identity)

    @staticmethod
    async def _is_chosen(api: EngineApi, choice: EngineChoice, chosen: ChosenEngine) -> bool:
        try:
            found = api.expected = await api.identity()
            if found == chosen.identity:
                if api.address != chosen.address:
                    await asyncio.to_thread(choice.write, ChosenEngine(api.address, found))
                return True
        except ShoalError as error:
            log.info("the container engine at %s does not say which one it is: %s", api.address, error)
        await api.close()
        return False

    async def close(self) -> None:
        """Stop the Podman service, if one was started. Containers go on."""
        await self._podman.close()


async def _reach(address: str) -> EngineApi | None:
    """The engine at an address, or None when none answers there."""
    scheme, _, path = address.partition("://")
    if scheme == "unix" and not await asyncio.to_thread(Path(path).exists):
        return None
    api = EngineApi(address)
    try:
        await api.ping()
    except ShoalError as error:
        log.info("no container engine at %s: %s", address, error)
        await api.close()
        return None
    return api


class PodmanService:
    """A `podman system service` that this agent runs. Containers outlive it: each has a monitor of its own."""

    def __init__(self, directory: Path, *, clock: Clock, arguments: tuple[str, ...] = ()) -> None:
        """`arguments` go before `system service`, such as `--root`."""
        self._socket = directory / _SOCKET_NAME
        self._log = directory / "podman.log"
        self._clock = clock
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """Of the service; 0 while it does not run."""
        return 0 if self._process is None or self._process.returncode is not None else self._process.pid

    @staticmethod
    def is_possible() -> bool:
        """Whether there is a `podman` binary."""
        return shutil.which("podman") is not None

    async def open(self) -> EngineApi:
        """Start the service unless it runs, and connect to it. Raises `UnavailableError`."""
        if len(str(self._socket)) > _MAX_SOCKET_PATH:
            raise UnavailableError(f"the path of the Podman socket is too long: {self._socket}")
        if self._process is None or self._process.returncode is not None:
            await self._start()
        api = EngineApi(self.address)
        deadline = self._clock.monotonic() + _SERVICE_START_SECONDS
        while True:
            try:
                await api.ping()
            except ShoalError as error:
                if self._clock.monotonic() > deadline or self._process is None or self._process.returncode is not None:
                    await api.close()
                    await self.close()  # one that runs and does not answer is started anew the next time
                    said = self._log.read_text(errors="replace")[-500:].strip() if self._log.exists() else ""
                    raise UnavailableError(f"the Podman service does not answer: {said or error}") from error
                await self._clock.sleep(0.05)
            else:
                return api

    async def close(self) -> None:
        """Stop the service. Containers go on."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_SERVICE_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> None:
        self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._end_predecessor()
        with contextlib.suppress(FileNotFoundError):
            self._socket.unlink()
        runtime = ("--runtime", "runc") if _needs_runc() else ()
        environ = dict(os.environ)
        if settings := await asyncio.to_thread(service_settings, environ):
            path = self._socket.with_name("containers.conf")
            await asyncio.to_thread(_write_changed, path, settings.encode())
            environ["CONTAINERS_CONF"] = str(path)
        with self._log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *_ends_with_this_process(),
                "podman",
                *runtime,
                *self._arguments,
                *("system", "service", "--time", str(_SERVICE_IDLE_SECONDS), f"unix://{self._socket}"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # The monitors of containers write small files into the directory that they are started in.
                cwd=self._socket.parent,
                env=environ,
                start_new_session=True,
            )

    async def _end_predecessor(self) -> None:
        """End the service that a killed agent left: at its own end it would remove the socket of the new one."""
        deadline = self._clock.monotonic() + _SERVICE_STOP_SECONDS
        while pids := await asyncio.to_thread(find_service_pids, self._socket.parent):
            number = signal.SIGTERM if self._clock.monotonic() < deadline else signal.SIGKILL
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            await self._clock.sleep(0.05)


def find_service_pids(directory: Path) -> list[int]:
    """The Podman services whose socket is in a directory."""
    address = f"unix://{directory / _SOCKET_NAME}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes().rstrip(b"\0").endswith(b"\0" + address):
                    found.append(int(entry.name))
    return found


def _write_changed(path: Path, content: bytes) -> None:
    """Write a file unless it is so already: then its disk may be full."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    replace_file(path, content)


def _ends_with_this_process() -> tuple[str, ...]:
    """A command that runs another one, and asks it to end when this process is killed. Empty where there is none."""
    found = shutil.which("setpriv")
    return (found, "--pdeathsig", "TERM", "--") if found is not None else ()


def _needs_runc() -> bool:
    """Whether Podman's default runtime cannot work here: crun needs cgroups v2, runc does not."""
    return shutil.which("runc") is not None and not os.path.exists("/sys/fs/cgroup/cgroup.controllers")  # noqa: PTH110

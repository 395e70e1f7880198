"""Which compose command there is on this machine, and how it is called.

`docker compose`, `docker-compose` and `podman-compose` are tried in this order; a `podman-compose` that was installed
with this program comes before others, and one that is too old is left out. The project goes to its standard input,
so values of secrets are in no file, and it talks to the engine that the agent found. A lock file is open in the command
and in everything that it starts: an agent that was killed while a command ran waits for its end before the next one.
Called by `shoal.runtimes.compose.runtime`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.clock import Clock
from shoal.core.errors import DeadlineError, ShoalError, UnavailableError

log = logging.getLogger(__name__)

_PROBE_SECONDS = 20.0
#: Older ones print the commands that they run, with the values of variables.
_OLDEST_PODMAN_COMPOSE = (1, 3)
_VERSION = re.compile(r"podman-compose version:? *(\d{1,9})\.(\d{1,9})")
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t]+.*\n)*", re.MULTILINE)
_PLUGIN = ("docker", "compose")
#: An empty file, so that no file of the project's directory sets variables. Older commands do not take /dev/null.
_NO_VARIABLES = Path(__file__).with_name("no_variables.env")
_LOCK_SECONDS = 60.0
_MAX_SHOWN = 2000
_MAX_OUTPUT = 1 << 20
_CHUNK = 64 * 1024
#: Of the agent's own environment: where programs and logins are. Nothing else reaches the command.
_PASSED_ON = ("PATH", "HOME", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "LANG", "TMPDIR")


class ComposeError(ShoalError):
    """The compose command failed. `message` is the end of what it said."""


@dataclass(frozen=True, slots=True)
class ComposeCommand:
    """A compose command and the arguments that always come first."""

    arguments: tuple[str, ...]

    async def run(
        self,
        project: str,
        content: Mapping[str, Any],
        words: Sequence[str],
        *,
        folder: Path,
        engine: str,
        seconds: float,
        lock: int = -1,
    ) -> None:
        """Run one subcommand of a project in its folder. Raises `ComposeError`, `DeadlineError`, `UnavailableError`.

        `engine` is the address of the engine; `lock` a descriptor that the command holds while it runs.
        """
        environment = {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            # The first is read by Docker's commands, the second by Podman's.
            "DOCKER_HOST": engine,
            "CONTAINER_HOST": engine,
        }
        call = [*self.arguments, "--env-file", str(_NO_VARIABLES), "-p", project, "-f", "-", *words]
        given = json.dumps(content).encode()
        output, status = await _call(call, folder, environment, seconds, given=given, lock=lock)
        if status != 0:
            for name, value in _variables(content):
                output = output.replace(f"{name}={value}", f"{name}=***")
            output = without_tracebacks(output)
            raise ComposeError(output[-_MAX_SHOWN:].strip() or f"{self.arguments[0]} ended with status {status}")


def candidates() -> list[tuple[str, ...]]:
    """The compose commands that may be there, best first."""
    found: list[tuple[str, ...]] = []
    if shutil.which("docker"):
        found.append(_PLUGIN)
    if shutil.which("docker-compose"):
        found.append(("docker-compose",))
    if podman := _beside_python("podman-compose") or shutil.which("podman-compose"):
        found.append((podman, "--in-pod", "false"))
    return found


async def find_command() -> ComposeCommand | None:
    """The first compose command of this machine, or None. `docker` may come without its plug-in, so it is asked."""
    for candidate in candidates():
        if candidate == ("docker-compose",):
            return ComposeCommand(candidate)
        words = (*_PLUGIN, "version") if candidate == _PLUGIN else (candidate[0], "version")
        try:
            output, status = await _call(words, Path("/"), dict(os.environ), _PROBE_SECONDS)
        except (UnavailableError, DeadlineError) as error:
            log.warning("%s is left out: %s", candidate[0], error.message)
            continue
        if candidate == _PLUGIN:
            if status == 0:
                return ComposeCommand(candidate)
        elif is_new_enough(output):
            return ComposeCommand(candidate)
        else:
            oldest = ".".join(map(str, _OLDEST_PODMAN_COMPOSE))
            log.warning("%s is left out: it must be podman-compose %s or newer", candidate[0], oldest)
    return None


def is_new_enough(output: str) -> bool:
    """Whether `podman-compose version` names a version that is supported. Pure."""
    found = _VERSION.search(output)
    return found is not None and (int(found[1]), int(found[2])) >= _OLDEST_PODMAN_COMPOSE


def without_tracebacks(output: str) -> str:
    """What a command printed without where in its own code it failed: `podman-compose` ends so. Pure."""
    return _TRACEBACK.sub("", output)


def _variables(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The variables of all services that have a value."""
    for service in (content.get("services") or {}).values():
        environment = service.get("environment")
        if isinstance(environment, dict):
            yield from ((name, str(value)) for name, value in environment.items() if value not in (None, ""))


@asynccontextmanager
async def locked(path: Path, clock: Clock) -> AsyncIterator[int]:
    """Hold the lock of a project and yield its descriptor. Raises `UnavailableError` while a command goes on."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = clock.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.monotonic() > deadline:
                    raise UnavailableError("an earlier compose command of this project has not ended") from error
                await clock.sleep(0.1)
        yield descriptor
    finally:
        os.close(descriptor)


def _beside_python(name: str) -> str | None:
    """A command that was installed with this program, whether its environment is on the PATH or not."""
    path = Path(sys.executable).parent / name
    return str(path) if path.exists() else None


async def _call(
    words: Sequence[str], folder: Path, env: Mapping[str, str], seconds: float, *, given: bytes = b"", lock: int = -1
) -> tuple[str, int]:
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=dict(env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(lock,) if lock >= 0 else (),
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"{words[0]} cannot be run: {error}") from error
    try:
        async with asyncio.timeout(seconds):
            output = await _communicate(process, given)
            await process.wait()
    except TimeoutError as error:
        raise DeadlineError(f"{Path(words[0]).name} takes longer than {seconds:.0f} s", seconds=seconds) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the commands that it runs
            await process.wait()
    return output.decode(errors="replace"), process.returncode or 0


async def _communicate(process: asyncio.subprocess.Process, given: bytes) -> bytes:
    """Hand over the input and return the end of what the command prints."""
    output = bytearray()
    async with asyncio.TaskGroup() as group:
        if process.stdin is not None:
            group.create_task(_feed(process.stdin, given))
        while process.stdout is not None and (piece := await process.stdout.read(_CHUNK)):
            output += piece
            del output[:-_MAX_OUTPUT]
    return bytes(output)


async def _feed(stream: asyncio.StreamWriter, given: bytes) -> None:
    try:
        stream.write(given)
        await stream.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended without reading; its output says why
    finally:
        stream.close()

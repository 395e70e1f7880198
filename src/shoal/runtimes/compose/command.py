"""Which compose command there is on this machine, and how it is called.

`docker compose`, `docker-compose` and `podman-compose` are tried in this order. Called by
`shoal.runtimes.compose.runtime`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import ShoalError, UnavailableError

_PROBE_SECONDS = 10.0
_MAX_SHOWN = 2000


class ComposeError(ShoalError):
    """The compose command failed. `message` is the end of what it said."""


@dataclass(frozen=True, slots=True)
class ComposeCommand:
    """A compose command and the arguments that always come first."""

    arguments: tuple[str, ...]

    async def run(
        self, project: str, files: Sequence[Path], words: Sequence[str], *, env: Mapping[str, str], seconds: float
    ) -> str:
        """Run one subcommand of a project and return what it printed. Raises `ComposeError` and `UnavailableError`."""
        chosen = [word for path in files for word in ("-f", str(path))]
        output, status = await _call([*self.arguments, "-p", project, *chosen, *words], files[0].parent, env, seconds)
        if status != 0:
            raise ComposeError(output[-_MAX_SHOWN:].strip() or f"{self.arguments[0]} ended with status {status}")
        return output


async def find_command(*, podman_arguments: Sequence[str] = ()) -> ComposeCommand | None:
    """The first compose command that answers, or None."""
    candidates: list[tuple[str, ...]] = []
    if shutil.which("docker"):
        candidates.append(("docker", "compose"))
    if shutil.which("docker-compose"):
        candidates.append(("docker-compose",))
    if podman := shutil.which("podman-compose") or _beside_python("podman-compose"):
        candidates.append((podman, *(f"--podman-args={word}" for word in podman_arguments)))
    for candidate in candidates:
        try:
            _, status = await _call([*candidate, "version"], Path("/"), dict(os.environ), _PROBE_SECONDS)
        except UnavailableError:
            continue
        if status == 0:
            return ComposeCommand(candidate)
    return None


def _beside_python(name: str) -> str | None:
    """A command that was installed with this program, where its environment is not on the PATH."""
    path = Path(sys.executable).parent / name
    return str(path) if path.exists() else None


async def _call(words: Sequence[str], folder: Path, env: Mapping[str, str], seconds: float) -> tuple[str, int]:
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise UnavailableError(f"{words[0]} cannot be run: {error}") from error
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise UnavailableError(f"{' '.join(words[:2])} takes longer than {seconds:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace"), process.returncode or 0

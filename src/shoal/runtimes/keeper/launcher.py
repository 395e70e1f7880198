"""Starts a keeper from the agent's side: detached, light, and only if none holds the data directory.

Called by `client`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import shoal
from shoal.core.errors import UnavailableError
from shoal.runtimes.keeper.files import KeeperFiles

#: A keeper that nobody needs goes by itself after this long.
IDLE_SECONDS = 60.0
#: Interpreter start, recovery of the records and, at worst, a busy machine.
START_TIMEOUT = 20.0


async def launch_keeper(files: KeeperFiles, *, idle: float = IDLE_SECONDS) -> None:
    """Start a keeper and wait until it listens; also fine when another one holds the directory already."""
    command = [sys.executable, "-S", "-P", "-m", "shoal.runtimes.keeper", str(files.data_dir), str(idle)]
    # Without site packages (-S) and whatever they would load; the keeper needs the standard library and this package.
    source = str(Path(shoal.__path__[0]).parent)
    env = {**os.environ, "PYTHONPATH": source}
    process = await asyncio.create_subprocess_exec(
        *command,
        str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd="/",
        env=env,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(START_TIMEOUT):
            said, _ = await process.communicate()
    except TimeoutError as error:
        raise UnavailableError(
            "the keeper did not come up in time", hint=f"see {files.log}", seconds=START_TIMEOUT
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    words = said.decode(errors="replace").strip()
    if words not in ("ready", "locked"):
        last = words.splitlines()[-1] if words else f"exit code {process.returncode}"
        raise UnavailableError(f"the keeper could not be started: {last}", hint=f"see {files.log}")

"""Runs qemu-img. Called by `images` and `disks`."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.programs import QEMU_IMG

_SECONDS = 600.0


async def qemu_img(*arguments: str) -> bytes:
    """What qemu-img prints. Raises `RunError`."""
    try:
        process = await asyncio.create_subprocess_exec(
            QEMU_IMG,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        raise RunError(
            f"{QEMU_IMG} is not installed", failure=FailureReason.RUNTIME_ERROR, hint="on Debian: qemu-utils"
        ) from error
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise RunError(f"{QEMU_IMG} takes too long", failure=FailureReason.STORAGE_ERROR, transient=True) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = errors.decode(errors="replace").strip()[-500:]
        raise RunError(f"{QEMU_IMG} {arguments[0]}: {words}", failure=FailureReason.STORAGE_ERROR, transient=True)
    return output


async def image_facts(path: Path, *, format_: str = "") -> dict[str, object]:
    """What an image says of itself. Raises `RunError` for a file that is none."""
    given = ["-f", format_] if format_ else []
    # -U: it may be in use, and is only read.
    found = json.loads(await qemu_img("info", "-U", "--output=json", *given, str(path)))
    return dict(found)

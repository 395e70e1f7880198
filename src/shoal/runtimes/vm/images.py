"""Disk images of guests: base images fetched and checked, overlays over them, blank disks. Made with qemu-img.

A base image is named by an absolute path, or by a `file://` or `https://` URL that ends in `#sha256=<64 hex digits>`.
What a URL names is fetched once, checked and kept under its hash; base images are never written to. Disks of a guest
are made once and then left alone: they survive updates, retries and failed starts. Called by
`shoal.runtimes.vm.runtime`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from shoal.core.durable import sync_path
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError

_HASH = re.compile(r"sha256=([0-9a-f]{64})")
_CHUNK = 1 << 20
_FETCH_SECONDS = 60.0
_TOOL_SECONDS = 300.0
_KNOWN_FORMATS = ("qcow2", "raw")


@dataclass(frozen=True, slots=True)
class ImageName:
    """Where a base image comes from."""

    location: str
    #: Empty for a path.
    sha256: str = ""


def parse_image_name(text: str) -> ImageName:
    """Read the name of a base image. Raises ValueError with the rule that it breaks."""
    if text.startswith("/"):
        return ImageName(text)
    location, found, fragment = text.partition("#")
    if not location.startswith(("file:///", "https://")):
        raise ValueError("must be an absolute path, or a file:// or https:// URL")
    match = _HASH.fullmatch(fragment)
    if not found or match is None:
        raise ValueError("must end in #sha256= and 64 hexadecimal digits: what is fetched has to be checked")
    return ImageName(location, match.group(1))


class ImageCache:
    """Base images of this node."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fetching: dict[str, asyncio.Lock] = {}

    async def find(self, text: str) -> Path:
        """The file of a base image, fetched if it has to be. Raises `RunError`."""
        try:
            name = parse_image_name(text)
        except ValueError as error:
            raise RunError(f"os_image {text!r} {error}", failure=FailureReason.INVALID_SPEC) from error
        if not name.sha256:
            path = Path(name.location)
            if not await asyncio.to_thread(path.is_file):
                raise RunError(f"there is no image {text}", failure=FailureReason.IMAGE_NOT_FOUND)
            return path
        path = self._directory / name.sha256
        async with self._fetching.setdefault(name.sha256, asyncio.Lock()):
            if not await asyncio.to_thread(path.is_file):
                await asyncio.to_thread(_fetch, name, path)
        return path


def _fetch(name: ImageName, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    digest = hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(name.location, timeout=_FETCH_SECONDS) as source,  # noqa: S310 the scheme was checked
            part.open("wb") as target,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        part.unlink(missing_ok=True)
        missing = getattr(error, "code", None) == 404 or isinstance(getattr(error, "reason", None), FileNotFoundError)
        failure = FailureReason.IMAGE_NOT_FOUND if missing else FailureReason.IMAGE_PULL_FAILED
        raise RunError(f"cannot fetch {name.location}: {error}", failure=failure, transient=not missing) from error
    if digest.hexdigest() != name.sha256:
        part.unlink(missing_ok=True)
        raise RunError(
            f"{name.location} has the SHA-256 {digest.hexdigest()}, not {name.sha256}",
            failure=FailureReason.IMAGE_PULL_FAILED,
        )
    part.replace(path)
    sync_path(path.parent)


async def make_disk(path: Path, *, size_gb: int, base: Path | None = None) -> None:
    """Make a disk unless it is there: an overlay over `base`, or blank. A half-made one is never left behind."""
    if await asyncio.to_thread(path.exists):
        return
    part = path.with_name(f".{path.name}.part")
    arguments = ["create", "-q", "-f", "qcow2"]
    if base is not None:
        arguments += ["-b", str(base), "-F", await image_format(base)]
    arguments.append(str(part))
    if size_gb or base is None:
        arguments.append(f"{size_gb or 20}G")
    await asyncio.to_thread(path.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
    try:
        await _qemu_img(*arguments)
        await asyncio.to_thread(part.replace, path)
        await asyncio.to_thread(sync_path, path.parent)
    finally:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(part.unlink, missing_ok=True)


async def image_format(path: Path) -> str:
    """The format of an image, as it says itself. Only formats that refer to no further file are taken for a base."""
    found = json.loads(await _qemu_img("info", "--output=json", str(path)))
    kind = str(found.get("format"))
    if kind not in _KNOWN_FORMATS or "backing-filename" in found:
        raise RunError(
            f"{path} is no base image: it must be qcow2 or raw, without a backing file",
            failure=FailureReason.INVALID_SPEC,
        )
    return kind


async def _qemu_img(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "qemu-img",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TOOL_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise RunError("qemu-img takes too long", failure=FailureReason.STORAGE_ERROR, transient=True) from error
    if process.returncode != 0:
        words = errors.decode(errors="replace").strip()[-500:]
        raise RunError(f"qemu-img {arguments[0]}: {words}", failure=FailureReason.STORAGE_ERROR, transient=True)
    return output

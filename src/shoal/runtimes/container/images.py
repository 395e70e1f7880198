"""Makes sure that the image of a container is there: pull policy, progress, and logins from the usual file.

Logins are read from `$REGISTRY_AUTH_FILE`, `$XDG_RUNTIME_DIR/containers/auth.json`, `~/.config/containers/auth.json`,
`$DOCKER_CONFIG/config.json` or `~/.docker/config.json` for each pull, so a changed password needs no restart.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.core.clock import Clock
from shoal.model.spec.words import PullPolicy
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError, Tell
from shoal.runtimes.container import failures
from shoal.runtimes.container.engine.api import EngineApi, EngineError

log = logging.getLogger(__name__)

_DEFAULT_REGISTRY = "https://index.docker.io/v1/"
#: How images and Podman's login files name it.
_DEFAULT_NAMES = ("docker.io", "index.docker.io", "registry-1.docker.io")
_MAX_CONFIG = 1 << 20
#: Between two words about progress.
_PROGRESS_SECONDS = 5.0
_MAX_LAYERS = 1000
#: Pulls at the same time, of one runtime.
MAX_PULLS = 8
#: A pull without a step forward for this long has failed; one that has downloaded everything has longer to unpack it.
STALL_SECONDS = 120.0
UNPACK_SECONDS = 1800.0
#: What Docker says of a layer while it waits to try again.
_RETRY = re.compile(r"Retrying in \d+ second")
_MAX_HEALTHCHECKS = 256


class ImagePulls:
    """Pulls the images of one runtime, a few at a time. A pull that makes no progress for some time has failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(MAX_PULLS)

    async def ensure(self, api: EngineApi, image: str, policy: str, *, tell: Tell | None = None) -> None:
        """Have an image at hand. Without a policy it is pulled when it is missing. Raises `RunError`.

        `tell` hears of the progress of a pull.
        """
        if policy != PullPolicy.ALWAYS and await _is_there(api, image):
            return
        if policy == PullPolicy.NEVER:
            raise RunError(
                f"the engine has no image {image!r}, and it may not be pulled",
                failure=FailureReason.IMAGE_NOT_FOUND,
                hint="load the image on the node, or set pull_policy to missing",
            )
        login = await asyncio.to_thread(find_login, image, os.environ)
        async with self._turns:
            try:
                await self._pull(api, image, login, tell)
            except EngineError as error:
                raise failures.run_error(error, failures.judge_pull(error), what=f"cannot pull {image}") from error

    async def _pull(self, api: EngineApi, image: str, login: Mapping[str, str] | None, tell: Tell | None) -> None:
        log.info("pulling %s", image)
        progress = PullProgress()
        told_at = moved_at = self._clock.monotonic()
        steps = api.pull(image, auth=login)
        async with contextlib.aclosing(steps):
            while True:
                patience = UNPACK_SECONDS if progress.is_downloaded else STALL_SECONDS
                try:
                    async with asyncio.timeout(moved_at + patience - self._clock.monotonic()):
                        step = await anext(steps)
                except StopAsyncIteration:
                    break
                except TimeoutError as error:
                    # Closing the stream ends the pull.
                    raise RunError(
                        f"cannot pull {image}: no progress for {patience:.0f} s ({progress})",
                        failure=FailureReason.IMAGE_PULL_FAILED,
                        transient=True,
                        hint="the registry, or the network on the way to it, does not answer",
                    ) from error
                now = self._clock.monotonic()
                if progress.note(step):
                    moved_at = now
                if now - told_at >= _PROGRESS_SECONDS:
                    told_at = now
                    log.info("pulling %s: %s", image, progress)
                    if tell is not None:
                        tell(f"pulling {image}: {progress}")
        log.info("pulled %s", image)


async def _is_there(api: EngineApi, image: str) -> bool:
    try:
        return await api.image(image) is not None
    except EngineError as error:
        raise failures.run_error(error, failures.judge_start(error), what=f"cannot look for {image}") from error


class Healthchecks:
    """The HEALTHCHECKs of images, asked for once: the image of an id never changes."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Any]] = {}

    async def of(self, api: EngineApi, image_id: str) -> Mapping[str, Any]:
        """The HEALTHCHECK of an image; empty without one."""
        if image_id not in self._known:
            if len(self._known) >= _MAX_HEALTHCHECKS:
                self._known.clear()
            self._known[image_id] = await api.image_healthcheck(image_id)
        return self._known[image_id]


class PullProgress:
    """How far a pull is, from the steps that the engine tells: layers, and bytes where it knows them."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()
        #: The last words about each layer, and about the whole.
        self._said: dict[str, str] = {}

    @property
    def is_downloaded(self) -> bool:
        """Whether every layer is here. Unpacking takes its time, and not every engine tells of it."""
        return bool(self._layers) and self._done.issuperset(self._layers)

    def note(self, step: Mapping[str, Any]) -> bool:
        """Take in one step; whether it is one forward. The same words again, or a retry, are none."""
        layer, status = str(step.get("id") or ""), str(step.get("status") or step.get("stream") or "")
        if len(self._said) >= _MAX_LAYERS and layer not in self._said:
            return True
        is_new = self._said.get(layer) != status and not _RETRY.match(status)
        self._said[layer] = status
        if not layer:
            return is_new
        detail = step.get("progressDetail")
        numbers = detail if isinstance(detail, dict) else {}
        current, total = numbers.get("current"), numbers.get("total")
        before = self._layers.setdefault(layer, (0, 0))
        if isinstance(current, int) and isinstance(total, int):
            self._layers[layer] = (current, total)
            is_new = is_new or current > before[0]
        if status in ("Pull complete", "Download complete", "Already exists"):
            self._done.add(layer)
        return is_new

    def __str__(self) -> str:
        current, total = (
            (sum(numbers) for numbers in zip(*self._layers.values(), strict=True)) if self._layers else (0, 0)
        )
        return f"{len(self._done)} of {len(self._layers)} layers, {current >> 20} of {total >> 20} MiB"


def registry_of(image: str) -> str:
    """The registry that an image comes from, as login files name it."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost") and first not in _DEFAULT_NAMES:
        return first
    return _DEFAULT_REGISTRY


def _login_keys(image: str) -> Iterator[str]:
    """Under what a login file may have the login for an image, the most specific first."""
    registry = registry_of(image)
    path = image.partition("@")[0]
    if registry == _DEFAULT_REGISTRY:
        first, _, rest = path.partition("/")
        path = f"docker.io/{rest if first in _DEFAULT_NAMES else path}"
    # Podman's files may have one for a repository, or for all below a name.
    parts = path.split("/")
    parts[-1] = parts[-1].partition(":")[0]
    yield from ("/".join(parts[:count]) for count in range(len(parts), 1, -1))
    names = _DEFAULT_NAMES if registry == _DEFAULT_REGISTRY else (f"https://{registry}",)
    yield from (registry, *names)


def find_login(image: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """The user name and password for an image, or None when the login file has none."""
    registry = registry_of(image)
    for path in _login_files(environ):
        try:
            if path.stat().st_size > _MAX_CONFIG:
                continue
            logins = json.loads(path.read_bytes()).get("auths") or {}
            entry: Mapping[str, str] = next((logins[key] for key in _login_keys(image) if key in logins), {})
            user, found, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
        except (OSError, ValueError, TypeError, AttributeError, binascii.Error):
            continue
        if found:
            return {"username": user, "password": password, "serveraddress": registry}
    return None


def _login_files(environ: Mapping[str, str]) -> list[Path]:
    files = []
    if given := environ.get("REGISTRY_AUTH_FILE"):
        files.append(Path(given))
    if given := environ.get("XDG_RUNTIME_DIR"):
        files.append(Path(given) / "containers" / "auth.json")
    if home := environ.get("HOME"):
        files.append(Path(home) / ".config" / "containers" / "auth.json")
    if given := environ.get("DOCKER_CONFIG"):
        files.append(Path(given) / "config.json")
    if home:
        files.append(Path(home) / ".docker" / "config.json")
    return files

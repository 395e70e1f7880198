"""Makes sure that the image of a container is there: pull policy, progress, and logins from the usual file.

Logins are read from `$REGISTRY_AUTH_FILE`, `$DOCKER_CONFIG/config.json` or `~/.docker/config.json` for each pull, so a
changed password needs no restart.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.model.workloads import ContainerSpec, FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.container import failures
from shoal.runtimes.container.api import EngineApi, EngineError

log = logging.getLogger(__name__)

_DEFAULT_REGISTRY = "https://index.docker.io/v1/"
_MAX_CONFIG = 1 << 20


async def ensure(api: EngineApi, spec: ContainerSpec) -> None:
    """Have the image at hand, by the spec's pull policy. Raises `RunError`."""
    await ensure_image(api, spec.image, spec.pull_policy)


async def ensure_image(api: EngineApi, image: str, policy: str) -> None:
    """Have an image at hand. Without a policy it is pulled when it is missing. Raises `RunError`."""
    if policy != "always" and await api.image(image) is not None:
        return
    if policy == "never":
        raise RunError(
            f"the engine has no image {image!r}, and it may not be pulled",
            failure=FailureReason.IMAGE_NOT_FOUND,
            hint="load the image on the node, or set pull_policy to missing",
        )
    login = await asyncio.to_thread(find_login, image, os.environ)
    try:
        async for step in api.pull(image, auth=login):
            log.debug("pulling %s: %s", image, step.get("status", ""))
    except EngineError as error:
        raise failures.run_error(error, failures.judge_pull(error), what=f"cannot pull {image}") from error


def registry_of(image: str) -> str:
    """The registry that an image comes from, as login files name it."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first
    return _DEFAULT_REGISTRY


def find_login(image: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """The user name and password for an image, or None when the login file has none."""
    registry = registry_of(image)
    for path in _login_files(environ):
        try:
            if path.stat().st_size > _MAX_CONFIG:
                continue
            logins = json.loads(path.read_bytes()).get("auths") or {}
            entry = logins.get(registry) or logins.get(f"https://{registry}") or {}
            user, found, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
        except (OSError, ValueError, AttributeError, binascii.Error):
            continue
        if found:
            return {"username": user, "password": password, "serveraddress": registry}
    return None


def _login_files(environ: Mapping[str, str]) -> list[Path]:
    files = []
    if given := environ.get("REGISTRY_AUTH_FILE"):
        files.append(Path(given))
    if given := environ.get("DOCKER_CONFIG"):
        files.append(Path(given) / "config.json")
    if home := environ.get("HOME"):
        files.append(Path(home) / ".docker" / "config.json")
    return files

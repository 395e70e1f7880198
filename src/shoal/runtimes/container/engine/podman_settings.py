"""The settings of a Podman service that an agent starts: those of the machine, and one of ours.

Podman keeps each ended command of the API, with two processes, for as long as `exit_command_delay` says: five minutes
unless it is set. A health check every five seconds would keep 120 processes. Called by `finding`.
"""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

#: How long an ended command can be asked for its exit code.
EXIT_COMMAND_DELAY = 10
_DEFAULTS = Path("/usr/share/containers/containers.conf")
_MACHINE = Path("/etc/containers/containers.conf")


def service_settings(environ: Mapping[str, str]) -> str:
    """A whole containers.conf, to be named by CONTAINERS_CONF. Empty when that of the machine cannot be read."""
    try:
        return merge_settings(path.read_text() for path in _files(environ) if path.is_file())
    except (OSError, ValueError) as error:
        log.warning("the settings of Podman cannot be read, and are left to it: %s", error)
        return ""


def merge_settings(texts: Iterable[str]) -> str:
    """One containers.conf with what each of several adds to those before it. Pure. Raises `ValueError`."""
    merged: dict[str, Any] = {}
    for text in texts:
        _merge(merged, tomllib.loads(text))
    merged.setdefault("engine", {}).setdefault("exit_command_delay", EXIT_COMMAND_DELAY)
    return "".join(f"{json.dumps(name)} = {_toml(value)}\n" for name, value in merged.items())


def _files(environ: Mapping[str, str]) -> list[Path]:
    """The files that Podman reads, in its order."""
    if given := environ.get("CONTAINERS_CONF", ""):
        return [Path(given)]
    files = [_DEFAULTS, _MACHINE, *sorted(_MACHINE.with_name("containers.conf.d").glob("*.conf"))]
    if os.geteuid() != 0:
        own = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "containers/containers.conf"
        files += [own, *sorted(own.with_name("containers.conf.d").glob("*.conf"))]
    return files


def _merge(into: dict[str, Any], added: Mapping[str, Any]) -> None:
    for name, value in added.items():
        known = into.get(name)
        if isinstance(known, dict) and isinstance(value, Mapping):
            _merge(known, value)
        else:
            into[name] = value


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)

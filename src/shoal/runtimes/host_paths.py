"""Which paths of the node a workload may not mount unless its agent allows privileged ones.

A path is compared as it is written and as it is found on disk, so a link to a protected path is protected, too. Called
by the runtimes for containers and for compose projects.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

#: They show the machine itself, other workloads, or who may do what. What is above one of them would show it.
_PROTECTED = (
    *("/boot", "/dev", "/proc", "/run", "/sys", "/var/run", "/var/lib/containers", "/var/lib/docker"),
    *("/etc/containers", "/etc/docker", "/etc/gshadow", "/etc/shadow", "/etc/ssh", "/etc/sudoers", "/etc/sudoers.d"),
)
_OF_A_USER = (".config/containers", ".local/share/containers", ".ssh")


def own_paths(data_dir: Path, engine: str) -> tuple[str, ...]:
    """What an agent protects besides: its data directory, its user's engine, and the socket of the one it uses."""
    home = os.environ.get("HOME", "/root")
    found = [str(data_dir.absolute()), *(f"{home}/{each}" for each in _OF_A_USER)]
    if engine.startswith("unix://"):
        found.append(engine.removeprefix("unix://"))
    return tuple(found)


def is_protected(path: str, own: Sequence[str] = ()) -> bool:
    """Whether an absolute path is protected, is in what is, or is above it. Reads the file system, for links."""
    if not path.startswith("/") or any(each in path for each in ":,\0"):
        return True  # an engine would read it as something else
    protected = {form for each in (*_PROTECTED, *own) if each.startswith("/") for form in _forms(each)}
    return any(_is_in(form, each) or _is_in(each, form) for form in _forms(path) for each in protected)


def _forms(path: str) -> tuple[str, str]:
    plain = posixpath.normpath(f"/{path.lstrip('/')}")
    return plain, os.path.realpath(plain)


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")

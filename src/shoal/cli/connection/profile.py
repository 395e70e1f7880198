"""The client profile of `shoal up`: with it, commands need no connection options.

    control = "127.0.0.1:8085"
    ca = "certs/operator/ca.pem"
    cert = "certs/operator/cert.pem"
    key = "certs/operator/key.pem"

Paths are relative to the file. Commands without connection options look for `.shoal/client.toml` in the current folder
and in those above it. It names the authority to trust, so a file that somebody else may have written is refused.
Written by `shoal.cli.local.fleet`; read by `shoal.cli.connection.session`.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from shoal.core.disk.private_files import read_private, write_private
from shoal.core.errors import InvalidError, Problem, ShoalError, problem

FOLDER = ".shoal"
FILE = "client.toml"

_PATHS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Profile:
    """The address of a control plane, and the files for its TLS."""

    control: str
    ca: str
    cert: str
    key: str

    @property
    def variables(self) -> dict[str, str]:
        """The same as environment variables of client commands."""
        return {
            "SHOAL_CONTROL": self.control,
            "SHOAL_CA": self.ca,
            "SHOAL_CERT": self.cert,
            "SHOAL_KEY": self.key,
        }


def find_profile(directory: Path | None = None) -> Profile | None:
    """The profile of a folder, by default the current one, or of the nearest folder above it; None without one.

    Raises `InvalidError` for a profile that others may write to. One that another user left in a folder above, such as
    in /tmp, is skipped.
    """
    try:
        start = (directory or Path()).absolute()
    except FileNotFoundError:  # the current folder was deleted
        return None
    for folder in (start, *start.parents):
        path = folder / FOLDER / FILE
        try:
            facts = path.stat()
        except OSError:
            continue
        is_foreign = facts.st_uid not in (os.geteuid(), 0)
        if is_foreign and folder != start:
            continue
        if is_foreign or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            rule = "must be yours, and writable by nobody else: it says which authority to trust"
            hint = "give --control, --ca, --cert and --key"
            raise InvalidError([problem(str(path), None, rule)], hint=hint)
        return _read(path)
    return None


def write_profile(directory: Path, profile: Profile) -> None:
    """Write the profile of a folder, replacing the one that is there."""
    lines = [f"control = {json.dumps(profile.control)}"]
    for name in _PATHS:
        path = os.path.relpath(getattr(profile, name), directory)
        lines.append(f"{name} = {json.dumps(path, ensure_ascii=False)}")
    write_private(directory / FILE, ("\n".join(lines) + "\n").encode())


def _read(path: Path) -> Profile:
    import tomllib

    try:
        table = tomllib.loads(read_private(path).decode())
    except (ShoalError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidError([Problem(str(path), "", f"must be TOML: {error}")]) from error
    wrong = [
        problem(f"{path}: {name}", table.get(name), "must be text")
        for name in ("control", *_PATHS)
        if not isinstance(table.get(name), str)
    ]
    if wrong:
        raise InvalidError(wrong, hint="`shoal up` writes it again")
    files = [str(path.parent / table[name]) for name in _PATHS]
    return Profile(table["control"], *files)

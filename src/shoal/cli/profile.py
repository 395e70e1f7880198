"""The client profile that `shoal up` leaves in its folder, so that a newcomer has nothing to type.

    control = "127.0.0.1:8085"
    ca = "certs/operator/ca.pem"
    cert = "certs/operator/cert.pem"
    key = "certs/operator/key.pem"

Paths are relative to the file. Commands that were told nothing look for it below the folder they were started in. It
says whom to trust, so only one that nobody else can have written is taken. Written by `shoal.cli.fleet`; read by
`shoal.cli.session`.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import InvalidError, Problem, ShoalError, problem
from shoal.core.private_files import read_private, write_private

FOLDER = ".shoal"
FILE = "client.toml"

_PATHS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a control plane is, and the files to show to it."""

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
    """The profile below a folder, by default the one we are in; None when there is none."""
    path = (directory or Path()) / FOLDER / FILE
    try:
        facts = path.stat()
    except OSError:
        return None
    if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        rule = "must be yours, and writable by nobody else: it says whom to trust"
        raise InvalidError([problem(str(path), None, rule)], hint="say what to use with --control, --ca, --cert, --key")
    return _read(path)


def write_profile(directory: Path, profile: Profile) -> None:
    """Leave a profile in a folder, replacing the one that is there."""
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
        raise InvalidError(wrong, hint="`shoal up` writes it anew")
    files = [str(path.parent / table[name]) for name in _PATHS]
    return Profile(table["control"], *files)

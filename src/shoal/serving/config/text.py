"""Reads the text of `agent.conf`: keys and values with the line that each stands in.

    # a comment
    include /etc/monolith/common.conf      a path, relative to this file; read in this place
    bzid gip                               `key value`, `key=value` and `key = value` are the same
    layout_filters ps_{i}; i % 2 == 1      the value is the rest of the line, without a comment
    layout_filters entry                   a key may be repeated; the field decides what that means

What a value means is not known here. Called by `shoal.serving.config.settings`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from shoal.core import files
from shoal.core.errors import NotFoundError, Problem, ShoalError, problem

MAX_FILE_BYTES = 1024 * 1024
MAX_ENTRIES = 10_000
MAX_FILES = 1000

_SEPARATOR = re.compile(r"[ \t=]+")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a file."""

    key: str
    value: str
    path: str
    line: int

    @property
    def where(self) -> str:
        """As errors name it."""
        return f"{self.path}:{self.line}: {self.key}"


def read_entries(path: str) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """Every line of a file and of the files it includes, in order, and what cannot be read of them."""
    reading = _Reading()
    reading.read(path, where=path, open_paths=())
    return tuple(reading.entries), tuple(reading.problems)


class _Reading:
    """What was read of a file and of those that it includes."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.problems: list[Problem] = []
        self._files = 0

    def read(self, path: str, *, where: str, open_paths: tuple[str, ...]) -> None:
        if "\0" in path:
            self.problems.append(problem(where, path, "must be a path without null characters"))
            return
        real = path if "://" in path else os.path.realpath(path)
        if real in open_paths:
            chain = " includes ".join((*open_paths[open_paths.index(real) :], real))
            self.problems.append(problem(where, path, f"must not include itself: {chain}"))
            return
        self._files += 1
        if self._files > MAX_FILES:
            self.problems.append(problem(where, path, f"must not include more than {MAX_FILES:,} files"))
            return
        try:
            text = files.read_bytes(path, limit=MAX_FILE_BYTES).decode()
        except NotFoundError:
            self.problems.append(problem(where, path, "must be a file that exists"))
            return
        except ShoalError as error:
            self.problems.append(Problem(where, "", error.message))
            return
        except UnicodeDecodeError:
            self.problems.append(problem(where, path, "must be UTF-8 text"))
            return
        for number, line in enumerate(text.splitlines(), start=1):
            content = line.partition("#")[0].strip(" \t\r")
            if content and len(self.entries) < MAX_ENTRIES:
                self._take(content, path, number, (*open_paths, real))
        if len(self.entries) >= MAX_ENTRIES:
            self.problems.append(
                problem(path, None, f"must have fewer than {MAX_ENTRIES:,} lines with all it includes")
            )

    def _take(self, content: str, path: str, number: int, open_paths: tuple[str, ...]) -> None:
        key, *rest = _SEPARATOR.split(content, maxsplit=1)
        entry = Entry(key, rest[0] if rest else "", path, number)
        if not _KEY.fullmatch(key):
            rule = "must begin with a key of letters, digits and underscores"
            self.problems.append(problem(f"{path}:{number}", content, rule))
        elif not entry.value:
            self.problems.append(problem(entry.where, None, "must have a value"))
        elif key == "include":
            included = files.join(files.parent(path), entry.value)
            self.read(included, where=entry.where, open_paths=open_paths)
        else:
            self.entries.append(entry)

"""What the next agent needs to go on with the processes of one that was killed: their runs, and the ports it chose.

A process is adopted if it would be started in the same way again: by the same command, environment, program file and
configuration. The file holds a digest of these, because an environment may hold secrets. Called by `runner` and by
`shoal.serving.server`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core import files
from shoal.core.errors import InvalidError
from shoal.core.ids import RunId
from shoal.core.shape import build, to_mapping
from shoal.serving.processes.graph import ProcessNode

#: Variables that differ from start to start and mean nothing to a model server.
_VOLATILE = frozenset(
    {"_", "PWD", "OLDPWD", "SHLVL", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET"}
)


@dataclass(frozen=True, slots=True)
class RememberedRun:
    """One process."""

    run_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Document:
    ports: tuple[int, ...] = ()
    runs: Mapping[str, RememberedRun] = field(default_factory=dict)


class Remembered:
    """The file of one data directory. One that is missing or damaged remembers nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now = _Document()

    @classmethod
    def load(cls, path: Path) -> Remembered:
        """Read the file."""
        made = cls(path)
        try:
            made._now = build(_Document, json.loads(path.read_bytes()), at=str(path))
        except (OSError, ValueError, RecursionError, InvalidError):
            made._now = _Document()
        return made

    @property
    def ports(self) -> tuple[int, ...]:
        """The free ports that were chosen, in their order."""
        return self._now.ports

    def keep_ports(self, ports: tuple[int, ...]) -> None:
        """Remember the ports of this agent."""
        self._save(_Document(ports, self._now.runs))

    def matches(self, node: ProcessNode, run_id: RunId) -> bool:
        """Whether a run is this process, started as it would be started now."""
        known = self._now.runs.get(node.name)
        return known is not None and known == RememberedRun(run_id, fingerprint(node))

    def keep_run(self, node: ProcessNode, run_id: RunId) -> None:
        """Remember a run."""
        runs = {**self._now.runs, node.name: RememberedRun(run_id, fingerprint(node))}
        self._save(_Document(self._now.ports, runs))

    def _save(self, document: _Document) -> None:
        self._now = document
        files.write_atomic(str(self._path), json.dumps(to_mapping(document)).encode())


def fingerprint(node: ProcessNode) -> str:
    """A digest of everything that decides how a process runs."""
    env = sorted((name, value) for name, value in node.env.items() if name not in _VOLATILE)
    return hashlib.sha256(repr((node.command, env, _program_facts(node), node.config)).encode()).hexdigest()


def _program_facts(node: ProcessNode) -> tuple[int, ...]:
    """What changes when the program is replaced by another version."""
    program = shutil.which(node.command[0], path=node.env.get("PATH"))
    try:
        found = Path(program).stat() if program else None
    except OSError:
        found = None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found is not None else ()

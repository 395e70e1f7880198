"""Copies of state files on the disk of a task host, so that a restore there reads what its tasks wrote from it.

State files never change, and a manifest has the size of each and the checksum of its header; so a copy that is whole is
as good as the file, and one that is not is dropped. What a copy costs is disk, never a checkpoint: one that cannot be
written is left out. Used by `statestore`, for checkpoints that lie elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

_PART = ".part"


class Copy:
    """A copy that is being written. What fails ends it, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + _PART)
        self._file: IO[bytes] | None = None
        with self._giving_up():
            self._file = self._part.open("wb")

    def write(self, content: bytes) -> None:
        """More of it."""
        if self._file is not None:
            with self._giving_up():
                self._file.write(content)

    def finish(self) -> None:
        """The file that it is of is there."""
        if self._file is not None:
            with self._giving_up():
                self._file.close()
                self._part.replace(self._path)
                self._file = None

    def give_up(self) -> None:
        """Leave nothing of it. Does nothing to one that is finished."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                self._part.unlink()

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.warning("state is not copied to %s: %s", self._path, error)
            self.give_up()


@dataclass(slots=True)
class _Needs:
    """What one task needs."""

    #: The files of its last two checkpoints: it may have to go back to the one before.
    files: list[frozenset[str]] = field(default_factory=list)
    #: What it has written since.
    written: set[str] = field(default_factory=set)


class LocalCopies:
    """The copies in one folder. Several tasks share it, from threads of their own."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._needs: dict[object, _Needs] = {}

    def join(self, task: object) -> None:
        """A task is going to write."""
        with self._lock:
            self._needs[task] = _Needs()

    def begin(self, task: object, name: str) -> Copy:
        """Begin a copy of a file that a task writes."""
        with self._lock:
            self._needs[task].written.add(name)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        return Copy(self._folder / name)

    def find(self, name: str, size: int) -> str | None:
        """Where a whole copy of a file is; None where there is none."""
        path = self._folder / name
        try:
            return str(path) if path.stat().st_size == size else None
        except OSError:
            return None

    def drop(self, name: str) -> bool:
        """Remove a copy that is no good. False when there is none."""
        try:
            (self._folder / name).unlink()
        except OSError:
            return False
        log.warning("the copy of state file %s is damaged; the file itself is read", name)
        return True

    def restore_from(self, names: Iterable[str]) -> int:
        """Every task goes on from these files: keep no other. Returns of how many there are copies."""
        with self._lock:
            restored = frozenset(names)
            for needs in self._needs.values():
                needs.files = [restored]
            return self._prune()

    def need(self, task: object, names: Iterable[str]) -> None:
        """A task has made a checkpoint that needs these files."""
        with self._lock:
            needs = self._needs[task]
            needs.files = [*needs.files[-1:], frozenset(names)]
            needs.written.clear()
            self._prune()

    def _prune(self) -> int:
        needed = {name for needs in self._needs.values() for name in needs.written.union(*needs.files)}
        try:
            found = {path.name for path in self._folder.iterdir()}
        except OSError:
            return 0
        for name in found:
            if name.removesuffix(_PART) not in needed:
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
        return len(found & needed)

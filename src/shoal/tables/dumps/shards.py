"""The files of one Monolith dump, which replace those of the previous one. Called by `monolith`.

A dump is several files, `{base}-00000-of-00004` and so on, perhaps with `{base}.meta-…` beside them, and they cannot
take their places in one step. So everything is written under other names first. Then the previous files are removed,
and only when none is left the new ones take their places, the counts before the entries. Wherever a writer is killed,
`find` sees the previous dump, or the new one, or refuses what is there; it never sees files of both. A dump of a single
file without counts replaces the previous one in one step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from shoal.core import faults, files
from shoal.core.errors import InvalidError, NotFoundError, problem

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")


class DumpWriter:
    """The files of a dump while they are written. Leaving the `with` block without `commit` throws them away."""

    def __init__(self, base: str, count: int) -> None:
        self._base = base
        self.paths = [_path(base, number, count) for number in range(count)]
        self.files: list[files.File] = []

    def commit(self, counts: Sequence[bytes] = ()) -> None:
        """Let the files take their places, and remove those of the previous dump.

        Args:
            counts: the content of the file of counts beside each file, where there are such.
        """
        previous = sorted(_shards(self._base))
        if counts or previous not in ([], self.paths[:1]):
            # A dump without its first file is refused, so that the counts may go after the entries.
            for path in [*previous, *sorted(_shards(counts_path(self._base)))]:
                files.remove(path)
                faults.reach("dump.previous.removed")
        for path, content in zip(self.paths, counts, strict=bool(counts)):
            files.write_atomic(counts_path(path), content)
            faults.reach("dump.counts.after")
        for each in self.files:
            each.close()
            faults.reach("dump.file.after")

    def __enter__(self) -> Self:
        try:
            for path in self.paths:
                self.files.append(files.open_file(path, "wb"))
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._discard()

    def _discard(self) -> None:
        for each in self.files:
            each.discard()


def find(base: str) -> list[str]:
    """The files of a dump, all of them, in order. `base` may also be the path of one file."""
    if _SHARD.search(base):
        return [base]
    found = _shards(base)
    if not found:
        raise NotFoundError("table dump", base)
    numbers = [int(number) for number, _ in sorted(found.values())]
    counts = {int(count) for _, count in found.values()}
    if len(counts) != 1 or numbers != list(range(counts.pop())):
        shown = ", ".join(files.name(path) for path in sorted(found))
        raise InvalidError([problem("files", shown, "must be all of one dump, and of one dump only")], what=base)
    return sorted(found)


def counts_path(path: str) -> str:
    """The file of counts beside a file; of a base, the base of those files."""
    shard = _SHARD.search(path)
    return f"{path}.meta" if shard is None else f"{path[: shard.start()]}.meta{shard.group()}"


def _shards(base: str) -> dict[str, tuple[str, str]]:
    """The number and the count in the name of each file of a base, by path."""
    own = files.name(base)
    found = {}
    for entry in files.list_files(files.parent(base)):
        shard = _SHARD.search(entry.path)
        if shard is not None and files.name(entry.path)[: -len(shard.group())] == own:
            found[entry.path] = (shard[1], shard[2])
    return found


def _path(base: str, number: int, count: int) -> str:
    return f"{base}-{number:05d}-of-{count:05d}"

"""Reads a table that another process keeps in shared memory: without locks, and never half a row.

The writer's `SharedMemory` folder holds the settings, the headers of the shards, an index per shard and generation, and
blocks of rows. A reader maps them as the headers say. When a shard has grown, the reader maps what is new and repeats
the lookup. When the writer has ended, the last state stays; when another one begins, the reader goes over to its table.
Called by model servers on the host of a writer.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from shoal.core.errors import NotFoundError, PreconditionError, UnavailableError
from shoal.tables.kernels import lookups, places
from shoal.tables.layout import Floats, Words, make_layout
from shoal.tables.memory import Bytes, map_shared
from shoal.tables.settings.table import TableSettings
from shoal.tables.shards import Directory
from shoal.tables.table import SETTINGS_FILE, as_ids

#: A writer that grows takes a moment between making a file and announcing it; so often it is looked for again.
_TRIES = 1000
#: Seconds between two looks at a row that is half written.
_PAUSE = 0.001
_MOST_GENERATIONS = 48


class SharedTableReader:
    """A table of another process, to look ids up. Use one per thread.

    Args:
        folder: that of the writer's `SharedMemory`.
        patience: seconds after which a row that stays half written is an error: its writer was killed.

    Raises:
        NotFoundError: there is no table, or not yet.
        UnavailableError: its files are not what they say.
    """

    def __init__(self, folder: Path | str, *, patience: float = 5.0) -> None:
        self._folder = Path(folder)
        self._patience = patience
        self._pause = threading.Event()
        self._mapped = _Mapped(self._folder)
        self._closed = False

    @property
    def settings(self) -> TableSettings:
        """The settings of the table."""
        return self._mapped.settings

    def lookup(self, ids: npt.ArrayLike) -> Floats:
        """The weights of ids, a line each; zeros for an id that is not there.

        Raises:
            UnavailableError: a row stays half written, or the table changes faster than it can be followed.
            PreconditionError: the reader is closed.
        """
        keys = as_ids(ids)
        if self._closed:
            raise PreconditionError(f"the reader of shared table {self._folder} is closed")
        self._follow()
        stale, waited = 0, 0.0
        while stale < _TRIES:
            mapped, layout = self._mapped, self._mapped.layout
            values = np.empty((keys.size, layout.width), np.float32)
            found = lookups.lookup(
                mapped.directory.shards, layout.geometry, layout.plan, layout.parameters, keys, values
            )
            if found >= 0:
                return values
            if found == lookups.STALE:
                stale += 1
                self._follow()
                if mapped is self._mapped:
                    with contextlib.suppress(NotFoundError):  # another writer has begun meanwhile
                        mapped.catch_up()
            elif waited >= self._patience:
                raise UnavailableError(
                    f"shared table {self._folder}: a row is half written for {self._patience:g} s",
                    hint="its writer was killed, or stands still; start it again",
                )
            else:
                self._pause.wait(_PAUSE)
                waited += _PAUSE
                self._follow()
        raise UnavailableError(f"shared table {self._folder} changes faster than it can be followed")

    def __len__(self) -> int:
        return int(self._mapped.headers[:, places.COUNT].sum())

    def close(self) -> None:
        """Let the memory go."""
        self._closed = True
        self._mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self) -> None:
        """Go over to the table of another writer, if there is one. Without, the last state of this one is kept."""
        with contextlib.suppress(NotFoundError):
            if _identity_of(self._folder) != self._mapped.identity:
                self._mapped = _Mapped(self._folder)


class _Mapped:
    """The memory of one writer's table, as far as it is mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The settings are written last, and stay mapped: meanwhile no file of another writer has their number.
        self._content, self.identity = self._map_settings()
        self.settings = TableSettings.from_json(self._content.tobytes(), what=f"shared table {folder}")
        self.layout = make_layout(self.settings)
        headers = self._map_file("headers", self.settings.shards * places.HEADER_WORDS * 8)
        self.headers = headers.view(np.int64).reshape(self.settings.shards, places.HEADER_WORDS)
        self._blocks: list[list[Bytes]] = [[] for _ in range(self.settings.shards)]
        self._indexes: list[tuple[int, Bytes]] = [(0, np.zeros(0, np.uint8))] * self.settings.shards
        self.catch_up()

    def close(self) -> None:
        """Let the memory go."""
        self._blocks, self._indexes = [], []
        self.directory = Directory(np.zeros((0, places.DIRECTORY_COLUMNS), np.int64), ())

    def catch_up(self) -> None:
        """Map what the headers tell of and this process does not have yet."""
        found = np.zeros((self.settings.shards, places.DIRECTORY_COLUMNS), np.int64)
        tables: list[Words] = []
        for shard in range(self.settings.shards):
            header, line = self.headers[shard], found[shard]
            generation, index = self._map_index(shard)
            for number in range(len(self._blocks[shard]), int(header[places.BLOCKS])):
                size = self.layout.block_rows * self.layout.stride
                self._blocks[shard].append(self._map_file(f"rows-{shard}-{number}", size))
            tables.append(np.array([each.ctypes.data for each in self._blocks[shard]], np.int64))
            line[places.D_HEADER] = header.ctypes.data
            line[places.D_INDEX], line[places.D_CAPACITY] = index.ctypes.data, index.nbytes // places.SLOT_BYTES
            line[places.D_GENERATION] = generation
            line[places.D_BLOCKS], line[places.D_BLOCK_COUNT] = tables[-1].ctypes.data, len(self._blocks[shard])
        self.directory = Directory(found, (tuple(tables), tuple(self._indexes), self._blocks, self.headers))

    def _map_settings(self) -> tuple[Bytes, tuple[int, int]]:
        """The settings, and which file they are."""
        for _ in range(_TRIES):
            identity = _identity_of(self._folder)
            content = map_shared(self._folder, SETTINGS_FILE)
            if identity == _identity_of(self._folder):
                return content, identity
        raise UnavailableError(f"shared table {self._folder} changes faster than it can be followed")

    def _map_file(self, name: str, size: int) -> Bytes:
        """A file of the table. Kernels read all of it, so it must have the size that the table says.

        Raises `NotFoundError` when another writer has begun: a file of its own may have the name.
        """
        found = map_shared(self._folder, name)
        if _identity_of(self._folder) != self.identity:
            raise NotFoundError("shared memory", f"{self._folder / name} of the same writer")
        if found.nbytes != size:
            raise UnavailableError(f"shared table {self._folder}: {name} has {found.nbytes} bytes and not {size}")
        return found

    def _map_index(self, shard: int) -> tuple[int, Bytes]:
        """The index of the newest generation. The writer may replace it between the look and the mapping."""
        for _ in range(_TRIES):
            generation = int(self.headers[shard, places.GENERATION])
            if not 1 <= generation < _MOST_GENERATIONS:
                raise UnavailableError(f"shared table {self._folder}: shard {shard} is of generation {generation}")
            if self._indexes[shard][0] == generation:
                break
            try:
                # Each generation has twice the places of the one before.
                size = (self.layout.first_capacity << (generation - 1)) * places.SLOT_BYTES
                self._indexes[shard] = (generation, self._map_file(f"index-{shard}-{generation}", size))
            except NotFoundError:
                continue
            break
        else:
            raise UnavailableError(f"shared table {self._folder}: shard {shard} has no index")
        return self._indexes[shard]


def _identity_of(folder: Path) -> tuple[int, int]:
    """The number of the file of settings. Raises `NotFoundError` when there is none."""
    try:
        found = os.stat(f"{folder}/{SETTINGS_FILE}")  # noqa: PTH116  it is asked for at each lookup
    except OSError:
        raise NotFoundError("shared memory", f"{folder}/{SETTINGS_FILE}") from None
    return found.st_dev, found.st_ino

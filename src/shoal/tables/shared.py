"""Reads a table that another process keeps in shared memory: without locks, and never half a row.

The writer's `SharedMemory` folder holds the settings, the headers of the shards, an index per shard and generation, and
blocks of rows. A reader maps them as the headers say. When a shard has grown, the reader maps what is new and repeats
the lookup. Called by model servers on the host of a writer.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from shoal.core.errors import NotFoundError, UnavailableError
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


class SharedTableReader:
    """A table of another process, to look ids up. Use one per thread.

    Args:
        folder: that of the writer's `SharedMemory`.
        patience: seconds after which a row that stays half written is an error: its writer was killed.

    Raises:
        NotFoundError: there is no table, or not yet.
    """

    def __init__(self, folder: Path | str, *, patience: float = 5.0) -> None:
        self._folder = Path(folder)
        self._patience = patience
        self._pause = threading.Event()
        content = map_shared(self._folder, SETTINGS_FILE)
        self.settings = TableSettings.from_json(content.tobytes(), what=f"shared table {folder}")
        self.layout = make_layout(self.settings)
        headers = map_shared(self._folder, "headers")
        wanted = self.settings.shards * places.HEADER_WORDS * 8
        if headers.nbytes != wanted:
            raise UnavailableError(f"shared table {folder}: its headers have {headers.nbytes} bytes and not {wanted}")
        self._headers = headers.view(np.int64).reshape(self.settings.shards, places.HEADER_WORDS)
        self._blocks: list[list[Bytes]] = [[] for _ in range(self.settings.shards)]
        self._indexes: list[tuple[int, Bytes]] = [(0, np.zeros(0, np.uint8))] * self.settings.shards
        self._directory = self._map()

    def lookup(self, ids: npt.ArrayLike) -> Floats:
        """The weights of ids, a line each; zeros for an id that is not there.

        Raises:
            UnavailableError: a row stays half written, or the table changes faster than it can be followed.
        """
        keys = as_ids(ids)
        values = np.empty((keys.size, self.layout.width), np.float32)
        layout = self.layout
        stale, waited = 0, 0.0
        while stale < _TRIES:
            found = lookups.lookup(
                self._directory.shards, layout.geometry, layout.plan, layout.parameters, keys, values
            )
            if found >= 0:
                return values
            if found == lookups.STALE:
                stale += 1
                self._directory = self._map()
            elif waited >= self._patience:
                raise UnavailableError(
                    f"shared table {self._folder}: a row is half written for {self._patience:g} s",
                    hint="its writer was killed, or stands still; start it again with a new folder",
                )
            else:
                self._pause.wait(_PAUSE)
                waited += _PAUSE
        raise UnavailableError(f"shared table {self._folder} changes faster than it can be followed")

    def __len__(self) -> int:
        return int(self._headers[:, places.COUNT].sum())

    def close(self) -> None:
        """Let the memory go."""
        self._blocks, self._indexes = [], []
        self._directory = Directory(np.zeros((0, places.DIRECTORY_COLUMNS), np.int64), ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _map(self) -> Directory:
        """Map what the headers tell of and this process does not have yet."""
        found = np.zeros((self.settings.shards, places.DIRECTORY_COLUMNS), np.int64)
        tables: list[Words] = []
        for shard in range(self.settings.shards):
            header, line = self._headers[shard], found[shard]
            generation, index = self._map_index(shard)
            for number in range(len(self._blocks[shard]), int(header[places.BLOCKS])):
                self._blocks[shard].append(map_shared(self._folder, f"rows-{shard}-{number}"))
            tables.append(np.array([each.ctypes.data for each in self._blocks[shard]], np.int64))
            line[places.D_HEADER] = header.ctypes.data
            line[places.D_INDEX], line[places.D_CAPACITY] = index.ctypes.data, index.nbytes // places.SLOT_BYTES
            line[places.D_GENERATION] = generation
            line[places.D_BLOCKS], line[places.D_BLOCK_COUNT] = tables[-1].ctypes.data, len(self._blocks[shard])
        return Directory(found, (tuple(tables), tuple(self._indexes), self._blocks, self._headers))

    def _map_index(self, shard: int) -> tuple[int, Bytes]:
        """The index of the newest generation. The writer may replace it between the look and the mapping."""
        for _ in range(_TRIES):
            generation = int(self._headers[shard, places.GENERATION])
            if self._indexes[shard][0] == generation:
                break
            try:
                self._indexes[shard] = (generation, map_shared(self._folder, f"index-{shard}-{generation}"))
            except NotFoundError:
                continue
            break
        else:
            raise UnavailableError(f"shared table {self._folder}: shard {shard} has no index")
        return self._indexes[shard]

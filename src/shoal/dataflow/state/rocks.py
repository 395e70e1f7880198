"""State on disk, for more of it than memory holds: a RocksDB in a directory of its own.

It is no truth of its own: what survives a crash is the snapshot in a checkpoint, so a database begins empty and writes
no log ahead. A key is its group, its namespace and itself, so a group or a namespace is one stretch of the order.
Values that will go are listed by their moment under a group that no task has.
"""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import rocksdict
from rocksdict import Options, Rdict, WriteBatch

from shoal.dataflow.state.base import StateKey
from shoal.dataflow.state.entries import Entry, entries_of, entries_table
from shoal.dataflow.state.tables import TableState

#: What a database takes of memory: tables that are being filled or written out, and a cache of what was read. These are
#: RocksDB's own defaults today; the guide names them, so they are set here.
_MEMTABLE, _MEMTABLES = 16 * 1024 * 1024, 2
_CACHE = 32 * 1024 * 1024
#: Bits for each key, which tell that a file does not have it; most keys that are asked for are new.
_BLOOM_BITS = 10
_GROUP = struct.Struct(">H")
_MOMENT = struct.Struct(">q")
#: Above every key group.
_EXPIRIES = b"\xff\xff"
#: Later than all.
_NO_MOMENT = 2**63 - 1
#: So many values are freed in one step.
_AT_ONCE = 4_096


class RocksState:
    """State in a directory."""

    def __init__(self, directory: str) -> None:
        path = Path(directory)
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_MEMTABLE)
        options.set_max_background_jobs(1)
        options.set_max_write_buffer_number(_MEMTABLES)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(_CACHE))
        table.set_bloom_filter(_BLOOM_BITS, False)
        options.set_block_based_table_factory(table)
        self._path = path
        #: Nothing that is to go has an earlier moment.
        self._earliest = _NO_MOMENT
        #: The places of values that changed since the last snapshot; None before the first one.
        self._changed: set[bytes] | None = None
        self._database: Any = Rdict(str(path), options)
        options_of_writing: Any = rocksdict.WriteOptions
        self._writing = options_of_writing()
        self._writing.disable_wal = True

    def get_many(self, namespace: str, keys: Sequence[StateKey], *, now: int = 0) -> list[bytes | None]:
        """The value of each key."""
        prefix = _namespace(namespace)
        found = self._database.get([_GROUP.pack(group) + prefix + key for group, key in keys]) if keys else []
        return [None if value is None else _alive(value, now) for value in found]

    def put_many(self, namespace: str, entries: Iterable[tuple[StateKey, bytes]], *, expires_at: int = 0) -> None:
        """Set values."""
        batch, prefix, moment = WriteBatch(raw_mode=True), _namespace(namespace), _MOMENT.pack(expires_at)
        for (group, key), value in entries:
            self._put(batch, _GROUP.pack(group) + prefix + key, value, moment)
        self._database.write(batch, self._writing)

    def delete_many(self, namespace: str, keys: Iterable[StateKey]) -> None:
        """Forget keys."""
        batch, prefix = WriteBatch(raw_mode=True), _namespace(namespace)
        for group, key in keys:
            self._delete(batch, _GROUP.pack(group) + prefix + key)
        self._database.write(batch, self._writing)

    def scan(self, namespace: str, group: int, prefix: bytes = b"", *, now: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin so, in their order."""
        start = _GROUP.pack(group) + _namespace(namespace)
        for key, value in self._from(start + prefix):
            found = _alive(value, now)
            if found is not None:
                yield key[len(start) :], found

    def expire(self, now: int) -> int:
        """Free what has outlived its time."""
        freed = 0
        listed = self._expiries()
        while some := list(itertools.islice(itertools.takewhile(lambda key: _moment(key) <= now, listed), _AT_ONCE)):
            batch, places = WriteBatch(raw_mode=True), [key[10:] for key in some]
            for key, place, value in zip(some, places, self._database.get(places), strict=True):
                batch.delete(key)
                if value is not None and value[:8] == key[2:10]:  # else it was put again, for longer
                    self._delete(batch, place)
                    freed += 1
            self._database.write(batch, self._writing)
        self._earliest = max(self._earliest, min(now + 1, _NO_MOMENT))
        return freed

    def next_expiry(self) -> int | None:
        """When there will be something to free."""
        for key in self._expiries():
            self._earliest = _moment(key)
            return self._earliest
        self._earliest = _NO_MOMENT
        return None

    def groups(self) -> frozenset[int]:
        """The key groups that have values."""
        found: set[int] = set()
        start = b""
        while (key := self._first_key(start)) is not None and not key.startswith(_EXPIRIES):
            group = _GROUP.unpack(key[:2])[0]
            found.add(group)
            start = _GROUP.pack(group + 1)
        return frozenset(found)

    def changes(self) -> tuple[TableState, bool]:
        """What changed; everything at first, which is soon after the start."""
        changed, self._changed = self._changed, set()
        if changed is None:
            every = itertools.takewhile(lambda item: not item[0].startswith(_EXPIRIES), self._database.items())
            return entries_table(_entry(key, value) for key, value in every), True
        places = sorted(changed)
        values = self._database.get(places) if places else []
        found = [_entry(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        missing = [_entry(place, _NEVER) for place, value in zip(places, values, strict=True) if value is None]
        return entries_table(found, [(entry.group, entry.namespace, entry.key) for entry in missing]), False

    def restore(self, table: TableState) -> None:
        """Take values in."""
        batch = WriteBatch(raw_mode=True)
        for entry in entries_of(table):
            place = _GROUP.pack(entry.group) + _namespace(entry.namespace) + entry.key
            self._put(batch, place, entry.value, _MOMENT.pack(entry.expires_at))
        self._database.write(batch, self._writing)
        self._changed = set()

    def close(self) -> None:
        """Remove the directory: nobody will open it again."""
        self._database.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def _put(self, batch: Any, place: bytes, value: bytes, moment: bytes) -> None:
        batch.put(place, moment + value)
        if self._changed is not None:
            self._changed.add(place)
        if moment != _NEVER:
            batch.put(_EXPIRIES + moment + place, b"")
            self._earliest = min(self._earliest, max(0, _MOMENT.unpack(moment)[0]))

    def _delete(self, batch: Any, place: bytes) -> None:
        batch.delete(place)
        if self._changed is not None:
            self._changed.add(place)

    def _from(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._database.items(from_key=prefix):
            if not key.startswith(prefix):
                return
            yield key, value

    def _expiries(self) -> Iterator[bytes]:
        """What is listed to go, in the order of moments."""
        # What went before leaves marks in the files that a look from the beginning would have to pass, each time.
        yield from self._database.keys(from_key=_EXPIRIES + _MOMENT.pack(self._earliest))

    def _first_key(self, start: bytes) -> bytes | None:
        for key in self._database.keys(from_key=start):
            found: bytes = key
            return found
        return None


_NEVER = _MOMENT.pack(0)


def _moment(key: bytes) -> int:
    """When something that is listed has to go."""
    moment: int = _MOMENT.unpack(key[2:10])[0]
    return moment


def _namespace(name: str) -> bytes:
    encoded = name.encode()
    return _GROUP.pack(len(encoded)) + encoded


def _alive(value: bytes, now: int) -> bytes | None:
    expires_at = _MOMENT.unpack(value[:8])[0]
    return value[8:] if not expires_at or expires_at > now else None


def _entry(key: bytes, value: bytes) -> Entry:
    group, size = _GROUP.unpack(key[:2])[0], _GROUP.unpack(key[2:4])[0]
    return Entry(group, key[4 : 4 + size].decode(), key[4 + size :], value[8:], _MOMENT.unpack(value[:8])[0])

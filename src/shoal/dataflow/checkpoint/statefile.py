"""The file of a task's state: a header that says where everything lies, then the pieces one after the other.

A piece is what one key group has of one table, as one Arrow message: so a reader takes the key groups it needs and no
others. Schemas are in the header. Each piece has its checksum in the header, and the header's own is in the handle.
Bytes in, bytes out; `shoal.dataflow.checkpoint.statestore` reads and writes the files.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.checkpoint.handles import FileHandle
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.operators.base import OperatorState
from shoal.dataflow.state.tables import Table, Tables, TableState, split_groups, stack

_MAGIC = b"SHOALST2"
_LENGTH = struct.Struct("<I")
START = len(_MAGIC) + _LENGTH.size

#: Reads so many bytes from a place in a file.
ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class StepIndex:
    """Where the state of one step lies in a file. Places are (offset, size, checksum)."""

    shared: Sequence[int]
    whole: Mapping[int, Sequence[int]]
    tables: Mapping[str, TableIndex]

    def size_of(self, first: int, end: int) -> int:
        """Bytes of some key groups."""
        return sum(size for group, size in self.sizes() if first <= group < end)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Bytes by key group, a group more than once."""
        pieces = [self.whole, *(part for table in self.tables.values() for part in (table.rows, table.gone))]
        return ((group, place[1]) for part in pieces for group, place in part.items())

    def is_below(self, floors: Mapping[str, tuple[str, int]]) -> bool:
        """Whether all of its rows are below the floors of their tables, so that nobody needs them."""
        if self.whole or not self.tables:
            return False
        return all(name in floors and table.is_below(floors[name]) for name, table in self.tables.items())

    def has_floors(self, floors: Mapping[str, tuple[str, int]]) -> bool:
        """Whether all of these floors are in it, or higher ones."""
        found = {name: table.floor for name, table in self.tables.items() if table.floor is not None}
        return all(name in found and found[name][1] >= floor[1] for name, floor in floors.items())


@dataclass(frozen=True, slots=True)
class TableIndex:
    """Where the pieces of a table lie, by key group."""

    schema: Any
    gone_schema: Any | None
    keys: tuple[str, ...]
    floor: tuple[str, int] | None
    #: The greatest value of the floor's column.
    reach: int | None
    rows: Mapping[int, Sequence[int]]
    gone: Mapping[int, Sequence[int]]

    def is_below(self, floor: tuple[str, int]) -> bool:
        """Whether all of it is below a floor. What is gone here may be rows of earlier files that are above it."""
        if self.floor is None or self.floor[0] != floor[0] or self.gone:
            return False
        return self.floor[1] < floor[1] if self.reach is None else self.reach < floor[1]


def encode(state: Mapping[str, OperatorState]) -> tuple[list[bytes], int]:
    """The state of a task's steps as pieces of a file, and the checksum of its header."""
    pieces: list[bytes] = []
    body = Body(pieces.append)
    for uid, each in state.items():
        body.add(uid, each)
    start, checksum = body.start()
    return [start, *pieces], checksum


class UnlikePartsError(CheckpointError):
    """Parts of a table that have no schema in common."""


class Body:
    """What follows the header of a file. Its pieces go to `write`; where each lies is kept for the header."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._steps: dict[str, dict[str, Any]] = {}
        self.size = 0

    def add(self, uid: str, state: OperatorState) -> None:
        """Add the state of a step, or that of some more of its key groups. Raises `UnlikePartsError`."""
        entry = _encode_step(state, self)
        known = self._steps.setdefault(uid, entry)
        if known is not entry:
            for name, table in entry["tables"].items():
                _add_part(known["tables"].setdefault(name, table), table)

    def put(self, piece: Any) -> list[int]:
        """Add one; says where it is."""
        self._write(piece)
        size = len(piece)
        self.size += size
        return [self.size - size, size, zlib.crc32(piece)]

    def start(self) -> tuple[bytes, int]:
        """What comes before the pieces, with the header; and the checksum of the header."""
        header = json.dumps({"steps": self._steps}, separators=(",", ":")).encode()
        return _MAGIC + _LENGTH.pack(len(header)) + header, zlib.crc32(header)


def _add_part(table: dict[str, Any], part: dict[str, Any]) -> None:
    """Add a part with other key groups to a table."""
    if part is table:
        return
    for fact in ("schema", "keys", "floor", "gone_schema"):
        if fact in part and table.setdefault(fact, part[fact]) != part[fact]:
            raise UnlikePartsError(fact)
    table["rows"] |= part["rows"]
    if "reach" in part:
        table["reach"] = max(table.get("reach", part["reach"]), part["reach"])
    if "gone" in part:
        table["gone"] = table.get("gone", {}) | part["gone"]


def _encode_step(state: OperatorState, body: Body) -> dict[str, Any]:
    return {
        "shared": body.put(state.shared),
        "whole": {str(group): body.put(content) for group, content in sorted(state.keyed.items())},
        "tables": {name: _encode_table(table, body) for name, table in state.tables.items() if _matters(table)},
    }


def _matters(table: TableState) -> bool:
    """Whether it has to be written: changes, or a floor by which earlier rows go."""
    return table.has_changes or table.floor is not None


def _encode_table(table: TableState, body: Body) -> dict[str, Any]:
    found: dict[str, Any] = {
        "schema": _packed_schema(table.rows.schema),
        "keys": list(table.keys),
        "rows": _put_groups(table.rows, table.groups, body),
    }
    if table.floor is not None:
        found["floor"] = [table.floor[0], int(table.floor[1])]
        if len(table.rows):
            found["reach"] = int(pc.max(table.rows.column(table.floor[0])).as_py())
    if table.gone is not None and len(table.gone):
        found["gone_schema"] = _packed_schema(table.gone.schema)
        found["gone"] = _put_groups(table.gone, table.gone_groups, body)
    return found


def _packed_schema(schema: Any) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _put_groups(table: Table, groups: Integers, body: Body) -> dict[str, list[int]]:
    is_coded = _has_dictionaries(table.schema)
    return {
        str(group): body.put(_stream(rows) if is_coded else rows.serialize())
        for group, rows in split_groups(table, groups)
    }


def _stream(rows: Any) -> Any:
    """A batch with dictionaries, which are messages of their own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def _has_dictionaries(schema: Any) -> bool:
    return any(_is_coded(each.type) for each in schema)


def _is_coded(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_is_coded(kind.field(place).type) for place in range(kind.num_fields))


# ---------------------------------------------------------------------------------------------------------
# Reading


def header_size(start: bytes, name: str) -> int:
    """How long the header is, from the first `START` bytes of a file."""
    if start[: len(_MAGIC)] != _MAGIC or len(start) < START:
        raise CheckpointError(f"{name} does not begin as a state file of this version")
    size: int = _LENGTH.unpack_from(start, len(_MAGIC))[0]
    return size


def decode_header(header: bytes, handle: FileHandle) -> dict[str, StepIndex]:
    """The header of a file. Raises `CheckpointError` for bytes that are none, or not those that the handle says."""
    if zlib.crc32(header) != handle.checksum:
        raise CheckpointError(f"{handle.name} is torn: its header is not the one that was written")
    try:
        steps: dict[str, Any] = json.loads(header)["steps"]
        return {uid: _step_index(each, handle.size - START - len(header)) for uid, each in steps.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException, OSError) as error:
        raise CheckpointError(f"{handle.name} has no readable header: {error}") from error


def _step_index(entry: Mapping[str, Any], size: int) -> StepIndex:
    def places(found: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
        return {int(group): place(each) for group, each in found.items()}

    def place(found: Sequence[Any]) -> tuple[int, ...]:
        offset, length, checksum = found
        if not (offset >= 0 and length >= 0 and offset + length <= size and checksum >= 0):
            raise ValueError(f"a piece lies beyond its {size} bytes")
        return int(offset), int(length), int(checksum)

    def table(found: Mapping[str, Any]) -> TableIndex:
        floor = found.get("floor")
        gone = found.get("gone_schema")
        return TableIndex(
            schema=_unpacked_schema(found["schema"]),
            gone_schema=None if gone is None else _unpacked_schema(gone),
            keys=tuple(map(str, found["keys"])),
            floor=None if floor is None else (str(floor[0]), int(floor[1])),
            reach=None if found.get("reach") is None else int(found["reach"]),
            rows=places(found["rows"]),
            gone=places(found.get("gone", {})),
        )

    return StepIndex(
        shared=place(entry["shared"]),
        whole=places(entry["whole"]),
        tables={name: table(each) for name, each in entry["tables"].items()},
    )


def _unpacked_schema(content: str) -> Any:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content, validate=True)))
    _ = schema.names  # they may be no text
    return schema


class FileReader:
    """Reads pieces of one file; each is held against its checksum."""

    def __init__(self, name: str, body: int, read_at: ReadAt) -> None:
        self._name = name
        self._body = body
        self._read_at = read_at

    def piece(self, place: Sequence[int]) -> bytes:
        """The bytes at a place."""
        offset, size, checksum = place
        content = self._read_at(self._body + offset, size)
        self._check(content, offset, size, checksum)
        return content

    def _check(self, content: Any, offset: int, size: int, checksum: int) -> None:
        if len(content) != size or zlib.crc32(content) != checksum:
            raise CheckpointError(f"{self._name} is torn: {size} bytes at {offset} are not those that were written")

    def _pieces(self, places: Collection[Sequence[int]]) -> Iterator[Any]:
        """The bytes at several places: read at once where they follow each other, as those of neighbors do."""
        low, high = min(place[0] for place in places), max(place[0] + place[1] for place in places)
        if high - low > sum(place[1] for place in places):
            yield from map(self.piece, places)
            return
        content = memoryview(self._read_at(self._body + low, high - low))
        for offset, size, checksum in places:
            piece = content[offset - low : offset - low + size]
            self._check(piece, offset, size, checksum)
            yield piece

    def whole_groups(self, index: StepIndex, first: int, end: int) -> dict[int, bytes]:
        """The key groups that are bytes of an operator's own."""
        return {group: self.piece(place) for group, place in index.whole.items() if first <= group < end}

    def tables(self, index: StepIndex, first: int, end: int) -> Tables:
        """The tables of some key groups."""
        return {name: self._table(table, first, end) for name, table in index.tables.items()}

    def _table(self, index: TableIndex, first: int, end: int) -> TableState:
        rows, groups = self._rows(index.schema, index.rows, first, end)
        gone, gone_groups = None, np.zeros(0, np.int64)
        if index.gone_schema is not None:
            gone, gone_groups = self._rows(index.gone_schema, index.gone, first, end)
        return TableState(rows, groups, index.keys, gone, gone_groups, index.floor)

    def _rows(self, schema: Any, places: Mapping[int, Sequence[int]], first: int, end: int) -> tuple[Table, Any]:
        wanted = {group: place for group, place in places.items() if first <= group < end}
        if not wanted:
            return schema.empty_table(), np.zeros(0, np.int64)
        found = [
            (group, self._decoded(piece, schema))
            for group, piece in zip(wanted, self._pieces(wanted.values()), strict=True)
        ]
        groups = np.repeat(np.array([group for group, _ in found], np.int64), [len(rows) for _, rows in found])
        return stack([rows for _group, rows in found]), groups

    def _decoded(self, content: Any, schema: Any) -> Table:
        try:
            if _has_dictionaries(schema):
                with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
                    table = reader.read_all()
            else:
                table = pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(content), schema)])
            # Arrow trusts what it reads: offsets that lead elsewhere would end the process.
            table.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise CheckpointError(f"{self._name} has {len(content)} bytes that are no rows: {error}") from error
        return table

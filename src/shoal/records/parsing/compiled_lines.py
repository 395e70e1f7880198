"""The fields of line ids as columns, for the compiled parser. Needs numba."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from shoal.core.errors import InternalError
from shoal.records.parsing.assembling import Ragged, ragged_array
from shoal.records.parsing.kernels import instances, values, wire
from shoal.records.parsing.rules import MAX_VALUES, not_text, too_many_values, wrong_line_id
from shoal.records.parsing.schema import LINE_ID_NUMBERS, LINE_ID_TYPES
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId

#: How each type stands on the wire.
_WIRES = {"uint64": 1, "int64": 0, "int32": 0, "bool": 0, "float": 5, "string": 2}
_DEFAULTS = {"sample_rate": int(np.float32(1.0).view(np.uint32))}


class LineIdError(Exception):
    """The line ids of some rows cannot be read: why, by row, in order."""

    def __init__(self, rules: Mapping[int, str]) -> None:
        super().__init__()
        self.rules = rules


class LineIds:
    """The line ids of some rows. Raises `LineIdError`."""

    def __init__(
        self, data: NDArray[np.uint8], los: NDArray[np.int64], his: NDArray[np.int64], names: tuple[str, ...]
    ) -> None:
        self._data, self._los, self._his = data, los, his
        self._names = names
        if self._read().any():
            self._rewrite()
            if self._read().any():
                raise InternalError("a line id that protobuf wrote cannot be read")

    def _read(self) -> NDArray[np.int64]:
        """Find every field, and say which line ids are odd."""
        rows = len(self._los)
        single = [name for name in self._names if not pa.types.is_list(LINE_ID_TYPES[name])]
        highest = max(LINE_ID_NUMBERS.values()) + 1
        fields, wires = np.full(highest, -1, np.int64), np.full(highest, -1, np.int64)
        self._raw = np.zeros((len(single), rows), np.uint64)
        self._begins = np.zeros((len(single), rows), np.int64)
        self._ends = np.zeros((len(single), rows), np.int64)
        self._places = {name: place for place, name in enumerate(single)}
        for place, name in enumerate(single):
            fields[LINE_ID_NUMBERS[name]] = place
            wires[LINE_ID_NUMBERS[name]] = _WIRES[str(LINE_ID_TYPES[name])]
            self._raw[place] = _DEFAULTS.get(name, 0)
        status = np.zeros(rows, np.int64)
        instances.index_line_ids(
            self._data, self._los, self._his, fields, wires, self._raw, self._begins, self._ends, status
        )
        self._counts: dict[str, NDArray[np.int64]] = {}
        for name in self._names:
            if name not in self._places:
                counts = np.zeros(rows, np.int64)
                instances.count_field(
                    self._data, self._los, self._his, LINE_ID_NUMBERS[name], wire.VARINT, counts, status
                )
                self._counts[name] = counts
        self._status = status
        return status

    def _rewrite(self) -> None:
        """Let protobuf write the odd ones anew."""
        los, his = self._los.copy(), self._his.copy()
        pieces: list[bytes] = []
        refused: dict[int, str] = {}
        size = len(self._data)
        for row in np.flatnonzero(self._status).tolist():
            try:
                line = LineId.FromString(self._data[los[row] : his[row]].tobytes())
            except DecodeError as error:
                refused[row] = wrong_line_id(error)
                continue
            line.DiscardUnknownFields()
            pieces.append(line.SerializeToString(deterministic=True))
            los[row], his[row] = size, size + len(pieces[-1])
            size += len(pieces[-1])
        if refused:
            raise LineIdError(refused)
        self._data = np.concatenate((self._data, np.frombuffer(b"".join(pieces), np.uint8)))
        self._data.flags.writeable = False  # as `Payloads` are
        self._los, self._his = los, his

    def array(self, name: str) -> Any:
        """One field as a column."""
        kind = LINE_ID_TYPES[name]
        if name not in self._places:
            return self._list(name)
        place = self._places[name]
        if pa.types.is_string(kind):
            return self._text(name, place)
        raw = self._raw[place]
        if pa.types.is_floating(kind):
            return pa.array(raw.astype(np.uint32).view(np.float32))
        if pa.types.is_boolean(kind):
            return pa.array(raw != 0)
        return pa.array(raw.astype(kind.to_pandas_dtype()))

    def _text(self, name: str, place: int) -> Any:
        made = bytes_array(self._data, self._begins[place], self._ends[place])
        try:
            return made.cast(pa.string())
        except pa.ArrowInvalid:
            rows = [row for row, value in enumerate(made.to_pylist()) if not _is_text(value)]
            raise LineIdError(dict.fromkeys(rows, not_text(name))) from None

    def _list(self, name: str) -> Any:
        counts = self._counts[name]
        if counts.sum() > MAX_VALUES:
            raise LineIdError({int(np.argmax(counts)): too_many_values(name)})
        splits = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=splits[1:])
        spans = np.empty((len(counts), 4), np.int32)
        spans[:, 0] = LINE_ID_NUMBERS[name] | wire.VARINT << wire.TYPE_SHIFT
        spans[:, 1], spans[:, 2], spans[:, 3] = self._los, self._his, counts
        made = np.empty(splits[-1], np.int64)
        values.fill_column(self._data, spans, 0, made, np.zeros(0, np.uint32))
        return ragged_array(Ragged(splits, made.astype(np.int32)), pa.int32())


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def bytes_array(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Any:
    """Pieces of a buffer as an array of bytes."""
    offsets = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(ends - begins, out=offsets[1:])
    made = np.empty(offsets[-1], np.uint8)
    values.copy_bytes(data, begins, ends, made)
    return pa.Array.from_buffers(pa.binary(), len(begins), [None, pa.py_buffer(offsets), pa.py_buffer(made)])

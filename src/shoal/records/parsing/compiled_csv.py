"""Reads lines of CSV by kernels, where they are plain. Needs numba. Called by `shoal.records.parsing.tables`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shoal.records.parsing.compiled_lines import bytes_array
from shoal.records.parsing.kernels import lines

_KINDS = {
    pa.int64(): lines.INT, pa.int32(): lines.INT, pa.uint64(): lines.UINT, pa.uint32(): lines.UINT,
    pa.float32(): lines.FLOAT, pa.string(): lines.TEXT, pa.binary(): lines.TEXT,
}  # fmt: skip
#: Bytes that no delimiter and no separator may be here, because numbers and lines have them.
_TAKEN = frozenset('0123456789+-.eE"\r\n')
_BOM = b"\xef\xbb\xbf"
#: Memory for blocks of up to so many bytes is kept by each thread: fresh pages cost as much as the scan.
_KEPT_BYTES = 2 << 20
_kept = threading.local()


def _scratch(size: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Memory for the values and the cells of so many bytes: none has less than one."""
    if size > _KEPT_BYTES:
        return np.empty(size, np.int64), np.empty(size, np.int32)
    if not hasattr(_kept, "arrays"):
        _kept.arrays = np.empty(_KEPT_BYTES, np.int64), np.empty(_KEPT_BYTES, np.int32)
    found: tuple[NDArray[np.int64], NDArray[np.int32]] = _kept.arrays
    return found


class CompiledCsv:
    """Reads blocks of lines with the same columns."""

    def __init__(self, names: list[str], schema: Any, marks: str, split: Callable[[Any, Any], Any]) -> None:
        """Read these columns of a file as a schema says.

        Args:
            names: the columns of the file.
            schema: the columns that are wanted; all are in the file.
            marks: the delimiter and the separator.
            split: makes a list column of texts.
        """
        self._schema = schema
        self._split = split
        self._marks = [ord(each) for each in marks]
        self._places = [names.index(each.name) for each in schema]
        self._kinds = np.full(len(names), lines.SKIP, np.int64)
        self._sizes = np.full(len(names), -1, np.int64)
        for place, each in zip(self._places, schema, strict=True):
            kind = each.type
            is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
            self._kinds[place] = _KINDS[kind.value_type if is_list else kind]
            if self._kinds[place] != lines.TEXT and not pa.types.is_list(kind):
                self._sizes[place] = kind.list_size if is_list else 1

    @staticmethod
    def can_read(names: list[str], schema: Any, marks: str) -> bool:
        """Whether kernels know every type, and can tell the marks from numbers."""
        kinds = (getattr(each.type, "value_type", each.type) for each in schema)
        plain = len(marks) == 2 and marks.isascii() and marks[0] != marks[1] and not _TAKEN.intersection(marks)
        once = len(set(names)) == len(names) and len(set(schema.names)) == len(schema.names)
        return plain and once and bool(names) and all(each in _KINDS for each in kinds)

    def read(self, block: bytes) -> Any:
        """The rows of some whole lines; None when some need a closer look."""
        if block.startswith(_BOM):
            return None
        if not block.endswith(b"\n"):
            block += b"\n"
        data = np.frombuffer(block, np.uint8)
        columns = len(self._kinds)
        bits, ends = _scratch(len(block))
        counts = np.zeros(columns, np.int64)
        reals = bits.view(np.float64)
        rows = lines.scan_lines(data, *self._marks, self._kinds, self._sizes, bits, ends, counts)
        if rows < 0:
            return None
        made = []
        for place, each in zip(self._places, self._schema, strict=True):
            splits = np.zeros(rows + 1, np.int32)
            if self._kinds[place] == lines.FLOAT:
                values: NDArray[Any] = np.empty(counts[place], np.float32)
                lines.take_real(reals, ends, columns, place, splits, values)
            else:
                values = np.empty(counts[place], np.int64)
                lines.take_whole(bits, ends, columns, place, splits, values)
            try:
                made.append(self._column(each.type, data, splits, values))
            except pa.ArrowInvalid:
                return None  # it does not fit, or is no text: Arrow finds the line
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    def _column(self, kind: Any, data: NDArray[np.uint8], splits: NDArray[np.int32], values: NDArray[Any]) -> Any:
        is_list = pa.types.is_list(kind)
        flat = kind.value_type if is_list or pa.types.is_fixed_size_list(kind) else kind
        if _KINDS[flat] == lines.TEXT:
            texts = bytes_array(data, values >> 32, values & 0xFFFFFFFF)
            # Arrow reads lists as texts, too, which are UTF-8.
            return texts.cast(kind) if flat is kind else self._split(texts.cast(pa.string()), kind)
        array = pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])
        if array.type != flat:
            array = array.cast(flat)
        if is_list:
            return pa.Array.from_buffers(kind, len(splits) - 1, [None, pa.py_buffer(splits)], children=[array])
        return array if flat is kind else pa.FixedSizeListArray.from_arrays(array, kind.list_size)

"""Rows of a keyed table in a state backend, for more of them than memory holds: each is read and written by its key.

A row is known by a whole number, such as that of its pane, and by its key columns. Rows lie by key group, and there in
the order of that number. Used by `shoal.dataflow.operators.windows.stored` with the backends of
`shoal.dataflow.state.base`.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from shoal.dataflow.language import keys as keying
from shoal.dataflow.language.keys import Array, combined
from shoal.dataflow.state.base import StateBackend, StateKey
from shoal.dataflow.state.tables import Integers, Table, TableState, stack

#: Puts rows together with newer ones of the same keys: (older, newer), row by row. Older rows have no key columns.
Combine: TypeAlias = Callable[[Table, Table], Table]

_NAMESPACE = "cells"
_NUMBER = struct.Struct(">Q")
_SIZE = struct.Struct(">I")
_VALUE = struct.Struct(">q")
#: Numbers may be below zero, and lie in their order.
_ZERO = 1 << 63
_NULL, _THERE = b"\0", b"\1"
#: So many rows are worked on at once at most, and about so many bytes of them.
_AT_ONCE = 16_384
_BYTES_AT_ONCE = 16 * 1024 * 1024


class CellStore:
    """Keeps the rows of one table in a backend, which is its own. One thread."""

    def __init__(self, backend: StateBackend, schema: Any, keys: Sequence[str], number: str) -> None:
        self._backend = backend
        self._schema = schema
        self._keys = tuple(keys)
        self._number = number
        self._parts = [name for name in keys if name != number]
        self._values = pa.schema([field for field in schema if field.name not in keys])
        #: The form of the rest of a row where all of it has one width; else it is a batch of one row.
        self._form = _form_of(self._values)
        self._numbers: Counter[int] = Counter()
        self._groups: Counter[int] = Counter()
        self._at_once = _AT_ONCE

    def __len__(self) -> int:
        return self._numbers.total()

    @property
    def numbers(self) -> set[int]:
        """The numbers that rows have."""
        return set(self._numbers)

    def put(self, state: TableState, combine: Combine, changed: list[TableState] | None = None) -> None:
        """Take rows in, none of them twice, and add them to `changed` as they are now.

        A row that is there already is put together with the new one.
        """
        # What lies together is looked up together.
        order = np.argsort(state.groups, kind="stable")
        while len(order):
            some, order = order[: self._at_once], order[self._at_once :]
            rows = state.rows.take(pa.array(some)).select(self._schema.names).cast(self._schema)
            part = self._put(rows, state.groups[some], combine)
            if changed is not None:
                changed.append(self._state([part], floor=state.floor))

    def _put(self, rows: Table, groups: Integers, combine: Combine) -> tuple[Table, Integers]:
        places = self._places(rows, groups)
        found = self._backend.get_many(_NAMESPACE, places)
        is_known = np.array([each is not None for each in found], np.bool_)
        known, new = np.flatnonzero(is_known), np.flatnonzero(~is_known)
        self._numbers.update(rows.column(self._number).take(pa.array(new)).to_pylist())
        self._groups.update(groups[new].tolist())
        if len(known):
            older = self._decoded([each for each in found if each is not None])
            rows = stack([rows.take(pa.array(new)), combine(older, rows.take(pa.array(known)))])
            order = np.concatenate([new, known])
            groups, places = groups[order], [places[place] for place in order.tolist()]
        contents = self._encoded(rows.select(self._values.names))
        self._backend.put_many(_NAMESPACE, zip(places, contents, strict=True))
        size = sum(map(len, contents)) // len(contents)
        self._at_once = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // (1 + size)))
        return rows, groups

    def read(self, most_bytes: int, *, end: int | None = None) -> Iterator[TableState]:
        """All rows, or those of numbers below `end`: of whole key groups, until they are so many bytes."""
        parts: list[tuple[Table, Integers]] = []
        size = 0
        for group in sorted(self._groups):
            entries = self._scan(group, end)
            while some := list(itertools.islice(entries, self._at_once)):
                rows = self._rows(some)
                parts.append((rows, np.full(len(rows), group)))
                size += rows.nbytes
            if size > most_bytes:
                yield self._state(parts)
                parts, size = [], 0
        if parts:
            yield self._state(parts)

    def no_rows(self) -> TableState:
        """None of them."""
        return self._state([])

    def drop_below(self, end: int) -> None:
        """Forget the rows of numbers below one."""
        gone = [number for number in self._numbers if number < end]
        if not gone:
            return
        for number in gone:
            del self._numbers[number]
        for group in sorted(self._groups):
            keys = [(group, key) for key, _content in self._scan(group, end)]
            self._backend.delete_many(_NAMESPACE, keys)
            self._groups[group] -= len(keys)
        self._groups = +self._groups

    def close(self) -> None:
        """Let go of everything."""
        self._backend.close()

    def _scan(self, group: int, end: int | None) -> Iterator[tuple[bytes, bytes]]:
        entries = self._backend.scan(_NAMESPACE, group)
        if end is None:
            return entries
        return itertools.takewhile(lambda entry: _number(entry[0]) < end, entries)

    def _state(self, parts: Sequence[tuple[Table, Integers]], floor: tuple[str, int] | None = None) -> TableState:
        rows = stack([rows for rows, _groups in parts]) if parts else self._schema.empty_table()
        groups = np.concatenate([np.zeros(0, np.int64), *(groups for _rows, groups in parts)])
        return TableState(rows, groups, self._keys, floor=floor)

    # -- rows as bytes ----------------------------------------------------------------------------------------

    def _places(self, rows: Table, groups: Integers) -> list[StateKey]:
        numbers = [_NUMBER.pack(number + _ZERO) for number in rows.column(self._number).to_pylist()]
        keys = [_key_bytes(keying.canonical(combined(rows.column(name)))) for name in self._parts]
        return list(zip(groups.tolist(), map(b"".join, zip(numbers, *keys, strict=True)), strict=True))

    def _rows(self, entries: Sequence[tuple[bytes, bytes]]) -> Table:
        rows = self._decoded([content for _key, content in entries])
        found = {self._number: pa.array([_number(key) for key, _content in entries], pa.int64())}
        kinds = [self._schema.field(name).type for name in self._parts]
        canonical = [keying.canonical(pa.array([], kind)).type for kind in kinds]
        columns = _key_values([key for key, _content in entries], [pa.types.is_int64(kind) for kind in canonical])
        for name, values, plain, kind in zip(self._parts, columns, canonical, kinds, strict=True):
            found[name] = keying.from_canonical(pa.array(values, plain), kind)
        found |= {name: rows.column(name) for name in self._values.names}
        return pa.table([found[name] for name in self._schema.names], schema=self._schema)

    def _encoded(self, rows: Table) -> list[bytes]:
        if self._form is None:
            (batch,) = rows.combine_chunks().to_batches()
            return [batch.slice(place, 1).serialize().to_pybytes() for place in range(len(rows))]
        values = np.empty(len(rows), self._form)
        for name in self._values.names:
            values[name] = combined(rows.column(name)).to_numpy(zero_copy_only=False)
        content, size = values.tobytes(), self._form.itemsize
        return [content[start : start + size] for start in range(0, len(content), size)]

    def _decoded(self, contents: Sequence[bytes]) -> Table:
        if self._form is None:
            batches = [pa.ipc.read_record_batch(pa.py_buffer(content), self._values) for content in contents]
            return pa.Table.from_batches(batches, self._values).combine_chunks()
        values = np.frombuffer(b"".join(contents), self._form)
        arrays = [pa.array(np.ascontiguousarray(values[field.name]), field.type) for field in self._values]
        return pa.table(arrays, schema=self._values)


def _form_of(values: Any) -> np.dtype[Any] | None:
    """How rows of numbers and truth values lie one after the other; None for all others."""
    kinds = [field.type for field in values]
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) for kind in kinds):
        return None
    return np.dtype([(field.name, field.type.to_pandas_dtype()) for field in values])


def _key_bytes(values: Array) -> Iterable[bytes]:
    if pa.types.is_int64(values.type):
        return [_NULL if value is None else _THERE + _VALUE.pack(value) for value in values.to_pylist()]
    return [_NULL if value is None else _THERE + _SIZE.pack(len(value)) + value for value in values.to_pylist()]


def _key_values(keys: Sequence[bytes], are_numbers: Sequence[bool]) -> list[list[Any]]:
    """The inverse, for each column; a number comes first, which is not of the key."""
    columns: list[list[Any]] = [[] for _ in are_numbers]
    for key in keys:
        at = _NUMBER.size
        for values, is_number in zip(columns, are_numbers, strict=True):
            at += 1
            if key[at - 1 : at] == _NULL:
                values.append(None)
            elif is_number:
                values.append(_VALUE.unpack_from(key, at)[0])
                at += _VALUE.size
            else:
                start = at + _SIZE.size
                at = start + _SIZE.unpack_from(key, at)[0]
                values.append(key[start:at])
    return columns


def _number(key: bytes) -> int:
    value: int = _NUMBER.unpack_from(key)[0]
    return value - _ZERO

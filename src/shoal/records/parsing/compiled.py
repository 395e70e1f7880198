"""The compiled parser: finds the values of columns in the bytes of records, without an object for any of them.

Records that the kernels find odd are written anew by protobuf and looked at again; those that protobuf refuses, and
those that are not what the schema asks for, go to the policy. Called by `shoal.records.parsing.engines`. Importing it
needs numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from shoal.core.errors import CorruptError, InternalError
from shoal.records import fids
from shoal.records.bad_records import BadRecords
from shoal.records.formats.payloads import Payloads
from shoal.records.messages import INSTANCE_WEIGHT, LABEL, LINE_ID
from shoal.records.parsing.assembling import Ragged, feature_array, ragged_array
from shoal.records.parsing.compiled_lines import LineIdError, LineIds, bytes_array
from shoal.records.parsing.kernels import examples, instances, values, wire
from shoal.records.parsing.rules import (
    MAX_BATCH_ROWS,
    MAX_VALUES,
    TAKEN,
    TAKEN_FIELDS,
    too_many_values,
    wrong_batch_size,
    wrong_kind,
    wrong_length,
)
from shoal.records.parsing.schema import Column, ColumnKind, RowSchema
from shoal.wire.pb.idl.matrix.proto.example_pb2 import ExampleBatch, Feature
from shoal.wire.pb.idl.matrix.proto.feature_pb2 import Feature as InstanceFeature
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

_FIELDS = {field.name: field.number for field in Feature.DESCRIPTOR.fields}
_FIELD_NAMES = {number: name for name, number in _FIELDS.items()}
_INSTANCE_FIELDS = {field.name: field.number for field in InstanceFeature.DESCRIPTOR.fields}
_INSTANCE_FIELD_NAMES = {number: name for name, number in _INSTANCE_FIELDS.items()}
_ONE = np.float32(1.0).view(np.uint32)


@dataclass(slots=True)
class _Index:
    """Where the values of each column lie, by column and row."""

    codes: NDArray[np.int64]
    los: NDArray[np.int64]
    his: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: NDArray[np.uint32]
    #: Of each record, and for a refused one the column and what it has.
    status: NDArray[np.int64]
    details: NDArray[np.int64]
    #: The first row of each record; the last entry is the number of rows.
    rows: NDArray[np.int64]

    @classmethod
    def made(cls, lines: int, rows: NDArray[np.int64]) -> _Index:
        shape = (lines, int(rows[-1]))
        records = len(rows) - 1
        return cls(
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.full(shape[1], _ONE),
            np.zeros(records, np.int64),
            np.zeros((records, 2), np.int64),
            rows,
        )


class CompiledParser:
    """Reads records of one type by kernels."""

    def __init__(self, message: type[Any], schema: RowSchema) -> None:
        self._message = message
        self._schema = schema
        self._columns = schema.columns
        self._of_instances = message is Instance
        self._labels = [each.name for each in schema.columns]
        if not self._of_instances:
            self._labels += [LABEL, INSTANCE_WEIGHT, LINE_ID]
        encoded = [each.encode() for each in self._labels]
        self._names = np.frombuffer(b"".join(encoded) + b"\0", np.uint8)
        self._splits = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._buckets = np.full(1 << (2 * len(encoded) + 1).bit_length(), -1, np.int64)
        wire.fill_buckets(self._names, self._splits, self._buckets)
        self._taken = _taken_of_instances(schema.columns) if self._of_instances else _taken_of_examples(schema.columns)
        self._slots = np.full(fids.V1_SLOTS, -1, np.int64)
        if self._of_instances:
            for number, column in enumerate(schema.columns):
                if column.flat_slot is not None:
                    self._slots[column.flat_slot] = number

    def parse(self, payloads: Payloads, bad: BadRecords) -> Any:
        """The records as columns. What is no such message goes to `bad`."""
        rewritten = np.zeros(len(payloads), np.bool_)
        while True:
            index = self._index(payloads)
            if index.status.any():
                payloads, rewritten = self._mended(payloads, rewritten, index, bad)
                continue
            try:
                return self._assembled(payloads, index)
            except _RefusedRowError as refused:
                record = int(np.searchsorted(index.rows, refused.row, "right")) - 1
                bad.meet(CorruptError(payloads.path, int(payloads.offsets[record]), refused.rule), payloads[record])
                keep = np.arange(len(payloads)) != record
                payloads, rewritten = payloads.take(keep), rewritten[keep]

    # -- finding values ---------------------------------------------------------------------------------

    def _index(self, payloads: Payloads) -> _Index:
        if self._message is ExampleBatch:
            return self._index_batches(payloads)
        index = _Index.made(len(self._columns) + (3 if self._of_instances else 2), np.arange(len(payloads) + 1))
        find = instances.index_instances if self._of_instances else examples.index_examples
        find(
            payloads.data, payloads.starts, payloads.ends, self._names, self._splits, self._buckets, self._taken,
            index.codes, index.los, index.his, index.counts, index.weights, index.status, index.details,
        )  # fmt: skip
        if (self._slots >= 0).any() and not index.status.any():
            flat = len(self._columns) + 2
            instances.count_slots(payloads.data, index.los[flat], index.his[flat], self._slots, index.counts)
        return index

    def _index_batches(self, payloads: Payloads) -> _Index:
        sizes = np.zeros(len(payloads), np.int64)
        status = np.zeros(len(payloads), np.int64)
        examples.batch_sizes(payloads.data, payloads.starts, payloads.ends, sizes, status)
        wrong = (status == wire.GOOD) & ((sizes < 0) | (sizes > MAX_BATCH_ROWS))
        if wrong.any() or status.any():
            index = _Index.made(0, np.zeros(len(payloads) + 1, np.int64))
            index.status[:] = np.where(wrong, wire.WRONG_COUNT, status)
            index.details[:, 0], index.details[:, 1] = -1, sizes
            return index
        index = _Index.made(len(self._columns) + 2, np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))))
        examples.index_batches(
            payloads.data, payloads.starts, payloads.ends, index.rows, self._names, self._splits, self._buckets,
            self._taken, index.codes, index.los, index.his, index.counts, index.weights, index.status, index.details,
        )  # fmt: skip
        return index

    def _mended(
        self, payloads: Payloads, rewritten: NDArray[np.bool_], index: _Index, bad: BadRecords
    ) -> tuple[Payloads, NDArray[np.bool_]]:
        """The records without those that are refused; odd ones as protobuf writes them."""
        keep = np.ones(len(payloads), np.bool_)
        anew: dict[int, bytes] = {}
        for number in np.flatnonzero(index.status).tolist():
            payload = payloads[number]
            place = payloads.path, int(payloads.offsets[number])
            if index.status[number] != wire.ODD:
                keep[number] = False
                bad.meet(CorruptError(*place, self._rule(index, number)), payload)
                continue
            if rewritten[number]:
                raise InternalError(f"{place[0]}, byte {place[1]}: a record that protobuf wrote cannot be read")
            try:
                message = self._message.FromString(payload)
            except DecodeError as error:
                keep[number] = False
                rule = f"must be a {self._message.DESCRIPTOR.full_name}: {error}"
                bad.meet(CorruptError(*place, rule), payload)
                continue
            message.DiscardUnknownFields()
            anew[number] = message.SerializeToString(deterministic=True)
            rewritten[number] = True
        return payloads.rewritten(anew).take(keep), rewritten[keep]

    def _rule(self, index: _Index, number: int) -> str:
        column, found = index.details[number].tolist()
        if column < 0:
            return wrong_batch_size(found)
        if index.status[number] == wire.WRONG_COUNT:
            return wrong_length(self._labels[column], found, int(index.rows[number + 1] - index.rows[number]))
        names = _INSTANCE_FIELD_NAMES if self._of_instances else _FIELD_NAMES
        return wrong_kind(self._columns[column], names[found])

    # -- columns ----------------------------------------------------------------------------------------

    def _assembled(self, payloads: Payloads, index: _Index) -> Any:
        arrays = []
        columns = len(self._columns)
        if self._schema.label:
            arrays.append(ragged_array(self._floats(payloads.data, index, columns, LABEL), pa.float32()))
        if self._schema.weight:
            arrays.append(pa.array(index.weights.view(np.float32)))
        if self._schema.line_id:
            arrays += self._line_id_arrays(payloads, index)
        for number, column in enumerate(self._columns):
            arrays.append(feature_array(column, self._values(payloads.data, index, number)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)

    def _line_id_arrays(self, payloads: Payloads, index: _Index) -> list[Any]:
        line = len(self._columns) + 1
        try:
            found = LineIds(payloads.data, index.los[line], index.his[line], self._schema.line_id)
            return [found.array(name) for name in self._schema.line_id]
        except LineIdError as error:
            raise _RefusedRowError(error.row, error.rule) from error

    def _values(self, data: NDArray[np.uint8], index: _Index, number: int) -> Ragged:
        column = self._columns[number]
        if column.kind is ColumnKind.FLOATS:
            return self._floats(data, index, number, column.name)
        if column.kind is ColumnKind.BYTES:
            return self._bytes(data, index, number)
        splits = self._row_splits(index, number, column.name)
        made = np.empty(splits[-1], np.int64)
        slot = column.flat_slot if self._of_instances else None
        if slot is not None:
            flat = len(self._columns) + 2
            instances.fill_slot(data, index.los[flat], index.his[flat], slot, index.counts[number], made)
        else:
            values.fill_ints(
                data, index.codes[number], index.los[number], index.his[number], index.counts[number], made
            )
        return Ragged(splits, made)

    def _floats(self, data: NDArray[np.uint8], index: _Index, number: int, name: str) -> Ragged:
        splits = self._row_splits(index, number, name)
        bits = np.empty(splits[-1], np.uint32)
        values.fill_floats(data, index.codes[number], index.los[number], index.his[number], index.counts[number], bits)
        return Ragged(splits, bits.view(np.float32))

    def _bytes(self, data: NDArray[np.uint8], index: _Index, number: int) -> Ragged:
        splits = self._row_splits(index, number, self._columns[number].name)
        begins, ends = np.empty(splits[-1], np.int64), np.empty(splits[-1], np.int64)
        values.find_bytes(
            index.codes[number], index.los[number], index.his[number], index.counts[number], data, begins, ends
        )
        sizes = np.zeros(len(splits), np.int64)
        np.add.at(sizes, np.repeat(np.arange(1, len(splits)), np.diff(splits)), ends - begins)
        _check_total(sizes[1:], self._columns[number].name)
        return Ragged(splits, bytes_array(data, begins, ends))

    def _row_splits(self, index: _Index, number: int, name: str) -> NDArray[np.int64]:
        _check_total(index.counts[number], name)
        splits = np.zeros(len(index.weights) + 1, np.int64)
        np.cumsum(index.counts[number], out=splits[1:])
        return splits


class _RefusedRowError(Exception):
    """A row that only a closer look shows to be bad."""

    def __init__(self, row: int, rule: str) -> None:
        super().__init__(rule)
        self.row = row
        self.rule = rule


def _check_total(counts: NDArray[np.int64], name: str) -> None:
    if counts.sum() > MAX_VALUES:
        raise _RefusedRowError(int(np.argmax(counts)), too_many_values(name))


def _taken_of_examples(columns: tuple[Column, ...]) -> NDArray[np.bool_]:
    """Which fields of a feature each column takes, and label, weight and line id after them."""
    taken = np.zeros((len(columns) + 3, len(_FIELDS) + 1), np.bool_)
    for number, column in enumerate(columns):
        taken[number, [_FIELDS[each] for each in TAKEN[column.kind]]] = True
    taken[-3, _FIELDS["float_list"]] = taken[-2, _FIELDS["float_list"]] = True
    taken[-1, _FIELDS["bytes_list"]] = True
    return taken


def _taken_of_instances(columns: tuple[Column, ...]) -> NDArray[np.int64]:
    """The fields of a feature that each column takes, in order, then zeros. None for columns of flat ids."""
    taken = np.zeros((max(len(columns), 1), 5), np.int64)
    for number, column in enumerate(columns):
        if column.flat_slot is None:
            fields = [_INSTANCE_FIELDS[each] for each in TAKEN_FIELDS[column.kind]]
            taken[number, : len(fields)] = fields
    return taken

"""The compiled parser: finds the values of columns in the bytes of records, without an object for any of them.

Records that the kernels find odd are written anew by protobuf and looked at again; those that protobuf refuses, and
those that are not what the schema asks for, go to the policy. Called by `shoal.records.parsing.engines`. Importing it
needs numba.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from shoal.core.errors import CorruptError, ExhaustedError, InternalError
from shoal.records import fids
from shoal.records.bad_records import BadRecords
from shoal.records.formats.payloads import Payloads
from shoal.records.messages import INSTANCE_WEIGHT, LABEL, LINE_ID, MAX_BATCH_ROWS
from shoal.records.parsing.assembling import Ragged, dense_array, feature_array, ragged_array
from shoal.records.parsing.compiled_lines import LineIdError, LineIds, bytes_array
from shoal.records.parsing.kernels import examples, instances, values, wire
from shoal.records.parsing.rules import (
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
_NO_INTS, _NO_BITS = np.zeros(0, np.int64), np.zeros(0, np.uint32)
#: Places in a buffer are 32-bit numbers.
MAX_BUFFER_BYTES = 2**31 - 1


@dataclass(slots=True)
class _Index:
    """Where the values of each column lie."""

    #: Code, begin, end and count, by row and column; of batches, whose bytes are by column, by column and row.
    spans: NDArray[np.int32]
    weights: NDArray[np.uint32]
    #: Of each record, and for a refused one the column and what it has.
    status: NDArray[np.int64]
    details: NDArray[np.int64]
    #: The first row of each record; the last entry is the number of rows.
    rows: NDArray[np.int64]
    by_column: bool = False

    @classmethod
    def made(cls, lines: int, rows: NDArray[np.int64], *, by_column: bool = False) -> _Index:
        count, records = int(rows[-1]), len(rows) - 1
        shape = (lines, count, 4) if by_column else (count, lines, 4)
        weights = np.full(count, _ONE)
        details = np.zeros((records, 2), np.int64)
        return cls(np.zeros(shape, np.int32), weights, np.zeros(records, np.int64), details, rows, by_column)

    def line(self, number: int) -> NDArray[np.int32]:
        """The spans of one column, by row."""
        return self.spans[number] if self.by_column else self.spans[:, number]

    def splits(self) -> NDArray[np.int64]:
        """Where the values of each row begin, by column; one more for the end."""
        counts = self.spans[:, :, 3] if self.by_column else self.spans[:, :, 3].T
        splits = np.zeros((len(counts), len(self.weights) + 1), np.int64)
        np.cumsum(counts, axis=1, out=splits[:, 1:])
        return splits


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
        self._orders = _orders_of_instances(schema.columns)
        self._sizes = np.array([each.size or 0 for each in schema.columns], np.int64)
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
            except _RefusedError as refused:
                keep = np.ones(len(payloads), np.bool_)
                for record, rule in sorted(refused.rules.items()):
                    bad.meet(CorruptError(payloads.path, int(payloads.offsets[record]), rule), payloads[record])
                    keep[record] = False
                payloads, rewritten = payloads.take(keep), rewritten[keep]

    # -- finding values ---------------------------------------------------------------------------------

    def _index(self, payloads: Payloads) -> _Index:
        if len(payloads.data) > MAX_BUFFER_BYTES:
            raise ExhaustedError(f"{payloads.path}: at most {MAX_BUFFER_BYTES:,} bytes are parsed at once")
        if self._message is ExampleBatch:
            return self._index_batches(payloads)
        index = _Index.made(len(self._columns) + (3 if self._of_instances else 2), np.arange(len(payloads) + 1))
        place = payloads.data, payloads.starts, payloads.ends, self._names, self._splits, self._buckets
        out = index.spans, index.weights, index.status, index.details
        if not self._of_instances:
            examples.index_examples(*place, self._taken, *out)
            return index
        instances.index_instances(*place, self._orders, self._taken, *out)
        if (self._slots >= 0).any() and not index.status.any():
            instances.count_slots(payloads.data, index.spans, self._slots)
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
        rows = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        index = _Index.made(len(self._columns) + 2, rows, by_column=True)
        examples.index_batches(
            payloads.data, payloads.starts, payloads.ends, rows, self._names, self._splits, self._buckets,
            self._taken, index.spans, index.weights, index.status, index.details,
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
        splits = index.splits()
        self._check_totals(index, splits)
        data = payloads.data
        numbers = self._by_column(data, index, splits) if index.by_column else self._by_row(data, index, splits)
        arrays = []
        if self._schema.label:
            label = len(self._columns)
            arrays.append(ragged_array(Ragged(splits[label], numbers[label]), pa.float32()))
        if self._schema.weight:
            arrays.append(pa.array(index.weights.view(np.float32)))
        if self._schema.line_id:
            arrays += self._line_id_arrays(payloads, index)
        for number, column in enumerate(self._columns):
            if column.kind is ColumnKind.BYTES:
                arrays.append(feature_array(column, self._bytes(data, index, number, splits[number])))
            elif column.size is None:
                arrays.append(ragged_array(Ragged(splits[number], numbers[number]), column.kind.arrow))
            else:
                arrays.append(dense_array(column, numbers[number]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)

    def _numbers(self) -> list[tuple[int, bool]]:
        """The columns of numbers, and whether each is of floats. The label comes last."""
        found = [
            (number, column.kind is ColumnKind.FLOATS)
            for number, column in enumerate(self._columns)
            if column.kind is not ColumnKind.BYTES
        ]
        return [*found, (len(self._columns), True)] if self._schema.label else found

    def _lengths(self, index: _Index, splits: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many values each column has, and the label after them."""
        lengths = splits[: len(self._columns) + 1, -1].copy()
        dense = self._sizes > 0
        lengths[:-1][dense] = self._sizes[dense] * len(index.weights)
        return lengths

    def _by_row(self, data: NDArray[np.uint8], index: _Index, splits: NDArray[np.int64]) -> dict[int, Any]:
        lengths = self._lengths(index, splits)
        places = np.full(len(lengths), -1, np.int64)
        totals = [0, 0]
        for number, is_float in self._numbers():
            places[number] = totals[is_float]
            totals[is_float] += lengths[number]
        ints, bits = np.zeros(totals[0], np.int64), np.zeros(totals[1], np.uint32)
        found = {
            number: (bits.view(np.float32) if is_float else ints)[places[number] :][: lengths[number]]
            for number, is_float in self._numbers()
        }
        limits = np.append(self._sizes, 0)
        slots = places.copy()
        if self._of_instances:
            flat = self._slots[self._slots >= 0]
            places[flat] = -1
        values.fill_rows(data, index.spans, places, limits, ints, bits)
        if self._of_instances and len(flat):
            instances.fill_slots(data, index.spans, self._slots, slots, limits, ints)
        return found

    def _by_column(self, data: NDArray[np.uint8], index: _Index, splits: NDArray[np.int64]) -> dict[int, Any]:
        lengths = self._lengths(index, splits)
        found: dict[int, Any] = {}
        for number, is_float in self._numbers():
            made = np.zeros(lengths[number], np.uint32 if is_float else np.int64)
            limit = int(self._sizes[number]) if number < len(self._sizes) else 0
            ints, bits = (_NO_INTS, made) if is_float else (made, _NO_BITS)
            values.fill_column(data, index.line(number), limit, ints, bits)
            found[number] = made.view(np.float32) if is_float else made
        return found

    def _line_id_arrays(self, payloads: Payloads, index: _Index) -> list[Any]:
        line = index.line(len(self._columns) + 1).astype(np.int64)
        try:
            found = LineIds(payloads.data, line[:, 1].copy(), line[:, 2].copy(), self._schema.line_id)
            return [found.array(name) for name in self._schema.line_id]
        except LineIdError as error:
            records = np.searchsorted(index.rows, [*error.rules], "right") - 1
            pairs = list(zip(records.tolist(), error.rules.values(), strict=True))
            # Of several rows of one record the first counts.
            raise _RefusedError(dict(reversed(pairs))) from error

    def _bytes(self, data: NDArray[np.uint8], index: _Index, number: int, splits: NDArray[np.int64]) -> Ragged:
        begins, ends = np.empty(splits[-1], np.int64), np.empty(splits[-1], np.int64)
        values.find_bytes(data, np.ascontiguousarray(index.line(number)), begins, ends)
        sizes = np.concatenate((np.zeros(1, np.int64), np.cumsum(ends - begins)))
        _check_total(self._columns[number].name, np.diff(sizes[splits][index.rows]))
        return Ragged(splits, bytes_array(data, begins, ends))

    def _check_totals(self, index: _Index, splits: NDArray[np.int64]) -> None:
        lengths = self._lengths(index, splits)
        for number in np.flatnonzero(lengths > MAX_VALUES).tolist():
            dense = int(self._sizes[number]) if number < len(self._sizes) else 0
            by_record = np.diff(index.rows) * dense if dense else np.diff(splits[number][index.rows])
            _check_total([*self._labels, LABEL][number], by_record)


class _RefusedError(Exception):
    """Records that only a closer look shows to be bad, by number, and why."""

    def __init__(self, rules: Mapping[int, str]) -> None:
        super().__init__()
        self.rules = rules


def _check_total(name: str, counts: NDArray[np.int64]) -> None:
    """Refuse the largest records, until the values of the others fit into a column."""
    excess = int(counts.sum()) - MAX_VALUES
    if excess > 0:
        largest = np.argsort(-counts, kind="stable")
        refused = largest[: int(np.searchsorted(np.cumsum(counts[largest]), excess)) + 1]
        raise _RefusedError(dict.fromkeys(refused.tolist(), too_many_values(name)))


def _taken_of_examples(columns: tuple[Column, ...]) -> NDArray[np.int64]:
    """A bit for each field of a feature that a column takes; label, weight and line id come after them."""
    fields = [[_FIELDS[each] for each in TAKEN[column.kind]] for column in columns]
    fields += [[_FIELDS["float_list"]], [_FIELDS["float_list"]], [_FIELDS["bytes_list"]]]
    return np.array([sum(1 << number for number in each) for each in fields], np.int64)


def _orders_of_instances(columns: tuple[Column, ...]) -> NDArray[np.int64]:
    """The fields of a feature that each column takes, in order, then zeros. None for columns of flat ids."""
    orders = np.zeros((max(len(columns), 1), 5), np.int64)
    for number, column in enumerate(columns):
        if column.flat_slot is None:
            fields = [_INSTANCE_FIELDS[each] for each in TAKEN_FIELDS[column.kind]]
            orders[number, : len(fields)] = fields
    return orders


def _taken_of_instances(columns: tuple[Column, ...]) -> NDArray[np.int64]:
    """The same as bits."""
    orders = _orders_of_instances(columns)
    return np.array([sum(1 << int(number) for number in each if number) for each in orders], np.int64)

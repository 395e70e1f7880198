"""The plain parser: protobuf reads each record, and its values are put together to columns.

For machines without numba, and the oracle of the compiled parser: both give the same columns for every record that
protobuf takes. Called by `shoal.records.parsing.engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from shoal.core.errors import CorruptError
from shoal.records import fids
from shoal.records.bad_records import BadRecords
from shoal.records.formats.payloads import Payloads
from shoal.records.messages import INSTANCE_WEIGHT, LABEL, LINE_ID, MAX_BATCH_ROWS, RESERVED
from shoal.records.parsing.assembling import Ragged, feature_array, ragged_array
from shoal.records.parsing.rules import (
    MAX_VALUES,
    TAKEN,
    TAKEN_FIELDS,
    not_text,
    too_many_values,
    wrong_batch_size,
    wrong_kind,
    wrong_length,
    wrong_line_id,
)
from shoal.records.parsing.schema import LINE_ID_TYPES, Column, ColumnKind, RowSchema
from shoal.wire.pb.idl.matrix.proto.example_pb2 import SHARED, Example, ExampleBatch, Feature
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance


class _Row:
    """What one record, or one row of a batch, has of the schema."""

    __slots__ = ("features", "label", "line_id", "weight")

    def __init__(self) -> None:
        self.label: Any = ()
        self.weight = 1.0
        self.line_id: LineId | None = None
        self.features: dict[str, Any] = {}


class PlainParser:
    """Reads records of one type by protobuf."""

    def __init__(self, message: type[Any], schema: RowSchema) -> None:
        self._message = message
        self._schema = schema
        self._wanted = {each.name: each for each in schema.columns}
        self._slots = {each.flat_slot: each.name for each in schema.columns if each.flat_slot is not None}
        readers: dict[type[Any], Callable[[Any], Iterator[_Row]]] = {
            Instance: self._instance_rows,
            Example: self._example_rows,
            ExampleBatch: self._batch_rows,
        }
        self._rows = readers[message]

    def parse(self, payloads: Payloads, bad: BadRecords) -> Any:
        """The records as columns. What is no such message goes to `bad`."""
        rows: list[_Row] = []
        for index, payload in enumerate(payloads):
            try:
                rows.extend(self._check(list(self._rows(self._message.FromString(payload)))))
            except DecodeError as error:
                rule = f"must be a {self._message.DESCRIPTOR.full_name}: {error}"
                bad.meet(CorruptError(payloads.path, int(payloads.offsets[index]), rule), payload)
            except _RefusedError as error:
                bad.meet(CorruptError(payloads.path, int(payloads.offsets[index]), str(error)), payload)
        return self._assembled(rows)

    # -- rows ------------------------------------------------------------------------------------------

    def _instance_rows(self, instance: Instance) -> Iterator[_Row]:
        row = _Row()
        row.label = instance.label
        row.weight = instance.instance_weight if instance.HasField("instance_weight") else 1.0
        row.line_id = instance.line_id
        if self._slots:
            flat = np.array(instance.fid, np.uint64)
            slots = fids.slot_v1(flat)
            made = fids.v1_to_v2(flat)
            row.features = {name: made[slots == slot] for slot, name in self._slots.items()}
        for named in instance.feature:
            column = self._wanted.get(named.name)
            if column is not None and column.flat_slot is None:
                row.features[named.name] = _instance_values(column, named)
        yield row

    def _example_rows(self, example: Example) -> Iterator[_Row]:
        row = _Row()
        row.label = example.label
        row.weight = example.instance_weight or 1.0
        row.line_id = example.line_id
        for named in example.named_feature:
            self._take(row, named.name, named.feature)
        yield row

    def _batch_rows(self, batch: ExampleBatch) -> Iterator[_Row]:
        if not 0 <= batch.batch_size <= MAX_BATCH_ROWS:
            raise _RefusedError(wrong_batch_size(batch.batch_size))
        rows = [_Row() for _ in range(batch.batch_size)]
        for column in batch.named_feature_list:
            if column.name not in self._wanted and column.name not in RESERVED:
                continue
            shared = column.type == SHARED
            if len(column.feature) != len(rows) and (not shared or (rows and not column.feature)):
                raise _RefusedError(wrong_length(column.name, len(column.feature), len(rows)))
            for number, row in enumerate(rows):
                self._take(row, column.name, column.feature[0 if shared else number])
        yield from rows

    def _take(self, row: _Row, name: str, feature: Feature) -> None:
        if name == LABEL:
            row.label = feature.float_list.value
        elif name == INSTANCE_WEIGHT:
            row.weight = feature.float_list.value[0] if feature.float_list.value else 1.0
        elif name == LINE_ID:
            if self._schema.line_id:
                row.line_id = _line_id(feature.bytes_list.value[0] if feature.bytes_list.value else b"")
        elif name in self._wanted:
            row.features[name] = _example_values(self._wanted[name], feature)

    def _check(self, rows: list[_Row]) -> list[_Row]:
        """Look at what protobuf lets pass."""
        texts = [name for name in self._schema.line_id if pa.types.is_string(LINE_ID_TYPES[name])]
        for row in rows:
            for name in texts:
                if row.line_id is not None and isinstance(getattr(row.line_id, name), bytes):
                    raise _RefusedError(not_text(name))
        for column in self._schema.columns:
            counts = sum(len(row.features.get(column.name, ())) for row in rows)
            if max(counts, len(rows) * (column.size or 0)) > MAX_VALUES:
                raise _RefusedError(too_many_values(column.name))
        return rows

    # -- columns ---------------------------------------------------------------------------------------

    def _assembled(self, rows: list[_Row]) -> Any:
        arrays = []
        if self._schema.label:
            arrays.append(ragged_array(_numbers([row.label for row in rows], np.float32), pa.float32()))
        if self._schema.weight:
            arrays.append(pa.array([row.weight for row in rows], pa.float32()))
        lines = [LineId() if row.line_id is None else row.line_id for row in rows]
        for name in self._schema.line_id:
            found = [getattr(line, name) for line in lines]
            kind = LINE_ID_TYPES[name]
            ragged = pa.types.is_list(kind)
            arrays.append(ragged_array(_numbers(found, np.int32), pa.int32()) if ragged else pa.array(found, kind))
        for column in self._schema.columns:
            values = [row.features.get(column.name, ()) for row in rows]
            arrays.append(feature_array(column, _flattened(column.kind, values)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)


class _RefusedError(Exception):
    """A record is well formed, and not what the schema asks for."""


def _line_id(data: bytes) -> LineId:
    try:
        return LineId.FromString(data)
    except DecodeError as error:
        raise _RefusedError(wrong_line_id(error)) from error


def _example_values(column: Column, feature: Feature) -> Any:
    kind = feature.WhichOneof("type")
    if kind is None:
        return ()
    if kind not in TAKEN[column.kind]:
        raise _RefusedError(wrong_kind(column, kind))
    found = getattr(feature, kind)
    if kind.endswith("_value"):
        return (found,)
    values = [each for inner in found.list for each in inner.value] if kind.endswith("lists") else found.value
    if kind.startswith("fid"):
        made = np.array(values, np.uint64)
        return fids.v1_to_v2(made) if kind.startswith("fid_v1") else made.view(np.int64)
    return values


def _instance_values(column: Column, named: Any) -> Any:
    for name in TAKEN_FIELDS[column.kind]:
        found = getattr(named, name)
        if len(found):
            values = [each for inner in found for each in inner.value] if name.endswith("_list") else found
            return np.array(values, np.uint64).view(np.int64) if name.startswith("fid") else values
    held = [field.name for field, _ in named.ListFields() if field.name != "name"]
    if held:
        raise _RefusedError(wrong_kind(column, held[0]))
    return ()


def _flattened(kind: ColumnKind, rows: list[Any]) -> Ragged:
    if kind is ColumnKind.BYTES:
        splits = _splits(rows)
        return Ragged(splits, pa.array([each for row in rows for each in row], pa.binary()))
    return _numbers(rows, np.float32 if kind is ColumnKind.FLOATS else np.int64)


def _numbers(rows: list[Any], kind: type[Any]) -> Ragged:
    splits = _splits(rows)
    values = np.empty(splits[-1], kind)
    for index, row in enumerate(rows):
        if len(row):
            with np.errstate(over="ignore"):  # a double may be too large for a float
                values[splits[index] : splits[index + 1]] = row
    return Ragged(splits, values)


def _splits(rows: list[Any]) -> Any:
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=splits[1:])
    return splits

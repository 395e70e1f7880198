"""Protobuf messages as rows, from a message class or a descriptor that was loaded at run time.

Each field is a column: numbers, text, bytes and booleans as they are, an enum by the names of its values, a message as
a struct, a repeated field as a list, a map as a map, `google.protobuf.Timestamp` as a time in microseconds. A field
that knows whether it was set is null when it was not; another one has its default then, as Protobuf means it. A message
that contains itself cannot be a column. Called through `shoal.topics.codecs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from shoal.core.errors import InternalError, InvalidError, NotFoundError, problem
from shoal.topics.codecs.base import Decoded, Encoded, poison, reason_of

_TIMESTAMP = "google.protobuf.Timestamp"
_TIME = pa.timestamp("us", "UTC")
#: What Arrow and Python say of a value that does not fit.
_UNFIT = (OverflowError, ValueError, pa.ArrowException)
_MICROSECONDS = 1_000_000

_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.utf8(),
}

Getter = Callable[[Any], Any]


class ProtobufCodec:
    """One message in each record.

    Args:
        message: a generated class, or one from `message_class`.
    """

    name = "protobuf"

    def __init__(self, message: type[Message]) -> None:
        self._message = message
        self._descriptor = cast("Any", message.DESCRIPTOR)
        self.schema = schema_of(self._descriptor)
        self._getters = {field.name: _getter(field) for field in self._descriptor.fields}

    def decode(self, batch: Any, schema: Any | None = None) -> Decoded:
        """The fields that the schema names, in its types where they can be had."""
        wanted = self.schema if schema is None else schema
        self._check(wanted)
        values = batch.column(batch.schema.get_field_index("value")).to_pylist()
        parse = self._message.FromString
        messages: dict[int, Any] = {}
        bad: dict[int, str] = {}
        for at, value in enumerate(values):
            try:
                messages[at] = parse(value)
            except (DecodeError, TypeError) as error:
                bad[at] = "no value" if value is None else str(error) or "not such a message"
        try:
            rows = self._rows(list(messages.values()), wanted)
        except _UNFIT:
            # Some value is too large for its column: a time too far away, a number for a narrower type.
            for at, message in list(messages.items()):
                try:
                    self._rows([message], wanted)
                except _UNFIT as error:
                    bad[at] = reason_of(error)
                    del messages[at]
            rows = self._rows(list(messages.values()), wanted)
        return Decoded(rows, pa.array(list(messages), pa.int64()), poison(batch, bad))

    def _rows(self, messages: list[Any], wanted: Any) -> Any:
        columns = []
        for field in wanted:
            getter = self._getters[field.name]
            column = pa.array([getter(each) for each in messages], type=self.schema.field(field.name).type)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    def encode(self, rows: Any) -> Encoded:
        """A message for each row; a null leaves a field unset."""
        self._check(rows.schema)
        names = rows.schema.names
        fields = [self._descriptor.fields_by_name[name] for name in names]
        casted = [column.cast(self.schema.field(name).type) for name, column in zip(names, rows.columns, strict=True)]
        cells = [_cells(column) for column in casted]
        values = []
        for row in zip(*cells, strict=True):
            message = self._message()
            for field, cell in zip(fields, row, strict=True):
                if cell is not None:
                    _put(message, field, cell)
            values.append(message.SerializeToString(deterministic=True))
        return Encoded(pa.array(values, pa.binary()), pa.array(np.arange(rows.num_rows)))

    def _check(self, schema: Any) -> None:
        unknown = [name for name in schema.names if name not in self._getters]
        if unknown:
            rule = f"must be a field of {self._descriptor.full_name}: {', '.join(self._getters)}"
            raise InvalidError([problem("column", name, rule) for name in unknown], what="protobuf")


def message_class(descriptors: bytes, name: str) -> type[Message]:
    """The class of a message, from a compiled set of descriptors (`protoc --descriptor_set_out --include_imports`)."""
    pool = DescriptorPool()
    try:
        found = FileDescriptorSet.FromString(descriptors)
        for file in found.file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        rule = "must be a compiled set of descriptors with all of its imports"
        raise InvalidError([problem("descriptors", f"{len(descriptors)} bytes", rule)]) from error
    try:
        return GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError as error:
        raise NotFoundError("protobuf message", name) from error


def schema_of(descriptor: Descriptor) -> Any:
    """The columns of a message."""
    return pa.schema([pa.field(field.name, _type(field, (descriptor.full_name,))) for field in descriptor.fields])


def _type(field: FieldDescriptor, within: tuple[str, ...]) -> Any:
    if _is_map(field):
        key, value = _message_of(field).fields
        return pa.map_(_one_type(key, within), _one_type(value, within))
    kind = _one_type(field, within)
    return pa.list_(kind) if field.is_repeated else kind


def _one_type(field: FieldDescriptor, within: tuple[str, ...]) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.utf8()
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _SCALARS[field.cpp_type]
    inner = _message_of(field)
    if inner.full_name == _TIMESTAMP:
        return _TIME
    if inner.full_name in within:
        rule = f"must not contain itself, as {inner.full_name} does: it cannot be a column"
        raise InvalidError([problem("field", field.full_name, rule)], what="protobuf")
    return pa.struct([pa.field(each.name, _type(each, (*within, inner.full_name))) for each in inner.fields])


def _message_of(field: FieldDescriptor) -> Descriptor:
    found = field.message_type
    if found is None:
        raise InternalError(f"{field.full_name} is no message")
    return found


def _enum_of(field: FieldDescriptor) -> EnumDescriptor:
    found = field.enum_type
    if found is None:
        raise InternalError(f"{field.full_name} is no enum")
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _getter(field: FieldDescriptor) -> Getter:
    """How to take a field out of a message; compiled once, because it is called for every row."""
    name = field.name
    if _is_map(field):
        convert = _converter(_message_of(field).fields[1])
        return lambda message: [(key, convert(value)) for key, value in getattr(message, name).items()]
    one = _converter(field)
    if field.is_repeated:
        return lambda message: [one(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    if one is _same:
        return lambda message: getattr(message, name)
    return lambda message: one(getattr(message, name))


def _converter(field: FieldDescriptor) -> Getter:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: value.name for number, value in _enum_of(field).values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _same
    if _message_of(field).full_name == _TIMESTAMP:
        return lambda stamp: stamp.seconds * _MICROSECONDS + stamp.nanos // 1000
    getters = {each.name: _getter(each) for each in _message_of(field).fields}
    return lambda message: {name: get(message) for name, get in getters.items()}


def _same(value: Any) -> Any:
    return value


def _cells(column: Any) -> list[Any]:
    """The values of a column; times as microseconds, also inside of others."""
    cells: list[Any] = column.cast(_without_times(column.type)).to_pylist()
    return cells


def _without_times(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_times(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return kind


def _put(message: Any, field: FieldDescriptor, cell: Any) -> None:
    target = getattr(message, field.name)
    if _is_map(field):
        value_field = _message_of(field).fields[1]
        for key, value in cell:
            if value_field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                _fill(target[key], value_field, value or {})
            else:
                target[key] = _scalar(value_field, value)
    elif field.is_repeated:
        for each in cell:
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                _fill(target.add(), field, each)
            else:
                target.append(_scalar(field, each))
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        target.SetInParent()
        _fill(target, field, cell)
    else:
        setattr(message, field.name, _scalar(field, cell))


def _fill(message: Any, field: FieldDescriptor, cell: Any) -> None:
    if _message_of(field).full_name == _TIMESTAMP:
        message.seconds, micros = divmod(cell, _MICROSECONDS)
        message.nanos = micros * 1000
        return
    for inner in _message_of(field).fields:
        value = cell.get(inner.name)
        if value is not None:
            _put(message, inner, value)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type != FieldDescriptor.CPPTYPE_ENUM:
        return value
    known = _enum_of(field).values_by_name.get(value)
    if known is not None:
        return known.number
    try:
        return int(value)
    except ValueError as error:
        rule = f"must be one of {', '.join(_enum_of(field).values_by_name)}"
        raise InvalidError([problem(field.full_name, value, rule)], what="protobuf") from error

"""Messages that were described at run time become rows, and rows messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from shoal.core.errors import InvalidError, NotFoundError
from shoal.topics.base import records
from shoal.topics.codecs import codec
from shoal.topics.codecs.protobuf import ProtobufCodec, message_class

Kind = FieldDescriptorProto


def described() -> FileDescriptorSet:
    """A message with a field of every kind, and one that contains itself."""
    file = FileDescriptorProto(name="click.proto", package="test", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(("UNSPECIFIED", "VIEW", "CLICK")):
        kinds.value.add(name=name, number=number)
    place = file.message_type.add(name="Place")
    place.field.add(name="x", number=1, type=Kind.TYPE_DOUBLE, label=Kind.LABEL_OPTIONAL)
    click = file.message_type.add(name="Click")
    scores = click.nested_type.add(name="ScoresEntry")
    scores.options.map_entry = True
    scores.field.add(name="key", number=1, type=Kind.TYPE_STRING, label=Kind.LABEL_OPTIONAL)
    scores.field.add(name="value", number=2, type=Kind.TYPE_INT32, label=Kind.LABEL_OPTIONAL)
    one, many = Kind.LABEL_OPTIONAL, Kind.LABEL_REPEATED
    fields = [
        ("user", Kind.TYPE_STRING, one, ""),
        ("count", Kind.TYPE_INT64, one, ""),
        ("price", Kind.TYPE_FLOAT, one, ""),
        ("raw", Kind.TYPE_BYTES, one, ""),
        ("ok", Kind.TYPE_BOOL, one, ""),
        ("kind", Kind.TYPE_ENUM, one, ".test.Kind"),
        ("tags", Kind.TYPE_STRING, many, ""),
        ("at", Kind.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
        ("place", Kind.TYPE_MESSAGE, one, ".test.Place"),
        ("places", Kind.TYPE_MESSAGE, many, ".test.Place"),
        ("scores", Kind.TYPE_MESSAGE, many, ".test.Click.ScoresEntry"),
    ]
    for number, (name, kind, label, of) in enumerate(fields, 1):
        click.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    click.oneof_decl.add(name="_maybe")
    click.field.add(name="maybe", number=20, type=Kind.TYPE_UINT32, label=one, proto3_optional=True, oneof_index=0)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=Kind.TYPE_MESSAGE, label=one, type_name=".test.Tree")
    timestamp = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return FileDescriptorSet(file=[timestamp, file])


@pytest.fixture(scope="module")
def click() -> ProtobufCodec:
    return ProtobufCodec(message_class(described().SerializeToString(), "test.Click"))


ROWS = [
    {
        "user": "ü",
        "count": -5,
        "price": 0.5,
        "raw": b"\xff",
        "ok": True,
        "kind": "CLICK",
        "tags": ["a", "b"],
        "at": datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        "place": {"x": 1.5},
        "places": [{"x": 1.0}, {"x": 0.0}],
        "scores": [("s", 3)],
        "maybe": 0,
    },
    {
        "user": "",
        "count": 0,
        "price": 0.0,
        "raw": b"",
        "ok": False,
        "kind": "77",
        "tags": [],
        "at": datetime(1960, 1, 1, tzinfo=UTC),
        "place": None,
        "places": [],
        "scores": [],
        "maybe": None,
    },
]


def test_there_and_back(click: ProtobufCodec) -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=click.schema)
    encoded = click.encode(batch)
    decoded = click.decode(records(encoded.values))
    assert decoded.rows.to_pylist() == ROWS
    assert decoded.rows.schema == click.schema
    assert decoded.records.to_pylist() == encoded.rows.to_pylist() == [0, 1]


def test_some_of_the_fields_in_types_of_ones_own(click: ProtobufCodec) -> None:
    wanted = pa.schema([("count", pa.int32()), ("at", pa.timestamp("ms", "UTC")), ("user", pa.large_utf8())])
    values = click.encode(pa.RecordBatch.from_pylist(ROWS[1:], schema=click.schema)).values
    assert click.decode(records(values), wanted).rows.schema == wanted
    partly = pa.record_batch({"user": ["x", None], "count": pa.array([None, 3], pa.int8())})
    found = click.decode(records(click.encode(partly).values), pa.schema([("user", pa.utf8()), ("count", pa.int64())]))
    assert found.rows.to_pylist() == [{"user": "x", "count": 0}, {"user": "", "count": 3}]


def test_poison(click: ProtobufCodec) -> None:
    good = click.encode(pa.record_batch({"user": ["x"]})).values[0].as_py()
    decoded = click.decode(records([b"\xff\xff", good, None, good[:-1]]), pa.schema([("user", pa.utf8())]))
    assert decoded.rows.to_pylist() == [{"user": "x"}]
    assert decoded.records.to_pylist() == [1]
    assert decoded.poison["value"].to_pylist() == [b"\xff\xff", None, good[:-1]]


def test_bad_input_is_named(click: ProtobufCodec) -> None:
    with pytest.raises(InvalidError):
        click.decode(records([b""]), pa.schema([("nobody", pa.utf8())]))
    with pytest.raises(InvalidError):
        click.encode(pa.record_batch({"nobody": [1]}))
    with pytest.raises(InvalidError) as raised:
        click.encode(pa.record_batch({"kind": ["SOMETHING"]}))
    assert "VIEW" in str(raised.value)
    with pytest.raises(NotFoundError):
        message_class(described().SerializeToString(), "test.Nobody")
    for broken in (b"nonsense", FileDescriptorSet(file=described().file[1:]).SerializeToString()):
        with pytest.raises(InvalidError):
            message_class(broken, "test.Click")
    with pytest.raises(InvalidError) as raised:
        ProtobufCodec(message_class(described().SerializeToString(), "test.Tree"))
    assert "contain itself" in str(raised.value)


def test_by_name(click: ProtobufCodec) -> None:
    made = codec("protobuf", message=click._message)
    assert isinstance(made, ProtobufCodec)
    assert made.name == "protobuf"

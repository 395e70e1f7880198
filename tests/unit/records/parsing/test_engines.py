"""Both parsers give the same columns, and those are what protobuf says: one suite over both."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import CorruptError, InvalidError, UnsupportedError
from shoal.records import fids
from shoal.records.bad_records import BadRecords, OnBad
from shoal.records.formats.frames import write_frames
from shoal.records.formats.payloads import Payloads
from shoal.records.formats.reading import framed
from shoal.records.parsing import engines, rules
from shoal.records.parsing.engines import Engine, make_parser, read_columns, rebatched
from shoal.records.parsing.schema import LINE_ID_TYPES, Column, ColumnKind, RowSchema, floats, ids, ints, texts
from shoal.testing.messages import messages
from shoal.wire.pb.idl.matrix.proto.example_pb2 import SHARED, Example, ExampleBatch, Feature
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

ENGINES = [Engine.COMPILED, Engine.PLAIN]
V1 = 3 << 54 | 9
V2 = int(fids.v1_to_v2(V1))
ALL_LINES = tuple(LINE_ID_TYPES)


def parsed(message, records, schema, engine, bad=None):
    payloads = Payloads.of([each if isinstance(each, bytes) else each.SerializeToString() for each in records])
    batch = make_parser(message, schema, engine).parse(payloads, bad or BadRecords())
    batch.validate(full=True)
    assert batch.schema.equals(schema.arrow)
    return batch


def both(message, records, schema):
    """The columns of both, which are the same, and how many records were left out."""
    left = {engine: BadRecords(OnBad.SKIP) for engine in ENGINES}
    found = {engine: parsed(message, records, schema, engine, left[engine]) for engine in ENGINES}
    compiled, plain = (found[engine] for engine in ENGINES)
    # By bits: a NaN is not equal to itself.
    for name in schema.names:
        assert _bits(compiled.column(name)) == _bits(plain.column(name)), name
    assert left[Engine.COMPILED].count == left[Engine.PLAIN].count
    return compiled, left[Engine.PLAIN].count


def _bits(array):
    if pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return len(array), [len(each) for each in array], _bits(array.flatten())
    if pa.types.is_float32(array.type):
        # Protobuf gives Python doubles, on the way to which a signaling NaN becomes a quiet one.
        found = array.to_numpy(zero_copy_only=False).view(np.uint32)
        return np.where((found & 0x7FFFFFFF) > 0x7F800000, found | 0x400000, found).tolist()
    return array.to_pylist()


# ---------------------------------------------------------------------------------------------------------
# Every kind of feature, for every kind of column

KINDS = [field.name for field in Feature.DESCRIPTOR.fields]
VALUES = {
    "fid": [V1, 2**63 + 1],
    "float": [1.5, -2.5],
    "double": [1e300, 0.1],
    "int64": [-7, 2**62],
    "bytes": [b"", b"x"],
}
EXPECTED = {
    "fid_v1": [V2, int(fids.v1_to_v2(2**63 + 1))], "fid_v2": [V1, 1 - 2**63], "float": [1.5, -2.5],
    "double": [float("inf"), float(np.float32(0.1))], "int64": [-7, 2**62], "bytes": [b"", b"x"],
}  # fmt: skip


def feature_of(kind):
    made = Feature()
    values = VALUES[kind.split("_")[0]]
    if kind.endswith("lists"):
        for each in values:
            getattr(made, kind).list.add(value=[each])
        getattr(made, kind).list.add()
    elif kind.endswith("list"):
        getattr(made, kind).value.extend(values)
    else:
        setattr(made, kind, values[0])
    return made


def expected_of(kind):
    base = "_".join(kind.split("_")[:2]) if kind.startswith("fid") else kind.split("_")[0]
    return EXPECTED[base][:1] if kind.endswith("value") else EXPECTED[base]


@pytest.mark.parametrize(("kind", "column"), list(itertools.product(KINDS, ColumnKind)))
def test_a_feature_of_an_example(kind, column):
    example = Example()
    example.named_feature.add(name="other", feature=feature_of("bytes_list"))
    example.named_feature.add(name="f", feature=feature_of(kind))
    batch = ExampleBatch(batch_size=2)
    whole = batch.named_feature_list.add(name="f")
    whole.feature.extend([feature_of(kind), feature_of(kind)])
    schema = RowSchema((Column("f", column),), label=False, weight=False)
    takes = kind in rules.TAKEN[column]
    for message, record, rows in ((Example, example, 1), (ExampleBatch, batch, 2)):
        found, refused = both(message, [record], schema)
        assert found.column("f").to_pylist() == ([expected_of(kind)] * rows if takes else [])
        assert refused == (not takes)
        for engine in ENGINES if not takes else ():
            with pytest.raises(CorruptError, match=f"feature f must hold {column.value}, and holds {kind}"):
                parsed(message, [record], schema, engine)


INSTANCE_KINDS = {
    "fid": "fid_v2",
    "float_value": "float",
    "int64_value": "int64",
    "bytes_value": "bytes",
    "fid_list": "fid_v2",
    "float_list": "float",
    "int64_list": "int64",
    "bytes_list": "bytes",
}


def instance_with(name, kind):
    made = Instance()
    feature = made.feature.add(name=name)
    for each in VALUES[kind.split("_")[0]]:
        if kind.endswith("list"):
            getattr(feature, kind).add(value=[each])
        else:
            getattr(feature, kind).append(each)
    return made


@pytest.mark.parametrize(("kind", "column"), list(itertools.product(INSTANCE_KINDS, ColumnKind)))
def test_a_feature_of_an_instance(kind, column):
    instance = instance_with("f", kind)
    schema = RowSchema((Column("f", column),), label=False, weight=False)
    takes = kind in rules.TAKEN_FIELDS[column]
    found, refused = both(Instance, [instance], schema)
    assert found.column("f").to_pylist() == ([EXPECTED[INSTANCE_KINDS[kind]]] if takes else [])
    assert refused == (not takes)


# ---------------------------------------------------------------------------------------------------------
# Rows

SCHEMA = RowSchema(
    (ids("fc_user"), ids("fc_slot_3"), floats("price", size=1), floats("vector", size=3), ints("n", size=2),
     texts("title"), texts("two", size=2)),
    line_id=ALL_LINES,
)  # fmt: skip


def line_id(uid):
    return LineId(
        uid=uid, req_time=-5, item_id=2**64 - 1, actions=[1, -2], chnid=7, pre_actions=[3], sample_rate=0.5,
        special_strategies=[9, 8], device_type="é", cid="c", user_id="u", is_draw=True, rank=-1, data_source_name="d",
    )  # fmt: skip


def instance(uid=1):
    made = Instance(fid=[V1, 5 << 54, V1 + 1], label=[1.0, 0.0], line_id=line_id(uid), instance_weight=0.25)
    made.feature.add(name="fc_user", fid=[7, 8])
    made.feature.add(name="vector", float_value=[1, 2, 3, 4])
    made.feature.add(name="n", int64_value=[-1])
    made.feature.add(name="title", bytes_value=[b"a", b""])
    made.feature.add(name="two", bytes_value=[b"1", b"2", b"3"])
    made.feature.add(name="not asked for", float_value=[9])
    return made


def example(uid=1, *, named):
    made = Example()
    if named:
        made.named_feature.add(name="__LABEL__").feature.float_list.value.extend([1.0, 0.0])
        made.named_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(line_id(uid).SerializeToString())
        made.named_feature.add(name="instance_weight").feature.float_list.value.append(0.25)
    else:
        made.label.extend([1.0, 0.0])
        made.line_id.CopyFrom(line_id(uid))
        made.instance_weight = 0.25
    made.named_feature.add(name="fc_slot_3").feature.fid_v1_list.value.extend([V1, V1 + 1])
    made.named_feature.add(name="fc_user").feature.fid_v2_list.value.extend([7, 8])
    made.named_feature.add(name="vector").feature.float_list.value.extend([1, 2, 3, 4])
    made.named_feature.add(name="n").feature.int64_list.value.append(-1)
    made.named_feature.add(name="title").feature.bytes_list.value.extend([b"a", b""])
    made.named_feature.add(name="two").feature.bytes_list.value.extend([b"1", b"2", b"3"])
    made.named_raw_feature.add(name="fc_user")
    return made


def batch(uids):
    made = ExampleBatch(batch_size=len(uids))
    rows = [example(uid, named=True) for uid in uids]
    for number, first in enumerate(rows[0].named_feature):
        column = made.named_feature_list.add(name=first.name)
        if first.name == "fc_user":
            column.type = SHARED
            column.feature.add().CopyFrom(first.feature)
        else:
            column.feature.extend(row.named_feature[number].feature for row in rows)
    return made


ROW = {
    "label": [1.0, 0.0], "instance_weight": 0.25, "uid": 1, "req_time": -5, "item_id": 2**64 - 1, "actions": [1, -2],
    "chnid": 7, "pre_actions": [3], "sample_rate": 0.5, "special_strategies": [9, 8], "device_type": "é", "cid": "c",
    "user_id": "u", "is_draw": True, "rank": -1, "data_source_name": "d", "fc_user": [7, 8], "fc_slot_3": [V2, V2 + 1],
    "price": 0.0, "vector": [1.0, 2.0, 3.0], "n": [-1, 0], "title": [b"a", b""], "two": [b"1", b"2"],
}  # fmt: skip
EMPTY = {
    "label": [], "instance_weight": 1.0, "uid": 0, "req_time": 0, "item_id": 0, "actions": [], "chnid": 0,
    "pre_actions": [], "sample_rate": 1.0, "special_strategies": [], "device_type": "", "cid": "", "user_id": "",
    "is_draw": False, "rank": 0, "data_source_name": "", "fc_user": [], "fc_slot_3": [], "price": 0.0,
    "vector": [0.0] * 3, "n": [0, 0], "title": [], "two": [b"", b""],
}  # fmt: skip


@pytest.mark.parametrize(("message", "records"), [
    (Instance, [instance(), Instance(), instance(2)]),
    (Example, [example(named=False), Example(), example(2, named=True)]),
    (ExampleBatch, [batch([1]), ExampleBatch(batch_size=1), batch([2])]),
])  # fmt: skip
def test_rows_have_every_column(message, records):
    found, refused = both(message, records, SCHEMA)
    assert refused == 0
    assert found.to_pylist() == [ROW, EMPTY, {**ROW, "uid": 2}]


def test_a_batch_has_many_rows_and_shared_columns_have_one_feature():
    found, _ = both(ExampleBatch, [batch([1, 2, 3]), ExampleBatch(), batch([4, 5])], SCHEMA)
    assert found.to_pylist() == [{**ROW, "uid": uid} for uid in range(1, 6)]


def test_no_records_are_no_rows():
    for message in (Instance, Example, ExampleBatch):
        found, _ = both(message, [], SCHEMA)
        assert found.num_rows == 0


def test_the_last_of_two_features_of_one_name_counts():
    made = example(named=False)
    made.named_feature.add(name="fc_user")
    other = instance()
    other.feature.add(name="fc_user", fid=[1])
    whole = batch([1])
    whole.named_feature_list.add(name="fc_user").feature.add().int64_list.value.append(1)
    assert both(Example, [made], SCHEMA)[0].column("fc_user").to_pylist() == [[]]
    assert both(Instance, [other], SCHEMA)[0].column("fc_user").to_pylist() == [[1]]
    assert both(ExampleBatch, [whole], SCHEMA)[0].column("fc_user").to_pylist() == [[1]]


# ---------------------------------------------------------------------------------------------------------
# What serializers do not write, and protobuf takes


def field(number, wire, content):
    tag = number << 3 | wire
    return bytes([tag] if tag < 128 else [tag & 0x7F | 0x80, tag >> 7]) + content


def sized(number, content):
    return field(number, 2, bytes([len(content)]) + content)


GROUP = b"\x0b\x10\x05\x0c"  # unknown group 1 with a field, where it is not a known field
ODD_FEATURES = [
    sized(2, sized(1, bytes(8)) + sized(1, bytes(8))),  # two packed pieces
    sized(2, field(1, 1, b"\x07" + bytes(7)) + field(1, 1, b"\x08" + bytes(7))),  # not packed
    sized(2, b"") + sized(5, sized(1, b"\x05")),  # the last of two kinds counts
    sized(2, sized(1, bytes(8))) + sized(2, sized(1, bytes(8))),  # two parts of one message
    sized(5, sized(1, b"\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")),  # a negative number
    sized(5, field(1, 0, b"\x05") + sized(1, b"\x06\x07") + field(1, 5, bytes(4))),
    field(12, 0, b"\x05") + field(12, 0, b"\x06"),
    sized(7, sized(1, sized(1, bytes(8))) + sized(1, b"")),
    field(100, 0, b"\x01") + sized(2, sized(1, bytes(8))) + field(99, 1, bytes(8)) + field(98, 5, bytes(4)),
    b"\x93\x08\x94\x08" + sized(2, sized(1, bytes(8))),  # a group of no field
    b"",
]


@pytest.mark.parametrize("content", ODD_FEATURES, ids=lambda each: each.hex() or "empty")
def test_odd_features_are_what_protobuf_says(content):
    Feature.FromString(content)
    schema = RowSchema((ids("f"),), label=False, weight=False)
    named = sized(1, sized(1, b"f") + sized(2, content))
    late = sized(1, sized(2, content) + field(3, 0, b"\x01") + sized(1, b"g") + sized(1, b"f"))
    twice = sized(1, sized(1, b"f") + sized(2, content) + sized(2, content))
    for record in (named, late, twice, named + GROUP.replace(b"\x0b", b"\x1b").replace(b"\x0c", b"\x1c")):
        assert both(Example, [record], schema)[1] == 0
    column = sized(1, sized(1, b"f") + sized(2, content) + sized(2, content)) + field(3, 0, b"\x02")
    assert both(ExampleBatch, [column], schema)[1] == 0


FLOAT, DOUBLE = b"\x00\x00\xc0\x3f", b"\x00\x00\x00\x00\x00\x00\xf8\x3f"
#: A field that holds values, by a function of its content, and one with its number and another wire type.
UNKNOWN = [
    (Example, ids, lambda content: sized(7, content), sized(1, sized(1, bytes(8))), field(1, 1, b"\n\x06" + bytes(6))),
    (Example, floats, lambda content: sized(8, content), sized(1, sized(1, FLOAT)), field(1, 5, b"\n\x02\x00\x00")),
    (Example, floats, lambda content: sized(9, content), sized(1, sized(1, DOUBLE)), field(1, 1, b"\n\x06" + bytes(6))),
    (Example, ints, lambda content: sized(10, content), sized(1, sized(1, b"\x05")), field(1, 0, b"\x00")),
    (Example, ints, bytes, field(12, 0, b"\x05"), sized(12, b"\x06")),
    (Example, floats, bytes, field(13, 5, FLOAT), sized(13, b"\x01")),
    (Example, floats, bytes, field(14, 1, DOUBLE), sized(14, b"\x01")),
    (Instance, ids, bytes, sized(6, sized(1, bytes(8))), field(6, 1, b"\n\x06" + bytes(6))),
    (Instance, floats, bytes, sized(7, sized(1, FLOAT)), field(7, 5, b"\n\x02\x00\x00")),
    (Instance, ints, bytes, sized(8, sized(1, b"\x05")), field(8, 0, b"\x00")),
]


@pytest.mark.parametrize(("message", "column", "held", "known", "unknown"), UNKNOWN)
def test_a_field_with_another_wire_type_has_no_values(message, column, held, known, unknown):
    schema = RowSchema((column("f"),), label=False, weight=False)
    for content in (held(known + unknown), held(unknown + known)):
        if message is Instance:
            records = {Instance: sized(9, sized(1, b"f") + content)}
        else:
            named = sized(1, sized(1, b"f") + sized(2, content))
            records = {Example: named, ExampleBatch: named + field(3, 0, b"\x01")}
        for kind, record in records.items():
            found, refused = both(kind, [record], schema)
            assert ([len(each) for each in found.column("f")], refused) == ([1], 0)


@pytest.mark.parametrize("record", [
    field(1, 1, bytes(8)) + field(1, 1, b"\x01" + bytes(7)),  # flat ids that are not packed
    sized(1, bytes(8)) + sized(1, bytes(8)),
    sized(3, bytes(4)) + field(3, 5, bytes(4)),
    field(3, 5, b"\x00\x00\x80\x3f"),
    field(4, 5, bytes(4)) + field(4, 5, b"\x00\x00\x80\x3f"),
    sized(5, field(3, 0, b"\x05")) + sized(5, field(19, 0, b"\x06")),  # a line id in two parts
    sized(9, sized(2, bytes(8)) + sized(1, b"fc_user") + sized(2, b"\x01" + bytes(7))),
    sized(9, sized(1, b"fc_user") + field(2, 1, bytes(8)) + sized(4, b"\x01")),
    sized(9, sized(1, b"fc_user") + sized(2, b"") + sized(4, b"\x01\x02")),
    sized(9, sized(1, b"fc_user") + sized(6, b"") + sized(4, b"")),
    sized(9, sized(1, b"fc_user") + sized(3, b"")),
    sized(9, sized(1, b"title") + sized(9, sized(1, b"x") + sized(1, b""))),
    sized(9, b""),
], ids=lambda each: each.hex())  # fmt: skip
def test_odd_instances_are_what_protobuf_says(record):
    Instance.FromString(record)
    assert both(Instance, [record], SCHEMA)[1] == 0


@pytest.mark.parametrize("line", [
    field(6, 0, b"\x05") + sized(6, b"\x06") + field(6, 0, b"\x07"),
    sized(39, b"\x05\x06"),
    field(3, 0, b"\x05") + field(3, 0, b"\x06"),
    field(3, 1, bytes(8)),  # another wire type is another field
    field(87, 0, b"\x02"),
    field(145, 0, b"\xff\xff\xff\xff\x0f"),
    field(6, 0, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    b"\x93\x40\x94\x40" + field(3, 0, b"\x05"),
], ids=lambda each: each.hex())  # fmt: skip
def test_odd_line_ids_are_what_protobuf_says(line):
    LineId.FromString(line)
    schema = RowSchema(line_id=ALL_LINES)
    named = sized(1, sized(1, b"__LINE_ID__") + sized(2, sized(6, sized(1, line))))
    assert both(Instance, [sized(5, line), instance()], schema)[1] == 0
    assert both(Example, [named, example(named=True)], schema)[1] == 0


# ---------------------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("message", "good"), [
    (Instance, instance()), (Example, example(named=True)), (ExampleBatch, batch([1, 2]))
])  # fmt: skip
def test_a_bad_record_is_told_with_its_place_and_left_out(engine, message, good):
    records = [good, b"\xff\xff", good, good.SerializeToString()[:-1], good]
    with pytest.raises(CorruptError, match=message.DESCRIPTOR.full_name) as caught:
        parsed(message, records, SCHEMA, engine)
    assert (caught.value.path, caught.value.offset) == ("<memory>", 1)
    kept = []
    found = parsed(message, records, SCHEMA, engine, BadRecords(OnBad.SIDE, kept.append))
    assert found.num_rows == 3 * (2 if message is ExampleBatch else 1)
    assert [(each.offset, each.payload) for each in kept] == [(1, records[1]), (3, records[3])]


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_of_a_batch_have_its_length(engine):
    for count, kind in ((1, 0), (3, 0), (0, SHARED)):
        made = batch([1, 2])
        column = made.named_feature_list.add(name="price", type=kind)
        for _ in range(count):
            column.feature.add()
        with pytest.raises(CorruptError, match=f"column price .* has {count}"):
            parsed(ExampleBatch, [made], SCHEMA, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [-1, rules.MAX_BATCH_ROWS + 1, 2**31 - 1])
def test_a_batch_does_not_claim_all_memory(engine, size):
    skipping = BadRecords(OnBad.SKIP)
    found = parsed(ExampleBatch, [ExampleBatch(batch_size=size), batch([1])], SCHEMA, engine, skipping)
    assert (found.num_rows, skipping.count) == (1, 1)
    assert "batch_size must be from 0" in skipping.last.message


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shared_feature_does_not_claim_all_memory(engine, monkeypatch):
    for module in ("rules", "plain", "compiled", "compiled_lines"):
        monkeypatch.setattr(f"shoal.records.parsing.{module}.MAX_VALUES", 100)
    made = ExampleBatch(batch_size=60)
    column = made.named_feature_list.add(name="fc_user", type=SHARED)
    column.feature.add().fid_v2_list.value.extend([1, 2])
    skipping = BadRecords(OnBad.SKIP)
    found = parsed(ExampleBatch, [made, batch([1])], SCHEMA, engine, skipping)
    assert (found.num_rows, skipping.count) == (1, 1)
    assert "column fc_user must have at most" in skipping.last.message


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_line_id_makes_a_record_bad(engine):
    made = Example()
    made.named_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(b"\xff")
    text = sized(5, sized(41, b"\xff"))
    skipping = BadRecords(OnBad.SKIP)
    assert parsed(Example, [made, Example()], SCHEMA, engine, skipping).num_rows == 1
    assert "line id" in skipping.last.message
    assert parsed(Instance, [text, Instance()], SCHEMA, engine, skipping).num_rows == 1
    assert "device_type of the line id must be UTF-8" in skipping.last.message
    # Without columns of the line id nobody looks.
    assert parsed(Example, [made], RowSchema((ids("a"),)), engine).num_rows == 1


def _with_line_id(content):
    made = Example()
    made.named_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(content)
    return made


@pytest.mark.parametrize("bad_line", [b"\xff", sized(41, b"\xff")], ids=["no message", "no text"])
def test_many_bad_records_are_left_out_in_one_pass(monkeypatch, bad_line):
    """Not one pass for each, which takes as long as all records times all bad ones."""
    parser = make_parser(Example, RowSchema(line_id=("device_type", "cid")), Engine.COMPILED)
    passes = []
    monkeypatch.setattr(parser, "_index", lambda payloads, own=parser._index: passes.append(1) or own(payloads))
    records = [_with_line_id(bad_line if number % 2 else b"").SerializeToString() for number in range(100)]
    kept = []
    found = parser.parse(Payloads.of(records), BadRecords(OnBad.SIDE, kept.append))
    assert (found.num_rows, [each.offset for each in kept]) == (50, [*range(1, 100, 2)])
    assert len(passes) == 2


def test_the_largest_records_are_left_out_in_one_pass(monkeypatch):
    monkeypatch.setattr("shoal.records.parsing.compiled.MAX_VALUES", 100)
    parser = make_parser(Instance, RowSchema((ids("a"), texts("t")), label=False), Engine.COMPILED)
    passes = []
    monkeypatch.setattr(parser, "_index", lambda payloads, own=parser._index: passes.append(1) or own(payloads))
    records = []
    for count in (30, 10, 50, 40, 20):
        made = Instance()
        made.feature.add(name="a", fid=range(count))
        made.feature.add(name="t", bytes_value=[b"x" * (60 - count)])
        records.append(made.SerializeToString())
    kept = []
    found = parser.parse(Payloads.of(records), BadRecords(OnBad.SIDE, kept.append))
    # 150 ids: the record of 50 goes. Of the other 140 bytes, those of 50 go.
    assert [len(each) for each in found.column("a").to_pylist()] == [30, 40, 20]
    assert [(each.offset, "column " + name in each.reason) for each, name in zip(kept, "at", strict=True)] == [
        (2, True), (1, True)
    ]  # fmt: skip
    assert len(passes) == 3


# ---------------------------------------------------------------------------------------------------------
# Anything


NAMES = st.sampled_from(["fc_user", "fc_slot_3", "price", "vector", "n", "title", "two", "__LABEL__", "é", "x"])


@st.composite
def named(draw, message):
    """Any message, whose features have names that the schema knows."""
    made = draw(messages(message))
    parts = {Instance: "feature", Example: "named_feature", ExampleBatch: "named_feature_list"}[message]
    for each in getattr(made, parts):
        each.name = draw(NAMES)
    if message is ExampleBatch:
        made.batch_size = draw(st.integers(0, 3))
    return made


@pytest.mark.parametrize("message", [Instance, Example, ExampleBatch])
@settings(max_examples=60)
@given(data=st.data())
def test_any_messages_give_the_same_columns(message, data):
    both(message, data.draw(st.lists(named(message), max_size=3)), SCHEMA)


@pytest.mark.parametrize("message", [Instance, Example, ExampleBatch])
@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_is_safe(message, data):
    good = {Instance: instance(), Example: example(named=True), ExampleBatch: batch([1, 2])}[message]
    content = bytearray(good.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))]) if data.draw(st.booleans()) else bytes(content)
    try:
        message.FromString(cut)
    except Exception:
        # What nobody asked for is not looked at: the kernels may take it, and must stay within the record.
        parsed(message, [cut, good], SCHEMA, Engine.COMPILED, BadRecords(OnBad.SKIP))
    else:
        both(message, [cut, good], SCHEMA)


VALID_WIRES = {
    kind: wire
    for wire, kinds in {
        1: (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64),
        2: (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE),
        5: (FieldDescriptor.TYPE_FLOAT,),
    }.items()
    for kind in kinds
}
NAME_OF = {"fid": "fc_user", "float": "vector", "double": "vector", "int64": "n", "bytes": "title"}
EVERY_INSTANCE = [instance_with(NAME_OF[kind.split("_")[0]], kind) for kind in INSTANCE_KINDS]
EVERY_EXAMPLE = [
    Example(named_feature=[{"name": NAME_OF[kind.split("_")[0]], "feature": feature_of(kind)}]) for kind in KINDS
]
EVERY_BATCH = [
    ExampleBatch(
        named_feature_list=[{"name": NAME_OF[kind.split("_")[0]], "feature": [feature_of(kind)]}], batch_size=1
    )
    for kind in KINDS
]


def varint_end(data, at):
    while data[at] >= 0x80:
        at += 1
    return at + 1


def noisy(rng, data, descriptor):
    """The same message, with fields at every level that have numbers of known ones and other wire types."""
    made, at = b"", 0
    while True:
        if rng.random() < 0.3:
            number, wire = int(rng.integers(1, 17)), int(rng.choice([0, 1, 2, 5]))
            known = descriptor.fields_by_number.get(number)
            takes = known and {VALID_WIRES.get(known.type, 0), 2 if known.is_repeated else -1}
            size = {0: 1, 1: 8, 2: int(rng.integers(0, 12)), 5: 4}[wire]
            content = bytes(rng.integers(0, 128, size, np.uint8))
            if not takes or wire not in takes:
                made += sized(number, content) if wire == 2 else field(number, wire, content)
        if at == len(data):
            return made
        begin, at = at, varint_end(data, at)
        tag = int.from_bytes(data[begin : begin + 1]) if at == begin + 1 else data[begin] & 0x7F | data[begin + 1] << 7
        if tag & 7 != 2:
            at = varint_end(data, at) if tag & 7 == 0 else at + (8 if tag & 7 == 1 else 4)
            made += data[begin:at]
            continue
        start, at = at, varint_end(data, at)
        size = sum((each & 0x7F) << (7 * place) for place, each in enumerate(data[start:at]))
        content, at = data[at : at + size], at + size
        inner = descriptor.fields_by_number[tag >> 3].message_type
        content = noisy(rng, content, inner) if inner is not None else content
        size = bytes([len(content)] if len(content) < 128 else [len(content) & 0x7F | 0x80, len(content) >> 7])
        made += data[begin:start] + size + content


@pytest.mark.parametrize("good", [
    [instance(), *EVERY_INSTANCE],
    [example(named=True), example(named=False), *EVERY_EXAMPLE],
    [batch([1, 2]), *EVERY_BATCH],
], ids=["Instance", "Example", "ExampleBatch"])  # fmt: skip
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_fields_that_nobody_knows_change_nothing(good, seed):
    message, rng = type(good[0]), np.random.default_rng(seed)
    records = [noisy(rng, each.SerializeToString(), message.DESCRIPTOR) for each in good]
    for made, each in zip(records, good, strict=True):
        read = message.FromString(made)
        read.DiscardUnknownFields()
        assert read == each
    expected, refused = both(message, good, SCHEMA)
    assert refused == 0
    assert both(message, records, SCHEMA)[0].equals(expected)


# ---------------------------------------------------------------------------------------------------------
# Files


def test_files_become_batches_of_one_size(tmp_path):
    path = str(tmp_path / "f.zst")
    write_frames(path, [instance(uid).SerializeToString() for uid in range(100)])
    for engine in ENGINES:
        found = list(read_columns([path, path], framed(), Instance, SCHEMA, batch_rows=64, engine=engine))
        assert [each.num_rows for each in found] == [64, 64, 64, 8]
        assert [uid for each in found for uid in each.column("uid").to_pylist()] == [*range(100)] * 2
    assert sum(each.num_rows for each in read_columns(path, framed(), Instance, SCHEMA)) == 100


def test_batches_are_cut_and_joined():
    def made(*sizes):
        return [pa.RecordBatch.from_pydict({"a": list(range(size))}) for size in sizes]

    assert [each.num_rows for each in rebatched(made(1, 1, 1), 2)] == [2, 1]
    assert [each.num_rows for each in rebatched(made(5), 2)] == [2, 2, 1]
    assert [each.num_rows for each in rebatched(made(2, 2), 2)] == [2, 2]
    assert list(rebatched([], 2)) == []
    with pytest.raises(InvalidError, match="batch_rows"):
        list(rebatched([], 0))


def test_without_numba_records_are_still_read(monkeypatch):
    monkeypatch.setattr(engines, "has_numba", lambda: False)
    found = parsed(Instance, [instance()], SCHEMA, Engine.AUTO)
    assert found.to_pylist() == [ROW]
    with pytest.raises(UnsupportedError, match="numba") as caught:
        make_parser(Instance, SCHEMA, Engine.COMPILED)
    assert "pip install" in caught.value.hint


@pytest.mark.parametrize(("make", "rule"), [
    (lambda: RowSchema((ids("a"), floats("a"))), "named once"),
    (lambda: RowSchema((ids("label"),)), "named once"),
    (lambda: RowSchema((ids(""),)), "must have a name"),
    (lambda: RowSchema((ids("a", size=0),)), "size"),
    (lambda: RowSchema((ids("a", slot=1024),)), "slot"),
    (lambda: RowSchema((Column("a", ColumnKind.FLOATS, slot=1),)), "only ids"),
    (lambda: RowSchema(line_id=("nothing",)), "must be a field of a line id"),
    (lambda: make_parser(LineId, SCHEMA), "must be Instance"),
])  # fmt: skip
def test_what_is_no_schema_is_refused(make, rule):
    with pytest.raises(InvalidError, match=rule):
        make()


def test_a_start_without_a_cache_says_that_it_compiles(tmp_path):
    program = """
import logging, numpy as np
logging.basicConfig(level=logging.INFO)
from shoal.records.parsing.kernels import wire
for kind in (np.int32, np.int64):
    wire.fill_buckets(np.zeros(1, np.uint8), np.array([0, 1], kind), np.full(4, -1))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    assert [each.count("compiling kernels that parse records") for each in said] == [1, 0]

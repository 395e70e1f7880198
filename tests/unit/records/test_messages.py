from __future__ import annotations

import numpy as np
import pytest

from shoal.core.errors import InvalidError
from shoal.records import fids
from shoal.records.feature_list import parse_feature_list
from shoal.records.messages import (
    MAX_BATCH_ROWS,
    batch_to_examples,
    batch_to_instances,
    example_to_instance,
    instance_to_example,
)
from shoal.records.random_data import random_example_batch, random_instance
from shoal.wire.pb.idl.matrix.proto.example_pb2 import SHARED, Example, ExampleBatch
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

V1 = 3 << 54 | 9


def batch():
    made = ExampleBatch(batch_size=2, data_source_key=5)
    label = made.named_feature_list.add(name="__LABEL__")
    label.feature.add().float_list.value.extend([1.0])
    label.feature.add().float_list.value.extend([0.0, 2.0])
    shared = made.named_feature_list.add(name="fc_user", type=SHARED)
    shared.feature.add().fid_v2_list.value.append(7)
    flat = made.named_feature_list.add(name="fc_slot_3", id=4)
    flat.feature.add().fid_v1_list.value.append(V1)
    flat.feature.add()
    lines = made.named_feature_list.add(name="__LINE_ID__")
    for uid in (1, 2):
        lines.feature.add().bytes_list.value.append(LineId(uid=uid).SerializeToString())
    weights = made.named_feature_list.add(name="instance_weight")
    weights.feature.add().float_list.value.append(0.5)
    weights.feature.add()
    more = made.named_feature_list.add(name="more")
    more.feature.add().double_list.value.append(1.5)
    more.feature.add().fid_v1_lists.list.add(value=[V1])
    return made


def test_rows_of_a_batch_are_instances():
    first, second = batch_to_instances(batch())
    assert (list(first.fid), list(first.label), first.line_id.uid, first.instance_weight) == ([V1], [1.0], 1, 0.5)
    assert {each.name: list(each.fid) for each in first.feature if each.fid} == {"fc_user": [7]}
    assert list(first.feature[1].float_value) == [1.5]
    assert (list(second.fid), list(second.label), second.instance_weight) == ([], [0.0, 2.0], 1.0)
    assert list(second.feature[1].fid_list[0].value) == [int(fids.v1_to_v2(V1))]
    assert first.data_source_key == 5


def test_rows_of_a_batch_are_examples():
    first, second = batch_to_examples(batch())
    assert [each.name for each in first.named_feature] == ["fc_user", "fc_slot_3", "more"]
    assert [each.id for each in first.named_feature] == [0, 4, 0]
    assert (list(second.label), second.line_id.uid, second.instance_weight) == ([0.0, 2.0], 2, 1.0)
    assert example_to_instance(first) == batch_to_instances(batch())[0]


def test_an_instance_becomes_an_example_and_back():
    instance = Instance(fid=[V1, V1 + 1, 5 << 54], label=[1], value=[2.5])
    instance.line_id.uid = 8
    for field, values in {
        "fid": [7], "float_value": [1.5], "int64_value": [-3], "bytes_value": [b"x"],
    }.items():  # fmt: skip
        getattr(instance.feature.add(name=f"fc_{field}"), field).extend(values)
    for field, values in {"fid_list": [7], "float_list": [1.5], "int64_list": [-3], "bytes_list": [b"x"]}.items():
        getattr(instance.feature.add(name=f"fc_{field}"), field).add(value=values)
    instance.feature.add(name="empty")
    example = instance_to_example(instance)
    kinds = {each.name: each.feature.WhichOneof("type") for each in example.named_feature}
    assert kinds["fc_slot_3"] == kinds["fc_slot_5"] == "fid_v1_list"
    assert kinds["value"] == "float_list"
    assert kinds["empty"] is None
    assert kinds["fc_bytes_list"] == "bytes_lists"
    again = example_to_instance(example)
    assert list(again.fid) == list(instance.fid)
    assert [each for each in again.feature if each.name != "value"] == [
        each for each in instance.feature if each.name != "empty"
    ]
    assert (again.line_id, again.label, again.instance_weight) == (instance.line_id, instance.label, 1.0)


@pytest.mark.parametrize(("name", "count", "kind"), [("short", 1, 0), ("long", 3, 0), ("shared", 0, SHARED)])
def test_a_column_of_the_wrong_length_is_refused(name, count, kind):
    made = ExampleBatch(batch_size=2)
    column = made.named_feature_list.add(name=name, type=kind)
    for _ in range(count):
        column.feature.add()
    with pytest.raises(InvalidError, match=f"column {name}"):
        batch_to_instances(made)


@pytest.mark.parametrize("convert", [batch_to_instances, batch_to_examples])
@pytest.mark.parametrize("rows", [-1, MAX_BATCH_ROWS + 1])
def test_a_batch_of_a_made_up_size_is_refused(convert, rows):
    with pytest.raises(InvalidError, match="batch_size: must be from 0 to 65536"):
        convert(ExampleBatch(batch_size=rows))


def test_a_bad_line_id_is_refused():
    example = Example()
    example.named_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(b"\xff")
    with pytest.raises(InvalidError, match="__LINE_ID__"):
        example_to_instance(example)


def test_random_data_has_the_shape_that_was_asked_for():
    rng = np.random.default_rng(1)
    instance = random_instance(rng, slots=(3, 9), vocabulary=(2, 4))
    assert [fid >> 54 for fid in instance.fid] == [3, 3, 9, 9, 9, 9]
    assert len(random_instance(rng).fid) == 30
    features = parse_feature_list("feature_name=fc_a slot=7\nfeature_name=fc_b slot=9 method=vectortop args=3\n")
    made = random_example_batch(rng, features, rows=50, now=10_000)
    first, second, lines = made.named_feature_list
    assert {len(each.fid_v2_list.value) for each in first.feature} == {1}
    assert {len(each.fid_v2_list.value) for each in second.feature} == {1, 2, 3}
    assert {value >> 48 for each in second.feature for value in each.fid_v2_list.value} == {9}
    times = [LineId.FromString(each.bytes_list.value[0]).req_time for each in lines.feature]
    assert all(9_000 < each < 10_000 for each in times)
    again = random_example_batch(np.random.default_rng(1), features, rows=2, now=10)
    assert again == random_example_batch(np.random.default_rng(1), features, rows=2, now=10)

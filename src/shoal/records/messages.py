"""Conversions between Monolith's messages: rows of an ExampleBatch, Examples and Instances.

They are for single messages, such as the input of one prediction. Training data is read as columns by
`shoal.records.parsing`. The rules are those of Monolith's own reader: ids of version 1 go flat into `Instance.fid`, all
else becomes a named feature; `__LABEL__`, `__LINE_ID__` and `instance_weight` are no features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from shoal.core.errors import InvalidError, problem
from shoal.records import fids
from shoal.wire.pb.idl.matrix.proto.example_pb2 import SHARED, Example, ExampleBatch, Feature
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

LABEL = "__LABEL__"
LINE_ID = "__LINE_ID__"
INSTANCE_WEIGHT = "instance_weight"
#: More rows in one batch are refused: a made-up number must not claim all memory.
MAX_BATCH_ROWS = 1 << 16
#: Names that are no features.
RESERVED = frozenset({LABEL, LINE_ID, INSTANCE_WEIGHT})

#: The field of an Instance's feature that each kind of an Example's feature becomes.
_FIELDS = {
    "fid_v2_list": "fid",
    "float_list": "float_value",
    "double_list": "float_value",
    "int64_list": "int64_value",
    "bytes_list": "bytes_value",
    "int64_value": "int64_value",
    "float_value": "float_value",
    "double_value": "float_value",
    "bytes_value": "bytes_value",
    "fid_v1_lists": "fid_list",
    "fid_v2_lists": "fid_list",
    "float_lists": "float_list",
    "double_lists": "float_list",
    "int64_lists": "int64_list",
    "bytes_lists": "bytes_list",
}
#: The other way round, in the order in which Monolith looks for them.
_KINDS = {
    "fid": "fid_v2_list",
    "float_value": "float_list",
    "int64_value": "int64_list",
    "bytes_value": "bytes_list",
    "fid_list": "fid_v2_lists",
    "float_list": "float_lists",
    "int64_list": "int64_lists",
    "bytes_list": "bytes_lists",
}


def batch_features(batch: ExampleBatch, row: int) -> Iterator[tuple[str, Feature]]:
    """The features of one row of a batch. Raises `InvalidError` for a column of the wrong length."""
    for column in batch.named_feature_list:
        expected = 1 if column.type == SHARED else batch.batch_size
        found = len(column.feature)
        if found < expected or (column.type != SHARED and found != expected):
            rule = f"must have {expected} features, as batch_size says, and has {found}"
            raise InvalidError([problem(f"column {column.name}", None, rule)])
        yield column.name, column.feature[0 if column.type == SHARED else row]


def batch_to_instances(batch: ExampleBatch) -> list[Instance]:
    """Every row of a batch as an Instance. Raises `InvalidError`."""
    rows = []
    for row in range(_count_of(batch)):
        instance = Instance()
        for name, feature in batch_features(batch, row):
            _add_to_instance(instance, name, feature)
        if batch.data_source_key:
            instance.data_source_key = batch.data_source_key
        rows.append(instance)
    return rows


def batch_to_examples(batch: ExampleBatch) -> list[Example]:
    """Every row of a batch as an Example. Raises `InvalidError`."""
    rows = []
    ids = {column.name: column.id for column in batch.named_feature_list}
    for row in range(_count_of(batch)):
        example = Example(data_source_key=batch.data_source_key)
        for name, feature in batch_features(batch, row):
            if name not in RESERVED:
                example.named_feature.add(name=name, id=ids[name]).feature.CopyFrom(feature)
            else:
                _set_reserved(example, name, feature)
        rows.append(example)
    return rows


def _count_of(batch: ExampleBatch) -> int:
    """How many rows a batch has."""
    if not 0 <= batch.batch_size <= MAX_BATCH_ROWS:
        raise InvalidError([problem("batch_size", batch.batch_size, f"must be from 0 to {MAX_BATCH_ROWS}")])
    return batch.batch_size


def example_to_instance(example: Example) -> Instance:
    """An Example as an Instance. Raises `InvalidError` for a bad line id."""
    instance = Instance(label=example.label)
    if example.HasField("line_id"):
        instance.line_id.CopyFrom(example.line_id)
    if example.instance_weight:
        instance.instance_weight = example.instance_weight
    if example.data_source_key:
        instance.data_source_key = example.data_source_key
    for named in example.named_feature:
        _add_to_instance(instance, named.name, named.feature)
    return instance


def instance_to_example(instance: Instance) -> Example:
    """An Instance as an Example: flat ids become one feature for each slot, `fc_slot_N`."""
    example = Example(label=instance.label, data_source_key=instance.data_source_key)
    if instance.HasField("line_id"):
        example.line_id.CopyFrom(instance.line_id)
    example.instance_weight = instance.instance_weight if instance.HasField("instance_weight") else 1.0
    features: dict[str, Feature] = {}
    if instance.value:
        features["value"] = Feature()
        features["value"].float_list.value.extend(instance.value)
    for fid in instance.fid:
        features.setdefault(slot_name(fid >> fids.V1_SLOT_SHIFT), Feature()).fid_v1_list.value.append(fid)
    named = list(features.items())
    named += [(each.name, _to_feature(each)) for each in instance.feature]
    for index, (name, feature) in enumerate(named):
        example.named_feature.add(name=name, id=index).feature.CopyFrom(feature)
    return example


def slot_name(slot: int) -> str:
    """The name of a feature that is known by its slot."""
    return f"fc_slot_{slot}"


def _to_feature(named: Any) -> Feature:
    feature = Feature()
    for field, kind in _KINDS.items():
        values = getattr(named, field)
        if values:
            goal = getattr(feature, kind)
            if kind.endswith("lists"):
                for each in values:
                    goal.list.add(value=each.value)
            else:
                goal.value.extend(values)
            return feature
    return feature


def _add_to_instance(instance: Instance, name: str, feature: Feature) -> None:
    kind = feature.WhichOneof("type")
    if name in RESERVED:
        _set_reserved(instance, name, feature)
    elif kind == "fid_v1_list":
        instance.fid.extend(feature.fid_v1_list.value)
    elif kind is not None:
        goal = getattr(instance.feature.add(name=name), _FIELDS[kind])
        found = getattr(feature, kind)
        if kind.endswith("lists"):
            for each in found.list:
                goal.add(value=_in_v2(each.value, kind))
        else:
            goal.extend(found.value if kind.endswith("list") else [found])


def _in_v2(values: Any, kind: str) -> Any:
    return fids.v1_to_v2(list(values)).tolist() if kind == "fid_v1_lists" else values


def _set_reserved(row: Instance | Example, name: str, feature: Feature) -> None:
    if name == LABEL:
        row.label.extend(feature.float_list.value)
    elif name == INSTANCE_WEIGHT:
        row.instance_weight = feature.float_list.value[0] if feature.float_list.value else 1.0
    else:
        data = feature.bytes_list.value[0] if feature.bytes_list.value else b""
        try:
            row.line_id.CopyFrom(LineId.FromString(data))
        except DecodeError as error:
            raise InvalidError([problem(LINE_ID, data, f"must be a line id: {error}")]) from error

"""Pipelines of Monolith are read as the operators that they stand for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError
from shoal.records.formats.documents import write_message
from shoal.records.operators.base import AnyOf, Compose
from shoal.records.operators.filters import Comparison, FilterByFids, FilterByLabel, FilterByValue
from shoal.records.operators.labels import AddLabel, TaskLabel
from shoal.records.operators.transforms import load_transform, make_transform
from shoal.wire.pb.idl.matrix.proto.example_pb2 import FilterValues
from shoal.wire.pb.monolith.native_training.data.transform.transform_config_pb2 import TransformConfig

PIPELINE = """
configs { basic_config { filter_by_fid { has_fids: 1 filter_fids: 18446744073709551615 select_fids: [2, 3] } } }
configs { basic_config { filter_by_action { has_actions: [1, 2] } } }
configs { basic_config { add_label {
  task_label_configs { pos_actions: 1 neg_actions: 2 sample_rate: 0.5 }
  task_label_configs { pos_actions: 3 }
  negative_value: -1 new_sample_rate: 0.25
} } }
configs { basic_config { filter_by_label { thresholds: [-100, 0.5] } } }
configs { logical_or_config {
  x { filter_by_value { field_name: "req_time" op: "between" int_operand: [5, 10] } }
  y { filter_by_value { field_name: "cid" op: "startswith" string_operand: "a" keep_empty: true } }
} }
"""
OPERATORS = Compose((
    FilterByFids(("a", "b"), filter_fids=(-1,), has_fids=(1,), select_fids=(2, 3)),
    FilterByFids((), has_actions=(1, 2)),
    AddLabel((TaskLabel((1,), (2,), 0.5), TaskLabel((3,))), -1.0, 0.25),
    FilterByLabel((-100.0, 0.5)),
    AnyOf((
        FilterByValue("req_time", Comparison.BETWEEN, (5, 10)),
        FilterByValue("cid", Comparison.STARTS_WITH, ("a",), keep_empty=True),
    )),
))  # fmt: skip


def config(text):
    return text_format.Parse(text, TransformConfig())


@pytest.mark.parametrize("name", ["pipeline.pb", "pipeline.json", "pipeline.pbtxt"])
def test_a_pipeline_is_the_same_in_every_form(tmp_path, name):
    path = str(tmp_path / name)
    write_message(path, config(PIPELINE))
    assert load_transform(path, ("a", "b")) == OPERATORS


def test_the_bytes_are_monoliths():
    action, label = b"\x12\x02\x08\x07", b"\x1a\x05\x0d\x00\x00\x80\x3f"
    data = b"\x0a\x06" + b"\x0a\x04" + action + b"\x0a\x11" + b"\x12\x0f" + b"\x0a\x04" + action + b"\x12\x07" + label
    found = make_transform(TransformConfig.FromString(data), ())
    either = AnyOf((FilterByFids((), has_actions=(7,)), FilterByLabel((1.0,))))
    assert found == Compose((FilterByFids((), has_actions=(7,)), either))


def test_rows_go_through_it():
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([[0.0]] * 4, pa.list_(pa.float32())),
            pa.array([[1, 2, 3], [1, 2, 3], [1, 2, 3, -1], [1]], pa.list_(pa.int64())),
            pa.array([[]] * 4, pa.list_(pa.int64())),
            pa.array([[1], [3], [1], [1]], pa.list_(pa.int32())),
            pa.array([7, 7, 7, 7], pa.int64()),
            pa.array(["x"] * 4),
        ],
        names=["label", "a", "b", "actions", "req_time", "cid"],
    )
    found = make_transform(config(PIPELINE), ("a", "b")).apply(rows, np.random.default_rng(0))
    assert found.num_rows == 1, "the second has no action, the third a filtered id, the fourth lacks ids"
    assert found.column("label").to_pylist()[0][1:] == [1.0, -1.0]


def test_operands_may_be_in_a_file(tmp_path):
    path = str(tmp_path / "operands")
    values = FilterValues()
    values.int64_list.value.extend([1, 3])
    files.write_atomic(path, values.SerializeToString())
    one = f'field_name: "n" op: "in" operand_filepath: "{path}"'
    made = make_transform(config(f"configs {{ basic_config {{ filter_by_value {{ {one} }} }} }}"), ())
    assert made == Compose((FilterByValue("n", Comparison.IN, (1, 3)),))


@pytest.mark.parametrize(("text", "where", "rule"), [
    ("configs {}", "configs[0].basic_config", "must be one of filter_by_fid"),
    ("configs { basic_config {} }", "configs[0].basic_config", "must be one of filter_by_fid"),
    ("configs { basic_config { filter_by_fid {} } }", "configs[0].basic_config.filter_by_fid", "id_columns"),
    ("configs { basic_config { filter_by_label { thresholds: nan } } }",
     "configs[0].basic_config.filter_by_label.thresholds", "must be numbers"),
    ("configs { basic_config { filter_by_value {} } }", "configs[0].basic_config.filter_by_value.field_name", "column"),
    ('configs { basic_config { filter_by_value { field_name: "n" op: "like" } } }',
     "configs[0].basic_config.filter_by_value.op", "must be one of gt"),
    ('configs { basic_config { filter_by_value { field_name: "n" op: "in" int_operand: 1 float_operand: 1 } } }',
     "configs[0].basic_config.filter_by_value", "operands in one of"),
    ('configs { basic_config { filter_by_value { field_name: "n" op: "between" int_operand: 1 } } }',
     "operands", "between takes 2"),
    ("configs { basic_config { add_label {} } }", "configs[0].basic_config.add_label.task_label_configs", "a task"),
    ("configs { basic_config { add_label { task_label_configs { pos_actions: 1 neg_actions: 1 } } } }",
     "configs[0].basic_config.add_label.task_label_configs[0]", "positive and negative"),
    ("configs { basic_config { add_label { task_label_configs { pos_actions: 1 sample_rate: nan } } } }",
     "configs[0].basic_config.add_label.task_label_configs[0]", "rate must be from 0 to 1"),
    ("configs { logical_or_config { x { add_label {} } } }", "configs[0].logical_or_config.x", "must be a filter"),
    ("configs { logical_or_config { x { filter_by_action {} } } }", "configs[0].logical_or_config.y", "must be one of"),
])  # fmt: skip
def test_what_makes_no_sense_is_named(text, where, rule):
    with pytest.raises(InvalidError) as caught:
        make_transform(config(text), ())
    (found,) = caught.value.problems
    assert found.field == where
    assert rule in found.rule


def test_files_that_are_no_pipeline(tmp_path):
    for name, data, error in (
        ("a", b"\xff", CorruptError),
        ("b.json", b"{", InvalidError),
        ("c.pbtxt", b"x", InvalidError),
    ):
        files.write_atomic(str(tmp_path / name), data)
        with pytest.raises(error):
            load_transform(str(tmp_path / name), ("a",))

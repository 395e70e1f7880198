"""The fused layout as Monolith's message: as an export carries it, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf import text_format

from shoal.core.errors import InvalidError
from shoal.model.artifacts import ExportManifest
from shoal.records import open_export, write_export
from shoal.tables.feature_configs import configs_of, layout_of
from shoal.tables.fused import Combine, Feature, FusedLayout, FusedOutput, Slice
from shoal.tables.pooling import Pooling
from shoal.wire.pb.idl.matrix.proto.example_pb2 import FeatureConfigs
from tests.unit.tables.test_pooling import FEATURES, OUTPUTS

TEXT = """
feature_configs { key: "fc_a" value { table: "t" slice_dims: 1 slice_dims: 4 } }
feature_configs { key: "fc_b" value { table: "u" slice_dims: 4 pooling_type: MEAN } }
feature_configs { key: "fc_s" value { table: "t" slice_dims: 5 pooling_type: FIRSTN max_sequence_length: 3 } }
out_configs { key: "bias" value { out_type: ADDN slice_configs { feature_name: "fc_a" start: 0 end: 1 } } }
out_configs {
  key: "vec"
  value {
    out_type: STACK
    slice_configs { feature_name: "fc_a" start: 1 end: 5 feature_idx: 7 }
    slice_configs { feature_name: "fc_b" start: 0 end: 4 }
    shape { dims: -1 dims: 2 dims: 4 }
  }
}
out_configs {
  key: "seen" value {
    out_type: NONE slice_configs { feature_name: "fc_s" start: 1 end: 5 } shape { dims: -1 dims: 3 dims: 4 }
  }
}
"""


def parsed() -> FeatureConfigs:
    return text_format.Parse(TEXT, FeatureConfigs())


def test_a_message_is_a_layout() -> None:
    layout = layout_of(parsed(), servers=3)
    assert layout.servers == 3
    assert layout.features == {
        "fc_a": Feature("t", (1, 4)),
        "fc_b": Feature("u", (4,), Pooling.MEAN),
        "fc_s": Feature("t", (5,), Pooling.FIRST_N, 3),
    }
    assert layout.outputs == {
        "bias": FusedOutput((Slice("fc_a", 0, 1),), Combine.ADD_N),
        "seen": FusedOutput((Slice("fc_s", 1, 5),), Combine.NONE),
        "vec": FusedOutput((Slice("fc_a", 1, 5), Slice("fc_b", 0, 4)), Combine.STACK),
    }


def test_every_layout_goes_through_an_export(tmp_path) -> None:
    layout = FusedLayout(FEATURES, OUTPUTS, servers=2)
    with write_export(str(tmp_path), ExportManifest("m", "entry", 7, serving_shards=2)) as export:
        export.put_features(configs_of(layout))
    version = open_export(str(tmp_path / "entry" / "7"))
    again = layout_of(version.features(), servers=version.manifest.serving_shards)
    assert (again.features, again.outputs, again.servers) == (layout.features, layout.outputs, 2)


def test_shapes_are_those_that_monolith_infers() -> None:
    shapes = {
        name: [list(each.dims) for each in out.shape]
        for name, out in configs_of(FusedLayout(FEATURES, OUTPUTS)).out_configs.items()
    }
    assert shapes["pooled_concat"] == [[-1, 10]]
    assert shapes["pooled_stack"] == [[-1, 5, 2]]
    assert shapes["pooled_add_n"] == [[-1, 2]]
    assert shapes["pooled_none"] == [[-1, 2]] * 5
    assert shapes["sequence_concat"] == [[-1, 3, 6]]
    assert shapes["sequence_stack"] == [[-1, 3, 3, 2]]
    assert shapes["sequence_none"] == [[-1, 3, 2]] * 3


def _set(configs: FeatureConfigs, path: str, value: object) -> None:
    *way, last = path.split(".")
    for name in way:
        configs = configs[name] if hasattr(configs, "keys") else getattr(configs, name)
    setattr(configs, last, value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: _set(c, "feature_configs.fc_a.pooling_type", 2), r"feature_configs\[fc_a\].pooling_type"),
        (lambda c: _set(c, "out_configs.vec.out_type", 9), r"out_configs\[vec\].out_type"),
        (lambda c: _set(c, "feature_configs.fc_a.max_sequence_length", 3), "fc_a.length"),
        (lambda c: _set(c, "feature_configs.fc_s.max_sequence_length", -1), "fc_s.length"),
        (lambda c: c.feature_configs["fc_a"].slice_dims.append(-4), "fc_a.slice_dims"),
        (lambda c: c.out_configs["vec"].slice_configs.add(feature_name="no", end=4), "vec.slices"),
        (lambda c: c.out_configs["vec"].slice_configs.add(feature_name="fc_a", start=4, end=8), "vec.slices"),
        (lambda c: c.out_configs["vec"].shape.add(dims=[-1, 4]), r"out_configs\[vec\].shape"),
        (lambda c: c.out_configs["new"].Clear(), "new.slices"),
    ],
)
def test_what_is_no_layout_is_refused(change: Callable[[FeatureConfigs], object], field: str) -> None:
    configs = parsed()
    change(configs)
    with pytest.raises(InvalidError, match=field):
        layout_of(configs)

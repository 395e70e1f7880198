"""The fused layout as Monolith's `FeatureConfigs`, which exported models carry (`features.pbtxt`), and back.

    layout = layout_of(open_export(path).features(), servers=manifest.serving_shards)

Called by the learner and by model servers.
"""

from __future__ import annotations

from typing import TypeVar

from shoal.core.errors import InvalidError, Problem, problem
from shoal.tables.fused import Combine, Feature, FusedLayout, FusedOutput, Slice
from shoal.tables.pooling import Pooling
from shoal.wire.pb.idl.matrix.proto.example_pb2 import FeatureConfigs, OutType, PoolingType

_Kind = TypeVar("_Kind", Combine, Pooling)
#: A dimension that is as long as the batch.
_BATCH = -1


def layout_of(configs: FeatureConfigs, *, servers: int = 1) -> FusedLayout:
    """The layout that a message describes. Raises `InvalidError` with everything that is wrong.

    Args:
        configs: features and outputs. Shapes may be left out; those that are there must be right.
        servers: over how many servers the ids are spread.
    """
    problems: list[Problem] = []
    features = {}
    for name, each in sorted(configs.feature_configs.items()):
        pooling = _kind(Pooling, each.pooling_type, f"feature_configs[{name}].pooling_type", problems)
        features[name] = Feature(each.table, tuple(each.slice_dims), pooling, each.max_sequence_length)
    outputs = {}
    for name, out in sorted(configs.out_configs.items()):
        slices = tuple(Slice(part.feature_name, part.start, part.end) for part in out.slice_configs)
        outputs[name] = FusedOutput(slices, _kind(Combine, out.out_type, f"out_configs[{name}].out_type", problems))
    if problems:
        raise InvalidError(problems)
    layout = FusedLayout(features, outputs, servers=servers)
    for name, out in sorted(configs.out_configs.items()):
        given = [tuple(each.dims) for each in out.shape]
        if given and given != _shapes(layout, name):
            rule = f"must be {_shapes(layout, name)}, as the slices say"
            problems.append(problem(f"out_configs[{name}].shape", given, rule))
    if problems:
        raise InvalidError(problems)
    return layout


def configs_of(layout: FusedLayout) -> FeatureConfigs:
    """The message that describes a layout."""
    configs = FeatureConfigs()
    for name, feature in layout.features.items():
        made = configs.feature_configs[name]
        made.table = feature.table
        made.slice_dims.extend(feature.slice_dims)
        made.pooling_type = PoolingType.Value(feature.pooling.name.replace("_", ""))
        made.max_sequence_length = feature.length
    for name, output in layout.outputs.items():
        out = configs.out_configs[name]
        out.out_type = OutType.Value(output.combine.name.replace("_", ""))
        for each in output.slices:
            out.slice_configs.add(feature_name=each.feature, start=each.start, end=each.end)
        for dims in _shapes(layout, name):
            out.shape.add(dims=dims)
    return configs


def _shapes(layout: FusedLayout, name: str) -> list[tuple[int, ...]]:
    return [(_BATCH, *shape[1:]) for shape in layout.shapes(name, 0)]


def _kind(kinds: type[_Kind], number: int, field: str, problems: list[Problem]) -> _Kind:
    """The kind with a number. Messages may have numbers that nobody has given a name."""
    try:
        return kinds(number)
    except ValueError:
        problems.append(problem(field, number, f"must be one of {', '.join(str(int(each)) for each in kinds)}"))
        return next(iter(kinds))

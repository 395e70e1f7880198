"""Makes random messages: to try a model server, to measure, to fill tests. The caller seeds them.

Called by `shoal serving-client predict` without an input, by the benchmarks and by tests.
"""

from __future__ import annotations

import numpy as np

from shoal.records import fids
from shoal.records.feature_list import Feature, FeatureList
from shoal.records.messages import LINE_ID
from shoal.wire.pb.idl.matrix.proto.example_pb2 import ExampleBatch
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

#: How many values each slot of a random Instance has, if the caller does not say.
VOCABULARY = (5, 5, 5, 5, 5, 5)


def random_instance(
    rng: np.random.Generator, *, slots: tuple[int, ...] = (), vocabulary: tuple[int, ...] = VOCABULARY
) -> Instance:
    """An Instance with flat ids of version 1: of each slot as many as its vocabulary has values."""
    slots = slots or tuple(range(1, len(vocabulary) + 1))
    most = max(vocabulary)
    counts = np.array(vocabulary)
    drawn = rng.integers(1, np.repeat(counts, counts) + 1)
    numbers = np.repeat(np.arange(len(counts)), counts)
    made = fids.fid_v1(np.repeat(np.array(slots), counts), numbers * most + drawn)
    return Instance(fid=made.view(np.uint64).tolist())


def random_example_batch(
    rng: np.random.Generator, features: FeatureList, *, rows: int, now: int, actions: tuple[int, ...] = (1, 2, 3, 4)
) -> ExampleBatch:
    """A batch with ids of version 2 for every feature of the list that has a slot, and a line id for each row.

    Args:
        rng: where chance comes from.
        features: which columns there are. Those whose method begins with `vectortop` have several ids in a row, up to
            their first argument.
        rows: how many.
        now: seconds since the epoch; rows are of the 1,000 seconds before.
        actions: what line ids choose one or two of.
    """
    batch = ExampleBatch(batch_size=rows)
    for feature in features:
        if feature.slot is None:
            continue
        column = batch.named_feature_list.add(name=feature.feature_name, id=feature.feature_id or 0)
        counts = rng.integers(1, _most(feature) + 1, rows)
        made = fids.fid_v2(feature.slot, rng.integers(1, 1 << fids.V2_SLOT_SHIFT, counts.sum()))
        for part in np.split(made, np.cumsum(counts)[:-1]):
            column.feature.add().fid_v2_list.value.extend(part.tolist())
    lines = batch.named_feature_list.add(name=LINE_ID)
    for age in rng.integers(1, 1000, rows).tolist():
        chosen = rng.choice(np.array(actions), size=min(2, len(actions)), replace=False).tolist()
        line = LineId(sample_rate=0.001, req_time=now - age, actions=chosen)
        lines.feature.add().bytes_list.value.append(line.SerializeToString())
    return batch


def _most(feature: Feature) -> int:
    if feature.method.startswith("vectortop") and feature.args and feature.args[0].isdigit():
        return max(1, int(feature.args[0]))
    return 1

"""A model as a learner exports it and a server runs it: StableHLO of JAX, tables in both formats, warm-up.

It runs in a process of its own, because JAX starts threads, and other tests of this one fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.core import files, tfrecords
from shoal.model.artifacts import (
    DENSE_FILE,
    WARM_UP_FILE,
    ExportedTable,
    ExportManifest,
    Signature,
    TableFormat,
    TensorSpec,
    shard_sub_graph,
)
from shoal.records import BadRecords, RowSchema, ids, open_export, write_export
from shoal.records.formats.payloads import Payloads
from shoal.records.parsing.engines import make_parser
from shoal.tables import EmbeddingTable, SliceSettings, TableSettings
from shoal.tables.dumps import arrow, monolith
from shoal.tables.pooling import Pooling, pool
from shoal.wire.pb.idl.matrix.proto.example_pb2 import ExampleBatch, FeatureConfigs

DIM, VERSION = 4, 1_600_000_000
SETTINGS = TableSettings((SliceSettings(DIM),), name="users")
DENSE_WEIGHTS = np.arange(2 * DIM, dtype=np.float32).reshape(DIM, 2) / 10
BATCHES = ([[1], [2, 3]], [[3], [], [1, 2], [7], [2]])


def row(key: int) -> np.ndarray:
    return np.full(DIM, key / 10, np.float32)


def expected(batch: list[list[int]]) -> np.ndarray:
    """What the model says, written out: ids below 7 are in the tables."""
    sums = [sum((row(key) for key in each if key < 7), np.zeros(DIM, np.float32)) for each in batch]
    return np.tanh(np.array(sums) @ DENSE_WEIGHTS)


def request(batch: list[list[int]]) -> bytes:
    made = ExampleBatch(batch_size=len(batch))
    column = made.named_feature_list.add(name="fc_user")
    for each in batch:
        column.feature.add().fid_v2_list.value.extend(each)
    return made.SerializeToString()


def write_model(base: str) -> None:
    """The entry with the dense part, and two shards with the tables, one in each format."""
    import jax
    from jax import export

    (rows,) = export.symbolic_shape("rows")
    dense = jax.jit(lambda x: jax.numpy.tanh(x @ DENSE_WEIGHTS))
    exported = export.export(dense)(jax.ShapeDtypeStruct((rows, DIM), np.float32))
    features = FeatureConfigs()
    features.feature_configs["fc_user"].table = SETTINGS.name
    graphs = ("entry", *(shard_sub_graph(shard) for shard in range(2)))
    common = {"serving_shards": 2, "sub_graphs": graphs, "versions": {"jax": jax.__version__}}
    with write_export(base, ExportManifest("movies", "entry", VERSION, **common)) as out:
        out.put(DENSE_FILE, exported.serialize())
        signature = Signature({"x": TensorSpec("float32", (-1, DIM))}, {"y": TensorSpec("float32", (-1, 2))})
        out.put_signatures({"serving_default": signature})
        out.put_features(features)
        out.put(WARM_UP_FILE, b"".join(tfrecords.frame(request(each)) for each in BATCHES))
    for shard, form in enumerate((TableFormat.ARROW, TableFormat.DUMP)):
        with EmbeddingTable(SETTINGS) as table:
            keys = np.arange(shard, 7, 2)
            table.assign(keys, np.array([row(key) for key in keys]))
            local = Path(base, f"table-{shard}")
            if form is TableFormat.ARROW:
                arrow.write(table, str(local))
            else:
                (dumped,) = monolith.write(table, str(local), shards=1)
                local = Path(dumped)
        path = f"assets/{local.name}"
        tables = (ExportedTable(SETTINGS.name, path, form),)
        manifest = ExportManifest("movies", shard_sub_graph(shard), VERSION, tables=tables, **common)
        with write_export(base, manifest) as out:
            out.put(path, local.read_bytes())


def run_model(base: str) -> list[np.ndarray]:
    """What the exported model says to its own warm-up requests."""
    from jax import export

    entry = open_export(f"{base}/entry/{VERSION}")
    (signature,) = entry.signatures().values()
    dense = export.deserialize(bytearray(entry.read(DENSE_FILE)))
    assert [str(each.dtype) for each in dense.in_avals] == [each.dtype for each in signature.inputs.values()]
    serving = EmbeddingTable(SETTINGS)
    for shard in range(entry.manifest.serving_shards):
        version = open_export(f"{base}/{shard_sub_graph(shard)}/{VERSION}")
        (exported,) = version.manifest.tables
        load = arrow.load if exported.format is TableFormat.ARROW else monolith.load
        load(version.file_path(exported.path), serving)
    (feature,) = entry.features().feature_configs
    parser = make_parser(ExampleBatch, RowSchema((ids(feature),), label=False, weight=False))
    found = []
    with files.open_file(entry.file_path(WARM_UP_FILE)) as file:
        for _, record in tfrecords.read_records(file, name=WARM_UP_FILE, max_record=1 << 20):
            column = parser.parse(Payloads.of([record]), BadRecords()).column(feature)
            rows = serving.lookup(column.flatten().to_numpy())
            pooled = pool(rows, column.offsets.to_numpy().astype(np.int64), Pooling.SUM)
            found.append(np.asarray(dense.call(pooled)))
    return found


def main(base: str) -> None:
    write_model(base)
    found = run_model(base)
    assert [each.shape for each in found] == [(len(each), 2) for each in BATCHES]
    for result, batch in zip(found, BATCHES, strict=True):
        np.testing.assert_allclose(result, expected(batch), rtol=1e-5)


@pytest.mark.timeout(300)
def test_an_exported_model_runs_with_batches_of_any_size(tmp_path: Path) -> None:
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu"}
    program = f"from {__name__} import main; main({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-W", "error", "-c", program], env=environment, cwd=root, check=True)

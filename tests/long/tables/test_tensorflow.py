"""Dumps that stock TensorFlow reads and writes, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.tables.peers import TENSORFLOW_DUMPS
from shoal.core.tfrecords import read_records
from shoal.tables.dumps import monolith
from shoal.tables.dumps.snappy import SnappyReader
from shoal.tables.settings.optimizers import Adam
from shoal.tables.settings.table import SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tables"
pytestmark = pytest.mark.timeout(1500)
WITHIN = 300.0


def test_tensorflow_reads_what_we_write(tmp_path: Path) -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(64, optimizer=Adam()),)))
    table.apply(np.arange(2000), np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32), event_times=7)
    (plain,) = monolith.write(table, str(tmp_path / "plain"))
    (packed,) = monolith.write_tables({"a": table}, str(tmp_path / "packed"))
    with Path(plain).open("rb") as file:
        expected = [record.hex() for _, record in read_records(file, name=plain)]
    assert len(expected) == 2000
    assert TENSORFLOW_DUMPS.run(["read", plain], within=WITHIN) == expected
    assert TENSORFLOW_DUMPS.run(["read", packed, "SNAPPY"], within=WITHIN) == expected


def test_the_golden_files_are_those_of_tensorflow(tmp_path: Path) -> None:
    for name in ("entries.json", "counts.json"):
        (tmp_path / name).write_bytes((GOLDEN / name).read_bytes())
    TENSORFLOW_DUMPS.run(["write", str(tmp_path)], within=WITHIN)
    for name in ("plain-00000-of-00001", "packed.meta-00000-of-00001"):
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()
    # Blocks may be cut elsewhere by another version; what is in them is the same.
    with (tmp_path / "packed-00000-of-00001").open("rb") as file:
        found = [record.hex() for _, record in read_records(SnappyReader(file, "packed"), name="packed")]
    assert found == json.loads((GOLDEN / "entries.json").read_text())

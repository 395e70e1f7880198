"""`shoal warmup` compiles everything: afterwards no kernel is compiled, neither by a second call nor by any record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

ROOT = Path(__file__).resolve().parents[3]
#: Says which kernels numba compiles from here on. It tells listeners of those that are not in the cache.
LISTEN = """
import numpy as np
import pyarrow as pa
from numba.core import event

class Listener(event.Listener):
    def on_start(self, event):
        name = event.data["dispatcher"].py_func
        print("compiled", name.__module__, name.__name__)

    def on_end(self, event):
        pass

event.register("numba:compile", Listener())
"""
WARM_UP = f"""{LISTEN}
from shoal.cli.programs.warmup import warmup
warmup()
"""
PARSE = f"""{LISTEN}
from shoal.core import files
from shoal.records import BadRecords, OnBad, floats, ids, texts, read_csv
from shoal.records.parsing.engines import Engine
from shoal.tables import EmbeddingTable, SliceSettings, TableSettings
from shoal.tables.dumps import arrow, monolith
from tests.unit.records.parsing import test_engines as given

odd = given.sized(1, given.sized(1, b"fc_user") + given.sized(2, given.sized(2, b"") + given.sized(5, b"")))
line = given.sized(5, given.field(6, 0, b"\\x05") + given.sized(6, b"\\x06"))
for message, records in (
    (given.Instance, [given.instance(), line, b"\\xff", given.sized(9, given.sized(3, b""))]),
    (given.Example, [given.example(named=False), given.example(named=True), odd, b"\\xff"]),
    (given.ExampleBatch, [given.batch([1, 2]), odd + given.field(3, 0, b"\\x01"), b"\\xff"]),
):
    bad = BadRecords(OnBad.SKIP)
    found = given.parsed(message, records, given.SCHEMA, Engine.COMPILED, bad)
    assert found.num_rows == 3 and bad.count == 1, (message, found.num_rows, bad.count)
path = "rows.csv"
files.write_atomic(path, b"a,b,c\\n1|2,0.5,x\\n")
schema = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.float32()), ("c", pa.string())])
assert sum(each.num_rows for each in read_csv(path, schema)) == 1
with EmbeddingTable(TableSettings((SliceSettings(4),)), threads=2) as table:
    keys = np.arange(50_000)
    table.apply(keys, np.ones((keys.size, 4), np.float32))
    table.lookup(keys)
    table.remove(keys[:10])
    arrow.write(table, "t.arrow")
    arrow.load("t.arrow", table)
    monolith.write(table, "t")
    monolith.load("t", table)
print("done")
"""


def run(program: str, folder: Path) -> list[str]:
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder / "records"),
        "SHOAL_KERNEL_CACHE": str(folder / "tables"),
        "PYTHONPATH": str(ROOT),
    }
    ran = [sys.executable, "-c", program]
    ended = subprocess.run(
        ran, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return ended.stdout.splitlines()


@pytest.mark.timeout(1200)
def test_afterwards_nothing_is_compiled(tmp_path: Path) -> None:
    first = run(WARM_UP, tmp_path)
    assert any(each.startswith("compiled shoal.records") for each in first)
    assert any(each.startswith("compiled shoal.tables") for each in first)
    second = run(WARM_UP, tmp_path)
    assert not any(each.startswith("compiled") for each in second)
    assert any("kernels are ready, 0 were compiled now" in each for each in second)
    assert run(PARSE, tmp_path) == ["done"]

"""How the process of a task host is set up before its tasks start."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PROGRAM = """
import sys
from shoal.dataflow.execution.hosts.host_process import prepare_libraries
import numpy as np, pyarrow as pa
from shoal.core.clock import SystemClock
from shoal.dataflow.connectors.files.sources import ParquetSource

folder = sys.argv[1]
prepare_libraries(folder)
before = set(sys.modules)
source = ParquetSource(folder)
reader = source.open_reader(source.find_splits(), source.find_schema(), clock=SystemClock())
assert reader.fetch(max_rows=10, timeout=0.0).batch.num_rows == 3
reader.close()
pa.array(np.arange(3))
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_a_task_that_reads_a_file_and_makes_an_array_loads_no_more_libraries(tmp_path: Path):
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "rows.parquet")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert not {"fsspec", "numpy"} & set(done.stdout.split())


ARRAYS = """
import resource
from threading import Thread
import numpy as np
from shoal.dataflow.execution.hosts.host_process import keep_freed_memory

def work():
    for _ in range(200):
        several = [np.ones(62_000) for _ in range(3)]
        del several

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = Thread(target=work)
thread.start()
thread.join()
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_the_arrays_of_a_batch_take_the_memory_of_those_before():
    done = subprocess.run([sys.executable, "-c", ARRAYS], capture_output=True, text=True, check=True, timeout=120)
    pages = 3 * 62_000 * 8 // os.sysconf("SC_PAGE_SIZE")
    assert int(done.stdout) < 20 * pages  # of 400 rounds

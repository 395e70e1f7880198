"""The kernels that parse records stay within their memory: their tests pass where every read is checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

TESTS = Path(__file__).parents[2]
SUITES = (
    [str(TESTS / "unit" / "records" / "parsing")],
    [str(TESTS / "fuzz" / "test_parsers.py"), "-k", "records.parsing", "--hypothesis-profile=long"],
)
READS_OUTSIDE = """
import numpy as np
from shoal.records.parsing.kernels import caching, memory

@caching.compiled
def read(data, at):
    return memory.fixed32(memory.memory(data), at)

data = np.zeros(8, np.uint8)
assert read(data, 4) == 0
for at in (-1, 5):
    try:
        read(data, at)
    except IndexError:
        continue
    raise SystemExit(f"a read at {at} was not checked")
"""


@pytest.mark.timeout(1800)
def test_no_kernel_reads_outside_of_its_memory(tmp_path):
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    program = tmp_path / "reads_outside.py"
    program.write_text(READS_OUTSIDE)
    subprocess.run([sys.executable, str(program)], env=environment, check=True)
    for suite in SUITES:
        ran = [sys.executable, "-m", "pytest", *suite, "-q", "-n", "0", "-p", "no:cacheprovider"]
        subprocess.run(ran, env=environment, check=True)

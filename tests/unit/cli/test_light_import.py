"""Help, completion and mistakes are answered at once: the command tree loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "cryptography",
    "fsspec",
    "google",
    "grpc",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "rich",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "yaml",
)


def test_importing_the_command_tree_loads_no_heavy_package():
    program = "import sys, shoal.cli.main; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()).isdisjoint(HEAVY)

"""A command that only prints its help loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "cryptography",
    "fsspec",
    "google.protobuf",
    "grpc",
    "opentelemetry",
    "prometheus_client",
    "psutil",
    "psycopg",
    "pyarrow",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "yaml",
)


@pytest.mark.parametrize("module", ["shoal", "shoal.cli.main"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    program = f"import {module}, sys; print('\\n'.join(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(answer.stdout.split())
    assert module in loaded
    assert [name for name in HEAVY if name in loaded] == []

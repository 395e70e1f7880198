"""A command that only prints its help loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "arro3",
    "cloudpickle",
    "confluent_kafka",
    "cryptography",
    "duckdb",
    "fsspec",
    "google.protobuf",
    "grpc",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "psutil",
    "psycopg",
    "pyarrow",
    "rocksdict",
    "shoal.dataflow.api.streams.stream",
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


def test_expressions_and_windows_need_no_arrow() -> None:
    program = "from shoal import col, fn, lit, tumbling; import sys; print('pyarrow' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_defining_a_stream_loads_no_engine() -> None:
    program = (
        "from shoal import App, Stream, col; import sys\n"
        "app = App('x')\n"
        "flow = app.dataflow('f')(lambda: Stream.from_kafka('a').filter(col('b') > 1).to_kafka('c'))\n"
        "flow.plan()\n"
        "heavy = ('duckdb', 'confluent_kafka', 'shoal.dataflow.execution.engine')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"

"""Importing the wire loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("cryptography", "grpc", "starlette", "uvicorn", "sqlalchemy", "pyarrow", "pytest", "psutil")


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("shoal.wire", set()),
        ("shoal.wire.addresses", set()),
        ("shoal.wire.methods", set()),
        ("shoal.wire.convert", set()),
        ("shoal.wire.status", set()),
        ("shoal.wire.local", set()),
        ("shoal.wire.sockets.http", set()),
        ("shoal.wire.sockets.channel", {"grpc"}),
        ("shoal.wire.sockets.server", {"grpc"}),
    ],
)
def test_a_module_loads_only_what_it_needs(module, allowed):
    program = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) <= allowed

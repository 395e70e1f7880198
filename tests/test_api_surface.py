"""The public face is small, and changing it is a decision: it changes here, too."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import shoal
from shoal.core.errors import ShoalError

PUBLIC = ["ShoalError", "__version__"]


def test_the_public_names() -> None:
    assert sorted(shoal.__all__) == sorted(PUBLIC)
    assert all(getattr(shoal, name) is not None for name in PUBLIC)


def test_what_they_are() -> None:
    assert shoal.ShoalError is ShoalError
    assert shoal.__version__ == importlib.metadata.version("shoal")


def test_nothing_else_looks_public() -> None:
    program = (
        "import shoal, types\n"
        "names = {n for n, v in vars(shoal).items() if not isinstance(v, types.ModuleType)} - {'annotations'}\n"
        "print(sorted(n for n in names if not n.startswith('_')))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(sorted(name for name in PUBLIC if not name.startswith("_")))

"""Compiles every kernel of the tables, so that no program has to do it when it starts. Called by `shoal warmup`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from shoal.tables import kernels
from shoal.tables.kernels.compiling import KERNELS


def prepare() -> Iterator[tuple[str, bool]]:
    """The name of each kernel once it is ready, and whether it was compiled just now."""
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)
    for name, kernel in sorted(KERNELS.items()):
        yield name, kernel.prepare()

"""Keeps compiled kernels where numba keeps them, bound to the sources of all kernels here.

numba by itself notices a change only in the file of the kernel. A kernel contains the functions that it calls, many of
which stand in `wire`: a change there must not leave old machine code in use. Called by `wire`.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from numba.core import caching


@functools.cache
def fingerprint(folder: Path) -> str:
    """Changes with every source in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


class _Stamped:
    """What a cached kernel depends on."""

    def get_source_stamp(self) -> str:
        return fingerprint(Path(__file__).resolve().parent)


class _Impl(caching.CompileResultCacheImpl):
    """The places that numba tries, with our stamp."""

    _locator_classes: Any = tuple(
        type(each.__name__, (_Stamped, each), {})
        for each in caching.CompileResultCacheImpl._locator_classes  # noqa: SLF001
    )


class _Cache(caching.FunctionCache):
    _impl_class = _Impl


def keep(dispatcher: Any) -> Any:
    """Let a function of numba's find its machine code from an earlier run, as `cache=True` does."""
    # A private name of numba's: its public option binds a cache to one source file.
    make: Any = _Cache
    dispatcher._cache = make(dispatcher.py_func)  # noqa: SLF001
    return dispatcher

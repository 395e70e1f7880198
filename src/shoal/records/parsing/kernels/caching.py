"""Compiles kernels, and keeps them where numba keeps them, bound to the sources of all kernels here.

numba by itself notices a change only in the file of the kernel. A kernel contains the functions that it calls, many of
which stand in `wire`: a change there must not leave old machine code in use. Called by the modules beside it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core import caching, event

#: Whether every read of memory is checked, which NUMBA_BOUNDSCHECK=1 says.
CHECKED = bool(getattr(config, "BOUNDSCHECK"))  # noqa: B009 (numba makes it from the environment)

_log = logging.getLogger(__name__)


class _Announcer(event.Listener):
    """Says when a kernel of records is compiled, because it was not in the cache. numba calls it for every function."""

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith(__package__):
            _announce()

    def on_end(self, event: Any) -> None:
        """Nothing follows."""


@functools.cache
def _announce() -> None:
    _log.info("compiling kernels that parse records, which is done once; `shoal warmup` does it ahead of time")


event.register("numba:compile", _Announcer())  # type: ignore[no-untyped-call]


@functools.cache
def fingerprint(folder: Path) -> str:
    """Changes with every source in a folder."""
    digest = hashlib.sha256(b"checked" if CHECKED else b"")
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


def compiled(function: Any) -> Any:
    """Compile once, keep the result on disk, and let other threads run meanwhile."""
    return _kept(njit(nogil=True)(function))


def inlined(function: Any) -> Any:
    """The same for a small function that kernels call in their loops, where a call costs more than the work."""
    return _kept(njit(nogil=True, forceinline=True)(function))


def _kept(dispatcher: Any) -> Any:
    """Let a function of numba's find its machine code from an earlier run, as `cache=True` does."""
    # A private name of numba's: its public option binds a cache to one source file.
    make: Any = _Cache
    dispatcher._cache = make(dispatcher.py_func)  # noqa: SLF001
    return dispatcher

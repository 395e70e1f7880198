"""Compiles kernels with numba and keeps their machine code in a folder of the user's cache.

`@helper` marks a function that only kernels call, `@kernel(signature)` one that Python calls. A kernel has one
signature. It is loaded from the cache on its first call, or compiled there and then; the log says so, once. The cache
is bound to the sources of all modules that a kernel uses; numba by itself notices a change only in the kernel's own.
Called by the modules beside it, and by `shoal.tables.warmup`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import caching

T = TypeVar("T", bound=np.generic)
_log = logging.getLogger(__name__)
_HERE = Path(__file__).resolve().parent
_IMPORT = re.compile(rf"^from {__package__}\.(\w+) import", re.MULTILINE)
CACHE_VARIABLE = "SHOAL_KERNEL_CACHE"

#: Division by zero gives infinity as in numpy, and no kernel holds the interpreter's lock.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

#: Threads may call a kernel for the first time together.
_PREPARING = threading.Lock()

#: Every kernel that was defined, by name.
KERNELS: dict[str, Kernel] = {}


def for_kernel(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """An array that kernels only read, whether this process may write it or not: their signatures know one kind."""
    if array.flags.writeable:
        return array
    if array.size == 0:
        return array.copy()
    where: Any = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
    where.owner = array  # an address alone keeps no memory alive
    return np.frombuffer(where, array.dtype).reshape(array.shape)


def helper(function: Callable[..., Any]) -> Any:
    """A function that is compiled into the kernels that call it."""
    return numba.njit(**_OPTIONS)(function)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """A function that Python calls, with its one signature."""

    def wrap(function: Callable[..., Any]) -> Kernel:
        made = Kernel(function, signature)
        KERNELS[made.name] = made
        return made

    return wrap


class Kernel:
    """One compiled function. Other kernels call its `dispatcher`."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.name = function.__name__
        self._signature = signature
        self.dispatcher = numba.njit(**_OPTIONS)(function)
        self._ready = False
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        if not self._ready:
            self.prepare()
        return self.dispatcher(*arguments)

    def prepare(self) -> bool:
        """Load it from the cache, or compile it. Returns whether it was compiled."""
        with _PREPARING:
            return not self._ready and self._prepare()

    def _prepare(self) -> bool:
        folder = cache_folder()
        if folder is not None:
            # A private name of numba's: its public options bind a cache to one source file.
            self.dispatcher._cache = _KernelCache(self.dispatcher.py_func)  # noqa: SLF001
        self.dispatcher.compile(self._signature)
        self.dispatcher.disable_compile()
        self._ready = True
        compiled = not sum(self.dispatcher.stats.cache_hits.values())
        if compiled:
            _announce(folder)
        return compiled


@functools.cache
def sources(module: str) -> dict[str, bytes]:
    """The source of a module of this package, and of every module of it that it imports, by name."""
    found: dict[str, bytes] = {}
    wanted = [module]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = (_HERE / f"{name}.py").read_bytes()
            wanted += _IMPORT.findall(found[name].decode())
    return found


@functools.cache
def fingerprint(module: str) -> str:
    """Changes with every source that a kernel of the module depends on."""
    digest = hashlib.sha256()
    for name, source in sorted(sources(module).items()):
        digest.update(name.encode() + source)
    return digest.hexdigest()


@functools.cache
def cache_folder() -> Path | None:
    """Where machine code is kept; None when no folder can be written."""
    chosen = os.environ.get(CACHE_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "kernels"
    folder = Path(chosen) if chosen else base
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        _log.warning("kernels are compiled at every start: %s cannot be written: %s", folder, error.strerror)
        return None
    return folder


@functools.cache
def _announce(folder: Path | None) -> None:
    kept = f"kept in {folder}" if folder is not None else "not kept"
    _log.info("compiling table kernels, which is done once; `shoal warmup` does it ahead of time (%s)", kept)


class _Locator(caching._CacheLocator):  # type: ignore[misc]  # noqa: SLF001
    """Tells numba where to keep a kernel, and what its machine code depends on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._module = function.__module__.rpartition(".")[2]

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return fingerprint(self._module)

    def get_disambiguator(self) -> str:
        return ""  # a module has no two kernels of one name

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], _py_file: str) -> _Locator:
        return cls(py_func)


class _KernelCacheImpl(caching.FunctionCache._impl_class):  # type: ignore[misc]  # noqa: SLF001
    _locator_classes = (_Locator,)


class _KernelCache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _KernelCacheImpl

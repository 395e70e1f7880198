"""Memory by address: views, prefetches, and loads and stores that other threads and processes see in order.

An address is an int64. Nothing here checks bounds; callers compute addresses from the directory of a table.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import carray, extending, types
from numba.core import cgutils

from shoal.tables.kernels.compiling import helper

LINE = 64
"""Bytes in a cache line."""

#: What tells the processor that a loop waits for another one, and its arguments.
_HINT = ("llvm.aarch64.hint", (1,))
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": _HINT, "arm64": _HINT}

# As numba types it, an intrinsic would take the arguments of its generator.
intrinsic: Any = extending.intrinsic


@intrinsic
def _as_floats(_typing: Any, address: Any) -> Any:
    return types.CPointer(types.float32)(address), _pointer(ir.FloatType())


@intrinsic
def _as_words(_typing: Any, address: Any) -> Any:
    return types.CPointer(types.int64)(address), _pointer(ir.IntType(64))


@intrinsic
def _as_bytes(_typing: Any, address: Any) -> Any:
    return types.CPointer(types.uint8)(address), _pointer(ir.IntType(8))


@intrinsic
def _as_halves(_typing: Any, address: Any) -> Any:
    return types.CPointer(types.uint16)(address), _pointer(ir.IntType(16))


@intrinsic
def _as_ints(_typing: Any, address: Any) -> Any:
    return types.CPointer(types.int32)(address), _pointer(ir.IntType(32))


def _pointer(kind: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(kind))

    return generate


@helper
def floats_at(address: int, count: int) -> Any:
    """A view of float32 values."""
    return carray(_as_floats(address), count)


@helper
def floats_in_rows(address: int, rows: int, columns: int) -> Any:
    """A view of float32 values with two dimensions."""
    return carray(_as_floats(address), (rows, columns))


@helper
def words_at(address: int, count: int) -> Any:
    """A view of int64 values."""
    return carray(_as_words(address), count)


@helper
def words_in_rows(address: int, rows: int, columns: int) -> Any:
    """A view of int64 values with two dimensions."""
    return carray(_as_words(address), (rows, columns))


@helper
def bytes_at(address: int, count: int) -> Any:
    """A view of bytes."""
    return carray(_as_bytes(address), count)


@helper
def halves_at(address: int, count: int) -> Any:
    """A view of uint16 values."""
    return carray(_as_halves(address), count)


@helper
def ints_at(address: int, count: int) -> Any:
    """A view of int32 values."""
    return carray(_as_ints(address), count)


@intrinsic
def prefetch(_typing: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to read and write it soon: other processors lose it."""
    return types.void(address), _prefetch(to_write=True)


@intrinsic
def prefetch_to_read(_typing: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to read it soon: threads that look the same ids up share it."""
    return types.void(address), _prefetch(to_write=False)


def _prefetch(*, to_write: bool) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        whole = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, whole, whole, whole])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, whole(int(to_write)), whole(3), whole(1)])
        return context.get_dummy_value()

    return generate


@intrinsic
def peek(_typing: Any, address: Any) -> Any:
    """Read an int64 that nobody writes meanwhile."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64))))

    return types.int64(address), generate


@helper
def lines_at(array: Any) -> Any:
    """A view of an int64 array that costs nothing to hand on: nobody counts who holds it."""
    return words_at(array.ctypes.data, array.size)


@intrinsic
def load_word(_typing: Any, address: Any) -> Any:
    """Read an int64 that another thread may write; what is read later is read after it."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(address), generate


@intrinsic
def store_word(_typing: Any, address: Any, value: Any) -> Any:
    """Write an int64 that other threads read; what was written before is seen before it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(address, types.int64), generate


@intrinsic
def claim_word(_typing: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write an int64 if it is still the expected one, in one step. Returns whether this thread wrote it."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        found = builder.cmpxchg(pointer, arguments[1], arguments[2], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return types.boolean(address, types.int64, types.int64), generate


@intrinsic
def fence(_typing: Any) -> Any:
    """What stands before is done before what stands after, as other threads see it."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def pause(_typing: Any) -> Any:
    """One turn of a loop that waits for another processor: some tens of cycles."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        if platform.machine() in _PAUSES:
            name, arguments = _PAUSES[platform.machine()]
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)] * len(arguments))
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, [ir.IntType(32)(each) for each in arguments])
        return context.get_dummy_value()

    return types.void(), generate

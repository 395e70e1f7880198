"""Reads arrays by address, for compiled kernels. Needs numba.

numba counts references, by atomic operations, to an array that one function hands to another. For each feature of each
record that costs more than all other work. So a kernel makes a `memory` of an array once and hands that on: an address
and a size, which are numbers. The caller of the kernel keeps the array alive.

A kernel compares each place with the end of the message that it is in, so nothing is checked here. With
NUMBA_BOUNDSCHECK=1 every read is, as numba does it for arrays. Called by the kernels beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from shoal.records.parsing.kernels.caching import CHECKED, inlined


def _load(bits: int, kind: Any) -> Any:
    """Loads an unsigned number of some bits from any address, and widens it to a type of numba's."""

    @intrinsic
    def load(_typing: Any, _address: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            found = builder.load(pointer, align=1)
            return builder.zext(found, ir.IntType(kind.bitwidth)) if bits < kind.bitwidth else found

        return kind(types.int64), code

    return load


_load8 = _load(8, types.int64)
_load16 = _load(16, types.int64)
_load32 = _load(32, types.uint32)
_load64 = _load(64, types.uint64)


@inlined
def memory(array: Any) -> Any:
    """The memory of an array: where it is, and how many bytes."""
    return np.int64(array.ctypes.data), array.size * array.itemsize


@inlined
def _check(buf: Any, at: int, size: int) -> None:
    if CHECKED and (at < 0 or at + size > buf[1]):
        raise IndexError("a kernel reads outside of its memory")


@inlined
def byte(buf: Any, at: int) -> Any:
    """One byte as a number."""
    _check(buf, at, 1)
    return _load8(buf[0] + at)


@inlined
def fixed16(buf: Any, at: int) -> Any:
    """Two bytes as a number."""
    _check(buf, at, 2)
    return _load16(buf[0] + at)


@inlined
def fixed32(buf: Any, at: int) -> Any:
    """Four bytes as a number."""
    _check(buf, at, 4)
    return _load32(buf[0] + at)


@inlined
def fixed64(buf: Any, at: int) -> Any:
    """Eight bytes as a number."""
    _check(buf, at, 8)
    return _load64(buf[0] + at)


@inlined
def entry(numbers: Any, index: int) -> Any:
    """One number of an array of 64-bit ones."""
    return np.int64(fixed64(numbers, np.int64(index) * 8))


def _reread(source: Any, kind: Any) -> Any:
    """Takes the bits of one type of numba's as those of another."""

    @intrinsic
    def reread(_typing: Any, _value: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(kind))

        return kind(source), code

    return reread


double_bits = _reread(types.float64, types.int64)
double_of = _reread(types.uint64, types.float64)
float_bits = _reread(types.float32, types.uint32)

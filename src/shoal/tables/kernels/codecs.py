"""Weights in fewer bits, for serving: half precision, eight bits with a fixed step, one bit with a fixed amplitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.kernels.access import bytes_at, floats_at, halves_at
from shoal.tables.kernels.compiling import helper
from shoal.tables.kernels.places import F_CODEC, P_BYTES, P_CODEC, P_DIM, P_WEIGHTS

FP32, FP16, INT8, ONE_BIT = range(4)

_0, _HALF = np.float32(0), np.float32(0.5)
_128 = np.float32(128)


@helper
def _half_of(value: Any, scratch: Any) -> Any:
    """The nearest number of half precision, ties to even, as bits; too large is infinity."""
    scratch[0] = value
    bits = np.int64(scratch.view(np.uint32)[0])
    sign, size = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if size >= 0x7F800000:
        return np.uint16(sign | (0x7E00 if size > 0x7F800000 else 0x7C00))
    if size >= 0x477FF000:
        return np.uint16(sign | 0x7C00)
    if size < 0x38800000:  # below the normal range: the fraction is shifted by what the exponent lacks
        shift = 126 - (size >> 23)
        if shift > 24:
            return np.uint16(sign)
        whole = (size & 0x7FFFFF) | 0x800000
        kept = whole >> shift
        rest, middle = whole & ((1 << shift) - 1), 1 << (shift - 1)
        return np.uint16(sign | (kept + (1 if rest > middle or (rest == middle and kept & 1) else 0)))
    return np.uint16(sign | ((size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13))


@helper
def _from_half(bits: Any, scratch: Any) -> Any:
    whole = np.int64(bits)
    sign, exponent, fraction = (whole & 0x8000) << 16, (whole >> 10) & 31, whole & 0x3FF
    if exponent == 0:
        found = np.float32(fraction) * np.float32(2.0**-24)
        return -found if sign else found
    raised = 0xFF if exponent == 31 else exponent + 112
    scratch.view(np.uint32)[0] = np.uint32(sign | (raised << 23) | (fraction << 13))
    return scratch[0]


@helper
def _step_of(value: Any, reach: Any) -> Any:
    """The nearest of 256 steps, half away from zero; not a number is 0."""
    if value != value:  # noqa: PLR0124  the test for not a number
        return np.int64(0)
    scaled = max(-_128 - _HALF, min(value / reach * _128, _128))
    found = np.int64(scaled + _HALF) if scaled >= _0 else -np.int64(_HALF - scaled)
    return max(np.int64(-128), min(np.int64(127), found))


@helper
def encode_row(row: int, plan: Any, parameters: Any, values: Any, scratch: Any) -> None:
    """Write weights in the form that each slice is kept in."""
    for number in range(plan.shape[0]):
        size, start, codec = plan[number, P_DIM], plan[number, P_WEIGHTS], plan[number, P_CODEC]
        address = row + plan[number, P_BYTES]
        if codec == FP32:
            floats = floats_at(address, size)
            for i in range(size):
                floats[i] = values[start + i]
        elif codec == FP16:
            halves = halves_at(address, size)
            for i in range(size):
                halves[i] = _half_of(values[start + i], scratch)
        elif codec == INT8:
            steps = bytes_at(address, size)
            for i in range(size):
                steps[i] = np.uint8(_step_of(values[start + i], parameters[number, F_CODEC]) & 0xFF)
        else:
            bits = bytes_at(address, (size + 7) // 8)
            bits[:] = 0
            for i in range(size):
                if values[start + i] > _0:
                    bits[i >> 3] |= np.uint8(1 << (i & 7))


@helper
def decode_row(row: int, plan: Any, parameters: Any, values: Any, scratch: Any) -> None:
    """Read weights from the form that each slice is kept in."""
    for number in range(plan.shape[0]):
        size, start, codec = plan[number, P_DIM], plan[number, P_WEIGHTS], plan[number, P_CODEC]
        address, parameter = row + plan[number, P_BYTES], parameters[number, F_CODEC]
        if codec == FP32:
            floats = floats_at(address, size)
            for i in range(size):
                values[start + i] = floats[i]
        elif codec == FP16:
            halves = halves_at(address, size)
            for i in range(size):
                values[start + i] = _from_half(halves[i], scratch)
        elif codec == INT8:
            steps = bytes_at(address, size)
            for i in range(size):
                step = np.int64(steps[i])
                values[start + i] = np.float32(step - 256 if step > 127 else step) * parameter / _128
        else:
            bits = bytes_at(address, (size + 7) // 8)
            for i in range(size):
                values[start + i] = parameter if (bits[i >> 3] >> (i & 7)) & 1 else -parameter

"""Feature ids: a slot and a signature in 64 bits, of version 1 or 2. Whole arrays at once.

    version 1   slot in bits 63..54 (below 1,024), signature in bits 53..0
    version 2   bit 63 is 0, slot in bits 62..48 (below 32,768), signature in bits 47..0

Ids are `int64`, as in columns and tables: an id of version 1 with a slot from 512 on is negative. Numbers and arrays of
either sign are taken. Called by the parsers, the operators and users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.core.errors import InvalidError, problem

V1_SLOT_SHIFT = 54
V1_SLOTS = 1 << 10
V2_SLOT_SHIFT = 48
V2_SLOTS = 1 << 15

_V1_SIGNATURE = np.uint64((1 << V1_SLOT_SHIFT) - 1)
_V2_SIGNATURE = np.uint64((1 << V2_SLOT_SHIFT) - 1)
_V1_SHIFT = np.uint64(V1_SLOT_SHIFT)
_V2_SHIFT = np.uint64(V2_SLOT_SHIFT)
_V2_SLOT = np.uint64(V2_SLOTS - 1)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def fid_v1(slot: ArrayLike, signature: ArrayLike) -> NDArray[np.int64]:
    """Ids of version 1. Bits of the signature beyond its 54 are left out. Raises `InvalidError` for a wrong slot."""
    return _joined(_slots(slot, V1_SLOTS), _V1_SHIFT, _unsigned(signature) & _V1_SIGNATURE)


def fid_v2(slot: ArrayLike, signature: ArrayLike) -> NDArray[np.int64]:
    """Ids of version 2. Bits of the signature beyond its 48 are left out. Raises `InvalidError` for a wrong slot."""
    return _joined(_slots(slot, V2_SLOTS), _V2_SHIFT, _unsigned(signature) & _V2_SIGNATURE)


def slot_v1(fid: ArrayLike) -> NDArray[np.int64]:
    """The slots of ids of version 1."""
    return (_unsigned(fid) >> _V1_SHIFT).astype(np.int64)


def slot_v2(fid: ArrayLike) -> NDArray[np.int64]:
    """The slots of ids of version 2. Bit 63 is left out, as tables do."""
    return ((_unsigned(fid) >> _V2_SHIFT) & _V2_SLOT).astype(np.int64)


def signature_v1(fid: ArrayLike) -> NDArray[np.int64]:
    """The signatures of ids of version 1."""
    return (_unsigned(fid) & _V1_SIGNATURE).astype(np.int64)


def signature_v2(fid: ArrayLike) -> NDArray[np.int64]:
    """The signatures of ids of version 2."""
    return (_unsigned(fid) & _V2_SIGNATURE).astype(np.int64)


def check_v2(fid: ArrayLike) -> NDArray[np.int64]:
    """The same ids, if they are of version 2. Raises `InvalidError` for one whose bit 63 is set."""
    ids = _unsigned(fid).view(np.int64)
    if (ids < 0).any():
        raise InvalidError([problem("fid", int(ids[ids < 0].ravel()[0]), "bit 63 of an id of version 2 must be 0")])
    return ids


def v1_to_v2(fid: ArrayLike) -> NDArray[np.int64]:
    """Ids of version 1 as such of version 2. The upper 6 bits of the signature are lost."""
    ids = _unsigned(fid)
    return _joined(ids >> _V1_SHIFT, _V2_SHIFT, ids & _V2_SIGNATURE)


def switch_slot_v1(fid: ArrayLike, slot: ArrayLike) -> NDArray[np.int64]:
    """The same signatures of version 1 in another slot."""
    return fid_v1(slot, fid)


def switch_slot_v2(fid: ArrayLike, slot: ArrayLike) -> NDArray[np.int64]:
    """The same signatures of version 2 in another slot."""
    return fid_v2(slot, fid)


def combine_fids(left: ArrayLike, right: ArrayLike, slot: int) -> NDArray[np.int64]:
    """Ids of version 2 for pairs of ids: a hash of both in `slot`.

    The hash is Monolith's: the halves of the 128-bit product, one xor the other. There, bit 48 of the hash also ends up
    in the slot; here the slot is as given.
    """
    return fid_v2(slot, _folded_product(_unsigned(left), _unsigned(right)))


def _folded_product(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left_high, left_low = left >> _HALF, left & _LOW
    right_high, right_low = right >> _HALF, right & _LOW
    low = left * right
    middle = left_high * right_low + ((left_low * right_low) >> _HALF)
    other = left_low * right_high + (middle & _LOW)
    high = left_high * right_high + (middle >> _HALF) + (other >> _HALF)
    # The factors are signed: a negative one counts 2^64 too much above.
    high = high - np.where(left.view(np.int64) < 0, right, np.uint64(0))
    high = high - np.where(right.view(np.int64) < 0, left, np.uint64(0))
    return np.asarray(high ^ low)


def _joined(slot: NDArray[np.uint64], shift: np.uint64, signature: NDArray[np.uint64]) -> NDArray[np.int64]:
    return ((slot << shift) | signature).view(np.int64)


def _unsigned(values: ArrayLike) -> NDArray[np.uint64]:
    """The bits of whole numbers of either sign."""
    given: NDArray[Any] = np.asarray(values)
    if given.size == 0:
        return np.zeros(given.shape, np.uint64)
    if given.dtype.kind not in "iu" and not isinstance(values, np.ndarray):
        # Python's numbers of 64 bits, which numpy takes for floats or objects.
        flat = np.asarray(values, object).ravel()
        if all(isinstance(each, int) for each in flat):
            given = np.array([each & 0xFFFFFFFFFFFFFFFF for each in flat], np.uint64).reshape(given.shape)
    if given.dtype.kind not in "iu":
        raise InvalidError([problem("fid", given.dtype, "must be whole numbers of at most 64 bits")])
    return given.astype(np.uint64)


def _slots(slot: ArrayLike, limit: int) -> NDArray[np.uint64]:
    slots = _unsigned(slot)
    wrong = slots >= limit
    if wrong.any():
        raise InvalidError([problem("slot", int(slots[wrong].ravel()[0]), f"must be from 0 to {limit - 1}")])
    return slots

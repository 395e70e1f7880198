"""Hashes of ids, and random numbers that depend on nothing but a seed, an id and a position."""

from __future__ import annotations

import math

import numpy as np

from shoal.tables.kernels.compiling import helper

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_30, _27, _31, _40, _48 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(40), np.uint64(48)
_UNIT = np.float64(2.0**-24)
_TRIES = 64


@helper
def mix(value: int) -> np.uint64:
    """The finalizer of SplitMix64: every bit of the id reaches every bit of the hash."""
    word = np.uint64(value)
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@helper
def shard_of(hashed: np.uint64, shard_mask: int) -> int:
    """Which shard an id belongs to. Independent of the low bits, which choose the place within a shard."""
    return np.int64(hashed >> _48) & shard_mask


@helper
def draw(seed: int, key: int, position: int) -> float:
    """A number in [0, 1) with 24 random bits."""
    word = mix(key) + np.uint64(seed) * _STEP + (np.uint64(position) + np.uint64(1)) * _FIRST
    return np.float64(mix(np.int64(word)) >> _40) * _UNIT


@helper
def draw_normal(seed: int, key: int, position: int, bound: float) -> float:
    """A number from the standard normal distribution; beyond `bound` it is drawn again, unless `bound` is 0."""
    found = 0.0
    for attempt in range(_TRIES):
        first = draw(seed, key, (position * _TRIES + attempt) * 2)
        second = draw(seed, key, (position * _TRIES + attempt) * 2 + 1)
        found = math.sqrt(-2.0 * math.log(1.0 - first)) * math.cos(2.0 * math.pi * second)
        if bound <= 0.0 or abs(found) <= bound:
            return found
    return 0.0

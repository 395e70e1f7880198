"""From the settings of a table to the arrays that its kernels read. Called by `table` and `shared`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.tables.kernels import codecs, filters, optimizers, places
from shoal.tables.settings import initializers as first
from shoal.tables.settings.compressors import COMPRESSORS, Int8, OneBit
from shoal.tables.settings.optimizers import OPTIMIZERS, STEP, state_size
from shoal.tables.settings.table import SLOTS, FilterKind, SliceSettings, TableKind, TableSettings

Words = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

#: A block of rows has at least so many bytes, and a larger one at most so many.
BLOCK_BYTES = 1 << 18
MOST_BLOCK_BYTES = 1 << 23
_FILTERS = {
    FilterKind.NONE: filters.NO_FILTER,
    FilterKind.SLIDING: filters.SLIDING,
    FilterKind.PROBABILISTIC: filters.PROBABILISTIC,
    FilterKind.PROBABILISTIC_EQUAL: filters.PROBABILISTIC_EQUAL,
}
_BITS = {codecs.FP32: 32, codecs.FP16: 16, codecs.INT8: 8, codecs.ONE_BIT: 1}


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrays of one table. `plan` and `parameters` have a line per slice."""

    plan: Words
    parameters: Floats
    geometry: Words
    thresholds: Words
    lifetimes: Words
    admission: Words
    width: int
    state: int
    stride: int
    block_rows: int
    #: Places of a new index.
    first_capacity: int
    #: Bytes of one shard's filter; 0 without one.
    filter_bytes: int
    #: Which columns of the state are floats; others are parts of steps.
    state_floats: npt.NDArray[np.bool_]


def make_layout(settings: TableSettings) -> Layout:
    """The arrays for these settings, which were checked."""
    training = settings.kind is TableKind.TRAINING
    plan = np.zeros((len(settings.slices), places.PLAN_COLUMNS), np.int64)
    parameters = np.zeros((len(settings.slices), places.PARAMETER_COLUMNS), np.float32)
    width, at = settings.dim, 0
    state, end = 0, 0
    for number, each in enumerate(settings.slices):
        codec = codecs.FP32 if training else COMPRESSORS.index(type(each.compressor))
        plan[number, places.P_DIM] = each.dim
        plan[number, places.P_WEIGHTS] = at
        plan[number, places.P_STATE] = width + state
        plan[number, places.P_OPTIMIZER] = OPTIMIZERS.index(type(each.optimizer))
        plan[number, places.P_CODEC] = codec
        # Two-byte and four-byte values stand at addresses that are multiples of their size.
        end = -(-end // 4) * 4
        plan[number, places.P_BYTES] = end
        end += (each.dim * _BITS[codec] + 7) // 8
        _fill_parameters(plan[number], parameters[number], each)
        at += each.dim
        state += state_size(each.optimizer, each.dim) if training else 0
    stride = _stride((width + state) * 4 if training else end)
    # About eight blocks in each shard for the expected ids; as small as possible for a table of few.
    wanted = settings.expected_ids * stride // (settings.shards * 8)
    block_rows = 1 << max(0, (min(max(wanted, BLOCK_BYTES), MOST_BLOCK_BYTES) // stride).bit_length() - 1)
    cells = _cells(settings)
    geometry = np.zeros(places.GEOMETRY_FIELDS, np.int64)
    geometry[places.G_SHARD_MASK] = settings.shards - 1
    geometry[places.G_STRIDE] = stride
    geometry[places.G_BLOCK_SHIFT] = block_rows.bit_length() - 1
    geometry[places.G_WIDTH], geometry[places.G_STATE] = width, state
    geometry[places.G_PLAIN] = training
    geometry[places.G_SEED] = settings.seed
    geometry[places.G_LIMIT] = settings.max_ids // settings.shards
    return Layout(
        plan,
        parameters,
        geometry,
        _by_slot(settings.admission.threshold, settings.admission.slot_thresholds),
        _by_slot(settings.expiry.lifetime, settings.expiry.slot_lifetimes),
        np.array([_FILTERS[settings.admission.filter], settings.admission.splits, cells, settings.seed, 0], np.int64),
        width,
        state,
        stride,
        block_rows,
        _capacity(settings.expected_ids // settings.shards),
        (places.FILTER_WORDS + cells * settings.admission.splits) * 8 if cells else 0,
        _state_floats(settings.slices) if training else np.ones(0, np.bool_),
    )


def step_columns(slices: Sequence[SliceSettings]) -> list[int]:
    """Where the steps, which are whole numbers, begin in the state of a row."""
    found, column = [], 0
    for each in slices:
        for _, size in each.optimizer.state:
            if size == STEP:
                found.append(column)
            column += each.dim if isinstance(size, str) else size
    return found


def _state_floats(slices: Sequence[SliceSettings]) -> npt.NDArray[np.bool_]:
    found = np.ones(sum(state_size(each.optimizer, each.dim) for each in slices), np.bool_)
    for column in step_columns(slices):
        found[column : column + STEP] = False
    return found


def _fill_parameters(plan: Words, parameters: Floats, each: SliceSettings) -> None:
    values = each.optimizer.parameters()
    parameters[places.F_OPTIMIZER : places.F_OPTIMIZER + len(values)] = values
    kind, numbers = _initializer(each.initializer)
    plan[places.P_INITIALIZER] = kind
    parameters[places.F_INITIALIZER : places.F_INITIALIZER + len(numbers)] = numbers
    if isinstance(each.compressor, Int8):
        parameters[places.F_CODEC] = each.compressor.reach
    elif isinstance(each.compressor, OneBit):
        parameters[places.F_CODEC] = each.compressor.amplitude


def _initializer(chosen: first.Initializer) -> tuple[int, tuple[float, ...]]:
    match chosen:
        case first.Zeros():
            return optimizers.CONSTANT, (0.0,)
        case first.Ones():
            return optimizers.CONSTANT, (1.0,)
        case first.Constant(value):
            return optimizers.CONSTANT, (value,)
        case first.Uniform(low, high):
            return optimizers.UNIFORM, (low, high)
        case first.Normal(mean, deviation):
            return optimizers.NORMAL, (mean, deviation)
        case first.TruncatedNormal(mean, deviation):
            return optimizers.TRUNCATED, (mean, deviation)


def _stride(size: int) -> int:
    """Bytes from row to row. A freed row holds the number of the next, so that it has at least eight."""
    return max(8, -(-size // 8) * 8)


def _by_slot(usual: int, others: Any) -> Words:
    found = np.full(SLOTS, usual, np.int64)
    for slot, value in others.items():
        found[slot] = value
    return found


def _cells(settings: TableSettings) -> int:
    """Cells of one split of one shard's filter, so that three quarters of them hold the capacity."""
    if settings.admission.filter is not FilterKind.SLIDING:
        return 0
    wanted = settings.admission.capacity * 4 // (3 * settings.admission.splits * settings.shards) + 1
    return max(64, 1 << (wanted - 1).bit_length())


def _capacity(ids: int) -> int:
    """Places for this many ids, and some for the spread between shards."""
    return max(1 << 8, 1 << (ids * 18 // places.LOAD).bit_length())

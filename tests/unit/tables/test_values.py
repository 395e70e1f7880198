"""First weights, and weights in fewer bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, UnsupportedError
from shoal.tables.settings.compressors import COMPRESSORS, Fp16, Fp32, Int8, OneBit
from shoal.tables.settings.initializers import (
    INITIALIZERS,
    Constant,
    Normal,
    Ones,
    TruncatedNormal,
    Uniform,
    Zeros,
)
from shoal.tables.settings.optimizers import Adam, Sgd
from shoal.tables.settings.table import SliceSettings, TableKind, TableSettings
from shoal.tables.table import EmbeddingTable

IDS = np.arange(4000) * 7919


def first_weights(initializer, *, seed: int = 0, ids=IDS, threads: int = 1) -> np.ndarray:
    """What ids have after a gradient of zero."""
    slices = (SliceSettings(4, initializer=initializer, optimizer=Sgd()),)
    table = EmbeddingTable(TableSettings(slices, seed=seed), threads=threads)
    table.apply(ids, np.zeros((len(ids), 4), np.float32))
    return table.lookup(IDS)


def test_every_initializer_is_tested() -> None:
    assert {Zeros, Ones, Constant, Uniform, Normal, TruncatedNormal} == set(INITIALIZERS)


@pytest.mark.parametrize(("initializer", "value"), [(Zeros(), 0.0), (Ones(), 1.0), (Constant(-2.5), -2.5)])
def test_constants(initializer, value: float) -> None:
    assert (first_weights(initializer) == value).all()


def test_uniform_fills_its_range_evenly() -> None:
    found = first_weights(Uniform(-1.0, 3.0))
    assert -1.0 <= found.min() < -0.99
    assert 2.99 < found.max() <= 3.0
    counts, _ = np.histogram(found, bins=8, range=(-1.0, 3.0))
    assert counts.min() > 0.9 * found.size / 8


def test_normal_has_its_moments_and_its_tails() -> None:
    found = first_weights(Normal(1.0, 2.0))
    assert found.mean() == pytest.approx(1.0, abs=0.06)
    assert found.std() == pytest.approx(2.0, abs=0.06)
    assert (np.abs(found - 1.0) > 4.0).mean() == pytest.approx(0.0455, abs=0.01)


def test_truncated_normal_has_no_tails() -> None:
    found = first_weights(TruncatedNormal(1.0, 2.0))
    assert np.abs(found - 1.0).max() <= 4.0
    assert found.std() == pytest.approx(2.0 * 0.8796, abs=0.05)


@pytest.mark.parametrize("initializer", [Uniform(), Normal(), TruncatedNormal()])
def test_first_weights_depend_on_the_id_and_the_seed_only(initializer) -> None:
    found = first_weights(initializer)
    assert np.array_equal(found, first_weights(initializer, ids=IDS[::-1].copy()))
    assert np.array_equal(found, first_weights(initializer, threads=2))
    assert not np.array_equal(found, first_weights(initializer, seed=1))
    assert np.unique(found).size > 0.99 * found.size


def test_an_absent_id_reads_zeros_and_is_not_inserted() -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(2, initializer=Ones()),)))
    assert table.lookup([1, 2]).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert len(table) == 0
    table.apply([2], [[0.0, 0.0]])
    assert table.lookup([1, 2]).tolist() == [[0.0, 0.0], [1.0, 1.0]]


# ---------------------------------------------------------------------------------------------------------
# Compressors

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def stored(compressor, values: list[float]) -> np.ndarray:
    """The values after they were stored, between two other slices."""
    slices = (
        SliceSettings(3, compressor=OneBit()),
        SliceSettings(len(values), compressor=compressor),
        SliceSettings(1, compressor=Fp32()),
    )
    with EmbeddingTable(TableSettings(slices, kind=TableKind.SERVING)) as table:
        table.assign([5], np.array([[1.0, -1.0, 1.0, *values, 7.5]], np.float32))
        found = table.lookup([5])[0]
    assert found[[0, 1, 2, -1]].tolist() == pytest.approx([0.1, -0.1, 0.1, 7.5])
    return found[3:-1]


def test_every_compressor_is_tested() -> None:
    assert {Fp32, Fp16, Int8, OneBit} == set(COMPRESSORS)


@given(st.lists(FLOATS, min_size=1, max_size=9))
def test_fp32_is_exact(values: list[float]) -> None:
    assert np.array_equal(stored(Fp32(), values), np.array(values, np.float32))


@given(
    st.lists(
        FLOATS | st.floats(-(2.0**-13), 2.0**-13, width=32) | st.floats(-7e4, 7e4, width=32), min_size=1, max_size=9
    )
)
def test_fp16_rounds_as_numpy_does(values: list[float]) -> None:
    with np.errstate(over="ignore"):
        expected = np.array(values, np.float32).astype(np.float16).astype(np.float32)
    assert np.array_equal(stored(Fp16(), values), expected)


def test_fp16_of_every_half() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = halves[np.isfinite(halves)]
    found = stored(Fp16(), finite.tolist())
    assert np.array_equal(found, finite)
    assert np.array_equal(np.signbit(found), np.signbit(finite))


@given(st.lists(FLOATS | st.floats(-1.125, 1.125, width=32), min_size=1, max_size=9))
def test_int8_takes_the_nearest_step_half_away_from_zero(values: list[float]) -> None:
    with np.errstate(over="ignore"):
        scaled = np.array(values, np.float32) / np.float32(0.5) * np.float32(128)
    expected = np.clip(np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5)), -128, 127) / 128 * 0.5
    assert stored(Int8(reach=0.5), values).tolist() == expected.astype(np.float32).tolist()


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_one_bit_keeps_the_sign(values: list[float]) -> None:
    expected = np.where(np.array(values, np.float32) > 0, np.float32(0.25), np.float32(-0.25))
    assert stored(OneBit(amplitude=0.25), values).tolist() == expected.tolist()


def test_a_serving_table_is_smaller_and_takes_no_gradients() -> None:
    def row_bytes(kind: TableKind, compressor) -> int:
        slices = (SliceSettings(64, compressor=compressor, optimizer=Adam()),)
        return EmbeddingTable(TableSettings(slices, kind=kind)).layout.stride

    assert row_bytes(TableKind.TRAINING, Fp16()) == 64 * 4 * 3 + 8
    sizes = [row_bytes(TableKind.SERVING, each()) for each in (Fp32, Fp16, Int8, OneBit)]
    assert sizes == [256, 128, 64, 8]
    table = EmbeddingTable(TableSettings((SliceSettings(4),), kind=TableKind.SERVING))
    with pytest.raises(UnsupportedError, match="serving"):
        table.apply([1], [[1.0] * 4])


def test_a_weight_that_is_not_finite_is_refused() -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(2),), kind=TableKind.SERVING))
    with pytest.raises(InvalidError, match="weights: must be finite"):
        table.assign([1], [[1.0, float("nan")]])
    assert len(table) == 0

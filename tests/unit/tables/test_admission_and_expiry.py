"""Which ids may enter a table, and when they leave it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from shoal.core.errors import InvalidError
from shoal.tables.settings.initializers import Ones
from shoal.tables.settings.optimizers import Sgd
from shoal.tables.settings.table import (
    AdmissionSettings,
    ExpirySettings,
    FilterKind,
    NotFinite,
    SliceSettings,
    TableSettings,
)
from shoal.tables.table import EmbeddingTable, TimeBasis

SLICES = (SliceSettings(1, initializer=Ones(), optimizer=Sgd()),)


class Hands:
    """A clock whose hands the test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.now.timestamp()

    def wall(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


def table_with(admission: AdmissionSettings | None = None, **more) -> EmbeddingTable:
    return EmbeddingTable(TableSettings(SLICES, admission=admission or AdmissionSettings(), **more))


def push(table: EmbeddingTable, ids, **more) -> None:
    table.apply(ids, np.zeros((len(ids), 1), np.float32), **more)


# ---------------------------------------------------------------------------------------------------------
# Admission


@pytest.mark.parametrize("threshold", [1, 3, 15, 16, 300, 70_000])
def test_the_first_occurrences_train_nothing(threshold: int) -> None:
    table = table_with(AdmissionSettings(FilterKind.SLIDING, threshold))
    left = threshold
    while left:
        count = min(left, 1000)
        push(table, [5] * count)
        left -= count
        assert len(table) == 0
    push(table, [5])
    assert len(table) == 1
    assert table.statistics().not_admitted == -(-threshold // 1000)


def test_thresholds_by_slot() -> None:
    table = table_with(AdmissionSettings(FilterKind.SLIDING, 2, {1: 0, 2: 4}))
    ids = [7, (1 << 48) | 7, (2 << 48) | 7]
    seen = []
    for _ in range(6):
        push(table, ids)
        seen.append((table.lookup(ids)[:, 0] > 0).tolist())
    assert [sum(column) for column in zip(*seen, strict=True)] == [4, 6, 2]


@pytest.mark.parametrize("admission", [AdmissionSettings(threshold=5), AdmissionSettings(slot_thresholds={3: 1})])
def test_a_threshold_without_a_filter_is_refused(admission: AdmissionSettings) -> None:
    with pytest.raises(InvalidError, match=r"admission\.filter: must be sliding, .* because there is a threshold"):
        table_with(admission)
    assert len(table_with(AdmissionSettings(slot_thresholds={3: 0}))) == 0


def test_an_id_in_the_table_is_not_counted_and_an_assigned_one_is_not_asked() -> None:
    table = table_with(AdmissionSettings(FilterKind.SLIDING, 3))
    table.assign([1], [[2.0]])
    push(table, [1])
    assert table.statistics().not_admitted == 0
    table.remove([1])
    push(table, [1])
    assert len(table) == 0


def test_the_sliding_filter_forgets_and_stays_within_its_memory() -> None:
    table = table_with(AdmissionSettings(FilterKind.SLIDING, 1, capacity=1000, splits=3), shards=1)
    push(table, [1])
    before = table.statistics().bytes
    for start in range(2, 200_000, 2000):
        push(table, np.arange(start, start + 2000))
    assert len(table) == 0
    assert table.statistics().bytes == before
    push(table, [1])  # forgotten: this is the first occurrence again
    assert len(table) == 0
    push(table, [1])
    assert len(table) == 1


def test_a_count_outlives_the_split_that_it_was_made_in() -> None:
    table = table_with(AdmissionSettings(FilterKind.SLIDING, 5, capacity=10_000, splits=4), shards=1)
    for number in range(5):
        push(table, [1])
        push(table, np.arange(10, 2000) + number * 10_000)
        assert len(table) == 0
    push(table, [1])
    assert (table.lookup([1]) > 0).all()


def test_the_probabilistic_filters_admit_as_often_as_they_say() -> None:
    ids = np.arange(20_000)
    once = table_with(AdmissionSettings(FilterKind.PROBABILISTIC, 10))
    push(once, ids)
    assert len(once) / ids.size == pytest.approx(0.1, abs=0.01)
    push(once, np.repeat(ids, 10))
    assert len(once) == ids.size  # ten occurrences of ten are certain
    equal = table_with(AdmissionSettings(FilterKind.PROBABILISTIC_EQUAL, 10))
    for _ in range(10):
        push(equal, ids)
    assert len(equal) / ids.size == pytest.approx(0.95, abs=0.01)


def test_the_probabilistic_filters_repeat() -> None:
    def admitted() -> list[int]:
        table = table_with(AdmissionSettings(FilterKind.PROBABILISTIC, 3), seed=4)
        push(table, np.arange(1000))
        push(table, np.arange(1000))
        return sorted(int(each) for part in table.entries() for each in part.ids)

    assert admitted() == admitted()


def test_new_ids_beyond_the_bound_are_refused_and_counted() -> None:
    table = table_with(max_ids=1000, shards=4)
    push(table, np.arange(5000))
    assert len(table) == 1000
    statistics = table.statistics()
    assert statistics.no_room == 4000
    push(table, np.arange(5000))
    assert len(table) == 1000
    assert table.statistics().bytes == statistics.bytes
    table.assign(np.arange(10_000, 11_000), np.ones((1000, 1), np.float32))
    assert len(table) == 1000


# ---------------------------------------------------------------------------------------------------------
# Expiry


def test_by_event_time_relative_to_the_newest_event() -> None:
    table = table_with(expiry=ExpirySettings(100))
    push(table, [1], event_times=1000)
    push(table, [2, 3], event_times=np.array([1050, 1099]))
    assert table.expire() == 0
    push(table, [4], event_times=1100)
    assert table.expire() == 1
    assert (table.lookup([1, 2, 3, 4])[:, 0] > 0).tolist() == [False, True, True, True]
    statistics = table.statistics()
    assert (statistics.time_basis, statistics.newest, statistics.removed) == (TimeBasis.EVENT, 1100, 1)


def test_an_older_event_does_not_make_an_id_older() -> None:
    table = table_with(expiry=ExpirySettings(100))
    push(table, [1], event_times=1000)
    push(table, [1, 1, 2], event_times=np.array([500, 400, 500]))
    push(table, [3], event_times=1050)
    assert table.expire() == 1
    assert (table.lookup([1, 2])[:, 0] > 0).tolist() == [True, False]


def test_one_event_of_the_far_future_does_not_expire_the_others() -> None:
    clock = Hands()
    settings = TableSettings(SLICES, expiry=ExpirySettings(7 * 86_400))
    table = EmbeddingTable(settings, clock=clock)
    today = int(clock.now.timestamp())
    push(table, [1, 2], event_times=today)
    push(table, [3], event_times=2**32 - 1)
    assert (table.expire(), table.statistics().newest) == (0, today + 86_400)
    copy = EmbeddingTable(settings, clock=clock)
    for entries in table.entries():
        copy.restore(entries, TimeBasis.EVENT, newest=2**32 - 1)
    assert (copy.expire(), len(copy)) == (0, 3)
    # Time goes on as before.
    clock.now += timedelta(days=7)
    push(table, [4], event_times=today + 7 * 86_400)
    assert table.expire() == 2
    assert (table.lookup([1, 2, 3, 4])[:, 0] > 0).tolist() == [False, False, True, True]


def test_by_arrival_with_the_clock() -> None:
    clock = Hands()
    table = EmbeddingTable(TableSettings(SLICES, expiry=ExpirySettings(3600)), clock=clock)
    push(table, [1])
    clock.now += timedelta(minutes=59)
    push(table, [2])
    assert table.expire() == 0
    clock.now += timedelta(minutes=1)
    assert table.expire() == 1
    assert table.statistics().time_basis is TimeBasis.ARRIVAL


def test_times_are_of_one_kind() -> None:
    table = table_with()
    push(table, [1], event_times=5)
    with pytest.raises(InvalidError, match=r"event_times: must be given always or never.*event_time"):
        push(table, [2])
    assert len(table) == 1
    assert table.statistics().time_basis is TimeBasis.EVENT


def test_lifetimes_by_slot_and_a_floor() -> None:
    expiry = ExpirySettings(10, {1: 0, 2: 1000}, keep_at_least=0)
    table = table_with(expiry=expiry)
    ids = [5, (1 << 48) | 5, (2 << 48) | 5]
    push(table, ids, event_times=0)
    push(table, [9], event_times=500)
    assert table.expire() == 1
    push(table, [9], event_times=5000)
    assert table.expire() == 1
    assert (table.lookup(ids)[:, 0] > 0).tolist() == [False, True, False]
    kept = table_with(expiry=ExpirySettings(10, keep_at_least=64), shards=1)
    push(kept, np.arange(200), event_times=0)
    push(kept, [1000], event_times=500)
    assert kept.expire() == 201 - 64


def test_a_sweep_in_parts_finds_everything_and_a_row_is_used_again() -> None:
    table = table_with(expiry=ExpirySettings(10))
    table.apply(np.arange(5000), np.ones((5000, 1), np.float32), event_times=0)
    size = table.statistics().bytes
    push(table, [-1], event_times=100)
    removed = 0
    while removed < 5000:
        removed += table.expire_some(100)
    assert removed == 5000
    assert len(table) == 1
    push(table, np.arange(5000), event_times=100)
    assert table.statistics().bytes == size
    assert (table.lookup(np.arange(5000)) == 1.0).all()  # nothing of the previous owners of the rows is left


@pytest.mark.parametrize("wrong", [(float("nan"), float("inf")), (-float("inf"), 1.1e15), (-1.1e15, 3e38)])
def test_gradients_that_are_not_finite_or_too_large(wrong: tuple[float, float]) -> None:
    bad = [[1.0], [wrong[0]], [wrong[1]], [2.0]]
    failing = table_with()
    push(failing, [1])
    with pytest.raises(InvalidError, match="gradients: must be from -1e15 to 1e15; 2 of the ids"):
        failing.apply([1, 2, 3, 4], bad)
    assert len(failing) == 1
    assert failing.lookup([1]).tolist() == [[1.0]]
    skipping = table_with(not_finite=NotFinite.SKIP)
    skipping.apply([1, 2, 3, 4], bad)
    assert (skipping.lookup([1, 2, 3, 4])[:, 0] != 0).tolist() == [True, False, False, True]
    assert skipping.statistics().not_finite == 2

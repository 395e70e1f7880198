"""What a table refuses, by field, value and rule; it is unchanged afterwards."""

from __future__ import annotations

import dataclasses
import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ExhaustedError, InvalidError, PreconditionError, ShoalError
from shoal.tables.memory import HeapMemory
from shoal.tables.settings.initializers import Uniform
from shoal.tables.settings.optimizers import BatchSoftmax, Ftrl
from shoal.tables.settings.rates import PolynomialRate
from shoal.tables.settings.table import AdmissionSettings, ExpirySettings, FilterKind, SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable, Entries, TimeBasis

SETTINGS = TableSettings((SliceSettings(2), SliceSettings(1, "bias", optimizer=Ftrl())))
GOOD = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (([1.5, 2.5], GOOD), {}, "ids: must be an array of 64-bit whole numbers"),
        ((["a", "b"], GOOD), {}, "ids: "),
        (([[1], [2]], GOOD), {}, "ids: .* one dimension"),
        (([1, 2**70], GOOD), {}, "ids: "),
        (([1, 2], GOOD[:1]), {}, r"gradients: must have the shape \(2, 3\)"),
        (([1, 2], GOOD[:, :2]), {}, "gradients: must have the shape"),
        (([1, 2], "no"), {}, "gradients: "),
        (([1, 2], [[1, 2, 3], [4]]), {}, "gradients: must be an array"),
        (([1, 2], GOOD + 1j), {}, "gradients: must be an array of float32"),
        (([1, 2], [[None] * 3] * 2), {}, "gradients: must be an array of float32"),
        (([1, 2], GOOD.astype("datetime64[s]")), {}, "gradients: must be an array of float32"),
        (([1, 2], [[1e300, 0.0, 0.0]] * 2), {}, "gradients: must be from -1e15 to 1e15; 2 of the ids"),
        (([1, 2], GOOD), {"step": -1}, "step: must be from 0"),
        (([1, 2], GOOD), {"step": 1.5}, "step: must be from 0"),
        (([1, 2], GOOD), {"step": 2**63}, "step: must be from 0"),
        (([1, 2], GOOD), {"event_times": -1}, "event_times: must be seconds since 1970"),
        (([1, 2], GOOD), {"event_times": 2**32}, "event_times: must be seconds since 1970"),
        (([1, 2], GOOD), {"event_times": 1.5}, "event_times: must be one whole number"),
        (([1, 2], GOOD), {"event_times": np.array([1, 2, 3])}, "event_times: must be one whole number, or 2"),
    ],
)
def test_apply(arguments, more, message: str) -> None:
    with EmbeddingTable(SETTINGS) as table:
        with pytest.raises(InvalidError, match=message):
            table.apply(*arguments, **more)
        assert len(table) == 0


def test_states_must_be_numbers_and_steps_may_be_anything() -> None:
    settings = TableSettings((SliceSettings(2), SliceSettings(1, optimizer=BatchSoftmax())))
    with EmbeddingTable(settings) as table:
        state = np.zeros((1, 4), np.float32)
        state[:, 2:].view(np.int64)[:] = -1  # as a float this is no number
        table.assign([1], GOOD[:1], states=state)
        table.apply([1], GOOD[:1], step=7)
        assert table.lookup([1])[0, 2] == pytest.approx(0.7)
        state[0, 1] = np.nan
        with pytest.raises(InvalidError, match="states: must be numbers"):
            table.assign([1], GOOD[:1], states=state)
        with pytest.raises(InvalidError, match="states: must be numbers"):
            table.restore(Entries(np.array([1]), np.array([5]), GOOD[:1], state), TimeBasis.EVENT, newest=5)


@pytest.mark.parametrize("count", [0, -1])
def test_a_sweep_looks_at_some_places(count: int) -> None:
    with EmbeddingTable(dataclasses.replace(SETTINGS, expiry=ExpirySettings(5))) as table:
        for sweep in (table.expire, table.expire_some):
            with pytest.raises(InvalidError, match="places_at_once: must be 1 or more"):
                sweep(places_at_once=count)


def test_assign_and_lookup() -> None:
    with EmbeddingTable(SETTINGS) as table:
        with pytest.raises(InvalidError, match="states: must have the shape"):
            table.assign([1, 2], GOOD, states=GOOD[:, :1])
        with pytest.raises(InvalidError, match="out: must be a contiguous float32"):
            table.lookup([1, 2], out=np.zeros((2, 3), np.float64))
        with pytest.raises(InvalidError, match="out: "):
            table.lookup([1, 2], out=np.zeros((2, 6), np.float32)[:, ::2])
        assert table.lookup([]).shape == (0, 3)
        assert table.apply([], np.zeros((0, 3), np.float32)) == 0


def test_unsigned_ids_keep_their_bits() -> None:
    with EmbeddingTable(SETTINGS) as table:
        table.assign(np.array([2**64 - 1], np.uint64), GOOD[:1] + 1)
        assert (table.lookup([-1]) == 1).all()
        table.assign(np.array([7], np.uint8), GOOD[:1] + 2)
        assert (table.lookup([7]) == 2).all()


def test_memory_that_may_only_be_read_is_taken_as_it_is() -> None:
    ids, gradients, times = np.array([1, 2]), GOOD + 1, np.array([5, 6])
    for each in (ids, gradients, times):
        each.flags.writeable = False
    with EmbeddingTable(SETTINGS) as table:
        table.apply(ids, gradients, event_times=times)
        table.assign(ids, gradients, event_times=times)
        assert (table.lookup(ids) == 1).all()
        assert table.remove(ids) == 2


def test_settings() -> None:
    slices = (SliceSettings(0), SliceSettings(2, optimizer=BatchSoftmax()), SliceSettings(1, initializer=Uniform(1, 0)))
    broken = TableSettings(
        slices,
        shards=3,
        admission=AdmissionSettings(FilterKind.SLIDING, -1, {99_999: 1}),
        expiry=ExpirySettings(slot_lifetimes={1: -1}),
    )
    with pytest.raises(InvalidError) as caught:
        EmbeddingTable(broken)
    assert {each.field for each in caught.value.problems} == {
        "slices[0].dim",
        "slices[1].dim",
        "slices[2].initializer.low",
        "shards",
        "admission.threshold",
        "admission.slot_thresholds",
        "expiry.slot_lifetimes",
    }
    with pytest.raises(InvalidError, match="slices"):
        EmbeddingTable(TableSettings(()))
    with pytest.raises(InvalidError, match="threads: must be between 1 and the number of shards"):
        EmbeddingTable(SETTINGS, threads=17)
    with pytest.raises(InvalidError, match="max_ids: must be at least the number of shards, which is 16"):
        EmbeddingTable(TableSettings((SliceSettings(1),), max_ids=15))
    with pytest.raises(InvalidError, match="optimizer: must be one of"):
        EmbeddingTable(TableSettings((SliceSettings(1, optimizer="adam"),)))  # type: ignore[arg-type]


def test_settings_survive_json() -> None:
    full = TableSettings(
        (SliceSettings(3, "a", learning_rate=PolynomialRate(0.0, 1.0, 10)), SliceSettings(1, optimizer=Ftrl(l1=2.0))),
        "users",
        admission=AdmissionSettings(FilterKind.SLIDING, 3, {1: 2}),
        expiry=ExpirySettings(5, {7: 8}, 9),
        max_ids=77,
        expected_ids=5,
        seed=4,
    )
    assert TableSettings.from_json(full.to_json()) == full


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=40) | JSON.map(json.dumps))
def test_hostile_settings_give_a_typed_error(text: str) -> None:
    with pytest.raises(InvalidError):
        TableSettings.from_json(text)


@given(st.data())
def test_changed_settings_are_read_or_refused(data) -> None:
    document = json.loads(SETTINGS.to_json())
    spot = document
    while isinstance(spot, dict | list) and spot:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()) or not isinstance(spot[key], dict | list):
            spot[key] = data.draw(JSON)
            break
        spot = spot[key]
    try:
        TableSettings.from_json(json.dumps(document)).check()
    except InvalidError as error:
        assert error.problems  # noqa: PT017  both outcomes are right


def test_a_closed_table() -> None:
    table = EmbeddingTable(SETTINGS)
    table.close()
    table.close()
    for call in (lambda: table.lookup([1]), lambda: table.apply([1, 2], GOOD), lambda: table.remove([1])):
        with pytest.raises(PreconditionError, match="closed"):
            call()


class Scarce(HeapMemory):
    """Memory that ends."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.left = pieces

    def allocate(self, name: str, size: int, *, lasting: bool = False):
        if not self.left:
            raise ExhaustedError("no memory")
        self.left -= 1
        return super().allocate(name, size, lasting=lasting)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pieces", [20, 36, 60])
def test_a_table_without_memory_for_more_ids_still_serves_those_it_has(pieces: int, threads: int) -> None:
    memory = Scarce(pieces)
    table = EmbeddingTable(SETTINGS, memory=memory, threads=threads)
    ids = np.arange(200_000)
    with pytest.raises(ExhaustedError):
        table.apply(ids, np.ones((ids.size, 3), np.float32))
    count = len(table)
    found = table.lookup(ids)
    assert int((found[:, 0] != 0).sum()) == count
    memory.left = 1000
    table.apply(ids, np.ones((ids.size, 3), np.float32))
    assert len(table) == ids.size


def test_errors_in_a_thread_reach_the_caller() -> None:
    with EmbeddingTable(SETTINGS, threads=2) as table:
        table.close()
        with pytest.raises(ShoalError):
            table.lookup(np.arange(10_000))
    assert not [each for each in threading.enumerate() if each.name == "shoal-table" and not each.daemon]

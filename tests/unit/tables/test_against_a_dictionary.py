"""A table beside a dictionary: whatever is done in whatever order, both hold the same."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shoal.tables.settings.initializers import Zeros
from shoal.tables.settings.optimizers import Sgd
from shoal.tables.settings.table import ExpirySettings, SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable

LIFETIME = 100
#: Few ids that meet often, ids of several slots, and the ends of the range.
IDS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 3).map(lambda slot: (slot << 48) | 7),
    st.sampled_from([-1, -(2**63), 2**63 - 1, 0]),
    st.integers(-(2**63), 2**63 - 1),
)
BATCHES = st.lists(IDS, max_size=60)


class Beside(RuleBasedStateMachine):
    @initialize(shards=st.sampled_from([1, 2, 16]), threads=st.integers(1, 2))
    def begin(self, shards: int, threads: int) -> None:
        slices = (SliceSettings(3, initializer=Zeros(), optimizer=Sgd(1.0)),)
        expiry = ExpirySettings(LIFETIME, slot_lifetimes={2: 0})
        made = TableSettings(slices, shards=shards, expiry=expiry)
        self.table = EmbeddingTable(made, threads=min(threads, shards))
        self.expected: dict[int, tuple[float, int]] = {}
        self.now = 0

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()

    @rule(ids=BATCHES, later=st.integers(0, 60))
    def apply(self, ids: list[int], later: int) -> None:
        self.now += later
        gradients = np.repeat(np.arange(1, len(ids) + 1, dtype=np.float32)[:, None], 3, axis=1)
        self.table.apply(np.array(ids, np.int64), gradients, event_times=self.now)
        for number, each in enumerate(ids, start=1):
            value, _ = self.expected.get(each, (0.0, 0))
            self.expected[each] = (value - number, self.now)

    @rule(ids=BATCHES, later=st.integers(0, 60))
    def assign(self, ids: list[int], later: int) -> None:
        self.now += later
        weights = np.repeat(np.arange(len(ids), dtype=np.float32)[:, None], 3, axis=1)
        self.table.assign(np.array(ids, np.int64), weights, event_times=self.now)
        self.expected.update({each: (float(number), self.now) for number, each in enumerate(ids)})

    @rule(count=st.integers(1, 3000), start=st.integers(0, 2**40))
    def assign_many(self, count: int, start: int) -> None:
        ids = np.arange(start, start + count)
        self.table.assign(ids, np.full((count, 3), 5.0, np.float32), event_times=self.now)
        self.expected.update({int(each): (5.0, self.now) for each in ids})

    @rule(ids=BATCHES)
    def remove(self, ids: list[int]) -> None:
        known = {each for each in ids if each in self.expected}
        assert self.table.remove(np.array(ids, np.int64)) == len(known)
        for each in known:
            del self.expected[each]

    @rule(places=st.sampled_from([1, 7, 1 << 16]))
    def expire(self, places: int) -> None:
        newest = self.table.statistics().newest
        old = [
            each
            for each, (_, time) in self.expected.items()
            if newest - time >= LIFETIME and (each >> 48) & 0x7FFF != 2
        ]
        assert self.table.expire(places_at_once=places) == len(old)
        for each in old:
            del self.expected[each]

    @rule(ids=BATCHES)
    def look_up(self, ids: list[int]) -> None:
        found = self.table.lookup(np.array(ids, np.int64))
        assert found.tolist() == [[self.expected.get(each, (0.0, 0))[0]] * 3 for each in ids]

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "table"):
            return
        assert len(self.table) == len(self.expected)
        found = {}
        for each in self.table.entries():
            assert each.states.shape == (each.ids.size, 0)
            lines = zip(each.ids.tolist(), each.weights[:, 0].tolist(), each.times.tolist(), strict=True)
            found.update({key: (value, time) for key, value, time in lines})
        assert found == self.expected


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)

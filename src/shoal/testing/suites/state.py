"""What every backend of keyed state promises.

A test module makes a subclass per backend and overrides the fixture `backend`:

    class TestMemory(StateSuite):
        __test__ = True

        @pytest.fixture
        def backend(self) -> StateBackend:
            return MemoryState()
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.dataflow.state.base import StateBackend
from shoal.dataflow.state.memory import MemoryState
from shoal.dataflow.state.row_store import CHUNK, RowStore
from shoal.dataflow.state.tables import merge


class StateSuite:
    """Conformance of a state backend."""

    __test__ = False

    @pytest.fixture
    def backend(self) -> StateBackend:
        """An empty one."""
        raise NotImplementedError

    def test_what_was_put_is_given_back(self, backend: StateBackend) -> None:
        keys = [(0, b""), (3, b"a"), (3, b"b"), (127, b"\xff\x00")]
        backend.put_many("one", zip(keys, [b"", b"1", b"22", b"333"], strict=True))
        assert backend.get_many("one", keys) == [b"", b"1", b"22", b"333"]
        backend.put_many("one", [((3, b"a"), b"new")])
        assert backend.get_many("one", [(3, b"a"), (3, b"a")]) == [b"new", b"new"]

    def test_what_was_never_put_is_none(self, backend: StateBackend) -> None:
        backend.put_many("one", [((1, b"a"), b"x")])
        assert backend.get_many("one", [(2, b"a"), (1, b"b"), (1, b"")]) == [None, None, None]
        assert backend.get_many("two", [(1, b"a")]) == [None]
        assert backend.get_many("one", []) == []

    def test_namespaces_and_groups_are_apart(self, backend: StateBackend) -> None:
        backend.put_many("n", [((1, b"sa"), b"1"), ((2, b"sa"), b"2")])
        backend.put_many("ns", [((1, b"a"), b"3")])
        assert backend.get_many("n", [(1, b"sa"), (2, b"sa")]) == [b"1", b"2"]
        assert backend.get_many("ns", [(1, b"a")]) == [b"3"]
        assert list(backend.scan("n", 1)) == [(b"sa", b"1")]

    def test_deleted_is_gone(self, backend: StateBackend) -> None:
        backend.put_many("one", [((1, b"a"), b"x"), ((1, b"b"), b"y")])
        backend.delete_many("one", [(1, b"a"), (1, b"missing"), (9, b"a")])
        assert backend.get_many("one", [(1, b"a"), (1, b"b")]) == [None, b"y"]
        backend.delete_many("one", [(1, b"b")])
        assert backend.groups() == frozenset()

    def test_a_scan_is_in_order_and_by_prefix(self, backend: StateBackend) -> None:
        names = [b"b", b"a", b"ab", b"\xff", b"", b"abc", b"ac"]
        backend.put_many("one", [((5, name), name * 2) for name in names])
        backend.put_many("one", [((6, b"ab"), b"other")])
        assert [key for key, _value in backend.scan("one", 5)] == sorted(names)
        assert list(backend.scan("one", 5, b"ab")) == [(b"ab", b"abab"), (b"abc", b"abcabc")]
        assert list(backend.scan("one", 7)) == []

    def test_what_has_outlived_its_time_is_not_given(self, backend: StateBackend) -> None:
        backend.put_many("one", [((1, b"a"), b"x")], expires_at=100)
        backend.put_many("one", [((1, b"b"), b"y")])
        assert backend.get_many("one", [(1, b"a"), (1, b"b")], now=99) == [b"x", b"y"]
        assert backend.get_many("one", [(1, b"a"), (1, b"b")], now=100) == [None, b"y"]
        assert list(backend.scan("one", 1, now=100)) == [(b"b", b"y")]

    def test_expiring_frees(self, backend: StateBackend) -> None:
        backend.put_many("one", [((group, b"a"), b"x") for group in range(10)], expires_at=100)
        backend.put_many("one", [((3, b"b"), b"y")], expires_at=200)
        assert backend.next_expiry() == 100
        assert backend.expire(99) == 0
        assert backend.expire(100) == 10
        assert backend.groups() == frozenset({3})
        assert backend.next_expiry() == 200
        assert backend.expire(10**9) == 1
        assert backend.groups() == frozenset()
        assert backend.next_expiry() is None

    def test_put_again_it_lives_as_long_as_was_said_last(self, backend: StateBackend) -> None:
        backend.put_many("one", [((1, b"a"), b"x")], expires_at=100)
        backend.put_many("one", [((1, b"a"), b"y")], expires_at=300)
        backend.put_many("one", [((1, b"b"), b"x")], expires_at=100)
        backend.put_many("one", [((1, b"b"), b"z")])
        assert backend.expire(200) == 0
        assert backend.get_many("one", [(1, b"a"), (1, b"b")], now=200) == [b"y", b"z"]
        assert backend.expire(300) == 1
        assert backend.get_many("one", [(1, b"a"), (1, b"b")], now=300) == [None, b"z"]

    def test_a_snapshot_moves_a_group_to_another_backend(self, backend: StateBackend) -> None:
        backend.put_many("one", [((1, b"a"), b"x"), ((2, b"a"), b"other")])
        backend.put_many("two", [((1, b"\x00"), b"y")], expires_at=500)
        found, is_whole = backend.changes()
        assert is_whole
        backend.put_many("one", [((1, b"a"), b"changed")])
        other = MemoryState()
        other.restore(found.of_groups(1, 2))
        assert other.groups() == frozenset({1})
        assert other.get_many("one", [(1, b"a"), (2, b"a")]) == [b"x", None]
        assert other.get_many("two", [(1, b"\x00")], now=499) == [b"y"]
        backend.restore(found)
        assert backend.get_many("one", [(1, b"a")]) == [b"x"]
        assert backend.get_many("two", [(1, b"\x00")], now=499) == [b"y"]
        assert not backend.changes()[0].has_changes  # what was restored is no change

    def test_without_values_a_snapshot_is_empty(self, backend: StateBackend) -> None:
        other = MemoryState()
        other.restore(backend.changes()[0])
        assert other.groups() == frozenset()

    def test_a_snapshot_has_what_changed_since_the_last_one(self, backend: StateBackend) -> None:
        backend.put_many("one", [((group, b"a"), b"x") for group in range(100)])
        backend.put_many("one", [((3, b"old"), b"x")], expires_at=50)
        parts = [backend.changes()[0]]
        backend.put_many("one", [((1, b"a"), b"new"), ((2, b"b"), b"y")])
        backend.delete_many("one", [(4, b"a"), (4, b"never")])
        backend.expire(60)
        found, is_whole = backend.changes()
        assert not is_whole
        assert len(found.rows) == 2
        assert found.gone is not None
        parts.append(found)
        assert not backend.changes()[0].has_changes
        other = MemoryState()
        other.restore(merge(parts))
        assert other.get_many("one", [(1, b"a"), (2, b"b"), (4, b"a"), (3, b"old")]) == [b"new", b"y", None, None]
        assert len(other.groups()) == 99

    def test_many_values(self, backend: StateBackend) -> None:
        keys = [(number % 16, f"key-{number}".encode()) for number in range(3_000)]
        backend.put_many("one", [(key, key[1] * 3) for key in keys])
        assert backend.get_many("one", keys) == [key[1] * 3 for key in keys]
        assert backend.groups() == frozenset(range(16))
        assert sum(len(list(backend.scan("one", group))) for group in range(16)) == 3_000

    # -- rows -------------------------------------------------------------------------------------------------

    def test_rows_come_back_by_their_places(self, backend: StateBackend) -> None:
        """In any order, and more than once."""
        batch = _rows(CHUNK * 3 + 7)
        rows = RowStore(backend).keep([batch.slice(0, 5), batch.slice(5)])
        assert rows.num_rows == batch.num_rows
        places = np.array([CHUNK * 3 + 6, 0, CHUNK, CHUNK - 1, 0, 2 * CHUNK])
        assert rows.take(pa.array(places)).equals(batch.take(pa.array(places)))
        assert rows.take(np.zeros(0, np.int64)).num_rows == 0
        assert pa.concat_batches(rows.batches(100)).equals(batch)

    def test_some_rows_are_kept_and_the_others_leave_the_backend(self, backend: StateBackend) -> None:
        """Chunks go with the last rows that refer to them."""
        batch = _rows(CHUNK * 4)
        rows = RowStore(backend).keep([batch])
        most = rows.select(np.arange(10, CHUNK * 3))
        few = most.select(np.arange(CHUNK))
        assert few.take(np.arange(3)).column("number").to_pylist() == [10, 11, 12]
        del rows, most
        assert len(list(backend.scan("rows", 0))) == 1
        assert few.num_rows == CHUNK
        del few
        assert backend.groups() == frozenset()


def _rows(count: int) -> Any:
    numbers = list(range(count))
    texts = [None if number % 5 == 0 else f"text {number}" for number in numbers]
    kinds = pa.array([f"kind {number % 3}" for number in numbers]).dictionary_encode()
    return pa.record_batch({"number": numbers, "text": texts, "kind": kinds})

"""Backends of keyed state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.dataflow.state import rocks
from shoal.dataflow.state.base import StateBackend
from shoal.dataflow.state.memory import MemoryState
from shoal.dataflow.state.rocks import RocksState
from shoal.testing.suites.state import StateSuite


class TestMemory(StateSuite):
    __test__ = True

    @pytest.fixture
    def backend(self) -> StateBackend:
        return MemoryState()

    def test_values_that_are_put_again_and_again_take_no_more_room(self) -> None:
        state = MemoryState()
        for moment in range(1, 50_000):
            state.put_many("one", [((1, b"a"), b"x")], expires_at=moment)
        assert len(state._expiries) < 10_000
        assert state.expire(49_999) == 1


class TestRocks(StateSuite):
    __test__ = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[StateBackend]:
        state = RocksState(str(tmp_path / "deep" / "state"))
        yield state
        state.close()

    def test_a_new_one_begins_empty_and_a_closed_one_leaves_nothing(self, tmp_path: Path) -> None:
        first = RocksState(str(tmp_path / "s"))
        first.put_many("one", [((1, b"a"), b"x")])
        first.close()
        assert not (tmp_path / "s").exists()
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "junk").write_text("left behind by somebody who was killed")
        second = RocksState(str(tmp_path / "s"))
        assert second.get_many("one", [(1, b"a")]) == [None]
        second.close()

    def test_keys_that_come_and_go_take_bounded_memory(self, tmp_path: Path) -> None:
        """More goes through than all of its memory holds, and it stays within what the guide says."""
        state = RocksState(str(tmp_path / "s"))
        value = b"x" * 4_000
        for turn in range(1, 41):
            keys = [(number % 128, b"%d-%d" % (turn, number)) for number in range(500)]
            state.put_many("one", ((key, value) for key in keys), expires_at=turn)
            assert state.get_many("one", keys)[0] == value
            state.expire(turn - 2)
            memory = [_property(state, name) for name in ("size-all-mem-tables", "block-cache-usage")]
            assert memory[0] <= 32 * 2**20
            assert memory[1] <= 33 * 2**20
        assert _property(state, "block-cache-capacity") == 32 * 2**20
        state.close()

    def test_what_has_gone_is_not_passed_again(self, tmp_path: Path) -> None:
        state = RocksState(str(tmp_path / "s"))
        for moment in (10, 20, 30):
            state.put_many("one", [((1, b"%d-%d" % (moment, number)), b"x") for number in range(5)], expires_at=moment)
        seen: list[bytes] = []
        whole = state._database
        state._database = _Watched(whole, seen)
        assert state.next_expiry() == 10
        assert state.expire(20) == 10
        assert state.next_expiry() == 30
        begins = [_moment(start) for start in seen]
        assert begins == [10, 10, 21]
        state.put_many("one", [((1, b"early"), b"x")], expires_at=5)
        assert state.next_expiry() == 5
        assert state.expire(2**63 - 1) == 6
        assert state.next_expiry() is None
        state.close()

    def test_more_than_one_step_of_values_is_freed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rocks, "_AT_ONCE", 3)
        state = RocksState(str(tmp_path / "s"))
        state.put_many("one", [((1, b"%d" % number), b"x") for number in range(10)], expires_at=7)
        state.put_many("one", [((1, b"later"), b"x")], expires_at=8)
        assert state.expire(7) == 10
        assert [key for key, _value in state.scan("one", 1)] == [b"later"]
        assert state.next_expiry() == 8
        state.close()


class _Watched:
    """A database that remembers where looks through its keys began."""

    def __init__(self, whole: Any, seen: list[bytes]) -> None:
        self._whole, self._seen = whole, seen

    def keys(self, *, from_key: bytes) -> Any:
        self._seen.append(from_key)
        return self._whole.keys(from_key=from_key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def _moment(start: bytes) -> int:
    return int.from_bytes(start[2:10], "big")


def _property(state: RocksState, name: str) -> int:
    return int(state._database.property_int_value(f"rocksdb.{name}"))

"""Backends of keyed state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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

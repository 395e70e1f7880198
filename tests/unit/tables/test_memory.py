"""Both kinds of table memory, and what only shared memory has."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError
from shoal.tables.memory import HeapMemory, Memory, SharedMemory, map_shared
from shoal.testing.suites.memory import MemorySuite


class TestHeap(MemorySuite):
    @pytest.fixture
    def memory(self) -> Memory:
        return HeapMemory()


class TestShared(MemorySuite):
    @pytest.fixture
    def memory(self, tmp_path: Path) -> Memory:
        return SharedMemory(tmp_path / "table")

    def test_others_see_what_is_written(self, tmp_path: Path) -> None:
        memory = SharedMemory(tmp_path / "table")
        own = memory.allocate("a", 100)
        seen = map_shared(memory.folder, "a")
        own[5] = 9
        assert seen[5] == 9
        with pytest.raises(ValueError, match="read-only"):
            seen[5] = 1

    def test_close_leaves_nothing(self, tmp_path: Path) -> None:
        memory = SharedMemory(tmp_path / "table")
        memory.allocate("a", 100)
        memory.write("b", b"text")
        memory.close()
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_has_one_writer(self, tmp_path: Path) -> None:
        SharedMemory(tmp_path / "table")
        with pytest.raises(PreconditionError, match="exists already"):
            SharedMemory(tmp_path / "table")

    def test_bad_places_and_names(self, tmp_path: Path) -> None:
        with pytest.raises(UnavailableError, match="cannot be made"):
            SharedMemory(tmp_path / "no" / "table")
        with pytest.raises(NotFoundError):
            map_shared(tmp_path, "a")
        (tmp_path / "empty").write_bytes(b"")
        with pytest.raises(NotFoundError):
            map_shared(tmp_path, "empty")
        with pytest.raises(InvalidError, match="name"):
            SharedMemory(tmp_path / "table").allocate("../x", 8)

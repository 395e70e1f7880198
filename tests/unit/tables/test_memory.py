"""Both kinds of table memory, and what only shared memory has."""

from __future__ import annotations

import os
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
        first = SharedMemory(tmp_path / "table")
        with pytest.raises(PreconditionError, match=f"is in use by process {os.getpid()}"):
            SharedMemory(tmp_path / "table")
        first.close()
        first.close()
        SharedMemory(tmp_path / "table")

    def test_the_folder_of_a_killed_writer_is_taken_over(self, tmp_path: Path) -> None:
        killed = SharedMemory(tmp_path / "table")
        killed.allocate("a", 100)[:] = 1
        (tmp_path / "table" / ".b.part").write_bytes(b"half")
        killed._lock.release()  # as the kernel does
        memory = SharedMemory(tmp_path / "table")
        assert not memory.allocate("a", 100).any()
        memory.close()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("kind", ["files", "open", "file", "link", "folder"])
    def test_a_folder_of_others_is_left_alone(self, tmp_path: Path, kind: str) -> None:
        place = tmp_path / "table"
        if kind == "file":
            place.write_bytes(b"")
        elif kind == "link":
            (tmp_path / "real").mkdir(mode=0o700)
            place.symlink_to(tmp_path / "real")
        else:
            place.mkdir(mode=0o755 if kind == "open" else 0o700)
        if kind == "files":
            (place / "notes").write_bytes(b"mine")
        if kind == "folder":
            (place / "writer-lock").write_bytes(b"")
            (place / "Some.Folder").mkdir()
        with pytest.raises(PreconditionError, match="is no shared memory of this user"):
            SharedMemory(place)
        assert kind != "files" or (place / "notes").read_bytes() == b"mine"

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

"""When a disk counts as nearly full."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.agent.node.disk import DiskSpace, disk_pressure, disk_space

GIB = 1 << 30


@pytest.mark.parametrize(
    ("space", "before", "words"),
    [
        (DiskSpace(free=10 * GIB, total=1000 * GIB), False, ""),
        (DiskSpace(free=GIB - 1, total=1000 * GIB), False, "1023 MB of 1024000 MB are free"),
        (DiskSpace(free=GIB + 1, total=1000 * GIB), False, ""),
        # It is well again only with some more.
        (DiskSpace(free=GIB + 1, total=1000 * GIB), True, "1024 MB of 1024000 MB are free"),
        (DiskSpace(free=2 * GIB, total=1000 * GIB), True, ""),
        # A small disk is judged by its size.
        (DiskSpace(free=60 << 20, total=GIB), False, ""),
        (DiskSpace(free=40 << 20, total=GIB), False, "40 MB of 1024 MB are free"),
        (DiskSpace(free=GIB, total=GIB, free_files=5, total_files=1000), False, "5 of 1000 files are free"),
        (DiskSpace(free=GIB, total=GIB, free_files=0, total_files=0), False, ""),
    ],
)
def test_pressure(space: DiskSpace, before: bool, words: str) -> None:
    found = disk_pressure(space, before=before)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_the_space_of_a_directory_is_read(tmp_path: Path) -> None:
    found = disk_space(tmp_path)
    assert found is not None
    assert 0 < found.free <= found.total
    assert disk_space(tmp_path / "missing") is None

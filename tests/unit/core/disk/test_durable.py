"""Files are replaced in one step."""

import os
import stat

import pytest

from shoal.core.disk.durable import replace_file, sync_path, write_and_sync


def test_a_file_is_replaced_with_its_mode(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    replace_file(path, b"new", mode=0o640)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_writer_left_is_replaced(tmp_path):
    (tmp_path / ".file.part").write_bytes(b"half")
    replace_file(tmp_path / "file", b"whole")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_the_file_can_be_prepared_before_its_first_byte(tmp_path):
    sizes = []
    replace_file(tmp_path / "file", b"content", prepare=lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    assert sizes == [0]


def test_writing_in_place_keeps_the_rest(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    write_and_sync(path, b"ab")
    assert path.read_bytes() == b"ab23456789"


@pytest.mark.parametrize("name", [".", "file"])
def test_files_and_directories_can_be_synced(tmp_path, name):
    (tmp_path / "file").write_bytes(b"x")
    sync_path(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        sync_path(tmp_path / "missing")

"""Private files are private from their first byte on, and whole."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.core.disk.private_files import (
    MAX_BYTES,
    Owner,
    make_data_directory,
    make_private_directory,
    move_private,
    read_private,
    read_regular,
    write_private,
)
from shoal.core.errors import DeniedError, ExhaustedError, NotFoundError, PreconditionError, ShoalError


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_file_and_its_directory_are_for_us_alone(tmp_path):
    directory = tmp_path / "above" / "keys"
    make_private_directory(directory)
    write_private(directory / "key", b"secret")
    assert mode(directory) == 0o700
    assert mode(directory / "key") == 0o600
    assert read_private(directory / "key") == b"secret"
    assert [path.name for path in directory.iterdir()] == ["key"]


@pytest.mark.parametrize("make", [make_private_directory, make_data_directory])
def test_nobody_else_can_write_where_a_directory_of_ours_is(tmp_path, make):
    make(tmp_path / "one" / "two" / "ours")
    assert mode(tmp_path / "one" / "two" / "ours") == 0o700
    assert [mode(tmp_path / "one"), mode(tmp_path / "one" / "two")] == [0o755, 0o755]


@pytest.mark.parametrize("make", [make_private_directory, make_data_directory])
def test_a_directory_that_is_there_is_left_as_it_is(tmp_path, make):
    (tmp_path / "theirs").mkdir(mode=0o750)
    make(tmp_path / "theirs")
    make(tmp_path / "theirs" / "ours")
    assert [mode(tmp_path / "theirs"), mode(tmp_path / "theirs" / "ours")] == [0o750, 0o700]


def test_a_file_that_others_could_read_is_replaced_by_one_that_they_cannot(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert mode(path) == 0o600
    assert read_private(path) == b"new"


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "key").symlink_to("elsewhere")
    (tmp_path / ".key.part").symlink_to("elsewhere")
    write_private(tmp_path / "key", b"ours")
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert not (tmp_path / "key").is_symlink()


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path):
    (tmp_path / ".key.part").write_bytes(b"half of")
    write_private(tmp_path / "key", b"whole")
    assert read_private(tmp_path / "key") == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    write_private(tmp_path / "key", b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExhaustedError, match="no space left"):
        write_private(tmp_path / "key", b"new")
    assert read_private(tmp_path / "key") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_move_replaces(tmp_path):
    write_private(tmp_path / "a", b"a")
    write_private(tmp_path / "b", b"b")
    move_private(tmp_path / "a", tmp_path / "b")
    assert read_private(tmp_path / "b") == b"a"
    with pytest.raises(NotFoundError):
        read_private(tmp_path / "a")


def test_errors_are_ours_and_name_the_path(tmp_path):
    with pytest.raises(NotFoundError, match="nowhere"):
        write_private(tmp_path / "nowhere" / "key", b"")
    with pytest.raises(PreconditionError, match="directory"):
        read_private(tmp_path)
    (tmp_path / "large").write_bytes(bytes(MAX_BYTES + 1))
    with pytest.raises(ExhaustedError, match="large"):
        read_private(tmp_path / "large")


def test_a_refusal_of_the_system_is_a_refusal(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DeniedError):
        write_private(tmp_path / "key", b"")


def test_in_a_directory_of_another_only_a_plain_file_is_read(tmp_path):
    (tmp_path / "plain").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    os.mkfifo(tmp_path / "pipe")
    assert read_regular(tmp_path / "plain") == b"x"
    for name in ("link", "pipe", "nothing"):
        with pytest.raises(ShoalError):
            read_regular(tmp_path / name)
    with pytest.raises(ShoalError):
        read_regular(tmp_path)
    assert not _is_open(tmp_path)


def _is_open(path):
    """Whether this process has a descriptor of it."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this very listing
            found.add(each.readlink())
    return path in found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_are_their_owners_from_the_first_byte_on(tmp_path):
    owner = Owner(65534, 65534)
    make_private_directory(tmp_path / "d", owner=owner)
    write_private(tmp_path / "d" / "f", b"x", owner=owner)
    for path in (tmp_path / "d", tmp_path / "d" / "f"):
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
    write_private(tmp_path / "d" / "f", b"y")
    assert (tmp_path / "d" / "f").stat().st_uid == 0

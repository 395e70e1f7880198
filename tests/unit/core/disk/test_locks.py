"""A lock file has one holder, says who that is, and works on a full disk."""

import os
import subprocess
import sys

import pytest

from shoal.core.disk.locks import FileLock
from shoal.core.errors import PreconditionError, UnavailableError


def test_a_second_holder_is_told_about_the_first(tmp_path):
    first = FileLock(tmp_path / "lock", what="data directory /x", hint="stop the other")
    second = FileLock(tmp_path / "lock", what="data directory /x", hint="stop the other")
    first.acquire()
    assert first.held
    with pytest.raises(PreconditionError, match=rf"^data directory /x is in use by process {os.getpid()}$") as caught:
        second.acquire()
    assert caught.value.hint == "stop the other"
    assert caught.value.facts["pid"] == str(os.getpid())
    assert not second.try_acquire()
    first.release()
    first.release()
    second.acquire()
    assert second.held


def test_the_kernel_releases_it_with_its_process(tmp_path):
    program = "import os, sys; from pathlib import Path; from shoal.core.disk.locks import FileLock\n"
    program += "FileLock(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False)
    lock = FileLock(tmp_path / "lock")
    assert lock.read_note().isdigit()
    assert lock.try_acquire("mine")
    assert lock.read_note() == "mine"


def test_a_shorter_note_replaces_a_longer_one(tmp_path):
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire("x" * 100)
    lock.release()
    assert lock.try_acquire("y")
    assert lock.read_note() == "y"


def test_a_note_that_cannot_be_written_does_not_matter(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = FileLock(tmp_path / "lock")
    lock.acquire()
    assert lock.held


def test_a_replaced_file_is_noticed(tmp_path):
    lock = FileLock(tmp_path / "lock")
    lock.acquire()
    assert lock.is_in_place()
    (tmp_path / "lock").unlink()
    assert not lock.is_in_place()
    (tmp_path / "lock").write_text("")
    assert not lock.is_in_place()


def test_a_directory_that_is_missing_is_named(tmp_path):
    with pytest.raises(UnavailableError, match="cannot be used: no such file or directory"):
        FileLock(tmp_path / "missing" / "lock").acquire()

"""Copies of state files on the machine of a task: read instead of the files, and never needed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from shoal.dataflow.checkpoint.copies import LocalCopies
from shoal.dataflow.checkpoint.handles import Link
from shoal.dataflow.checkpoint.statestore import StateStore
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.operators.base import OperatorState

STATE = {"sums": OperatorState({0: b"a" * 1000, 1: b"b"})}
LINKS = (Link("one.state", 0, 8),)


@pytest.fixture
def copies(tmp_path: Path) -> LocalCopies:
    return LocalCopies(str(tmp_path / "copies"))


def open_store(tmp_path: Path, copies: LocalCopies) -> StateStore:
    store = StateStore(str(tmp_path / "there"), copies)
    copies.join(store)
    return store


def there(tmp_path: Path) -> Path:
    return tmp_path / "there" / "state" / "one.state"


def test_what_a_task_wrote_is_read_from_the_copy(tmp_path, copies):
    handle = open_store(tmp_path, copies).write("one.state", STATE)
    there(tmp_path).unlink()
    again = open_store(tmp_path, copies)
    assert again.read_chain("sums", LINKS, {"one.state": handle}).keyed == STATE["sums"].keyed


def test_a_damaged_copy_is_dropped_and_the_file_is_read(tmp_path, copies):
    store = open_store(tmp_path, copies)
    handle = store.write("one.state", STATE)
    copy = tmp_path / "copies" / "one.state"
    for content in (copy.read_bytes()[:-1] + b"?", b"short"):
        copy.write_bytes(content)
        assert store.read_chain("sums", LINKS, {"one.state": handle}).keyed == STATE["sums"].keyed
    there(tmp_path).write_bytes(b"?" * handle.size)
    with pytest.raises(CheckpointError, match="torn"):
        store.read_chain("sums", LINKS, {"one.state": handle})


def test_copies_of_the_last_two_checkpoints_of_each_task_are_kept(tmp_path, copies):
    one, other = open_store(tmp_path, copies), open_store(tmp_path, copies)
    for name in ("a", "b"):
        one.write(name, STATE)
        one.forget([name])
    other.write("c", STATE)
    one.write("d", STATE)
    one.forget(["d"])
    assert listed(tmp_path) == ["b", "c", "d"]


def test_a_restore_keeps_what_it_may_read_until_each_task_knows_better(tmp_path, copies):
    before = open_store(tmp_path, copies)
    for name in ("a", "b", "c"):
        before.write(name, STATE)
    (tmp_path / "copies" / "d.part").write_bytes(b"half")
    copies = LocalCopies(str(tmp_path / "copies"))
    one, other = open_store(tmp_path, copies), open_store(tmp_path, copies)
    assert copies.restore_from(["a", "b", "elsewhere"]) == 2
    assert listed(tmp_path) == ["a", "b"]
    for _ in range(2):
        one.forget(["a"])
    assert listed(tmp_path) == ["a", "b"]
    for _ in range(2):
        other.forget([])
    assert listed(tmp_path) == ["a"]


def test_a_copy_that_cannot_be_written_fails_nothing(tmp_path, copies, monkeypatch, caplog):
    real = Path.open

    def refuse(path, *more, **options):
        if path.parent.name == "copies":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *more, **options)

    monkeypatch.setattr(Path, "open", refuse)
    store = open_store(tmp_path, copies)
    handle = store.write("one.state", STATE)
    assert store.read_chain("sums", LINKS, {"one.state": handle}).keyed == STATE["sums"].keyed
    assert "No space left" in caplog.text
    assert listed(tmp_path) == []


def listed(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "copies").iterdir())

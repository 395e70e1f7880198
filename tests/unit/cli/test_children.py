"""The folder of a fleet and what is kept in it: one owner, bounded logs."""

from __future__ import annotations

import os

import pytest

from shoal.cli.local import children
from shoal.cli.local.children import Child, ChildExit, OwnedFolder, read_json, trim_log
from shoal.cli.local.up import LoudLines
from shoal.core.clock import SystemClock
from shoal.core.errors import PreconditionError


async def test_a_folder_has_one_owner(tmp_path):
    first, second = OwnedFolder(tmp_path, SystemClock()), OwnedFolder(tmp_path, SystemClock())
    await first.take(asked="control")
    await first.take(asked="control")
    with pytest.raises(PreconditionError, match="in use by process"):
        await second.take(asked="control")
    assert not second.is_owned
    first.release()
    await second.take(asked="control")
    second.release()


async def test_what_is_in_a_folder_is_for_its_owner_alone_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 1000)
    path = tmp_path / "above" / "fleet"
    before = os.umask(0)
    try:
        folder = OwnedFolder(path, SystemClock())
        await folder.take(asked="control")
        folder.note({"node-1": os.getpid()})
        child = await Child.start("completion", ["--version"], path / "node-1", os.environ)
        await child.wait_exit()
        folder.release()
        with (path / "node-1" / "log").open("ab") as log:
            log.write(b"a" * 2000)
        trim_log(path / "node-1" / "log")
    finally:
        os.umask(before)
    modes = {str(each.relative_to(path)): each.stat().st_mode & 0o777 for each in path.rglob("*")}
    # Root lets others pass: it may start workloads that are theirs.
    folders = 0o711 if os.geteuid() == 0 else 0o700
    assert path.stat().st_mode & 0o777 == folders
    assert path.parent.stat().st_mode & 0o022 == 0
    assert modes == {
        "lock": 0o600,
        "children.json": 0o600,
        "node-1": folders,
        "node-1/log": 0o600,
        "node-1/log.1": 0o600,
    }


async def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
    tmp_path.chmod(0o700)
    folder = OwnedFolder(tmp_path, SystemClock())
    await folder.take(asked="control")
    folder.release()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("content", ["", "[]", "{", '{"control": 3}', '{"control": {"pid": "x", "started": 1}}'])
async def test_a_broken_list_of_children_stops_nobody(tmp_path, content):
    (tmp_path / "children.json").write_text(content)
    folder = OwnedFolder(tmp_path, SystemClock())
    await folder.take(asked="control")
    folder.release()


async def test_a_process_with_a_used_pid_is_left_alone(tmp_path):
    folder = OwnedFolder(tmp_path, SystemClock())
    folder.note({"node-1": os.getpid()})
    noted = read_json(tmp_path / "children.json")
    (tmp_path / "children.json").write_text(f'{{"node-1": {{"pid": {os.getpid()}, "started": 1.5}}}}')
    await folder.take(asked="control")  # would end this very process, were it taken for the child
    folder.release()
    assert noted["node-1"]["pid"] == os.getpid()


def test_a_log_is_kept_within_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 1000)
    path = tmp_path / "log"
    trim_log(path)
    with path.open("ab") as log:
        log.write(b"a" * 900)
        log.flush()
        trim_log(path)
        assert path.stat().st_size == 900
        log.write(b"b" * 900)
        log.flush()
        trim_log(path)
        assert path.read_bytes() == b""
        assert (tmp_path / "log.1").read_bytes() == b"b" * 500
        log.write(b"c")
        log.flush()
    assert path.read_bytes() == b"c"


def test_how_a_child_ended_in_words(tmp_path):
    killed = ChildExit("node-1", -9, "", tmp_path / "log")
    assert str(killed) == "node-1 was killed by signal 9"
    failed = ChildExit("control", 2, "line\nerror: x: must be y\n\nhint: try y\n", tmp_path / "log")
    assert failed.to_error().message == "control exited with code 2: error: x: must be y"


def test_loud_lines_are_shown_and_others_are_not(tmp_path):
    path = tmp_path / "log"
    path.write_text("2026-01-01T00:00:00.000Z WARNING shoal.x: before\n")
    tail = LoudLines(path)
    assert tail.read() == []
    with path.open("a") as log:
        log.write("2026-01-01T00:00:00.000Z INFO    shoal.x: quiet\n2026-01-01T00:00:00.000Z ERROR   shoal.x: lo")
        log.flush()
        assert tail.read() == []
        log.write("ud\x1b[2J\n2026-01-01T00:00:00.000Z WARNING shoal.y: mind\n")
    assert tail.read() == ["error: shoal.x: loud\N{REPLACEMENT CHARACTER}[2J", "warning: shoal.y: mind"]
    path.write_text("2026-01-01T00:00:00.000Z ERROR   shoal.x: after a cut\n")
    assert tail.read() == ["error: shoal.x: after a cut"]
    path.unlink()
    assert tail.read() == []

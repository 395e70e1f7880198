"""Scratch space: each run has its own, dead runs' goes, that of live ones stays."""

from __future__ import annotations

import fcntl
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.scratch import make_scratch
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.execution.flows import collect


def left_behind(root: Path, name: str = "run-dead") -> Path:
    """What a killed run leaves: a directory with files, and a lock that nobody holds."""
    root.mkdir(parents=True, exist_ok=True)
    (root / f"{name}.lock").touch()
    (root / name / "state").mkdir(parents=True)
    (root / name / "state" / "000001.sst").write_bytes(b"x" * 100)
    return root / name


def test_two_runs_have_two_directories_and_nothing_stays(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "scratch"
    one, other = make_scratch(str(root)), make_scratch(str(root))
    assert one.path != other.path
    (Path(one.path) / "a").mkdir()
    one.remove()
    assert Path(other.path).is_dir()
    assert not Path(one.path).exists()
    other.remove()
    assert list(tmp_path.rglob("*")) == [tmp_path / "deep"]


def test_what_dead_runs_left_is_removed_and_live_ones_keep_theirs(tmp_path: Path) -> None:
    alive = make_scratch(str(tmp_path))
    (Path(alive.path) / "file").touch()
    dead, foreign = left_behind(tmp_path), tmp_path / "something-else"
    foreign.mkdir()
    again = make_scratch(str(tmp_path))
    assert not dead.exists()
    assert not dead.with_suffix(".lock").exists()
    assert (Path(alive.path) / "file").exists()
    assert foreign.is_dir()
    again.remove()
    alive.remove()
    assert foreign.is_dir()


def test_a_lock_without_a_directory_is_removed_too(tmp_path: Path) -> None:
    """Its run was killed between the two."""
    (tmp_path / "run-x.lock").touch()
    make_scratch(str(tmp_path)).remove()
    assert not tmp_path.exists()


def test_one_that_is_swept_before_it_is_locked_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    others: list[int] = []
    real = tempfile.mkstemp

    def swept(**options: Any) -> tuple[int, str]:
        descriptor, name = real(**options)
        made.append(name)
        if len(made) == 1:
            Path(name).unlink()
        elif len(made) == 2:  # another one is about to remove it
            others.append(os.open(name, os.O_RDWR))
            fcntl.flock(others[0], fcntl.LOCK_EX)
        return descriptor, name

    monkeypatch.setattr("shoal.dataflow.execution.scratch.tempfile.mkstemp", swept)
    scratch = make_scratch(str(tmp_path))
    assert len(made) == 3
    assert scratch.path == made[2].removesuffix(".lock")
    scratch.remove()
    for other in others:
        os.close(other)


def test_without_a_place_it_is_this_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = make_scratch()
    mine = tmp_path / f"shoal-{os.geteuid()}"
    assert Path(scratch.path).parent == mine
    assert mine.stat().st_mode & 0o777 == 0o700
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"shoal-{os.geteuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    taken.symlink_to(elsewhere)
    scratch = make_scratch()
    assert Path(scratch.path).resolve().parent not in (taken, elsewhere)
    scratch.remove()
    assert sorted(tmp_path.iterdir()) == [elsewhere, taken]


def test_a_name_that_a_file_has_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"shoal-{os.geteuid()}"
    taken.touch()
    scratch = make_scratch()
    assert Path(scratch.path).parent != taken
    scratch.remove()
    assert list(tmp_path.iterdir()) == [taken]


def test_runs_that_begin_while_others_end_have_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one that ends takes the common directory with it, between the steps of the next."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def live(_number: int) -> int:
        for _ in range(200):
            make_scratch().remove()
        return 200

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(live, range(4))) == 800
    assert list(tmp_path.iterdir()) == []


class Peeking:
    """An operator that puts a file into its scratch directory."""

    def open(self, context: Any) -> None:
        self.place = Path(context.scratch)
        self.place.mkdir(parents=True)
        (self.place / "file").touch()

    def process_batch(self, batch: Any) -> Any:
        return batch.append_column("place", pa.array([str(self.place)] * batch.num_rows))


def test_a_flow_has_scratch_only_while_it_runs_and_only_if_it_may_use_it(tmp_path: Path) -> None:
    root = tmp_path / "scratch"
    settings = FlowSettings(scratch=str(root))
    rows = Stream.from_dicts([{"a": 1}])
    engine.run([collect(rows.node, "out")], settings=settings)
    assert not root.exists()
    dead = left_behind(root)
    stream = rows.apply(Peeking, schema={"a": "int64", "place": "string"})
    report = engine.run([collect(stream.node, "out")], settings=settings)
    (row,) = report.tables["out"].to_pylist()
    assert Path(row["place"]).is_relative_to(root)
    assert not dead.exists()
    assert not root.exists()

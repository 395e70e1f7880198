"""Records and files of the keeper."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.host import boot_id
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.files import KeeperFiles, write_whole
from shoal.runtimes.keeper.records import (
    ExitRecord,
    RunRecord,
    find_run_pids,
    load_records,
    read_keeper_pid,
    read_run_records,
    record_from_json,
    record_to_json,
    write_record,
)

RECORD = RunRecord(
    run_id="web-1",
    workload_id="web",
    boot_id="b",
    pid=7,
    start_time=99,
    started_at_ms=1_700_000_000_000,
    ports={"http": 8080},
    cgroups=("/sys/fs/cgroup/shoal/x/web-1",),
)


@pytest.fixture
def files(tmp_path: Path) -> KeeperFiles:
    made = KeeperFiles(tmp_path / "agent")
    made.make()
    return made


records = st.builds(
    RunRecord,
    run_id=st.text(min_size=1),
    workload_id=st.text(),
    boot_id=st.text(),
    pid=st.integers(0),
    start_time=st.integers(0),
    started_at_ms=st.integers(0),
    ports=st.dictionaries(st.text(), st.integers()),
    cgroups=st.lists(st.text()).map(tuple),
    at_most_one=st.booleans(),
    exit=st.none() | st.builds(ExitRecord, code=st.integers(), signal=st.integers(), unknown=st.booleans()),
    last_output=st.text(),
)


@given(records)
def test_a_record_survives_the_disk(record: RunRecord) -> None:
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record


def test_a_record_of_another_version_is_read() -> None:
    body = record_to_json(dataclasses.replace(RECORD, exit=ExitRecord(code=3)))
    body["of_tomorrow"] = body["exit"]["of_tomorrow"] = [1, 2]
    read = record_from_json(body)
    assert read.exit == ExitRecord(code=3)
    assert read.run_id == "web-1"


@pytest.mark.parametrize("body", [{}, {"run_id": "x"}, {**record_to_json(RECORD), "exit": 7}])
def test_what_is_no_record_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a run record"):
        record_from_json(body)


def test_records_are_loaded_and_broken_ones_named(files: KeeperFiles) -> None:
    write_record(files, RECORD)
    write_record(files, dataclasses.replace(RECORD, run_id="web-2"))
    files.record("torn").write_text('{"run_id": "to')
    loaded, broken = load_records(files)
    assert loaded == {"web-1": RECORD, "web-2": dataclasses.replace(RECORD, run_id="web-2")}
    assert broken == [files.record("torn")]
    assert len(read_run_records(files.data_dir)) == 2
    assert files.record("web-1").stat().st_mode & 0o777 == 0o600


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"one")
    write_whole(path, b"two" * 2000)
    assert path.read_bytes().rstrip() == b"two" * 2000
    assert path.stat().st_size % 4096 == 0
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_replaced_is_overwritten_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"x" * 5000)
    # The name of the new file is taken by a directory: as good as a disk without room for one.
    in_the_way = tmp_path / ".file.part"
    in_the_way.mkdir()
    write_whole(path, b"y" * 4000)
    assert path.read_bytes().rstrip() == b"y" * 4000
    with pytest.raises(IsADirectoryError):
        write_whole(path, b"z" * 9000)
    in_the_way.rmdir()
    assert path.read_bytes().rstrip() == b"y" * 4000


def test_nobody_keeps_an_empty_directory(tmp_path: Path) -> None:
    assert read_keeper_pid(tmp_path) is None
    assert read_run_records(tmp_path) == ()
    assert find_run_pids(tmp_path) == ()


def test_a_pid_that_was_given_to_somebody_else_is_no_keeper(files: KeeperFiles) -> None:
    ours = procfs.read_stat(os.getpid())
    assert ours is not None
    who = {"pid": os.getpid(), "start_time": ours.start_time, "boot_id": boot_id()}
    files.lock.write_text(json.dumps(who))
    assert read_keeper_pid(files.data_dir) == os.getpid()
    files.lock.write_text(json.dumps({**who, "start_time": ours.start_time + 1}))
    assert read_keeper_pid(files.data_dir) is None
    files.lock.write_text(json.dumps({**who, "boot_id": "another"}))
    assert read_keeper_pid(files.data_dir) is None
    files.lock.write_text("torn")
    assert read_keeper_pid(files.data_dir) is None


def test_a_process_of_another_boot_is_not_ours(files: KeeperFiles) -> None:
    ours = procfs.read_stat(os.getpid())
    assert ours is not None
    record = dataclasses.replace(RECORD, pid=os.getpid(), start_time=ours.start_time, boot_id=boot_id())
    write_record(files, record)
    assert find_run_pids(files.data_dir) == (os.getpid(),)
    write_record(files, dataclasses.replace(record, boot_id="another"))
    assert find_run_pids(files.data_dir) == ()


@pytest.mark.parametrize("name", ["sleep", "a b", "(sd-pam)", ") S 1 1 1 (", "tmux: server)"])
def test_a_stat_line_is_read_whatever_the_program_is_called(name: str) -> None:
    tail = "S 12 34 56 0 -1 4194560 1 2 3 4 100 50 7 3 20 0 1 0 987654 8192 25 18446744073709551615"
    stat = procfs.parse_stat(f"4711 ({name}) {tail}")
    assert (stat.pid, stat.state, stat.parent, stat.group, stat.session) == (4711, "S", 12, 34, 56)
    assert (stat.cpu_ticks, stat.start_time, stat.resident_pages) == (160, 987654, 25)
    assert stat.alive


def test_what_is_gone_is_none() -> None:
    beyond = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    assert procfs.read_stat(beyond) is None
    assert procfs.read_environ(beyond) == ()
    assert not procfs.is_running(beyond, 1)
    assert not procfs.kill_process(beyond, 1, 0)


def test_a_signal_reaches_only_the_process_that_was_meant() -> None:
    ours = procfs.read_stat(os.getpid())
    assert ours is not None
    assert procfs.kill_process(os.getpid(), ours.start_time, 0)
    assert not procfs.kill_process(os.getpid(), ours.start_time + 1, 0)

"""Files of a spec in a directory that the workload may write to."""

from __future__ import annotations

import pytest

from shoal.model.workloads import FailureReason, FileSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.work_files import put_files


def test_files_are_whole_and_read_only_and_replaced(tmp_path):
    put_files(tmp_path, [(FileSpec("etc/a.conf"), b"one"), (FileSpec("b", mode=0o400), b"")])
    assert (tmp_path / "etc/a.conf").read_bytes() == b"one"
    assert (tmp_path / "etc/a.conf").stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o400
    put_files(tmp_path, [(FileSpec("etc/a.conf"), b"two")])
    assert (tmp_path / "etc/a.conf").read_bytes() == b"two"
    assert sorted(path.name for path in (tmp_path / "etc").iterdir()) == ["a.conf"]


def test_no_link_leads_out_of_the_directory(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    (work / "etc").symlink_to(outside)
    with pytest.raises(RunError) as raised:
        put_files(work, [(FileSpec("etc/passwd"), b"x")])
    assert raised.value.failure is FailureReason.STORAGE_ERROR
    assert list(outside.iterdir()) == []
    (outside / "kept").write_text("kept")
    (work / "a").symlink_to(outside / "kept")
    put_files(work, [(FileSpec("a"), b"own")])
    assert (outside / "kept").read_text() == "kept"
    assert (work / "a").read_bytes() == b"own"


@pytest.mark.parametrize(("given", "found"), [(0o444, 0o400), (0o404, 0o400), (0o440, 0o440), (0o500, 0o500)])
def test_a_secret_is_not_open_to_all_users_of_the_node(tmp_path, given, found):
    put_files(tmp_path, [(FileSpec("key", secret="web-key", mode=given), b"value")])
    assert (tmp_path / "key").stat().st_mode & 0o777 == found

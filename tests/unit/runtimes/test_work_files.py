"""Files of a spec in a directory that the workload may write to."""

from __future__ import annotations

import errno
import os

import pytest

from shoal.model.workloads import ArtifactSpec, FailureReason, FileSpec
from shoal.runtimes import work_files
from shoal.runtimes.base import RunError
from shoal.runtimes.work_files import link_artifacts, put_files


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


def artifact(tmp_path, content: bytes, name: str = "blob"):
    source = tmp_path / name
    source.write_bytes(content)
    source.chmod(0o444)
    return ArtifactSpec("0" * 64, "lib/code.zip"), source


def test_artifacts_are_linked_read_only_and_replaced(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    one = artifact(tmp_path, b"one")
    for _ in range(2):  # once more is the same
        link_artifacts(work, [one])
        found = work / "lib/code.zip"
        assert found.read_bytes() == b"one"
        assert found.stat().st_mode & 0o777 == 0o444
        assert found.stat().st_ino == one[1].stat().st_ino
    one[1].unlink()
    assert found.read_bytes() == b"one", "the cache may let go of it"
    link_artifacts(work, [artifact(tmp_path, b"two", "other")])
    assert found.read_bytes() == b"two"
    assert [path.name for path in (work / "lib").iterdir()] == ["code.zip"]


def test_an_artifact_is_copied_to_another_file_system(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(work_files.os, "link", refuse)
    work = tmp_path / "work"
    work.mkdir()
    link_artifacts(work, [artifact(tmp_path, b"one")])
    assert (work / "lib/code.zip").read_bytes() == b"one"
    assert (work / "lib/code.zip").stat().st_mode & 0o777 == 0o444


def test_no_link_leads_an_artifact_out_of_the_directory(tmp_path):
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (work / "lib").symlink_to(outside)
    with pytest.raises(RunError) as raised:
        link_artifacts(work, [artifact(tmp_path, b"one")])
    assert raised.value.failure is FailureReason.STORAGE_ERROR
    assert list(outside.iterdir()) == []
    with pytest.raises(RunError):
        link_artifacts(work, [(ArtifactSpec("0" * 64, "gone"), tmp_path / "gone")])

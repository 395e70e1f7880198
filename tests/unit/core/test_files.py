from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from shoal.core import files
from shoal.core.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.core.filesystems import typed_errors
from shoal.testing.suites.files import FilesSuite


class TestLocal(FilesSuite):
    __test__ = True

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestLocalByUrl(FilesSuite):
    __test__ = True

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}"


class TestMemory(FilesSuite):
    __test__ = True

    @pytest.fixture
    def root(self) -> str:
        return f"memory://{uuid.uuid4().hex}"


class ElsewhereFileSystem(LocalFileSystem):
    """A file system that is neither this machine's nor an object store, as HDFS and SFTP are."""

    protocol = "elsewhere"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("elsewhere://"))


class TestElsewhere(FilesSuite):
    __test__ = True

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        fsspec.register_implementation("elsewhere", ElsewhereFileSystem, clobber=True)
        return f"elsewhere://{tmp_path}"


# ---------------------------------------------------------------------------------------------------------
# Paths


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a", True),
        ("hdfs:/a", True),
        ("hdfs:///a", True),
        ("hdfs://host:8020/a", True),
        ("s3://bucket/a", True),
        ("memory://a", True),
        ("a/b", False),
        ("", False),
        ("./a", False),
        ("s3:/a", False),
        ("a/s3://b", False),
    ],
)
def test_is_absolute(path: str, expected: bool) -> None:
    assert files.is_absolute(path) is expected


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("a", "b", "c"), "a/b/c"),
        (("/", "a"), "/a"),
        (("a/", "b"), "a/b"),
        (("a", ""), "a"),
        (("", "a"), "a"),
        (("s3://bucket", "a"), "s3://bucket/a"),
        (("memory://", "a"), "memory://a"),
        (("/base", "/a"), "/a"),
        (("/base", "hdfs:/a"), "hdfs:/a"),
        (("s3://bucket/a", "s3://other/b", "c"), "s3://other/b/c"),
    ],
)
def test_join(parts: tuple[str, ...], expected: str) -> None:
    assert files.join(*parts) == expected


@pytest.mark.parametrize(
    ("path", "parent", "name"),
    [
        ("/a/b", "/a", "b"),
        ("/a", "/", "a"),
        ("/", "/", ""),
        ("a", ".", "a"),
        ("a/b/", "a", "b"),
        ("s3://bucket/a/b", "s3://bucket/a", "b"),
        ("s3://bucket/a", "s3://bucket", "a"),
        ("s3://bucket", "s3://bucket", ""),
        ("hdfs:/a/b", "hdfs:///a", "b"),
        ("hdfs:/a", "hdfs:///", "a"),
        ("hdfs://host:8020/a", "hdfs://host:8020", "a"),
        ("memory://a/b", "memory://a", "b"),
        ("memory://a", "memory://", "a"),
    ],
)
def test_parent_and_name(path: str, parent: str, name: str) -> None:
    assert files.parent(path) == parent
    assert files.name(path) == name


@pytest.mark.parametrize("path", ["/x/y", "hdfs:///x/y", "s3://bucket/y", "memory://x/y", "x/y"])
def test_a_parent_joined_with_a_name_is_the_path(path: str) -> None:
    assert files.join(files.parent(path), files.name(path)) == path


def test_a_relative_path_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_atomic("d/a", b"1")
    assert (tmp_path / "d" / "a").read_bytes() == b"1"
    assert [entry.path for entry in files.list_files("d")] == ["d/a"]


def test_colons_in_a_local_name_are_letters_like_others(tmp_path: Path) -> None:
    path = str(tmp_path / "a::b")
    files.write_atomic(path, b"1")
    assert files.read_bytes(path) == b"1"


@pytest.mark.parametrize("path", ["", "a\x00b"])
def test_no_path_at_all(path: str) -> None:
    with pytest.raises(InvalidError):
        files.exists(path)


# ---------------------------------------------------------------------------------------------------------
# Drivers


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises(UnsupportedError) as raised:
        files.read_bytes("gopher://host/a")
    assert "gopher" in raised.value.message
    assert "s3" in raised.value.hint


def test_a_driver_that_is_not_installed_is_named(tmp_path: Path) -> None:
    # A real interpreter in which s3fs cannot be imported.
    code = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from shoal.core import files, errors\n"
        "try: files.read_bytes('s3://bucket/a')\n"
        "except errors.UnsupportedError as error: print(error.hint)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install s3fs" in answer.stdout


# ---------------------------------------------------------------------------------------------------------
# The local disk


def test_a_written_file_keeps_the_mode_of_the_one_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o600)
    files.write_atomic(str(path), b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_writing_through_a_link_replaces_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("real")
    files.write_atomic(str(link), b"new")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_removing_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to("real")
    assert [files.name(entry.path) for entry in files.list_files(str(tmp_path / "link"))] == ["a"]
    files.remove(str(tmp_path / "link"), recursive=True)
    assert (tmp_path / "real" / "a").exists()
    assert not (tmp_path / "link").exists()


def test_what_killed_writers_left_is_taken_up_again(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    files.write_atomic(path, b"old")
    code = (
        "import os, signal, sys\n"
        "from shoal.core import files\n"
        "file = files.open_file(sys.argv[1], 'wb')\n"
        "file.write(b'x' * 100_000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", code, path], check=False)
        assert ended.returncode == -signal.SIGKILL
    assert files.read_bytes(path) == b"old"
    assert [entry.path for entry in files.list_files(str(tmp_path))] == [path]
    assert len(list(tmp_path.iterdir())) == 2
    files.write_atomic(path, b"new")
    assert files.read_bytes(path) == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_a_part_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".state.0.part").symlink_to(victim)
    os.link(victim, tmp_path / ".state.1.part")
    (tmp_path / ".state.2.part").mkdir()
    files.write_atomic(path, b"new")
    assert files.read_bytes(path) == b"new"
    assert victim.read_bytes() == b"precious"


def test_a_file_that_outgrows_what_is_allowed(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    files.write_atomic(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(ExhaustedError) as raised:
            files.write_atomic(path, b"x" * 1024 * 1024)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.facts["path"] == path
    assert files.read_bytes(path) == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(PreconditionError):
        files.write_atomic(str(tmp_path / "a" / "b" / "c"), b"1")
    with pytest.raises(PreconditionError):
        files.make_directory(str(tmp_path / "a"))
    (tmp_path / "d").mkdir()
    with pytest.raises(PreconditionError):
        files.write_atomic(str(tmp_path / "d"), b"1")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ExhaustedError),
        (OSError(errno.EDQUOT, "Quota exceeded"), ExhaustedError),
        (OSError(errno.EROFS, "Read-only file system"), DeniedError),
        (PermissionError(errno.EACCES, "Permission denied"), DeniedError),
        (PermissionError("Access Denied"), DeniedError),
        (FileNotFoundError("The specified bucket does not exist"), NotFoundError),
        (OSError(errno.EXDEV, "Invalid cross-device link"), InvalidError),
        (OSError(errno.ENAMETOOLONG, "File name too long"), InvalidError),
        (OSError(errno.EIO, "Input/output error"), UnavailableError),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), UnavailableError),
        (TimeoutError(), UnavailableError),
        (NotImplementedError(), UnsupportedError),
        (ValueError("Attempt to open non key-like path"), InvalidError),
        (RuntimeError("some driver"), UnavailableError),
    ],
)
def test_errors_of_drivers_become_ours(raised: Exception, expected: type[ShoalError]) -> None:
    with pytest.raises(ShoalError) as caught, typed_errors("s3://bucket/a"):
        raise raised
    assert type(caught.value) is expected
    assert "s3://bucket/a" in str(caught.value)
    assert caught.value.__cause__ is raised


def test_bugs_stay_bugs() -> None:
    with pytest.raises(TypeError), typed_errors("a"):
        raise TypeError("a bug")

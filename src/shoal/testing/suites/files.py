"""What every file system behind `shoal.core.files` promises.

A test module makes a subclass per backend and overrides the fixture `root`:

    class TestMemory(FilesSuite):
        __test__ = True

        @pytest.fixture
        def root(self) -> str:
            return "memory://somewhere"
"""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from shoal.core import files
from shoal.core.errors import ExhaustedError, InvalidError, NotFoundError, PreconditionError

_BIG = bytes(range(256)) * 4 * 1024


class FilesSuite:
    """Conformance of a file system."""

    __test__ = False

    @pytest.fixture
    def root(self) -> str:
        """A directory of the backend that is empty and this test's own."""
        raise NotImplementedError

    def test_what_was_written_is_read_back(self, root: str) -> None:
        path = files.join(root, "a.bin")
        for content in (b"", b"one", _BIG, b"two"):
            files.write_atomic(path, content)
            assert files.read_bytes(path) == content
            assert files.size(path) == len(content)
        assert files.exists(path)

    def test_directories_above_are_made_as_needed(self, root: str) -> None:
        path = files.join(root, "x", "y", "z.bin")
        files.write_atomic(path, b"deep")
        assert files.read_bytes(path) == b"deep"
        assert files.exists(files.join(root, "x", "y"))

    def test_making_a_directory_twice_is_making_it_once(self, root: str) -> None:
        directory = files.join(root, "made", "here")
        files.make_directory(directory)
        files.make_directory(directory)
        assert files.list_files(directory) == ()
        files.write_atomic(files.join(directory, "a"), b"1")
        files.make_directory(directory)
        assert files.read_bytes(files.join(directory, "a")) == b"1"

    def test_a_missing_file_is_not_found(self, root: str) -> None:
        path = files.join(root, "missing", "file")
        assert not files.exists(path)
        for call in (files.size, files.read_bytes, files.remove, files.open_file):
            with pytest.raises(NotFoundError) as raised:
                call(path)
            assert raised.value.facts["name"] == path
        with pytest.raises(NotFoundError):
            files.rename(path, files.join(root, "other"))

    def test_a_missing_directory_lists_as_empty(self, root: str) -> None:
        assert files.list_files(files.join(root, "missing")) == ()
        assert files.list_files(files.join(root, "missing"), recursive=True) == ()

    def test_a_listing_is_sorted_and_can_be_used(self, root: str) -> None:
        for each in ("b", "a", "d/e/f", "d/g", "c with space"):
            files.write_atomic(files.join(root, each), each.encode())
        listed = files.list_files(root)
        assert [files.name(entry.path) for entry in listed] == ["a", "b", "c with space", "d"]
        assert [entry.is_directory for entry in listed] == [False, False, False, True]
        assert [entry.size for entry in listed] == [1, 1, 12, 0]
        assert files.read_bytes(listed[0].path) == b"a"
        assert [entry.path for entry in files.list_files(listed[3].path)] == [
            files.join(root, "d", "e"),
            files.join(root, "d", "g"),
        ]
        deep = files.list_files(root, recursive=True)
        assert [entry.path for entry in deep] == [
            files.join(root, each) for each in ("a", "b", "c with space", "d/e/f", "d/g")
        ]
        assert not any(entry.is_directory for entry in deep)

    def test_a_name_that_begins_like_another_is_another(self, root: str) -> None:
        files.write_atomic(files.join(root, "part", "x"), b"1")
        files.write_atomic(files.join(root, "part-2", "y"), b"2")
        assert [entry.path for entry in files.list_files(files.join(root, "part"), recursive=True)] == [
            files.join(root, "part", "x")
        ]

    def test_a_file_is_no_directory(self, root: str) -> None:
        path = files.join(root, "a")
        files.write_atomic(path, b"1")
        with pytest.raises(PreconditionError):
            files.list_files(path)

    def test_a_directory_is_no_file(self, root: str) -> None:
        files.write_atomic(files.join(root, "d", "a"), b"1")
        directory = files.join(root, "d")
        for call in (files.size, files.read_bytes, files.remove):
            with pytest.raises(PreconditionError):
                call(directory)
        assert files.read_bytes(files.join(directory, "a")) == b"1"

    def test_rename_replaces_a_file(self, root: str) -> None:
        source, target = files.join(root, "a"), files.join(root, "new", "b")
        files.write_atomic(source, b"1")
        files.rename(source, target)
        assert not files.exists(source)
        assert files.read_bytes(target) == b"1"
        files.write_atomic(source, b"2")
        files.rename(source, target)
        assert not files.exists(source)
        assert files.read_bytes(target) == b"2"

    def test_rename_moves_a_directory_to_where_nothing_is(self, root: str) -> None:
        for each in ("d/a", "d/e/f"):
            files.write_atomic(files.join(root, each), each.encode())
        files.rename(files.join(root, "d"), files.join(root, "g"))
        assert [entry.path for entry in files.list_files(root, recursive=True)] == [
            files.join(root, "g", "a"),
            files.join(root, "g", "e", "f"),
        ]
        files.write_atomic(files.join(root, "h", "x"), b"1")
        with pytest.raises(PreconditionError):
            files.rename(files.join(root, "g"), files.join(root, "h"))
        with pytest.raises(PreconditionError):
            files.rename(files.join(root, "g", "a"), files.join(root, "h"))

    def test_rename_does_not_cross_file_systems(self, root: str, tmp_path: Path) -> None:
        path = files.join(root, "a")
        files.write_atomic(path, b"1")
        elsewhere = str(tmp_path / "b") if root.startswith("memory:") else "memory://elsewhere/b"
        with pytest.raises(InvalidError):
            files.rename(path, elsewhere)
        assert files.read_bytes(path) == b"1"

    def test_remove(self, root: str) -> None:
        for each in ("a", "d/a", "d/e/f"):
            files.write_atomic(files.join(root, each), b"1")
        files.remove(files.join(root, "a"))
        assert not files.exists(files.join(root, "a"))
        files.remove(files.join(root, "d"), recursive=True)
        assert files.list_files(root, recursive=True) == ()
        assert not files.exists(files.join(root, "d"))

    def test_reading_in_pieces(self, root: str) -> None:
        path = files.join(root, "lines")
        files.write_atomic(path, b"first\nsecond\nthird")
        with files.open_file(path) as file:
            assert file.readable()
            assert not file.writable()
            assert file.read(5) == b"first"
            assert file.tell() == 5
            file.seek(6)
            assert list(file) == [b"second\n", b"third"]
            assert file.read() == b""
            file.seek(0)
            assert file.readline(3) == b"fir"
            assert file.readline(100) == b"st\n"
            with pytest.raises(io.UnsupportedOperation):
                file.write(b"x")
        with io.TextIOWrapper(files.open_file(path), encoding="utf-8") as text:
            assert text.read().splitlines() == ["first", "second", "third"]

    def test_two_readers_do_not_disturb_each_other(self, root: str) -> None:
        path = files.join(root, "a")
        files.write_atomic(path, b"0123456789")
        with files.open_file(path) as one, files.open_file(path) as two:
            assert one.read(5) == b"01234"
            assert two.read(5) == b"01234"
            assert one.read() == b"56789"
            assert two.read() == b"56789"

    def test_a_limit_bounds_what_is_read(self, root: str) -> None:
        path = files.join(root, "a")
        files.write_atomic(path, b"12345")
        assert files.read_bytes(path, limit=5) == b"12345"
        with pytest.raises(ExhaustedError) as raised:
            files.read_bytes(path, limit=4)
        assert raised.value.facts["path"] == path

    def test_a_file_appears_when_it_is_closed(self, root: str) -> None:
        path = files.join(root, "d", "a")
        with files.open_file(path, "wb") as file:
            assert file.writable()
            file.write(b"one ")
            assert not files.exists(path)
            assert files.list_files(files.join(root, "d")) == ()
            file.write(b"two")
        assert files.read_bytes(path) == b"one two"
        with files.open_file(path, "wb") as file:
            file.write(b"three")
            assert files.read_bytes(path) == b"one two"
        assert files.read_bytes(path) == b"three"
        assert [entry.path for entry in files.list_files(root, recursive=True)] == [path]

    @pytest.mark.parametrize("written", [10, 12 * 1024 * 1024])
    def test_an_error_while_writing_leaves_the_old_file(self, root: str, written: int) -> None:
        path = files.join(root, "a")
        files.write_atomic(path, b"old")
        with pytest.raises(ZeroDivisionError), files.open_file(path, "wb") as file:
            file.write(b"x" * written)
            raise ZeroDivisionError
        assert files.read_bytes(path) == b"old"
        assert [entry.path for entry in files.list_files(root, recursive=True)] == [path]

    def test_a_forgotten_file_does_not_appear(self, root: str) -> None:
        path = files.join(root, "a")
        file = files.open_file(path, "wb")
        file.write(b"half")
        del file
        assert not files.exists(path)

    def test_a_large_file_is_written_and_read(self, root: str) -> None:
        path = files.join(root, "large")
        with files.open_file(path, "wb") as file:
            for _ in range(12):
                file.write(_BIG)
        assert files.size(path) == 12 * len(_BIG)
        with files.open_file(path) as file:
            file.seek(11 * len(_BIG))
            assert file.read(len(_BIG)) == _BIG
            assert file.read(1) == b""

    def test_readers_see_a_whole_file_while_many_write(self, root: str) -> None:
        path = files.join(root, "busy")
        contents = [bytes([letter]) * 50_000 for letter in b"abcd"]
        files.write_atomic(path, contents[0])
        errors: list[BaseException] = []

        def write(content: bytes) -> None:
            try:
                for _ in range(5):
                    files.write_atomic(path, content)
            except BaseException as error:
                errors.append(error)
                raise

        writers = [threading.Thread(target=write, args=(content,)) for content in contents]
        for writer in writers:
            writer.start()
        seen = set()
        while any(writer.is_alive() for writer in writers):
            seen.add(files.read_bytes(path))
        for writer in writers:
            writer.join()
        seen.add(files.read_bytes(path))
        assert errors == []
        assert seen <= set(contents)
        assert [entry.path for entry in files.list_files(root, recursive=True)] == [path]

    def test_an_unknown_mode_is_refused(self, root: str) -> None:
        with pytest.raises(InvalidError):
            files.open_file(files.join(root, "a"), "r+b")

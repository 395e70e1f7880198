"""The state files of a job, through `shoal.core.files`: written once, never changed, read by the piece.

    <directory>/<job>/state/000000000012-000003-1.0.state

A name has the checkpoint that needs the file first, the epoch of the run that wrote it, and the task; so nothing that
an earlier run still writes can take the place of a file in use. Called by `shoal.dataflow.checkpoint.uploads`, by
`storage`, which removes files that are no longer needed, and by tasks that restore.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from shoal.core import files
from shoal.core.errors import NotFoundError, ShoalError
from shoal.core.filesystems import typed_errors
from shoal.dataflow.checkpoint import statefile
from shoal.dataflow.checkpoint.copies import LocalCopies
from shoal.dataflow.checkpoint.handles import Chain, FileHandle
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.statefile import Body, FileReader, ReadAt, StepIndex
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.operators.base import OperatorState
from shoal.dataflow.state.tables import Tables, merge_tables

T = TypeVar("T")

_FOLDER = "state"
#: Bytes that are written at once, at least, while there are more.
_LEAST_WRITE = 256 * 1024
#: Bytes of a file in parts that wait in memory; more wait on disk.
_MOST_SPOOLED = 16 * 1024 * 1024
_NAME = re.compile(r"([0-9]{12,20})-([0-9]{6,20})-([0-9]{1,10}\.[0-9]{1,10})(-merged)?\.state")


def file_name(checkpoint: int, epoch: int, task: TaskId, *, is_merged: bool = False) -> str:
    """The name of a state file."""
    return f"{checkpoint:012d}-{epoch:06d}-{task}{'-merged' if is_merged else ''}.state"


def is_file_name(name: str) -> bool:
    """Whether it is one."""
    return _NAME.fullmatch(name) is not None


def _gathered(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Small pieces together: a write costs the lock of the interpreter, which the task needs."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _LEAST_WRITE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


class StateStore:
    """The state files of one job; with `copies`, what is written is copied there, and read there."""

    def __init__(self, base: str, copies: LocalCopies | None = None) -> None:
        self._folder = files.join(base, _FOLDER)
        self._copies = copies
        #: Of files that were opened or written: what is where, and where their pieces begin.
        self._opened: dict[str, tuple[dict[str, StepIndex], int]] = {}

    def write(self, name: str, state: Mapping[str, OperatorState]) -> FileHandle:
        """Write a file; nobody reads it before a manifest names it."""
        pieces, checksum = statefile.encode(state)
        self._put(name, _gathered(pieces))
        return self._note(name, pieces[0], sum(map(len, pieces)), checksum)

    def write_parts(self, name: str, state: Mapping[str, Iterable[OperatorState]]) -> FileHandle:
        """Write a file from the state of steps in parts, of some key groups each; one part at a time is in memory.

        Raises `UnlikePartsError`.
        """
        # The header comes first and has the places of all pieces, so these wait in a file of their own.
        with tempfile.SpooledTemporaryFile(_MOST_SPOOLED) as spool:

            def put(piece: bytes) -> None:
                with typed_errors(tempfile.gettempdir()):  # it may be full
                    spool.write(piece)

            body = Body(put)
            for uid, parts in state.items():
                for part in parts:
                    body.add(uid, part)
            start, checksum = body.start()
            with typed_errors(tempfile.gettempdir()):
                spool.seek(0)
            rest = iter(lambda: spool.read(_LEAST_WRITE), b"")
            self._put(name, itertools.chain([start], rest))
        return self._note(name, start, len(start) + body.size, checksum)

    def _put(self, name: str, content: Iterable[bytes]) -> None:
        copy = None if self._copies is None else self._copies.begin(self, name)
        try:
            with files.open_file(files.join(self._folder, name), "wb") as file:
                for part in content:
                    file.write(part)
                    if copy is not None:
                        copy.write(part)
            if copy is not None:
                copy.finish()
        finally:
            if copy is not None:
                copy.give_up()

    def _note(self, name: str, start: bytes, size: int, checksum: int) -> FileHandle:
        """Remember what is where of a file that was written."""
        handle = FileHandle(name, size, checksum)
        self._opened[name] = statefile.decode_header(start[statefile.START :], handle), len(start)
        return handle

    def index(self, handle: FileHandle) -> dict[str, StepIndex]:
        """What is where in a file, by step."""
        return self._from_copy_or_file(handle, lambda: self._open(handle)[0])

    def verify(self, handle: FileHandle) -> None:
        """Read all of a file, and hold it against its checksums. Raises `CheckpointError`."""
        steps, _body = self._open(handle)
        with self._reader(handle) as reader:
            for step in steps.values():
                reader.piece(step.shared)
                pieces = [step.whole, *(part for table in step.tables.values() for part in (table.rows, table.gone))]
                for places in pieces:
                    for place in places.values():
                        reader.piece(place)

    def read_shared(self, handle: FileHandle) -> dict[str, bytes]:
        """What belongs to no key, by step."""
        with self._reader(handle) as reader:
            return {uid: reader.piece(step.shared) for uid, step in self.index(handle).items()}

    def read_chain(self, uid: str, chain: Chain, handles: Mapping[str, FileHandle]) -> OperatorState:
        """The keyed state of a step, from the key groups that its links say and no others."""
        keyed: dict[int, bytes] = {}
        layers = []
        for link in chain:
            found, tables = self._read_link(uid, handles[link.file], link.first, link.end)
            keyed.update(found)
            layers.append(tables)
        return OperatorState(keyed, tables=merge_tables(layers))

    def merge_links(self, uid: str, chain: Chain, handles: Mapping[str, FileHandle], *, keep_gone: bool) -> Tables:
        """Some neighbors of a chain as one; `keep_gone` when there are older ones."""
        layers = [self._read_link(uid, handles[link.file], link.first, link.end)[1] for link in chain]
        return merge_tables(layers, keep_gone=keep_gone)

    def list_names(self) -> list[str]:
        """The files that there are."""
        found = (files.name(entry.path) for entry in files.list_files(self._folder))
        return [name for name in found if is_file_name(name)]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that nobody needs."""
        for name in names:
            self._opened.pop(name, None)
            try:
                files.remove(files.join(self._folder, name))
            except NotFoundError:
                continue

    def forget(self, needed: Iterable[str]) -> None:
        """Remember what is where of these files only."""
        kept = set(needed)
        for name in [name for name in self._opened if name not in kept]:
            self._opened.pop(name, None)
        if self._copies is not None:
            self._copies.need(self, kept)

    def _read_link(self, uid: str, handle: FileHandle, first: int, end: int) -> tuple[dict[int, bytes], Tables]:
        return self._from_copy_or_file(handle, lambda: self._read_groups(uid, handle, first, end))

    def _from_copy_or_file(self, handle: FileHandle, read: Callable[[], T]) -> T:
        """Read from the copy if there is one; from the file, if the copy is no good."""
        try:
            return read()
        except ShoalError:
            if self._copies is None or not self._copies.drop(handle.name):
                raise
            return read()

    def _place(self, handle: FileHandle) -> str:
        copy = None if self._copies is None else self._copies.find(handle.name, handle.size)
        return copy or files.join(self._folder, handle.name)

    def _read_groups(self, uid: str, handle: FileHandle, first: int, end: int) -> tuple[dict[int, bytes], Tables]:
        index = self._open(handle)[0].get(uid)
        if index is None:
            raise CheckpointError(f"{handle.name} has nothing of {uid!r}, and a checkpoint says that it has")
        with self._reader(handle) as reader:
            return reader.whole_groups(index, first, end), reader.tables(index, first, end)

    @contextlib.contextmanager
    def _reader(self, handle: FileHandle) -> Iterator[FileReader]:
        _steps, body = self._open(handle)
        with _opened(self._place(handle)) as read_at:
            yield FileReader(handle.name, body, read_at)

    def _open(self, handle: FileHandle) -> tuple[dict[str, StepIndex], int]:
        known = self._opened.get(handle.name)
        if known is not None:
            return known
        path = self._place(handle)
        try:
            size = files.size(path)
        except NotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        if size != handle.size:
            raise CheckpointError(f"{path} is torn: it has {size} bytes of {handle.size}")
        with _opened(path) as read_at:
            length = statefile.header_size(read_at(0, statefile.START), handle.name)
            header = read_at(statefile.START, min(length, size))
        found = statefile.decode_header(header, handle), statefile.START + length
        self._opened[handle.name] = found
        return found


def number_of(name: str) -> int:
    """The checkpoint that needs a file first."""
    found = _NAME.fullmatch(name)
    return 0 if found is None else int(found[1])


@contextlib.contextmanager
def _opened(path: str) -> Iterator[ReadAt]:
    """Read a file at several places; it is opened once."""
    try:
        file = files.open_file(path)
    except NotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    with file:

        def read_at(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size) if size else b""

        yield read_at

"""Files as sinks: Parquet, CSV and JSON lines. A file appears under its name when it is committed, by a rename.

A path that ends as a file does is that file, written by one task when all rows have come; one that is there is not
replaced unless the sink was told to. Every other path is a directory, to which each run adds files. Those being
written, and those that wait for their checkpoint, lie in its `.pending`, which no reader looks into; the coordinator
moves them out (`shoal.dataflow.connectors.files.commits`). Called by tasks through `shoal.dataflow.execution.sinks`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from shoal.core import files
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError, problem
from shoal.core.filesystems import locate
from shoal.dataflow.connectors.base import CommitContext, SinkContext, SinkMode
from shoal.dataflow.connectors.files.commits import PENDING, FilesCommitter, Move, encode_moves, remove_leftovers
from shoal.dataflow.connectors.files.folders import folder_name, with_partition_types
from shoal.dataflow.language.elements import Batch, Schema
from shoal.topics.codecs.forms import writable

#: Rows of a row group, about.
_GROUP_ROWS = 131_072
#: A file that has grown to so many bytes in memory is closed, and the next begun.
_ROLL_BYTES = 256 * 1024 * 1024
#: How many files of different partitions are written at once.
_MOST_OPEN = 64
#: Without checkpoints a file is closed, and seen, so many microseconds after it was begun.
_ROLL_MICROS = 30_000_000


class FileFormat(Protocol):
    """Writes batches into one open file."""

    def write(self, batch: Batch) -> None:
        """Rows."""
        ...

    def close(self) -> None:
        """Write what is left, and what a format has at its end."""
        ...


MakeFormat = Callable[[Any, Schema], FileFormat]


class _ParquetFormat:
    def __init__(self, file: Any, schema: Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema)
        self._waiting: list[Batch] = []
        self._rows = 0

    def write(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if waiting:
            self._writer.write_table(pa.Table.from_batches(waiting, schema=self._schema))

    def close(self) -> None:
        try:
            self._write_group()
        finally:  # else it would write its end when it is collected, into a file that is gone by then
            self._writer.close()


class _CsvFormat:
    def __init__(self, file: Any, schema: Schema) -> None:
        self._writer = pa_csv.CSVWriter(file, schema)

    def write(self, batch: Batch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _LinesFormat:
    def __init__(self, file: Any, schema: Schema) -> None:
        self._file = file

    def write(self, batch: Batch) -> None:
        from arro3.io import write_ndjson

        rows, has_nulls = writable(batch)
        write_ndjson(pa.Table.from_batches([rows]), self._file, explicit_nulls=has_nulls)

    def close(self) -> None:
        """A line ends with itself."""


@dataclass(frozen=True, slots=True)
class _FileSink:
    """What the three kinds have in common."""

    path: str
    #: Whether a file that is there already is replaced; for a path of one file.
    overwrite: bool = field(default=False, kw_only=True)

    suffix: ClassVar[str] = ""
    #: How a path ends that is one file, not a folder.
    endings: ClassVar[tuple[str, ...]] = ()

    @property
    def is_one_file(self) -> bool:
        """Whether the path means a file. An existing folder of that name stays one."""
        return self.path.endswith(self.endings) and not _is_folder(self.path)

    @property
    def modes(self) -> frozenset[SinkMode]:
        """Rows in files stay."""
        return frozenset({SinkMode.APPEND})

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return self.path

    def _writer(
        self, make: MakeFormat, schema: Schema | None, context: SinkContext, partition_by: tuple[str, ...] = ()
    ) -> FilesWriter:
        # Once more, when the task begins: what was fine before the run may be taken by now.
        self.check_place()
        self.check_run(parallelism=context.parallelism, has_checkpoints=context.has_checkpoints)
        if not context.has_checkpoints and not self._is_single and not context.subtask:
            remove_leftovers(files.join(self.path, PENDING), context.job, context.sink, has_checkpoints=False)
        return FilesWriter(
            self.path, self.suffix, make, context, schema=schema, partition_by=partition_by, is_single=self._is_single
        )

    def open_committer(self, context: CommitContext) -> FilesCommitter:
        """The coordinator's end."""
        return FilesCommitter(self.path, context)

    @property
    def _folders(self) -> tuple[str, ...]:
        """The columns that make folders of their values."""
        return ()

    @property
    def _is_single(self) -> bool:
        return self.is_one_file and not self._folders

    def check_place(self) -> None:
        """Refuse a place that cannot be written. Asked before a run, and again when a task begins to write."""
        if self._is_single:
            self._check_file()
        elif _is_file(self.path):
            hint = f"name a folder; or one file, which ends in {' or '.join(self.endings)}"
            if self._folders:
                hint = "name a folder: partition_by makes folders in it"
            raise PreconditionError(f"{self.path} is a file, and the sink needs a folder", hint=hint, path=self.path)
        elif self.overwrite:
            rule = "is a folder, and overwrite=True is for one file: a folder keeps what is in it"
            raise PreconditionError(f"{self.path} {rule}", hint="remove the folder first", path=self.path)
        _check_above(self.path)

    def check_run(self, *, parallelism: int, has_checkpoints: bool) -> None:
        """Refuse a run for which one file is the wrong place."""
        if not self._is_single:
            return
        stem = self.path[: -len(next(each for each in self.endings if self.path.endswith(each)))]
        folder = f'write to a folder instead, such as "{stem}/"'
        if has_checkpoints:
            rule = "is one file, and a run with checkpoints (endless, or exactly once) adds a file with each of them"
            raise PreconditionError(f"{self.path} {rule}", hint=folder, path=self.path)
        if parallelism != 1:
            rule = f"is one file, and {parallelism} tasks cannot write it together"
            raise PreconditionError(
                f"{self.path} {rule}", hint=f"leave out with_parallelism; or {folder}", path=self.path
            )

    def _check_file(self) -> None:
        """Refuse to replace a file that may be precious."""
        if not self.overwrite and _is_file(self.path) and files.size(self.path):
            rule = "is there already, and would be replaced"
            hint = "say overwrite=True to replace it, or choose another name"
            raise PreconditionError(f"{self.path} {rule}", hint=hint, path=self.path)


@dataclass(frozen=True, slots=True)
class ParquetSink(_FileSink):
    """Parquet files, in directories `column=value` for the columns of `partition_by`."""

    partition_by: tuple[str, ...] = ()

    suffix: ClassVar[str] = ".parquet"
    endings: ClassVar[tuple[str, ...]] = (".parquet",)

    @property
    def _folders(self) -> tuple[str, ...]:
        return tuple(self.partition_by)

    @property
    def named_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns that rows must have, by the argument that names them. Checked when a plan is prepared."""
        return {"partition_by": tuple(self.partition_by)}

    def open_writer(self, schema: Schema | None, context: SinkContext) -> FilesWriter:
        """Begin to write."""
        return self._writer(_ParquetFormat, schema, context, tuple(self.partition_by))


@dataclass(frozen=True, slots=True)
class CsvSink(_FileSink):
    """CSV files with a line of names."""

    suffix: ClassVar[str] = ".csv"
    endings: ClassVar[tuple[str, ...]] = (".csv",)

    def open_writer(self, schema: Schema | None, context: SinkContext) -> FilesWriter:
        """Begin to write."""
        return self._writer(_CsvFormat, schema, context)


@dataclass(frozen=True, slots=True)
class JsonLinesSink(_FileSink):
    """Files with one JSON object in each line."""

    suffix: ClassVar[str] = ".jsonl"
    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")

    def open_writer(self, schema: Schema | None, context: SinkContext) -> FilesWriter:
        """Begin to write."""
        return self._writer(_LinesFormat, schema, context)


@dataclass(slots=True)
class _OpenFile:
    """A file being written."""

    file: Any
    format: FileFormat
    pending: str
    folder: str
    bytes: int = 0


class FilesWriter:
    """Writes the files of one task."""

    def __init__(
        self,
        path: str,
        suffix: str,
        make: MakeFormat,
        context: SinkContext,
        *,
        schema: Schema | None,
        partition_by: tuple[str, ...] = (),
        is_single: bool = False,
    ) -> None:
        self._path = path
        self._suffix = suffix
        self._make = make
        self._context = context
        self._schema = schema
        self._partition_by = partition_by
        self._partition_marks: dict[bytes, bytes] | None = None
        self._open: dict[str, _OpenFile] = {}
        #: Closed since the last checkpoint.
        self._closed: list[_OpenFile] = []
        self._moves: list[Move] = []
        self._count = 0
        self._published = 0
        self._stamp = int(context.clock.wall().timestamp() * 1000)
        self._roll_at: int | None = None
        #: Whether the path is the one file to write.
        self._is_single = is_single

    # -- rows -------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Rows into the file that is open, or into that of their partition."""
        if self._schema is None:
            self._schema = batch.schema
        if not self._partition_by:
            self._write("", batch)
            return
        for folder, part in split_by(batch, self._partition_by):
            self._write(folder, part.replace_schema_metadata(self._marks(batch.schema, part.schema)))

    def _marks(self, schema: Schema, rest: Schema) -> dict[bytes, bytes]:
        """What a file says about the columns that are in the names of its folders: their types are not."""
        if self._partition_marks is None:
            self._partition_marks = with_partition_types(rest, schema, self._partition_by)
        return self._partition_marks

    def _write(self, folder: str, batch: Batch) -> None:
        target = self._open.pop(folder, None) or self._begin(folder, batch.schema)
        self._open[folder] = target  # the last written is the last to be closed when too many are open
        target.format.write(batch)
        target.bytes += batch.nbytes
        if target.bytes >= _ROLL_BYTES and not self._is_single:
            self._close_file(folder)
        if len(self._open) > _MOST_OPEN:
            self._close_file(next(iter(self._open)))

    def _begin(self, folder: str, schema: Schema) -> _OpenFile:
        pending = self._path if self._is_single else self._pending_name()
        if self._roll_at is None and not self._context.has_checkpoints and not self._is_single:
            self._roll_at = int(self._context.clock.wall().timestamp() * 1_000_000) + _ROLL_MICROS
        file = files.open_file(pending, "wb")
        try:
            return _OpenFile(file, self._make(file, schema), pending, folder)
        except BaseException:  # such as a type that the format cannot hold
            file.discard()
            raise

    def _pending_name(self) -> str:
        self._count += 1
        name = f"{self._context.job}.{self._context.sink}.{self._context.subtask}.{self._stamp}-{self._count}"
        return files.join(self._path, PENDING, name)

    def _close_file(self, folder: str) -> None:
        target = self._open[folder]
        target.format.close()
        target.file.close()
        del self._open[folder]  # not before: what cannot be closed is thrown away by `close`
        if self._context.has_checkpoints:
            self._closed.append(target)
        elif not self._is_single:
            self._published += 1
            files.rename(target.pending, self._final_name(folder, self._published))

    def _close_all(self) -> None:
        for folder in list(self._open):
            self._close_file(folder)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def prepare(self, checkpoint: int) -> bytes:
        """Close what is open. The files are whole and durable, and not to be seen."""
        self._close_all()
        self._moves += [
            Move(checkpoint, each.pending, self._final_name(each.folder, number, checkpoint))
            for number, each in enumerate(self._closed)
        ]
        self._closed = []
        return encode_moves(self._moves)

    def _final_name(self, folder: str, number: int, checkpoint: int | None = None) -> str:
        """A name that no other sink, job or run has: what is in a folder is never replaced."""
        mark = f"{self._context.job}.{self._context.sink}-{self._stamp}"
        if checkpoint is not None:
            mark += f"-{checkpoint:012d}"
        name = f"part-{mark}-{self._context.subtask:04d}-{number:04d}{self._suffix}"
        return files.join(self._path, folder, name) if folder else files.join(self._path, name)

    def commit(self, checkpoint: int) -> None:
        """The coordinator has moved the files of the checkpoint to their names."""
        self._moves = [each for each in self._moves if each.checkpoint > checkpoint]

    def flush(self) -> None:
        """There are no checkpoints: what is open is closed, and seen."""
        if self._is_single and not self._open and self._schema is not None:  # no rows: a file that says so
            self._write("", pa.RecordBatch.from_pylist([], schema=self._schema))
        self._close_all()

    def next_tick(self) -> int | None:
        """When files are to be closed that nobody sees before."""
        return self._roll_at if self._open else None

    def on_tick(self, now: int) -> None:
        """Close them; the next rows begin new ones."""
        self._roll_at = None
        self._close_all()

    def close(self) -> None:
        """Throw away what was not committed."""
        for each in self._open.values():
            # A format that is not closed writes its end when it is collected, into a file that is closed by then.
            with contextlib.suppress(OSError, ShoalError, ValueError, pa.ArrowException):
                each.format.close()
            each.file.discard()
        self._open.clear()


def _is_file(path: str) -> bool:
    try:
        files.size(path)
    except (NotFoundError, PreconditionError):  # nothing, or a folder
        return False
    return True


def _check_above(path: str) -> None:
    """Refuse a local path in which no folder can be made, or no file. Elsewhere only an attempt can tell."""
    place = locate(path)
    if not place.is_local:
        return
    above = Path(place.path)
    above = above if above.is_dir() else above.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        rule = f"cannot be made: {above} is a file"
        raise PreconditionError(f"{path} {rule}", hint="choose another path", path=path)
    if not os.access(above, os.W_OK | os.X_OK):
        rule = f"cannot be written: nothing may be added to the folder {above}"
        raise PreconditionError(f"{path} {rule}", hint="choose another path, or allow it", path=path)


def _is_folder(path: str) -> bool:
    try:
        files.size(path)
    except NotFoundError:
        return False
    except PreconditionError:
        return True
    return False


def split_by(batch: Batch, names: tuple[str, ...]) -> list[tuple[str, Batch]]:
    """A batch cut by the values of columns, with the directory of each part. The columns are in the names alone."""
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise InvalidError([problem("partition_by", name, "must be a column") for name in missing])
    if not set(batch.schema.names) - set(names):  # files without columns keep no rows
        hint = "leave a column out of partition_by"
        raise InvalidError([problem("partition_by", ", ".join(names), "must leave a column for the files")], hint=hint)
    keys = batch.select(list(names))
    table = pa.Table.from_batches([keys.append_column("__row", pa.array(range(batch.num_rows)))])
    groups = table.group_by(list(names), use_threads=False).aggregate([("__row", "list")])
    rest = batch.drop_columns(list(names))
    found: list[tuple[str, Batch]] = []
    for row in range(groups.num_rows):
        folder = "/".join(folder_name(name, groups[name][row].as_py()) for name in names)
        found.append((folder, rest.take(groups["__row_list"][row].values)))
    return found

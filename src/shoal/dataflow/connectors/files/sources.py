"""Files as sources: Parquet, CSV and JSON lines, each file a split. All of them through `shoal.core.files`.

The sinks beside them are in `shoal.dataflow.connectors.files.sinks`, and can be had from here too.

A path is a file, a directory, or a name with `*` in its last part. Names that begin with a dot or an underscore are
left out, as are files of other kinds in a directory.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.core import files
from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, NotFoundError, problem
from shoal.dataflow.connectors.base import Fetched, Split
from shoal.dataflow.connectors.files.folders import FolderValues, folder_scalar, folder_values, partition_fields
from shoal.dataflow.connectors.files.sinks import CsvSink, JsonLinesSink, ParquetSink
from shoal.dataflow.connectors.files.text import OpenedCsv, OpenedLines, Piece, guess_csv, guess_lines
from shoal.dataflow.connectors.pump import Pump
from shoal.dataflow.connectors.rows import fit
from shoal.dataflow.errors import PoisonError
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.logical import OnError

__all__ = ["CsvSink", "CsvSource", "JsonLinesSink", "JsonLinesSource", "ParquetSink", "ParquetSource"]

_NOTHING: frozenset[Split] = frozenset()
#: Bytes of a Parquet file that are decoded ahead.
_DECODED = 8 * 1024 * 1024


class Opened(Protocol):
    """One file being read."""

    def read(self, max_rows: int) -> Piece | None:
        """The next rows; None at the end."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def find_files(path: str, suffixes: Sequence[str]) -> list[str]:
    """The files that a path means, by name."""
    last = files.name(path)
    if "*" in last or "?" in last:
        entries = files.list_files(files.parent(path))
        found = [
            each.path for each in entries if not each.is_directory and fnmatch.fnmatch(files.name(each.path), last)
        ]
    elif not files.exists(path):
        raise NotFoundError("file or folder", path)
    else:
        found = _in_directory(path, suffixes) if _is_directory(path) else [path]
    if not found:
        if "*" in last or "?" in last:
            raise NotFoundError("any file that fits", path)
        hint = "names that begin with . or _ do not count"
        raise NotFoundError(f"any {' or '.join(suffixes)} file in the folder", path, hint=hint)
    return sorted(found)


def _is_directory(path: str) -> bool:
    above, last = files.parent(path), files.name(path)
    return any(each.is_directory for each in files.list_files(above) if files.name(each.path) == last) if last else True


def _in_directory(path: str, suffixes: Sequence[str]) -> list[str]:
    entries = files.list_files(path, recursive=True)
    base = len(path.rstrip("/").split("/"))
    return [
        each.path
        for each in entries
        if each.path.endswith(tuple(suffixes)) and not any(_is_hidden(part) for part in each.path.split("/")[base:])
    ]


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or (part.startswith("_") and "=" not in part)  # `_k=1` is a value of the column `_k`


@dataclass(frozen=True, slots=True)
class _FileSource:
    """What the three kinds have in common."""

    path: str
    columns: tuple[str, ...] | None = None
    batch_size: int = 65_536
    on_error: OnError = OnError.FAIL
    schema: Schema | None = None

    suffixes: ClassVar[tuple[str, ...]] = ("",)

    @property
    def is_bounded(self) -> bool:
        """Files end."""
        return True

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return self.path

    def find_splits(self) -> Sequence[Split]:
        """The files."""
        return tuple(Split(path) for path in find_files(self.path, self.suffixes))

    def find_schema(self) -> Schema:
        """The columns of the first file that has rows; else of the first that names columns."""
        schema = self.schema if self.schema is not None else self._look_at_all(find_files(self.path, self.suffixes))
        if self.columns is None:
            return schema
        missing = [name for name in self.columns if name not in schema.names]
        if missing:
            rule = f"must be one of {', '.join(schema.names)}"
            raise InvalidError([problem("column", name, rule) for name in missing], what=self.path)
        return pa.schema([schema.field(name) for name in self.columns])

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> FilesReader:
        """Begin to read."""
        return FilesReader(splits, lambda path, position: self._open(path, schema, position))

    def _look_at_all(self, paths: Sequence[str]) -> Schema:
        schema = self._look_at_files(paths)
        found = self._from_folders(paths, schema)
        return pa.schema([*schema, *found]) if found else schema

    def _from_folders(self, paths: Sequence[str], schema: Schema) -> list[Any]:
        """The columns that are in the names of folders."""
        return []

    def _look_at_files(self, paths: Sequence[str]) -> Schema:
        named: Schema | None = None
        for path in paths:
            with _naming(path):
                schema = self._look(path)
            if schema is not None and not all(pa.types.is_null(each.type) for each in schema):
                return schema
            named = schema if named is None else named
        if named is None:
            hint = "say its columns: schema=pa.schema([…]); or leave it out"
            raise InvalidError(
                [problem(paths[0], None, "is empty, or nothing in it can be read: nothing says its columns")], hint=hint
            )
        return named

    def _look(self, path: str) -> Schema | None:
        """The columns of a file; None when it is empty."""
        raise NotImplementedError

    def _open(self, path: str, schema: Schema, position: Any) -> Opened:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ParquetSource(_FileSource):
    """Parquet files. Folders below the path that are called `column=value` are columns too."""

    #: Columns that were declared and may be null: in a file that lacks one they are.
    optional: tuple[str, ...] = ()

    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    def with_columns(self, names: tuple[str, ...]) -> ParquetSource:
        """The same with these columns only: the others are not read."""
        return replace(self, columns=names)

    def _from_folders(self, paths: Sequence[str], schema: Schema) -> list[Any]:
        return partition_fields([folder_values(path, self.path) for path in paths], schema)

    def _look(self, path: str) -> Schema | None:
        with files.open_file(path) as file:
            return pq.read_schema(file)

    def _open(self, path: str, schema: Schema, position: Any) -> Opened:
        values = folder_values(path, self.path)
        missing: FolderValues = dict.fromkeys(self.optional)
        return _OpenedParquet(path, schema, self.batch_size, int(position or 0), {**missing, **values})


@dataclass(frozen=True, slots=True)
class CsvSource(_FileSource):
    """CSV files with a line of names."""

    delimiter: str = ","

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")

    def with_columns(self, names: tuple[str, ...]) -> CsvSource:
        """The same with these columns only."""
        return replace(self, columns=names)

    def _look(self, path: str) -> Schema | None:
        return guess_csv(path, self.delimiter)

    def _open(self, path: str, schema: Schema, position: Any) -> Opened:
        return OpenedCsv(
            path,
            schema,
            self.on_error,
            delimiter=self.delimiter,
            batch_size=self.batch_size,
            position=position,
        )


@dataclass(frozen=True, slots=True)
class JsonLinesSource(_FileSource):
    """Files with one JSON object in each line."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")

    def with_columns(self, names: tuple[str, ...]) -> JsonLinesSource:
        """The same with these columns only."""
        return replace(self, columns=names)

    def _look(self, path: str) -> Schema | None:
        return guess_lines(path, self.on_error)

    def _open(self, path: str, schema: Schema, position: Any) -> Opened:
        return OpenedLines(path, schema, self.on_error, batch_size=self.batch_size, position=position)


# ---------------------------------------------------------------------------------------------------------
# Errors


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """What Arrow raises, as an error of ours that says which file it was."""
    try:
        yield
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        text = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
        raise PoisonError(f"{path} cannot be read: {text}", path=path) from error


def _refuse_missing(path: str, missing: Sequence[str], there: Sequence[str]) -> None:
    if missing:
        rule = f"is not in this file; it has {', '.join(there)}"
        raise InvalidError([problem(f"column {name!r}", None, rule) for name in missing], what=path)


# ---------------------------------------------------------------------------------------------------------
# Reading


class FilesReader:
    """Reads files one after the other."""

    def __init__(self, splits: Sequence[Split], open_file: Callable[[str, Any], Opened]) -> None:
        self._left = list(splits)
        self._open_file = open_file
        self._positions: dict[str, Any] = {}
        self._opened: Opened | None = None
        self._ended: set[Split] = set()

    def seek(self, split: Split, position: Any) -> None:
        """Go on after a place."""
        self._positions[split.name] = position

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The next rows of the file that it is at."""
        while self._left:
            split = self._left[0]
            with _naming(split.name):
                if self._opened is None:
                    self._opened = self._open_file(split.name, self._positions.get(split.name))
                piece = self._opened.read(max_rows)
            if piece is not None:
                return Fetched(split, piece.batch, piece.position, poison=piece.poison, lines=piece.lines)
            self._close_file()
            self._ended.add(self._left.pop(0))
        return None

    def ended(self) -> frozenset[Split]:
        """The files that were read to their end."""
        return frozenset(self._ended) if self._ended else _NOTHING

    def close(self) -> None:
        """Let go of the file that it is at."""
        self._close_file()

    def _close_file(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


class _OpenedParquet:
    """The position is a number of rows: reading goes on in the row group that holds it.

    A thread decodes ahead of the task, outside of the interpreter's lock, where there is more than one batch.
    """

    def __init__(self, path: str, schema: Schema, batch_size: int, position: int, values: FolderValues) -> None:
        self._file = files.open_file(path)
        parquet = pq.ParquetFile(self._file)
        there = parquet.schema_arrow.names
        _refuse_missing(path, [name for name in schema.names if name not in there and name not in values], there)
        self._constants = {name: values[name] for name in schema.names if name not in there}
        groups, skip = _groups_from(parquet, position)
        self._row = position - skip
        self._skip = skip
        self._schema = schema
        batches: Iterator[Batch] = parquet.iter_batches(
            batch_size=batch_size,
            row_groups=groups,
            columns=[name for name in schema.names if name in there],
            use_threads=False,
        )
        has_more = parquet.metadata.num_rows - self._row > batch_size
        self._ahead = Pump(batches, limit=_DECODED, weigh=_nbytes, name=path) if has_more else None
        self._batches = batches if self._ahead is None else iter(self._ahead)
        self._rest: Batch | None = None

    def read(self, max_rows: int) -> Piece | None:
        while True:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            self._rest = None
            if batch is None:
                return None
            if self._skip:
                skipped = min(self._skip, batch.num_rows)
                self._skip -= skipped
                self._row += skipped
                batch = batch.slice(skipped)
            if batch.num_rows > max_rows:
                batch, self._rest = batch.slice(0, max_rows), batch.slice(max_rows)
            if batch.num_rows:
                self._row += batch.num_rows
                return Piece(fit(self._with_constants(batch), self._schema, what=self._file.path), self._row)

    def _with_constants(self, batch: Batch) -> Batch:
        """The columns that are in the names of folders are put where the schema has them."""
        if not self._constants:
            return batch
        arrays = [
            pa.repeat(folder_scalar(self._constants[each.name], each.type), batch.num_rows)
            if each.name in self._constants
            else batch.column(each.name)
            for each in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, names=self._schema.names)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._file.close()


def _nbytes(batch: Batch) -> int:
    return int(batch.nbytes)


def _groups_from(parquet: Any, position: int) -> tuple[list[int], int]:
    """The row groups from a row on, and how many rows of the first to leave out."""
    start = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if position < start + rows:
            return list(range(group, parquet.num_row_groups)), position - start
        start += rows
    return [], 0

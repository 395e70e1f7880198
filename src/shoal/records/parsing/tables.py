"""Reads rows from tables of other programs: CSV, also on standard input, and Parquet. They become the same columns.

A cell of CSV holds one value, or several with a separator between them. A row of CSV is a line: no cell contains the
end of one. Parquet has lists of its own. Called by users and by the readers of training.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError, problem
from shoal.records import fids
from shoal.records.bad_records import BadRecords, OnBad
from shoal.records.compiling import has_numba
from shoal.records.formats.compression import Compression, compression_of, open_source
from shoal.records.parsing.screening import Screen

#: So much of a CSV file is parsed at once.
_BLOCK_BYTES = 1 << 20
#: A longer line is refused: it is no CSV.
MAX_LINE_BYTES = 64 << 20
_UNREADABLE = (pa.ArrowException, OSError, ValueError, IndexError)
#: Where a line begins in its file, and its bytes with their end.
_Line = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How rows lie in a CSV file."""

    #: The columns of the file, in order; empty: the first line names them.
    names: tuple[str, ...] = ()
    delimiter: str = ","
    #: Between the values of one cell.
    separator: str = "|"
    #: None: what the end of each path says.
    compression: Compression | None = None


# ---------------------------------------------------------------------------------------------------------
# CSV


def read_csv(
    paths: str | Iterable[str],
    schema: Any,
    form: CsvFormat | None = None,
    bad: BadRecords | None = None,
    *,
    fid_v1: Iterable[str] = (),
) -> Iterator[Any]:
    """The rows of CSV files as Arrow record batches of a schema.

    Args:
        paths: one file or several; `""` is standard input.
        schema: of Arrow, such as `RowSchema.arrow`. Its columns are found by name, others are skipped. A list is a cell
            with separators.
        form: how rows lie in the files.
        bad: what follows a line that cannot be read; by default the read ends with a `CorruptError`.
        fid_v1: columns whose ids are of version 1, written with or without a sign; they become such of version 2.
    """
    form = form or CsvFormat()
    policy = bad or BadRecords()
    converted = _check_fid_v1(fid_v1, schema)
    return _csv_files([paths] if isinstance(paths, str) else paths, schema, form, policy, converted)


def _csv_files(
    paths: Iterable[str], schema: Any, form: CsvFormat, policy: BadRecords, fid_v1: frozenset[str]
) -> Iterator[Any]:
    for path in paths:
        compression = compression_of(path) if form.compression is None else form.compression
        try:
            with open_source(path, compression) as source:
                yield from _csv_batches(_Lines(source), schema, form, policy, fid_v1)
        except CorruptError as error:
            policy.meet(error)  # inflation failed: the rest of the file is lost


class _Lines:
    """A source in blocks of whole lines."""

    def __init__(self, source: Any) -> None:
        self.path = source.path
        self._source = source
        #: Whole lines that were read with the first one.
        self._ahead = b""
        #: The beginning of a line.
        self._begun = b""
        #: Where the next block begins.
        self.offset = 0

    def line(self) -> bytes:
        """The next line alone."""
        block = self.block()
        end = block.find(b"\n") + 1 or len(block)
        self._ahead = block[end:]
        self.offset -= len(self._ahead)
        return block[:end]

    def block(self) -> bytes:
        """The next lines; empty at the end."""
        block, self._ahead = self._ahead or self._read(), b""
        self.offset += len(block)
        return block

    def _read(self) -> bytes:
        # Blocks are large: each is copied once.
        parts: list[bytes | memoryview] = [self._begun]
        size = len(self._begun)
        self._begun = b""
        while more := self._source.read(_BLOCK_BYTES):
            cut = more.rfind(b"\n") + 1
            parts.append(memoryview(more)[: cut or len(more)])
            if cut:
                self._begun = more[cut:]
                break
            size += len(more)
            if size > MAX_LINE_BYTES:
                raise CorruptError(self.path, self.offset, f"a line must have at most {MAX_LINE_BYTES} bytes")
        return b"".join(parts)


def _csv_batches(lines: _Lines, schema: Any, form: CsvFormat, bad: BadRecords, fid_v1: frozenset[str]) -> Iterator[Any]:
    names = list(form.names)
    if not names:
        header = lines.line()
        names = _header(header, form, lines.path) if header.strip() else []
    missing = [name for name in schema.names if name not in names]
    if missing and names:
        rule = f"must be a column of {lines.path}, which has {', '.join(names)}"
        raise InvalidError([problem("column", name, rule) for name in missing])
    read = _reader(names, schema, form, fid_v1)
    screen = Screen(names, schema, form.delimiter, form.separator)
    while True:
        offset = lines.offset
        block = lines.block()
        if not block:
            return
        try:
            batch = read(block) if block.strip() else None
        except _UNREADABLE:
            yield from _rows_of_bad_block(_lines_of(block, offset), read, screen, lines.path, bad)
            continue
        if batch is not None and batch.num_rows:
            yield batch


def _reader(
    names: list[str], schema: Any, form: CsvFormat, fid_v1: frozenset[str] = frozenset()
) -> Callable[[bytes], Any]:
    """Reads some lines: by kernels if those can, else by Arrow. The rows are the same."""
    by_arrow = functools.partial(_read_block, names=names, schema=schema, form=form, fid_v1=fid_v1)
    if not has_numba():
        return by_arrow
    from shoal.records.parsing.compiled_csv import CompiledCsv

    marks = form.delimiter + form.separator
    if len(form.delimiter) != 1 or not CompiledCsv.can_read(names, schema, marks):
        return by_arrow
    compiled = CompiledCsv(names, schema, marks, functools.partial(_split, separator=form.separator))

    def read(block: bytes) -> Any:
        found = compiled.read(block)
        return by_arrow(block) if found is None else _converted(found, fid_v1)

    return read


def _header(line: bytes, form: CsvFormat, path: str) -> list[str]:
    text = line.decode("utf-8", "replace").strip("\r\n")
    try:
        return next(csv.reader([text], delimiter=form.delimiter), [])
    except (csv.Error, TypeError) as error:
        raise CorruptError(path, 0, f"the first line must name the columns: {error}") from error


def _rows_of_bad_block(
    lines: list[_Line], read: Callable[[bytes], Any], screen: Screen, path: str, bad: BadRecords
) -> Iterator[Any]:
    """The rows of lines that cannot be read together; the bad ones go to the policy, in their order."""
    if bad.policy is OnBad.FAIL:
        yield from _good_rows(lines, read, None, lambda line, rule: bad.meet(_refusal(path, line, rule)))
        return
    refused: list[tuple[_Line, str]] = []
    yield from _good_rows(lines, read, screen, lambda line, rule: refused.append((line, rule)))
    for line, rule in sorted(refused):
        bad.meet(_refusal(path, line, rule), line[1])


def _refusal(path: str, line: _Line, rule: str) -> CorruptError:
    return CorruptError(path, line[0], f"a row must be what the schema says: {rule}")


def _good_rows(
    lines: list[_Line], read: Callable[[bytes], Any], screen: Screen | None, refuse: Callable[[_Line, str], None]
) -> Iterator[Any]:
    """The rows of some lines. Where they cannot be read together, the bad lines are found and refused.

    The screen finds most of them at once; what it lets pass is read in halves, down to the lines that are bad.
    """
    block = b"".join(text for _, text in lines)
    if not block.strip():
        return
    try:
        batch = read(block)
    except _UNREADABLE as error:
        if len(lines) == 1:
            refuse(lines[0], str(error).splitlines()[0][:200] if str(error) else type(error).__name__)
        elif screen is not None:
            problems = [screen.problem_of(text) for _, text in lines]
            for line, rule in zip(lines, problems, strict=True):
                if rule:
                    refuse(line, rule)
            left = [line for line, rule in zip(lines, problems, strict=True) if not rule]
            yield from _good_rows(left, read, None, refuse)
        else:
            half = len(lines) // 2
            yield from _good_rows(lines[:half], read, None, refuse)
            yield from _good_rows(lines[half:], read, None, refuse)
        return
    if batch.num_rows:
        yield batch


def _lines_of(block: bytes, offset: int) -> list[_Line]:
    """The lines of a block, each with its offset and its end."""
    found = []
    for text in io.BytesIO(block):
        found.append((offset, text))
        offset += len(text)
    return found


def _read_block(
    block: bytes, *, names: list[str], schema: Any, form: CsvFormat, fid_v1: frozenset[str] = frozenset()
) -> Any:
    # A list is read as text and taken apart afterwards, and an id whose sign is not known is text as well.
    kinds = {each.name: pa.string() if _is_list(each.type) or each.name in fid_v1 else each.type for each in schema}
    table = pyarrow.csv.read_csv(
        pa.BufferReader(block),
        parse_options=pyarrow.csv.ParseOptions(delimiter=form.delimiter),
        read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
        convert_options=pyarrow.csv.ConvertOptions(
            include_columns=schema.names, column_types=kinds, strings_can_be_null=False, null_values=[]
        ),
    )
    columns = []
    for each in schema:
        column = table.column(each.name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        cast = _ids_of_texts if each.name in fid_v1 else pc.cast
        if _is_list(each.type):
            column = _split(column, each.type, form.separator, cast)
        elif each.name in fid_v1:
            column = _ids_of_texts(column)
        columns.append(column)
    return _converted(pa.RecordBatch.from_arrays(columns, schema=schema), fid_v1)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))


def _ids_of_texts(texts: Any, _kind: Any = None) -> Any:
    """64-bit numbers that may be written with or without a sign."""
    signed = pc.starts_with(texts, "-")
    negative = pc.cast(pc.if_else(signed, texts, "0"), pa.int64()).to_numpy()
    positive = pc.cast(pc.if_else(signed, "0", texts), pa.uint64()).to_numpy()
    return pa.array(np.where(negative < 0, negative, positive.view(np.int64)))


def _split(column: Any, kind: Any, separator: str, cast: Callable[[Any, Any], Any] = pc.cast) -> Any:
    parts = pc.split_pattern(column, separator)
    # An empty cell has no values, where a split has one that is empty.
    empty = pc.equal(column, "")
    if pc.any(empty).as_py():
        parts = pc.if_else(empty, pa.scalar([], parts.type), parts)
    flat = parts.flatten()
    values = cast(flat, kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        if (np.diff(parts.offsets.to_numpy()) != kind.list_size).any():
            raise ValueError(f"a cell must have {kind.list_size} values")
        return pa.FixedSizeListArray.from_arrays(values, kind.list_size)
    return pa.ListArray.from_arrays(parts.offsets, values)


# ---------------------------------------------------------------------------------------------------------
# Ids of version 1


def _check_fid_v1(names: Iterable[str], schema: Any) -> frozenset[str]:
    """The names, if each is a column of 64-bit ids."""
    found = frozenset(names)
    kinds = {each.name: each.type.value_type if _is_list(each.type) else each.type for each in schema}
    rule = "must be a column of int64, or of lists of it"
    problems = [problem("fid_v1", name, rule) for name in sorted(found) if kinds.get(name) != pa.int64()]
    if problems:
        raise InvalidError(problems)
    return found


def _converted(batch: Any, fid_v1: frozenset[str]) -> Any:
    """The same rows, with ids of version 2 in these columns."""
    for name in fid_v1:
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), _in_v2(batch.column(place)))
    return batch


def _in_v2(column: Any) -> Any:
    """Ids of version 1, or lists of them, without nulls."""
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    kind = column.type
    if _is_list(kind):
        values = _in_v2(column.flatten())
        if pa.types.is_fixed_size_list(kind):
            return pa.FixedSizeListArray.from_arrays(values, kind.list_size)
        return pa.ListArray.from_arrays(pc.subtract(column.offsets, column.offsets[0]), values)
    if not pa.types.is_integer(kind):
        raise ValueError(f"ids must be whole numbers, and are {kind}")
    return pa.array(fids.v1_to_v2(column.to_numpy(zero_copy_only=False)))


# ---------------------------------------------------------------------------------------------------------
# Parquet


def read_parquet(
    paths: str | Iterable[str],
    schema: Any,
    *,
    fid_v1: Iterable[str] = (),
    batch_rows: int = 4096,
    bad: BadRecords | None = None,
) -> Iterator[Any]:
    """The rows of Parquet files as Arrow record batches of a schema.

    Args:
        paths: one file or several.
        schema: of Arrow, such as `RowSchema.arrow`. Its columns are found by name, others are skipped.
        fid_v1: columns whose ids are of version 1; they become such of version 2.
        batch_rows: at most so many rows come together.
        bad: what follows a file that cannot be read; the rest of it is left out if the policy lets the read go on.
    """
    policy = bad or BadRecords()
    converted = _check_fid_v1(fid_v1, schema)
    return _parquet_files([paths] if isinstance(paths, str) else paths, schema, converted, batch_rows, policy)


def _parquet_files(
    paths: Iterable[str], schema: Any, fid_v1: frozenset[str], batch_rows: int, policy: BadRecords
) -> Iterator[Any]:
    for path in paths:
        with files.open_file(path) as file:
            try:
                for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_rows, columns=schema.names):
                    yield _cast(batch, schema, fid_v1, path)
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                policy.meet(CorruptError(path, 0, f"must be Parquet of the schema: {reason}"))


def _cast(batch: Any, schema: Any, fid_v1: frozenset[str], path: str) -> Any:
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise InvalidError([problem("column", name, f"must be a column of {path}") for name in missing])
    columns = []
    for each in schema:
        column = batch.column(each.name)
        if _has_nulls(column):
            raise ValueError(f"column {each.name} must have no nulls")
        columns.append((_in_v2(column) if each.name in fid_v1 else column).cast(each.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _has_nulls(column: Any) -> bool:
    """Whether a value, or one in a list, is not there."""
    nested = _is_list(column.type) or pa.types.is_large_list(column.type)
    return bool(column.null_count) or (nested and _has_nulls(column.flatten()))

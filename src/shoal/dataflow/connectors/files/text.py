"""CSV and JSON lines, read block by block: what types their columns have, and which of their lines cannot be read.

A block is cut behind its last whole record, and read by Arrow in one piece. Only where that fails is it looked at line
by line. The position in a file is a pair: the byte at which a block begins, and how many of its records were returned,
bad ones too. So a restart continues with the next line. Called by `shoal.dataflow.connectors.files.sources`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from shoal.core import files
from shoal.core.errors import InvalidError, problem
from shoal.dataflow.connectors.rows import Bad, Sifted, empty_batch, first_bad, first_odd, sift
from shoal.dataflow.errors import PoisonError
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.logical import OnError
from shoal.topics.base import records
from shoal.topics.codecs import JsonCodec

_BLOCK = 1024 * 1024
_SAMPLE = 256 * 1024
#: A record of CSV that is longer than this has a quote that nobody closed.
_LONGEST = 64 * 1024 * 1024
#: So much of a line that cannot be read is shown.
_SHOWN = 80
#: So many lines of a sample may disagree with those before them where bad lines are left out.
_MOST_ODD = 20
_BOM = b"\xef\xbb\xbf"
_OPEN_QUOTE = "a quote is not closed"
_HINT = (
    "say the types: schema=, or let such lines be skipped or put out on the side: on_error='skip' or on_error='side'"
)

_ROW = re.compile(r"\bRow #\d+: ")

#: What Arrow raises for content that it cannot take.
_ERRORS = (pa.ArrowException, ValueError)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows from a file, the place right after them, and what could not be read."""

    batch: Batch
    position: Any
    poison: Batch | None = None
    #: For the numbers of some rows: the number of the line on which each begins, and its text. Reads the file again.
    lines: Callable[[Sequence[int]], list[tuple[int, bytes]]] | None = None


@dataclass(frozen=True, slots=True)
class _Block:
    """What was read from so many bytes."""

    size: int
    records: Sifted


# ---------------------------------------------------------------------------------------------------------
# What both kinds have in common


class OpenedText:
    """A file that is read block by block. Subclasses say how it is cut and converted."""

    def __init__(self, path: str, schema: Schema, policy: OnError, *, batch_size: int) -> None:
        self._path = path
        self._schema = schema
        self._policy = policy
        self._batch_size = batch_size
        self._file = files.open_file(path)
        self._rest = b""
        self._place = 0
        self._returned = 0
        #: A place in the file, and how many lines are before it. Who has no bad lines does not pay for counting them.
        self._counted = (0, 0)
        self._block: _Block | None = None

    def _go_to(self, place: int, returned: int) -> None:
        self._file.seek(place)
        self._place, self._returned = place, returned

    def read(self, max_rows: int) -> Piece | None:
        """The next rows; None at the end."""
        while True:
            block = self._block if self._block is not None else self._next_block()
            if block is None:
                return None
            if self._returned < block.records.count:
                first = block.records.rows_before(self._returned)
                batch, poison, self._returned = block.records.part(self._returned, min(max_rows, self._batch_size))
                lines = functools.partial(self._lines_of, self._place, block, first)
                is_done = self._returned >= block.records.count
                position = [self._place + block.size, 0] if is_done else [self._place, self._returned]
                return Piece(batch, position, poison, lines)
            self._returned -= block.records.count
            self._place += block.size
            self._block = None

    def _next_block(self) -> _Block | None:
        content = self._content()
        if not content:
            return None
        self._block = _Block(len(content), self._parse(content))
        return self._block

    def _content(self) -> bytes:
        content = self._rest
        while True:
            more = self._file.read(_BLOCK)
            if cut := self._plain_cut(content, more):  # so much is copied once, not twice
                self._rest = more[cut:]
                return b"".join((content, memoryview(more)[:cut]))
            content += more
            cut = self._cut(content) if more else len(content)
            if cut or not more:
                self._rest = content[cut:]
                return content[:cut]

    def _plain_cut(self, before: bytes, more: bytes) -> int:
        """How much of what comes next is whole, together with what is before it, where that is easily seen; else 0."""
        return more.rfind(b"\n") + 1

    def _cut(self, content: bytes) -> int:
        """How much of some content, more of which follows, is whole; 0 for nothing."""
        raise NotImplementedError

    def _parse(self, content: bytes) -> Sifted:
        raise NotImplementedError

    def _line(self, content: bytes, start: int) -> int:
        """The number of the line, from 1, that begins so far into the block that is being parsed."""
        return self._lines_before(self._place) + _count_lines(content[:start]) + 1

    def _lines_before(self, place: int) -> int:
        """How many lines end before a place. What was counted before is not counted again."""
        at, lines = self._counted if self._counted[0] <= place else (0, 0)
        if at < place:
            with files.open_file(self._path) as file:
                file.seek(at)
                while at < place and (content := file.read(min(place - at, _BLOCK))):
                    at += len(content)
                    lines += _count_lines(content)
            self._counted = (at, lines)
        return lines

    def _lines_of(self, place: int, block: _Block, first: int, rows: Sequence[int]) -> list[tuple[int, bytes]]:
        """The numbers and the texts of the lines of some rows, counted from the `first` of a block."""
        with files.open_file(self._path) as file:
            file.seek(place)
            content = file.read(block.size)
        ranges = self._ranges(content)
        if len(ranges) != block.records.count:
            raise PoisonError(f"{self._path} was changed while it was read", path=self._path)
        line, before = self._lines_before(place) + 1, 0
        found: list[tuple[int, bytes]] = []
        for row in rows:
            start, end = ranges[block.records.record_of(first + row)]
            line += _count_lines(content[before:start])
            before = start
            found.append((line, content[start:end].rstrip(b"\r\n")))
        return found

    def _ranges(self, content: bytes) -> Sequence[tuple[int, int]]:
        """Where the records of a block begin and end."""
        raise NotImplementedError

    def _fail(self, line: int, error: str, value: bytes) -> PoisonError:
        shown = value.strip()[:_SHOWN].decode(errors="replace")
        return PoisonError(
            f"{self._path} cannot be read: line {line}: {error}: {shown}", hint=_HINT, path=self._path, line=line
        )

    def close(self) -> None:
        """Let go of it."""
        self._file.close()


def _count_lines(content: bytes) -> int:
    return _count(content, b"\n") or _count(content, b"\r")


def _count(content: bytes | memoryview, letter: bytes) -> int:
    """How often a letter is in a text. NumPy looks at many at once, which Python does not."""
    return int(np.count_nonzero(np.frombuffer(content, np.uint8) == ord(letter)))


def _one_batch(table: Any, schema: Schema) -> Batch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else empty_batch(schema)


# ---------------------------------------------------------------------------------------------------------
# CSV


class OpenedCsv(OpenedText):
    """CSV with a line of names. Quoted fields may go over several lines: then a row has the line on which it begins."""

    def __init__(
        self, path: str, schema: Schema, policy: OnError, *, delimiter: str, batch_size: int, position: Any = None
    ) -> None:
        super().__init__(path, schema, policy, batch_size=batch_size)
        self._delimiter = delimiter
        self._record = _record_pattern(delimiter)
        try:
            self._names, begin = _read_names(self._file, delimiter)
            self._refuse_missing()
        except BaseException:
            self._file.close()
            raise
        place, returned = position or (begin, 0)
        self._go_to(int(place), int(returned))

    def _refuse_missing(self) -> None:
        missing = [name for name in self._schema.names if name not in self._names]
        if self._names and missing:  # a file that is empty has no rows, and need not have names
            rule = f"is not in this file; it has {', '.join(self._names)}"
            raise InvalidError([problem(f"column {name!r}", None, rule) for name in missing], what=self._path)

    def _plain_cut(self, before: bytes, more: bytes) -> int:
        return 0 if b'"' in more or b'"' in before else super()._plain_cut(before, more)

    def _cut(self, content: bytes) -> int:
        cut = content.rfind(b"\n") + 1 or content.rfind(b"\r", 0, len(content) - 1) + 1
        if not _count(memoryview(content)[:cut], b'"') % 2:
            return cut
        # The last line may end inside a quoted field; or a quote stands where it means nothing, as in 5" pipe.
        whole = 0
        for record in self._record.finditer(content):
            if _is_open(record) or not record["end"] or record.end() == len(content):
                break
            whole = record.end()
        if not whole and len(content) > _LONGEST:
            return content.find(b"\n") + 1
        return whole

    def _convert(self, content: bytes) -> Batch:
        table = pa_csv.read_csv(
            pa.BufferReader(content),
            read_options=pa_csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=max(_BLOCK, len(content) + 1)
            ),
            parse_options=pa_csv.ParseOptions(delimiter=self._delimiter),
            convert_options=pa_csv.ConvertOptions(column_types=self._schema, include_columns=self._schema.names),
        )
        return _one_batch(table, self._schema)

    def _parse(self, content: bytes) -> Sifted:
        if not self._names:  # it is empty
            return Sifted(empty_batch(self._schema))
        batch = None
        with contextlib.suppress(*_ERRORS):
            batch = self._convert(content)
            quotes = _count(content, b'"') if b'"' in content else 0
            if not quotes or (not quotes % 2 and batch.num_rows >= _count_lines(content)):
                return Sifted(batch)  # each line is a row, and the last one is closed
        ranges, unclosed = self._records(content)
        if batch is not None and not unclosed:
            return Sifted(batch)
        # Of a quote that nobody closed Arrow says nothing: it takes the lines behind it, up to the next, for one field.
        return self._sifted(content, ranges, unclosed)

    def _sifted(self, content: bytes, ranges: Sequence[tuple[int, int]], unclosed: set[int]) -> Sifted:
        fitting = [place for number, place in enumerate(ranges) if number not in unclosed]

        def convert(part: Sequence[tuple[int, int]]) -> Batch:
            batch = self._convert(b"".join(content[start:end] for start, end in part))
            if batch.num_rows != len(part):
                raise ValueError("is not one row")
            return batch

        if self._policy is OnError.FAIL:
            worst = first_bad(fitting, convert)
            found = [(ranges[number], _OPEN_QUOTE) for number in unclosed]
            if worst is not None:
                found.append((fitting[worst[0]], self._reason(str(worst[1]))))
            if found:
                (start, end), error = min(found)
                raise self._fail(self._line(content, start), error, content[start:end])
        rows, bad = sift(fitting, convert, self._schema)
        reasons = {fitting[number]: self._reason(error) for number, error in bad}
        reasons |= {ranges[number]: _OPEN_QUOTE for number in unclosed}
        return Sifted(rows, self._bad(content, ranges, reasons))

    def _bad(self, content: bytes, ranges: Sequence[tuple[int, int]], reasons: dict[tuple[int, int], str]) -> list[Bad]:
        found: list[Bad] = []
        line = before = 0
        for number, place in enumerate(ranges):
            if place in reasons:
                start, end = place
                line = line + _count_lines(content[before:start]) if found else self._line(content, start)
                before = start
                found.append(Bad(number, line, content[start:end].rstrip(b"\r\n"), f"line {line}: {reasons[place]}"))
        return found

    def _ranges(self, content: bytes) -> Sequence[tuple[int, int]]:
        return self._records(content)[0]

    def _records(self, content: bytes) -> tuple[list[tuple[int, int]], set[int]]:
        """Where records begin and end, without empty lines; and those in which a quote is not closed.

        Of these only the line with the quote is bad: the lines behind it are read.
        """
        ranges: list[tuple[int, int]] = []
        unclosed: set[int] = set()
        at = 0
        while at < len(content):
            record = self._record.match(content, at)
            if record is None:
                raise AssertionError("every text begins with a record")
            end = record.end()
            if _is_unclosed(record):
                unclosed.add(len(ranges))
                end = content.find(b"\n", at) + 1 or len(content)
            if _is_unclosed(record) or record.start("end") > at:
                ranges.append((at, end))
            at = end
        return ranges, unclosed

    def guess(self) -> Schema | None:
        """The columns, with types that fit all rows of the first block."""
        if not self._names:
            return None
        content = self._content()
        if not content.strip():
            return pa.schema([(name, pa.null()) for name in self._names])
        return pa_csv.read_csv(
            pa.BufferReader(content),
            read_options=pa_csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=max(_BLOCK, len(content) + 1)
            ),
            parse_options=pa_csv.ParseOptions(delimiter=self._delimiter, invalid_row_handler=lambda _row: "skip"),
        ).schema

    def _reason(self, error: str) -> str:
        """What Arrow says, with the name of the column and without its own numbers: they are those of a part."""
        text = re.sub(
            r"^CSV parse error: (Expected \d+ columns, got \d+).*", r"\1", _ROW.sub("", error), flags=re.DOTALL
        )
        return re.sub(r"^In CSV column #(\d+): ", lambda found: f"column {self._names[int(found[1])]!r}: ", text)


def _record_pattern(delimiter: str) -> re.Pattern[bytes]:
    """One record, by Arrow's own rules: a quote means something where a field begins, and there alone.

    A field whose closing quote is on another line, and has text behind it, is none: there another field begins, and
    the quote was not closed. The groups `more` and `also` are fields that go on behind the text, `wrong` and `bad` the
    quotes that are not closed.
    """
    mark = re.escape(delimiter.encode())
    quoted = rb'"(?:[^"]++|"")*+'
    in_line = rb'"(?:[^"\r\n]++|"")*+"'

    def field(more: bytes, wrong: bytes) -> bytes:
        closed = quoted + rb'"(?=[' + mark + rb"\r\n]|\Z)|" + in_line
        others = rb"(?P<" + more + rb">" + quoted + rb"\Z)|(?P<" + wrong + rb'>")'
        return rb"(?:" + closed + rb"|" + others + rb")?+[^" + mark + rb"\r\n]*+"

    first, other = field(b"more", b"wrong"), field(b"also", b"bad")
    return re.compile(first + rb"(?:" + mark + other + rb")*+(?P<end>\r\n|\n|\r|\Z)")


def _is_open(record: re.Match[bytes]) -> bool:
    """Whether a record ends with the text, in a quoted field."""
    return record["more"] is not None or record["also"] is not None


def _is_unclosed(record: re.Match[bytes]) -> bool:
    return _is_open(record) or record["wrong"] is not None or record["bad"] is not None


def _read_names(file: files.File, delimiter: str) -> tuple[list[str], int]:
    """The names in the first line of a file that is not empty, and how many bytes are before the next; or none."""
    pattern = _record_pattern(delimiter)
    content = b""
    while True:
        more = file.read(_SAMPLE)
        content += more
        at = len(_BOM) if content.startswith(_BOM) else 0
        while (record := pattern.match(content, at)) is not None and (not more or record.end() < len(content)):
            if record.start("end") > at and content[at : record.end()].strip():
                options = pa_csv.ParseOptions(delimiter=delimiter)
                head = pa_csv.read_csv(pa.BufferReader(record[0]), parse_options=options)
                return list(head.schema.names), record.end()
            if record.end() == at:
                return [], at
            at = record.end()
        if not more:
            return [], len(content)


def guess_csv(path: str, delimiter: str) -> Schema | None:
    """The columns of a file, by its first block; None when it is empty. Lines with a wrong number of fields are out."""
    opened = OpenedCsv(path, pa.schema([]), OnError.SKIP, delimiter=delimiter, batch_size=1)
    try:
        return opened.guess()
    finally:
        opened.close()


# ---------------------------------------------------------------------------------------------------------
# JSON lines


class OpenedLines(OpenedText):
    """JSON lines. Times and dates are read as text first: Arrow would take a time with a zone for one without.

    Columns of types that Arrow does not read from JSON are read as those of topics are.
    """

    def __init__(self, path: str, schema: Schema, policy: OnError, *, batch_size: int, position: Any = None) -> None:
        super().__init__(path, schema, policy, batch_size=batch_size)
        self._plain = pa.schema([each for each in schema if not _is_foreign(each.type)])
        self._foreign = pa.schema([each for each in schema if _is_foreign(each.type)])
        self._as_text = pa.schema([each.with_type(_text_of(each.type)) for each in self._plain])
        place, returned = position or (0, 0)
        self._go_to(int(place), int(returned))

    def _cut(self, content: bytes) -> int:
        return content.rfind(b"\n") + 1

    def _convert(self, lines: Sequence[bytes]) -> Batch:
        if not len(self._foreign):
            return self._convert_plain(lines)
        found = _decode_lines(lines, self._foreign)
        columns = dict(zip(self._foreign.names, found, strict=True))
        if len(self._plain):
            columns |= zip(self._plain.names, self._convert_plain(lines), strict=True)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _convert_plain(self, lines: Sequence[bytes]) -> Batch:
        table = _read_lines(lines, self._as_text)
        if table.num_rows != len(lines):
            raise ValueError("not one JSON object in each line")
        batch = _one_batch(table, self._as_text)
        if self._as_text.equals(self._plain):
            return batch
        return pa.RecordBatch.from_arrays(
            [_cast(*each) for each in zip(batch, self._plain, strict=True)], schema=self._plain
        )

    def _parse(self, content: bytes) -> Sifted:
        lines = [line for line in content.split(b"\n") if line.strip()]
        try:
            return Sifted(self._convert(lines) if lines else empty_batch(self._schema))
        except _ERRORS as error:
            if self._policy is OnError.FAIL:
                raise self._first_failure(content, lines) or error from error
        rows, bad = sift(lines, self._convert, self._schema)
        numbers = self._numbers(content)
        found = [
            Bad(at, numbers[at], lines[at], f"line {numbers[at]}: {self._reason(lines[at], error)}")
            for at, error in bad
        ]
        return Sifted(rows, found)

    def _ranges(self, content: bytes) -> Sequence[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        at = 0
        for line in content.split(b"\n"):
            if line.strip():
                ranges.append((at, at + len(line)))
            at += len(line) + 1
        return ranges

    def _first_failure(self, content: bytes, lines: Sequence[bytes]) -> PoisonError | None:
        found = first_bad(lines, self._convert)
        if found is None:
            return None
        at, error = found
        return self._fail(self._numbers(content)[at], self._reason(lines[at], str(error)), lines[at])

    def _numbers(self, content: bytes) -> list[int]:
        """The number in the file of each line of the block that is not empty."""
        first = self._line(content, 0)
        return [first + number for number, line in enumerate(content.split(b"\n")) if line.strip()]

    def _reason(self, line: bytes, error: str) -> str:
        """What Arrow says, with the column. Its own "in row 0" would mislead: it counts from what it was given."""
        text = error.removesuffix(" in row 0")
        kind = re.match(r"Failed to convert JSON to ([^:]*?)(?:, couldn't parse)?:", text)
        if kind is None:
            return text
        for each in self._as_text:
            if each.type.num_fields or str(each.type) == kind[1]:
                try:
                    _read_lines([line], pa.schema([each]))
                except _ERRORS:
                    return f"column {each.name!r}: {text}"
        return text


def _read_lines(lines: Sequence[bytes], schema: Schema | None) -> Any:
    """Lines as a table, in one block of Arrow's, so that a line is never longer than what it takes at once."""
    # Arrow takes a bare null for an object, and where there is nothing else it ends the process.
    if not all(line.lstrip().startswith(b"{") for line in lines):
        raise ValueError("must be a JSON object")
    content = b"\n".join(lines)
    return pa_json.read_json(
        pa.BufferReader(content),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=max(_BLOCK, len(content) + 1)),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        ),
    )


def _decode_lines(lines: Sequence[bytes], schema: Schema) -> Batch:
    decoded = JsonCodec().decode(records(lines), schema)
    if decoded.poison.num_rows:
        raise ValueError(decoded.poison["reason"][0].as_py())
    return decoded.rows


def _is_foreign(kind: Any) -> bool:
    """Whether Arrow does not read a type from JSON, or not as it is written."""
    known = (pa.types.is_struct, pa.types.is_list)
    if kind.num_fields:
        inner = (kind.field(at).type for at in range(kind.num_fields))
        return not any(is_such(kind) for is_such in known) or any(map(_is_foreign, inner))
    foreign = (
        pa.types.is_time,
        pa.types.is_date64,
        pa.types.is_duration,
        pa.types.is_dictionary,
        pa.types.is_float16,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
    )
    return not pa.types.is_decimal(kind) and any(is_such(kind) for is_such in foreign)


def _cast(array: Any, field: Any) -> Any:
    if array.type.equals(field.type):
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise ValueError(f"column {field.name!r}: {error}") from error


def _text_of(kind: Any) -> Any:
    """A type with text in place of times and dates, also inside of structs and lists."""
    return _changed(kind, lambda each: pa.utf8() if pa.types.is_timestamp(each) or pa.types.is_date(each) else each)


def _with_zone(kind: Any) -> Any:
    return _changed(kind, lambda each: pa.timestamp(each.unit, "UTC") if pa.types.is_timestamp(each) else each)


def _changed(kind: Any, change: Callable[[Any], Any]) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_changed(each.type, change)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_changed(kind.value_type, change)))
    return change(kind)


def guess_lines(path: str, policy: OnError) -> Schema | None:
    """The columns of a file, by its first lines; None when it is empty.

    Raises `PoisonError` for the first line that is no JSON object, or does not go together with those before it. With
    another policy such lines do not count.
    """
    with files.open_file(path) as file:
        sample = file.read(_SAMPLE)
    whole = sample if len(sample) < _SAMPLE else sample[: sample.rfind(b"\n") + 1] or sample
    numbered = [(number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip()]
    if policy is not OnError.FAIL:
        numbered = [each for each in numbered if _is_object(each[1])]
    for _ in range(_MOST_ODD):
        lines = [line for _number, line in numbered]
        if not lines:
            return None
        try:
            schema = _read_lines(lines, None).schema
        except _ERRORS as found:
            number, line = numbered.pop(first_odd(lines, lambda part: _read_lines(part, None)))
            error = re.sub(r" in row \d+$", "", str(found))
            if policy is OnError.FAIL:
                break
        else:
            return zoned(schema, lines)
    shown = line[:_SHOWN].decode(errors="replace")
    raise PoisonError(f"{path} cannot be read: line {number}: {error}: {shown}", hint=_HINT, path=path, line=number)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def zoned(schema: Schema, lines: Sequence[bytes]) -> Schema:
    """Columns that Arrow guessed from lines of JSON: it takes times with a zone for times without one."""
    return pa.schema([_zoned(each, lines) for each in schema])


def _zoned(field: Any, lines: Sequence[bytes]) -> Any:
    """A field whose type was guessed. Its times are in UTC if all have a zone, and text if some have one."""
    as_text = field.with_type(_text_of(field.type))
    if as_text.type.equals(field.type):
        return field
    column = _read_lines(lines, pa.schema([as_text])).column(0)
    for kind in (field.type, _with_zone(field.type)):
        try:
            column.cast(kind)
        except pa.ArrowException:
            continue
        return field.with_type(kind)
    return as_text

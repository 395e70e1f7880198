"""Chooses how records become columns, and reads whole files so.

    schema = RowSchema((ids("fc_user"), floats("price", size=1)), line_id=("req_time",))
    for batch in read_columns(find_files("data/*"), framed(has_sort_id=True), Instance, schema):
        …

Called by users, and by the readers of training.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from shoal.core.errors import InvalidError, UnsupportedError, problem
from shoal.records.bad_records import BadRecords
from shoal.records.compiling import has_numba
from shoal.records.formats.payloads import Payloads
from shoal.records.formats.reading import RecordFormat, read_payloads
from shoal.records.parsing.plain import PlainParser
from shoal.records.parsing.schema import RowSchema
from shoal.wire.pb.idl.matrix.proto.example_pb2 import Example, ExampleBatch
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

#: So many records are parsed at once: enough to make calls cheap, few enough for the caches of a processor.
_MOST_RECORDS = 4096


class Engine(enum.Enum):
    """How records are parsed. The columns are the same."""

    #: Compiled where numba is installed.
    AUTO = "auto"
    COMPILED = "compiled"
    PLAIN = "plain"


class Parser(Protocol):
    """Turns records of one type into columns of one schema."""

    def parse(self, payloads: Payloads, bad: BadRecords) -> Any:
        """The records as an Arrow record batch. What is no such message goes to `bad`."""
        ...


def make_parser(message: type[Any], schema: RowSchema, engine: Engine = Engine.AUTO) -> Parser:
    """A parser for records of one type: Instance, Example or ExampleBatch.

    Raises `UnsupportedError` for the compiled one where numba is not installed.
    """
    if message not in (Instance, Example, ExampleBatch):
        raise InvalidError([problem("message", message.__name__, "must be Instance, Example or ExampleBatch")])
    if engine is Engine.PLAIN or (engine is Engine.AUTO and not has_numba()):
        return PlainParser(message, schema)
    if not has_numba():
        raise UnsupportedError("compiled parsing needs numba", hint="pip install 'shoal[train]', or numba alone")
    from shoal.records.parsing.compiled import CompiledParser

    return CompiledParser(message, schema)


def read_columns(
    paths: str | Iterable[str],
    form: RecordFormat,
    message: type[Any],
    schema: RowSchema,
    *,
    bad: BadRecords | None = None,
    batch_rows: int | None = None,
    engine: Engine = Engine.AUTO,
) -> Iterator[Any]:
    """The records of some files as Arrow record batches.

    Args:
        paths: one file or several; `""` is standard input.
        form: how records lie in them, by `framed` or `tfrecord`.
        message: what they are: Instance, Example or ExampleBatch.
        schema: the columns.
        bad: what follows a record that cannot be read; by default the read ends with a `CorruptError`.
        batch_rows: exactly so many rows in every batch but the last; else as many as come together.
        engine: how they are parsed.
    """
    parser = make_parser(message, schema, engine)
    policy = bad or BadRecords()

    def batches() -> Iterator[Any]:
        for payloads in read_payloads(paths, form, policy):
            for part in parts_of(payloads, message):
                batch = parser.parse(part, policy)
                if batch.num_rows:
                    yield batch

    return batches() if batch_rows is None else rebatched(batches(), batch_rows)


def parts_of(payloads: Payloads, message: type[Any]) -> Iterator[Payloads]:
    """As many records as are parsed at once. Of batches fewer, because each has many rows."""
    most = 16 if message is ExampleBatch else _MOST_RECORDS
    for start in range(0, len(payloads), most):
        yield payloads.slice(start, start + most)


def rebatched(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """The same rows in batches of one size; the last may be smaller."""
    if rows < 1:
        raise InvalidError([problem("batch_rows", rows, "must be 1 or more")])
    held: list[Any] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            whole = _joined(held)
            cut = count - count % rows
            for start in range(0, cut, rows):
                yield whole.slice(start, rows)
            held, count = ([whole.slice(cut)], count - cut) if count > cut else ([], 0)
    if held:
        yield _joined(held)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=None)[0]


def warm_up() -> None:
    """Compile every kernel, or load it from the cache on disk. Called by `shoal warmup`."""
    from shoal.records.parsing.schema import LINE_ID_TYPES, floats, ids, ints, texts

    columns = (ids("a"), floats("b"), ints("c", size=2), texts("d"), ids("fc_slot_1"))
    schema = RowSchema(columns, line_id=tuple(LINE_ID_TYPES))
    for message in (Instance, Example, ExampleBatch):
        parser = make_parser(message, schema, Engine.COMPILED)
        parser.parse(Payloads.of([b""]), BadRecords())
    from shoal.records.parsing.compiled_csv import CompiledCsv

    row = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.float32()), ("c", pa.binary())])
    CompiledCsv(row.names, row, ",|", lambda texts, _kind: texts).read(b"1,2,3\n")

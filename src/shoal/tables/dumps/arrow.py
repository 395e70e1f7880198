"""A table as one Arrow IPC file: ids, times, weights and states as columns; the settings of the table in its schema.

A file appears whole or not at all. Reading trusts nothing: lengths, types and settings are checked before a row is
stored. A dump of a training table can be loaded into a serving table, and a part of it into a shard of one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError, problem
from shoal.tables.layout import make_layout
from shoal.tables.settings.table import TableKind, TableSettings
from shoal.tables.table import EmbeddingTable, Entries, TimeBasis

_SETTINGS, _FORMAT, _TIMES = b"shoal.table", b"shoal.format", b"shoal.times"
FORMAT = b"1"
#: Rows that are written as one batch.
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class DumpFacts:
    """What a dump says of itself."""

    settings: TableSettings
    time_basis: TimeBasis
    newest: int


def write(table: EmbeddingTable, path: str) -> int:
    """Write every id that has not expired. Returns how many."""
    statistics = table.statistics()
    times = json.dumps({"basis": statistics.time_basis.value, "newest": statistics.newest}).encode()
    metadata = {_SETTINGS: table.settings.to_json().encode(), _FORMAT: FORMAT, _TIMES: times}
    schema = _schema(table.layout.width, table.layout.state).with_metadata(metadata)
    written = 0
    with files.open_file(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for entries in table.live_entries():
            for start in range(0, entries.ids.size, BATCH_ROWS):
                chosen = slice(start, start + BATCH_ROWS)
                columns: list[Any] = [pa.array(entries.ids[chosen]), pa.array(entries.times[chosen].astype(np.uint32))]
                both = (entries.weights[chosen], entries.states[chosen])
                columns += [_lists(values) for values in both if values.shape[1]]
                writer.write_batch(pa.record_batch(columns, schema=schema))
            written += entries.ids.size
    return written


def read_facts(path: str) -> DumpFacts:
    """What a dump is of."""
    with _reader(path) as reader:
        return _facts(path, reader.schema)


def load(path: str, table: EmbeddingTable, *, part: tuple[int, int] | None = None) -> int:
    """Store the rows of a dump in a table. Returns how many.

    Args:
        path: the dump.
        table: one with the same columns; for training, with the same optimizers.
        part: (i, n) takes only the ids that are i modulo n, as a shard of n servers does.

    Raises:
        InvalidError: the dump is of another table, or its times are of another kind. Nothing was stored.
        CorruptError: the file is no dump, or damaged. Rows before the damage are stored.
    """
    if part is not None and not 0 <= part[0] < part[1]:
        raise InvalidError([problem("part", part, "must be (i, n) with i from 0 to n - 1")])
    loaded = 0
    with _reader(path) as reader:
        facts = _facts(path, reader.schema)
        _check_fits(path, facts, table)
        for number in range(_batches(path, reader)):
            entries = _read_batch(path, reader, number, facts)
            if part is not None:
                entries = entries.take(np.mod(entries.ids, part[1]) == part[0])
            try:
                table.restore(entries, facts.time_basis, newest=facts.newest)
            except InvalidError as error:
                raise CorruptError(path, 0, f"batch {number}: {error.message}") from None
            loaded += entries.ids.size
    return loaded


def read(path: str) -> Iterator[Entries]:
    """The rows of a dump, batch by batch."""
    with _reader(path) as reader:
        facts = _facts(path, reader.schema)
        for number in range(_batches(path, reader)):
            yield _read_batch(path, reader, number, facts)


def _schema(width: int, state: int) -> Any:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("time", pa.uint32(), nullable=False)]
    for name, size in (("weights", width), ("state", state)):
        if size:
            fields.append(
                pa.field(name, pa.list_(pa.field("item", pa.float32(), nullable=False), size), nullable=False)
            )
    return pa.schema(fields)


def _lists(values: Any) -> Any:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), values.shape[1])
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


@contextlib.contextmanager
def _reader(path: str) -> Iterator[Any]:
    with files.open_file(path, "rb") as file:
        try:
            reader = pa.ipc.open_file(file)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(path, 0, f"this is no Arrow file: {_short(error)}") from None
        yield reader


def _facts(path: str, schema: Any) -> DumpFacts:
    metadata = schema.metadata or {}
    if metadata.get(_FORMAT) != FORMAT or _SETTINGS not in metadata:
        raise CorruptError(path, 0, "this Arrow file is no dump of a table, or one of a newer format")
    settings = TableSettings.from_json(metadata[_SETTINGS], what=path)
    try:
        times = json.loads(metadata.get(_TIMES, b"{}"))
        basis, newest = TimeBasis(times["basis"]), times["newest"]
    except (ValueError, KeyError, TypeError):
        raise CorruptError(path, 0, "the dump does not say of which kind its times are") from None
    if not isinstance(newest, int) or not 0 <= newest < 2**32:
        raise CorruptError(path, 0, "the newest time of the dump is out of range")
    layout = make_layout(settings)
    if not schema.equals(_schema(layout.width, layout.state)):
        raise CorruptError(path, 0, "the columns of the dump are not those of its settings")
    return DumpFacts(settings, basis, newest)


def _batches(path: str, reader: Any) -> int:
    count = int(reader.num_record_batches)
    if count > 2**31:
        raise CorruptError(path, 0, "the dump has too many batches")
    return count


def _read_batch(path: str, reader: Any, number: int, facts: DumpFacts) -> Entries:
    try:
        batch = reader.get_batch(number)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(path, 0, f"batch {number} is damaged: {_short(error)}") from None
    if any(_has_nulls(column) for column in batch.columns):
        raise CorruptError(path, 0, f"batch {number} has nulls")
    layout = make_layout(facts.settings)
    states = np.empty((batch.num_rows, 0), np.float32)
    if layout.state:
        states = _floats(batch.column(3), layout.state)
    times = batch.column(1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Entries(batch.column(0).to_numpy(), times, _floats(batch.column(2), layout.width), states)


def _has_nulls(column: Any) -> bool:
    """Whether a value, or one in a list, is not there. A file may have such whatever its schema says."""
    lists = pa.types.is_fixed_size_list(column.type)
    return bool(column.null_count) or (lists and bool(column.flatten().null_count))


def _floats(column: Any, width: int) -> Any:
    return column.flatten().to_numpy().reshape(-1, width)


def _check_fits(path: str, facts: DumpFacts, table: EmbeddingTable) -> None:
    """The columns must be the same, and for training the optimizers, because their state is in the dump."""
    own, dumped = table.settings, facts.settings
    basis = table.statistics().time_basis
    if len({basis, facts.time_basis} - {TimeBasis.UNKNOWN}) > 1:
        rule = f"must be of kind {basis}, as those of table {own.name!r} are"
        raise InvalidError([problem("times", facts.time_basis, rule)], what=path)
    training = own.kind is TableKind.TRAINING and dumped.kind is TableKind.TRAINING
    mine = [(each.dim, each.optimizer.kind if training else "") for each in own.slices]
    theirs = [(each.dim, each.optimizer.kind if training else "") for each in dumped.slices]
    if mine != theirs:
        rule = f"must have the slices of table {own.name!r}, which are {mine}"
        raise InvalidError([problem("slices", theirs, rule)], what=path)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__

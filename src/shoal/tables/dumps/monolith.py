"""Entry dumps as Monolith's checkpoints have them: a table as TFRecords of `EntryDump`, or many tables in Snappy.

One table is `{base}-00000-of-00004` and so on. Several tables share such files, compressed as TensorFlow compresses
TFRecords, with `{base}.meta-00000-of-00004` beside them, which say how many entries of which table come one after
another. Stock TensorFlow reads them: `TFRecordDataset(path, compression_type="SNAPPY")`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError, problem
from shoal.core.tfrecords import frame, read_records
from shoal.tables.dumps.entries import Templates, stateful
from shoal.tables.dumps.framing import RecordReader, frame_lines, offsets_before
from shoal.tables.dumps.shards import DumpWriter, counts_path, find
from shoal.tables.dumps.snappy import SnappyReader, SnappyWriter
from shoal.tables.layout import Floats
from shoal.tables.settings.optimizers import STEP
from shoal.tables.settings.table import SliceSettings, TableKind
from shoal.tables.table import EmbeddingTable, Entries, TimeBasis
from shoal.wire.pb.monolith.native_training.runtime.hash_table import dump_pb2 as pb

#: Entries that are stored together.
CHUNK = 1 << 14
#: An entry has at most 65,536 weights and three times as many numbers of state, five bytes each.
MAX_ENTRY = 4 << 20
_ENTRIES_PER_FILE = 1_000_000
_MOST_FILES = 4


def write(table: EmbeddingTable, base: str, *, shards: int | None = None) -> list[str]:
    """Write one table as TFRecords. Returns the paths."""
    with DumpWriter(base, _shard_count(shards, len(table))) as dump:
        for number, entries in enumerate(table.live_entries()):
            for record in _records(table, entries):
                dump.files[number % len(dump.files)].write(record)
        dump.commit()
    return dump.paths


def load(base: str, table: EmbeddingTable, *, basis: TimeBasis = TimeBasis.UNKNOWN) -> int:
    """Store the entries of one table's files. Returns how many.

    Args:
        base: what the names of the files begin with, or the path of one file.
        table: where the entries go.
        basis: of which kind the times are, which Monolith's files do not say. Unless it is told, the table's times stay
            of the kind that they are; that of a new table follows from its first update.
    """
    loaded = 0
    for path in find(base):
        with files.open_file(path, "rb") as file:
            loaded += _store(path, table, RecordReader(file, path, MAX_ENTRY), basis)
    return loaded


def write_tables(tables: Mapping[str, EmbeddingTable], base: str, *, shards: int | None = None) -> list[str]:
    """Write several tables into compressed files, ordered by name. Returns the paths, without those of the counts."""
    names = sorted(tables)
    with DumpWriter(base, _shard_count(shards, sum(len(each) for each in tables.values()))) as dump:
        opened = [SnappyWriter(each) for each in dump.files]
        written = [[0] * len(names) for _ in opened]
        for index, name in enumerate(names):
            for number, entries in enumerate(tables[name].live_entries()):
                for record in _records(tables[name], entries):
                    opened[number % len(opened)].write(record)
                written[number % len(opened)][index] += entries.ids.size
        for each in opened:
            each.flush()
        dump.commit([_counts(names, counts) for counts in written])
    return dump.paths


def _counts(names: Sequence[str], counts: Sequence[int]) -> bytes:
    """How many entries of each table come one after another, as a file says it."""
    records = [
        pb.MultiHashTableMetadata(table_name=name, num_entries=entries).SerializeToString()
        for name, entries in zip(names, counts, strict=True)
    ]
    return b"".join(frame(each) for each in records)


def load_tables(
    base: str, tables: Mapping[str, EmbeddingTable], *, basis: TimeBasis = TimeBasis.UNKNOWN
) -> dict[str, int]:
    """Store the entries of compressed files, each in its table. Returns how many each got. `basis` is as for `load`.

    Raises:
        InvalidError: the files have a table that is not given. Nothing of that file was stored.
    """
    loaded = dict.fromkeys(tables, 0)
    for path in find(base):
        counts = _read_counts(counts_path(path))
        unknown = [problem(path, name, "is a table that was not given") for name, _ in counts if name not in tables]
        if unknown:
            raise InvalidError(unknown)
        with files.open_file(path, "rb") as file:
            records = RecordReader(SnappyReader(file, path), path, MAX_ENTRY)
            for name, count in counts:
                taken = _store(path, tables[name], records, basis, count)
                if taken != count:
                    rule = f"table {name} has {taken} entries and not {count}, as its count says"
                    raise CorruptError(path, records.offset, rule)
                loaded[name] += taken
            end = records.offset
            if records.take(1):
                raise CorruptError(path, end, "there are more entries than the counts say")
    return loaded


# ---------------------------------------------------------------------------------------------------------
# Files


def _shard_count(given: int | None, entries: int) -> int:
    if given is None:
        return min(_MOST_FILES, max(1, entries // _ENTRIES_PER_FILE))
    if not 1 <= given <= 99_999:
        raise InvalidError([problem("shards", given, "must be between 1 and 99,999")])
    return given


def _read_counts(path: str) -> list[tuple[str, int]]:
    found = []
    with files.open_file(path, "rb") as file:
        for offset, record in read_records(file, name=path, max_record=MAX_ENTRY):
            try:
                each = pb.MultiHashTableMetadata.FromString(record)
            except DecodeError:
                raise CorruptError(path, offset, "the record is no MultiHashTableMetadata") from None
            found.append((each.table_name, each.num_entries))
    return found


# ---------------------------------------------------------------------------------------------------------
# Entries


def _records(table: EmbeddingTable, entries: Entries) -> Iterator[bytes]:
    """Entries as framed records of `EntryDump`, in their order, many at a time."""
    templates = Templates(table.settings.slices, states=_is_training(table))
    for start in range(0, entries.ids.size, CHUNK):
        some = entries.take(slice(start, start + CHUNK))
        records: list[bytes] = [b""] * some.ids.size
        for template, places in templates.groups(some):
            content = frame_lines(template.write(some.take(places)))
            if places.size == some.ids.size:
                records = [content]
                break
            size = len(content) // places.size
            for number, place in enumerate(places.tolist()):
                records[place] = content[number * size : (number + 1) * size]
        yield b"".join(records)


def _is_training(table: EmbeddingTable) -> bool:
    return table.settings.kind is TableKind.TRAINING


def _store(path: str, table: EmbeddingTable, records: RecordReader, basis: TimeBasis, count: int = sys.maxsize) -> int:
    """Decode up to so many entries and store them, some at a time. Returns how many there were."""
    stored = 0
    while some := records.take(min(CHUNK, count - stored)):
        _store_some(path, table, some, basis, offsets_before(records.offset, some))
        stored += len(some)
    return stored


def _store_some(
    path: str, table: EmbeddingTable, records: Sequence[bytes], basis: TimeBasis, offsets: npt.NDArray[np.int64]
) -> None:
    """Decode and store some entries, given where each begins."""
    found = Entries(
        np.zeros(len(records), np.int64),
        np.zeros(len(records), np.int64),
        np.zeros((len(records), table.layout.width), np.float32),
        table.first_states(len(records)),
    )
    left = np.ones(len(records), np.bool_)
    for states in (True, False) if _is_training(table) else (False,):
        wanted = np.flatnonzero(left)
        templates = Templates(table.settings.slices, states=states)
        for template, places, lines in templates.find([records[each] for each in wanted.tolist()]):
            at = wanted[places]
            _put(found, at, template.read(lines, table.layout.state if states else 0))
            left[at] = False
    others = np.flatnonzero(left)
    if others.size:
        _put(found, others, _decode(path, table, {int(offsets[each]): records[each] for each in others.tolist()}))
    wrong = (found.times < 0) | (found.times >= 2**32)
    if wrong.any():
        raise CorruptError(path, int(offsets[wrong][0]), f"the time of entry {found.ids[wrong][0]} is out of range")
    try:
        table.restore(found, basis, newest=int(found.times.max()))
    except InvalidError as error:
        raise CorruptError(path, int(offsets[0]), error.message) from None


def _put(to: Entries, places: npt.NDArray[np.int64], some: Entries) -> None:
    """Without columns of states, the states stay what they are."""
    to.ids[places], to.times[places], to.weights[places] = some.ids, some.times, some.weights
    if some.states.shape[1]:
        to.states[places] = some.states


def _decode(path: str, table: EmbeddingTable, records: Mapping[int, bytes]) -> Entries:
    """Entries that are not written as serializers write them, by their offsets."""
    held, width = [], table.layout.width
    for offset, record in records.items():
        try:
            each = pb.EntryDump.FromString(record)
        except DecodeError:
            raise CorruptError(path, offset, "the record is no EntryDump") from None
        if len(each.num) != width:
            rule = f"must have the {width} weights of table {table.settings.name!r}"
            raise InvalidError([problem(f"entry {each.id}", len(each.num), rule)], what=path)
        held.append(each)
    return Entries(
        np.array([each.id for each in held], np.int64),
        np.array([each.last_update_ts_sec for each in held], np.int64),
        np.array([each.num for each in held], np.float32),
        _states(path, table, held) if _is_training(table) else np.empty((len(held), 0), np.float32),
    )


def _states(path: str, table: EmbeddingTable, held: Sequence[pb.EntryDump]) -> Floats:
    """The states of entries. Entries without any, as `append_entry_dump` of Monolith writes them, get first states."""
    found = table.first_states(len(held))
    slices, wanted = table.settings.slices, stateful(table.settings.slices)
    for line, each in enumerate(held):
        if not each.HasField("opt"):
            continue
        dumps = list(each.opt.dump)
        if len(dumps) == len(slices) != len(wanted):
            # Earlier versions wrote an empty message for a moving average.
            dumps = [dump for settings, dump in zip(slices, dumps, strict=True) if settings in wanted]
        if len(dumps) != len(wanted):
            rule = f"must have the state of {len(wanted)} slices"
            raise InvalidError([problem(f"entry {each.id}", len(dumps), rule)], what=path)
        start = 0
        for settings, dump in zip(wanted, dumps, strict=True):
            start = _read_state(path, each.id, settings, dump, found[line], start)
    return found


def _read_state(  # noqa: PLR0917  where it is, what it is, where it goes
    path: str, key: int, settings: SliceSettings, dump: Any, line: npt.NDArray[np.float32], start: int
) -> int:
    """Write the state of one slice into a line. Returns where the next begins."""
    kind = settings.optimizer.kind
    if dump.WhichOneof("type") != kind:
        rule = f"must be the state of {kind}, as the slice says"
        raise InvalidError([problem(f"entry {key}", dump.WhichOneof("type"), rule)], what=path)
    message = getattr(dump, kind)
    for name, size in settings.optimizer.state:
        value = getattr(message, name)
        if isinstance(size, str):
            if len(value) != settings.dim:
                rule = f"must have {settings.dim} numbers"
                raise InvalidError([problem(f"entry {key}.{kind}.{name}", len(value), rule)], what=path)
            line[start : start + settings.dim] = value
            start += settings.dim
        elif size == STEP:
            line[start : start + STEP] = np.array([value], np.int64).view(np.float32)
            start += STEP
        else:
            line[start] = value
            start += size
    return start

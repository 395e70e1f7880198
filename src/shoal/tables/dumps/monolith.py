"""Entry dumps as Monolith's checkpoints have them: a table as TFRecords of `EntryDump`, or many tables in Snappy.

One table is `{base}-00000-of-00004` and so on. Several tables share such files, compressed as TensorFlow compresses
TFRecords, with `{base}.meta-00000-of-00004` beside them, which say how many entries of which table come one after
another. Stock TensorFlow reads them: `TFRecordDataset(path, compression_type="SNAPPY")`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError, NotFoundError, problem
from shoal.core.tfrecords import ByteSource, frame, read_records
from shoal.tables.dumps.snappy import SnappyReader, SnappyWriter
from shoal.tables.layout import Floats
from shoal.tables.settings.optimizers import STEP, MovingAverage
from shoal.tables.settings.table import SliceSettings, TableKind
from shoal.tables.table import EmbeddingTable, Entries, TimeBasis
from shoal.wire.pb.monolith.native_training.runtime.hash_table import dump_pb2 as pb

#: Entries that are stored together.
CHUNK = 4096
#: An entry has at most 65,536 weights and three times as many numbers of state, five bytes each.
MAX_ENTRY = 4 << 20
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_ENTRIES_PER_FILE = 1_000_000
_MOST_FILES = 4


def write(table: EmbeddingTable, base: str, *, shards: int | None = None) -> list[str]:
    """Write one table as TFRecords. Returns the paths."""
    count = _shard_count(shards, len(table))
    paths = [_path(base, number, count) for number in range(count)]
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(files.open_file(path, "wb")) for path in paths]
        for number, entries in enumerate(table.live_entries()):
            for record in _records(table, entries):
                opened[number % count].write(frame(record))
    return paths


def load(base: str, table: EmbeddingTable) -> int:
    """Store the entries of one table's files. Returns how many. `base` may also be the path of one file."""
    loaded = 0
    for path in find(base):
        with files.open_file(path, "rb") as file:
            loaded += _store(path, table, (record for _, record in _read(file, path)))
    return loaded


def write_tables(tables: Mapping[str, EmbeddingTable], base: str, *, shards: int | None = None) -> list[str]:
    """Write several tables into compressed files, ordered by name. Returns the paths, without those of the counts."""
    count = _shard_count(shards, sum(len(each) for each in tables.values()))
    paths = [_path(base, number, count) for number in range(count)]
    written = [[0] * len(tables) for _ in paths]
    with contextlib.ExitStack() as stack:
        opened = [SnappyWriter(stack.enter_context(files.open_file(path, "wb"))) for path in paths]
        for index, name in enumerate(sorted(tables)):
            for number, entries in enumerate(tables[name].live_entries()):
                for record in _records(tables[name], entries):
                    opened[number % count].write(frame(record))
                written[number % count][index] += entries.ids.size
        for each in opened:
            each.flush()
    for number, counts in enumerate(written):
        records = [
            pb.MultiHashTableMetadata(table_name=name, num_entries=entries).SerializeToString()
            for name, entries in zip(sorted(tables), counts, strict=True)
        ]
        files.write_atomic(_path(f"{base}.meta", number, count), b"".join(frame(each) for each in records))
    return paths


def load_tables(base: str, tables: Mapping[str, EmbeddingTable]) -> dict[str, int]:
    """Store the entries of compressed files, each in its table. Returns how many each got.

    Raises:
        InvalidError: the files have a table that is not given. Nothing of that file was stored.
    """
    loaded = dict.fromkeys(tables, 0)
    for path in find(base):
        counts = _read_counts(_SHARD.sub(lambda found: f".meta{found.group()}", path))
        unknown = [problem(path, name, "is a table that was not given") for name, _ in counts if name not in tables]
        if unknown:
            raise InvalidError(unknown)
        with files.open_file(path, "rb") as file:
            records = _read(SnappyReader(file, path), path)
            for name, count in counts:
                taken = _store(path, tables[name], (record for _, record in _first(records, count)))
                if taken != count:
                    raise CorruptError(path, 0, f"table {name} has {taken} entries and not {count}, as its count says")
                loaded[name] += taken
            if next(records, None) is not None:
                raise CorruptError(path, 0, "there are more entries than the counts say")
    return loaded


def find(base: str) -> list[str]:
    """The files of a dump, all of them, in order."""
    if _SHARD.search(base):
        return [base]
    own = files.name(base)
    found: dict[int, tuple[int, str]] = {}
    for entry in files.list_files(files.parent(base)):
        shard = _SHARD.search(entry.path)
        if shard is not None and files.name(entry.path)[: -len(shard.group())] == own:
            found[int(shard[1])] = (int(shard[2]), entry.path)
    if not found:
        raise NotFoundError("table dump", base)
    counts = {count for count, _ in found.values()}
    if len(counts) != 1 or sorted(found) != list(range(counts.pop())):
        shown = ", ".join(files.name(found[number][1]) for number in sorted(found))
        raise InvalidError([problem("files", shown, "must be all of one dump, and of one dump only")], what=base)
    return [found[number][1] for number in sorted(found)]


# ---------------------------------------------------------------------------------------------------------
# Files


def _path(base: str, number: int, count: int) -> str:
    return f"{base}-{number:05d}-of-{count:05d}"


def _shard_count(given: int | None, entries: int) -> int:
    if given is None:
        return min(_MOST_FILES, max(1, entries // _ENTRIES_PER_FILE))
    if not 1 <= given <= 99_999:
        raise InvalidError([problem("shards", given, "must be between 1 and 99,999")])
    return given


def _read(source: ByteSource, path: str) -> Iterator[tuple[int, bytes]]:
    return read_records(source, name=path, max_record=MAX_ENTRY)


def _first(records: Iterator[tuple[int, bytes]], count: int) -> Iterator[tuple[int, bytes]]:
    for _ in range(count):
        record = next(records, None)
        if record is None:
            return
        yield record


def _read_counts(path: str) -> list[tuple[str, int]]:
    found = []
    with files.open_file(path, "rb") as file:
        for offset, record in _read(file, path):
            try:
                each = pb.MultiHashTableMetadata.FromString(record)
            except DecodeError:
                raise CorruptError(path, offset, "the record is no MultiHashTableMetadata") from None
            found.append((each.table_name, each.num_entries))
    return found


# ---------------------------------------------------------------------------------------------------------
# Entries


def _records(table: EmbeddingTable, entries: Entries) -> Iterator[bytes]:
    """Each entry as the bytes of an `EntryDump`."""
    fillers = _fillers(table.settings.slices) if table.layout.state or _is_training(table) else []
    lines = zip(entries.ids.tolist(), entries.times.tolist(), entries.weights.tolist(), entries.states, strict=True)
    for key, time, weights, states in lines:
        entry = pb.EntryDump(id=key, num=weights, last_update_ts_sec=time)
        for fill in fillers:
            fill(entry.opt.dump.add(), states)
        yield entry.SerializeToString()


def _is_training(table: EmbeddingTable) -> bool:
    return table.settings.kind is TableKind.TRAINING


def _fillers(slices: Sequence[SliceSettings]) -> list[Callable[[Any, Floats], None]]:
    """How the state of each slice is written into its message."""
    found: list[Callable[[Any, Floats], None]] = []
    start = 0
    for each in slices:
        spans = []
        for name, size in each.optimizer.state:
            length = each.dim if isinstance(size, str) else size
            spans.append((name, size, start, start + length))
            start += length
        found.append(_filler(each, tuple(spans)))
    return found


def _filler(each: SliceSettings, spans: tuple[tuple[str, str | int, int, int], ...]) -> Callable[[Any, Floats], None]:
    kind = each.optimizer.kind

    def fill(dump: Any, states: Floats) -> None:
        if isinstance(each.optimizer, MovingAverage):
            return  # it has no state, and no message
        message = getattr(dump, kind)
        message.SetInParent()
        for name, size, begin, end in spans:
            part = states[begin:end]
            if isinstance(size, str):
                getattr(message, name).extend(part.tolist())
            else:
                setattr(message, name, _step_of(part) if size == STEP else float(part[0]))

    return fill


def _step_of(part: Floats) -> int:
    low, high = part.view(np.int32).tolist()
    return int((high << 32) | (low & 0xFFFFFFFF))


def _store(path: str, table: EmbeddingTable, records: Iterator[bytes]) -> int:
    """Decode entries and store them, some at a time."""
    stored, number = 0, 0
    held: list[pb.EntryDump] = []
    for number, record in enumerate(records, start=1):
        try:
            held.append(pb.EntryDump.FromString(record))
        except DecodeError:
            raise CorruptError(path, 0, f"record {number} is no EntryDump") from None
        if len(held) == CHUNK:
            stored += _store_some(path, table, held)
            held = []
    return stored + _store_some(path, table, held)


def _store_some(path: str, table: EmbeddingTable, held: Sequence[pb.EntryDump]) -> int:
    if not held:
        return 0
    width = table.layout.width
    for each in held:
        if len(each.num) != width:
            rule = f"must have the {width} weights of table {table.settings.name!r}"
            raise InvalidError([problem(f"entry {each.id}", len(each.num), rule)], what=path)
        if not 0 <= each.last_update_ts_sec < 2**32:
            raise CorruptError(path, 0, f"the time of entry {each.id} is out of range")
    ids = np.array([each.id for each in held], np.int64)
    times = np.array([each.last_update_ts_sec for each in held], np.int64)
    weights = np.array([each.num for each in held], np.float32)
    states = _states(path, table, held) if _is_training(table) else np.empty((len(held), 0), np.float32)
    basis = TimeBasis.EVENT if times.any() else TimeBasis.UNKNOWN
    try:
        table.restore(Entries(ids, times, weights, states), basis, newest=int(times.max()))
    except InvalidError as error:
        raise CorruptError(path, 0, error.message) from None
    return len(held)


def _states(path: str, table: EmbeddingTable, held: Sequence[pb.EntryDump]) -> Floats:
    """The states of entries. Entries without any, as `append_entry_dump` of Monolith writes them, get first states."""
    if not any(each.HasField("opt") for each in held):
        return table.first_states(len(held))
    found = table.first_states(len(held))
    for line, each in enumerate(held):
        if len(each.opt.dump) != len(table.settings.slices):
            rule = f"must have the state of {len(table.settings.slices)} slices"
            raise InvalidError([problem(f"entry {each.id}", len(each.opt.dump), rule)], what=path)
        start = 0
        for settings, dump in zip(table.settings.slices, each.opt.dump, strict=True):
            start = _read_state(path, each.id, settings, dump, found[line], start)
    return found


def _read_state(  # noqa: PLR0917  where it is, what it is, where it goes
    path: str, key: int, settings: SliceSettings, dump: Any, line: npt.NDArray[np.float32], start: int
) -> int:
    """Write the state of one slice into a line. Returns where the next begins."""
    kind = settings.optimizer.kind
    if isinstance(settings.optimizer, MovingAverage):
        return start
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

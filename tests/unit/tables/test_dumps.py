"""Dumps: what is written is read, in both formats, and files that are no dumps are refused with words."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import CorruptError, InvalidError, NotFoundError, ShoalError
from shoal.core.tfrecords import frame, read_records
from shoal.tables.dumps import arrow, monolith
from shoal.tables.dumps.framing import RecordReader, frame_lines
from shoal.tables.dumps.snappy import SnappyReader
from shoal.tables.settings.compressors import Fp16
from shoal.tables.settings.optimizers import (
    OPTIMIZERS,
    Adagrad,
    Adam,
    BatchSoftmax,
    DynamicWdAdagrad,
    Ftrl,
    MovingAverage,
    Sgd,
)
from shoal.tables.settings.table import ExpirySettings, SliceSettings, TableKind, TableSettings
from shoal.tables.table import EmbeddingTable, Entries, TimeBasis
from shoal.wire.pb.monolith.native_training.runtime.hash_table import dump_pb2 as pb

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tables"
EVERY = tuple(SliceSettings(1 if kind is BatchSoftmax else 3, optimizer=kind()) for kind in OPTIMIZERS)


def filled(slices=EVERY, count: int = 500, **more) -> EmbeddingTable:
    table = EmbeddingTable(TableSettings(slices, **more))
    generator = np.random.default_rng(1)
    ids = generator.integers(-(2**63), 2**63 - 1, count)
    for step in (3, 2**40):
        gradients = generator.normal(size=(count, table.settings.dim)).astype(np.float32)
        table.apply(ids, gradients, step=step, event_times=1_700_000_000 + np.arange(count))
    return table


def contents(table: EmbeddingTable) -> dict[int, tuple]:
    found = {}
    for each in table.entries():
        for key, time, weights, states in zip(each.ids, each.times, each.weights, each.states, strict=True):
            found[int(key)] = (int(time), weights.tobytes(), states.tobytes())
    return found


# ---------------------------------------------------------------------------------------------------------
# Arrow


def test_arrow_keeps_everything(tmp_path: Path) -> None:
    table, path = filled(expiry=ExpirySettings(10**9)), str(tmp_path / "t.arrow")
    assert arrow.write(table, path) == 500
    facts = arrow.read_facts(path)
    assert facts.settings == table.settings
    assert (facts.time_basis, facts.newest) == (TimeBasis.EVENT, 1_700_000_499)
    copy = EmbeddingTable(facts.settings)
    assert arrow.load(path, copy) == 500
    assert contents(copy) == contents(table)
    statistics = copy.statistics()
    assert (statistics.time_basis, statistics.newest) == (TimeBasis.EVENT, 1_700_000_499)
    gradients = np.ones((500, table.settings.dim), np.float32)
    ids = np.array(sorted(contents(table)))
    for each in (table, copy):
        each.apply(ids, gradients, step=2**40 + 1, event_times=1_700_000_600)
    assert contents(copy) == contents(table)  # what follows is the same, too
    assert sum(each.ids.size for each in arrow.read(path)) == 500


def test_arrow_leaves_out_what_has_expired(tmp_path: Path) -> None:
    table = filled(expiry=ExpirySettings(100))
    path = str(tmp_path / "t.arrow")
    assert arrow.write(table, path) == 100
    assert len(table) == 500


def test_a_dump_of_training_serves(tmp_path: Path) -> None:
    slices = (SliceSettings(4, optimizer=Adam(), compressor=Fp16()), SliceSettings(1, optimizer=Ftrl()))
    table, path = filled(slices), str(tmp_path / "t.arrow")
    arrow.write(table, path)
    ids = np.array(sorted(contents(table)))
    total = 0
    for part in range(3):
        serving = EmbeddingTable(TableSettings(slices, kind=TableKind.SERVING))
        total += arrow.load(path, serving, part=(part, 3))
        chosen = ids[np.mod(ids, 3) == part]
        assert len(serving) == chosen.size
        expected = table.lookup(chosen)
        expected[:, :4] = expected[:, :4].astype(np.float16)
        assert np.array_equal(serving.lookup(chosen), expected)
    assert total == 500


def test_arrow_of_an_empty_table(tmp_path: Path) -> None:
    path = str(tmp_path / "t.arrow")
    empty = EmbeddingTable(TableSettings((SliceSettings(2, optimizer=Sgd()),)))
    assert arrow.write(empty, path) == 0
    assert arrow.load(path, empty) == 0


def test_arrow_of_another_table_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t.arrow")
    arrow.write(filled((SliceSettings(2),)), path)
    for slices in ((SliceSettings(3),), (SliceSettings(2, optimizer=Adam()),), (SliceSettings(1), SliceSettings(1))):
        other = EmbeddingTable(TableSettings(slices))
        with pytest.raises(InvalidError, match="slices: must have the slices of table"):
            arrow.load(path, other)
        assert len(other) == 0
    arrival = EmbeddingTable(TableSettings((SliceSettings(2),)))
    arrival.apply([1], [[1.0, 1.0]])
    with pytest.raises(InvalidError, match="times: must be of kind arrival") as caught:
        arrow.load(path, arrival)
    assert not isinstance(caught.value, CorruptError), "the file is what it says"
    for part in ((0, 0), (2, 2), (-1, 2)):
        with pytest.raises(InvalidError, match="part: must be"):
            arrow.load(path, other, part=part)


@given(data=st.data())
def test_a_damaged_arrow_file_is_refused_or_read(data, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("dump")
    path = folder / "t.arrow"
    arrow.write(filled((SliceSettings(2),), 20), str(path))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        arrow.load(str(path), EmbeddingTable(TableSettings((SliceSettings(2),))))
    except ShoalError as error:
        assert str(path) in str(error)  # noqa: PT017  a change in a weight is not found, and need not be


def test_other_arrow_files_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "x.arrow")
    table = EmbeddingTable(TableSettings((SliceSettings(2),)))
    with pytest.raises(NotFoundError):
        arrow.load(path, table)
    settings = table.settings.to_json().encode()
    times = json.dumps({"basis": "arrival", "newest": 1}).encode()
    good = {b"shoal.table": settings, b"shoal.format": b"1", b"shoal.times": times}
    cases = [
        (None, "no dump of a table"),
        ({**good, b"shoal.format": b"2"}, "newer format"),
        ({**good, b"shoal.times": b"{}"}, "of which kind its times are"),
        ({**good, b"shoal.times": json.dumps({"basis": "arrival", "newest": -1}).encode()}, "out of range"),
        ({**good, b"shoal.table": b"[]"}, "slices"),
        (good, "the columns of the dump are not those"),
    ]
    for metadata, message in cases:
        schema = pa.schema([("id", pa.int64())], metadata=metadata)
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(pa.record_batch([pa.array([1])], schema=schema))
        with pytest.raises(InvalidError, match=message):
            arrow.load(path, table)
    Path(path).write_bytes(b"ARROW1\0\0 is not enough")
    with pytest.raises(CorruptError, match="no Arrow file"):
        arrow.load(path, table)


@pytest.mark.parametrize("column", ["id", "time", "weights", "state"])
@pytest.mark.parametrize("read", [arrow.load, lambda path, _: list(arrow.read(path))])
def test_an_arrow_file_with_a_value_that_is_not_there_is_refused(tmp_path: Path, column: str, read) -> None:
    """Its schema allows none, and neither writers nor readers of Arrow keep to that."""
    path = str(tmp_path / "t.arrow")
    table = filled((SliceSettings(2),), 3)
    arrow.write(table, path)
    with pa.ipc.open_file(path) as reader:
        schema, batch = reader.schema, reader.get_batch(0)
    columns = dict(zip(schema.names, batch.columns, strict=True))
    kind = columns[column].type
    if pa.types.is_fixed_size_list(kind):
        values = pa.array([None, *columns[column].flatten().to_pylist()[1:]], pa.float32())
        columns[column] = pa.FixedSizeListArray.from_arrays(values, type=kind)
    else:
        columns[column] = pa.array([None, *columns[column].to_pylist()[1:]], kind)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([*columns.values()], schema=schema))
    with pytest.raises(CorruptError, match="batch 0 has nulls"):
        read(path, table)


def test_weights_that_are_not_finite_are_refused() -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(1, optimizer=Sgd()),)))
    one = np.array([1])
    bad = Entries(one, one, np.array([[np.inf]], np.float32), np.zeros((1, 0), np.float32))
    with pytest.raises(InvalidError, match="weights: must be finite"):
        table.restore(bad, TimeBasis.EVENT, newest=1)


# ---------------------------------------------------------------------------------------------------------
# Monolith


@pytest.mark.parametrize("shards", [1, 3])
def test_entry_dumps_keep_everything(tmp_path: Path, shards: int) -> None:
    table, base = filled(), str(tmp_path / "MonolithHashTable_users")
    paths = monolith.write(table, base, shards=shards)
    assert [Path(each).name for each in paths] == [
        f"MonolithHashTable_users-{number:05d}-of-{shards:05d}" for number in range(shards)
    ]
    copy = EmbeddingTable(table.settings)
    assert monolith.load(base, copy) == 500
    assert contents(copy) == contents(table)


def test_several_tables_share_compressed_files(tmp_path: Path) -> None:
    tables = {"b": filled(count=300), "a": filled((SliceSettings(2),), 400), "c": filled((SliceSettings(1),), 0)}
    base = str(tmp_path / "MonolithMultiHashTable_ps0")
    monolith.write_tables(tables, base, shards=2)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "MonolithMultiHashTable_ps0-00000-of-00002",
        "MonolithMultiHashTable_ps0-00001-of-00002",
        "MonolithMultiHashTable_ps0.meta-00000-of-00002",
        "MonolithMultiHashTable_ps0.meta-00001-of-00002",
    ]
    copies = {name: EmbeddingTable(each.settings) for name, each in tables.items()}
    assert monolith.load_tables(base, copies) == {"a": 400, "b": 300, "c": 0}
    assert {name: contents(each) for name, each in copies.items()} == {
        name: contents(each) for name, each in tables.items()
    }
    with pytest.raises(InvalidError, match="is a table that was not given"):
        monolith.load_tables(base, {"a": copies["a"]})


def test_a_table_that_loads_its_own_dump_goes_on(tmp_path: Path) -> None:
    """Monolith's files do not say of which kind their times are: the table does, or its next update."""
    base, one = str(tmp_path / "t"), np.ones((1, 2), np.float32)
    for times in (None, 1_700_000_000):
        table = EmbeddingTable(TableSettings((SliceSettings(2),), expiry=ExpirySettings(100)))
        table.apply([7], one, event_times=times)
        monolith.write(table, base)
        monolith.write_tables({"a": table}, f"{base}-all")
        copies = [EmbeddingTable(table.settings) for _ in range(2)]
        monolith.load(base, copies[0])
        monolith.load_tables(f"{base}-all", {"a": copies[1]})
        for copy in (table, *copies):
            if copy is table:
                monolith.load(base, copy)
            assert copy.statistics().newest == table.statistics().newest
            copy.apply([8], one, event_times=times)
            assert (len(copy), copy.statistics().time_basis) == (2, table.statistics().time_basis)
            assert copy.expire() == 0
        told = EmbeddingTable(table.settings)
        monolith.load(base, told, basis=TimeBasis.EVENT)
        assert told.statistics().time_basis is TimeBasis.EVENT
        with pytest.raises(InvalidError, match="must be given always or never"):
            told.apply([8], one)


KILLED = """
import json, os, signal, sys
import numpy as np
from shoal.core import faults
from shoal.core.errors import InvalidError, NotFoundError
from shoal.tables.dumps import monolith
from shoal.tables import EmbeddingTable, SliceSettings, TableSettings

SETTINGS = TableSettings((SliceSettings(1),))


def table(first, count=5):
    made = EmbeddingTable(SETTINGS)
    made.assign(np.arange(first, first + count), np.ones((count, 1), np.float32), event_times=1)
    return made


def write(base, shards, made):
    if "all" in base:
        monolith.write_tables({"a": made}, base, shards=shards)
    else:
        monolith.write(made, base, shards=shards)


def read(base):
    found = EmbeddingTable(SETTINGS)
    try:
        if "all" in base:
            monolith.load_tables(base, {"a": found})
        else:
            monolith.load(base, found)
    except (InvalidError, NotFoundError) as error:
        return type(error).__name__
    return sorted(int(key) for each in found.entries() for key in each.ids)


def killed_at(number, base, shards, made):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == signal.SIGKILL
    left = iter(range(number))
    for point in faults.POINTS:
        faults.arm(point, lambda _: next(left, None) is None and os.kill(os.getpid(), signal.SIGKILL))
    write(base, shards, made)
    os._exit(0)


old, new, last, found = table(0), table(100), table(200), {}
monolith.CHUNK = 2
for name, pairs in (("one", ((1, 1), (2, 2), (2, 3))), ("all", ((0, 2), (1, 1), (2, 1)))):
    for before, after in pairs:
        base, number, seen = f"{sys.argv[1]}/{name}-{before}-{after}", 0, []
        while True:
            if before:
                write(base, before, old)
            elif number:
                for each in os.listdir(sys.argv[1]):
                    os.unlink(f"{sys.argv[1]}/{each}")
            if not killed_at(number, base, after, new):
                break
            seen.append(read(base))
            number += 1
        write(base, after, last)
        found[f"{name}-{before}-{after}"] = [seen, read(base)]
print(json.dumps(found))
"""
NEW, LAST = list(range(100, 105)), list(range(200, 205))


def test_a_killed_writer_leaves_no_mix_of_two_dumps(tmp_path: Path) -> None:
    """Killed at every point, with fewer, as many and more files than before, each also with files of counts."""
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert len(found) == 6
    for name, (seen, last) in found.items():
        assert last == LAST, name
        assert [each for each in seen[:-1] if each not in ("InvalidError", "NotFoundError")] == [], name
        assert seen[-1] == NEW, name
    # A dump of one file is replaced in one step.
    assert found["one-1-1"][0] == [NEW]


def test_a_dump_that_cannot_be_written_leaves_the_previous_one(tmp_path: Path) -> None:
    table, base = filled((SliceSettings(2),)), str(tmp_path / "t")
    monolith.write(table, base, shards=2)
    before = contents(table)
    table.assign([1], np.ones((1, 2), np.float32), event_times=1_700_000_000)

    def failing() -> Iterator[Entries]:
        yield from EmbeddingTable.live_entries(table)
        raise OSError("no more")

    table.live_entries = failing  # type: ignore[method-assign]
    for write in (lambda: monolith.write(table, base, shards=2), lambda: monolith.write_tables({"a": table}, base)):
        with pytest.raises(OSError, match="no more"):
            write()
        copy = EmbeddingTable(table.settings)
        monolith.load(base, copy)
        assert contents(copy) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t-00000-of-00002", "t-00001-of-00002"]


def test_an_entry_is_the_message_that_monolith_knows(tmp_path: Path) -> None:
    slices = (SliceSettings(1, optimizer=DynamicWdAdagrad()), SliceSettings(2, optimizer=Adam()))
    table = EmbeddingTable(TableSettings(slices))
    table.assign([-7], [[1.0, 2.0, 3.0]], event_times=12)
    table.apply([-7], [[0.0, 0.0, 0.0]], step=2**33, event_times=13)
    monolith.write(table, str(tmp_path / "t"))
    record = (tmp_path / "t-00000-of-00001").read_bytes()[12:-4]
    entry = pb.EntryDump.FromString(record)
    assert (entry.id, list(entry.num), entry.last_update_ts_sec) == (-7, [1.0, 2.0, 3.0], 13)
    assert entry.opt.dump[0].dynamic_wd_adagrad.last_update_step == 2**33
    assert entry.opt.dump[1].adam.beta1_power == pytest.approx(0.81)
    # sfixed64, floats that are not packed, and the numbers of SingleOptimizerDump.
    assert record.startswith(b"\x09" + (-7).to_bytes(8, "little", signed=True) + b"\x15\x00\x00\x80\x3f\x15")
    assert b"\x22" in record  # dynamic_wd_adagrad is member 4 there, and 5 in the configuration


def as_messages(table: EmbeddingTable) -> list[bytes]:
    """The entries of a table as protobuf writes them, message by message."""
    found = []
    for each in table.entries():
        for key, time, weights, states in zip(each.ids, each.times, each.weights, each.states, strict=True):
            entry = pb.EntryDump(id=int(key), num=weights.tolist(), last_update_ts_sec=int(time))
            start = 0
            for settings in table.settings.slices:
                if settings.optimizer.kind == "moving_average":
                    entry.opt.SetInParent()
                    continue  # Monolith saves nothing of it
                dump = entry.opt.dump.add()
                message = getattr(dump, settings.optimizer.kind)
                message.SetInParent()
                for name, size in settings.optimizer.state:
                    length = settings.dim if size == "dim" else size
                    part = states[start : start + length]
                    start += length
                    if size == "dim":
                        getattr(message, name).extend(part.tolist())
                    else:
                        setattr(message, name, int(part.view(np.int64)[0]) if size == 2 else float(part[0]))
            found.append(entry.SerializeToString())
    return found


@pytest.mark.parametrize(
    "slices", [EVERY, *((each,) for each in EVERY)], ids=["every", *(each.optimizer.kind for each in EVERY)]
)
def test_entries_are_the_bytes_that_protobuf_writes(tmp_path: Path, slices: tuple[SliceSettings, ...]) -> None:
    table = EmbeddingTable(TableSettings(slices))
    width = table.settings.dim
    ids = np.array([0, -1, 2**63 - 1, -(2**63), 12345])
    # Times and steps of every length.
    for number, (time, step) in enumerate(((0, 0), (127, 128), (128, 2**14), (2**31, 2**35), (2**32 - 1, 2**62))):
        table.apply(ids[: number + 1], np.ones((number + 1, width), np.float32), step=step, event_times=time)
        table.apply([10 + number], np.ones((1, width), np.float32), step=step, event_times=time)
    monolith.write(table, str(tmp_path / "t"))
    expected = b"".join(frame(each) for each in as_messages(table))
    assert (tmp_path / "t-00000-of-00001").read_bytes() == expected
    copy = EmbeddingTable(table.settings)
    assert monolith.load(str(tmp_path / "t"), copy) == 10
    assert contents(copy) == contents(table)


@given(data=st.data())
def test_records_that_were_changed_mean_what_protobuf_says(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes are changed, removed and added under good checksums: the rows are those of the messages, or none."""
    slices = (SliceSettings(2, optimizer=DynamicWdAdagrad()), SliceSettings(1, optimizer=Ftrl()))
    table = filled(slices, 3)
    records = [bytearray(each) for each in as_messages(table)]
    for record in records[: data.draw(st.integers(0, 3))]:
        place = data.draw(st.integers(0, len(record) - 1))
        record[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    path = tmp_path_factory.mktemp("dump") / "t-00000-of-00001"
    path.write_bytes(b"".join(frame(bytes(each)) for each in records))
    copy = EmbeddingTable(table.settings)
    try:
        monolith.load(str(path), copy)
    except InvalidError:
        assert len(copy) == 0
        return
    decoded = [pb.EntryDump.FromString(bytes(each)) for each in records]
    expected = {each.id: (each.last_update_ts_sec, np.array(each.num, np.float32).tobytes()) for each in decoded}
    assert {key: value[:2] for key, value in contents(copy).items()} == expected


@given(payloads=st.lists(st.binary(max_size=300), max_size=30), size=st.integers(1, 700), data=st.data())
def test_records_are_found_as_the_plain_reader_finds_them(
    payloads: list[bytes], size: int, data: st.DataObject
) -> None:
    content = bytearray(b"".join(frame(each) for each in payloads))
    if content and data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        del content[data.draw(st.integers(0, len(content))) :]

    class Slow(io.BytesIO):
        def read(self, wanted: int | None = -1, /) -> bytes:
            return super().read(min(wanted or 0, size))

    def outcome(records: Iterator[bytes]) -> tuple[list[bytes], str]:
        found: list[bytes] = []
        try:
            for each in records:
                found.append(each)
        except CorruptError as error:
            return found, str(error)
        return found, ""

    def batches() -> Iterator[bytes]:
        reader = RecordReader(Slow(bytes(content)), "x", 250)
        while some := reader.take(7):
            yield from some

    plain = (each for _, each in read_records(io.BytesIO(bytes(content)), name="x", max_record=250))
    assert outcome(batches()) == outcome(plain)


@given(lines=st.integers(0, 5), width=st.integers(0, 40), data=st.data())
def test_lines_are_framed_as_records(lines: int, width: int, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=lines * width, max_size=lines * width))
    made = np.frombuffer(content, np.uint8).reshape(lines, width)
    assert frame_lines(made) == b"".join(frame(each.tobytes()) for each in made)


def test_entries_of_earlier_versions_have_an_empty_message_for_a_moving_average(tmp_path: Path) -> None:
    table = filled((SliceSettings(1, optimizer=MovingAverage()), SliceSettings(2, optimizer=Adam())), 20)
    records = []
    for each in as_messages(table):
        entry = pb.EntryDump.FromString(each)
        (adam,) = entry.opt.dump
        entry.opt.CopyFrom(pb.OptimizerDump(dump=[pb.SingleOptimizerDump(), adam]))
        records.append(frame(entry.SerializeToString()))
    path = tmp_path / "t-00000-of-00001"
    path.write_bytes(b"".join(records))
    copy = EmbeddingTable(table.settings)
    assert monolith.load(str(path), copy) == 20
    assert contents(copy) == contents(table)


def test_the_last_entry_of_an_id_wins_however_it_is_written(tmp_path: Path) -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(1, optimizer=Sgd()),)))
    usual = [pb.EntryDump(id=5, num=[value], last_update_ts_sec=9) for value in (1.0, 3.0)]
    for each in usual:
        each.opt.dump.add().sgd.SetInParent()
    # Without a time, and with packed floats: only protobuf reads it.
    odd = b"\x09" + (5).to_bytes(8, "little") + b"\x12\x04" + np.float32(2.0).tobytes()
    first, last = (each.SerializeToString() for each in usual)
    for records, value in (((first, odd, last), 3.0), ((first, last, odd), 2.0)):
        assert monolith.load(entry_file(tmp_path, *records), table) == 3
        assert table.lookup([5]).tolist() == [[value]]


def test_entries_without_state_get_the_first_one(tmp_path: Path) -> None:
    path = tmp_path / "emb-00000-of-00001"
    path.write_bytes(frame(pb.EntryDump(id=5, num=[1.0, 2.0]).SerializeToString()))
    table = EmbeddingTable(TableSettings((SliceSettings(2, optimizer=Adagrad(initial_accumulator=0.5)),)))
    assert monolith.load(str(path), table) == 1
    assert table.lookup([5]).tolist() == [[1.0, 2.0]]
    assert next(table.entries()).states.tolist() == [[0.5, 0.5]]


def entry_file(tmp_path: Path, *entries: bytes) -> str:
    path = tmp_path / "t-00000-of-00001"
    path.write_bytes(b"".join(frame(each) for each in entries))
    return str(path)


def test_entries_of_another_table_are_refused(tmp_path: Path) -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(2),)))
    good = pb.EntryDump(id=1, num=[1.0, 2.0])
    good.opt.dump.add().adagrad.norm.extend([1.0, 2.0])
    cases = {
        "must have the 2 weights": pb.EntryDump(id=1, num=[1.0]),
        "time of entry 1 is out of range": pb.EntryDump(id=1, num=[1.0, 2.0], last_update_ts_sec=-1),
        "weights: must be finite": pb.EntryDump(id=1, num=[1.0, float("nan")]),
    }
    two, other, short = pb.EntryDump(), pb.EntryDump(), pb.EntryDump()
    for each in (two, other, short):
        each.CopyFrom(good)
    two.opt.dump.add().sgd.SetInParent()
    other.opt.dump[0].ftrl.SetInParent()
    del short.opt.dump[0].adagrad.norm[0]
    cases |= {"state of 1 slices": two, "must be the state of adagrad": other, "must have 2 numbers": short}
    for message, entry in cases.items():
        with pytest.raises(InvalidError, match=message):
            monolith.load(entry_file(tmp_path, entry.SerializeToString()), table)
    with pytest.raises(CorruptError, match="the record is no EntryDump") as caught:
        monolith.load(entry_file(tmp_path, good.SerializeToString(), b"\xff\xff"), table)
    assert caught.value.offset == len(frame(good.SerializeToString()))
    assert len(table) == 0


def test_dumps_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    table = filled((SliceSettings(2),))
    base = str(tmp_path / "t")
    with pytest.raises(NotFoundError, match="table dump"):
        monolith.load(base, table)
    paths = monolith.write(table, base, shards=3)
    Path(paths[1]).unlink()
    with pytest.raises(InvalidError, match="must be all of one dump"):
        monolith.load(base, table)
    with pytest.raises(InvalidError, match="shards: must be between"):
        monolith.write(table, base, shards=0)
    multi = str(tmp_path / "m")
    (path,) = monolith.write_tables({"a": table}, multi, shards=1)
    content = Path(path).read_bytes()
    fresh = {"a": EmbeddingTable(table.settings)}
    Path(path).write_bytes(content[:-5])
    with pytest.raises(CorruptError, match="ends within a block"):
        monolith.load_tables(multi, fresh)
    Path(path).write_bytes(b"\xff\xff\xff\xff" + content)
    with pytest.raises(CorruptError, match="a block has at most"):
        monolith.load_tables(multi, fresh)
    Path(path).write_bytes(b"\x00\x00\x00\x05\xff\xff\xff\xff\x7f")
    with pytest.raises(CorruptError, match="size that no block has"):
        monolith.load_tables(multi, fresh)
    Path(path).write_bytes(b"\x00\x00\x00\x03\x05\x01\x02")
    with pytest.raises(CorruptError, match="no Snappy data"):
        monolith.load_tables(multi, fresh)
    Path(path).write_bytes(content)
    meta = tmp_path / "m.meta-00000-of-00001"
    for count, message in ((499, "more entries than the counts say"), (501, "has 500 entries and not 501")):
        meta.write_bytes(frame(pb.MultiHashTableMetadata(table_name="a", num_entries=count).SerializeToString()))
        with pytest.raises(CorruptError, match=message):
            monolith.load_tables(multi, fresh)


@given(content=st.binary(max_size=200))
def test_bytes_that_are_no_dump(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("dump") / "t-00000-of-00001"
    path.write_bytes(content)
    table = EmbeddingTable(TableSettings((SliceSettings(2),)))
    if content:
        with pytest.raises(InvalidError):
            monolith.load(str(path), table)
    reader = SnappyReader(io.BytesIO(content), "x")
    try:
        while reader.read(10):
            pass
    except CorruptError as error:
        assert error.path == "x"  # noqa: PT017  rubbish may be a block by chance


# ---------------------------------------------------------------------------------------------------------
# Files that stock TensorFlow wrote; `tests/long/tables` makes them anew


def test_files_of_tensorflow_are_read() -> None:
    entries = [
        pb.EntryDump.FromString(bytes.fromhex(each)) for each in json.loads((GOLDEN / "entries.json").read_text())
    ]
    settings = TableSettings((SliceSettings(2),))
    plain, packed = EmbeddingTable(settings), EmbeddingTable(settings)
    assert monolith.load(str(GOLDEN / "plain"), plain) == len(entries)
    assert monolith.load_tables(str(GOLDEN / "packed"), {"users": packed}) == {"users": len(entries)}
    for table in (plain, packed):
        assert table.lookup([each.id for each in entries]).tolist() == [list(each.num) for each in entries]
        assert {key: time for key, (time, _, _) in contents(table).items()} == {
            each.id: each.last_update_ts_sec for each in entries
        }

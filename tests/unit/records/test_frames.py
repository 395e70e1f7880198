"""Framed files and TFRecords: every header, every compression, every cut."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError
from shoal.records.bad_records import BadRecords, OnBad
from shoal.records.formats import compression as compressing
from shoal.records.formats.compression import Compression, open_sink, open_source
from shoal.records.formats.frames import FrameFormat, PayloadType, frame, write_frames
from shoal.records.formats.reading import RecordFormat, framed, read_payloads, tfrecord
from shoal.records.formats.tfrecords import write_tfrecords

FLAGS = [FrameFormat(*flags) for flags in itertools.product((False, True), repeat=4)]
RECORDS = [b"", b"one", bytes(range(256)) * 5, b"x" * 70_000]


def read_all(path, form, bad=None):
    return [payload for payloads in read_payloads(path, form, bad) for payload in payloads]


def u64(value):
    return struct.pack("<Q", value)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("compression", Compression)
def test_what_was_written_is_read(tmp_path, flags, compression):
    path = str(tmp_path / "f")
    assert write_frames(path, RECORDS, flags, compression=compression) == len(RECORDS)
    assert read_all(path, RecordFormat(flags, compression)) == RECORDS


@pytest.mark.parametrize("compression", Compression)
def test_tfrecords_are_read(tmp_path, compression):
    path = str(tmp_path / "f")
    assert write_tfrecords(path, RECORDS, compression=compression) == len(RECORDS)
    assert read_all(path, tfrecord(compression=compression)) == RECORDS


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".zlib", ".lz4", ".snappy", ""])
def test_the_name_says_the_compression(tmp_path, suffix):
    path, records = str(tmp_path / f"f{suffix}"), str(tmp_path / f"t{suffix}")
    write_frames(path, RECORDS)
    write_tfrecords(records, RECORDS)
    assert read_all([path, path], framed()) == RECORDS * 2
    assert read_all(records, tfrecord()) == RECORDS
    assert (files.size(path) < 20_000) is bool(suffix)


def test_snappy_of_frames_is_hadoops_and_of_tfrecords_tensorflows(tmp_path):
    framed_path, path = str(tmp_path / "f.snappy"), str(tmp_path / "t.snappy")
    write_frames(framed_path, [b"abc"])
    write_tfrecords(path, [b"abc"])
    whole, piece = struct.unpack(">II", files.read_bytes(framed_path)[:8])
    assert (whole, piece) == (11, files.size(framed_path) - 8)
    assert struct.unpack(">I", files.read_bytes(path)[:4]) == (files.size(path) - 4,)


def test_the_headers_are_monoliths():
    assert frame(b"ab", FrameFormat()) == u64(2) + b"ab"
    assert frame(b"ab", FrameFormat(has_sort_id=True), sort_id=b"id") == u64(2) + b"id" + u64(2) + b"ab"
    assert frame(b"ab", FrameFormat(kafka_dump=True)) == u64(0) + u64(2) + b"ab"
    assert frame(b"ab", FrameFormat(kafka_dump_prefix=True, has_sort_id=True)) == u64(0) * 3 + u64(2) + b"ab"
    lagrangex = frame(
        b"ab", FrameFormat(True, True, True, True), payload_type=PayloadType.EXAMPLE, source_key=0x01020300
    )
    assert lagrangex == bytes([3, 3, 2, 1, 0, 0, 0, 0]) + u64(2) + b"ab"


def test_a_prefix_may_be_the_length_of_the_sort_id(tmp_path):
    path = str(tmp_path / "f")
    record = u64(3) + b"sid" + u64(0) + u64(2) + b"ab"
    plain = frame(b"cd", FrameFormat(True, True, True), sort_id=b"other")
    files.write_atomic(path, record + plain + record)
    assert read_all(path, framed(has_sort_id=True, kafka_dump=True, kafka_dump_prefix=True)) == [b"ab", b"cd", b"ab"]


def test_payloads_know_their_place_and_source(tmp_path):
    path = str(tmp_path / "f")
    form = FrameFormat(lagrangex_header=True)
    first, second = frame(b"ab", form, source_key=0x700), frame(b"cde", form)
    files.write_atomic(path, first + second)
    (payloads,) = read_payloads(path, framed(lagrangex_header=True))
    assert payloads.offsets.tolist() == [0, len(first)]
    assert payloads.source_keys.tolist() == [0x700, 0]
    assert (payloads[1], len(payloads), list(payloads.slice(1, 2))) == (b"cde", 2, [b"cde"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.lists(st.binary(max_size=30), max_size=6),
    st.tuples(st.sampled_from(FLAGS), st.integers(1, 40), st.sampled_from(Compression)),
)
def test_pieces_may_have_any_size(tmp_path, monkeypatch_pieces, records, layout):
    path = str(tmp_path / "f")
    flags, piece, compression = layout
    write_frames(path, records, flags, compression=compression)
    monkeypatch_pieces(piece)
    assert read_all(path, RecordFormat(flags, compression)) == records
    write_tfrecords(path, records, compression=compression)
    assert read_all(path, tfrecord(compression=compression)) == records


@pytest.fixture
def monkeypatch_pieces(monkeypatch):
    def choose(piece):
        for module in ("compression", "frames", "tfrecords"):
            monkeypatch.setattr(f"shoal.records.formats.{module}.PIECE_BYTES", piece)

    return choose


# ---------------------------------------------------------------------------------------------------------
# Damage


@pytest.mark.parametrize("form", [framed(), framed(has_sort_id=True, kafka_dump=True), tfrecord()], ids=str)
def test_every_cut_has_its_offset_and_follows_the_policy(tmp_path, form):
    path = str(tmp_path / "f")
    records = [b"first", b"second"]
    if form.frames is None:
        write_tfrecords(path, records)
    else:
        write_frames(path, records, form.frames)
    whole = files.read_bytes(path)
    begin = next(read_payloads(path, form)).offsets.tolist()[1]
    for end in range(begin + 1, len(whole)):
        files.write_atomic(path, whole[:end])
        with pytest.raises(CorruptError) as caught:
            read_all(path, form)
        assert (caught.value.path, caught.value.offset) == (path, begin)
        skipping = BadRecords(OnBad.SKIP)
        assert read_all(path, form, skipping) == [b"first"]
        assert skipping.count == 1
        kept = []
        assert read_all([path, path], form, BadRecords(OnBad.SIDE, kept.append)) == [b"first"] * 2
        assert [(each.path, each.offset) for each in kept] == [(path, begin)] * 2


def test_a_wrong_checksum_costs_one_record(tmp_path):
    path = str(tmp_path / "f")
    write_tfrecords(path, [b"first", b"second", b"third"])
    data = bytearray(files.read_bytes(path))
    data[data.index(b"second")] ^= 1
    files.write_atomic(path, bytes(data))
    kept = []
    assert read_all(path, tfrecord(), BadRecords(OnBad.SIDE, kept.append)) == [b"first", b"third"]
    assert [each.payload for each in kept] == [b"recond"]
    with pytest.raises(CorruptError, match="checksum"):
        read_all(path, tfrecord())


@pytest.mark.parametrize("length", [0xFEFEFEFE, 2**63, 2**64 - 1, 2**31])
def test_a_made_up_length_is_refused_and_claims_no_memory(tmp_path, length):
    path = str(tmp_path / "f")
    files.write_atomic(path, u64(length) + b"x" * 100)
    with pytest.raises(CorruptError, match="a record must have at most") as caught:
        read_all(path, framed())
    assert "has_sort_id" in caught.value.hint
    files.write_atomic(path, u64(length) + b"x" * 100)
    with pytest.raises(CorruptError, match="sort id"):
        read_all(path, framed(has_sort_id=True))


@pytest.mark.parametrize("compression", [each for each in Compression if each is not Compression.NONE])
def test_damaged_compression_is_an_error_of_the_file(tmp_path, compression):
    path = str(tmp_path / "f")
    with open_sink(path, compression) as sink:
        sink.write(bytes(i * 7919 % 251 for i in range(5000)))
    good = files.read_bytes(path)
    for bad in (good[: len(good) // 2], b"\xff" * 50, good[:3]):
        files.write_atomic(path, bad)
        with pytest.raises(CorruptError) as caught, open_source(path, compression) as source:
            source.read(10_000)
        assert caught.value.path == path
    skipping = BadRecords(OnBad.SKIP)
    assert read_all(path, RecordFormat(FrameFormat(), compression), skipping) == []
    assert skipping.count == 1


@pytest.mark.parametrize("compression", Compression)
def test_an_empty_file_is_empty(tmp_path, compression):
    path = str(tmp_path / "f")
    files.write_atomic(path, b"")
    assert read_all(path, RecordFormat(FrameFormat(), compression)) == []


def test_files_of_gzip_may_follow_one_another(tmp_path):
    path = str(tmp_path / "f.gz")
    write_frames(path, [b"one"])
    data = files.read_bytes(path)
    files.write_atomic(path, data + data)
    assert read_all(path, framed()) == [b"one", b"one"]


def test_a_block_may_not_claim_more_than_there_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(compressing, "MAX_BLOCK_BYTES", 100)
    path = str(tmp_path / "f")
    with open_sink(path, Compression.TF_SNAPPY) as sink:
        sink.write(bytes(5000))
    with pytest.raises(CorruptError, match="at most 100 bytes"), open_source(path, Compression.TF_SNAPPY) as source:
        source.read(1)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = str(tmp_path / "f")

    def records():
        yield b"one"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_frames(path, records())
    assert not files.exists(path)
    with pytest.raises(InvalidError):
        write_frames("", [])


@pytest.mark.parametrize(("options", "rule"), [
    ({"form": FrameFormat(lagrangex_header=True), "source_key": 3}, "source_key"),
    ({"form": FrameFormat(lagrangex_header=True), "source_key": 1 << 40}, "source_key"),
    ({"form": FrameFormat(has_sort_id=True), "sort_id": b"x" * 100_000}, "sort_id"),
])  # fmt: skip
def test_what_could_not_be_read_is_not_written(options, rule):
    with pytest.raises(InvalidError, match=rule):
        frame(b"x", **options)


def test_a_side_output_belongs_to_its_policy():
    with pytest.raises(InvalidError, match="side"):
        BadRecords(OnBad.SIDE)
    with pytest.raises(InvalidError, match="side"):
        BadRecords(OnBad.SKIP, print)

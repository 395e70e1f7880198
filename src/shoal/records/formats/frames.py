"""Monolith's framed files: each record with its length before it, and headers that depend on who wrote the file.

All integers are 8 bytes, little endian. Before `[length][payload]` stand, in this order, and only with their flag:

    lagrangex_header    8 bytes: the type in the lowest byte, the key of the source above it; other flags do not count
    kafka_dump_prefix   8 bytes; if they are zero, 8 more; if not, they are the length of the sort id
    has_sort_id         [length][bytes], or only [bytes] when the prefix gave the length
    kafka_dump          8 bytes that mean nothing

Nothing in such a file says where the next record begins after a damaged one, so the rest of a damaged file is lost.
Called by `shoal.records.formats.reading`, and by writers of training data.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from shoal.core.errors import CorruptError, InvalidError, problem
from shoal.core.tfrecords import MAX_RECORD
from shoal.records.bad_records import BadRecords
from shoal.records.formats.compression import PIECE_BYTES, Compression, Source, compression_of, open_sink
from shoal.records.formats.payloads import Payloads

_U64 = struct.Struct("<Q")
#: A length that Monolith refuses: memory that was never filled.
_DEADBEEF = 0xFEFEFEFE
#: A sort id is a few dozen bytes; a longer one is a file that is read with the wrong flags.
MAX_SORT_ID_BYTES = 1 << 16


class PayloadType(enum.IntEnum):
    """What a record is, as headers of frames number it."""

    INSTANCE = 1
    EXAMPLE_BATCH = 2
    EXAMPLE = 3
    PLAINTEXT = 4


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """Which headers stand before each record. Monolith's training reads with `has_sort_id` unless told otherwise."""

    has_sort_id: bool = False
    kafka_dump: bool = False
    kafka_dump_prefix: bool = False
    lagrangex_header: bool = False


# ---------------------------------------------------------------------------------------------------------
# Reading


@dataclass(slots=True)
class _Frames:
    """What a look at a buffer found. Lists or arrays of one entry for each whole frame."""

    offsets: list[int]
    starts: list[int]
    ends: list[int]
    keys: list[int]
    #: Where the first frame begins that is not whole, and how many bytes it needs at least.
    rest: int = 0
    needed: int = 0
    #: The rule that the frame at `rest` breaks; empty when it is only not whole yet.
    broken: str = ""


def read_frames(source: Source, form: FrameFormat, bad: BadRecords, *, limit: int = MAX_RECORD) -> Iterator[Payloads]:
    """The records of a framed file, many at a time. What cannot be read goes to `bad`.

    Args:
        source: the file, after inflation.
        form: the headers before each record.
        bad: what follows a damaged frame; the rest of the file is left out if it lets the read go on.
        limit: the longest record that is taken, in bytes.
    """
    held, base, wanted = b"", source.offset, PIECE_BYTES
    while True:
        more = source.read(max(wanted - len(held), PIECE_BYTES))
        held += more
        if not held:
            return
        found = _scan(held, form, limit)
        if found.starts:
            yield Payloads(
                source.path,
                np.frombuffer(held, np.uint8),
                np.array(found.starts, np.int64),
                np.array(found.ends, np.int64),
                np.array(found.offsets, np.int64) + base,
                np.array(found.keys, np.uint32),
            )
        base, held = base + found.rest, held[found.rest :]
        if found.broken:
            bad.meet(CorruptError(source.path, base, found.broken, hint=_FLAGS), held[:1024])
            return
        if not more:
            if held:
                rule = f"the file ends within a record that needs {found.needed} bytes and has {len(held)}"
                bad.meet(CorruptError(source.path, base, rule, hint=_FLAGS), held[:1024])
            return
        wanted = found.needed


_FLAGS = "check the flags of the header: has_sort_id, kafka_dump, kafka_dump_prefix, lagrangex_header"


def _scan(held: bytes, form: FrameFormat, limit: int) -> _Frames:
    """Every whole frame in a buffer."""
    found = _Frames([], [], [], [])
    size = len(held)
    while found.rest < size:
        begin = at = found.rest
        key = 0
        if form.lagrangex_header:
            if at + 8 > size:
                return _more(found, 8)
            key = _U64.unpack_from(held, at)[0] & 0xFFFFFF00
            at += 8
        else:
            at = _skip_headers(held, at, form, found)
            if at < 0:
                return found
        if at + 8 > size:
            return _more(found, at + 8 - begin)
        length = _U64.unpack_from(held, at)[0]
        if length == _DEADBEEF or length > limit:
            found.broken = f"a record must have at most {limit} bytes, and says {length}"
            return found
        at += 8
        if at + length > size:
            return _more(found, at + length - begin)
        found.offsets.append(begin)
        found.starts.append(at)
        found.ends.append(at + length)
        found.keys.append(key)
        found.rest = at + length
    return found


def _skip_headers(held: bytes, at: int, form: FrameFormat, found: _Frames) -> int:
    """Where the length of the record stands; negative when the buffer ends before, or the header is broken."""
    begin, size, sort_id = at, len(held), 0
    if form.kafka_dump_prefix:
        if at + 8 > size:
            _more(found, 8)
            return -1
        sort_id = _U64.unpack_from(held, at)[0]
        at += 8 if sort_id else 16
    if form.has_sort_id:
        if not sort_id:
            if at + 8 > size:
                _more(found, at + 8 - begin)
                return -1
            sort_id = _U64.unpack_from(held, at)[0]
            at += 8
        if sort_id > MAX_SORT_ID_BYTES:
            found.broken = f"a sort id must have at most {MAX_SORT_ID_BYTES} bytes, and says {sort_id}"
            return -1
        at += sort_id
    return at + 8 if form.kafka_dump else at


def _more(found: _Frames, needed: int) -> _Frames:
    found.needed = needed
    return found


# ---------------------------------------------------------------------------------------------------------
# Writing


def frame(
    payload: bytes,
    form: FrameFormat,
    *,
    sort_id: bytes = b"",
    payload_type: PayloadType = PayloadType.PLAINTEXT,
    source_key: int = 0,
) -> bytes:
    """One record with its headers. Raises `InvalidError` for one that could not be read back."""
    if len(payload) > MAX_RECORD or len(payload) == _DEADBEEF:
        raise InvalidError([problem("record", f"{len(payload)} bytes", f"must have at most {MAX_RECORD}")])
    if len(sort_id) > MAX_SORT_ID_BYTES:
        raise InvalidError([problem("sort_id", sort_id, f"must have at most {MAX_SORT_ID_BYTES} bytes")])
    parts = []
    if form.lagrangex_header:
        if source_key & 0xFF or not 0 <= source_key < 1 << 32:
            raise InvalidError([problem("source_key", source_key, "must fit into bits 8 to 31")])
        parts.append(_U64.pack(source_key | payload_type))
    else:
        if form.kafka_dump_prefix:
            parts.append(bytes(16))
        if form.has_sort_id:
            parts.append(_U64.pack(len(sort_id)) + sort_id)
        if form.kafka_dump:
            parts.append(bytes(8))
    return b"".join((*parts, _U64.pack(len(payload)), payload))


def write_frames(
    path: str,
    payloads: Iterable[bytes],
    form: FrameFormat | None = None,
    *,
    compression: Compression | None = None,
    payload_type: PayloadType = PayloadType.PLAINTEXT,
) -> int:
    """Write records to a new framed file, and return how many. The file appears when all are in it.

    Args:
        path: of the file.
        payloads: the records.
        form: the headers before each.
        compression: what the end of the path says, if it is not given.
        payload_type: what the records are; only the Lagrangex header says it.
    """
    form = form or FrameFormat()
    count = 0
    with open_sink(path, compression_of(path) if compression is None else compression) as sink:
        for payload in payloads:
            sink.write(frame(payload, form, payload_type=payload_type))
            count += 1
    return count

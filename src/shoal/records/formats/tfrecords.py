"""Files of TFRecords, as TensorFlow writes and reads them: plain, with zlib, gzip or Snappy.

The framing is that of `shoal.core.tfrecords`. A record whose checksum is wrong is left out alone, if the policy lets
the read go on; after a wrong length the rest of the file is lost. Called by `shoal.records.formats.reading`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

from shoal.core.errors import CorruptError
from shoal.core.tfrecords import HEADER_SIZE, MAX_RECORD, TRAILER_SIZE, frame, masked_crc, record_length
from shoal.records.bad_records import BadRecords
from shoal.records.formats.compression import PIECE_BYTES, Compression, Source, compression_of, open_sink
from shoal.records.formats.payloads import Payloads

_CRC = struct.Struct("<I")


def tfrecord_compression(path: str, given: Compression | None = None) -> Compression:
    """That of a file: as given, or what the end of its name says. Snappy is TensorFlow's here."""
    found = compression_of(path) if given is None else given
    return Compression.TF_SNAPPY if found is Compression.SNAPPY else found


def read_tfrecords(source: Source, bad: BadRecords, *, limit: int = MAX_RECORD) -> Iterator[Payloads]:
    """The records of a file, many at a time. What cannot be read goes to `bad`.

    Args:
        source: the file, after inflation.
        bad: what follows a damaged record.
        limit: the longest record that is taken, in bytes.
    """
    held, base, wanted = b"", source.offset, PIECE_BYTES
    while True:
        more = source.read(max(wanted - len(held), PIECE_BYTES))
        held += more
        if not held:
            return
        starts: list[int] = []
        ends: list[int] = []
        at, wanted, lost = 0, HEADER_SIZE, None
        while at + HEADER_SIZE <= len(held):
            try:
                length = record_length(
                    held[at : at + HEADER_SIZE], name=source.path, offset=base + at, max_record=limit
                )
            except CorruptError as error:
                lost = error
                break
            start, end = at + HEADER_SIZE, at + HEADER_SIZE + length
            if end + TRAILER_SIZE > len(held):
                wanted = HEADER_SIZE + length + TRAILER_SIZE
                break
            payload = held[start:end]
            if _CRC.unpack_from(held, end)[0] != masked_crc(payload):
                bad.meet(CorruptError(source.path, base + at, "the checksum of a record is wrong"), payload)
            else:
                starts.append(start)
                ends.append(end)
            at = end + TRAILER_SIZE
        if starts:
            begins = np.array(starts, np.int64)
            yield Payloads(
                source.path,
                np.frombuffer(held, np.uint8),
                begins,
                np.array(ends, np.int64),
                begins + (base - HEADER_SIZE),
                np.zeros(len(starts), np.uint32),
            )
        base, held = base + at, held[at:]
        if lost is not None:
            bad.meet(lost, held[:1024])
            return
        if not more:
            if held:
                rule = f"the file ends within a record that needs {wanted} bytes and has {len(held)}"
                bad.meet(CorruptError(source.path, base, rule), held[:1024])
            return


def write_tfrecords(path: str, payloads: Iterable[bytes], *, compression: Compression | None = None) -> int:
    """Write records to a new file, and return how many. The file appears when all are in it.

    Args:
        path: of the file.
        payloads: the records.
        compression: what the end of the path says, if it is not given.
    """
    count = 0
    with open_sink(path, tfrecord_compression(path, compression)) as sink:
        for payload in payloads:
            sink.write(frame(payload))
            count += 1
    return count

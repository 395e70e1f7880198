"""TFRecords, many at a time: frames for lines of bytes, and the payloads of a file. Called by `monolith`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.errors import CorruptError
from shoal.core.tfrecords import HEADER_SIZE, TRAILER_SIZE, ByteSource, masked_crc, record_length
from shoal.tables.kernels import checksums
from shoal.tables.kernels.compiling import for_kernel

_TABLES = checksums.make_tables()
_READ = 1 << 22


def frame_lines(payloads: npt.NDArray[np.uint8]) -> bytes:
    """A record for each line."""
    count, size = payloads.shape
    made = np.empty((count, HEADER_SIZE + size + TRAILER_SIZE), np.uint8)
    length = struct.pack("<Q", size)
    made[:, :HEADER_SIZE] = np.frombuffer(length + struct.pack("<I", masked_crc(length)), np.uint8)
    made[:, HEADER_SIZE : HEADER_SIZE + size] = payloads
    checksums.close_records(_TABLES, made)
    return made.tobytes()


def offsets_before(end: int, records: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Where records begin that follow one another and end there."""
    sizes = np.fromiter(map(len, records), np.int64, len(records)) + HEADER_SIZE + TRAILER_SIZE
    return end - np.cumsum(sizes[::-1])[::-1]


class RecordReader:
    """The payloads of a file of records, checked.

    Args:
        source: the bytes, without compression.
        name: what the source is called, for errors.
        longest: a longer record is an error, before memory is taken for it.
    """

    def __init__(self, source: ByteSource, name: str, longest: int) -> None:
        self._source = source
        self._name = name
        self._longest = longest
        self._held = b""
        #: Where the next record begins in the source.
        self.offset = 0

    def take(self, most: int) -> list[bytes]:
        """Some of the next payloads, at most so many; none at the end.

        Raises:
            CorruptError: the next record is damaged or cut off. Those before it were returned.
        """
        while most > 0:
            found = self._find(most)
            if found:
                return found
            length = self._length_of_next() if len(self._held) >= HEADER_SIZE else None
            if self._read_more():
                continue
            if self._held and length is None:
                length = self._length_of_next()  # which raises
            if length is not None:
                shown = len(self._held) - HEADER_SIZE
                words = f"the file ends within a record of {length} bytes"
                raise CorruptError(self._name, self.offset, words, value=shown)
            break
        return []

    def _find(self, most: int) -> list[bytes]:
        """The whole and good records among the held bytes."""
        starts, lengths = np.empty(most, np.int64), np.empty(most, np.int64)
        content = for_kernel(np.frombuffer(self._held, np.uint8))
        count, end = checksums.find_records(_TABLES, content, self._longest, starts, lengths)
        pairs = zip(starts[:count].tolist(), lengths[:count].tolist(), strict=True)
        found = [self._held[start : start + length] for start, length in pairs]
        self._held = self._held[end:]
        self.offset += end
        return found

    def _length_of_next(self) -> int:
        """The length of the first held record, which is not whole, or wrong."""
        header = self._held[:HEADER_SIZE]
        length = record_length(header, name=self._name, offset=self.offset, max_record=self._longest)
        if len(self._held) >= HEADER_SIZE + length + TRAILER_SIZE:
            raise CorruptError(self._name, self.offset, "the checksum of the record is wrong")
        return length

    def _read_more(self) -> bool:
        """Hold more bytes. Returns whether there were any."""
        parts, missing = [], _READ
        while missing > 0 and (part := self._source.read(missing)):
            parts.append(part)
            missing -= len(part)
        self._held = b"".join((self._held, *parts))
        return bool(parts)

"""The framing of TFRecord files: a length, a payload and a checksum of each.

Every record is the length as 8 bytes, a masked CRC-32C of these, the payload, and a masked CRC-32C of the payload,
all numbers little-endian. Called by `shoal.records` and `shoal.tables`; what a payload means is theirs to know.
Reading trusts nothing: a file that is cut off, damaged or made to exhaust memory raises `CorruptError` with its name
and the offset of the record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from google_crc32c import value as crc32c

from shoal.core.errors import CorruptError

__all__ = [
    "HEADER_SIZE",
    "MAX_RECORD",
    "TRAILER_SIZE",
    "crc32c",
    "frame",
    "masked_crc",
    "read_records",
    "record_length",
]

#: The longest record that is read, unless the caller says otherwise.
MAX_RECORD = 1 << 30
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _LENGTH.size + _CHECKSUM.size
TRAILER_SIZE = _CHECKSUM.size


class ByteSource(Protocol):
    """What records are read from. `read` may return less than asked for, and nothing at the end."""

    def read(self, size: int, /) -> bytes:
        """At most this many bytes."""
        ...


def masked_crc(content: bytes) -> int:
    """The checksum as it stands in files: rotated and shifted, so that a checksum of checksums is no special case."""
    found = int(crc32c(content))
    return (((found >> 15) | (found << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """One record with its header and trailer."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _CHECKSUM.pack(masked_crc(length)), payload, _CHECKSUM.pack(masked_crc(payload))))


def read_records(
    source: ByteSource, *, name: str, max_record: int = MAX_RECORD, verify: bool = True
) -> Iterator[tuple[int, bytes]]:
    """The offset and the payload of each record.

    Args:
        source: the bytes, without compression.
        name: what the source is called, for errors.
        max_record: a longer record is an error. Its length is checked before memory is taken for it.
        verify: whether the checksums of payloads are checked. Those of lengths always are.
    """
    offset = 0
    while True:
        header = _read(source, HEADER_SIZE)
        if not header:
            return
        length = record_length(header, name=name, offset=offset, max_record=max_record)
        content = _read(source, length + TRAILER_SIZE)
        if len(content) < length + TRAILER_SIZE:
            raise CorruptError(name, offset, f"the file ends within a record of {length} bytes", value=len(content))
        payload = content[:length]
        if verify and _CHECKSUM.unpack_from(content, length)[0] != masked_crc(payload):
            raise CorruptError(name, offset, "the checksum of the record is wrong")
        yield offset, payload
        offset += HEADER_SIZE + length + TRAILER_SIZE


def record_length(header: bytes, *, name: str, offset: int, max_record: int = MAX_RECORD) -> int:
    """The length of the payload that follows a header. Raises `CorruptError`."""
    if len(header) < HEADER_SIZE:
        raise CorruptError(name, offset, "the file ends within the header of a record", value=len(header))
    length = int(_LENGTH.unpack_from(header)[0])
    if _CHECKSUM.unpack_from(header, _LENGTH.size)[0] != masked_crc(header[: _LENGTH.size]):
        raise CorruptError(name, offset, "the checksum of the length is wrong", value=length)
    if length > max_record:
        raise CorruptError(name, offset, f"a record has at most {max_record} bytes", value=length)
    return length


def _read(source: ByteSource, size: int) -> bytes:
    """As many bytes as asked for, or all that are left."""
    first = source.read(size)
    if len(first) == size or not first:
        return first
    parts, missing = [first], size - len(first)
    while missing:
        part = source.read(missing)
        if not part:
            break
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)

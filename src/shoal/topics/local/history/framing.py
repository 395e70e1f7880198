"""Frames: pieces of text in a file that many append to, and that may be torn anywhere.

A frame is a magic word, a length, a checksum and the payload. The payload is ASCII and the magic word is not, so the
magic word stands nowhere but at the beginning of a frame. That makes reading unambiguous: a frame that is cut short,
by a full disk or a power cut, ends where the next magic word stands, and is skipped. A cut one at the very end may be
one that is still being written: it is looked at again when the file has grown.

Pure. Called by `shoal.topics.local.history.journal`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from shoal.core.errors import InternalError

MAGIC = b"\xf5SHOAL\xf6\n"
_HEADER = struct.Struct("<8sII")
MAX_PAYLOAD = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in some bytes."""

    payloads: list[bytes]
    """The whole frames, in order."""

    consumed: int
    """How many bytes need not be looked at again."""


def frame(payload: bytes) -> bytes:
    """The bytes to append for one payload."""
    if not payload.isascii() or len(payload) > MAX_PAYLOAD:
        raise InternalError(f"a payload of {len(payload):,} bytes cannot be framed", length=len(payload))
    return _HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def scan(content: bytes) -> Scan:
    """Find the whole frames in what was read from a file, and skip everything else."""
    payloads: list[bytes] = []
    position = 0
    while True:
        begin = content.find(MAGIC, position)
        if begin < 0:
            # The last bytes may be the first ones of a magic word.
            return Scan(payloads, max(position, len(content) - len(MAGIC) + 1))
        if len(content) - begin < _HEADER.size:
            return Scan(payloads, begin)
        _, length, checksum = _HEADER.unpack_from(content, begin)
        start = begin + _HEADER.size
        end = start + length
        torn = content.find(MAGIC, begin + len(MAGIC), end)
        if torn >= 0:
            position = torn
        elif end > len(content):
            return Scan(payloads, begin)
        elif zlib.crc32(payload := content[start:end]) == checksum:
            payloads.append(payload)
            position = end
        else:
            position = begin + len(MAGIC)

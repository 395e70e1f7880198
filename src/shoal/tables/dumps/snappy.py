"""Snappy as TensorFlow's files have it: blocks, each a length of four bytes (big-endian) and raw Snappy data.

TensorFlow reads blocks of up to 256 KiB, so that is what is written. Called by `shoal.tables.dumps.monolith`.
"""

from __future__ import annotations

import io
import struct

import pyarrow as pa

from shoal.core.errors import CorruptError

_LENGTH = struct.Struct(">I")
_BLOCK = 1 << 17
#: TensorFlow's own limit is lower; this bounds what a file can make us allocate.
MAX_BLOCK = 64 << 20
_MAX_VARINT = 5


class SnappyWriter:
    """Collects bytes into blocks. `flush` writes the last one."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._codec = pa.Codec("snappy")
        self._held = bytearray()

    def write(self, content: bytes) -> None:
        """Take some bytes."""
        self._held += content
        while len(self._held) >= _BLOCK:
            self._write_block(bytes(self._held[:_BLOCK]))
            del self._held[:_BLOCK]

    def flush(self) -> None:
        """Write what is left."""
        if self._held:
            self._write_block(bytes(self._held))
            self._held.clear()

    def _write_block(self, content: bytes) -> None:
        block = self._codec.compress(content, asbytes=True)
        self._file.write(_LENGTH.pack(len(block)) + block)


class SnappyReader:
    """The bytes of such a file, one block at a time."""

    def __init__(self, file: io.BufferedIOBase, name: str) -> None:
        self._file = file
        self._name = name
        self._codec = pa.Codec("snappy")
        self._offset = 0
        self._block = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most this many bytes; nothing at the end."""
        while not self._block:
            if not self._read_block():
                return b""
        found, self._block = bytes(self._block[:size]), self._block[size:]
        return found

    def _read_block(self) -> bool:
        header = self._exactly(_LENGTH.size)
        if not header:
            return False
        length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else -1
        if not 0 < length <= MAX_BLOCK:
            raise CorruptError(
                self._name, self._offset, f"a block has at most {MAX_BLOCK} bytes, and this one {length}"
            )
        content = self._exactly(length)
        if len(content) < length:
            raise CorruptError(self._name, self._offset, f"the file ends within a block of {length} bytes")
        size = _size_of(content)
        if not 0 <= size <= MAX_BLOCK:
            raise CorruptError(self._name, self._offset, "the block says a size that no block has")
        try:
            self._block = memoryview(self._codec.decompress(content, size, asbytes=True))
        except (pa.ArrowInvalid, OSError, ValueError) as error:
            raise CorruptError(self._name, self._offset, f"the block is no Snappy data: {error}") from None
        self._offset += _LENGTH.size + length
        return True

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size and (part := self._file.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _size_of(content: bytes) -> int:
    """The size that raw Snappy data says it has, or -1."""
    size = 0
    for position, byte in enumerate(content[:_MAX_VARINT]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return size
    return -1

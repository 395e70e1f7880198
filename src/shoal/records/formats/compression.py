"""Reads and writes compressed files as streams of bytes, a bounded piece at a time.

Snappy knows only blocks, so there are two files of it: Hadoop's, which Monolith's framed data is in (a length of the
whole, then pieces with their lengths), and TensorFlow's, which TFRecords are in (blocks with their lengths). Called by
the readers and writers of this package; paths go through `shoal.core.files`.
"""

from __future__ import annotations

import contextlib
import enum
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow as pa

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError, problem

#: How much is read or inflated at once.
PIECE_BYTES = 1 << 20
#: The largest block of Snappy that is taken: a made-up length must not claim all memory. Monolith takes as much.
MAX_BLOCK_BYTES = 64 << 20
_SNAPPY_BLOCK_BYTES = 256 << 10

_LENGTH = struct.Struct(">I")


class Compression(enum.Enum):
    """How the bytes of a file are compressed."""

    NONE = "none"
    GZIP = "gzip"
    ZLIB = "zlib"
    ZSTD = "zstd"
    LZ4 = "lz4"
    #: In blocks as Hadoop writes them; framed data of Monolith is.
    SNAPPY = "snappy"
    #: In blocks as TensorFlow writes them; TFRecords and dumps of tables are.
    TF_SNAPPY = "tf_snappy"


_SUFFIXES = {
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".zlib": Compression.ZLIB,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
    ".lz4": Compression.LZ4,
    ".snappy": Compression.SNAPPY,
}


def compression_of(path: str) -> Compression:
    """What the end of a file's name says."""
    return next((kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix)), Compression.NONE)


# ---------------------------------------------------------------------------------------------------------
# Reading


class Source:
    """The bytes of a file after inflation, in order. Has `read` as files do, and knows its place."""

    def __init__(self, path: str, pieces: Iterator[bytes]) -> None:
        self.path = path
        #: How many bytes were read.
        self.offset = 0
        self._pieces = pieces
        self._held = bytearray()

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer at the end only."""
        held = self._held
        while len(held) < count:
            piece = next(self._pieces, None)
            if piece is None:
                break
            if len(piece) == count and not held:
                self.offset += count
                return piece
            held += piece
        taken = bytes(memoryview(held)[:count])
        del held[:count]
        self.offset += len(taken)
        return taken


@contextlib.contextmanager
def open_source(path: str, compression: Compression = Compression.NONE) -> Iterator[Source]:
    """Open a file to read it; `""` is standard input. Reading raises `CorruptError`, with the offset in the file."""
    if not path:
        yield Source("<stdin>", inflated(sys.stdin.buffer, compression, name="<stdin>"))
        return
    with files.open_file(path) as file:
        yield Source(path, inflated(file, compression, name=path))


def inflated(file: IO[bytes] | files.File, compression: Compression, *, name: str) -> Iterator[bytes]:
    """The bytes of an open file after inflation, in pieces of bounded size. Raises `CorruptError`."""
    return _INFLATE[compression](file, name)


def _plain(file: Any, _name: str) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _by_zlib(bits: int) -> Callable[[Any, str], Iterator[bytes]]:
    def inflate(file: Any, name: str) -> Iterator[bytes]:
        inflater, read, rest, began = zlib.decompressobj(bits), 0, b"", False
        while True:
            piece = rest or file.read(PIECE_BYTES)
            read += 0 if rest else len(piece)
            if not piece:
                break
            began = True
            try:
                found = inflater.decompress(piece, PIECE_BYTES)
            except zlib.error as error:
                raise CorruptError(name, read - len(piece), f"cannot be inflated: {error}") from error
            if found:
                yield found
            rest = inflater.unconsumed_tail
            if inflater.eof:
                # Files may be put one after the other.
                rest = inflater.unused_data
                inflater, began = zlib.decompressobj(bits), False
        if began:
            raise CorruptError(name, read, "the compressed data is cut off")

    return inflate


def _by_arrow(codec: str) -> Callable[[Any, str], Iterator[bytes]]:
    def inflate(file: Any, name: str) -> Iterator[bytes]:
        counted = _Counting(file)
        if counted.is_empty():
            return
        stream = pa.CompressedInputStream(pa.PythonFile(counted, mode="r"), codec)
        while True:
            try:
                piece = stream.read(PIECE_BYTES)
            except (OSError, pa.ArrowException) as error:
                raise CorruptError(name, counted.count, f"cannot be inflated: {error}") from error
            if not piece:
                return
            yield piece

    return inflate


class _Counting:
    """A file that counts what was read of it; its first bytes can be looked at."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._first = file.read(1)
        self.count = 0

    def is_empty(self) -> bool:
        return not self._first

    def read(self, count: int = -1) -> bytes:
        first, self._first = self._first, b""
        data: bytes = first + self._file.read(count - len(first) if count >= 0 else -1)
        self.count += len(data)
        return data

    def close(self) -> None:
        """The owner of the file closes it."""


def _by_hadoop_blocks(file: Any, name: str) -> Iterator[bytes]:
    at = 0
    while head := file.read(_LENGTH.size):
        whole = _block_length(head, name, at)
        at += _LENGTH.size
        inflated_bytes = 0
        while inflated_bytes < whole:
            block, at = _snappy_block(file, name, at)
            inflated_bytes += len(block)
            if not block or inflated_bytes > whole:
                raise CorruptError(name, at, f"the pieces of a block of {whole} bytes do not fit it")
            yield block


def _by_tensorflow_blocks(file: Any, name: str) -> Iterator[bytes]:
    at = 0
    while head := file.read(_LENGTH.size):
        block, at = _snappy_block(file, name, at, head)
        if block:
            yield block


def _snappy_block(file: Any, name: str, at: int, head: bytes | None = None) -> tuple[bytes, int]:
    length = _block_length(file.read(_LENGTH.size) if head is None else head, name, at)
    data = file.read(length)
    if len(data) < length:
        raise CorruptError(name, at, f"the file ends within a block of {length} bytes")
    try:
        size = _snappy_size(data)
        if size > MAX_BLOCK_BYTES:
            raise CorruptError(name, at, f"a block must have at most {MAX_BLOCK_BYTES} bytes", value=size)
        block = _SNAPPY.decompress(data, decompressed_size=size, asbytes=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CorruptError(name, at, f"a block cannot be inflated: {error}") from error
    return block, at + _LENGTH.size + length


def _block_length(head: bytes, name: str, at: int) -> int:
    if len(head) < _LENGTH.size:
        raise CorruptError(name, at, "the file ends within the length of a block")
    length = int(_LENGTH.unpack(head)[0])
    if length > MAX_BLOCK_BYTES:
        raise CorruptError(name, at, f"a block must have at most {MAX_BLOCK_BYTES} bytes", value=length)
    return length


def _snappy_size(data: bytes) -> int:
    """How much a block inflates to: the varint that it begins with."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise ValueError("its length is not readable")


_SNAPPY: Any = pa.Codec("snappy")
_INFLATE: dict[Compression, Callable[[Any, str], Iterator[bytes]]] = {
    Compression.NONE: _plain,
    Compression.GZIP: _by_zlib(16 + zlib.MAX_WBITS),
    Compression.ZLIB: _by_zlib(zlib.MAX_WBITS),
    Compression.ZSTD: _by_arrow("zstd"),
    Compression.LZ4: _by_arrow("lz4"),
    Compression.SNAPPY: _by_hadoop_blocks,
    Compression.TF_SNAPPY: _by_tensorflow_blocks,
}


# ---------------------------------------------------------------------------------------------------------
# Writing


class Sink:
    """Takes bytes and puts them into a file, compressed. `finish` writes what is left; it does not close the file."""

    def __init__(self, file: Any, compression: Compression = Compression.NONE) -> None:
        self._file = file
        self._write, self._finish = _DEFLATE[compression](file)

    def write(self, data: bytes) -> None:
        """Append."""
        self._write(data)

    def finish(self) -> None:
        """Write the end of the compressed data."""
        self._finish()


@contextlib.contextmanager
def open_sink(path: str, compression: Compression = Compression.NONE) -> Iterator[Sink]:
    """Write a file anew. It appears whole when the block ends well, and not at all otherwise."""
    if not path:
        raise InvalidError([problem("path", path, "must name a file")])
    with files.open_file(path, "wb") as file:
        sink = Sink(file, compression)
        yield sink
        sink.finish()


_Deflater = tuple[Callable[[bytes], Any], Callable[[], Any]]


def _to_plain(file: Any) -> _Deflater:
    return file.write, lambda: None


def _to_zlib(bits: int) -> Callable[[Any], _Deflater]:
    def deflater(file: Any) -> _Deflater:
        deflate = zlib.compressobj(wbits=bits)
        return lambda data: file.write(deflate.compress(data)), lambda: file.write(deflate.flush())

    return deflater


def _to_arrow(codec: str) -> Callable[[Any], _Deflater]:
    def deflater(file: Any) -> _Deflater:
        stream = pa.CompressedOutputStream(pa.PythonFile(_Unclosed(file), mode="w"), codec)
        return stream.write, stream.close

    return deflater


class _Unclosed:
    """A file that stays open when Arrow closes what it wrote to it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.write = file.write

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """The owner of the file closes it."""


def _to_blocks(*, hadoop: bool) -> Callable[[Any], _Deflater]:
    def deflater(file: Any) -> _Deflater:
        held = bytearray()

        def put(block: bytes) -> None:
            packed = _SNAPPY.compress(block, asbytes=True)
            file.write((_LENGTH.pack(len(block)) if hadoop else b"") + _LENGTH.pack(len(packed)) + packed)

        def write(data: bytes) -> None:
            held.extend(data)
            while len(held) >= _SNAPPY_BLOCK_BYTES:
                put(bytes(held[:_SNAPPY_BLOCK_BYTES]))
                del held[:_SNAPPY_BLOCK_BYTES]

        def finish() -> None:
            if held:
                put(bytes(held))
                held.clear()

        return write, finish

    return deflater


_DEFLATE: dict[Compression, Callable[[Any], _Deflater]] = {
    Compression.NONE: _to_plain,
    Compression.GZIP: _to_zlib(16 + zlib.MAX_WBITS),
    Compression.ZLIB: _to_zlib(zlib.MAX_WBITS),
    Compression.ZSTD: _to_arrow("zstd"),
    Compression.LZ4: _to_arrow("lz4"),
    Compression.SNAPPY: _to_blocks(hadoop=True),
    Compression.TF_SNAPPY: _to_blocks(hadoop=False),
}

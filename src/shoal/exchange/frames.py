"""Frames on a connection: sixteen bytes that say what comes, and then that many bytes. Batches are Arrow IPC messages.

    "SX"  version  kind  channel(4)  size(8)

`write_frame` gathers, so that the buffers of a batch go to the socket as they are; `read_header` refuses what is no
frame before anything is allocated for it. For `shoal.exchange.unix` and `shoal.exchange.flight`, in both directions.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.exchange.base import MOST_BODY, Batch, Control
from shoal.exchange.errors import BadFrameError

VERSION = 3
_MAGIC = b"SX"
HEADER = struct.Struct("<2sBBIQ")
_CONTROL = struct.Struct("<BIq")
_COUNT = struct.Struct("<Q")
#: Bytes of a batch at most: more than any task should make, and no more than memory has.
MOST_BATCH = 1 << 31
MOST_SCHEMA = 1 << 24
_MOST_TEXT = 1 << 16


class Kind(enum.IntEnum):
    """What a frame is. The connecting side sends the first row, the other side the second."""

    HELLO, OPEN, SCHEMA, BATCH, STREAM, CONTROL, END, FAIL, FOLLOW, LEAVE, ASK = range(1, 12)
    WELCOME, OPENED, REFUSED, CREDIT, BROKEN, READY, MOVING = range(16, 23)
    #: From both sides, of transports that need them: a sign of life, and that nothing comes after it.
    HEARTBEAT, CLOSE = range(32, 34)


#: Bytes that a frame may have.
_MOST: dict[Kind, int] = {
    Kind.HELLO: _MOST_TEXT,
    Kind.OPEN: _MOST_TEXT,
    Kind.SCHEMA: MOST_SCHEMA,
    Kind.BATCH: MOST_BATCH,
    Kind.STREAM: MOST_BATCH,
    Kind.CONTROL: MOST_BODY + _CONTROL.size,
    Kind.END: 0,
    Kind.FAIL: _MOST_TEXT,
    Kind.FOLLOW: _MOST_TEXT,
    Kind.LEAVE: 0,
    Kind.ASK: 0,
    Kind.WELCOME: 0,
    Kind.OPENED: 2 * _COUNT.size,
    Kind.REFUSED: _MOST_TEXT,
    Kind.CREDIT: _COUNT.size,
    Kind.BROKEN: _MOST_TEXT,
    Kind.READY: 0,
    Kind.MOVING: 0,
    Kind.HEARTBEAT: 0,
    Kind.CLOSE: 0,
}


@dataclass(frozen=True, slots=True)
class Header:
    """What comes."""

    kind: Kind
    channel: int
    size: int


def pack_header(kind: Kind, channel: int, size: int) -> bytes:
    """The beginning of a frame."""
    return HEADER.pack(_MAGIC, VERSION, kind, channel, size)


def read_header(content: Any, allowed: frozenset[Kind]) -> Header:
    """The inverse. Raises `BadFrameError` for what is no frame, or none that may come now."""
    magic, version, kind, channel, size = HEADER.unpack(content)
    if magic != _MAGIC:
        raise BadFrameError("frame", bytes(magic), f"must begin with {_MAGIC!r}")
    if version != VERSION:
        raise BadFrameError("version", version, f"must be {VERSION}: another version of the program sent this")
    if kind not in allowed:
        rule = f"must be one of {', '.join(sorted(each.name for each in allowed))}"
        raise BadFrameError("kind", kind, rule)
    found = Kind(kind)
    if size > _MOST[found]:
        raise BadFrameError("size", size, f"of a {found.name} frame must be at most {_MOST[found]:,}")
    return Header(found, channel, size)


def pack_opened(capacity: int, waiting: int) -> bytes:
    """The bytes that may wait on a channel, and those that do."""
    return _COUNT.pack(capacity) + _COUNT.pack(waiting)


def read_opened(content: bytes) -> tuple[int, int]:
    """The inverse."""
    return read_count(content[: _COUNT.size]), read_count(content[_COUNT.size :])


def pack_count(value: int) -> bytes:
    """A number of bytes, for CREDIT."""
    return _COUNT.pack(value)


def read_count(content: bytes) -> int:
    """The inverse."""
    if len(content) != _COUNT.size:
        raise BadFrameError("count", len(content), f"must have {_COUNT.size} bytes")
    return int(_COUNT.unpack(content)[0])


def pack_control(frame: Control) -> bytes:
    """A control frame's content."""
    return _CONTROL.pack(frame.kind, frame.supersedes, frame.value) + frame.body


def read_control(content: bytes) -> Control:
    """The inverse."""
    if len(content) < _CONTROL.size:
        raise BadFrameError("control frame", len(content), f"must have at least {_CONTROL.size} bytes")
    kind, supersedes, value = _CONTROL.unpack_from(content)
    if not kind:
        raise BadFrameError("control frame", kind, "must have a kind")
    return Control(min(kind, 255), value, content[_CONTROL.size :], supersedes)


# ---------------------------------------------------------------------------------------------------------
# Batches


class _Parts:
    """A file that keeps what is written to it, as it is: Arrow hands over its buffers without a copy."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.closed = False

    def write(self, part: Any) -> int:
        """Keep a buffer."""
        view = memoryview(part)
        if view.nbytes:
            self.parts.append(view.cast("B"))
        return view.nbytes

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to let go of."""
        self.closed = True

    def take(self) -> list[Any]:
        """What was written since this was last called."""
        parts, self.parts = self.parts, []
        return parts


def _has_dictionary(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


class BatchWriter:
    """Turns the batches of one channel into frames. The schema goes first, and again when it changes.

    A batch with dictionaries is a stream of its own, with its schema and dictionaries: they may differ each time.
    """

    def __init__(self) -> None:
        self._schema: Any = None
        self._stream: Any = None
        self._parts = _Parts()
        self._has_dictionaries = False

    def write(self, batch: Batch) -> list[tuple[Kind, Sequence[Any]]]:
        """The frames for a batch: their kind and what is in them."""
        frames: list[tuple[Kind, Sequence[Any]]] = []
        if self._schema is None or not batch.schema.equals(self._schema, check_metadata=True):
            self._schema = batch.schema
            self._has_dictionaries = any(_has_dictionary(field.type) for field in batch.schema)
            if not self._has_dictionaries:
                frames.append((Kind.SCHEMA, self._begin(batch.schema)))
        if self._has_dictionaries:
            return [(Kind.STREAM, _whole_stream(batch))]
        self._stream.write_batch(batch)
        return [*frames, (Kind.BATCH, self._parts.take())]

    def _begin(self, schema: Any) -> list[Any]:
        self._parts = _Parts()
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._parts, "w"), schema)
        # The stream writes its schema with the first batch: an empty one, so that all that are sent are alike.
        self._stream.write_batch(pa.RecordBatch.from_pylist([], schema=schema))
        self._parts.take()
        return [schema.serialize()]


def _whole_stream(batch: Batch) -> list[Any]:
    parts = _Parts()
    with pa.ipc.new_stream(pa.PythonFile(parts, "w"), batch.schema) as stream:
        stream.write_batch(batch)
    return parts.take()


class BatchReader:
    """The inverse, for one channel. Raises `BadFrameError` for bytes that are no batch."""

    def __init__(self) -> None:
        self._schema: Any = None

    def read_schema(self, content: Any) -> None:
        """A schema came: the batches behind it have it."""
        try:
            self._schema = pa.ipc.read_schema(content)
            _ = self._schema.names  # a name that is no text is noticed here
        except Exception as error:  # Arrow has no one error for rubbish
            raise BadFrameError("schema", None, f"cannot be read: {error}") from error

    def read(self, kind: Kind, content: Any) -> Batch:
        """A batch came."""
        if kind is Kind.BATCH and self._schema is None:
            raise BadFrameError("batch", None, "must come behind a schema")
        try:
            if kind is Kind.STREAM:
                with pa.ipc.open_stream(content) as stream:
                    batch = stream.read_next_batch()
            else:
                batch = pa.ipc.read_record_batch(content, self._schema)
            batch.validate()  # lengths and offsets that lead out of the buffers would end the process later
        except Exception as error:
            raise BadFrameError("batch", None, f"cannot be read: {error}") from error
        return batch

"""The write-ahead of a sink: batches that wait for the checkpoint that makes them visible.

Rows go to the open segment. A checkpoint seals it under its number; it is there until that checkpoint, or a later one,
is committed. So a checkpoint that failed loses nothing: the next one holds its segment too. Used by sinks that are
exact.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.dataflow.connectors.base import SinkContext
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.language.elements import Batch

#: How much waits is reported in steps of this part of what may wait.
_REPORT_STEPS = 16
_LENGTH = struct.Struct("<I")
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one checkpoint."""

    checkpoint: int
    content: bytes

    def batches(self) -> list[Batch]:
        """The rows, read back."""
        return from_stream(self.content)


class WriteAhead:
    """The segments of one sink task."""

    def __init__(self, context: SinkContext) -> None:
        self._batches: list[Batch] = []
        self._bytes = 0
        self._sealed: list[Segment] = []
        self._report = context.report_waiting
        self._step = max(1, context.write_ahead_bytes // _REPORT_STEPS)
        self._reported = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not committed."""
        return self._bytes + sum(len(each.content) for each in self._sealed)

    @property
    def sealed(self) -> Sequence[Segment]:
        """Segments that are prepared and not committed, in their order."""
        return self._sealed

    @property
    def open_batches(self) -> Sequence[Batch]:
        """Rows that came since the last checkpoint."""
        return self._batches

    def add(self, batch: Batch) -> None:
        """Rows for the next checkpoint."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self._tell()

    def seal(self, checkpoint: int) -> bytes:
        """Close the open segment; returns everything that is not committed as bytes."""
        if self._batches:
            self._sealed.append(Segment(checkpoint, to_stream(self._batches)))
            self._batches, self._bytes = [], 0
            self._tell()
        return encode_segments([(each.checkpoint, each.content) for each in self._sealed])

    def forget(self, checkpoint: int) -> None:
        """Everything up to this checkpoint is visible."""
        self._sealed = [each for each in self._sealed if each.checkpoint > checkpoint]
        self._tell()

    def _tell(self) -> None:
        """Report how much waits, where that has changed by a step."""
        steps = self.waiting_bytes // self._step
        if steps != self._reported:
            self._reported = steps
            self._report(self.waiting_bytes)


def to_stream(batches: Sequence[Batch]) -> bytes:
    """Batches of one schema as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def from_stream(content: bytes) -> list[Batch]:
    """The inverse of `to_stream`. Raises `CheckpointError`."""
    try:
        batches = list(pa.ipc.open_stream(content))
        for batch in batches:
            # Arrow trusts what it reads: offsets that lead elsewhere would end the process. Names may be no text.
            batch.validate(full=True)
            _ = batch.schema.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CheckpointError(f"rows of a write-ahead cannot be read: {error}") from error
    return batches


def encode_segments(segments: Sequence[tuple[int, bytes]]) -> bytes:
    """Segments as one piece of bytes."""
    if not segments:
        return b""
    header = json.dumps([[checkpoint, len(content)] for checkpoint, content in segments]).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *(content for _checkpoint, content in segments)])


def decode_segments(prepared: bytes) -> list[tuple[int, bytes]]:
    """The inverse of `encode_segments`. Raises `CheckpointError`."""
    if not prepared:
        return []
    try:
        (size,) = _LENGTH.unpack_from(prepared)
        place = _LENGTH.size + size
        header: list[Any] = json.loads(prepared[_LENGTH.size : place])
        found: list[tuple[int, bytes]] = []
        for checkpoint, length in header:
            if length < 0:
                raise ValueError(f"a segment of {length} bytes")
            found.append((int(checkpoint), prepared[place : place + length]))
            place += length
    except (struct.error, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"a write-ahead cannot be read: {error}") from error
    if place != len(prepared):
        raise CheckpointError(f"a write-ahead is torn: {len(prepared)} bytes of {place}")
    return found

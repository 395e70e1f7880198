"""Frames by a call of Arrow Flight: the bytes of frames, in messages, in both directions.

Small frames travel in the metadata of a message, and large ones as its body, a column of bytes, so that Arrow hands
the buffers of a batch to gRPC as they are. Used by `endpoint` (the calling side) and `servers` (the other side).

A read of Flight cannot be given a time-out, and a server cannot end one. So both sides say `HEARTBEAT` when they have
nothing else to say, and a watch (`look`) ends calls whose peer was silent for too long.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.exchange.errors import BadFrameError, read_error
from shoal.exchange.frames import HEADER, Header, Kind, pack_header, read_header

#: The schema of bodies.
BODY = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
#: A buffer of at least so many bytes is a message of its own: gathering it would cost more than a message does.
_LARGE = 1 << 20
#: Bytes of a message at most. Flight itself refuses those of 2 GB.
_MOST_MESSAGE = 8 << 20
#: Up to so many bytes travel in the metadata.
_MOST_METADATA = 4096
#: What may wait to be said to a caller that reads nothing.
_MOST_ANSWERS = 100_000
#: Seconds that a call has to end by itself once this side has said all.
_GRACE = 2.0
_HEARTBEAT = pack_header(Kind.HEARTBEAT, 0, 0)
_CLOSE = pack_header(Kind.CLOSE, 0, 0)


def messages(views: Sequence[memoryview]) -> Iterator[memoryview | bytes]:
    """Gather small buffers and split large ones."""
    pending: list[memoryview] = []
    size = 0
    for view in views:
        if pending and size + len(view) > _LARGE:
            yield b"".join(pending)
            pending, size = [], 0
        if len(view) < _LARGE:
            pending.append(view)
            size += len(view)
            continue
        for start in range(0, len(view), _MOST_MESSAGE):
            yield view[start : start + _MOST_MESSAGE]
    if pending:
        yield b"".join(pending)


def as_body(content: memoryview | bytes) -> Any:
    """A message's body."""
    buffer = pa.py_buffer(content)
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.uint8(), len(content), [None, buffer])], schema=BODY)


def read_message(chunk: Any) -> Iterator[memoryview]:
    """The bytes in a message. Raises `BadFrameError` for a body that is none of ours."""
    if chunk.app_metadata is not None:
        yield memoryview(chunk.app_metadata).cast("B")
    batch = chunk.data
    if batch is None:
        return
    column = batch.column(0) if batch.num_columns == 1 else None
    if column is None or column.type != pa.uint8() or column.buffers()[0] is not None:
        raise BadFrameError("message", str(batch.schema), f"must be {BODY.field(0)}")
    content = column.buffers()[1]
    if content is None or column.offset + len(column) > content.size:
        raise BadFrameError("message", len(column), "must have as many bytes as it says")
    yield memoryview(content).cast("B")[column.offset : column.offset + len(column)]


def as_raised(error: BaseException) -> BaseException:
    """An error of Flight as readers and writers of frames know it."""
    if isinstance(error, fl.FlightError) and error.extra_info:
        return read_error(bytes(error.extra_info))
    if isinstance(error, ShoalError | OSError):
        return error
    text = str(error).partition(". gRPC client debug context")[0].partition(". Detail:")[0]
    if isinstance(error, pa.ArrowInvalid):
        return BadFrameError("message", None, f"cannot be read: {text}")
    return ConnectionError(text)


class _Call:
    """What both sides of a call share: reading, and knowing whether the peer lives."""

    def __init__(self, reader: Any, *, stall: float, clock: Clock) -> None:
        self._reader = reader
        self._stall = stall
        self._clock = clock
        self._heard = clock.monotonic()
        self._deadline: float | None = None
        self._views: deque[memoryview] = deque()
        #: Why nothing more is read; empty while there is.
        self._ended = ""

    def limit_reads(self, seconds: float) -> None:
        """How long to wait for what comes next; 0 for ever."""
        self._deadline = self._clock.monotonic() + seconds if seconds else None

    def silent(self) -> str:
        """Why the peer counts as lost; empty while it does not."""
        now = self._clock.monotonic()
        if self._deadline is not None and now > self._deadline:
            return "it did not answer in time"
        if now - self._heard > self._stall:
            return f"it said nothing for {self._stall:g} s"
        return ""

    # -- reading ----------------------------------------------------------------------------------------------

    def read_header(self, allowed: frozenset[Kind]) -> Header | None:
        """What comes next; None when the peer closed in good order."""
        while True:
            while not self._views:
                if not self._fetch():
                    return None
            content = bytearray(HEADER.size)
            self._fill(memoryview(content))
            header = read_header(content, allowed | {Kind.HEARTBEAT, Kind.CLOSE})
            if header.kind is Kind.CLOSE:
                return None
            if header.kind is not Kind.HEARTBEAT:
                return header

    def read_bytes(self, size: int) -> bytes:
        """So many bytes of a small frame."""
        content = bytearray(size)
        self._fill(memoryview(content))
        return bytes(content)

    def read_buffer(self, size: int) -> Any:
        """So many bytes, in memory of Arrow's own: what Flight hands over is not aligned."""
        buffer = pa.allocate_buffer(size)
        self._fill(memoryview(buffer).cast("B"))
        return buffer

    def _fill(self, view: memoryview) -> None:
        while view:
            if not self._views:
                if not self._fetch():
                    raise ConnectionResetError("the peer left in the middle of a frame")
                continue
            first = self._views[0]
            size = min(len(first), len(view))
            view[:size] = first[:size]
            view = view[size:]
            self._views[0] = first[size:]
            if size == len(first):
                self._views.popleft()

    def _fetch(self) -> bool:
        """Read a message; False at the end."""
        try:
            chunk = self._reader.read_chunk()
            self._views.extend(view for view in read_message(chunk) if len(view))
        except StopIteration:
            return False
        except Exception as error:  # Flight has no one error for all that can happen
            if self._ended:
                raise ConnectionError(self._ended) from error
            raise as_raised(error) from error
        self._heard = self._clock.monotonic()
        if self._ended:
            raise ConnectionError(self._ended)
        return True


def _views(frames: Sequence[tuple[Kind, Sequence[Any]]], channel: int) -> list[memoryview]:
    found: list[memoryview] = []
    for kind, parts in frames:
        views = [memoryview(part).cast("B") for part in parts]
        found += [memoryview(pack_header(kind, channel, sum(map(len, views)))), *views]
    return found


class ClientCall(_Call):
    """The calling side: a `FrameStream` whose writers wait when the peer does not read."""

    def __init__(self, client: Any, writer: Any, reader: Any, *, stall: float, clock: Clock) -> None:
        super().__init__(reader, stall=stall, clock=clock)
        self._client = client
        self._writer = writer
        self._writing = threading.Lock()
        self._is_done = threading.Event()
        self._heartbeats = threading.Thread(target=self._send_heartbeats, name="exchange heartbeat", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether it was let go of."""
        return self._is_done.is_set()

    def start(self) -> None:
        """Begin to say that this side lives. Raises `OSError` and what the other side refuses the call with."""
        self._guarded(lambda: self._writer.begin(BODY))
        self._heartbeats.start()

    def write(self, kind: Kind, channel: int, *parts: Any) -> None:
        """One frame."""
        self.write_all([(kind, parts)], channel)

    def write_all(self, frames: Sequence[tuple[Kind, Sequence[Any]]], channel: int) -> None:
        """Some frames, one right behind the other."""
        views = _views(frames, channel)
        with self._writing:
            self._guarded(lambda: self._put(views))

    def try_write(self, kind: Kind, channel: int, content: bytes, *, patience: float) -> None:
        """A last word, if nobody else is in the middle of a frame; else nothing."""
        if self._writing.acquire(timeout=patience):
            try:
                with contextlib.suppress(OSError, ShoalError):
                    self._guarded(lambda: self._put(_views([(kind, [content])], channel)))
            finally:
                self._writing.release()

    def _put(self, views: Sequence[memoryview]) -> None:
        for content in messages(views):
            if len(content) <= _MOST_METADATA:
                self._writer.write_metadata(bytes(content))
            else:
                self._writer.write_batch(as_body(content))

    def _guarded(self, call: Callable[[], None]) -> None:
        if self._ended:
            raise ConnectionError(self._ended)
        try:
            call()
        except Exception as error:
            if self._ended:
                raise ConnectionError(self._ended) from error
            # What a server refuses a call with is found by reading: a write only knows that the call is over.
            raise self._verdict(error) from error

    def _verdict(self, error: Exception) -> BaseException:
        found = as_raised(error)
        return found if isinstance(found, ShoalError | OSError) else ConnectionError(str(found))

    def _send_heartbeats(self) -> None:
        while not self._is_done.wait(self._stall / 4):
            if self._writing.acquire(blocking=False):  # somebody who writes is a sign of life
                try:
                    self._guarded(lambda: self._writer.write_metadata(_HEARTBEAT))
                except (OSError, ShoalError):
                    return  # the thread that reads hears why
                finally:
                    self._writing.release()

    def look(self) -> None:
        """End the call if its peer is silent. By the endpoint's watch."""
        reason = self.silent()
        if reason:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        with contextlib.suppress(Exception):
            self._reader.cancel()

    def shutdown(self) -> None:
        """End it: what was written still arrives if the peer reads it soon."""
        if self._is_done.is_set():
            return
        if self._writing.acquire(timeout=0.2):
            try:
                with contextlib.suppress(Exception):
                    self._writer.done_writing()
                self._ended = self._ended or "this end was closed"
            finally:
                self._writing.release()
            if self._is_done.wait(_GRACE):
                return
        self._end("this end was closed")

    def close(self) -> None:
        """Let go of it; by the thread that reads."""
        self._end("this end was closed")
        self._is_done.set()
        with self._writing, contextlib.suppress(Exception):
            self._writer.close()
        with contextlib.suppress(Exception):
            self._client.close()


class ServerCall(_Call):
    """The called side: a `FrameStream` whose frames are few and small, and are written by a thread of its own.

    The reader of batches says how much; it must not hang because a caller does not listen.
    """

    def __init__(self, reader: Any, writer: Any, *, stall: float, clock: Clock) -> None:
        super().__init__(reader, stall=stall, clock=clock)
        self._writer = writer
        self._changed = threading.Condition()
        self._answers: deque[bytes] = deque()
        self._is_last = False
        self._thread = threading.Thread(target=self._write, name="exchange answers", daemon=True)
        self._thread.start()

    def write(self, kind: Kind, channel: int, *parts: Any) -> None:
        """One frame."""
        self.write_all([(kind, parts)], channel)

    def write_all(self, frames: Sequence[tuple[Kind, Sequence[Any]]], channel: int) -> None:
        """Some frames."""
        with self._changed:
            if self._is_last:
                raise ConnectionError(self._ended or "the call is over")
            if len(self._answers) >= _MOST_ANSWERS:
                self._is_last = True
                raise ConnectionError("the caller does not read its answers")
            self._answers.append(b"".join(_views(frames, channel)))
            self._changed.notify()

    def try_write(self, kind: Kind, channel: int, content: bytes, *, patience: float) -> None:
        """A last word."""
        del patience
        with contextlib.suppress(OSError):
            self.write(kind, channel, content)

    def _write(self) -> None:
        while True:
            with self._changed:
                if not self._answers and not self._is_last:
                    self._changed.wait(self._stall / 4)
                content = b"".join(self._answers)
                self._answers.clear()
                is_last = self._is_last
            try:
                self._writer.write_metadata(content + (_CLOSE if is_last else b"") or _HEARTBEAT)
            except Exception:  # noqa: BLE001 - the caller is gone: the thread that reads hears of it
                return
            if is_last:
                return

    def shutdown(self) -> None:
        """Say that it is over. A caller that hears it ends the call; no server can."""
        with self._changed:
            self._ended = self._ended or "this end was closed"
            self._is_last = True
            self._changed.notify()

    def close(self) -> None:
        """Let go of it; by the thread that reads, which may not return before the other is done with the call."""
        self.shutdown()
        self._thread.join()

"""A socket that carries frames: whole reads, gathered writes under one lock. Used by both sides of `unix`."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from shoal.exchange.frames import HEADER, Header, Kind, pack_header, read_header

#: Buffers that one call hands to the kernel at most.
_MOST_PARTS = 512
_TIMEVAL = struct.Struct("ll")
#: Bytes that the kernel is asked to hold for each direction.
_KERNEL_BYTES = 1 << 20


class FrameSocket:
    """Frames in both directions. One thread reads; any thread writes."""

    def __init__(self, raw: socket.socket, *, stall: float) -> None:
        self._raw = raw
        self._writing = threading.Lock()
        self._header = memoryview(bytearray(HEADER.size))
        raw.settimeout(None)
        # A peer that reads nothing for so long is lost: a writer must not hang for ever.
        seconds = max(1, int(stall))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(seconds, 0))
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, option, _KERNEL_BYTES)

    def limit_reads(self, seconds: float) -> None:
        """How long to wait for what comes next; 0 for ever."""
        whole = int(seconds)
        timeval = _TIMEVAL.pack(whole, int((seconds - whole) * 1e6))
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    # -- writing ----------------------------------------------------------------------------------------------

    def write(self, kind: Kind, channel: int, *parts: Any) -> None:
        """One frame. Raises `OSError` when the peer is gone or has stopped reading."""
        self.write_all([(kind, parts)], channel)

    def write_all(self, frames: Sequence[tuple[Kind, Sequence[Any]]], channel: int) -> None:
        """Some frames, one right behind the other."""
        buffers: list[memoryview] = []
        for kind, parts in frames:
            views = [part if isinstance(part, memoryview) else memoryview(part).cast("B") for part in parts]
            buffers += [memoryview(pack_header(kind, channel, sum(map(len, views)))), *views]
        with self._writing:
            self._send(buffers)

    def try_write(self, kind: Kind, channel: int, content: bytes, *, patience: float) -> None:
        """A last word, if nobody else is in the middle of a frame; else nothing."""
        if self._writing.acquire(timeout=patience):
            try:
                with contextlib.suppress(OSError):
                    self._send([memoryview(pack_header(kind, channel, len(content))), memoryview(content)])
            finally:
                self._writing.release()

    def _send(self, buffers: list[memoryview]) -> None:
        try:
            for group in _grouped(buffers):
                self._send_group(group)
        except OSError:
            self.shutdown()  # half a frame is out: nothing behind it could be read
            raise

    def _send_group(self, group: list[memoryview]) -> None:
        while group:
            sent = self._raw.sendmsg(group)
            done = 0
            while done < len(group) and sent >= len(group[done]):
                sent -= len(group[done])
                done += 1
            group = group[done:]
            if group and sent:
                group[0] = group[0][sent:]

    # -- reading ----------------------------------------------------------------------------------------------

    def read_header(self, allowed: frozenset[Kind]) -> Header | None:
        """What comes next; None when the peer closed in good order. Raises `BadFrameError`, and `OSError`."""
        got = self._raw.recv_into(self._header, HEADER.size, socket.MSG_WAITALL)
        if got == 0:
            return None
        self._fill(self._header[got:])
        return read_header(self._header, allowed)

    def read_bytes(self, size: int) -> bytes:
        """So many bytes of a small frame."""
        content = bytearray(size)
        self._fill(memoryview(content))
        return bytes(content)

    def read_buffer(self, size: int) -> Any:
        """So many bytes, in memory of Arrow's own."""
        # As far from a cache line as they lie behind their header: the kernel copies faster then.
        buffer = pa.allocate_buffer(HEADER.size + size)
        self._fill(memoryview(buffer).cast("B")[HEADER.size :])
        return buffer.slice(HEADER.size)

    def _fill(self, view: memoryview) -> None:
        while view:
            got = self._raw.recv_into(view, 0, socket.MSG_WAITALL)
            if got == 0:
                raise ConnectionResetError("the peer left in the middle of a frame")
            view = view[got:]

    # -- ending -----------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End every read and write that waits, now and later. From any thread."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it; by the thread that reads."""
        self.shutdown()
        self._raw.close()


def _grouped(buffers: list[memoryview]) -> Iterator[list[memoryview]]:
    for start in range(0, len(buffers), _MOST_PARTS):
        yield buffers[start : start + _MOST_PARTS]

"""A connection that carries frames, as `intake` and `outlet` see it: a socket, or a call of Arrow Flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from shoal.exchange.frames import Header, Kind


class FrameStream(Protocol):
    """Frames in both directions. One thread reads; any thread writes. What fails raises `OSError`."""

    def limit_reads(self, seconds: float) -> None:
        """How long to wait for what comes next; 0 for ever."""
        ...

    def write(self, kind: Kind, channel: int, *parts: Any) -> None:
        """One frame."""
        ...

    def write_all(self, frames: Sequence[tuple[Kind, Sequence[Any]]], channel: int) -> None:
        """Some frames, one right behind the other."""
        ...

    def try_write(self, kind: Kind, channel: int, content: bytes, *, patience: float) -> None:
        """A last word, if nobody else is in the middle of a frame; else nothing."""
        ...

    def read_header(self, allowed: frozenset[Kind]) -> Header | None:
        """What comes next; None when the peer closed in good order. Raises `BadFrameError` too."""
        ...

    def read_bytes(self, size: int) -> bytes:
        """So many bytes of a small frame."""
        ...

    def read_buffer(self, size: int) -> Any:
        """So many bytes, in memory of Arrow's own."""
        ...

    def shutdown(self) -> None:
        """End every read and write that waits, now and later. From any thread."""
        ...

    def close(self) -> None:
        """Let go of it; by the thread that reads."""
        ...

"""Connects this terminal to a command elsewhere: raw mode, its size, and what is typed. Called by `shoal exec`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from shoal.core.tasks import task_scope
from shoal.model.execs import WindowSize

_CHUNK = 32 * 1024


def current_size() -> WindowSize:
    """The size of this terminal; a usual one where there is none.

    The terminal is asked, not COLUMNS and LINES: a shell may have exported them before the window got its size.
    """
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns, rows = os.get_terminal_size(stream.fileno())  # type: ignore[union-attr]
            if columns and rows:
                return WindowSize(rows=rows, columns=columns)
    return WindowSize(rows=24, columns=80)


async def standard_input() -> AsyncIterator[bytes]:
    """Standard input to its end. It is read by a thread that nobody waits for: a read cannot be taken back."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=2)

    def read() -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the loop has ended, or the input is gone
            handle = sys.stdin.fileno()
            while True:
                data = os.read(handle, _CHUNK)
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()
                if not data:
                    return

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while data := await queue.get():
        yield data


class OwnTerminal:
    """This terminal, raw for as long as the block lasts."""

    def __init__(self, *, raw: bool) -> None:
        self._raw = raw
        self._saved: list[Any] | None = None
        self._resized = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._raw:
            handle = sys.stdin.fileno()
            self._saved = list(termios.tcgetattr(handle))
            tty.setraw(handle, termios.TCSADRAIN)  # what was typed already is kept
            asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._resized.set)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saved is not None:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGWINCH)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._saved)

    async def merged(self, typed: AsyncIterator[bytes]) -> AsyncIterator[bytes | WindowSize]:
        """What is typed, and each new size of the window."""
        key: asyncio.Task[bytes] | None = None
        change: asyncio.Task[bool] | None = None
        async with task_scope("terminal") as scope:
            while True:
                key = key or scope.start(_next(typed), name="key")
                change = change or scope.start(self._resized.wait(), name="size")
                pending: set[asyncio.Task[Any]] = {key, change}
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if change.done():
                    change = None
                    self._resized.clear()
                    yield current_size()
                if key.done():
                    data, key = key.result(), None
                    if not data:
                        return
                    yield data


async def _next(typed: AsyncIterator[bytes]) -> bytes:
    return await anext(typed, b"")

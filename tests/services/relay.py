"""A relay of TCP connections on 127.0.0.1 that can be cut, for one client of a real service."""

from __future__ import annotations

import asyncio
import contextlib
import socket


class Relay:
    """Listens on a port of its own, which it keeps while it is cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._cut = False
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        # Bound before there is a loop, so that the address is known at once.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def open(self) -> None:
        """Relay from now on."""
        self._server = await asyncio.start_server(self._accepted, sock=self._socket)

    async def close(self) -> None:
        """Stop, and close every connection."""
        await self.cut()
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def cut(self) -> None:
        """Close every connection, and every new one at once."""
        self._cut = True
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def restore(self) -> None:
        """Relay again."""
        self._cut = False

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self._cut:
                await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side closed it, or we cut it
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        try:
            ways = [
                asyncio.ensure_future(_pump(reader, there_writer)),
                asyncio.ensure_future(_pump(there_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            there_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(65536):
            writer.write(block)
            await writer.drain()

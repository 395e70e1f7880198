"""A way for TCP connections between network namespaces that no cut of the network touches: a unix socket.

    python -m tests.services.doorway unix:/tmp/x/kafka 127.0.0.1:9092        where the service is
    python -m tests.services.doorway 127.0.0.1:9092 unix:/tmp/x/kafka        in a namespace that has no way to it

The service has the same address on both sides. A process that is stopped is a service that takes and says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

_BLOCK = 1 << 16
_UNIX = "unix:"
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect(address: str) -> Ends:
    if address.startswith(_UNIX):
        return await asyncio.open_unix_connection(address.removeprefix(_UNIX))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(_BLOCK):
            writer.write(block)
            await writer.drain()
    writer.close()


async def serve(listen: str, target: str) -> None:
    """Carry every connection. Does not return."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await _connect(target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_carry(reader, other_writer), _carry(other_reader, writer))

    if listen.startswith(_UNIX):
        server = await asyncio.start_unix_server(take, listen.removeprefix(_UNIX))
    else:
        host, _, port = listen.rpartition(":")
        server = await asyncio.start_server(take, host, int(port))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))

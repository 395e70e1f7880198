"""A bare gRPC echo: what one unary call between two processes costs without anything of ours.

    grpc_echo.py RATE COUNT       starts a server process, calls it at a steady rate, prints {"seconds": [...]}
    grpc_echo.py serve            the server; prints its port and serves until its input ends

Latency is counted from the moment a call was due, so that a call that had to wait for its turn shows it.
"""

from __future__ import annotations

import asyncio
import json
import sys

import grpc
from grpc import aio

METHOD = "/bench.Echo/Echo"
PAYLOAD = bytes(256)
"""About as large as a small command to an agent."""


async def serve() -> None:
    """Echo bytes until the input ends."""

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    server = aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


async def measure(rate: float, count: int) -> list[float]:
    """Seconds from when each call was due to its answer."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "serve"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    port = int(await server.stdout.readline())
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            return await _call_steadily(channel.unary_unary(METHOD), rate, count)
    finally:
        server.stdin.close()
        await server.wait()


async def _call_steadily(echo: aio.UnaryUnaryMultiCallable[bytes, bytes], rate: float, count: int) -> list[float]:
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.1
    due = [begin + number / rate for number in range(count)]
    taken = [0.0] * count

    async def call(number: int) -> None:
        await echo(PAYLOAD)
        taken[number] = loop.time() - due[number]

    async with asyncio.TaskGroup() as calls:
        for number, moment in enumerate(due):
            await asyncio.sleep(max(0.0, moment - loop.time()))
            calls.create_task(call(number))
    return taken


def main(arguments: list[str]) -> None:
    """Be the server, or measure."""
    if arguments == ["serve"]:
        asyncio.run(serve())
        return
    rate, count = arguments
    print(json.dumps({"seconds": asyncio.run(measure(float(rate), int(count)))}))


if __name__ == "__main__":
    main(sys.argv[1:])

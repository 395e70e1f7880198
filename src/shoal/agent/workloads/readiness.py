"""Runs one try of a readiness or liveness probe. No try blocks or lasts longer than its timeout.

Called by `shoal.agent.workloads.actor` while a run lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote

from shoal.core.errors import DeadlineError, ShoalError, UnavailableError
from shoal.core.ids import RunId
from shoal.model.workloads import Body, HttpProbe, Liveness, Readiness
from shoal.runtimes.base import Runtime, SupportsBoot, SupportsProbes

_LOOPBACK = ("127.0.0.1", "::1")
_LONGEST_STATUS_LINE = 1024


async def try_once(
    probe: Readiness | Liveness, *, runtime: Runtime, run_id: RunId, ports: Mapping[str, int]
) -> bool | None:
    """Whether the probe succeeds now; None when it cannot be run, because the runtime is away."""
    timeout = probe.timeout.total_seconds()
    try:
        async with asyncio.timeout(timeout):
            if probe.tcp_port is not None:
                return await _accepts(_number(probe.tcp_port, ports))
            if probe.http is not None:
                return await _answers(probe.http, _number(probe.http.port, ports))
            if probe.command is not None and isinstance(runtime, SupportsProbes):
                return await runtime.run_probe(run_id, probe.command.command, timeout=timeout)
    except (UnavailableError, DeadlineError):
        return None
    except (OSError, TimeoutError, ValueError, ShoalError):  # ValueError: an answer longer than any status line
        return False
    return False


async def has_booted(runtime: Runtime, run_id: RunId) -> bool:
    """Whether a run has booted, as far as its runtime can tell."""
    try:
        return not isinstance(runtime, SupportsBoot) or await runtime.has_booted(run_id)
    except (OSError, ShoalError):
        return False


def probed_ports(body: Body, chosen: Mapping[str, int]) -> dict[str, int]:
    """The ports of this machine by all names that a probe may use; a container's own port is one of them."""
    ports = dict(chosen)
    for mapping in body.port_mappings:
        number = chosen.get(mapping.name, mapping.host_port)
        if number:
            ports.setdefault(str(mapping.container_port), number)
    return ports


def _number(reference: str, ports: Mapping[str, int]) -> int:
    return ports[reference] if reference in ports else int(reference)


async def _accepts(port: int) -> bool:
    async with _connected(port):
        return True


async def _answers(probe: HttpProbe, port: int) -> bool:
    # Quoted, so that nothing in it can end the request line.
    path = "/" + quote(probe.path.removeprefix("/"), safe="/?&=%:@!$'()*+,;~#[]")
    async with _connected(port) as (reader, writer):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        await writer.drain()
        line = await reader.readline()
    words = line[:_LONGEST_STATUS_LINE].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return False
    return 200 <= int(words[1]) <= 399


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await _connect(port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(_LOOPBACK[0], port, limit=_LONGEST_STATUS_LINE * 8)
    except OSError:
        return await asyncio.open_connection(_LOOPBACK[1], port, limit=_LONGEST_STATUS_LINE * 8)

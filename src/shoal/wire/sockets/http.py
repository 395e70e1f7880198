"""The small HTTP server beside gRPC: metrics and health, for Prometheus and probes.

    GET /metrics    Prometheus text
    GET /jobs/JOB/metrics    series of a job, where there are some
    GET /health     the true status as JSON, with the status code the caller chose
    GET /healthz    200 while the process lives
    GET /readyz     200 when it can serve, else 503

Runs inside the current event loop and installs no signal handlers: its owner stops it. Called by the servers
of the control plane and the agent; Starlette and uvicorn are imported only when one is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from shoal.core.errors import UnavailableError
from shoal.core.tasks import TaskScope
from shoal.wire.addresses import Address, parse_address

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Probes and scrapers are few; more than this is a mistake or an attack, answered with 503.
_MAX_CONNECTIONS = 1000


class HttpServer:
    """A running HTTP server. The socket listens already: what is asked before uvicorn is up waits in its backlog."""

    def __init__(self, listener: socket.socket, server: uvicorn.Server) -> None:
        bound = Address(*listener.getsockname()[:2])
        self._address = bound.dialable()
        self._is_everywhere = bound != self._address
        self._server = server
        self._scope = TaskScope("http")
        self._task = self._scope.start(server.serve(sockets=[listener]), name="serve")

    @property
    def address(self) -> str:
        """host:port that others on this machine may ask; the port is the real one also when 0 was asked for."""
        return str(self._address)

    def address_at(self, host: str) -> str:
        """host:port for others, who reach this machine at `host`, if it listens everywhere; else where it listens."""
        return str(Address(host, self._address.port)) if host and self._is_everywhere else self.address

    async def stop(self) -> None:
        """Take no new requests, give those under way a second, then end. Safe to call twice."""
        self._server.should_exit = True
        await asyncio.wait({self._task})
        await self._scope.close()


async def serve_http(
    address: str,
    *,
    metrics: Callable[[], bytes],
    health: Callable[[], tuple[int, Mapping[str, object]]],
    ready: Callable[[], bool],
    more: Callable[[], Awaitable[bytes]] | None = None,
    of_job: Callable[[str], Awaitable[bytes]] | None = None,
) -> HttpServer:
    """Serve at host:port (port 0: any free one). Raises `UnavailableError` when the port is taken.

    `more` has series that follow those of `metrics`, `of_job` those of one job.
    """
    server = _make_server(_make_app(metrics, health, ready, more, of_job))
    return HttpServer(_listen(parse_address(address, listening=True)), server)


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"cannot listen on {address}: {(error.strerror or str(error)).lower()}",
            hint="stop the program that listens there, or choose another address",
            address=address,
        ) from error
    listener.setblocking(False)
    return listener


def _make_app(
    metrics: Callable[[], bytes],
    health: Callable[[], tuple[int, Mapping[str, object]]],
    ready: Callable[[], bool],
    more: Callable[[], Awaitable[bytes]] | None,
    of_job: Callable[[str], Awaitable[bytes]] | None,
) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    async def show_metrics(_request: Request) -> Response:
        following = b"" if more is None else await more()
        return Response(metrics() + following, headers={"content-type": _METRICS_TYPE})

    async def show_job(request: Request) -> Response:
        found = b"" if of_job is None else await of_job(request.path_params["job"])
        if not found:
            return PlainTextResponse("no coordinator of that job is here\n", status_code=404)
        return Response(found, headers={"content-type": _METRICS_TYPE})

    async def show_health(_request: Request) -> Response:
        code, body = health()
        return JSONResponse(dict(body), status_code=code)

    async def show_life(_request: Request) -> Response:
        return PlainTextResponse("ok")

    async def show_readiness(_request: Request) -> Response:
        is_ready = ready()
        return PlainTextResponse("ready" if is_ready else "not ready", status_code=200 if is_ready else 503)

    return Starlette(
        routes=[
            Route("/metrics", show_metrics),
            Route("/jobs/{job}/metrics", show_job),
            Route("/health", show_health),
            Route("/healthz", show_life),
            Route("/readyz", show_readiness),
        ]
    )


def _make_server(app: Starlette) -> uvicorn.Server:
    import uvicorn

    class QuietServer(uvicorn.Server):
        """Leaves the process's signals to the process."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Nothing to do."""
            yield

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    config.load()  # what is missing is missed here, not in a background task
    return QuietServer(config)

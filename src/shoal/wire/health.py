"""The standard gRPC health service (`grpc.health.v1.Health`), served by every server of either transport.

Made by `server.py` and `local.py`; asked by load balancers, by probes and by `grpc_health_probe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from grpc_health.v1 import health_pb2 as health

from shoal.core.errors import NotFoundError
from shoal.wire.transport import Call, Cardinality, Method, Service

NAME = "grpc.health.v1.Health"

CHECK = Method(NAME, "Check", health.HealthCheckRequest, health.HealthCheckResponse)
WATCH = Method(NAME, "Watch", health.HealthCheckRequest, health.HealthCheckResponse, Cardinality.SERVER_STREAM)


class Health:
    """One answer for the whole server and for each service in it: they are served together or not at all."""

    def __init__(self, services: Iterable[str]) -> None:
        self._known = frozenset({"", NAME, *services})
        self._serving = True
        self._changed = asyncio.Event()

    def service(self) -> Service:
        """As a server takes it."""
        return Service((CHECK, WATCH), self)

    def set_serving(self, serving: bool) -> None:
        """Change the answer and tell everyone who watches."""
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, request: health.HealthCheckRequest, _call: Call) -> health.HealthCheckResponse:
        """The answer now."""
        if request.service not in self._known:
            raise NotFoundError("service", request.service)
        return self._answer(request.service)

    async def watch(self, request: health.HealthCheckRequest, _call: Call) -> AsyncIterator[health.HealthCheckResponse]:
        """The answer now and at each change. A service that is not there may come, so this is no error."""
        told: health.HealthCheckResponse | None = None
        while True:
            changed = self._changed
            answer = self._answer(request.service)
            if answer != told:
                told = answer
                yield answer
            else:
                await changed.wait()

    def _answer(self, service: str) -> health.HealthCheckResponse:
        if service not in self._known:
            return health.HealthCheckResponse(status=health.HealthCheckResponse.SERVICE_UNKNOWN)
        serving, idle = health.HealthCheckResponse.SERVING, health.HealthCheckResponse.NOT_SERVING
        return health.HealthCheckResponse(status=serving if self._serving else idle)

"""Server reflection (`grpc.reflection.v1alpha`), so that tools can ask a server what it serves.

Made into a `Service` like any other, so that its callers are checked like any others. Used by `server.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from grpc_reflection.v1alpha import reflection_pb2 as pb

from shoal.wire.transport import Call, Cardinality, Method, Service

if TYPE_CHECKING:
    from shoal.wire.grpcio import ReflectionServicer

NAME = "grpc.reflection.v1alpha.ServerReflection"
SERVER_REFLECTION_INFO = Method(
    NAME,
    "ServerReflectionInfo",
    pb.ServerReflectionRequest,
    pb.ServerReflectionResponse,
    Cardinality.BOTH_STREAM,
)


class Reflection:
    """Describes services by name."""

    def __init__(self, services: Iterable[str]) -> None:
        # Imported here: the table of rules names this method, and is read where grpc itself is not wanted.
        from shoal.wire.grpcio import ReflectionServicer

        self._servicer: ReflectionServicer = ReflectionServicer(sorted({*services, NAME}))

    def service(self) -> Service:
        """As a server takes it."""
        return Service((SERVER_REFLECTION_INFO,), self)

    def server_reflection_info(
        self, requests: AsyncIterator[pb.ServerReflectionRequest], _call: Call
    ) -> AsyncIterator[pb.ServerReflectionResponse]:
        """Answer each question."""
        answers: AsyncIterator[pb.ServerReflectionResponse] = self._servicer.ServerReflectionInfo(requests, None)
        return answers

"""The one place where a connection gets its credentials.

`Security` says how a transport proves who it is and which peers it trusts; `Protection` is what becomes of it, one for
each transport. Nothing outside this file looks into either.

`MutualTls` is TLS 1.2 or newer with certificates on both sides. Files that are replaced are picked up without a
restart: servers look at them before each handshake, channels every few seconds (`channel.py` makes a new connection
when they changed). A server knows its callers by the certificate that TLS has verified. A client cannot see the
server's certificate, for gRPC does not hand it out; it asks TLS to verify the name that says who the server is
(`shoal.model.identity.Peer`) in place of its host. Without a `Peer` it is the host that is verified.

`ServerTls` and `AnonymousTls` are the two ends of a connection on which the caller has no certificate yet: the server
proves who it is and knows nobody. They serve to get one (`shoal.v1.Enrollment`), and nothing else.

`Insecure` protects nothing and knows nobody, and every program must be told to use it.

TLS looks at dates when a connection is made, and connections can last longer than certificates. So a server looks at
them again with each call, and with each message of a stream: at its caller's, and at its own. A client cannot see the
server's date, so the server ends a stream when its own certificate has expired.

Called by `channel.py` and `server.py`; calls `credentials.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.clock import Clock
from shoal.core.errors import InternalError, UnauthenticatedError, UnavailableError
from shoal.model.identity import Caller, Identity, Peer
from shoal.wire.grpcio import aio, grpc

if TYPE_CHECKING:
    from shoal.wire.trust.credentials import Credentials

Options = Sequence[tuple[str, Any]]

LOOK_EVERY = 2.0
"""Seconds between two looks at the files, on behalf of channels."""

# A connection is made anew now and then, so that an authority that is trusted no more is soon without any.
_CONNECTION_AGE_MS = 3_600_000

# A request to sign and a token fit in many times over.
_MAX_ANONYMOUS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Insecure:
    """No encryption and no identity: for bring-up and tests."""


@dataclass(frozen=True, slots=True)
class MutualTls:
    """TLS with certificates on both sides, from files in PEM. `ca` may hold several authorities, all trusted."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server with the files of a `MutualTls` that asks its callers for no certificate. It cannot connect."""

    files: MutualTls


@dataclass(frozen=True, slots=True)
class AnonymousTls:
    """A client without a certificate, of one server: it trusts these roots (PEM) for this name. It cannot serve."""

    roots: bytes
    server_name: str


Security = Insecure | MutualTls | ServerTls | AnonymousTls
INSECURE = Insecure()


class Protection(Protocol):
    """The credentials of one transport, in use."""

    @property
    def identity(self) -> Identity | None:
        """Who we are; None without certificates."""
        ...

    @property
    def server_options(self) -> Options:
        """What servers need besides their own options."""
        ...

    def version(self) -> int:
        """Grows when the credentials changed: connections that were made before should be made anew."""
        ...

    def doubt(self) -> None:
        """A connection could not be made: the files may have changed, so look at them the next time."""
        ...

    def open_channel(self, target: str, peer: Peer | None, options: Options) -> aio.Channel:
        """A channel to `target`, good for nobody but `peer` if there is one."""
        ...

    def add_port(self, server: aio.Server, target: str) -> int:
        """Let `server` listen at `target`; returns the port. Raises RuntimeError when it cannot."""
        ...

    def caller(self, context: aio.ServicerContext[bytes, bytes]) -> Caller | None:
        """The caller by its certificate; None without certificates. Raises `UnauthenticatedError`."""
        ...

    def seconds_left(self, caller: Caller) -> float:
        """How long the certificates at both ends are valid. Raises an error when one has expired."""
        ...


def protect(security: Security, *, clock: Clock) -> Protection:
    """Put a `Security` to use. Raises `InvalidError` when its files are no good."""
    match security:
        case Insecure():
            return _Unprotected()
        case MutualTls():
            return _Protected(security, clock)
        case ServerTls():
            return _ServerOnly(security.files, clock)
        case AnonymousTls():
            return _Anonymous(security)


class _Unprotected:
    """Encrypts nothing, knows nobody."""

    identity = None
    server_options: Options = ()

    def version(self) -> int:
        return 0

    def doubt(self) -> None:
        pass

    def open_channel(self, target: str, peer: Peer | None, options: Options) -> aio.Channel:
        return aio.insecure_channel(target, options=options)

    def add_port(self, server: aio.Server, target: str) -> int:
        return server.add_insecure_port(target)

    def caller(self, context: aio.ServicerContext[bytes, bytes]) -> None:
        return None

    def seconds_left(self, caller: Caller) -> float:
        return math.inf


class _Protected:
    """TLS both ways, with files that may be replaced at any time."""

    _asks_callers = True
    server_options: Options = (("grpc.max_connection_age_ms", _CONNECTION_AGE_MS),)

    def __init__(self, security: MutualTls, clock: Clock) -> None:
        # Imported here, so that an insecure program does not load it.
        from shoal.wire.trust.certificates import read_caller
        from shoal.wire.trust.credentials import CredentialPaths, CredentialWatch

        self._clock = clock
        self._read_caller = read_caller
        self._files = CredentialWatch(CredentialPaths(security.ca, security.cert, security.key), now=clock.wall)
        self._next_look = 0.0

    @property
    def identity(self) -> Identity | None:
        return self._files.current.identity

    def version(self) -> int:
        now = asyncio.get_running_loop().time()
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY
            self._files.look()
        return self._files.version

    def doubt(self) -> None:
        self._next_look = 0.0

    def open_channel(self, target: str, peer: Peer | None, options: Options) -> aio.Channel:
        given = self._files.current
        credentials = grpc.ssl_channel_credentials(given.ca, given.key, given.cert)
        if peer is not None:
            name = peer.server_name(given.identity.cluster)
            options = (*options, ("grpc.ssl_target_name_override", name))
        return aio.secure_channel(target, credentials, options=options)

    def add_port(self, server: aio.Server, target: str) -> int:
        given = self._files.look()

        # Called by gRPC before each handshake, on a thread of its own; None means: as before.
        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            newest = self._files.look()
            if newest is given:
                return None
            given = newest
            return _configuration(newest)

        make: Any = grpc.dynamic_ssl_server_credentials  # its types do not know that a fetcher may return None
        credentials = make(_configuration(given), fetch, require_client_authentication=self._asks_callers)
        return server.add_secure_port(target, credentials)

    def caller(self, context: aio.ServicerContext[bytes, bytes]) -> Caller | None:
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:
            raise UnauthenticatedError("the caller has shown no certificate")
        return self._read_caller(bytes(next(iter(shown))))

    def seconds_left(self, caller: Caller) -> float:
        now = self._clock.wall()
        if now >= caller.not_after:
            raise UnauthenticatedError(
                f"the certificate of {caller.identity} expired on {caller.not_after:%Y-%m-%d %H:%M} UTC",
                hint="a new one is picked up without a restart",
                name=caller.identity.name,
            )
        own = self._files.current.not_after
        if now >= own:
            own = self._files.look().not_after
        if now >= own:
            raise UnavailableError(
                f"this server's own certificate expired on {own:%Y-%m-%d %H:%M} UTC",
                hint="replace the server's files: a new certificate is picked up without a restart",
            )
        return (min(own, caller.not_after) - now).total_seconds()


class _ServerOnly(_Protected):
    """TLS with a certificate on our side alone. Nobody is known, so nobody gets much: small messages, short stays."""

    _asks_callers = False
    server_options: Options = (
        ("grpc.max_connection_age_ms", 60_000),
        ("grpc.max_connection_idle_ms", 10_000),
        ("grpc.max_concurrent_streams", 8),
        ("grpc.max_receive_message_length", _MAX_ANONYMOUS_BYTES),
    )

    @property
    def identity(self) -> None:
        return None

    def open_channel(self, target: str, peer: Peer | None, options: Options) -> aio.Channel:
        raise InternalError("a server for callers without certificates does not call anyone")

    def caller(self, context: aio.ServicerContext[bytes, bytes]) -> None:
        return None


class _Anonymous(_Unprotected):
    """TLS to one server that is known, from a client that nobody knows."""

    def __init__(self, security: AnonymousTls) -> None:
        self._security = security

    def open_channel(self, target: str, peer: Peer | None, options: Options) -> aio.Channel:
        credentials = grpc.ssl_channel_credentials(self._security.roots)
        options = (*options, ("grpc.ssl_target_name_override", self._security.server_name))
        return aio.secure_channel(target, credentials, options=options)

    def add_port(self, server: aio.Server, target: str) -> int:
        raise InternalError("a client without a certificate does not serve anyone")


def _configuration(given: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(given.key, given.cert)], root_certificates=given.ca)

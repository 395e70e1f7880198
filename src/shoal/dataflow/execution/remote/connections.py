"""Connections between the processes of a job on different nodes: TCP, with TLS by certificates of the job.

Both sides show their workload certificates; only those of the same job are accepted. A TLS connection may be read and
written by two threads at once, which `ssl.SSLSocket` does not allow: so the TLS state is behind a lock of its own, and
nobody waits for the network under it. Used by `shoal.dataflow.execution.hosts.control_link` as it uses a plain socket.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Any

from shoal.core.errors import DeniedError, InvalidError
from shoal.dataflow.execution.remote.surroundings import Certificate
from shoal.model.identity import Identity, Role, own_server_name, parse_identity

_PIECE = 64 * 1024
#: Seconds in which a peer that connects has to prove who it is.
_HANDSHAKE = 10.0
#: Seconds in which a coordinator has to answer, and to prove who it is. One that stands still accepts and says nothing.
_DIAL = 1.0


class SecureSocket:
    """A TLS connection over a connected socket. One thread reads, any thread writes."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, *, server_name: str | None) -> None:
        self._raw = raw
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self._shake_hands()

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                received = self._raw.recv(_PIECE)
                if not received:
                    raise ConnectionResetError("it hung up") from None
                self._incoming.write(received)
            else:
                self._flush()
                return

    def _flush(self) -> None:
        pending = self._outgoing.read()
        if pending:
            self._raw.sendall(pending)

    @property
    def peer(self) -> Identity:
        """Who is on the other side. Raises `DeniedError` for somebody without an identity of ours."""
        certificate: Any = self._tls.getpeercert() or {}
        uris = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        try:
            return parse_identity(uris[0] if len(uris) == 1 else "")
        except InvalidError:
            raise DeniedError("the certificate of this peer says no identity") from None

    def settimeout(self, seconds: float | None) -> None:
        """How long a read or a write waits."""
        self._raw.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """Set an option of the socket."""
        self._raw.setsockopt(level, option, value)

    def sendall(self, content: bytes) -> None:
        """Send everything."""
        view = memoryview(content)
        with self._sending:
            while view:
                with self._state:
                    written = self._tls.write(view[:_PIECE])
                    pending = self._outgoing.read()
                self._raw.sendall(pending)
                view = view[written:]

    def recv(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        content = bytearray(size)
        return bytes(content[: self.recv_into(memoryview(content))])

    def recv_into(self, view: memoryview) -> int:
        """Read into a buffer; 0 at the end."""
        while True:
            with self._state:
                try:
                    received = self._tls.read(min(len(view), _PIECE))
                    view[: len(received)] = received
                    return len(received)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLEOFError:
                    return 0
                except ssl.SSLZeroReturnError:
                    return 0
            received = self._raw.recv(_PIECE)
            with self._state:
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()

    def shutdown(self, how: int) -> None:
        """End every call that waits."""
        self._raw.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._raw.close()


Connection = socket.socket | SecureSocket


def dial(address: str, certificate: Certificate | None, job_id: str) -> tuple[Connection, str]:
    """Connect to the coordinator of a job. Also returns the address of this end. Raises `OSError`, `DeniedError`."""
    host, _, port = address.rpartition(":")
    raw = socket.create_connection((host.strip("[]"), int(port)), timeout=_DIAL)
    try:
        _keep_awake(raw)
        own = str(raw.getsockname()[0])
        if certificate is None:
            return raw, own
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load(context, certificate)
        own_identity = _own_identity(certificate)
        connection = SecureSocket(raw, context, server_name=own_server_name(own_identity) or "")
        _check_peer(connection, own_identity, job_id)
    except BaseException:
        raw.close()
        raise
    return connection, own


def receive_peer(raw: socket.socket, certificate: Certificate | None, job_id: str) -> Connection:
    """The coordinator's side of a new connection. Raises `OSError`, and `DeniedError` for one of another job."""
    raw.settimeout(_HANDSHAKE)
    _keep_awake(raw)
    if certificate is None:
        return raw
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, certificate)
    connection = SecureSocket(raw, context, server_name=None)
    _check_peer(connection, _own_identity(certificate), job_id)
    return connection


def _keep_awake(raw: socket.socket) -> None:
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _load(context: ssl.SSLContext, certificate: Certificate) -> None:
    from pathlib import Path

    from shoal.wire.trust.credentials import key_places

    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(certificate.ca)
    *others, last = key_places(Path(certificate.key))
    for key in others:  # the agent may be replacing the files, or have died in the middle of that
        with contextlib.suppress(OSError):
            context.load_cert_chain(certificate.cert, key)
            return
    context.load_cert_chain(certificate.cert, last)


def _own_identity(certificate: Certificate) -> Identity:
    from pathlib import Path

    from shoal.wire.trust.certificates import identity_of, read_certificates

    found = identity_of(read_certificates(Path(certificate.cert).read_bytes())[0])
    if found is None or found.role is not Role.WORKLOAD:
        raise DeniedError("the certificate of this process is not that of a workload")
    return found


def _check_peer(connection: SecureSocket, own: Identity, job_id: str) -> None:
    peer = connection.peer
    is_ours = peer.role is Role.WORKLOAD and peer.cluster == own.cluster and peer.job == own.job == job_id
    if not is_ours:
        raise DeniedError(f"{peer} is not a process of job {job_id!r}")

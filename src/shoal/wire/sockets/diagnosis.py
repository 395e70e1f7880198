"""Finds out why a control plane cannot be reached, and says it in one sentence.

gRPC reports most failures as "unavailable", with texts such as "Socket closed". This module opens a plain socket of its
own and does the handshake step by step. Called by the client once a call has failed for good; it blocks, so it runs in
a thread. It changes nothing at the other side: it connects, says hello and closes.
"""

from __future__ import annotations

import errno
import socket
import ssl
from datetime import datetime

from cryptography.exceptions import InvalidSignature

from shoal.core.errors import ShoalError
from shoal.model.identity import Peer
from shoal.wire.addresses import parse_address
from shoal.wire.transport import Diagnosis
from shoal.wire.trust.certificates import CertificateFacts, describe, read_certificates
from shoal.wire.trust.security import Insecure, MutualTls, Security

PATIENCE = 2.0
"""Seconds for each step: a host that answers does so sooner."""

# The preface of HTTP/2 and an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_TLS_ALERT = 0x15
_START = "start one with `shoal up`, or give its address with --control or SHOAL_CONTROL"
_GIVE_FILES = "give --ca, --cert and --key, or run the command in the folder of `shoal up`"


def diagnose(address: str, security: Security, peer: Peer | None, *, now: datetime) -> Diagnosis | None:
    """Why a call to host:port fails; None when the connection works."""
    where = parse_address(address)
    try:
        with socket.create_connection((where.host, where.port), timeout=PATIENCE) as connection:
            if isinstance(security, Insecure):
                return _without_tls(connection, (where.host, where.port))
            if isinstance(security, MutualTls):
                return _with_tls(connection, (where.host, where.port), security, peer, now=now)
    except OSError as error:
        return _no_connection(error, where.host)
    return None


def _no_connection(error: OSError, host: str) -> Diagnosis:
    if isinstance(error, socket.gaierror):
        return Diagnosis(
            f"the name {host} cannot be resolved", "check the name in --control, and the DNS of this machine"
        )
    if isinstance(error, TimeoutError):
        reason = f"no answer within {PATIENCE:g} s; the host is down, or a firewall drops the packets"
        return Diagnosis(reason, "check the address, the network and its firewalls")
    if error.errno == errno.ECONNREFUSED:
        return Diagnosis("nothing listens there (connection refused)", _START)
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return Diagnosis(f"there is no route to {host}", "check the address and the network of this machine")
    return Diagnosis((error.strerror or str(error)).lower(), "check the address, and that the control plane is running")


# ---------------------------------------------------------------------------------------------------------
# We speak TLS


def _with_tls(
    connection: socket.socket, where: tuple[str, int], files: MutualTls, peer: Peer | None, *, now: datetime
) -> Diagnosis | None:
    try:
        context = ssl.create_default_context(cafile=str(files.ca))
        context.load_cert_chain(str(files.cert), str(files.key))
        own = describe(read_certificates(files.cert.read_bytes())[0])
    except (OSError, ssl.SSLError, ShoalError) as error:
        return Diagnosis(f"our own certificate cannot be used: {error}", "`shoal certs show` says what is in the files")
    context.set_alpn_protocols(["h2"])
    name = peer.server_name(own.cluster) if peer is not None else where[0]
    try:
        with context.wrap_socket(connection, server_hostname=name) as protected:
            return _refusal_of_ours(protected, files, own, now=now)
    except ssl.SSLCertVerificationError as error:
        return _wrong_certificate(error, where, files, own, peer)
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return _speaks_plain_text()
        return _refused(error, files, own, now=now)
    except (ConnectionError, TimeoutError, OSError):
        return _speaks_plain_text()


def _speaks_plain_text() -> Diagnosis:
    return Diagnosis(
        "it does not speak TLS", "a control plane that was started with --insecure needs --insecure here too"
    )


def _refusal_of_ours(
    protected: ssl.SSLSocket, files: MutualTls, own: CertificateFacts, *, now: datetime
) -> Diagnosis | None:
    """In TLS 1.3 a server refuses a client's certificate after the handshake: the first read shows it."""
    protected.settimeout(PATIENCE)
    try:
        protected.sendall(_PREFACE)
        received = protected.recv(1)
    except ssl.SSLError as error:
        return _refused(error, files, own, now=now)
    except TimeoutError:
        return Diagnosis("it accepts connections but does not answer", "look at its log and at its load")
    except OSError:
        received = b""
    return None if received else _refused(None, files, own, now=now)


def _refused(error: ssl.SSLError | None, files: MutualTls, own: CertificateFacts, *, now: datetime) -> Diagnosis:
    reason = (error.reason or "") if error is not None else ""
    if "EXPIRED" in reason or own.not_after <= now:
        return Diagnosis(
            f"our certificate {files.cert} expired on {own.not_after:%Y-%m-%d %H:%M} UTC",
            "make a new one with `shoal certs issue`",
        )
    if "UNKNOWN_CA" in reason or "CERTIFICATE_UNKNOWN" in reason or not _is_signed_by_trusted(files):
        return Diagnosis(
            f"it does not trust the authority that signed our certificate {files.cert}",
            "use a certificate that was signed by the authority of its cluster",
        )
    return Diagnosis(
        f"it refuses our certificate {files.cert}", "`shoal certs show` says whose it is and who signed it"
    )


def _is_signed_by_trusted(files: MutualTls) -> bool:
    """Whether an authority that we trust signed our own certificate, as is usual within a cluster."""
    own, *_ = read_certificates(files.cert.read_bytes())
    for authority in read_certificates(files.ca.read_bytes()):
        try:
            own.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _wrong_certificate(
    error: ssl.SSLCertVerificationError,
    where: tuple[str, int],
    files: MutualTls,
    own: CertificateFacts,
    peer: Peer | None,
) -> Diagnosis:
    shown = _certificate_at(where)
    message = error.verify_message.lower()
    if "expired" in message:
        on = f" on {shown.not_after:%Y-%m-%d %H:%M} UTC" if shown is not None else ""
        return Diagnosis(f"its certificate expired{on}", "issue it a new one with `shoal certs issue --role control`")
    if "not yet valid" in message:
        return Diagnosis("its certificate is not valid yet", "check the clocks of both machines")
    if "hostname" in message or "ip address" in message:
        whose = shown.identity if shown is not None and shown.identity is not None else "somebody else"
        wanted = f"{peer} of cluster {own.cluster}" if peer is not None else where[0]
        return Diagnosis(f"its certificate is that of {whose}, not of {wanted}", "check the address in --control")
    return Diagnosis(
        f"its certificate was not signed by the authority in {files.ca}",
        "give the ca.pem of its cluster with --ca; `shoal certs show` says what a file holds",
    )


def _certificate_at(where: tuple[str, int]) -> CertificateFacts | None:
    """The certificate of the server there, whatever authority signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(where, timeout=PATIENCE) as connection,
            context.wrap_socket(connection) as protected,
        ):
            found = protected.getpeercert(binary_form=True)
        pem = ssl.DER_cert_to_PEM_cert(found).encode() if found else b""
        return describe(read_certificates(pem)[0])
    except (OSError, ShoalError):
        return None


# ---------------------------------------------------------------------------------------------------------
# We speak plain text


def _without_tls(connection: socket.socket, where: tuple[str, int]) -> Diagnosis | None:
    try:
        connection.sendall(_PREFACE)
        received = connection.recv(16)
    except OSError:
        received = b""
    if received[:1] == bytes([_TLS_ALERT]) or (not received and _certificate_at(where) is not None):
        return Diagnosis("it speaks TLS, and we do not (--insecure)", f"leave --insecure out and {_GIVE_FILES}")
    if received.startswith(b"HTTP/1"):
        return Diagnosis("it is an HTTP server, not gRPC", "is this the port for HTTP? gRPC listens at 8085 by default")
    if not received:
        return Diagnosis("it accepts connections but does not answer", "check that a control plane listens there")
    return None

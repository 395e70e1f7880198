"""Reads certificates: who the holder is, how long they are valid, and whether a key belongs to one.

A Shoal certificate carries one URI with the holder's identity (`shoal.model.identity`), a host name that tells TLS
clients the same, and the hosts that others dial. Nothing is verified here; TLS does that. Called by
`shoal.wire.trust.security`, `shoal.wire.trust.credentials`, the agent and `shoal certs`. Certificates are made in
`shoal.wire.trust.authority`.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shoal.core.errors import InvalidError, UnauthenticatedError, problem
from shoal.core.ids import is_identifier
from shoal.model.identity import DOMAIN, SCHEME, Caller, Identity, parse_identity

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_CACHED_CALLERS = 4096


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a certificate says, for people and programs."""

    subject: str
    issuer: str
    is_authority: bool
    #: The cluster of an authority; of everything else it is in the identity.
    cluster: str
    identity: Identity | None
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    serial: str
    sha256: str


def read_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Every certificate in a PEM text, in order. Raises `InvalidError` when there is none, or one is broken."""
    found: list[x509.Certificate] = []
    with contextlib.suppress(ValueError, x509.InvalidVersion):
        found = x509.load_pem_x509_certificates(pem)
    if not found or len(found) != pem.count(_BEGIN):
        raise InvalidError([problem("certificate", None, "must be a certificate in PEM")])
    return tuple(found)


@functools.lru_cache(maxsize=_CACHED_CALLERS)
def read_caller(pem: bytes) -> Caller:
    """The identity and dates in a caller's certificate, which TLS has verified. Raises `UnauthenticatedError`."""
    try:
        leaf = read_certificates(pem)[0]
    except InvalidError:
        raise UnauthenticatedError("the caller's certificate cannot be read") from None
    return Caller(identity_of(leaf), leaf.not_valid_before_utc, leaf.not_valid_after_utc)


def to_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def matches(certificate: x509.Certificate, key: bytes) -> bool:
    """Whether a private key (PEM) belongs to a certificate. Raises `InvalidError` when it is not a key."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    own = read_key(key).public_key().public_bytes(*form)
    try:
        return own == certificate.public_key().public_bytes(*form)
    except (ValueError, UnsupportedAlgorithm):
        return False


def identity_of(certificate: x509.Certificate) -> Identity:
    """The identity of a certificate's holder. Raises `UnauthenticatedError` unless it carries exactly one."""
    uris: tuple[str, ...] = ()
    with contextlib.suppress(ValueError, x509.DuplicateExtension):
        uris = read_alternatives(certificate).uris
    if len(uris) == 1:
        with contextlib.suppress(InvalidError):
            return parse_identity(uris[0])
    raise UnauthenticatedError(
        "the certificate does not say who its holder is",
        hint="use one that was made by `shoal certs issue` or by joining; it carries one shoal:// URI",
        uris=" ".join(uris),
    )


def describe(certificate: x509.Certificate) -> CertificateFacts:
    """What a certificate says. Works for any certificate, including those that are not Shoal's."""
    found = Alternatives()
    identity = None
    with contextlib.suppress(ValueError, x509.DuplicateExtension):
        found = read_alternatives(certificate)
    with contextlib.suppress(UnauthenticatedError):
        identity = identity_of(certificate)
    cluster = authority_cluster(certificate)
    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        is_authority=_is_authority(certificate),
        cluster=cluster or (identity.cluster if identity is not None else ""),
        identity=identity,
        hosts=found.hosts,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        serial=f"{certificate.serial_number:x}",
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The names that a certificate or a request carries besides its subject."""

    #: URIs of the shoal scheme; others are ignored.
    uris: tuple[str, ...] = ()
    #: Host names and addresses, without names under .shoal.
    hosts: tuple[str, ...] = ()


def read_alternatives(source: x509.Certificate | x509.CertificateSigningRequest) -> Alternatives:
    """Read them. Raises `ValueError` or `x509.DuplicateExtension` when they cannot be."""
    try:
        names = source.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Alternatives()
    hosts = [name for name in names.get_values_for_type(x509.DNSName) if not name.endswith(f".{DOMAIN}")]
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    uris = [
        uri
        for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
        if uri.partition(":")[0].lower() == SCHEME
    ]
    return Alternatives(tuple(uris), (*hosts, *addresses))


def authority_cluster(certificate: x509.Certificate) -> str | None:
    """The cluster of a Shoal certificate authority; None for any other certificate."""
    try:
        uris = read_alternatives(certificate).uris
    except (ValueError, x509.DuplicateExtension):
        return None
    prefix = f"{SCHEME}://"
    if not _is_authority(certificate) or len(uris) != 1 or not uris[0].startswith(prefix):
        return None
    cluster = uris[0].removeprefix(prefix)
    return cluster if is_identifier(cluster) else None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
        return False


def read_key(pem: bytes) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """Read a private key. Raises `InvalidError`."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise InvalidError([problem("key", None, "must be a private key in PEM, EC or RSA, without a password")])
    return key

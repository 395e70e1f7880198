"""Certificates as they are read: who somebody is, until when, and whether a key belongs.

A certificate of ours carries one URI that says who the holder is (`shoal.model.identity`), a host name that says the
same to TLS clients, and the hosts that others dial. Called by `shoal certs` and by code that signs; made in
`shoal.wire.authority`. Programs that only run read the little that they need with `shoal.wire.der`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shoal.core.errors import InvalidError, UnauthenticatedError, problem
from shoal.core.ids import is_identifier
from shoal.model.identity import DOMAIN, SCHEME, Identity, parse_identity


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
    """Every certificate in a PEM text, in order. Raises `InvalidError` when there is none."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError:
        raise InvalidError([problem("certificate", None, "must be a certificate in PEM")]) from None


def to_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def matches(certificate: x509.Certificate, key: bytes) -> bool:
    """Whether a key (PEM) is the one that a certificate is for. Raises `InvalidError` when it is no key."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return read_key(key).public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def identity_of(certificate: x509.Certificate) -> Identity:
    """Who a certificate is for. Raises `UnauthenticatedError` unless it carries exactly one identity."""
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
    """What a certificate says. Made for any, also for those that are no use here."""
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

    #: Those of our own scheme; others are none of our business.
    uris: tuple[str, ...] = ()
    #: Without the names that are ours to give.
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
    """The cluster that an authority of ours signs for; None when it is something else."""
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

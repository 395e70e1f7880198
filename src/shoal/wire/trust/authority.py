"""The certificate authority of a cluster: makes one, issues certificates, and signs the requests of others.

An authority signs for one cluster. Keys are EC P-256. Everything here is bytes in, bytes out: files are in
`shoal.wire.trust.credentials`. Called by that, by `shoal certs`, by agents, and by `shoal.control.trust.signing`.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.core.errors import InvalidError, PreconditionError, Problem, problem
from shoal.core.ids import IDENTIFIER_RULE, is_identifier
from shoal.model.identity import CLOCK_SKEW, DOMAIN, SCHEME, Identity, Role, own_server_name, parse_identity
from shoal.wire.trust.certificates import authority_cluster, matches, read_alternatives, read_certificates, read_key

AUTHORITY_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=365)
WORKLOAD_LIFETIME = timedelta(hours=1)
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

HOST_RULE = "must be a host name or an IP address, without a port or a wildcard"
_MAX_HOSTS = 100
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")
_MIN_RSA_BITS = 2048

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate and the key that a cluster's certificates are signed with."""

    cluster: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def pem(self) -> bytes:
        """Its certificate, PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """Its private key, PEM."""
        return _key_pem(self.key)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and the key that belongs to it, as PEM."""

    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """A request to be signed, as PEM, and the key, which stays with the requester."""

    csr: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """The content of a request. Only the key in it is proven; the signer checks the rest."""

    public_key: PublicKey
    identity: Identity | None
    hosts: tuple[str, ...]


# ---------------------------------------------------------------------------------------------------------
# Making


def make_authority(cluster: str, *, now: datetime, lifetime: timedelta = AUTHORITY_LIFETIME) -> Authority:
    """A new authority for a cluster."""
    if not is_identifier(cluster):
        raise InvalidError([problem("cluster", cluster, IDENTIFIER_RULE)])
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial is in the name too: while one authority follows another, both are trusted and must not be mixed up.
    name = _name(f"shoal {cluster}"[:47] + f" {serial:x}"[:17], cluster)
    builder = (
        _builder(name, name, key.public_key(), serial, now=now, until=now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{SCHEME}://{cluster}")]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return Authority(cluster, builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Authority,
    identity: Identity,
    *,
    now: datetime,
    hosts: Sequence[str] | None = None,
    lifetime: timedelta | None = None,
) -> Pair:
    """A new key and the certificate for it. See `sign` for the arguments."""
    key = ec.generate_private_key(ec.SECP256R1())
    cert = sign(authority, key.public_key(), identity, now=now, hosts=hosts, lifetime=lifetime)
    return Pair(cert, _key_pem(key))


def sign(
    authority: Authority,
    public_key: PublicKey,
    identity: Identity,
    *,
    now: datetime,
    hosts: Sequence[str] | None = None,
    lifetime: timedelta | None = None,
) -> bytes:
    """A certificate for the holder of the key that belongs to this public key.

    Args:
        authority: who signs; its cluster must be the identity's.
        public_key: from a `SigningRequest`, or of a key made here.
        identity: the holder's identity.
        now: when.
        hosts: names and addresses at which the holder is reached. None: those of this machine, for agents and control
            planes.
        lifetime: a year, and an hour for workloads, unless given; never longer than the authority's own.
    """
    if identity.cluster != authority.cluster:
        rule = f"must be {authority.cluster!r}, which is what this authority signs for"
        raise InvalidError([problem("cluster", identity.cluster, rule)])
    last = authority.certificate.not_valid_after_utc
    if now >= last:
        raise PreconditionError(
            f"the authority of cluster {authority.cluster!r} expired on {last:%Y-%m-%d}",
            hint="make a new one with `shoal certs init` in another directory, and trust both for a while",
        )
    life = lifetime or (WORKLOAD_LIFETIME if identity.role is Role.WORKLOAD else LIFETIME)
    server_name = own_server_name(identity)
    if hosts is None:
        hosts = LOCAL_HOSTS if identity.role in (Role.AGENT, Role.CONTROL) else ()
    alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if server_name is not None:
        alternatives.append(x509.DNSName(server_name))
    alternatives.extend(_general_names(check_hosts(hosts)))
    issuer_key = x509.SubjectKeyIdentifier.from_public_key(authority.key.public_key())
    builder = (
        _builder(
            _name(identity.name[:64], identity.cluster),
            authority.certificate.subject,
            public_key,
            x509.random_serial_number(),
            now=now,
            until=min(now + life, last),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            # Every program is on both ends: agents are called, and call.
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key),
            critical=False,
        )
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_signing_request(identity: Identity, *, hosts: Sequence[str] = (), own_key: bytes | None = None) -> OwnRequest:
    """A key, new unless one is given (PEM), and the request to have it certified."""
    key = ec.generate_private_key(ec.SECP256R1()) if own_key is None else read_key(own_key)
    names = [x509.UniformResourceIdentifier(identity.uri), *_general_names(check_hosts(hosts))]
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_name(identity.name[:64], identity.cluster))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return OwnRequest(request.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def read_signing_request(pem: bytes) -> SigningRequest:
    """Read a request whose sender has proven to hold the key. Raises `InvalidError`."""
    rule = "must be a certificate signing request (PEM) with an EC key on P-256 or P-384, or RSA of 2,048 bits or more"
    broken = InvalidError([problem("csr", None, rule)])
    try:
        request = x509.load_pem_x509_csr(pem)
        key = request.public_key()
        proven = request.is_signature_valid
        found = read_alternatives(request)
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        InvalidSignature,
        x509.DuplicateExtension,
        x509.InvalidVersion,
    ):
        raise broken from None
    if not proven or not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) or not _is_strong(key):
        raise broken
    identity = None
    if len(found.uris) == 1:
        with contextlib.suppress(InvalidError):
            identity = parse_identity(found.uris[0])
    return SigningRequest(key, identity, check_hosts(found.hosts))


def check_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """Names and addresses as a certificate may carry them, each once. Raises `InvalidError` with all that are wrong."""
    given = tuple(dict.fromkeys(host.strip() for host in hosts))
    problems: list[Problem] = []
    for host in given:
        if not _is_address(host) and not _HOST.fullmatch(host):
            problems.append(problem("host", host, HOST_RULE))
        elif host.lower().rpartition(".")[2] == DOMAIN:
            problems.append(problem("host", host, f"must not end with .{DOMAIN}: such names say who a server is"))
    if len(given) > _MAX_HOSTS:
        problems.append(problem("host", len(given), f"must be at most {_MAX_HOSTS}"))
    if problems:
        raise InvalidError(problems)
    return given


def read_authority(cert: bytes, key: bytes) -> Authority:
    """An authority that can sign again. Raises `InvalidError` when the two are none.

    `cert` may hold the certificates of several, old and new: the one that the key belongs to signs.
    """
    private = read_key(key)
    for certificate in read_certificates(cert):
        cluster = authority_cluster(certificate)
        if cluster is not None and isinstance(private, ec.EllipticCurvePrivateKey) and matches(certificate, key):
            return Authority(cluster, certificate, private)
    rule = "must hold the certificate of an authority made by `shoal certs init`, and the key must be its own"
    raise InvalidError([problem("ca", None, rule)])


# ---------------------------------------------------------------------------------------------------------


def _is_strong(key: PublicKey) -> bool:
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _MIN_RSA_BITS
    return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)


def _is_address(host: str) -> bool:
    try:
        return not getattr(ipaddress.ip_address(host), "scope_id", None)
    except ValueError:
        return False


def _general_names(hosts: Iterable[str]) -> Iterator[x509.GeneralName]:
    for host in hosts:
        yield x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)


def _name(common: str, cluster: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster[:64]),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, serial: int, *, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before((now - CLOCK_SKEW).astimezone(UTC))
        .not_valid_after(until.astimezone(UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def key_sha256(key: PublicKey) -> bytes:
    """The fingerprint of a public key."""
    form = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(form).digest()


def _key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

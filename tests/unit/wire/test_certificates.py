"""Certificates are read strictly: what cannot be read in full is refused, and a key belongs to one certificate."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, UnauthenticatedError
from shoal.model.identity import CLOCK_SKEW, Caller, Identity, Role, workload_identity
from shoal.wire.trust.authority import issue, make_authority
from shoal.wire.trust.certificates import authority_cluster, identity_of, matches, read_caller, read_certificates

NOW = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)
AUTHORITY = make_authority("blue", now=NOW)
AGENT = Identity(Role.AGENT, "blue", "n1")
PAIR = issue(AUTHORITY, AGENT, now=NOW, hosts=["a.example", "10.0.0.1"])
[CERTIFICATE] = read_certificates(PAIR.cert)
DER = CERTIFICATE.public_bytes(serialization.Encoding.DER)


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    "identity",
    [AGENT, Identity(Role.CONTROL, "blue", "c"), workload_identity("blue", job="j", node="n")],
    ids=str,
)
@pytest.mark.parametrize("lifetime", [timedelta(minutes=7), timedelta(days=3649)], ids=["short", "long"])
def test_a_caller_has_an_identity_and_two_dates(identity, lifetime):
    cert = issue(AUTHORITY, identity, now=NOW, lifetime=lifetime).cert
    assert read_caller(cert) == Caller(identity, NOW - CLOCK_SKEW, NOW + lifetime)


def test_years_after_2049_are_read():
    late = make_authority("blue", now=NOW, lifetime=timedelta(days=365 * 40))
    assert read_certificates(late.pem)[0].not_valid_after_utc.year == 2066


def test_an_authority_has_a_cluster_and_no_identity():
    [read] = read_certificates(AUTHORITY.pem)
    assert authority_cluster(read) == "blue"
    with pytest.raises(UnauthenticatedError):
        identity_of(read)


def test_several_certificates_in_one_text_are_read_in_order():
    both = b"words\n" + PAIR.cert + b"\nmore words\n" + AUTHORITY.pem
    assert [authority_cluster(each) for each in read_certificates(both)] == [None, "blue"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        PAIR.cert[:-40],
        PAIR.cert + b"-----BEGIN CERTIFICATE-----\nAAAA",
        pem(DER + b"\x00"),
        pem(DER[:-1]),
        pem(b""),
        pem(b"\x30\x00"),
        pem(b"\x30\x80" + DER[4:] + b"\x00\x00"),
        PAIR.key,
    ],
    ids=["nothing", "empty", "cut", "half", "left over", "short", "no bytes", "hollow", "open end", "a key"],
)
def test_text_without_a_whole_certificate_is_refused(text):
    with pytest.raises(InvalidError, match="must be a certificate in PEM"):
        read_certificates(text)
    with pytest.raises(UnauthenticatedError):
        read_caller(text)


def test_a_caller_with_the_same_extension_twice_is_refused():
    # The key usage extension gets the object id of the alternative names.
    usage, names = b"\x06\x03\x55\x1d\x0f", b"\x06\x03\x55\x1d\x11"
    assert DER.count(usage) == DER.count(names) == 1
    with pytest.raises(UnauthenticatedError):
        read_caller(pem(DER.replace(usage, names)))


@given(st.lists(st.tuples(st.integers(0, len(DER) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_tampered_bytes_give_a_caller_or_a_refusal(changes):
    changed = bytearray(DER)
    for at, value in changes:
        changed[at] = value
    try:
        caller = read_caller(pem(bytes(changed)))
    except UnauthenticatedError:
        return
    assert isinstance(caller, Caller)


def test_a_version_that_nobody_knows_is_refused():
    version = DER.index(b"\xa0\x03\x02\x01") + 4
    changed = bytearray(DER)
    changed[version] = 9
    with pytest.raises(InvalidError):
        read_certificates(pem(bytes(changed)))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data):
    with pytest.raises(InvalidError):
        read_certificates(data)
    with pytest.raises(InvalidError):
        read_certificates(pem(data))


# ---------------------------------------------------------------------------------------------------------


def key_pem(key, *, form=serialization.PrivateFormat.PKCS8, password=None) -> bytes:
    shut = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, shut)


def test_a_key_belongs_to_its_certificate_alone():
    assert matches(CERTIFICATE, PAIR.key)
    assert not matches(CERTIFICATE, issue(AUTHORITY, AGENT, now=NOW).key)
    assert not matches(CERTIFICATE, key_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    traditional = serialization.load_pem_private_key(PAIR.key, None)
    assert matches(CERTIFICATE, key_pem(traditional, form=serialization.PrivateFormat.TraditionalOpenSSL))


def test_a_key_does_not_match_a_certificate_with_a_broken_key():
    broken = DER.replace(CERTIFICATE.public_key().public_bytes(*_POINT), b"\x04" + bytes(64))
    assert not matches(x509.load_der_x509_certificate(broken), PAIR.key)


_POINT = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        key_pem(ec.generate_private_key(ec.SECP256R1()), password=b"x"),
        key_pem(ed25519.Ed25519PrivateKey.generate()),
        PAIR.cert,
    ],
    ids=["nothing", "broken", "with a password", "of another kind", "a certificate"],
)
def test_text_without_a_usable_key_is_refused(text):
    with pytest.raises(InvalidError, match="must be a private key"):
        matches(CERTIFICATE, text)

"""What is read of a certificate without a library is what the library reads, and nothing else is taken."""

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
from shoal.model.identity import Identity, Role, workload_identity
from shoal.wire import certificates
from shoal.wire.authority import issue, make_authority
from shoal.wire.der import belongs, pem_of, read_chain, read_peer

NOW = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)
AUTHORITY = make_authority("blue", now=NOW)
AGENT = Identity(Role.AGENT, "blue", "n1")
PAIR = issue(AUTHORITY, AGENT, now=NOW, hosts=["a.example", "10.0.0.1"])
DER = x509.load_pem_x509_certificate(PAIR.cert).public_bytes(serialization.Encoding.DER)


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    "identity",
    [AGENT, Identity(Role.CONTROL, "blue", "c"), workload_identity("blue", job="j", node="n")],
    ids=str,
)
@pytest.mark.parametrize("lifetime", [timedelta(minutes=7), timedelta(days=3649)], ids=["short", "long"])
def test_it_reads_what_the_library_reads(identity, lifetime):
    cert = issue(AUTHORITY, identity, now=NOW, lifetime=lifetime).cert
    [read] = read_chain(cert)
    told = certificates.describe(certificates.read_certificates(cert)[0])
    assert read.identity() == told.identity == identity
    assert (read.not_before, read.not_after, read.sha256) == (told.not_before, told.not_after, told.sha256)
    assert not read.is_authority
    assert read.cluster() is None


def test_years_after_2049_are_written_in_another_way():
    late = make_authority("blue", now=NOW, lifetime=timedelta(days=365 * 40))
    [read] = read_chain(late.pem)
    assert read.not_after == late.certificate.not_valid_after_utc
    assert read.not_after.year == 2066


def test_an_authority_has_a_cluster_and_no_identity():
    [read] = read_chain(AUTHORITY.pem)
    assert read.cluster() == "blue"
    assert read.is_authority
    with pytest.raises(UnauthenticatedError):
        read.identity()


def test_several_in_one_text_are_read_in_order():
    both = b"words\n" + PAIR.cert + b"\nmore words\n" + AUTHORITY.pem
    assert [each.is_authority for each in read_chain(both)] == [False, True]
    assert read_chain(pem_of(both, 1)) == read_chain(AUTHORITY.pem)
    assert pem_of(both, 0) == PAIR.cert


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
def test_what_is_none_is_refused(text):
    with pytest.raises(InvalidError, match="must be a certificate in PEM"):
        read_chain(text)
    with pytest.raises(UnauthenticatedError):
        read_peer(text)


def test_an_extension_that_is_there_twice_is_refused():
    # The critical flag and the name of the key usage become those of the alternative names.
    usage, names = b"\x06\x03\x55\x1d\x0f", b"\x06\x03\x55\x1d\x11"
    assert DER.count(usage) == DER.count(names) == 1
    with pytest.raises(InvalidError):
        read_chain(pem(DER.replace(usage, names)))


@given(st.lists(st.tuples(st.integers(0, len(DER) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_tampered_bytes_are_refused_or_mean_what_the_library_says(changes):
    changed = bytearray(DER)
    for at, value in changes:
        changed[at] = value
    text = pem(bytes(changed))
    try:
        [read] = read_chain(text)
    except InvalidError:
        return
    try:
        theirs = x509.load_pem_x509_certificate(text)
        alternatives = certificates.read_alternatives(theirs)
    except (ValueError, x509.DuplicateExtension):
        return  # it is stricter than this; whoever gets here has been let in by TLS, which is too
    assert read.uris == alternatives.uris
    assert read.not_after == theirs.not_valid_after_utc
    assert read.not_before == theirs.not_valid_before_utc


@given(st.binary(max_size=300))
def test_any_bytes_are_answered(data):
    with pytest.raises(InvalidError):
        read_chain(data)
    with pytest.raises(InvalidError):
        read_chain(pem(data))


# ---------------------------------------------------------------------------------------------------------


def key_pem(key, *, form=serialization.PrivateFormat.PKCS8, password=None) -> bytes:
    shut = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, shut)


def test_a_key_belongs_to_its_certificate_alone():
    assert belongs(PAIR.cert, PAIR.key)
    assert belongs(PAIR.cert + AUTHORITY.pem, PAIR.key)
    assert not belongs(PAIR.cert, issue(AUTHORITY, AGENT, now=NOW).key)
    assert not belongs(PAIR.cert, key_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    assert not belongs(PAIR.cert, key_pem(ed25519.Ed25519PrivateKey.generate()))
    traditional = serialization.load_pem_private_key(PAIR.key, None)
    assert belongs(PAIR.cert, key_pem(traditional, form=serialization.PrivateFormat.TraditionalOpenSSL))


def test_what_is_no_key_or_has_a_password_is_said_to_be_none():
    shut = key_pem(ec.generate_private_key(ec.SECP256R1()), password=b"x")
    for text in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", shut, PAIR.cert):
        with pytest.raises(InvalidError, match="must be a private key"):
            belongs(PAIR.cert, text)

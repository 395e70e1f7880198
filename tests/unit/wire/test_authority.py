"""What an authority signs, and what can be read from it."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, PreconditionError, UnauthenticatedError
from shoal.model.identity import Identity, Role, workload_identity
from shoal.wire.trust.authority import (
    check_hosts,
    issue,
    make_authority,
    make_signing_request,
    read_authority,
    read_signing_request,
    sign,
)
from shoal.wire.trust.certificates import describe, identity_of, matches, read_caller, read_certificates

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AGENT = Identity(Role.AGENT, "blue", "n1")


@pytest.fixture(scope="module")
def authority():
    return make_authority("blue", now=NOW)


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def leaf_of(pem):
    (certificate,) = read_certificates(pem)
    return certificate


# ---------------------------------------------------------------------------------------------------------
# Authorities


def test_an_authority_signs_certificates_and_nothing_else(authority):
    certificate = authority.certificate
    constraints = extension(certificate, x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    usage = extension(certificate, x509.KeyUsage)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.crl_sign, usage.value.digital_signature) == (True, True, False)
    assert certificate.not_valid_after_utc == NOW + timedelta(days=3650)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert isinstance(certificate.public_key().curve, ec.SECP256R1)
    certificate.verify_directly_issued_by(certificate)


def test_an_authority_is_read_back(authority):
    again = read_authority(authority.pem, authority.key_pem)
    assert (again.cluster, again.certificate) == ("blue", authority.certificate)


def test_of_several_the_one_that_the_key_is_for_signs(authority):
    other = make_authority("blue", now=NOW)
    assert other.certificate.subject != authority.certificate.subject
    assert read_authority(other.pem + authority.pem, authority.key_pem).certificate == authority.certificate


def test_only_an_authority_is_one(authority):
    pair = issue(authority, AGENT, now=NOW)
    for cert, key in [
        (pair.cert, pair.key),
        (authority.pem, pair.key),
        (pair.cert, authority.key_pem),
        (authority.pem, b"what?"),
        (b"what?", authority.key_pem),
    ]:
        with pytest.raises(InvalidError):
            read_authority(cert, key)


@pytest.mark.parametrize("cluster", ["", "a b", "a/b", "../x", "a" * 129])
def test_the_name_of_a_cluster_is_an_identifier(cluster):
    with pytest.raises(InvalidError, match="cluster"):
        make_authority(cluster, now=NOW)


# ---------------------------------------------------------------------------------------------------------
# Certificates


def test_a_certificate_says_everything_that_it_should(authority):
    pair = issue(authority, AGENT, now=NOW, hosts=["agent-1.example", "10.0.0.5", "fd00::5"])
    certificate = leaf_of(pair.cert)
    certificate.verify_directly_issued_by(authority.certificate)
    assert matches(certificate, pair.key)

    constraints = extension(certificate, x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca
    usage = extension(certificate, x509.KeyUsage)
    assert usage.critical
    assert (usage.value.digital_signature, usage.value.key_cert_sign) == (True, False)
    assert set(extension(certificate, x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    ours = extension(certificate, x509.SubjectKeyIdentifier).value
    assert ours == x509.SubjectKeyIdentifier.from_public_key(certificate.public_key())
    theirs = extension(authority.certificate, x509.SubjectKeyIdentifier).value
    assert extension(certificate, x509.AuthorityKeyIdentifier).value.key_identifier == theirs.digest
    names = extension(certificate, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["shoal://blue/agent/n1"]
    assert names.get_values_for_type(x509.DNSName) == ["n1.node.blue.shoal", "agent-1.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5", "fd00::5"]


@pytest.mark.parametrize(
    ("identity", "dns", "life"),
    [
        (AGENT, ["n1.node.blue.shoal", "localhost"], timedelta(days=365)),
        (Identity(Role.CONTROL, "blue", "c1"), ["control.blue.shoal", "localhost"], timedelta(days=365)),
        (Identity(Role.OPERATOR, "blue", "ada"), [], timedelta(days=365)),
        (workload_identity("blue", job="clicks", node="n1"), ["clicks.job.blue.shoal"], timedelta(hours=1)),
    ],
    ids=lambda value: str(value) if isinstance(value, Identity) else "",
)
def test_each_role_has_its_own_defaults(authority, identity, dns, life):
    certificate = leaf_of(issue(authority, identity, now=NOW).cert)
    names = extension(certificate, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == dns
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses == (["127.0.0.1", "::1"] if "localhost" in dns else [])
    assert certificate.not_valid_after_utc == NOW + life
    assert certificate.not_valid_before_utc < NOW
    assert identity_of(certificate) == identity
    caller = read_caller(certificate.public_bytes(serialization.Encoding.PEM))
    assert (caller.identity, caller.not_after) == (identity, NOW + life)


def test_nothing_outlives_the_authority():
    authority = make_authority("blue", now=NOW, lifetime=timedelta(days=30))
    assert leaf_of(issue(authority, AGENT, now=NOW).cert).not_valid_after_utc == NOW + timedelta(days=30)
    with pytest.raises(PreconditionError, match="expired on 2026-03-31"):
        issue(authority, AGENT, now=NOW + timedelta(days=31))


def test_an_authority_signs_for_its_own_cluster_only(authority):
    with pytest.raises(InvalidError, match="'blue'"):
        issue(authority, Identity(Role.AGENT, "red", "n1"), now=NOW)


def test_long_names_are_cut_where_the_subject_has_no_room(authority):
    identity = Identity(Role.AGENT, "blue", "n" * 128)
    certificate = leaf_of(issue(authority, identity, now=NOW).cert)
    assert identity_of(certificate) == identity
    assert make_authority("b" * 128, now=NOW).cluster == "b" * 128


@pytest.mark.parametrize(
    "host",
    ["", "*.example", "a b", "host:80", "-x", "x..y", "x.", "control.blue.shoal", "x.SHOAL", "shoal", "fe80::1%eth0"],
)
def test_a_host_that_is_none_is_refused(authority, host):
    with pytest.raises(InvalidError, match="host"):
        issue(authority, AGENT, now=NOW, hosts=["localhost", host])


@given(st.lists(st.text(max_size=40), max_size=5))
def test_hosts_are_good_or_refused(hosts):
    try:
        checked = check_hosts(hosts)
    except InvalidError:
        return
    pair = issue(_ONE, AGENT, now=NOW, hosts=checked)
    assert not any(host.lower().endswith(".shoal") for host in describe(leaf_of(pair.cert)).hosts)


_ONE = make_authority("blue", now=NOW)


# ---------------------------------------------------------------------------------------------------------
# Requests


def test_a_request_is_signed_and_its_key_stays_where_it_was_made(authority):
    asked = make_signing_request(AGENT, hosts=["agent-1.example", "10.0.0.5"])
    assert b"PRIVATE" not in asked.csr
    request = read_signing_request(asked.csr)
    assert (request.identity, request.hosts) == (AGENT, ("agent-1.example", "10.0.0.5"))
    certificate = leaf_of(sign(authority, request.public_key, AGENT, now=NOW, hosts=request.hosts))
    assert matches(certificate, asked.key)


def test_the_signer_decides_who_it_is_for(authority):
    asked = make_signing_request(Identity(Role.OPERATOR, "blue", "mallory"))
    request = read_signing_request(asked.csr)
    certificate = leaf_of(sign(authority, request.public_key, AGENT, now=NOW))
    assert identity_of(certificate) == AGENT


def request_with(key, *names, algorithm=None):
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    chosen = None if isinstance(key, ed25519.Ed25519PrivateKey) else (algorithm or hashes.SHA256())
    return builder.sign(key, chosen).public_bytes(serialization.Encoding.PEM)


def test_a_request_need_not_say_who_or_where():
    request = read_signing_request(request_with(ec.generate_private_key(ec.SECP384R1())))
    assert (request.identity, request.hosts) == (None, ())


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP192R1()),
        rsa.generate_private_key(public_exponent=65537, key_size=1024),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["small curve", "small RSA", "Ed25519"],
)
def test_a_weak_or_strange_key_is_not_signed(key):
    with pytest.raises(InvalidError, match="csr"):
        read_signing_request(request_with(key))


def test_a_request_whose_key_is_not_proven_is_not_signed():
    good = x509.load_pem_x509_csr(make_signing_request(AGENT).csr).public_bytes(serialization.Encoding.DER)
    forged = good[:-4] + bytes(4)
    pem = b"-----BEGIN CERTIFICATE REQUEST-----\n"
    pem += base64.encodebytes(forged) + b"-----END CERTIFICATE REQUEST-----\n"
    with pytest.raises(InvalidError, match="csr"):
        read_signing_request(pem)


def test_a_request_cannot_ask_for_a_name_that_is_ours_to_give():
    key = ec.generate_private_key(ec.SECP256R1())
    assert read_signing_request(request_with(key, x509.DNSName("control.blue.shoal"))).hosts == ()
    for name in ("control.blue.SHOAL", "*.blue.shoal.", "*.example"):
        with pytest.raises(InvalidError, match="host"):
            read_signing_request(request_with(key, x509.DNSName(name)))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused(data):
    with pytest.raises(InvalidError):
        read_signing_request(data)
    with pytest.raises(InvalidError):
        read_certificates(data)
    with pytest.raises(UnauthenticatedError):
        read_caller(data)


# ---------------------------------------------------------------------------------------------------------
# Who a certificate is for


def certificate_with(authority, *names):
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal://blue/operator/eve")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def uri(text):
    return x509.UniformResourceIdentifier(text)


def test_other_names_beside_the_identity_do_not_matter(authority):
    certificate = certificate_with(authority, uri("spiffe://x/y"), uri(AGENT.uri), x509.DNSName("h"))
    assert identity_of(certificate) == AGENT
    assert describe(certificate).hosts == ("h",)


@pytest.mark.parametrize(
    "names",
    [
        (),
        (x509.DNSName("localhost"),),
        (x509.DNSName(AGENT.uri),),
        (x509.RFC822Name("shoal@blue"),),
        (uri(AGENT.uri), uri("shoal://blue/operator/eve")),
        (uri(AGENT.uri), uri(AGENT.uri)),
        (uri(AGENT.uri), uri("SHOAL://blue/operator/eve")),
        (uri("shoal://blue/agent"),),
        (uri("shoal://blue"),),
    ],
    ids=["none", "host only", "as a host", "mail", "two", "twice", "two ways", "no name", "cluster only"],
)
def test_a_certificate_without_exactly_one_identity_is_nobodys(authority, names):
    certificate = certificate_with(authority, *names)
    with pytest.raises(UnauthenticatedError):
        identity_of(certificate)
    with pytest.raises(UnauthenticatedError):
        read_caller(certificate.public_bytes(serialization.Encoding.PEM))
    assert describe(certificate).identity is None


def test_an_authority_is_nobody(authority):
    with pytest.raises(UnauthenticatedError):
        identity_of(authority.certificate)
    facts = describe(authority.certificate)
    assert (facts.is_authority, facts.cluster, facts.identity) == (True, "blue", None)


def test_keys_that_cannot_be_used_are_refused_with_a_reason(authority):
    certificate = authority.certificate
    locked = authority.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    for key in (b"", b"what?", locked, authority.pem):
        with pytest.raises(InvalidError, match="without a password"):
            matches(certificate, key)
    assert not matches(certificate, issue(authority, AGENT, now=NOW).key)

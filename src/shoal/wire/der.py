"""The little of a certificate that a running program needs: who it is for, and until when. Read without a library.

Programs look at their own files and at certificates that TLS has verified already, so nothing is verified here. What
can verify and sign (`shoal.wire.certificates`, `shoal.wire.authority`) costs a program a sixth of its memory, and most
never need it. Anything out of the ordinary is refused: lengths that are not in their one form, an extension that is
there twice, bytes that are left over. A test holds this against the library on certificates that were tampered with.

Called by `shoal.wire.security`, `shoal.wire.credentials` and the agent.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal.core.errors import InvalidError, UnauthenticatedError, problem
from shoal.core.ids import is_identifier
from shoal.model.identity import SCHEME, Identity, parse_identity

_BOOLEAN, _INTEGER, _OCTETS, _OID, _SEQUENCE = 0x01, 0x02, 0x04, 0x06, 0x30
_UTC_TIME, _GENERAL_TIME = 0x17, 0x18
_VERSION, _EXTENSIONS, _URI = 0xA0, 0xA3, 0x86

_ALTERNATIVE_NAMES = b"\x55\x1d\x11"
_BASIC_CONSTRAINTS = b"\x55\x1d\x13"
_BEFORE_VALIDITY = (_INTEGER, _SEQUENCE, _SEQUENCE)  # serial, algorithm, issuer

#: What OpenSSL says of a key of another pair, of the same kind or not.
_OF_ANOTHER = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})

_LONGEST_LENGTH = 4
_REMEMBERED_PEERS = 4096

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class Certificate:
    """What one says."""

    not_before: datetime
    not_after: datetime
    #: Those of our own scheme; others are none of our business.
    uris: tuple[str, ...]
    #: Whether it may sign others.
    is_authority: bool
    #: Of all of it, in hexadecimal.
    sha256: str

    def identity(self) -> Identity:
        """Who it is for. Raises `UnauthenticatedError` unless it carries exactly one identity."""
        if len(self.uris) == 1:
            try:
                return parse_identity(self.uris[0])
            except InvalidError:
                pass
        raise UnauthenticatedError(
            "the certificate does not say who its holder is",
            hint="use one that was made by `shoal certs issue` or by joining; it carries one shoal:// URI",
            uris=" ".join(self.uris),
        )

    def cluster(self) -> str | None:
        """The cluster that an authority of ours signs for; None when it is something else."""
        prefix = f"{SCHEME}://"
        if not self.is_authority or len(self.uris) != 1 or not self.uris[0].startswith(prefix):
            return None
        cluster = self.uris[0].removeprefix(prefix)
        return cluster if is_identifier(cluster) else None


def read_chain(pem: bytes) -> tuple[Certificate, ...]:
    """Every certificate in a PEM text, in order. Raises `InvalidError` when there is none, or one that is broken."""
    try:
        found = tuple(_read_certificate(base64.b64decode(text)) for text in _PEM.findall(pem))
    except (ValueError, IndexError):
        found = ()
    if not found or len(found) != pem.count(b"-----BEGIN CERTIFICATE-----"):
        raise InvalidError([problem("certificate", None, "must be a certificate in PEM")])
    return found


def pem_of(pem: bytes, index: int) -> bytes:
    """One certificate of a PEM text that `read_chain` has read."""
    body = b"".join(_PEM.findall(pem)[index].split())
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return b"\n".join([b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""])


@functools.lru_cache(maxsize=_REMEMBERED_PEERS)
def read_peer(pem: bytes) -> tuple[Identity, datetime]:
    """Who a caller is by its certificate, which TLS has verified, and until when. Raises `UnauthenticatedError`."""
    try:
        leaf = read_chain(pem)[0]
    except InvalidError:
        raise UnauthenticatedError("the caller's certificate cannot be read") from None
    return leaf.identity(), leaf.not_after


def belongs(cert: bytes, key: bytes) -> bool:
    """Whether a key is the one that a certificate is for; both PEM. Raises `InvalidError` when it is no key."""
    # OpenSSL takes files alone, so they are given a file that is in no directory and gone when it is closed.
    descriptor = os.memfd_create("pair", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(key + b"\n" + cert)
        path = f"/proc/self/fd/{descriptor}"
        # Whoever has a password on a key is not asked for it: there is nobody to answer.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, path, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason in _OF_ANOTHER:
            return False
        rule = "must be a private key in PEM, EC or RSA, without a password"
        raise InvalidError([problem("key", None, rule)]) from None
    finally:
        os.close(descriptor)
    return True


# ---------------------------------------------------------------------------------------------------------


def _read_certificate(der: bytes) -> Certificate:
    signed, _algorithm, _signature = _children(_only(der, _SEQUENCE), 3)
    fields = list(_each(_expect(signed, _SEQUENCE)))
    if fields[0][0] == _VERSION:
        del fields[0]
    if tuple(tag for tag, _ in fields[:3]) != _BEFORE_VALIDITY:
        raise ValueError("something else than a certificate")
    not_before, not_after = (_time(each) for each in _children(_expect(fields[3], _SEQUENCE), 2))
    extensions = _extensions(fields)
    return Certificate(
        not_before=not_before,
        not_after=not_after,
        uris=tuple(_uris(extensions.get(_ALTERNATIVE_NAMES))),
        is_authority=_is_authority(extensions.get(_BASIC_CONSTRAINTS)),
        sha256=hashlib.sha256(der).hexdigest(),
    )


def _extensions(fields: list[tuple[int, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    listed = [content for tag, content in fields if tag == _EXTENSIONS]
    if not listed:
        return found
    [only] = listed
    for each in _each(_only(only, _SEQUENCE)):
        name, *rest = _each(_expect(each, _SEQUENCE))
        oid = _expect(name, _OID)
        if oid in found or len(rest) not in (1, 2) or (len(rest) == 2 and rest[0][0] != _BOOLEAN):
            raise ValueError("an extension that cannot be read")
        found[oid] = _expect(rest[-1], _OCTETS)
    return found


def _uris(names: bytes | None) -> Iterator[str]:
    if names is None:
        return
    for tag, content in _each(_only(names, _SEQUENCE)):
        if tag == _URI:
            text = content.decode("ascii")
            if text.partition(":")[0].lower() == SCHEME:
                yield text


def _is_authority(constraints: bytes | None) -> bool:
    if constraints is None:
        return False
    first = next(_each(_only(constraints, _SEQUENCE)), (0, b""))
    return first == (_BOOLEAN, b"\xff")


def _time(element: tuple[int, bytes]) -> datetime:
    tag, content = element
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of a year stand for 1950 to 2049.
        text = ("20" if text[:2] < "50" else "19") + text
    elif tag != _GENERAL_TIME:
        raise ValueError("not a time")
    if not re.fullmatch(r"[0-9]{14}Z", text):
        raise ValueError("not a time in the form of certificates")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _only(data: bytes, tag: int) -> bytes:
    """The content of the one element that the data is."""
    [element] = _each(data)
    return _expect(element, tag)


def _children(data: bytes, count: int) -> list[tuple[int, bytes]]:
    found = list(_each(data))
    if len(found) != count:
        raise ValueError("more or less than expected")
    return found


def _expect(element: tuple[int, bytes], tag: int) -> bytes:
    if element[0] != tag:
        raise ValueError("something else than expected")
    return element[1]


def _each(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements that follow one another in the data: tag and content."""
    at = 0
    while at < len(data):
        if len(data) < at + 2 or data[at] & 0x1F == 0x1F:
            raise ValueError("cut off, or a tag of several bytes")
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size])
            if not 0 < size <= _LONGEST_LENGTH or length < 0x80 or length.bit_length() <= 8 * (size - 1):
                raise ValueError("a length that is not in its one form")
            at += size
        if len(data) < at + length:
            raise ValueError("cut off")
        yield tag, data[at : at + length]
        at += length

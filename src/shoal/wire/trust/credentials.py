"""Reads, writes and replaces the files of a program's certificate: `ca.pem`, `cert.pem` and `key.pem` in one directory.

A reader never has the certificate of one pair and the key of another. The key of a new certificate is written first, as
`key.pem.next`; then the certificate replaces the old one; then the key does. So at every instant, also after a crash,
one of the two key files belongs to the certificate, and a reader takes that one. Files from other sources, such as a
Kubernetes secret, may be replaced in any order: a pair that does not match is ignored until it does.

`ca.pem` may hold several authorities, so that an old and a new one are trusted side by side. Every file is 0600.
Called by `shoal.wire.trust.security` and `shoal.cli.servers.certs`.
"""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.disk.private_files import (
    Owner,
    file_stamp,
    make_private_directory,
    move_private,
    read_private,
    write_private,
)
from shoal.core.errors import (
    InvalidError,
    NotFoundError,
    PreconditionError,
    Problem,
    ShoalError,
    UnauthenticatedError,
    problem,
)
from shoal.model.identity import Identity
from shoal.wire.trust.certificates import identity_of, matches, read_certificates

if TYPE_CHECKING:
    from cryptography import x509

    from shoal.wire.trust.authority import Authority, Pair

log = logging.getLogger(__name__)

CA_FILE = "ca.pem"
CA_KEY_FILE = "ca-key.pem"
CERT_FILE = "cert.pem"
KEY_FILE = "key.pem"

_NEXT = ".next"

# Files may be replaced while they are read. Their writer needs microseconds to finish, so a few looks are enough.
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class CredentialPaths:
    """Where the files are."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def within(cls, directory: Path) -> CredentialPaths:
        """The files of a directory that `write_credentials` wrote."""
        return cls(directory / CA_FILE, directory / CERT_FILE, directory / KEY_FILE)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate, its key, the identity in it, and the authorities that we trust."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)
    identity: Identity
    not_after: datetime


# ---------------------------------------------------------------------------------------------------------
# Writing


def write_credentials(directory: Path, *, ca: bytes, pair: Pair, owner: Owner | None = None) -> CredentialPaths:
    """Write or replace what a program needs to prove who it is; ours, or another's alone."""
    paths = CredentialPaths.within(directory)
    make_private_directory(directory, owner=owner)
    following = _next(paths.key)
    write_private(paths.ca, ca, owner=owner)
    write_private(following, pair.key, owner=owner)
    write_private(paths.cert, pair.cert, owner=owner)
    move_private(following, paths.key)
    return paths


def write_authority(directory: Path, authority: Authority) -> None:
    """Write a new authority. Raises `PreconditionError` where there is one, or a part of one: it is never replaced."""
    cert, key = directory / CA_FILE, directory / CA_KEY_FILE
    for path in (cert, key):
        if path.exists() or path.is_symlink():
            raise PreconditionError(
                f"{path} exists already, and an authority is not replaced: all its certificates would become worthless",
                hint="choose another directory with --dir",
                path=path,
            )
    make_private_directory(directory)
    # The key first: a certificate without its key would be in the way for ever and of no use.
    write_private(key, authority.key_pem)
    write_private(cert, authority.pem)


# ---------------------------------------------------------------------------------------------------------
# Reading


def load_authority(directory: Path) -> tuple[Authority, bytes]:
    """The authority of a directory, and everything in its `ca.pem`."""
    from shoal.wire.trust.authority import read_authority

    try:
        bundle = read_private(directory / CA_FILE)
        return read_authority(bundle, read_private(directory / CA_KEY_FILE)), bundle
    except NotFoundError as error:
        raise NotFoundError("authority", str(directory), hint="make one with `shoal certs init`") from error


def read_credentials(paths: CredentialPaths, *, now: datetime) -> Credentials:
    """Read what proves who we are. Raises `InvalidError` with everything that is wrong with the files."""
    problems: list[Problem] = []
    ca = _read(paths.ca, "--ca", problems)
    if ca is not None:
        _parse(ca, paths.ca, "--ca", problems)
    for look in range(_LOOKS):
        last = look == _LOOKS - 1
        found: list[Problem] = []
        cert = _read(paths.cert, "--cert", found)
        chain = _parse(cert, paths.cert, "--cert", found) if cert is not None else ()
        key = _key_for(chain[0], paths.key, found) if chain else None
        if not chain:
            _read(paths.key, "--key", found)
        if key is not None or last:
            problems.extend(found)
            break
    if not problems and ca is not None and cert is not None and chain and key is not None:
        leaf = chain[0]
        try:
            identity = identity_of(leaf)
        except UnauthenticatedError as error:
            rule = "must be a certificate that says who this is: one from `shoal certs issue`, or from joining"
            raise InvalidError([problem("--cert", str(paths.cert), rule)]) from error
        not_after = leaf.not_valid_after_utc
        if now < not_after:
            return Credentials(ca, cert, key, identity, not_after)
        rule = f"must not have expired; this one did on {not_after:%Y-%m-%d %H:%M} UTC"
        problems.append(problem("--cert", str(paths.cert), rule))
    raise InvalidError(problems, hint="`shoal certs show` tells what is in them, `shoal certs issue` makes new ones")


def _read(path: Path, flag: str, problems: list[Problem]) -> bytes | None:
    try:
        return read_private(path)
    except ShoalError as error:
        problems.append(problem(flag, str(path), f"must be a file that can be read: {error.message}"))
        return None


def _parse(pem: bytes, path: Path, flag: str, problems: list[Problem]) -> tuple[x509.Certificate, ...]:
    try:
        return read_certificates(pem)
    except InvalidError:
        problems.append(problem(flag, str(path), "must hold a certificate in PEM"))
        return ()


def _key_for(certificate: x509.Certificate, path: Path, problems: list[Problem]) -> bytes | None:
    """The key of this certificate: the one there is, or the one that is about to take its place."""
    rule = "must be the key of the certificate; these two do not belong together"
    trouble = problem("--key", str(path), rule)
    for candidate in key_places(path):
        unread: list[Problem] = []
        key = _read(candidate, "--key", unread)
        try:
            if key is not None and matches(certificate, key):
                return key
        except InvalidError as error:
            unread.append(problem("--key", str(candidate), error.problems[0].rule))
        if unread and candidate is path:
            trouble = unread[0]
    problems.append(trouble)
    return None


def key_places(key: Path) -> tuple[Path, ...]:
    """Where to look for the key of a certificate, in order.

    Once more at the end: what was about to take its place may have done so in between.
    """
    return key, _next(key), key


def _next(key: Path) -> Path:
    return key.with_name(f"{key.name}{_NEXT}")


class CredentialWatch:
    """The newest usable credentials in some files. Safe to ask from any thread.

    What cannot be used is not taken: the ones before it stay, and the log says why, once.
    """

    def __init__(self, paths: CredentialPaths, *, now: Callable[[], datetime]) -> None:
        self._paths = paths
        self._now = now
        self._lock = threading.Lock()
        self._seen = self._signature()
        #: Grows with every change that was taken.
        self.version = 1
        self.current = read_credentials(paths, now=now())
        self._warn_if_readable()

    def look(self) -> Credentials:
        """Look at the files, and take what is new in them."""
        signature = self._signature()
        if signature != self._seen:
            with self._lock:
                if signature != self._seen:
                    self._take(signature)
        return self.current

    def _take(self, signature: tuple[object, ...]) -> None:
        # Read after the signature was taken: a change in between shows as another change the next time.
        try:
            found = read_credentials(self._paths, now=self._now())
        except ShoalError as error:
            log.warning("the certificate files changed and cannot be used, the old ones stay: %s", error.message)
        else:
            if found.identity != self.current.identity:
                was, now = self.current.identity.uri, found.identity.uri
                log.warning("the certificate files are now those of %s; %s stays with the old ones", now, was)
            elif found != self.current:
                self.current = found
                self.version += 1
                log.info("took new certificate files: %s, until %s", found.identity, found.not_after.isoformat())
        self._seen = signature

    def _signature(self) -> tuple[object, ...]:
        paths = self._paths
        return tuple(file_stamp(path) for path in (paths.ca, paths.cert, paths.key, _next(paths.key)))

    def _warn_if_readable(self) -> None:
        mode = self._paths.key.stat().st_mode if self._paths.key.exists() else 0
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("%s can be read by others: chmod 600 it", self._paths.key)

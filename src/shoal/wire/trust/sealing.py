"""Encryption at rest, for values that must not lie readable on any disk: AES-256-GCM with a key in a file of its own.

What is sealed is bound to what it is for: a sealed value that somebody moves to another place does not open there. It
says which key it was sealed with, so that a wrong key is told from a damaged value. Called by `shoal.control.trust`
(secrets, job_keys), `shoal.agent.store.vault` and `shoal.runtimes.compose.previous`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.core.disk.private_files import make_private_directory, read_private, write_private
from shoal.core.errors import InternalError, InvalidError, NotFoundError, PreconditionError, problem

KEY_BYTES = 32
KEY_RULE = f"must be the base64 of {KEY_BYTES} bytes, such as `openssl rand -base64 {KEY_BYTES}` prints"

_FORM = b"\x01"
_MARK_BYTES = 8
_NONCE_BYTES = 12
#: Held while a key is made. One process owns each directory with keys.
_making = threading.Lock()


class Sealer:
    """Seals and opens with one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._mark = hashlib.sha256(b"shoal key " + key).digest()[:_MARK_BYTES]

    @property
    def mark(self) -> str:
        """By what a key is known without giving it away."""
        return self._mark.hex()

    def seal(self, value: bytes, *, purpose: str) -> bytes:
        """Encrypt a value for one purpose."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORM + self._mark + nonce + self._cipher.encrypt(nonce, value, purpose.encode())

    def open(self, sealed: bytes, *, purpose: str) -> bytes:
        """Decrypt it. Raises `PreconditionError` for another key, `InternalError` for damage; neither has the value."""
        head = len(_FORM) + _MARK_BYTES
        if sealed[: len(_FORM)] != _FORM or len(sealed) < head + _NONCE_BYTES:
            raise InternalError(f"{purpose}: this is nothing that was sealed")
        if sealed[len(_FORM) : head] != self._mark:
            raise PreconditionError(
                f"{purpose} was sealed with another key",
                hint="start with the key that it was sealed with; several control planes need the same",
            )
        try:
            nonce, rest = sealed[head : head + _NONCE_BYTES], sealed[head + _NONCE_BYTES :]
            return self._cipher.decrypt(nonce, rest, purpose.encode())
        except InvalidTag:
            raise InternalError(f"{purpose} is damaged") from None


def mark_of(sealed: bytes) -> str:
    """The mark of the key that a value was sealed with."""
    return sealed[len(_FORM) : len(_FORM) + _MARK_BYTES].hex()


def parse_key(text: str, *, name: str) -> bytes:
    """Read a key. Raises `InvalidError`, which does not repeat it."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidError([problem(name, None, KEY_RULE)])
    return key


def load_key(path: Path) -> bytes:
    """The key of a file. Raises `NotFoundError`."""
    return parse_key(read_private(path).decode("ascii", "replace"), name=str(path))


def load_or_make_key(path: Path) -> bytes:
    """The key of a file; a new one is made, for us alone, where there is none. Threads that ask at once get one key."""
    with _making:
        try:
            return load_key(path)
        except NotFoundError:
            key = os.urandom(KEY_BYTES)
            make_private_directory(path.parent)
            write_private(path, base64.b64encode(key) + b"\n")
            return key

"""Signs certificates with the authority's key, in a thread: parsing the key and signing do not block the event loop.

The key is parsed again only when one of its files changed. Called by `shoal.control.trust.enrollment` and
`shoal.control.trust.join_tokens`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from shoal.core.disk.private_files import FileStamp, file_stamp, read_private
from shoal.core.errors import InternalError, InvalidError, PreconditionError, problem
from shoal.model.identity import Identity
from shoal.wire.trust.authority import Authority, PublicKey, SigningRequest, read_authority, read_signing_request, sign
from shoal.wire.trust.certificates import describe

T = TypeVar("T")

LARGEST_CSR = 16 * 1024


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and the authorities to trust; both PEM."""

    certificate: bytes
    ca: bytes


@dataclass(frozen=True, slots=True)
class _Loaded:
    stamps: tuple[FileStamp | None, ...]
    authority: Authority
    bundle: bytes


class Signer:
    """The authority of one cluster.

    Args:
        ca: path of the authorities' certificates.
        key: path of the key of one of them; None where certificates are not issued.
        cluster: what the authority must sign for.
        threads: run the work; the loop's own threads unless given.
    """

    def __init__(self, ca: Path, key: Path | None, *, cluster: str, threads: Executor | None = None) -> None:
        self._ca = ca
        self._key = key
        self._cluster = cluster
        self._threads = threads
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None

    async def trusted(self) -> bytes:
        """The certificates of every authority that is trusted, PEM."""
        return (await self._in_thread(self._load)).bundle

    async def fingerprint(self) -> str:
        """The SHA-256 of the signing authority's certificate."""
        loaded = await self._in_thread(self._load)
        return describe(loaded.authority.certificate).sha256

    async def read_request(self, csr: bytes) -> SigningRequest:
        """Read a request to sign. Raises `InvalidError`."""
        if len(csr) > LARGEST_CSR:
            raise InvalidError([problem("csr", None, f"must have at most {LARGEST_CSR:,} bytes")])
        return await self._in_thread(lambda: read_signing_request(csr))

    async def sign(
        self, key: PublicKey, identity: Identity, *, now: datetime, lifetime: timedelta | None = None
    ) -> Issued:
        """A certificate for a key, without the hosts of its request: by those a node could pass for another one."""

        def work() -> Issued:
            loaded = self._load()
            return Issued(sign(loaded.authority, key, identity, now=now, lifetime=lifetime), loaded.bundle)

        return await self._in_thread(work)

    def _load(self) -> _Loaded:
        if self._key is None:
            raise PreconditionError(
                "this control plane has no signing key, so it cannot issue certificates",
                hint="start it with --ca-key, or make certificates by hand with `shoal certs issue`",
            )
        with self._lock:
            # Taken before the files are read: a change in between is seen the next time.
            stamps = file_stamp(self._ca), file_stamp(self._key)
            if self._loaded is None or self._loaded.stamps != stamps or None in stamps:
                self._loaded = None
                bundle = read_private(self._ca)
                authority = read_authority(bundle, read_private(self._key))
                if authority.cluster != self._cluster:
                    raise InternalError(
                        f"the signing key is of cluster {authority.cluster!r}, not of {self._cluster!r}"
                    )
                self._loaded = _Loaded(stamps, authority, bundle)
            return self._loaded

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

"""Gets certificates for workloads that ask for one, and renews them while they run.

    <data_dir>/identities/<workload id>/    0700, of the user that the workload runs as
        ca.pem, cert.pem, key.pem           0600, likewise

The key is made here, for this workload alone. The control plane signs it for the workload's group on this node. Each
run starts with a new pair. If none can be got, the run starts with the pair in the files while that is valid, and
otherwise waits. A running workload gets a new pair at half of the lifetime, in the same files, without a moment in
which certificate and key do not match. If that fails the run goes on, and its status says when its certificate expires.

The directory belongs to the workload's user, who may change it. So the agent remembers what it wrote and reads the
files only after its own restart. Owned by `shoal.agent.workloads.executor`; made by `shoal.agent.server`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor as Threads
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from shoal.core.clock import Clock
from shoal.core.disk.private_files import Owner, let_others_pass, make_private_directory, read_regular
from shoal.core.durations import format_duration
from shoal.core.entropy import Entropy
from shoal.core.errors import ExhaustedError, InternalError, ShoalError
from shoal.core.ids import WorkloadId
from shoal.core.retry import Backoff
from shoal.model.identity import Identity, Role, workload_identity
from shoal.model.workloads import FailureReason, ProcessSpec
from shoal.runtimes.base import RunError
from shoal.wire.routes import Way, ask_in_turn
from shoal.wire.trust.authority import OwnRequest, Pair, make_signing_request
from shoal.wire.trust.certificates import identity_of, matches, read_certificates
from shoal.wire.trust.credentials import CredentialPaths, write_credentials

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger(__name__)

T = TypeVar("T")

FOLDER = "identities"

#: A pair is replaced after this share of its lifetime, less a random part, so that not all agents ask at once.
SHARE = 0.5
SPREAD = 0.05
#: When only this share of the lifetime is left, the status of the workload says that renewal fails.
LAST_SHARE = 0.25
#: A run is not started with a certificate that ends sooner than this.
LEAST_LEFT = timedelta(minutes=1)
LOOK_EVERY = 15.0

_RETRY = Backoff(first=15.0, cap=120.0)
_NO_UID = 2**32 - 1


class Issued(Protocol):
    """A certificate and the authorities to trust, PEM."""

    @property
    def certificate(self) -> bytes: ...  # noqa: D102

    @property
    def ca(self) -> bytes: ...  # noqa: D102


class Issuer(Way, Protocol):
    """A connection to the control plane, for a few calls."""

    async def issue_workload_certificate(self, workload_id: str, csr: bytes) -> Issued:
        """Ask for a certificate for a workload of this node."""
        ...


@dataclass(frozen=True, slots=True)
class _Held:
    """What a workload has in its files."""

    not_before: datetime
    not_after: datetime
    #: When it is due to be replaced.
    due_at: datetime
    failures: int = 0

    @property
    def life(self) -> timedelta:
        return self.not_after - self.not_before


class WorkloadCertificates:
    """The certificates of one agent's workloads.

    Args:
        data_dir: the agent's.
        agent: the identity in the agent's own certificate.
        connect: opens a connection to the control plane.
        clock: says when a certificate ends.
        entropy: spreads renewals.
        threads: write files; the default executor of the loop unless given.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        agent: Identity,
        connect: Callable[[], Issuer],
        clock: Clock,
        entropy: Entropy,
        threads: Threads | None = None,
    ) -> None:
        self._folder = data_dir.absolute() / FOLDER
        self._agent = agent
        self._connect = connect
        self._clock = clock
        self._entropy = entropy
        self._threads = threads
        self._held: dict[WorkloadId, _Held] = {}
        self._locks: dict[WorkloadId, asyncio.Lock] = {}

    async def open(self, known: Iterable[WorkloadId]) -> None:
        """Remove what is left of workloads that are gone."""
        await self._apart(lambda: _remove_strays(self._folder, frozenset(known)))

    async def prepare(self, workload_id: WorkloadId, spec: ProcessSpec) -> dict[str, str]:
        """Write a new certificate for a run, and return the variables that name its files.

        Returns nothing for a spec without `identity`. Raises `RunError` when there is no valid certificate.
        """
        if not spec.identity:
            await self.forget(workload_id)
            return {}
        owner = _find_owner(spec.user)
        async with self._lock(workload_id):
            try:
                await self._replace(workload_id, owner)
            except ShoalError as error:
                left = await self._time_left(workload_id, owner)
                if left < LEAST_LEFT:
                    words = f"waits for its certificate: {error.message}"
                    raise RunError(words, failure=FailureReason.RUNTIME_ERROR, transient=True) from error
                words = format_duration(left.total_seconds())
                log.warning("workload %s starts with a certificate for %s: %s", workload_id, words, error.message)
        paths = CredentialPaths.within(self._folder / workload_id)
        return {"SHOAL_CA": str(paths.ca), "SHOAL_CERT": str(paths.cert), "SHOAL_KEY": str(paths.key)}

    async def forget(self, workload_id: WorkloadId) -> None:
        """Remove what a workload had."""
        async with self._lock(workload_id):
            self._held.pop(workload_id, None)
            await self._apart(lambda: _remove(self._folder / workload_id))
        self._locks.pop(workload_id, None)

    # -----------------------------------------------------------------------------------------------------
    # Keeping fresh

    async def keep_fresh(
        self,
        living: Callable[[], Mapping[WorkloadId, ProcessSpec]],
        warn: Callable[[WorkloadId, str], None],
    ) -> None:
        """Renew certificates before they expire. Runs until cancelled.

        Args:
            living: the workloads that run now and have a certificate.
            warn: called with a warning about the certificate of a workload; empty when it is over.
        """
        while True:
            await self._look(living, warn)
            await self._clock.sleep(LOOK_EVERY)

    async def _look(
        self,
        living: Callable[[], Mapping[WorkloadId, ProcessSpec]],
        warn: Callable[[WorkloadId, str], None],
    ) -> None:
        for workload_id in living():
            if workload_id not in self._held:
                await self._adopt(workload_id)
        for workload_id in sorted(self._held, key=lambda each: self._held[each].not_after):
            held = self._held[workload_id]
            if self._clock.wall() < held.due_at:
                continue
            async with self._lock(workload_id):
                spec = living().get(workload_id)  # it may have ended meanwhile
                if spec is None:
                    continue
                try:
                    await self._replace(workload_id, _find_owner(spec.user))
                except ShoalError as error:
                    warn(workload_id, self._note_failure(workload_id, held, error))
                    if error.retryable:
                        return  # the control plane is away for the others too
                else:
                    warn(workload_id, "")

    def _note_failure(self, workload_id: WorkloadId, held: _Held, error: ShoalError) -> str:
        """Try again later. Returns the warning; empty while there is time."""
        now, failures = self._clock.wall(), held.failures + 1
        wait = timedelta(seconds=_RETRY.delay(failures, self._entropy))
        self._held[workload_id] = replace(held, due_at=now + wait, failures=failures)
        words = f"its certificate ends at {held.not_after:%H:%M} UTC and cannot be renewed: {error.message}"
        if held.failures == 0:
            log.warning("workload %s: %s", workload_id, words)
        return words if held.not_after - now <= held.life * LAST_SHARE else ""

    async def _adopt(self, workload_id: WorkloadId) -> None:
        """Read the certificate that an earlier process wrote. One that cannot be read is renewed at once."""
        leaf = await self._apart(lambda: _read_leaf(self._folder / workload_id))
        if leaf is not None:
            self._hold(workload_id, leaf)
        else:
            now = self._clock.wall()
            self._held[workload_id] = _Held(now, now, now)

    # -----------------------------------------------------------------------------------------------------

    async def _replace(self, workload_id: WorkloadId, owner: Owner | None) -> None:
        """Make a key, have it signed, and replace the files."""
        # The control plane uses the group of its own record; this only says who asks.
        asked = workload_identity(self._agent.cluster, job=workload_id, node=self._agent.name)
        own = await self._apart(lambda: make_signing_request(asked))
        answer = await self._ask(workload_id, own.csr)
        leaf = read_certificates(answer.certificate)[0]
        given = identity_of(leaf)
        fits = (given.role, given.cluster, given.node) == (Role.WORKLOAD, self._agent.cluster, self._agent.name)
        if not fits or not matches(leaf, own.key):
            raise InternalError(f"the control plane has issued a certificate for somebody else: {given}")
        try:
            await self._apart(lambda: self._write(workload_id, answer, own, owner))
        except OSError as error:
            raise ExhaustedError(f"its certificate cannot be written: {error}") from error
        self._hold(workload_id, leaf)

    async def _ask(self, workload_id: WorkloadId, csr: bytes) -> Issued:
        return await ask_in_turn(self._connect, lambda way: way.issue_workload_certificate(workload_id, csr))

    def _write(self, workload_id: WorkloadId, answer: Issued, own: OwnRequest, owner: Owner | None) -> None:
        make_private_directory(self._folder)
        if owner is not None:
            let_others_pass(self._folder.parent)
            let_others_pass(self._folder)
        directory = self._folder / workload_id
        if directory.exists() and directory.stat().st_uid != _uid_of(owner):
            _remove(directory)  # it belongs to the previous user of the workload
        pair = Pair(answer.certificate, own.key)
        write_credentials(directory, ca=answer.ca, pair=pair, owner=owner)

    def _hold(self, workload_id: WorkloadId, leaf: x509.Certificate) -> None:
        share = SHARE - self._entropy.uniform(0.0, SPREAD)
        begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        self._held[workload_id] = _Held(begins, ends, begins + (ends - begins) * share)

    async def _time_left(self, workload_id: WorkloadId, owner: Owner | None) -> timedelta:
        """How long the certificate in the files is valid, if its owner can read them."""
        leaf = await self._apart(lambda: _read_leaf(self._folder / workload_id, _uid_of(owner)))
        return leaf.not_valid_after_utc - self._clock.wall() if leaf is not None else timedelta(0)

    def _lock(self, workload_id: WorkloadId) -> asyncio.Lock:
        return self._locks.setdefault(workload_id, asyncio.Lock())

    async def _apart(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _find_owner(user: str) -> Owner | None:
    """The owner of the files; None for the agent's own user. Raises `RunError` for an unknown user."""
    if not user:
        return None
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        return Owner(entry.pw_uid, entry.pw_gid)
    except KeyError:
        if user.isdigit() and int(user) < _NO_UID:
            return Owner(int(user), int(user))
    words = f"user {user!r}: there is no such user on this machine"
    raise RunError(words, failure=FailureReason.INVALID_SPEC)


def _uid_of(owner: Owner | None) -> int:
    return owner.uid if owner is not None else os.geteuid()


def _read_leaf(directory: Path, uid: int | None = None) -> x509.Certificate | None:
    """The certificate in a directory, if it has one, and if it is that user's."""
    try:
        if uid is not None and directory.stat().st_uid != uid:
            return None
        return read_certificates(read_regular(CredentialPaths.within(directory).cert))[0]
    except (ShoalError, OSError):
        return None


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s could not be removed: %s", directory, error)


def _remove_strays(folder: Path, known: frozenset[WorkloadId]) -> None:
    if folder.is_dir():
        for each in folder.iterdir():
            if each.name not in known:
                _remove(each)

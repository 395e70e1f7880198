"""Secrets: set by operators, named by specs, opened only for a command to an agent that needs them.

The store has sealed values; no call reads one back. Each value names the hash of its key. So a control plane with
another key reports that (`key_trouble`) and does not add values that the others could not open. Made for each
leadership; `resolve` is called by `shoal.control.workloads.sender` for each command, the rest by
`shoal.control.api.secret_service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch
from shoal.core.clock import Clock
from shoal.core.errors import ConflictError, ExhaustedError, NotFoundError, PreconditionError, ShoalError
from shoal.model.events import Event, EventKind, EventSource, SubjectKind
from shoal.model.trust import SecretRecord
from shoal.model.workloads import DesiredState, WorkloadRecord

if TYPE_CHECKING:
    # Loaded when there is something to seal: most fleets have no secrets.
    from shoal.wire.trust.sealing import Sealer

MOST_SECRETS = 1000
LARGEST_VALUE = 32 * 1024
KEY_FILE = "secret.key"

_TRIES = 5
_SHOWN = 5


class ClusterSecrets:
    """The secrets of a cluster.

    Args:
        ledger: where they are stored.
        key_file: the key they are sealed with, made when it is first needed; unused when `given_key` is not empty.
        given_key: the key as text, from the environment.
        shared: other control planes use the same store, so all of them must have the same key.
        clock: for the dates.
        threads: where the key file is read and written; the loop's own threads unless given.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        key_file: Path,
        given_key: str,
        shared: bool,
        clock: Clock,
        threads: Executor | None = None,
    ) -> None:
        self._ledger = ledger
        self._key_file = key_file
        self._given_key = given_key
        self._shared = shared
        self._clock = clock
        self._threads = threads
        self._sealer: Sealer | None = None

    async def set(self, name: str, value: bytes, *, by: str) -> SecretRecord:
        """Store a value. What runs keeps the old one until it is started again.

        Raises `PreconditionError` when another control plane, or this one after a loss of its key, could not open it.
        """
        for _ in range(_TRIES):
            secrets = await self._ledger.store.secrets()
            if self._shared and not self._given_key:
                raise PreconditionError(
                    "secrets on a database that control planes share need a key that is given to all of them",
                    hint=await self._way_to_share(secrets),
                )
            trouble = await self._trouble_with(secrets)
            if trouble:
                raise PreconditionError(trouble, hint=self._way_out())
            stored = {secret.name: secret for secret in secrets}
            known, now = stored.get(name), self._clock.wall()
            if known is None and len(stored) >= MOST_SECRETS:
                raise ExhaustedError(f"there are {MOST_SECRETS} secrets already", limit=MOST_SECRETS)
            record = SecretRecord(
                name=name,
                sealed=(await self._open_sealer(may_make=True)).seal(value, purpose=_purpose(name)),
                created_at=known.created_at if known is not None else now,
                updated_at=now,
                revision=known.revision + 1 if known is not None else 1,
                version=known.version if known is not None else 0,
            )
            event = Event(
                now,
                SubjectKind.CONTROL,
                name,
                EventKind.SECRET_SET,
                f"revision {record.revision}, by {by}",
                EventSource.API,
                f"SetSecret by {by}",
            )
            try:
                await self._ledger.commit(Batch(secrets=(record,), events=(event,)))
            except ConflictError:
                continue
            return record
        raise ConflictError(f"secret {name!r} is changed again and again", id=name)

    async def key_trouble(self) -> str:
        """What keeps this control plane from opening the secrets there are; empty when nothing does."""
        return await self._trouble_with(await self._ledger.store.secrets())

    async def records(self) -> tuple[SecretRecord, ...]:
        """Every secret, sealed."""
        return await self._ledger.store.secrets()

    async def delete(self, name: str, *, by: str) -> None:
        """Forget a secret. Raises `PreconditionError` while a workload names it, unless nobody can open it here."""
        for _ in range(_TRIES):
            known = {secret.name: secret for secret in await self._ledger.store.secrets([name])}.get(name)
            if known is None:
                raise NotFoundError("secret", name, hint="`shoal secret list` shows those there are")
            users = self._users(name)
            if users and not await self._trouble_with((known,)):
                more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
                raise PreconditionError(
                    f"secret {name!r} is used by {', '.join(users[:_SHOWN])}{more}",
                    hint="change or delete those workloads first",
                    secret=name,
                )
            event = Event(
                self._clock.wall(),
                SubjectKind.CONTROL,
                name,
                EventKind.SECRET_DELETED,
                f"by {by}",
                EventSource.API,
                f"DeleteSecret by {by}",
            )
            try:
                await self._ledger.commit(Batch(removed_secrets={name: known.version}, events=(event,)))
            except ConflictError:
                continue
            return
        raise ConflictError(f"secret {name!r} is changed again and again", id=name)

    async def resolve(self, record: WorkloadRecord) -> Mapping[str, bytes]:
        """The values that a workload's spec names, by the names of the secrets. Raises `NotFoundError`."""
        wanted = named_by(record)
        if not wanted or record.desired is DesiredState.STOPPED:
            return {}
        stored = {secret.name: secret for secret in await self._ledger.store.secrets(wanted)}
        for name in sorted(wanted):
            if name not in stored:
                raise NotFoundError("secret", name, hint=f"set it with `shoal secret set {name}`")
        trouble = await self._trouble_with([stored[name] for name in wanted])
        if trouble:
            raise PreconditionError(trouble, hint=self._way_out())
        sealer = await self._open_sealer()
        return {name: sealer.open(stored[name].sealed, purpose=_purpose(name)) for name in wanted}

    def _users(self, name: str) -> list[str]:
        workloads = self._ledger.fleet.workloads.values()
        return sorted(record.workload_id for record in workloads if name in named_by(record))

    async def _open_sealer(self, *, may_make: bool = False) -> Sealer:
        """The sealer. Its key is read in a thread. Raises `NotFoundError` without one; a first secret makes one."""
        if self._sealer is None:
            from shoal.wire.trust.sealing import Sealer

            loop = asyncio.get_running_loop()
            self._sealer = Sealer(await loop.run_in_executor(self._threads, lambda: self._read_key(may_make=may_make)))
        return self._sealer

    def _read_key(self, *, may_make: bool) -> bytes:
        from shoal.wire.trust.sealing import load_key, load_or_make_key, parse_key

        if self._given_key:
            return parse_key(self._given_key, name="SHOAL_SECRET_KEY")
        return load_or_make_key(self._key_file) if may_make else load_key(self._key_file)

    async def _trouble_with(self, secrets: Sequence[SecretRecord]) -> str:
        if not secrets:
            return ""
        from shoal.wire.trust.sealing import mark_of

        try:
            mark = (await self._open_sealer()).mark
        except NotFoundError:
            return f"the store has sealed secrets but their key is missing: no {self._key_file}"
        except ShoalError as error:
            return f"the key of the secrets cannot be read: {error.message}"
        foreign = sum(mark_of(secret.sealed) != mark for secret in secrets)
        return f"{foreign} of {len(secrets)} secrets were sealed with another key than this one" if foreign else ""

    async def _way_to_share(self, secrets: Sequence[SecretRecord]) -> str:
        one = (
            f"that in {self._key_file}"
            if secrets and not await self._trouble_with(secrets)
            else "`openssl rand -base64 32`"
        )
        return f"start every control plane on this database with the same SHOAL_SECRET_KEY ({one})"

    def _way_out(self) -> str:
        where = "the right SHOAL_SECRET_KEY" if self._given_key or self._shared else f"the right {self._key_file}"
        return f"start with {where}; if that key is lost, delete those secrets and set them again"


def named_by(record: WorkloadRecord) -> frozenset[str]:
    """The secrets that a workload's spec names."""
    return record.spec.body.secret_names


def _purpose(name: str) -> str:
    return f"secret {name!r}"

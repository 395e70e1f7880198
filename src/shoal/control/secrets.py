"""Secrets: set by people, named by specs, opened only when an order that needs them goes to an agent.

The store has sealed values; nobody reads one back. `resolve` is asked by `shoal.control.dispatch` for each order. Made
for each reign; served by `shoal.control.secret_service`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.control.fleet import Ledger
from shoal.control.store.base import Batch
from shoal.core.clock import Clock
from shoal.core.errors import ConflictError, ExhaustedError, NotFoundError, PreconditionError
from shoal.core.ids import WorkloadId
from shoal.model.events import Event
from shoal.model.trust import SecretRecord
from shoal.model.workloads import DesiredState, WorkloadRecord

if TYPE_CHECKING:
    # Loaded when there is something to seal: most fleets have no secrets.
    from shoal.wire.sealing import Sealer

MOST_SECRETS = 1000
LARGEST_VALUE = 32 * 1024
KEY_FILE = "secret.key"

_TRIES = 5
_SHOWN = 5


class SecretBook:
    """The secrets of a cluster.

    Args:
        ledger: where they are kept.
        key_file: the key they are sealed with, made when it is first needed; unused when `given_key` is not empty.
        given_key: the key as text, from the environment.
        clock: for the dates.
        on_change: told of the workloads that name a secret which was set.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        key_file: Path,
        given_key: str,
        clock: Clock,
        on_change: Callable[[list[WorkloadId]], None],
    ) -> None:
        self._ledger = ledger
        self._key_file = key_file
        self._given_key = given_key
        self._clock = clock
        self._on_change = on_change
        self._sealer: Sealer | None = None

    async def set(self, name: str, value: bytes, *, by: str) -> SecretRecord:
        """Store a value. What runs keeps the old one until it is started again."""
        for _ in range(_TRIES):
            stored = {secret.name: secret for secret in await self._ledger.store.secrets()}
            known, now = stored.get(name), self._clock.wall()
            if known is None and len(stored) >= MOST_SECRETS:
                raise ExhaustedError(f"there are {MOST_SECRETS} secrets already", limit=MOST_SECRETS)
            record = SecretRecord(
                name=name,
                sealed=self._open_sealer().seal(value, purpose=_purpose(name)),
                created_at=known.created_at if known is not None else now,
                updated_at=now,
                revision=known.revision + 1 if known is not None else 1,
                version=known.version if known is not None else 0,
            )
            event = Event(now, "control", name, "SecretSet", f"revision {record.revision}, by {by}", "api")
            try:
                await self._ledger.commit(Batch(secrets=(record,), events=(event,)))
            except ConflictError:
                continue
            self._on_change([WorkloadId(each) for each in self._users(name)])
            return record
        raise ConflictError(f"secret {name!r} is changed again and again", id=name)

    async def records(self) -> tuple[SecretRecord, ...]:
        """Every secret, sealed."""
        return await self._ledger.store.secrets()

    async def delete(self, name: str, *, by: str) -> None:
        """Forget a secret. Raises `PreconditionError` while a workload names it."""
        for _ in range(_TRIES):
            known = {secret.name: secret for secret in await self._ledger.store.secrets()}.get(name)
            if known is None:
                raise NotFoundError("secret", name, hint="`shoal secret list` shows those there are")
            users = self._users(name)
            if users:
                more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
                raise PreconditionError(
                    f"secret {name!r} is used by {', '.join(users[:_SHOWN])}{more}",
                    hint="change or delete those workloads first",
                    secret=name,
                )
            event = Event(self._clock.wall(), "control", name, "SecretDeleted", f"by {by}", "api")
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
        stored = {secret.name: secret for secret in await self._ledger.store.secrets()}
        for name in sorted(wanted):
            if name not in stored:
                raise NotFoundError("secret", name, hint=f"set it with `shoal secret set {name}`")
        sealer = self._open_sealer()
        return {name: sealer.open(stored[name].sealed, purpose=_purpose(name)) for name in wanted}

    def _users(self, name: str) -> list[str]:
        workloads = self._ledger.fleet.workloads.values()
        return sorted(record.workload_id for record in workloads if name in named_by(record))

    def _open_sealer(self) -> Sealer:
        if self._sealer is None:
            from shoal.wire.sealing import Sealer, load_or_make_key, parse_key

            given = self._given_key
            key = parse_key(given, name="SHOAL_SECRET_KEY") if given else load_or_make_key(self._key_file)
            self._sealer = Sealer(key)
        return self._sealer


def named_by(record: WorkloadRecord) -> frozenset[str]:
    """The secrets that a workload's spec names."""
    process = record.spec.process
    return frozenset(process.env_from_secrets.values()) if process is not None else frozenset()


def _purpose(name: str) -> str:
    return f"secret {name!r}"

"""Stores the secrets that workloads on this node need, encrypted with a key of this agent.

They arrive with a command and are stored before it, so a restarted agent can start workloads without a control plane.
In memory, too, they are encrypted; they are opened when a run starts. The key is in a file of its own, so a copy of the
database alone is useless. Owned by `shoal.agent.workloads.executor`.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.agent.store.database import AgentDatabase
from shoal.core.errors import NotFoundError, ShoalError
from shoal.core.ids import WorkloadId
from shoal.model.workloads import Body, FailureReason
from shoal.runtimes.base import RunError

if TYPE_CHECKING:
    # Loaded when there is something to seal: most agents never have any.
    from shoal.wire.trust.sealing import Sealer

KEY_FILE = "secret.key"


class Vault:
    """The secrets of one agent's workloads."""

    def __init__(self, database: AgentDatabase) -> None:
        self._database = database
        self._key_file = database.path.parent / KEY_FILE
        self._sealed: dict[WorkloadId, bytes] = {}
        self._sealer: Sealer | None = None
        #: Why the key could not be read when the stored secrets were.
        self._key_trouble: ShoalError | None = None

    async def open(self) -> None:
        """Read the stored secrets. Those of unknown workloads are dropped: their command was refused or never came."""
        await self._database.write(_drop_strays)
        self._sealed = await self._database.read(_load)
        if self._sealed:
            try:
                await self._open_sealer()
            except ShoalError as error:
                self._key_trouble = error

    async def keep(self, workload_id: WorkloadId, body: Body, values: Mapping[str, bytes]) -> bool:
        """Store the values that came with a command, and return whether values changed.

        A command without values, such as a stop, changes nothing.
        """
        if not body.secret_names:
            if workload_id in self._sealed:
                await self._database.write(lambda connection: forget(connection, workload_id))
                self.drop(workload_id)
            return False
        if not values:
            return False
        sealer = await self._open_sealer()
        if self._opened(workload_id) == values:
            return False
        text = json.dumps({name: base64.b64encode(value).decode("ascii") for name, value in values.items()})
        sealed = sealer.seal(text.encode(), purpose=_purpose(workload_id))
        await self._database.write(lambda connection: _put(connection, workload_id, sealed))
        self._sealed[workload_id] = sealed
        return True

    def drop(self, workload_id: WorkloadId) -> None:
        """A workload is gone from the database."""
        self._sealed.pop(workload_id, None)

    def values(self, workload_id: WorkloadId, body: Body) -> Mapping[str, bytes]:
        """The values of the secrets that a spec names, by name. Raises `RunError` when one is not here."""
        if not body.secret_names:
            return {}
        try:
            values = self._open(workload_id)
        except ShoalError as error:
            raise RunError(error.message, failure=FailureReason.RUNTIME_ERROR, transient=True) from error
        missing = sorted(body.secret_names - set(values))
        if missing:
            words = f"secret {missing[0]!r} has not been delivered to this node"
            raise RunError(words, failure=FailureReason.RUNTIME_ERROR, transient=True)
        return values

    def _opened(self, workload_id: WorkloadId) -> Mapping[str, bytes] | None:
        try:
            return self._open(workload_id) if workload_id in self._sealed else None
        except ShoalError:
            return None  # sealed with a key that was lost: replaced by the new values

    def _open(self, workload_id: WorkloadId) -> dict[str, bytes]:
        sealed = self._sealed.get(workload_id)
        if sealed is None:
            return {}
        if self._sealer is None:
            raise self._key_trouble or NotFoundError("file", str(self._key_file))
        text = self._sealer.open(sealed, purpose=_purpose(workload_id))
        return {name: base64.b64decode(value) for name, value in json.loads(text).items()}

    async def _open_sealer(self) -> Sealer:
        """The sealer. Its key is read in a thread, and made there for a first secret."""
        if self._sealer is None:
            from shoal.wire.trust.sealing import Sealer, load_or_make_key

            self._sealer = Sealer(await self._database.call(lambda: load_or_make_key(self._key_file)))
        return self._sealer


def forget(connection: sqlite3.Connection, workload_id: WorkloadId) -> None:
    """Drop what is kept for a workload."""
    connection.execute("DELETE FROM secrets WHERE workload_id = ?", (workload_id,))


def _put(connection: sqlite3.Connection, workload_id: WorkloadId, sealed: bytes) -> None:
    connection.execute(
        "INSERT INTO secrets (workload_id, sealed) VALUES (?, ?)"
        " ON CONFLICT (workload_id) DO UPDATE SET sealed = excluded.sealed",
        (workload_id, sealed),
    )


def _drop_strays(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM secrets WHERE workload_id NOT IN (SELECT workload_id FROM intents)")


def _load(connection: sqlite3.Connection) -> dict[WorkloadId, bytes]:
    rows = connection.execute("SELECT workload_id, sealed FROM secrets")
    return {WorkloadId(workload_id): bytes(sealed) for workload_id, sealed in rows}


def _purpose(workload_id: WorkloadId) -> str:
    return f"the secrets of workload {workload_id!r}"

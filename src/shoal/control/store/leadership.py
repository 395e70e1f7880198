"""The row that says which control plane leads, and the check of it in every transaction.

The database's own clock decides when a leadership has ended, so the clocks of the control planes do not matter. If
it is set back, the lease of a dead leader seems to last longer. A control plane that sees no renewal for longer than a
lease, by its own monotonic clock, takes over anyway. A new term is above the previous one, and never below
the seconds since 1970. So terms still go up for the agents, which remember the highest, when an older copy of the
database is restored, or an empty one is used. Called by `shoal.control.store.database`, on its writing connection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, text, update
from sqlalchemy.sql.elements import TextClause

from shoal.control.store.base import Leader
from shoal.control.store.errors import LeadershipLostError
from shoal.control.store.sql import Statements
from shoal.core.clock import Clock, SystemClock

#: A holder renews many times within one lease.
_SILENT_LEASES = 1.2

#: How long a candidate waits for the row of the leader.
LOCK_SECONDS = 1

_NOW = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
}

# Within a transaction. A writer holds the row for the time of one commit; one that holds it longer is stuck.
_WAIT_BRIEFLY = {"postgresql": f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A control plane that asks for the leadership."""

    holder: str
    #: The term that this process got before; 0 when none. The term of an earlier process is over in any case.
    term: int
    address: str
    #: Whether no other process can use the database.
    certain: bool


class LeadershipTable:
    """The statements on the row of the leader."""

    def __init__(self, dialect: str, statements: Statements, *, clock: Clock | None = None) -> None:
        table = statements.leadership
        self._monotonic = (clock or SystemClock()).monotonic
        #: The row as it was last read, and when it was first read so.
        self._seen: tuple[tuple[int, str, int], float] | None = None
        self._now: TextClause = text(_NOW[dialect])
        self._wait_briefly = text(_WAIT_BRIEFLY[dialect]) if dialect in _WAIT_BRIEFLY else None
        mine = table.c.name == "control"
        self._read = select(table.c.term, table.c.holder, table.c.address, table.c.expires_at).where(mine)
        #: Nobody can take over while a transaction that saw its own term is under way.
        self._share = self._read.with_for_update(read=True)
        self._lock = self._read.with_for_update()
        self._write = (
            update(table)
            .where(mine)
            .values(
                term=bindparam("new_term"),
                holder=bindparam("new_holder"),
                address=bindparam("new_address"),
                expires_at=bindparam("new_expires_at"),
            )
        )

    def read(self, connection: Connection) -> Leader:
        """Who leads now."""
        row = connection.execute(self._read).one()
        return self._leader(connection, row.term, row.holder, row.address, row.expires_at)

    def acquire_leadership(self, connection: Connection, candidate: Candidate, seconds: float) -> Leader:
        """Renew the candidate's leadership, or take over one that has ended; else return the leader.

        Raises what the driver raises when another session holds the row for too long.
        """
        if self._wait_briefly is not None:
            connection.execute(self._wait_briefly)
        row = connection.execute(self._lock).one()
        now = self._time(connection)
        mine = row.holder == candidate.holder
        over = not row.holder or row.expires_at <= now or self._is_silent(row, seconds)
        if not (mine or candidate.certain or over):
            return self._leader(connection, row.term, row.holder, row.address, row.expires_at)
        term = row.term if mine and row.term == candidate.term else max(row.term + 1, now // 1000)
        # The only user of a file has nothing to renew: it writes nothing that a full disk could refuse.
        stored = (row.holder, row.term, row.address) == (candidate.holder, term, candidate.address)
        if not (candidate.certain and stored):
            self._put(connection, term, candidate.holder, candidate.address, now + round(seconds * 1000))
        return Leader(term, candidate.holder, candidate.address, math.inf if candidate.certain else seconds)

    def _is_silent(self, row: Any, seconds: float) -> bool:
        """Whether the row was not renewed for longer than a lease: its holder no longer counts on it by then."""
        now, found = self._monotonic(), (row.term, row.holder, row.expires_at)
        if self._seen is None or self._seen[0] != found:
            self._seen = (found, now)
        return now - self._seen[1] > seconds * _SILENT_LEASES

    def resign(self, connection: Connection, holder: str) -> None:
        """End the leadership of `holder`. The term stays: the next one is above it."""
        row = connection.execute(self._lock).one()
        if row.holder == holder:
            self._put(connection, row.term, "", "", 0)

    def check(self, connection: Connection, holder: str, term: int) -> None:
        """Raise unless this term is the present one. Called first in every transaction that writes."""
        row = connection.execute(self._share).one()
        if (row.holder, row.term) != (holder, term):
            raise LeadershipLostError(row.address if row.holder != holder else "")

    def _put(self, connection: Connection, term: int, holder: str, address: str, expires_at: int) -> None:
        connection.execute(
            self._write,
            {"new_term": term, "new_holder": holder, "new_address": address, "new_expires_at": expires_at},
        )

    def _time(self, connection: Connection) -> int:
        return int(connection.execute(select(self._now)).scalar_one())

    def _leader(self, connection: Connection, term: int, holder: str, address: str, expires_at: int) -> Leader:
        left = (expires_at - self._time(connection)) / 1000
        if not holder or left <= 0:
            return Leader(term, "", "", 0.0)
        return Leader(term, holder, address, left)

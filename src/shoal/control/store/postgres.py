"""The store on PostgreSQL: everything in the schema `shoal` of one database, which others may use too.

A connection that breaks is dropped and made anew with the next batch. A commit whose answer was lost is reported as
such: the caller must read again to learn what became of it. The password is never part of a message.

Called by `shoal.control.store.select`; needs the `postgres` extra.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.pool import NullPool

from shoal.control.store.database import MAX_EVENTS, SqlStore, TransactionGuard
from shoal.control.store.errors import StoreError, StoreOutcome
from shoal.control.store.lane import PATIENCE
from shoal.control.store.leadership import LOCK_SECONDS
from shoal.control.store.rows import SpecDecoder
from shoal.core.errors import (
    InternalError,
    InvalidError,
    ShoalError,
    UnsupportedError,
    problem,
)

SCHEMA = "shoal"

CONNECT_SECONDS = 5

SCHEMES = ("postgresql", "postgres")

#: Every transaction that writes holds a lock on the row of the leader. A control plane that is stopped or cut off in a
#: transaction would keep the others from leading until the server notices, which may take hours.
IDLE_IN_TRANSACTION_SECONDS = 3

_SCHEMA_LOCK = 0x73686F616C  # "shoal": who changes the schema holds this advisory lock

# Without these, a connection whose network is cut is noticed only after a quarter of an hour.
_TCP_TIMEOUTS = (
    ("tcp_user_timeout", 10_000),
    ("keepalives_idle", 10),
    ("keepalives_interval", 5),
    ("keepalives_count", 2),
)

_LOCK_NOT_AVAILABLE = "55P03"

# Sessions that read or copy the table take other locks. Sessions that wait for the row do not hold it. Sessions that
# began after the wait are new. All control planes use one role, which may end its own sessions.
_END_HOLDERS = text(
    "SELECT count(pg_terminate_backend(holder.pid)) FROM pg_stat_activity AS holder WHERE holder.pid IN ("
    " SELECT pid FROM pg_locks WHERE granted AND mode IN ('RowShareLock', 'RowExclusiveLock')"
    " AND relation = CAST(:row_of AS regclass)"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    " AND holder.pid <> pg_backend_pid() AND holder.wait_event_type IS DISTINCT FROM 'Lock'"
    " AND holder.xact_start < clock_timestamp() - make_interval(secs => :longer_than)"
)

_FULL = {"53100", "53200"}  # disk full, out of memory

# A server set to answer before the log is on disk would lose acknowledged writes; stricter settings are kept.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"

# Without these, idle sessions of clients that were cut off stay for two hours, and a server allows only so many.
_NOTICE_LOSS = (
    "SELECT set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false),"
    " set_config('tcp_keepalives_count', '3', false)"
)

# Rows are sent without waiting for each answer. A client that is cut off between two of them is not idle for the
# server; only TCP notices that it is gone.
_NO_LINGERING = (
    f"SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_IN_TRANSACTION_SECONDS}s', false),"
    " set_config('tcp_keepalives_idle', '2', false), set_config('tcp_keepalives_interval', '1', false),"
    " set_config('tcp_keepalives_count', '2', false), set_config('tcp_user_timeout', '4000', false)"
)


class PostgresStore(SqlStore):
    """A store in a PostgreSQL database; see `SqlStore` for the other arguments.

    Args:
        url: `postgresql://user:password@host:port/database`.
    """

    def __init__(
        self,
        url: str,
        *,
        decode_spec: SpecDecoder,
        max_events: int = MAX_EVENTS,
        guard: TransactionGuard | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(
            _PostgresDatabase(url), decode_spec=decode_spec, max_events=max_events, guard=guard, patience=patience
        )


class _PostgresDatabase:
    dialect = "postgresql"
    schema: str | None = SCHEMA
    exclusive = False
    inline = False

    def __init__(self, url: str) -> None:
        parsed = _parse(url)
        self._secrets = tuple(_secrets(parsed))
        self.where = f"PostgreSQL {parsed.host or 'local'}:{parsed.port or 5432}/{parsed.database or ''}"
        self._engine = _engine(parsed)

    def claim(self) -> None:
        """Nothing to take: several control planes may use one database."""

    def release(self) -> None:
        """Nothing to give back."""

    def connect(self, *, writing: bool) -> Connection:
        """A new connection. A reader sees one moment throughout a transaction."""
        connection = self._engine.connect()
        if writing:
            connection.exec_driver_sql(_NO_LINGERING)
            connection.commit()
            return connection
        return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def has_room(self) -> bool:
        """The server knows, and says so when something is written."""
        return True

    def is_full(self) -> bool:
        """As above."""
        return False

    def free_reserve(self) -> bool:
        """There is none: the disk is the server's."""
        return False

    def lock_schema(self, connection: Connection) -> None:
        """Make the schema if there is none, and work in it until the transaction ends."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})
        # Asked first: a user who may not make schemas can still use one that was made for them.
        found = connection.execute(text("SELECT 1 FROM pg_namespace WHERE nspname = :name"), {"name": SCHEMA})
        if found.first() is None:
            connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
        connection.exec_driver_sql(f"SET LOCAL search_path TO {SCHEMA}")

    def disconnect(self, connection: Connection, *, writing: bool) -> None:
        """Close."""
        connection.close()

    def cut_off(self, connection: Connection) -> None:
        """Shut the socket down: a server that is stopped or out of reach never answers by itself."""
        raw: Any = connection.connection.dbapi_connection
        if raw is not None and not raw.closed:
            with socket.socket(fileno=os.dup(raw.pgconn.socket)) as wire:
                wire.shutdown(socket.SHUT_RDWR)

    def is_locked_out(self, error: exc.DBAPIError) -> bool:
        """Whether somebody else holds the row."""
        return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE

    def end_holders(self, connection: Connection) -> int:
        """End the sessions that hold it; whatever they had not committed is undone."""
        facts = {"row_of": f"{SCHEMA}.leadership", "longer_than": LOCK_SECONDS}
        return int(connection.execute(_END_HOLDERS, facts).scalar_one())

    def explain(self, error: Exception, *, committing: bool) -> ShoalError:
        """What an error of PostgreSQL or of the connection means."""
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        state: str | None = getattr(cause, "sqlstate", None)
        sentence = self._clean(str(cause))
        if state in _FULL:
            return StoreError(
                f"{self.where} has no room; nothing was stored: {sentence}",
                outcome=StoreOutcome.FULL,
                hint="make room; the store goes on by itself",
                sqlstate=state,
            )
        if not isinstance(error, exc.DBAPIError) and not _is_of_driver(cause):
            return InternalError(f"{self.where}: {type(error).__name__}: {sentence}")
        if committing and _lost(error, state):
            return StoreError(
                f"{self.where}: the connection broke during the commit; whether it was stored is not known: {sentence}",
                outcome=StoreOutcome.UNKNOWN,
            )
        return StoreError(
            f"{self.where}: {sentence}",
            hint="check that PostgreSQL runs there, and the URL given as --database or SHOAL_DATABASE",
            sqlstate=state or "",
        )

    def _clean(self, sentence: str) -> str:
        line = " ".join(sentence.split())
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        if parsed.drivername not in SCHEMES:
            raise ValueError(parsed.drivername)
    except (exc.ArgumentError, ValueError):
        # Without the message of the parser: it may quote the password.
        raise InvalidError(
            [problem("--database", None, "must look like postgresql://user:password@host:port/database")]
        ) from None
    return parsed


def _secrets(url: URL) -> Iterator[str]:
    given = [url.password, url.query.get("password")]
    for each in given:
        if isinstance(each, str) and each:
            yield each
            if quote(each, safe="") != each:
                yield quote(each, safe="")


def _engine(url: URL) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "a PostgreSQL database needs a driver that is not installed", hint="pip install 'shoal[postgres]'"
        ) from error
    arguments: dict[str, Any] = {
        name: value
        for name, value in (("connect_timeout", CONNECT_SECONDS), ("application_name", "shoal"), *_TCP_TIMEOUTS)
        if name not in url.query
    }
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"), poolclass=NullPool, hide_parameters=True, connect_args=arguments
    )
    event.listen(engine, "connect", _set_up_connection)
    return engine


def _set_up_connection(raw: Any, _record: Any) -> None:
    with raw.cursor() as cursor:
        cursor.execute(_DURABLE)
        cursor.execute(_NOTICE_LOSS)
    raw.commit()


def _lost(error: Exception, state: str | None) -> bool:
    """Whether the connection broke: then even the server's last words do not say what became of a commit."""
    if state is None or state.startswith(("08", "57P")):  # no words at all, connection exceptions, shutdowns
        return True
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def _is_of_driver(error: object) -> bool:
    import psycopg

    return isinstance(error, psycopg.Error)

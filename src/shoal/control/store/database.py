"""A store on a SQL database: the part that SQLite and PostgreSQL share.

`SqlStore` gathers the batches of its callers, applies them in one transaction and answers when it is durable. It has
two lanes, each with a connection of its own: one writes, one reads. What differs between databases is behind the small
protocol `Database`: how to connect, who else may use it, and what an error means.

Called by `shoal.control.store.sqlite` and `shoal.control.store.postgres`, which are `SqlStore` with their `Database`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Transaction, exc

from shoal.control.store import sql
from shoal.control.store.base import Batch, EventPage, EventQuery, Leader, Settled, Snapshot
from shoal.control.store.errors import LeadershipLostError, StoreError, StoreOutcome
from shoal.control.store.lane import PATIENCE, InlineLane, Lane, ThreadLane
from shoal.control.store.leadership import Candidate, LeadershipTable
from shoal.control.store.migrate import find_migrations, migrate
from shoal.control.store.rows import Changes, Records, Row, SpecDecoder, prepare
from shoal.core import tracing
from shoal.core.errors import InternalError, ShoalError
from shoal.core.faults import reach
from shoal.discovery.embedded.tree import Changes as CoordinationChanges
from shoal.model.events import Event
from shoal.model.trust import JoinToken, SecretRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_EVENTS = 10_000

SLOW_PATIENCE = 300.0
"""Seconds for what reads or changes the whole database: opening with migrations, loading."""

TransactionGuard = Callable[[Connection], None]
"""Runs first in every transaction that writes. What it raises undoes the transaction and reaches every caller in it."""

_Lane = Lane[tuple[Batch, int], tuple[Event, ...]]


class Database(Protocol):
    """What a store must know of the database under it."""

    #: The name of its dialect: sqlite or postgresql.
    dialect: str
    #: The schema that holds every table, if it has schemas.
    schema: str | None
    #: For people, without secrets.
    where: str
    #: Whether `claim` keeps every other process out, so that the previous leader is certainly gone.
    exclusive: bool
    #: Whether it has one connection that never blocks, so that no thread is needed.
    inline: bool

    def claim(self) -> None:
        """Take what only one process may have."""
        ...

    def release(self) -> None:
        """Give it back. Safe to call twice."""
        ...

    def connect(self, *, writing: bool) -> Connection:
        """A new connection, used by one thread."""
        ...

    def has_room(self) -> bool:
        """Whether ordinary changes may be written. Not while the reserve is in use."""
        ...

    def is_full(self) -> bool:
        """Whether the next change is likely to find no room."""
        ...

    def free_reserve(self) -> bool:
        """Give back some of the disk space that was set aside for what must be written. False when none is left."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Make sure, until the transaction ends, that nobody else changes the schema; make it if there is none."""
        ...

    def disconnect(self, connection: Connection, *, writing: bool) -> None:
        """Close a connection in good order."""
        ...

    def cut_off(self, connection: Connection) -> None:
        """Make the call that hangs on this connection in another thread fail, if that is possible."""
        ...

    def is_locked_out(self, error: exc.DBAPIError) -> bool:
        """Whether the row of the leader was not free, because another session holds it."""
        ...

    def end_holders(self, connection: Connection) -> int:
        """End the sessions that have held the row of the leader for too long; say how many."""
        ...

    def explain(self, error: Exception, *, committing: bool) -> ShoalError:
        """Say what an error of the driver means for callers. `committing`: it was raised by the commit itself."""
        ...


class _CommitFailedError(Exception):
    """Within this module: the commit itself raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Line:
    """The connection of one lane: made when it is needed, dropped when something went wrong with it."""

    def __init__(self, database: Database, *, writing: bool) -> None:
        self._database = database
        self._writing = writing
        self._connection: Connection | None = None
        # Held while the connection is let go, so that `cut_off` never touches what is closed already.
        self._letting_go = threading.Lock()

    def use(self, work: Callable[[Connection], T]) -> T:
        """Run `work`. Raises a `ShoalError`, whatever the driver raised.

        A connection that is found dead before the commit has stored nothing, so the work is done once more on a new
        one: a database that was restarted meanwhile costs no caller an error.
        """
        stale = self._connection is not None
        while True:
            try:
                if self._connection is None:
                    self._connection = self._database.connect(writing=self._writing)
                return work(self._connection)
            except ShoalError:
                raise
            except _CommitFailedError as failed:
                self._drop()
                raise self._database.explain(failed.error, committing=True) from failed.error
            except Exception as error:
                self._drop()
                if stale and isinstance(error, exc.DBAPIError) and error.connection_invalidated:
                    stale = False
                    continue
                raise self._database.explain(error, committing=False) from error

    def _drop(self) -> None:
        if self._database.inline:  # its only connection is the database
            return
        with self._letting_go:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(Exception):
                    connection.invalidate()
                with contextlib.suppress(Exception):
                    connection.close()

    def close(self) -> None:
        """Close the connection in good order."""
        with self._letting_go:
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    self._database.disconnect(connection, writing=self._writing)
                except Exception as error:  # noqa: BLE001 everything is stored; the next opening tidies up
                    log.debug("closing %s: %s", self._database.where, error)

    def cut_off(self) -> None:
        """Make the call that hangs fail. Called from another thread than the one that uses the connection."""
        if self._letting_go.acquire(blocking=False):
            try:
                if self._connection is not None:
                    self._database.cut_off(self._connection)
            except Exception as error:  # noqa: BLE001 it broke by itself meanwhile
                log.debug("cutting off %s: %s", self._database.where, error)
            finally:
                self._letting_go.release()


class SqlStore:
    """The `Store` protocol on a SQL database.

    Args:
        database: which one.
        decode_spec: rebuilds the spec of a workload from the bytes that were accepted.
        max_events: how many events are kept, give or take a tenth.
        guard: runs first in every transaction that writes.
        patience: seconds until a caller is told that the database does not answer.
    """

    def __init__(
        self,
        database: Database,
        *,
        decode_spec: SpecDecoder,
        max_events: int = MAX_EVENTS,
        guard: TransactionGuard | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._database = database
        self._decode_spec = decode_spec
        self._max_events = max(1, max_events)
        self._guard = guard
        self._patience = patience
        self._statements = sql.Statements(database.dialect, schema=database.schema)
        self._leadership = LeadershipTable(database.dialect, self._statements)
        #: The holder and the term that every write checks; None before leadership was first acquired.
        self._held_term: tuple[str, int] | None = None
        self._write_line = _Line(database, writing=True)
        self._read_line = self._write_line if database.inline else _Line(database, writing=False)
        self._writing: _Lane | None = None
        self._reading: _Lane | None = None
        # Of the reading lane: what the last reading made, if there will be another.
        self._records = Records()
        # Of the writing lane: events up to this cursor are trimmed, and whether the last write found no room.
        self._trimmed = 0
        self._was_full = False

    @property
    def where(self) -> str:
        """Where it is, for people, without secrets."""
        return self._database.where

    # -----------------------------------------------------------------------------------------------------
    # The protocol

    async def open(self) -> None:
        """Connect and bring the schema up to date."""
        if self._writing is not None:
            raise InternalError("the store is open already")
        if self._database.inline:
            self._database.claim()
        else:
            await asyncio.to_thread(self._database.claim)
        self._writing = self._lane("shoal-store-write", self._write_line)
        self._reading = self._writing
        if self._read_line is not self._write_line:
            self._reading = self._lane("shoal-store-read", self._read_line)
        self._writing.start()
        if self._reading is not self._writing:
            self._reading.start()
        try:
            await self._writing.run(self._set_up, patience=SLOW_PATIENCE)
        except BaseException:
            await self.close()
            raise

    async def load(self, *, again: bool = False) -> Snapshot:
        """Read everything, as it is at one moment."""

        def work(connection: Connection) -> Snapshot:
            try:
                return sql.load_snapshot(connection, self._statements, self._decode_spec, self._records)
            finally:
                self._records.end_reading(keep=again)

        return await self._read(work, patience=SLOW_PATIENCE)

    async def commit(self, batch: Batch, *, term: int = 0, settled: Settled | None = None) -> tuple[Event, ...]:
        """Apply a batch durably and return its events with their cursors."""
        if self._writing is None:
            raise _not_open()
        if batch.is_empty():
            return ()
        with tracing.span("store.commit", workloads=len(batch.workloads), events=len(batch.events)):
            return await self._writing.submit((batch, term), settled=settled)

    async def events(self, query: EventQuery) -> EventPage:
        """Read events."""
        return await self._read(lambda connection: sql.read_events(connection, self._statements, query))

    async def tokens(self) -> tuple[JoinToken, ...]:
        """Every join token."""
        return await self._read(lambda connection: sql.load_tokens(connection, self._statements))

    async def secrets(self, names: Collection[str] | None = None) -> tuple[SecretRecord, ...]:
        """Every secret, sealed, or those with these names."""
        return await self._read(lambda connection: sql.load_secrets(connection, self._statements, names))

    async def coordination(self) -> CoordinationChanges:
        """The whole coordination tree."""
        return await self._read(self._statements.coordination.load, patience=SLOW_PATIENCE)

    async def acquire_leadership(self, holder: str, address: str, *, seconds: float) -> Leader:
        """Lead, or say who does."""

        def work(connection: Connection) -> Leader:
            candidate = Candidate(
                holder, self._held_term[1] if self._held_term else 0, address, self._database.exclusive
            )
            leader = self._acquire(connection, candidate, seconds)
            # Kept when lost, too: what was decided under the old term must not be written under the new one.
            if leader.holder == holder:
                self._held_term = (holder, leader.term)
            return leader

        if self._writing is None:
            raise _not_open()
        return await self._writing.run(lambda: self._use_reserve(work))

    async def leader(self) -> Leader:
        """Who leads now."""
        return await self._read(self._leadership.read)

    async def resign(self, holder: str) -> None:
        """Let somebody else lead."""

        def work(connection: Connection) -> None:
            with _transaction(connection) as transaction:
                self._leadership.resign(connection, holder)
                _commit(transaction)

        if self._writing is None:
            raise _not_open()
        await self._writing.run(lambda: self._use_reserve(work))

    async def ping(self) -> None:
        """Raise unless a write could be made now. It waits its turn behind the writes that are under way."""
        if self._writing is None:
            raise _not_open()
        await self._writing.run(lambda: self._write_line.use(self._probe))

    async def close(self) -> None:
        """Finish what was accepted and let go."""
        writing, reading = self._writing, self._reading
        self._writing = self._reading = None
        if writing is None or reading is None:
            return
        # The reader first: the last connection of SQLite tidies the file up.
        ended = await reading.stop()
        if await writing.stop() and ended:
            self._database.release()

    # -----------------------------------------------------------------------------------------------------
    # On the lanes

    def _lane(self, name: str, line: _Line) -> _Lane:
        if self._database.inline:
            return InlineLane(self._write, on_end=line.close)
        return ThreadLane(name, self._write, on_end=line.close, cut_off=line.cut_off, patience=self._patience)

    async def _read(self, work: Callable[[Connection], T], *, patience: float | None = None) -> T:
        if self._reading is None:
            raise _not_open()

        def within_transaction(connection: Connection) -> T:
            with _transaction(connection):
                return work(connection)

        return await self._reading.run(lambda: self._read_line.use(within_transaction), patience=patience)

    def _use_reserve(self, work: Callable[[Connection], T]) -> T:
        """Run `work`; on a full disk with as much as it needs of the space that was set aside for it."""
        while True:
            try:
                return self._write_line.use(work)
            except StoreError as error:
                if error.outcome is not StoreOutcome.FULL or not self._database.free_reserve():
                    raise
                log.warning("%s: the disk is full; the reserve is in use", self.where)

    def _set_up(self) -> None:
        self._use_reserve(self._migrate)

    def _migrate(self, connection: Connection) -> None:
        with _transaction(connection) as transaction:
            self._database.lock_schema(connection)
            known = find_migrations(self._database.dialect)
            applied = migrate(connection, known, where=self.where, schema=self._database.schema)
            oldest: int = connection.execute(self._statements.oldest_event).scalar_one()
            _commit(transaction)
        self._trimmed = max(0, oldest - 1)
        for migration in applied:
            log.info("%s: applied migration %04d %s", self.where, migration.number, migration.name)

    def _probe(self, connection: Connection) -> None:
        if self._database.is_full():
            raise disk_full(self.where)
        with _transaction(connection) as transaction:
            self._check(connection)
            if self._was_full:
                connection.execute(self._statements.try_write)
                _commit(transaction)
                self._was_full = False
            else:
                connection.execute(self._statements.try_lock)

    def _acquire(self, connection: Connection, candidate: Candidate, seconds: float) -> Leader:
        try:
            return self._acquire_once(connection, candidate, seconds)
        except exc.DBAPIError as error:
            if not self._database.is_locked_out(error):
                raise
            with _transaction(connection):
                leader = self._leadership.read(connection)
            if leader.holder == candidate.holder:
                raise
        if leader.holder:
            return leader
        # The previous leader hangs in a transaction, stopped or cut off, and its lease has expired: end its writes.
        with _transaction(connection):
            ended = self._database.end_holders(connection)
        log.warning("%s: ended %d sessions that held the leader's row after its time", self.where, ended)
        return self._acquire_once(connection, candidate, seconds)

    def _acquire_once(self, connection: Connection, candidate: Candidate, seconds: float) -> Leader:
        with _transaction(connection) as transaction:
            leader = self._leadership.acquire_leadership(connection, candidate, seconds)
            _commit(transaction)
        return leader

    def _write(self, requests: Sequence[tuple[Batch, int]]) -> Sequence[tuple[Event, ...] | Exception]:
        """Apply batches in one transaction; an answer for each."""
        answers: list[tuple[Event, ...] | Exception] = [()] * len(requests)
        ready: dict[int, Changes] = {}
        for index, (batch, term) in enumerate(requests):
            if term and self._held_term is not None and term != self._held_term[1]:
                answers[index] = LeadershipLostError("")
                continue
            try:
                ready[index] = prepare(batch)
            except Exception as error:  # noqa: BLE001 a batch that cannot be written down fails alone
                answers[index] = _unwritable(error)
        if ready and not self._database.has_room():
            for index in ready:
                answers[index] = disk_full(self.where)
            self._was_full = True
        elif ready:
            stored: Sequence[tuple[Event, ...] | Exception]
            try:
                stored = self._write_line.use(lambda connection: self._transact(connection, tuple(ready.values())))
            except ShoalError as error:
                self._was_full = isinstance(error, StoreError) and error.outcome is StoreOutcome.FULL
                # One for each caller: an exception that is raised in several tasks collects the traceback of all.
                stored = [error, *(_copied(error) for _ in range(len(ready) - 1))]
            for index, answer in zip(ready, stored, strict=True):
                answers[index] = answer
        return answers

    def _transact(self, connection: Connection, group: tuple[Changes, ...]) -> list[tuple[Event, ...] | Exception]:
        trimmed = self._trimmed
        with _transaction(connection) as transaction:
            self._check(connection)
            failures = sql.apply_group(connection, self._statements, group)
            applied = [changes for changes, failure in zip(group, failures, strict=True) if failure is None]
            if not applied:
                return [failure for failure in failures if failure is not None]
            rows: list[Row] = [row for changes in applied for row in changes.event_rows]
            cursor = 0
            if rows:
                last = sql.append_events(connection, self._statements, rows)
                cursor = last - len(rows)
                trimmed = self._trim(connection, last)
            reach("store.commit.before")
            _commit(transaction)
        reach("store.commit.after")
        self._trimmed = trimmed
        self._was_full = False
        answers: list[tuple[Event, ...] | Exception] = []
        for changes, failure in zip(group, failures, strict=True):
            if failure is not None:
                answers.append(failure)
                continue
            answers.append(
                tuple(dataclasses.replace(event, cursor=cursor + at) for at, event in enumerate(changes.events, 1))
            )
            cursor += len(changes.events)
        return answers

    def _check(self, connection: Connection) -> None:
        """Called first in every transaction that writes."""
        if self._held_term is not None:
            self._leadership.check(connection, *self._held_term)
        if self._guard is not None:
            self._guard(connection)

    def _trim(self, connection: Connection, last: int) -> int:
        """Drop the oldest events once a tenth too many are kept, so that few transactions pay for it."""
        if last - self._trimmed <= self._max_events + self._max_events // 10:
            return self._trimmed
        upto = last - self._max_events
        connection.execute(self._statements.trim_events, {"upto": upto})
        return upto


@contextlib.contextmanager
def _transaction(connection: Connection) -> Iterator[Transaction]:
    """A transaction that is undone unless `_commit` was called."""
    transaction = connection.begin()
    try:
        yield transaction
    except BaseException:
        # The first error counts; a connection that cannot even roll back is dropped by `_Line.use`.
        with contextlib.suppress(exc.SQLAlchemyError):
            transaction.rollback()
        raise
    if transaction.is_active:
        transaction.rollback()


def _commit(transaction: Transaction) -> None:
    try:
        transaction.commit()
    except Exception as error:
        raise _CommitFailedError(error) from error


def _copied(error: ShoalError) -> ShoalError:
    same = copy.copy(error)
    same.__cause__ = error.__cause__
    return same


def _unwritable(error: Exception) -> ShoalError:
    if isinstance(error, ShoalError):
        return error
    failure = InternalError(f"the batch cannot be written down: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def disk_full(where: str) -> StoreError:
    """The disk of a store is full."""
    return StoreError(
        f"{where}: the disk is full; nothing was stored",
        outcome=StoreOutcome.FULL,
        hint="make room; the store goes on by itself",
    )


def _not_open() -> StoreError:
    return StoreError("the store is not open")

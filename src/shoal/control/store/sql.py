"""The tables and the statements that both databases share, and how a group of batches is applied with them.

Batches that touch nothing in common are applied together, each table with one statement for all of them, inside one
savepoint. Only when a version moved is the savepoint undone and the group halved, again and again, until the batches
that conflict stand alone and all others are applied. So the common case costs a few statements for hundreds of
batches, and a conflict fails only the batch that it belongs to.

Called by `shoal.control.store.database` with a connection inside a transaction; knows no thread and no commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Executable,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    delete,
    exc,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from shoal.control.store.base import EventPage, EventQuery, Snapshot
from shoal.control.store.coordination import CoordinationTables
from shoal.control.store.rows import (
    Changes,
    Records,
    Row,
    SpecDecoder,
    event_from_row,
    group_from_row,
    job_from_row,
    merge,
    node_from_row,
    observation_from_row,
    revocation_from_row,
    searchable,
    secret_from_row,
    token_from_row,
    workload_from_row,
)
from shoal.core.errors import ConflictError, InternalError, ShoalError
from shoal.model.events import Event
from shoal.model.selectors import Selector
from shoal.model.trust import JoinToken, SecretRecord

T = TypeVar("T")

MAX_PAGE = 10_000
"""The most events that one query returns."""
SCANNED_AT_ONCE = 1000
"""Events that are in memory while labels are looked for."""

_KINDS = {
    "nodes": "node",
    "workloads": "workload",
    "groups": "group",
    "join_tokens": "join token",
    "secrets": "secret",
    "revocations": "revocation",
    "jobs": "job",
}


@dataclass(frozen=True, slots=True)
class RowStatement:
    """One statement for all rows of one kind of change."""

    name: str
    statement: Executable
    #: Each row must hit exactly one stored row; anything less is a conflict.
    exact: bool


class Statements:
    """Tables and statements for one dialect and schema, made once."""

    def __init__(self, dialect: str, *, schema: str | None = None) -> None:
        self._insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect]
        metadata = MetaData(schema=schema)

        def records(name: str, *columns: Column[Any]) -> Table:
            """A table of records with versions: the document, and what queries need beside it."""
            key = Column("id", Text, primary_key=True)
            document = (Column("format", Integer), Column("document", Text))
            return Table(name, metadata, key, Column("version", BigInteger), *columns, *document)

        self.nodes = records("nodes", Column("state", Text), Column("last_beat", BigInteger))
        self.workloads = records(
            "workloads",
            Column("generation", BigInteger),
            Column("node_id", Text),
            Column("group_id", Text),
            Column("desired", Text),
            Column("spec", LargeBinary),
        )
        self.groups = records("groups", Column("generation", BigInteger), Column("desired", Text))
        self.join_tokens = records("join_tokens")
        self.secrets = records("secrets", Column("sealed", LargeBinary))
        self.revocations = records("revocations")
        self.jobs = records(
            "jobs",
            Column("engine", Text),
            Column("state", Text),
            Column("spec", LargeBinary),
            Column("progress", LargeBinary),
        )
        every = (self.nodes, self.workloads, self.groups, self.join_tokens, self.secrets, self.revocations, self.jobs)
        self.versions = {table.name: table for table in every}
        self.observations = Table(
            "observations",
            metadata,
            Column("workload_id", Text, primary_key=True),
            Column("node_id", Text),
            Column("state", Text),
            Column("format", Integer),
            Column("document", Text),
        )
        self.events = Table(
            "events",
            metadata,
            Column("cursor", BigInteger, primary_key=True, autoincrement=False),
            Column("subject_kind", Text),
            Column("subject_id", Text),
            Column("format", Integer),
            Column("document", Text),
        )
        self.meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", BigInteger))
        self.leadership = Table(
            "leadership",
            metadata,
            Column("name", Text, primary_key=True),
            Column("term", BigInteger),
            Column("holder", Text),
            Column("address", Text),
            Column("expires_at", BigInteger),
        )
        self.coordination = CoordinationTables(metadata, self.meta, self._insert)
        self.steps = tuple(self._steps())
        self.add_events = insert(self.events)
        self.trim_events = delete(self.events).where(self.events.c.cursor <= bindparam("upto"))
        self.oldest_event = select(func.coalesce(func.min(self.events.c.cursor), 0))
        self.take_cursors = (
            update(self.meta)
            .where(self.meta.c.name == "event_cursor")
            .values(value=self.meta.c.value + bindparam("count"))
        )
        self.last_cursor = select(self.meta.c.value).where(self.meta.c.name == "event_cursor")
        self.generation_floor = select(self.meta.c.value).where(self.meta.c.name == "generation_floor")
        probe = self.meta.c.name == "probe"
        #: Fails where nothing can be written, and writes nothing.
        self.try_lock = select(self.meta.c.value).where(probe).with_for_update()
        #: Writes for the sake of it.
        self.try_write = update(self.meta).where(probe).values(value=self.meta.c.value + 1)

    def _steps(self) -> Iterator[RowStatement]:
        """Every step, in the order in which a batch is applied."""
        for name, table in self.versions.items():
            yield RowStatement(f"{name}.remove", delete(table).where(*_is_at(table)), exact=True)
        forget = delete(self.observations).where(self.observations.c.workload_id == bindparam("key"))
        yield RowStatement("observations.forget", forget, exact=False)
        for name, table in self.versions.items():
            yield RowStatement(f"{name}.update", update(table).where(*_is_at(table)), exact=True)
            add = self._insert(table).on_conflict_do_nothing()
            # Without this option the number of inserted rows is not kept.
            yield RowStatement(f"{name}.insert", add.execution_options(preserve_rowcount=True), exact=True)
        yield RowStatement("observations.put", self._observe(), exact=False)
        heartbeat = update(self.nodes).where(self.nodes.c.id == bindparam("key"))
        yield RowStatement("nodes.heartbeat", heartbeat, exact=False)
        lower = (self.meta.c.name == "generation_floor", self.meta.c.value < bindparam("floor"))
        for name, statement, exact in self.coordination.steps():
            yield RowStatement(name, statement, exact)
        yield RowStatement("meta.floor", update(self.meta).where(*lower).values(value=bindparam("floor")), exact=False)

    def _observe(self) -> Executable:
        # Reads from workloads: a report that arrives after its workload was removed leaves nothing behind.
        columns = self.observations.c
        source = select(
            self.workloads.c.id,
            bindparam("new_node_id", type_=Text),
            bindparam("new_state", type_=Text),
            bindparam("new_format", type_=Integer),
            bindparam("new_document", type_=Text),
        ).where(self.workloads.c.id == bindparam("key"))
        names = ["workload_id", "node_id", "state", "format", "document"]
        add = self._insert(self.observations).from_select(names, source)
        statement: Executable = add.on_conflict_do_update(
            index_elements=[columns.workload_id], set_={name: add.excluded[name] for name in names[1:]}
        )
        return statement


def _is_at(table: Table) -> tuple[Any, Any]:
    return table.c.id == bindparam("key"), table.c.version == bindparam("expected")


# ---------------------------------------------------------------------------------------------------------
# Applying


class _VersionMovedError(Exception):
    """Within this module: a row of the merged batches did not hit."""


#: What the values of a batch can cause, whatever the state of the database.
_FAULTS_OF_VALUES = (exc.DataError, exc.IntegrityError, exc.ProgrammingError, OverflowError, UnicodeError)


def apply_group(
    connection: Connection, statements: Statements, group: Sequence[Changes]
) -> tuple[ShoalError | None, ...]:
    """Apply each batch or leave it out whole; say for each why it was left out, or None."""
    outcomes: dict[int, ShoalError] = {}
    for run in _disjoint_runs(group):
        _apply_run(connection, statements, run, outcomes)
    return tuple(outcomes.get(id(changes)) for changes in group)


def _disjoint_runs(group: Sequence[Changes]) -> Iterator[list[Changes]]:
    """Cut the group, in its order, where a batch touches what an earlier one of the same run touches."""
    run: list[Changes] = []
    touched: set[tuple[str, str]] = set()
    for changes in group:
        if not touched.isdisjoint(changes.keys):
            yield run
            run, touched = [], set()
        run.append(changes)
        touched |= changes.keys
    if run:
        yield run


def _apply_run(
    connection: Connection, statements: Statements, run: list[Changes], outcomes: dict[int, ShoalError]
) -> None:
    try:
        with connection.begin_nested():
            _execute(connection, statements, merge(run))
    except (_VersionMovedError, *_FAULTS_OF_VALUES) as error:
        if len(run) > 1:
            middle = len(run) // 2
            _apply_run(connection, statements, run[:middle], outcomes)
            _apply_run(connection, statements, run[middle:], outcomes)
        elif isinstance(error, _VersionMovedError):
            outcomes[id(run[0])] = _find_conflict(connection, statements, run[0])
        else:
            outcomes[id(run[0])] = _unstorable(error)


def _execute(connection: Connection, statements: Statements, rows: dict[str, list[Row]]) -> None:
    for step in statements.steps:
        given = rows.get(step.name)
        if given:
            result = connection.execute(step.statement, given)
            if step.exact and result.rowcount != len(given):
                raise _VersionMovedError


def _find_conflict(connection: Connection, statements: Statements, changes: Changes) -> ConflictError:
    """Which row of a batch did not hit. Read after the savepoint was undone."""
    for name, table in statements.versions.items():
        removed = changes.rows.get(f"{name}.remove", [])
        expected = {row["key"]: row["expected"] for row in removed}
        expected |= {row["key"]: row["expected"] for row in changes.rows.get(f"{name}.update", [])}
        for row in changes.rows.get(f"{name}.insert", []):
            expected.setdefault(row["id"], 0)
        for key, version in expected.items():
            found = connection.execute(select(table.c.version).where(table.c.id == key)).scalar()
            if (found or 0) != version:
                return _conflict(_KINDS[name], key, expected=version, found=found)
    return ConflictError("the batch changes one record twice, or somebody changed it meanwhile")


def _conflict(kind: str, key: str, *, expected: int, found: int | None) -> ConflictError:
    if found is None:
        sentence = f"{kind} {key!r} is gone; version {expected} was expected"
    elif expected == 0:
        sentence = f"{kind} {key!r} exists already, at version {found}"
    else:
        sentence = f"{kind} {key!r} is at version {found}; version {expected} was expected"
    return ConflictError(sentence, kind=kind, id=key, expected=expected, found=0 if found is None else found)


def _unstorable(error: Exception) -> ShoalError:
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    failure = InternalError(f"a value of the batch cannot be stored: {type(cause).__name__}: {cause}")
    failure.__cause__ = error
    return failure


# ---------------------------------------------------------------------------------------------------------
# Events


def append_events(connection: Connection, statements: Statements, rows: Sequence[Row]) -> int:
    """Store events after all that were stored before, in order, and return the cursor of the last.

    The row of the last cursor stays locked until the transaction ends: cursors follow the order of commits, without
    gaps, also with other writers.
    """
    connection.execute(statements.take_cursors, {"count": len(rows)})
    last: int = connection.execute(statements.last_cursor).scalar_one()
    first = last - len(rows) + 1
    connection.execute(statements.add_events, [{"cursor": first + index, **row} for index, row in enumerate(rows)])
    return last


def read_events(connection: Connection, statements: Statements, query: EventQuery) -> EventPage:
    """One page of events."""
    table = statements.events
    wanted = select(table.c.cursor, table.c.format, table.c.document).where(table.c.cursor > query.after)
    if query.subject_kind:
        wanted = wanted.where(table.c.subject_kind == searchable(query.subject_kind))
    if query.subject_id:
        wanted = wanted.where(table.c.subject_id == searchable(query.subject_id))
    limit = max(0, min(query.limit, MAX_PAGE))
    order = table.c.cursor.desc() if query.newest else table.c.cursor.asc()
    if query.selector.terms:
        rows = connection.execute(wanted.order_by(order).execution_options(yield_per=SCANNED_AT_ONCE))
        events = list(itertools.islice(_selected(rows, query.selector), limit))
        rows.close()
    else:
        events = [event_from_row(row) for row in connection.execute(wanted.order_by(order).limit(limit))]
    if query.newest:
        events.reverse()
    last = connection.execute(statements.last_cursor).scalar_one()
    oldest = connection.execute(statements.oldest_event).scalar_one()
    # A page that is not full has seen everything, so that the next query need not look at it again.
    exhausted = query.newest or len(events) < limit
    following = last if exhausted else (events[-1].cursor if events else query.after)
    return EventPage(events=tuple(events), next=following, oldest=oldest)


def _selected(rows: Iterable[Any], selector: Selector) -> Iterator[Event]:
    """The events with labels that match. Most that do not are passed over without being decoded."""
    needed = [f'"{key}"' for key in selector.needed_keys]
    for row in rows:
        if all(key in row.document for key in needed):
            event = event_from_row(row)
            if selector.matches(event.labels):
                yield event


# ---------------------------------------------------------------------------------------------------------
# Loading


def load_snapshot(
    connection: Connection, statements: Statements, decode_spec: SpecDecoder, records: Records
) -> Snapshot:
    """Everything, sorted by id."""

    def read(table: Table, make: Callable[[Any], T], key: str = "id") -> tuple[T, ...]:
        return tuple(
            records.of(table.name, getattr(row, key), row, make) for row in _sorted_rows(connection, table, key)
        )

    return Snapshot(
        nodes=read(statements.nodes, node_from_row),
        workloads=read(statements.workloads, lambda row: workload_from_row(row, decode_spec)),
        groups=read(statements.groups, group_from_row),
        observations=read(statements.observations, observation_from_row, "workload_id"),
        revocations=read(statements.revocations, revocation_from_row),
        jobs=read(statements.jobs, job_from_row),
        generation_floor=connection.execute(statements.generation_floor).scalar_one(),
    )


def load_tokens(connection: Connection, statements: Statements) -> tuple[JoinToken, ...]:
    """Every join token, sorted by id."""
    return tuple(token_from_row(row) for row in _sorted_rows(connection, statements.join_tokens))


def load_secrets(
    connection: Connection, statements: Statements, names: Collection[str] | None = None
) -> tuple[SecretRecord, ...]:
    """Every secret, or those with these names, sorted by name."""
    return tuple(secret_from_row(row) for row in _sorted_rows(connection, statements.secrets, only=names))


def _sorted_rows(
    connection: Connection, table: Table, key: str = "id", *, only: Collection[str] | None = None
) -> list[Any]:
    # Sorted here: databases order texts by rules of their own.
    query = select(table) if only is None else select(table).where(table.c[key].in_(sorted(only)))
    return sorted(connection.execute(query), key=lambda row: getattr(row, key))

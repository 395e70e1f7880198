"""Chooses the store by what `--database` says.

Called by the composition root of the control plane. The databases are imported only when they are chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.control.store.base import Store
from shoal.core.errors import InvalidError, problem
from shoal.jobs.workflows import DbosWorkflows, Workflows

if TYPE_CHECKING:
    from shoal.control.store.rows import SpecDecoder

FILE_NAME = "control.db"
"""The name of the SQLite file in the data directory."""

WORKFLOWS_FILE = "jobs.db"
"""The SQLite file of unfinished workflows beside it: each file has one writer."""


def open_store(
    database: str | None,
    data_dir: Path,
    *,
    decode_spec: SpecDecoder,
    max_events: int = 10_000,
) -> Store:
    """The store that `database` names, ready for `await store.open()`.

    Args:
        database: a PostgreSQL URL; None or empty for SQLite in the data directory.
        data_dir: the control plane's own directory.
        decode_spec: rebuilds the spec of a workload from the bytes that were accepted.
        max_events: how many events are kept.
    """
    if not database:
        from shoal.control.store.sqlite import SqliteStore

        return SqliteStore(data_dir / FILE_NAME, decode_spec=decode_spec, max_events=max_events)
    scheme = database.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        from shoal.control.store.postgres import PostgresStore

        return PostgresStore(database, decode_spec=decode_spec, max_events=max_events)
    raise InvalidError(
        [problem("--database", scheme if "://" in database else None, "must be a URL that begins with postgresql://")],
        hint="leave --database out to use SQLite in the data directory",
    )


def open_workflows(database: str | None, data_dir: Path) -> Workflows:
    """Where transitions of jobs are made durable: a file beside the store's, or a schema of the same PostgreSQL."""
    if not database:
        return DbosWorkflows(f"sqlite:///{data_dir.absolute() / WORKFLOWS_FILE}")
    return DbosWorkflows("postgresql+psycopg://" + database.partition("://")[2])

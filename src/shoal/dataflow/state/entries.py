"""The values of keyed state as a table: the same for every backend, so that state moves between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shoal.core.errors import DamagedError
from shoal.dataflow.state.tables import TableState


@dataclass(frozen=True, slots=True)
class Entry:
    """One value."""

    group: int
    namespace: str
    key: bytes
    value: bytes
    #: 0 for never.
    expires_at: int = 0


_SCHEMA = pa.schema(
    {
        "namespace": pa.string(),
        "key": pa.large_binary(),
        "value": pa.large_binary(),
        "expires_at": pa.int64(),
    }
)
_KEYS = ("namespace", "key")


def entries_table(entries: Iterable[Entry], gone: Iterable[tuple[int, str, bytes]] = ()) -> TableState:
    """Values, and (key group, namespace, key) of those that are gone."""
    listed, removed = list(entries), list(gone)
    columns = [
        pa.array([entry.namespace for entry in listed], pa.string()),
        pa.array([entry.key for entry in listed], pa.large_binary()),
        pa.array([entry.value for entry in listed], pa.large_binary()),
        pa.array([entry.expires_at for entry in listed], pa.int64()),
    ]
    keys = [
        pa.array([namespace for _group, namespace, _key in removed], pa.string()),
        pa.array([key for _group, _namespace, key in removed], pa.large_binary()),
    ]
    return TableState(
        pa.table(columns, schema=_SCHEMA),
        np.array([entry.group for entry in listed], np.int64),
        _KEYS,
        pa.table(keys, names=list(_KEYS)),
        np.array([group for group, _namespace, _key in removed], np.int64),
    )


def entries_of(table: TableState) -> Iterator[Entry]:
    """The values of such a table. Raises `DamagedError` for one that is none."""
    if not table.rows.schema.equals(_SCHEMA) or any(column.null_count for column in table.rows.columns):
        raise DamagedError(f"a table of {len(table.rows)} rows is none of values: {table.rows.schema.names}")
    columns = [column.to_pylist() for column in table.rows.columns]
    return (Entry(*row) for row in zip(table.groups.tolist(), *columns, strict=True))

"""The values of a key group as bytes: the same for every backend, so that state moves between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from shoal.core.errors import DamagedError
from shoal.dataflow.state.blobs import pack, unpack


@dataclass(frozen=True, slots=True)
class Entry:
    """One value."""

    namespace: str
    key: bytes
    value: bytes
    #: 0 for never.
    expires_at: int = 0


_SCHEMA = pa.schema(
    {
        "namespace": pa.dictionary(pa.int32(), pa.string()),
        "key": pa.large_binary(),
        "value": pa.large_binary(),
        "expires_at": pa.int64(),
    }
)


#: Numbers of key groups have two bytes.
_GROUPS = 1 << 16


def pack_entries(group: int, entries: Iterable[Entry]) -> bytes:
    """Values as bytes."""
    listed = list(entries)
    columns = [
        pa.array([entry.namespace for entry in listed], pa.string()).dictionary_encode().cast(_SCHEMA.types[0]),
        pa.array([entry.key for entry in listed], pa.large_binary()),
        pa.array([entry.value for entry in listed], pa.large_binary()),
        pa.array([entry.expires_at for entry in listed], pa.int64()),
    ]
    return pack({"entries": pa.table(columns, schema=_SCHEMA)}, group=group)


def unpack_entries(content: bytes) -> tuple[int, Iterator[Entry]]:
    """The inverse: the key group, and its values. Raises `DamagedError`, as `unpack` does."""
    blob = unpack(content)
    group, table = blob.facts.get("group"), blob.tables.get("entries")
    if not isinstance(group, int) or not 0 <= group < _GROUPS:
        raise DamagedError(f"state is of no key group: {str(group)[:40]}")
    if table is None or not table.schema.equals(_SCHEMA) or any(column.null_count for column in table.columns):
        raise DamagedError(f"state of key group {group} has no table of values", group=group)
    columns = [column.to_pylist() for column in table.columns]
    return group, (Entry(*row) for row in zip(*columns, strict=True))

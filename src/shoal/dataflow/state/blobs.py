"""State as bytes: several named tables and a few facts in one piece.

The bytes are Arrow IPC streams one after the other; the name of a table lies in its schema's metadata. Called by every
operator that snapshots and restores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from shoal.core.errors import DamagedError, UnsupportedError

Table: TypeAlias = Any

_NAME = b"shoal.state"
_FACTS = b"shoal.facts"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Blob:
    """What a piece of state holds."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def pack(tables: Mapping[str, Table], **facts: Any) -> bytes:
    """Tables and JSON facts as bytes."""
    sink = pa.BufferOutputStream()
    first = pa.schema([], metadata={_FACTS: json.dumps({"format": _FORMAT, **facts}).encode()})
    _write(sink, first.empty_table())
    for name, table in tables.items():
        metadata = {**(table.schema.metadata or {}), _NAME: name.encode()}
        _write(sink, table.replace_schema_metadata(metadata))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpack(content: bytes) -> Blob:
    """The inverse. Raises `DamagedError` for bytes that are none, and `UnsupportedError` for another format."""
    facts: Any = {}
    tables: dict[str, Table] = {}
    try:
        for table in _read(content):
            metadata = dict(table.schema.metadata or {})
            if _FACTS in metadata:
                facts = json.loads(metadata[_FACTS])
            else:
                name = metadata.pop(_NAME).decode()
                tables[name] = table.replace_schema_metadata(metadata or None)
    except (pa.ArrowException, OSError, ValueError, KeyError, RecursionError) as error:
        raise DamagedError(f"{len(content)} bytes of state cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise DamagedError(f"{len(content)} bytes of state cannot be read: their facts are no mapping")
    if facts.get("format") != _FORMAT:
        raise UnsupportedError(f"state of format {facts.get('format')} cannot be read", format=facts.get("format"))
    return Blob(tables, facts)


def _read(content: bytes) -> Iterator[Table]:
    source = pa.BufferReader(content)
    while source.tell() < len(content):
        with pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        # Arrow trusts what it reads: offsets that lead elsewhere would end the process. Names may be no text.
        table.validate(full=True)
        _ = table.schema.names
        yield table


def _write(sink: Any, table: Table) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)

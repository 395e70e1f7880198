"""Folders whose names are values: `day=2026-01-01/shop=north`. How values become names, and names values again.

A name is text, so the files say what types the columns had: a mark in the metadata of their schema. Folders that
others wrote have no mark; there a column is of whole numbers when all its values are, else text. Called by
`shoal.dataflow.connectors.files.sources` and `shoal.dataflow.connectors.files.sinks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import Schema

#: The columns that the folders of one file name; None is the null of the column.
FolderValues: TypeAlias = Mapping[str, bytes | None]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_MARK = b"shoal.partition_by"
#: What file systems take as one name, in bytes.
_LONGEST = 255
#: Without signs in front and zeros in front: "007" is text.
_WHOLE = re.compile(rb"0|-?[1-9][0-9]{0,17}")


def folder_name(column: str, value: Any) -> str:
    """`column=value`, with every character that a path could trip over written as `%XX`."""
    name = f"{_escaped(column)}={_NULL if value is None else _escaped(value)}"
    if len(name.encode()) > _LONGEST:
        rule = f"is too long for the name of a folder, which has at most {_LONGEST} bytes"
        hint = "partition by a column with shorter values"
        raise InvalidError([problem(f"partition_by: column {column!r}", value, rule)], hint=hint)
    return name


def _escaped(value: Any) -> str:
    if isinstance(value, bytes):
        return "".join(f"%{each:02X}" for each in value)
    return "".join(
        each if each.isalnum() or each in "-_.: " else "".join(f"%{byte:02X}" for byte in each.encode())
        for each in str(value)
    )


def with_partition_types(rest: Schema, schema: Schema, names: Sequence[str]) -> dict[bytes, bytes]:
    """The metadata of a file's columns, and in it the types of those that are in the names of its folders."""
    types = pa.schema([schema.field(name) for name in names]).remove_metadata()
    return {**(rest.metadata or {}), _MARK: types.serialize().to_pybytes()}


def folder_values(path: str, base: str) -> dict[str, bytes | None]:
    """The values in the names of the folders between a path that a user gave and a file below it."""
    below = path.removeprefix(base).lstrip("/").split("/")[:-1] if path.startswith(base) else []
    found: dict[str, bytes | None] = {}
    for part in below:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote_to_bytes(name).decode(errors="replace")] = None if value == _NULL else unquote_to_bytes(value)
    return found


def partition_fields(values: Sequence[FolderValues], schema: Schema) -> list[Any]:
    """The columns that only the names of folders have, not the files."""
    names = dict.fromkeys(name for each in values for name in each if name not in schema.names)
    mark = (schema.metadata or {}).get(_MARK)
    marked = pa.ipc.read_schema(pa.py_buffer(mark)) if mark else pa.schema([])
    return [
        marked.field(name) if name in marked.names else pa.field(name, _kind([each.get(name) for each in values]))
        for name in names
    ]


def _kind(values: Sequence[bytes | None]) -> Any:
    there = [each for each in values if each is not None]
    return pa.int64() if there and all(_WHOLE.fullmatch(each) for each in there) else pa.utf8()


def folder_scalar(value: bytes | None, kind: Any) -> Any:
    """The value of a folder's name as one of a column."""
    if value is None:
        return pa.scalar(None, kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(value, kind)
    return pa.scalar(value.decode(), pa.utf8()).cast(kind)

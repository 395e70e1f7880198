"""The JSON that nodes of the tree hold, byte for byte as Monolith's agents write it.

Keys stand in the order of the fields, with `", "` and `": "` between them, ASCII only, None as null and enums by value.
Reading ignores unknown keys, and missing ones take the default of the field. Called by the records of `replicas`,
`models` and `mirror`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TypeVar

from shoal.core.errors import InvalidError, problem
from shoal.core.shape import build, to_mapping
from shoal.discovery.store import MAX_DATA_BYTES

T = TypeVar("T")


def write_record(record: object) -> bytes:
    """The bytes of a frozen dataclass. Raises `InvalidError` for text that nobody could read again."""
    fields = to_mapping(record)
    text = json.dumps(fields)
    if "\\ud" in text:
        _check_text(fields, type(record).__name__)
    return text.encode()


def read_record(cls: type[T], data: bytes, *, at: str) -> T:
    """Read such bytes. `at` is the path of the node. Raises `InvalidError` that names the field."""
    if len(data) > MAX_DATA_BYTES:
        raise InvalidError([problem(at, len(data), f"must be at most {MAX_DATA_BYTES:,} bytes")])
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidError([problem(at, data, "must be JSON")]) from None
    if not isinstance(given, Mapping):
        raise InvalidError([problem(at, given, "must be a JSON object")])
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    fields = {key: value for key, value in given.items() if key in known}
    if b"\\" in data or not data.isascii():
        _check_text(fields, at)
    return build(cls, fields, at=at)


def _check_text(fields: Mapping[str, object], at: str) -> None:
    """Refuse halves of characters, which JSON can write and nothing behind it can."""
    for key, value in fields.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidError([problem(f"{at}.{key}", value, "must be text that UTF-8 can write")]) from None

"""Fields that are stored under the name of an earlier version, so that programs one version apart read each other.

Used by the records of this package; read by `shoal.control.store.codec`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")

_KEY = "stored_as"


def stored_as(name: str, *, default: T) -> T:
    """A dataclass field that is called `name` in stored documents."""
    made: Any = dataclasses.field(default=default, metadata={_KEY: name})
    return made  # type: ignore[no-any-return]


def stored_name(field: dataclasses.Field[Any]) -> str:
    """What a field is called in stored documents."""
    return str(field.metadata.get(_KEY, field.name))

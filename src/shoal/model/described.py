"""The base of enums that people see: each member has a name and a sentence. docs/reference is written from them."""

from __future__ import annotations

import enum
from typing import Self


class Described(enum.StrEnum):
    """A name with a sentence that says what it means."""

    description: str

    def __new__(cls, name: str, description: str) -> Self:
        """A member with its sentence."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.description = description
        return made

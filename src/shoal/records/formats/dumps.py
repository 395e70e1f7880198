"""Reads `.dump` files: a message written out as lines of keys and values, without indentation.

    "feature":
    0:
    "fid":
    0: "1"
    "name": "fc_a"
    line_id:
    "actions":
    0: 1

Nothing but the message's own fields says what belongs to what. A key goes to the nearest open message that has a field
of that name and no value for it yet. A number alone opens the next message of the nearest open list of messages; a
number with a value is the next entry of the nearest open list of values. Called by `shoal.records.formats.documents`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from shoal.core.errors import InvalidError, problem

#: What some dumps call the message itself.
_ROOT = "root"


@dataclass(slots=True)
class _Open:
    """A message or a list that still takes keys or entries."""

    #: Of the message; None for a list of values.
    descriptor: Descriptor | None
    value: dict[str, Any] | list[Any]
    #: Whether the entries of a list are messages.
    of_messages: bool = False


@dataclass(slots=True)
class _Reader:
    path: str
    open: list[_Open] = field(default_factory=list)

    def wrong(self, number: int, line: str, rule: str) -> InvalidError:
        return InvalidError([problem(f"{self.path}, line {number}", line, rule)])

    def key(self, name: str, value: Any, *, has_value: bool) -> bool:
        """Take a key, and say whether there was a place for it."""
        if not (name.isascii() and name.isidentifier()):  # protobuf cannot even look for some texts
            return False
        for depth in range(len(self.open) - 1, -1, -1):
            each = self.open[depth]
            if each.descriptor is None or not isinstance(each.value, dict) or name in each.value:
                continue
            found = each.descriptor.fields_by_name.get(name)
            if found is None or (has_value and (found.is_repeated or _is_message(found))):
                continue
            del self.open[depth + 1 :]
            self._put(each.value, found, value, has_value=has_value)
            return True
        return False

    def _put(self, into: dict[str, Any], found: FieldDescriptor, value: Any, *, has_value: bool) -> None:
        if has_value:
            into[found.name] = value
        elif found.is_repeated:
            into[found.name] = []
            self.open.append(_Open(found.message_type, into[found.name], of_messages=_is_message(found)))
        elif _is_message(found):
            into[found.name] = {}
            self.open.append(_Open(found.message_type, into[found.name]))
        else:
            into[found.name] = None  # a value that is not there is the default

    def entry(self, index: int, value: Any, *, has_value: bool) -> bool:
        """Take an entry of a list, and say whether there was a place for it."""
        for depth in range(len(self.open) - 1, -1, -1):
            each = self.open[depth]
            if isinstance(each.value, list) and each.of_messages is not has_value and len(each.value) == index:
                del self.open[depth + 1 :]
                each.value.append(value if has_value else {})
                if not has_value:
                    self.open.append(_Open(each.descriptor, each.value[-1]))
                return True
        return False


def parse_dump(text: str, descriptor: Any, *, path: str) -> dict[str, Any]:
    """The message in a dump, as JSON would have it. Raises `InvalidError` with the line."""
    root: dict[str, Any] = {}
    reader = _Reader(path, [_Open(descriptor, root)])
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip().rstrip(",")
        if not stripped or stripped in "{}[]":
            continue
        name, colon, rest = _key_of(stripped)
        if not colon:
            raise reader.wrong(number, line, "must be a key or a number, and a colon")
        has_value = bool(rest)
        value = _value_of(rest)
        if name.isascii() and name.isdigit():
            taken = len(name) < 10 and reader.entry(int(name), value, has_value=has_value)
            rule = "must be the next entry of a list"
        else:
            taken = reader.key(name, value, has_value=has_value) or (name == _ROOT and not has_value and not root)
            rule = f"must be a field of {descriptor.full_name} or of a message in it, once"
        if not taken:
            raise reader.wrong(number, line, rule)
    return root


def _key_of(line: str) -> tuple[str, str, str]:
    """The key, the colon, and the rest. Values may contain colons, keys do not; some files lack a quote of a key."""
    name, colon, rest = line.partition(":")
    return name.strip().strip("\"'"), colon, rest.strip().rstrip("[{").strip()


def _value_of(text: str) -> Any:
    """As JSON would read it; a bare word is itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip("\"'")


def _is_message(found: FieldDescriptor) -> bool:
    return found.message_type is not None

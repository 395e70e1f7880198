"""A record: one row as per-record functions see it, with `order["total"]` and `order.total`."""

from __future__ import annotations

from typing import Any

from shoal.dataflow.errors import near


class Record(dict[str, Any]):
    """A row. A mapping in every way, whose values can be reached as attributes, too.

    A column that is called like a method of mappings, such as `items`, is reached as `order["items"]` only.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            # Copying and pickling ask for names of their own, for each record.
            known = "" if name.startswith("__") else f"; {near(name, self, 'columns')}"
            raise AttributeError(f"this record has no {name!r}{known}", name=name, obj=self) from None
        return _reachable(value)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"this record has no {name!r}", name=name, obj=self) from None


def _reachable(value: Any) -> Any:
    """Records inside of a record, alone or in a list, can be reached the same way."""
    if type(value) is dict:
        return Record(value)
    if type(value) is list and value and type(value[0]) is dict:
        return [Record(each) if type(each) is dict else each for each in value]
    return value

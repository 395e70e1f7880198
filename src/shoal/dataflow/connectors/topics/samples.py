"""The columns of a topic that declares none, from the values of a few of its records.

Called by `shoal.dataflow.connectors.topics.endpoints`. Raises `ValueError` (Arrow's errors are such) for values that
say none.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from shoal.dataflow.connectors.files.text import zoned
from shoal.dataflow.language.elements import Schema

#: So many kinds of columns are tried as those that the others have to fit.
_LEADERS = 4


def columns_of_objects(values: Sequence[bytes], *, leaves_out: bool) -> Schema:
    """The columns of JSON objects. With `leaves_out` those count that go together with most of the others."""
    bad = [value for value in values if not _is_object(value)]
    if not bad:
        try:
            return _read(values)
        except pa.ArrowInvalid:
            if not leaves_out:
                raise
    elif not leaves_out:
        raise ValueError(f"{bad[0][:100]!r} is not one JSON object")
    chosen = _which_fit(values)
    if not chosen:
        raise ValueError("none of those that were looked at is one JSON object")
    return _read([values[at] for at in chosen])


def columns_of_streams(values: Sequence[bytes], *, leaves_out: bool) -> Schema:
    """The columns of streams of Arrow: those of the first that is one."""
    for number, value in enumerate(values, 1):
        try:
            return pa.ipc.open_stream(pa.py_buffer(value)).schema
        except (pa.ArrowException, OSError) as error:
            if not leaves_out or number == len(values):
                raise ValueError(str(error)) from error
    raise ValueError("no record has a value")


def _which_fit(values: Sequence[bytes]) -> list[int]:
    """The numbers of values that go together, in order: as many as are found from one of the most common columns."""
    alone: dict[int, str] = {}
    for at, value in enumerate(values):
        if _is_object(value):
            with contextlib.suppress(pa.ArrowInvalid):
                alone[at] = str(_read([value]))
    common = Counter(alone.values())
    found: list[int] = []
    for kind, _count in common.most_common(_LEADERS):
        order = sorted(alone, key=lambda at: (alone[at] != kind, -common[alone[at]]))
        chosen: list[int] = []
        _add_fitting(values, order, chosen)
        found = max(found, chosen, key=len)
    return sorted(found)


def _add_fitting(values: Sequence[bytes], some: list[int], chosen: list[int]) -> None:
    """Choose those that go together with what is chosen already."""
    try:
        _read([values[at] for at in [*chosen, *some]])
    except pa.ArrowInvalid:
        if len(some) > 1:
            half = len(some) // 2
            _add_fitting(values, some[:half], chosen)
            _add_fitting(values, some[half:], chosen)
    else:
        chosen.extend(some)


def _is_object(value: bytes) -> bool:
    """Whether a value is one JSON object. Arrow's reader must not be asked: a bare null ends the process."""
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def _read(values: Sequence[bytes]) -> Schema:
    import pyarrow.json

    found = pyarrow.json.read_json(pa.BufferReader(b"\n".join(values))).schema
    return zoned(found, values)

"""Keys as bytes and back. Equal keys give equal bytes, on every machine and in every version.

A key is a tuple of plain values: null, truth, whole number, float, text, bytes, decimal, or a date, time or duration.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from shoal.core.errors import DamagedError, InternalError, InvalidError, problem

_SIZE = struct.Struct(">I")
_FLOAT = struct.Struct(">d")
_MICROSECOND = dt.timedelta(microseconds=1)


def encode_key(values: tuple[Any, ...]) -> bytes:
    """The bytes of a key: for each value its kind, its length and itself."""
    parts: list[bytes] = []
    for value in values:
        kind, content = _encode(value)
        parts += (kind, _SIZE.pack(len(content)), content)
    return b"".join(parts)


def decode_key(content: bytes) -> tuple[Any, ...]:
    """The inverse. Raises `DamagedError`, and `InternalError` for a kind of value that is not known."""
    values: list[Any] = []
    place = 0
    try:
        while place < len(content):
            kind = content[place : place + 1]
            size = _SIZE.unpack_from(content, place + 1)[0]
            start = place + 1 + _SIZE.size
            values.append(_decode(kind, content[start : start + size]))
            place = start + size
    except (struct.error, ValueError, OverflowError, InvalidOperation) as error:
        raise DamagedError(f"a key of the state cannot be read: {content[:80]!r}") from error
    if place != len(content):
        raise DamagedError(f"a key of the state is torn: {len(content)} bytes of {place}")
    return tuple(values)


def _encode(value: Any) -> tuple[bytes, bytes]:  # noqa: PLR0911 - one line for each kind of value
    match value:
        case None:
            return b"n", b""
        case bool():
            return b"t", b"1" if value else b"0"
        case int():
            return b"i", str(value).encode()
        case float():
            canonical = float("nan") if value != value else value + 0.0  # noqa: PLR0124 - only NaN differs from itself
            return b"f", _FLOAT.pack(canonical)
        case str():
            return b"s", value.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b", value
        case Decimal():
            return b"d", str(value).encode()
        case dt.datetime() | dt.date() | dt.time():
            return _TEMPORAL[type(value)], value.isoformat().encode()
        case dt.timedelta():
            return b"u", str(value // _MICROSECOND).encode()
    raise InvalidError([problem("key", value, "must be made of plain values")])


_TEMPORAL: dict[type, bytes] = {dt.datetime: b"D", dt.date: b"y", dt.time: b"m"}

_DECODERS: dict[bytes, Callable[[bytes], Any]] = {
    b"n": lambda _content: None,
    b"t": lambda content: content == b"1",
    b"i": int,
    b"f": lambda content: _FLOAT.unpack(content)[0],
    b"s": lambda content: content.decode("utf-8", "surrogatepass"),
    b"b": lambda content: content,
    b"d": lambda content: Decimal(content.decode()),
    b"D": lambda content: dt.datetime.fromisoformat(content.decode()),
    b"y": lambda content: dt.date.fromisoformat(content.decode()),
    b"m": lambda content: dt.time.fromisoformat(content.decode()),
    b"u": lambda content: dt.timedelta(microseconds=int(content)),
}


def _decode(kind: bytes, content: bytes) -> Any:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise InternalError(f"a key holds a value of unknown kind {kind!r}")
    return decoder(content)

"""JSON lines to the keys and values of records. Called by `shoal topic feed`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from shoal.core.errors import InvalidError, problem

#: Bytes of one line at most: what brokers refuse anyway is not held in memory.
MAX_LINE = 16 * 2**20
#: Bytes that are read at once. What is there is taken, so that a slow producer's lines are written as they come.
_CHUNK = 2**18


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines that came together: each is one record."""

    values: list[bytes]
    #: None when no field was asked for.
    keys: list[bytes | None] | None


def read_lines(stream: BinaryIO, *, key: str = "", name: str = "stdin") -> Iterator[Lines]:
    """The lines of a stream, as they come. Empty lines are skipped.

    Raises `InvalidError`, which names the line, for one that is no JSON object; lines before it were given out.
    """
    number, rest = 0, b""
    while chunk := _read(stream):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            _refuse(name, number + len(whole) + 1, rest, f"must have at most {MAX_LINE} bytes")
        if whole:
            yield from _lines(whole, number, key, name)
            number += len(whole)
    yield from _lines([rest], number, key, name)


def _read(stream: BinaryIO) -> bytes:
    """What is there; waits for the first byte only, where the stream can say that."""
    read1 = getattr(stream, "read1", None)
    found: bytes = stream.read(_CHUNK) if read1 is None else read1(_CHUNK)
    return found


def _lines(lines: list[bytes], before: int, key: str, name: str) -> Iterator[Lines]:
    """Those that are good up to the first bad one, and then what is wrong with that."""
    values: list[bytes] = []
    keys: list[bytes | None] = []
    refused: InvalidError | None = None
    for number, line in enumerate(lines, start=before + 1):
        content = line.strip()
        if not content:
            continue
        try:
            keys.append(_key(_object(content, name, number), key, name, number))
        except InvalidError as error:
            refused = error
            break
        values.append(content)
    if values:
        yield Lines(values, keys if key else None)
    if refused is not None:
        raise refused


def _object(line: bytes, name: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        _refuse(name, number, line, f"must be a JSON object on one line: {reason}")
    if not isinstance(found, dict):
        _refuse(name, number, line, "must be a JSON object")
    return found


def _key(row: dict[str, Any], key: str, name: str, number: int) -> bytes | None:
    """The key as streams write it: texts as they are, numbers as their digits; none for null."""
    if not key:
        return None
    if key not in row:
        _refuse(
            name, number, ", ".join(row).encode(errors="replace"), f"must have the field {key!r}, which --key names"
        )
    found = row[key]
    if found is None:
        return None
    if isinstance(found, dict | list):
        _refuse(name, number, json.dumps(found).encode(), f"field {key!r} must be a text or a number to be a key")
    try:
        return (found if isinstance(found, str) else json.dumps(found)).encode()
    except UnicodeEncodeError:
        _refuse(name, number, json.dumps(found).encode(), f"field {key!r} must be text that UTF-8 can write")


def _refuse(name: str, number: int, line: bytes, rule: str) -> NoReturn:
    shown = line[:80].decode(errors="replace") + ("…" if len(line) > 80 else "")
    raise InvalidError([problem(f"{name}, line {number}", shown, rule)], what="feed")


def no_constant(word: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(f"JSON has no {word}")

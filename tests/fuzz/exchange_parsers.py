"""The part of the registry for exchanges: frames come from a socket, and whoever connects may send anything."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from shoal.core.errors import PreconditionError
from shoal.exchange.base import Control
from shoal.exchange.errors import StaleEpochError, read_error, write_error
from shoal.exchange.frames import (
    HEADER,
    Kind,
    pack_control,
    pack_count,
    pack_header,
    read_control,
    read_count,
    read_header,
)
from shoal.testing.fuzz import ParserCase, changed_bytes
from tests.fuzz.inputs import blobs, flipped_bytes

EVERY = frozenset(Kind)
HEADERS = tuple(pack_header(kind, 1, 0) for kind in Kind)
CONTROL = pack_control(Control(3, 7, b"body"))
ERROR = write_error(StaleEpochError("job", offered=1, current=2))


def _header(content: bytes) -> object:
    """A reader always has as many bytes as a header takes."""
    return read_header(content[: HEADER.size].ljust(HEADER.size, b"\0"), EVERY)


def _around(*goods: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(blobs, *(kind(good) for good in goods for kind in (changed_bytes, flipped_bytes)))


def _error(content: Any) -> object:
    """Whatever came: it is an error that can be raised and shown."""
    found = read_error(content)
    return str(found), found.hint, found.facts


EXCHANGE_PARSERS: dict[str, ParserCase] = {
    "shoal.exchange.frames.read_header": ParserCase(
        _header,
        _around(*HEADERS) | st.integers(0, 255).map(lambda kind: struct.pack("<2sBBIQ", b"SX", 1, kind, 1, 0)),
        good=HEADERS,
    ),
    "shoal.exchange.frames.read_count": ParserCase(read_count, _around(pack_count(5)), good=(pack_count(5),)),
    "shoal.exchange.frames.read_control": ParserCase(read_control, _around(CONTROL), good=(CONTROL,)),
    "shoal.exchange.errors.read_error": ParserCase(
        _error, _around(ERROR, write_error(PreconditionError("no"))), (), (ERROR, b"rubbish")
    ),
}

"""The part of the registry for exchanges and control links: bytes come from a socket, and a peer may send anything."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from shoal.core.errors import PreconditionError
from shoal.dataflow.execution.hosts.control_messages import (
    COORDINATOR_MESSAGES,
    decode_from_coordinator,
    decode_from_host,
    encode,
)
from shoal.dataflow.execution.hosts.error_texts import rebuild_error
from shoal.exchange.base import Control
from shoal.exchange.errors import StaleEpochError, read_error, write_error
from shoal.exchange.flight.calls import as_body, read_message
from shoal.exchange.frames import (
    HEADER,
    VERSION,
    Kind,
    pack_control,
    pack_count,
    pack_header,
    pack_opened,
    read_control,
    read_count,
    read_header,
    read_opened,
)
from shoal.exchange.places import Place, read_place
from shoal.testing.fuzz import ParserCase, changed_bytes
from tests.fuzz.inputs import blobs, flipped_bytes
from tests.unit.dataflow.execution.control_samples import SAMPLES

EVERY = frozenset(Kind)
HEADERS = tuple(pack_header(kind, 1, 0) for kind in Kind)
CONTROL = pack_control(Control(3, 7, b"body"))
OPENED = pack_opened(5, 3)
PLACE = Place("h", "/s.sock", "10.0.0.1:1").text
ERROR = write_error(StaleEpochError("job", offered=1, current=2))


def _header(content: bytes) -> object:
    """A reader always has as many bytes as a header takes."""
    return read_header(content[: HEADER.size].ljust(HEADER.size, b"\0"), EVERY)


def _around(*goods: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(blobs, *(kind(good) for good in goods for kind in (changed_bytes, flipped_bytes)))


def _texts(good: str) -> st.SearchStrategy[str]:
    changed = _around(good.encode()).map(lambda content: content.decode(errors="replace"))
    return st.one_of(st.text(), changed, st.text().map("exchange:".__add__))


class _Chunk:
    """A message as Flight hands it over."""

    def __init__(self, metadata: bytes | None, data: Any) -> None:
        self.app_metadata = None if metadata is None else pa.py_buffer(metadata)
        self.data = data


BODIES = (
    as_body(b"some bytes"),
    as_body(b"some bytes").slice(3, 4),
    as_body(b""),
    pa.record_batch([], names=[]),
    pa.record_batch({"bytes": pa.array([1, None], pa.uint8())}),
    pa.record_batch({"bytes": pa.array([1, 2], pa.int8())}),
    pa.record_batch({"a": ["text"], "b": [1]}),
)
_CHUNKS = st.builds(_Chunk, st.none() | blobs, st.none() | st.sampled_from(BODIES))


def _error(content: Any) -> object:
    """Whatever came: it is an error that can be raised and shown."""
    found = read_error(content)
    return str(found), found.hint, found.facts


def _host_message(content: bytes) -> object:
    """An error that crossed is rebuilt, too: its type and its words are the peer's."""
    message = decode_from_host(content)
    return rebuild_error(message.error) if hasattr(message, "error") else message


_SAMPLES = {type(each): encode(each) for each in SAMPLES.values()}
COMMANDS = tuple(content for kind, content in _SAMPLES.items() if kind in COORDINATOR_MESSAGES.values())
HOST_MESSAGES = tuple(content for kind, content in _SAMPLES.items() if kind not in COORDINATOR_MESSAGES.values())

EXCHANGE_PARSERS: dict[str, ParserCase] = {
    "shoal.exchange.frames.read_header": ParserCase(
        _header,
        _around(*HEADERS) | st.integers(0, 255).map(lambda kind: struct.pack("<2sBBIQ", b"SX", VERSION, kind, 1, 0)),
        good=HEADERS,
    ),
    "shoal.exchange.flight.calls.read_message": ParserCase(
        lambda chunk: [bytes(each) for each in read_message(chunk)], _CHUNKS, good=(_Chunk(b"x", BODIES[0]),)
    ),
    "shoal.exchange.frames.read_opened": ParserCase(read_opened, _around(OPENED), good=(OPENED,)),
    "shoal.exchange.places.read_place": ParserCase(read_place, _texts(PLACE), good=(PLACE,)),
    "shoal.exchange.frames.read_count": ParserCase(read_count, _around(pack_count(5)), good=(pack_count(5),)),
    "shoal.exchange.frames.read_control": ParserCase(read_control, _around(CONTROL), good=(CONTROL,)),
    "shoal.dataflow.execution.hosts.control_messages.decode_from_coordinator": ParserCase(
        decode_from_coordinator, _around(*COMMANDS), good=COMMANDS
    ),
    "shoal.dataflow.execution.hosts.control_messages.decode_from_host": ParserCase(
        _host_message, _around(*HOST_MESSAGES), good=HOST_MESSAGES
    ),
    "shoal.exchange.errors.read_error": ParserCase(
        _error, _around(ERROR, write_error(PreconditionError("no"))), (), (ERROR, b"rubbish")
    ),
}

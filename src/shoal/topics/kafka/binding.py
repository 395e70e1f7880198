"""The C interface of the client library that is loaded already, for what its Python interface does message by message.

Messages are structs that lie in the client's memory. Here they are seen as columns: one call takes many, a few numpy
operations read their fields, and Arrow copies their bytes. `shoal.topics.kafka.native_feed` and
`shoal.topics.kafka.native_outbox` are the only ones to call it; `shoal.topics.kafka.interface` says where it can be
used.

All of it is the documented, stable interface of librdkafka, but for two things: where a Python client keeps its handle,
which is checked for each client by asking the handle for the client's name; and that one setting of a running consumer
is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.int64]

#: `rd_kafka_message_t`.
MESSAGE = np.dtype(
    [
        ("error", "<i4"),
        ("_gap", "<i4"),
        ("topic", "<i8"),
        ("partition", "<i4"),
        ("_gap_too", "<i4"),
        ("payload", "<i8"),
        ("size", "<i8"),
        ("key", "<i8"),
        ("key_size", "<i8"),
        ("offset", "<i8"),
        ("private", "<i8"),
    ]
)
_LUMP = np.dtype((np.void, MESSAGE.itemsize))

#: Kinds of events.
DELIVERED, LOGGED, FAILED = 0x1, 0x4, 0x8
#: The client is to copy what it is given.
COPY = 0x2
#: What `rd_kafka_message_headers` says of a message with headers.
HAS_HEADERS = 0

#: Values of so many bytes lie in the view itself.
_INLINE = 12
#: Views count from the beginning of a window of the memory; their numbers have 32 bits.
_WINDOW_BITS = 30
_PAGE_MASK = 4096 - 1
_LARGEST_BUFFER = 2**31 - 1


class Binding:
    """The functions, with their types. Those of `quick` keep Python's lock: they are called for each message."""

    def __init__(self, path: str) -> None:
        library, quick = ctypes.CDLL(path), ctypes.PyDLL(path)

        def bound(owner: Any, name: str, result: Any, *arguments: Any) -> Any:
            function = getattr(owner, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, list(arguments)
            return function

        pointer = c_void_p
        self.name = bound(quick, "name", c_char_p, pointer)
        self.describe = bound(quick, "err2str", c_char_p, c_int)
        self.fatal_error = bound(quick, "fatal_error", c_int, pointer, c_char_p, c_size_t)
        self._settings_of = bound(quick, "conf", pointer, pointer)
        self._set_on_error = bound(quick, "conf_set_error_cb", None, pointer, pointer)
        # Queues
        self.queue_new = bound(library, "queue_new", pointer, pointer)
        self.queue_of_partition = bound(library, "queue_get_partition", pointer, pointer, c_char_p, c_int32)
        self.queue_main = bound(library, "queue_get_main", pointer, pointer)
        self.queue_consumer = bound(library, "queue_get_consumer", pointer, pointer)
        self.queue_forward = bound(library, "queue_forward", None, pointer, pointer)
        self.queue_destroy = bound(library, "queue_destroy", None, pointer)
        self.queue_poll = bound(library, "queue_poll", pointer, pointer, c_int)
        # Messages
        self.consume = bound(library, "consume_batch_queue", c_size_t, pointer, c_int, pointer, c_size_t)
        self.headers_of = bound(quick, "message_headers", c_int, pointer, pointer)
        self.header = bound(
            quick,
            "header_get_all",
            c_int,
            pointer,
            c_size_t,
            POINTER(c_char_p),
            POINTER(c_void_p),
            POINTER(c_size_t),
        )
        self.timestamp_of = bound(quick, "message_timestamp", c_int64, pointer, pointer)
        self.destroy = bound(quick, "message_destroy", None, pointer)
        # Topics
        self.topic_new = bound(library, "topic_new", pointer, pointer, c_char_p, pointer)
        self.topic_name = bound(quick, "topic_name", c_char_p, pointer)
        self.topic_destroy = bound(library, "topic_destroy", None, pointer)
        self.produce = bound(library, "produce_batch", c_int, pointer, c_int32, c_int, pointer, c_int)
        self.waiting = bound(quick, "outq_len", c_int, pointer)
        # Events
        self.event_kind = bound(quick, "event_type", c_int, pointer)
        self.event_count = bound(quick, "event_message_count", c_size_t, pointer)
        self.event_messages = bound(library, "event_message_array", c_size_t, pointer, pointer, c_size_t)
        self.event_error = bound(quick, "event_error", c_int, pointer)
        self.event_words = bound(quick, "event_error_string", c_char_p, pointer)
        self.event_fatal = bound(quick, "event_error_is_fatal", c_int, pointer)
        self.event_log = bound(quick, "event_log", c_int, pointer, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int))
        self.event_destroy = bound(library, "event_destroy", None, pointer)

    def stop_calling_back(self, handle: int) -> None:
        """Have a client log errors of partitions for which it would call its Python interface back.

        That call only works inside the interface's own calls, and ends the process otherwise.
        """
        self._set_on_error(self._settings_of(handle), None)

    def place_of(self, client: Any) -> int | None:
        """Where the handle of a producer or consumer should be; nothing is looked at there."""
        found = c_void_p.from_address(id(client) + object.__basicsize__).value
        return found if found and found % 8 == 0 else None

    def handle_of(self, client: Any) -> int | None:
        """The handle of a producer or consumer; None when it is not where it is thought to be."""
        found = self.place_of(client)
        name = b"" if found is None else self.name(found) or b""
        return found if b"#producer-" in name or b"#consumer-" in name else None


# ---------------------------------------------------------------------------------------------------------
# What lies in the client's memory


class _Span:
    """Some of the memory of this process, as numpy takes it. Only what is looked at has to be there."""

    def __init__(self, address: int, count: int, kind: str, *, step: int | None = None) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (count,),
            "typestr": kind,
            "strides": None if step is None else (step,),
            "version": 3,
        }


def read_messages(pointers: Words) -> Any:
    """The structs that pointers lead to, as an array of `MESSAGE`."""
    lowest = int(pointers.min())
    # One may begin at each word. Taken as lumps of bytes they are copied whole, not field by field.
    span = np.asarray(_Span(lowest, (int(pointers.max()) - lowest) // 8 + 1, _LUMP.str, step=8))
    return span[(pointers - lowest) >> 3].view(MESSAGE)


def in_order(messages: Any, order: Any) -> Any:
    """Messages in another order."""
    return messages.view(_LUMP)[order].view(MESSAGE)


def read_bytes(addresses: Words, sizes: Words) -> Any:
    """A binary column of what lies at the addresses; null where that is 0. It is copied."""
    count = len(addresses)
    absent = addresses == 0
    missing = int(absent.sum())
    if missing == count:
        return pa.nulls(count, pa.binary())
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = sizes
    long = sizes > _INLINE
    buffers = _point(views, long, addresses, sizes)
    if not long.all():
        _inline(views, np.flatnonzero(~long & (sizes > 0)), addresses, sizes)
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little")) if missing else None
    column = pa.Array.from_buffers(pa.binary_view(), count, [valid, pa.py_buffer(views), *buffers], missing)
    return column.cast(pa.binary())


def _point(views: npt.NDArray[np.int32], long: Any, addresses: Words, sizes: Words) -> Sequence[Any]:
    """Let the views of long values point to them, in as many buffers as it takes."""
    rows = slice(None) if long.all() else np.flatnonzero(long)
    places, lengths = addresses[rows], sizes[rows]
    if not len(places):
        return []
    base, end = int(places.min()), int((places + lengths).max())
    if end - base <= _LARGEST_BUFFER:
        views[rows, 3] = places - base
        return [pa.foreign_buffer(base, end - base)]
    windows, which = np.unique(places >> _WINDOW_BITS, return_inverse=True)
    starts = windows << _WINDOW_BITS
    views[rows, 2] = which
    views[rows, 3] = places - starts[which]
    ends = [int((places + lengths)[which == at].max()) for at in range(len(windows))]
    return [pa.foreign_buffer(int(start), end - int(start)) for start, end in zip(starts, ends, strict=True)]


def _inline(views: npt.NDArray[np.int32], rows: Any, addresses: Words, sizes: Words) -> None:
    """Put short values into their views."""
    if not len(rows):
        return
    places, lengths = addresses[rows], sizes[rows]
    lowest = int(places.min())
    span = np.asarray(_Span(lowest, int((places + lengths).max()) - lowest, "|u1"))
    # Nothing behind the end of a value is read: it might be behind the end of the memory.
    steps = np.arange(_INLINE)
    content = span[(places - lowest)[:, None] + np.minimum(steps, lengths[:, None] - 1)]
    content[steps >= lengths[:, None]] = 0
    views.view(np.uint8).reshape(len(views), 16)[rows, 4:] = content


def may_have_headers(messages: Any) -> npt.NDArray[np.bool_]:
    """Which messages may have headers; the others have none.

    The client leaves values where they came in, and in Kafka's format the number of headers follows the value: it is
    one byte, and 0 where there are none. In formats from before there were headers anything may follow. That byte is
    read only where it is in the same page of memory as the value, so that it is there in any case.
    """
    ends = messages["payload"] + messages["size"]
    asked = (messages["size"] == 0) | (messages["payload"] == 0) | (ends & _PAGE_MASK == 0)
    ends = np.where(asked, messages["payload"].max(), ends)
    lowest = int(ends.min())
    if not lowest:
        return np.ones(len(messages), np.bool_)
    span = np.asarray(_Span(lowest, int(ends.max()) - lowest + 1, "|u1"))
    found: npt.NDArray[np.bool_] = asked | (span[ends - lowest] != 0)
    return found


def address_of(array: Any) -> int:
    """Where a numpy array begins."""
    return int(array.ctypes.data)


def addresses_of(column: Any) -> tuple[Words, Words]:
    """Where each value of a binary column lies, 0 for a null; and its size. The column has to outlive their use."""
    count = len(column)
    _, offsets, content = column.buffers()
    if offsets is None or column.null_count == count:
        return np.zeros(count, np.int64), np.zeros(count, np.int64)
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
    # An empty value is not none: it has an address, whatever lies there.
    base = content.address if content is not None and content.address else _NOWHERE.address
    places, sizes = base + bounds[:-1], np.diff(bounds)
    if column.null_count:
        absent = column.is_null().to_numpy(zero_copy_only=False)
        places[absent], sizes[absent] = 0, 0
    return places, sizes


_NOWHERE = pa.py_buffer(b"\0" * 8)

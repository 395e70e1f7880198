"""A fuzz kit for servers: wrong requests of every kind, calls with raw bytes, and checks of the answers.

    data = draw(wrong_requests(good))                 bytes, from nearly right to noise
    outcome = await send(channel, method, [data])     the replies, or the error that the caller sees
    check_typed(outcome)                              whatever it is, it is no bug
    before = census(server)                           how many things the server keeps, by where it keeps them

A parser has a `ParserCase`: what it may be given, and the errors that it may raise. Used by the tests of this
repository, and of programs that add services to it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

from shoal.core.errors import DeadlineError, InternalError, InvalidError, ShoalError
from shoal.testing.messages import changed, messages
from shoal.wire.transport import Cardinality, Channel, Method

#: A stream that goes on is left after so many replies, or so many seconds.
MOST_REPLIES = 50
STREAM_SECONDS = 2.0


# ---------------------------------------------------------------------------------------------------------
# Requests


def wrong_requests(good: Message) -> st.SearchStrategy[bytes]:
    """Bytes to send where `good` would be right: the same with a field changed, arbitrary messages, and noise."""
    right = good.SerializeToString()
    return st.one_of(
        changed(good).map(_packed),
        changed(good).map(_packed),
        messages(type(good)).map(_packed),
        st.builds(_cut, st.just(right), st.integers(0, len(right)), st.binary(max_size=8)),
        st.binary(max_size=64),
    )


def _packed(message: Message) -> bytes:
    return message.SerializeToString()


def _cut(data: bytes, length: int, more: bytes) -> bytes:
    return data[:length] + more


class _Raw:
    """Bytes that go over the wire as they are, where a message is expected."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name that protobuf gave it
        return self._data


# ---------------------------------------------------------------------------------------------------------
# Calls


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended, as its caller sees it."""

    replies: tuple[Message, ...] = ()
    error: ShoalError | None = None

    @property
    def invalid(self) -> bool:
        """Whether the request was refused as broken: by a status, or in the answer where the contract has it so."""
        answered = any(getattr(reply, "problems", ()) for reply in self.replies)
        return isinstance(self.error, InvalidError) or answered


async def send(
    channel: Channel,
    method: Method[Any, Any],
    data: Sequence[bytes],
    *,
    metadata: Mapping[str, str] | None = None,
) -> CallOutcome:
    """Call a method of any kind with raw bytes. Raises nothing but what is a bug of the transport itself."""
    replies: list[Message] = []
    try:
        if method.cardinality is Cardinality.UNARY:
            replies.append(await channel.call(method, _Raw(data[0]), metadata=metadata))
        else:
            await _read_stream(channel, method, data, metadata, replies)
    except ShoalError as error:
        return CallOutcome(tuple(replies), error)
    return CallOutcome(tuple(replies))


async def _read_stream(
    channel: Channel,
    method: Method[Any, Any],
    data: Sequence[bytes],
    metadata: Mapping[str, str] | None,
    replies: list[Message],
) -> None:
    if method.cardinality is Cardinality.SERVER_STREAM:
        stream = channel.stream(method, _Raw(data[0]), metadata=metadata)
    else:
        stream = channel.converse(method, _each(data), metadata=metadata)
    try:
        async with asyncio.timeout(STREAM_SECONDS):
            async for reply in stream:
                replies.append(reply)
                if len(replies) >= MOST_REPLIES:
                    break
    except TimeoutError:
        pass
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


async def _each(data: Iterable[bytes]) -> AsyncIterator[Any]:
    for each in data:
        yield _Raw(each)


def check_typed(outcome: CallOutcome, what: str = "a call") -> None:
    """A call ends with an answer, or with an error that tells the caller something."""
    error = outcome.error
    if error is None:
        return
    assert not isinstance(error, InternalError), f"the server has a bug: {what}"
    assert not isinstance(error, DeadlineError), f"the server did not answer: {what}"
    assert error.message, f"{type(error).__name__} says nothing: {what}"
    assert not isinstance(error, InvalidError) or error.problems, f"no field is named: {what}"


# ---------------------------------------------------------------------------------------------------------
# What a server keeps


def census(*roots: object, ignored: Iterable[str] = ()) -> Counter[str]:
    """How many things are kept in each collection that can be reached from objects of this package, by its place.

    Records are frozen and count as one thing each; what is reached by two ways counts once.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    skipped = frozenset(ignored)
    waiting: deque[tuple[str, object]] = deque((type(root).__name__, root) for root in roots)
    while waiting:
        place, value = waiting.popleft()
        if id(value) in seen or place.rpartition(".")[2] in skipped:
            continue
        seen.add(id(value))
        if isinstance(value, dict | set | frozenset | list | tuple | deque):
            found[place] += len(value)
            inside = value.values() if isinstance(value, dict) else value
            waiting.extend((f"{place}[]", each) for each in inside if _is_ours(each) or isinstance(each, dict | set))
        elif _is_ours(value):
            waiting.extend((f"{place}.{name}", each) for name, each in _attributes(value))
    return +found


def _is_ours(value: object) -> bool:
    cls = type(value)
    if not cls.__module__.startswith("shoal.") or isinstance(value, type | Message):
        return False
    frozen = dataclasses.is_dataclass(cls) and getattr(cls, "__dataclass_params__").frozen  # noqa: B009 - no stub has it
    return not frozen


def _attributes(value: object) -> list[tuple[str, object]]:
    names = [*getattr(value, "__dict__", {})]
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.extend([slots] if isinstance(slots, str) else slots)
    return [(name, getattr(value, name)) for name in names if name != "__dict__" and hasattr(value, name)]


# ---------------------------------------------------------------------------------------------------------
# Parsers


@dataclass(frozen=True, slots=True)
class ParserCase:
    """A parser, what it may be given, and the errors that it documents."""

    parse: Callable[[Any], object]
    inputs: st.SearchStrategy[Any]
    errors: tuple[type[BaseException], ...] = (InvalidError,)
    #: Something that must be accepted, so that the case cannot rot into one that refuses everything.
    good: Sequence[Any] = field(default=())


def check_parser(case: ParserCase, given: Any) -> None:
    """The parser takes it, or raises one of the errors that it documents."""
    raised: BaseException | None = None
    try:
        case.parse(given)
    except case.errors as error:
        raised = error
    assert not isinstance(raised, InvalidError) or raised.problems, f"{raised!r} names no field"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(("", "10s", "1e400", "²", "a\x00b", "\ud800", "9" * 5000)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
"""Whatever JSON, YAML or TOML can be read as."""


@st.composite
def changed_values(draw: st.DrawFn, good: Any) -> Any:
    """A plain value with one of its parts, at any depth, left out or replaced by something else."""
    if not draw(st.integers(0, 3)):
        return draw(JSON_VALUES)
    if isinstance(good, dict) and good:
        key = draw(st.sampled_from(sorted(good, key=str)))
        if not draw(st.integers(0, 4)):
            return {name: value for name, value in good.items() if name != key}
        return {**good, key: draw(changed_values(good[key]))}
    if isinstance(good, list) and good:
        index = draw(st.integers(0, len(good) - 1))
        return [*good[:index], draw(changed_values(good[index])), *good[index + 1 :]]
    return draw(JSON_VALUES)


def changed_text(good: str) -> st.SearchStrategy[str]:
    """A text with a stretch of it replaced by something else."""
    pieces = st.text(max_size=6) | st.sampled_from(("\x00", "\n", "\ud800", "٣", "-", "9" * 40, "..", "/", ":", "]"))
    ends = st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))
    return st.builds(lambda at, piece: good[: min(at)] + piece + good[max(at) :], ends, pieces)


def changed_bytes(good: bytes) -> st.SearchStrategy[bytes]:
    """Bytes with a stretch of them replaced by something else."""
    ends = st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))
    return st.builds(lambda at, piece: good[: min(at)] + piece + good[max(at) :], ends, st.binary(max_size=6))

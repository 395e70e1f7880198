"""Converts errors to gRPC statuses and back, by one table.

A server converts what a handler raised to a `Status`; a client converts it to the same exception. The status message is
the error's own sentence, so that foreign clients can show it. Type, facts and hint travel in the trailer
`x-shoal-error-bin` (`shoal.v1.ErrorDetail`), the broken rules of an `InvalidError` in `x-shoal-invalid-bin`
(`shoal.v1.InvalidRequest`). A status without them, from a foreign server or from the network, is read by its code.
Everything is cut to fit into the 8 KiB that gRPC allows for metadata.

Called by `server.py`, `channel.py` and `local.py`; does not import grpc.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from shoal.core import errors
from shoal.core.errors import InvalidError, Problem, ShoalError
from shoal.wire.pb.shoal.v1 import run_pb2 as run

ERROR_TRAILER = "x-shoal-error-bin"
INVALID_TRAILER = "x-shoal-invalid-bin"

# The message is percent-encoded and the trailers are base64 on their way: 2,048 + 4/3 × (1,536 + 1,792) bytes and the
# headers around them stay below 8 KiB.
MAX_MESSAGE_BYTES = 2048
MAX_DETAIL_BYTES = 1536
MAX_PROBLEMS_BYTES = 1792
_MAX_FACT = 200
_MAX_HINT = 400
_MAX_FACTS = 16


class Code(enum.IntEnum):
    """gRPC's status codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


#: The table. A subclass goes by its nearest ancestor; what is not in it is a bug of the server.
CODES: dict[type[ShoalError], Code] = {
    errors.InvalidError: Code.INVALID_ARGUMENT,
    errors.NotFoundError: Code.NOT_FOUND,
    errors.ConflictError: Code.ABORTED,
    errors.PreconditionError: Code.FAILED_PRECONDITION,
    errors.ExhaustedError: Code.RESOURCE_EXHAUSTED,
    errors.DeniedError: Code.PERMISSION_DENIED,
    errors.UnauthenticatedError: Code.UNAUTHENTICATED,
    errors.UnavailableError: Code.UNAVAILABLE,
    errors.DeadlineError: Code.DEADLINE_EXCEEDED,
    errors.UnsupportedError: Code.UNIMPLEMENTED,
    errors.InternalError: Code.INTERNAL,
}

#: Which error a bare code becomes: the table turned round, and codes that only others use.
_BY_CODE: dict[Code, type[ShoalError]] = {code: cls for cls, code in CODES.items()} | {
    Code.CANCELLED: errors.UnavailableError,
    Code.UNKNOWN: errors.InternalError,
    Code.ALREADY_EXISTS: errors.ConflictError,
    Code.OUT_OF_RANGE: errors.InvalidError,
    Code.DATA_LOSS: errors.InternalError,
}

#: Types that may be rebuilt from their name, with the code each belongs to.
_BY_NAME: dict[str, tuple[type[ShoalError], Code]] = {
    cls.__name__: (cls, code)
    for base, code in CODES.items()
    for cls in (base, *(each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, base)))
}


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended: what the wire carries of an error."""

    code: Code
    message: str = ""
    trailers: Mapping[str, bytes] = field(default_factory=dict)


OK = Status(Code.OK)


def status_of(error: BaseException) -> Status:
    """The status that tells a caller of `error`. Of a bug it tells nothing but that there was one."""
    base = next((cls for cls in type(error).__mro__ if cls in CODES), None)
    if base is None or base is errors.InternalError or not isinstance(error, ShoalError):
        return Status(
            Code.INTERNAL, "internal error; the server's log has the details", _detail(errors.InternalError, {}, "")
        )
    message = error.message
    if base is errors.NotFoundError and "not found" not in message.lower():
        message = f"not found: {message}"
    named = next(cls for cls in type(error).__mro__ if cls.__name__ in _BY_NAME)
    trailers = _detail(named, error.facts, error.hint)
    if isinstance(error, InvalidError):
        trailers[INVALID_TRAILER] = _pack_problems(error.problems)
    return Status(CODES[base], _shorten(message), trailers)


def error_of(status: Status) -> ShoalError:
    """The exception that a status stands for, of the type that the server raised if it said so."""
    cls = _BY_CODE.get(status.code, errors.InternalError)
    if status.code is Code.UNKNOWN and "not found" in status.message.lower():
        # A foreign agent answers so for a workload that it does not have: plain text, no code.
        cls = errors.NotFoundError
    detail = _unpack_detail(status.trailers.get(ERROR_TRAILER, b""))
    named = _BY_NAME.get(detail.type)
    if named is not None and named[1] is status.code:
        cls = named[0]
    message = status.message or status.code.name.lower().replace("_", " ")
    if issubclass(cls, InvalidError):
        invalid = InvalidError(_unpack_problems(status.trailers.get(INVALID_TRAILER, b"")), hint=detail.hint)
        return _tell(invalid, message, detail)
    return _tell(cls.__new__(cls), message, detail)


#: What gRPC says of an answer over HTTP/2 that is not of a gRPC server. Its code follows from the number.
_NOT_GRPC = "Received http2 header with status:"


def explain(status: Status, *, address: str, method: str, timeout: float | None) -> ShoalError:
    """The exception for a call that failed. What the network says by itself gets the address and the method added."""
    if ERROR_TRAILER not in status.trailers:
        if status.message.startswith(_NOT_GRPC):
            number = status.message.removeprefix(_NOT_GRPC).strip()
            return errors.UnavailableError(
                f"{address} cannot be reached: an HTTP server or proxy answers there with status {number}, not gRPC",
                hint="check the address; a proxy in between must pass gRPC on",
                address=address,
            )
        if status.code in (Code.UNAVAILABLE, Code.CANCELLED):
            reason = status.message or "the call was ended by the other side"
            return errors.UnavailableError(
                f"{address} cannot be reached: {reason}", hint=_advice(reason), address=address
            )
        if status.code is Code.DEADLINE_EXCEEDED:
            limit = "its time limit" if timeout is None else f"{timeout:g} s"
            return errors.DeadlineError(
                f"{method} at {address} took longer than {limit}", address=address, method=method
            )
    return error_of(status)


def _advice(reason: str) -> str:
    """What to look at when there is no connection. A peer that turns our certificate down just closes the socket."""
    text = reason.lower()
    if any(sign in text for sign in ("handshake", "verif", "certificate", "socket closed", "connection reset")):
        return "if the program there is running, check that both sides have certificates of one authority, or neither"
    return "check the address, and that the program there is running"


def _tell(error: ShoalError, message: str, detail: run.ErrorDetail) -> ShoalError:
    # The constructors of the subclasses build the sentence from facts; here the sentence is known already.
    ShoalError.__init__(error, message, hint=detail.hint)
    error.facts = dict(detail.facts)
    return error


def _detail(cls: type[ShoalError], facts: Mapping[str, str], hint: str) -> dict[str, bytes]:
    detail = run.ErrorDetail(type=cls.__name__, hint=_cut(hint, _MAX_HINT))
    for name, value in list(facts.items())[:_MAX_FACTS]:
        detail.facts[_cut(name, 64)] = _cut(value, _MAX_FACT)
        if detail.ByteSize() > MAX_DETAIL_BYTES:
            del detail.facts[_cut(name, 64)]
            break
    return {ERROR_TRAILER: detail.SerializeToString(deterministic=True)}


def _pack_problems(problems: tuple[Problem, ...]) -> bytes:
    """As many problems as fit, and a last one that counts the rest."""
    packed = run.InvalidRequest()
    for index, each in enumerate(problems):
        field_problem = run.FieldProblem(
            field=_cut(each.field, 400), value=_cut(each.value, 200), rule=_cut(each.rule, 400)
        )
        packed.problems.append(field_problem)
        if packed.ByteSize() > MAX_PROBLEMS_BYTES:
            del packed.problems[-1]
            packed.problems.append(run.FieldProblem(field="…", rule=f"{len(problems) - index} more problems"))
            break
    return packed.SerializeToString(deterministic=True)


def _unpack_problems(data: bytes) -> Iterator[Problem]:
    try:
        packed = run.InvalidRequest.FromString(data)
    except DecodeError:
        return
    for each in packed.problems:
        yield Problem(field=each.field, value=each.value, rule=each.rule)


def _unpack_detail(data: bytes) -> run.ErrorDetail:
    try:
        return run.ErrorDetail.FromString(data)
    except DecodeError:
        return run.ErrorDetail()


def _cut(text: str, most: int) -> str:
    """At most `most` bytes of UTF-8; what cannot be written so becomes a question mark."""
    data = text.encode("utf-8", "replace")
    if len(data) > most:
        data = data[: most - 3].decode("utf-8", "ignore").encode() + "…".encode()
    return data.decode("utf-8")


def _shorten(message: str) -> str:
    """A message that fits the status header, where every byte that is not plain ASCII takes three."""
    message = _cut(message, MAX_MESSAGE_BYTES)
    while sum(1 if 32 <= byte < 127 and byte != ord("%") else 3 for byte in message.encode()) > MAX_MESSAGE_BYTES:
        message = f"{message[: len(message) * 3 // 4]}…"
    return message

"""The service that the conformance suite of transports talks to, and every error that it can raise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from shoal.core import errors
from shoal.core.errors import (
    InternalError,
    InvalidError,
    NotFoundError,
    Problem,
    ShoalError,
    StaleGenerationError,
    problem,
)
from shoal.wire.transport import Call, Cardinality, Method

NAME = "shoal.testing.Parrot"
LARGE = 64 * 1024

SAY = Method(NAME, "Say", StringValue, StringValue)
FAIL = Method(NAME, "Fail", StringValue, StringValue)
WAIT = Method(NAME, "Wait", StringValue, StringValue)
ASK = Method(NAME, "Ask", StringValue, StringValue)
GROW = Method(NAME, "Grow", BytesValue, BytesValue)
COUNT = Method(NAME, "Count", StringValue, StringValue, Cardinality.SERVER_STREAM)
FLOOD = Method(NAME, "Flood", StringValue, BytesValue, Cardinality.SERVER_STREAM)
CHAT = Method(NAME, "Chat", StringValue, StringValue, Cardinality.BOTH_STREAM)
UNSERVED = Method(NAME, "Unserved", StringValue, StringValue)
UNHEARD_OF = Method(NAME, "UnheardOf", StringValue, StringValue)
#: The same method as a careless client sees it: its requests are not what the server expects.
MANGLED = Method(NAME, "Say", BytesValue, StringValue)

SERVED = (SAY, FAIL, WAIT, ASK, GROW, COUNT, FLOOD, CHAT, UNSERVED)


def raisable_errors() -> dict[str, ShoalError]:
    """One error of every type that may cross the wire as itself, with everything that it can carry."""
    plain = {
        name: cls(f"it is {name}", hint="do something else", color="blue")
        for name, cls in vars(errors).items()
        if isinstance(cls, type)
        and issubclass(cls, ShoalError)
        and cls.__init__ is ShoalError.__init__
        and cls not in (ShoalError, InternalError)
    }
    return plain | {
        "InvalidError": InvalidError(
            [problem("spec.type", "wat", "must be one of a, b"), Problem("spec.slots", "-1", "must be 0 or more")],
            what="workload",
            hint="read the schema",
        ),
        "NotFoundError": NotFoundError("workload", "web", hint="list them"),
        "StaleGenerationError": StaleGenerationError("web", offered=3, highest=4),
        "SessionSupersededError": errors.SessionSupersededError("n1"),
    }


class Parrot:
    """The service that the suite talks to."""

    def __init__(self) -> None:
        self.waiting = 0
        self.cancelled = asyncio.Event()
        self.sent = 0
        self.heard: list[str] = []

    async def say(self, request: StringValue, _call: Call) -> StringValue:
        """Say the same."""
        return request

    async def fail(self, request: StringValue, _call: Call) -> StringValue:
        """Raise the error of that name; a bug for a name that is none."""
        error = raisable_errors().get(request.value)
        if error is None:
            raise ZeroDivisionError("secret: the password is 1234")
        raise error

    async def wait(self, _request: StringValue, _call: Call) -> StringValue:
        """Never answer."""
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return StringValue()

    async def ask(self, request: StringValue, call: Call) -> StringValue:
        """What the call says of itself."""
        answers = {
            "method": call.method,
            "peer": call.peer,
            "time left": "none" if call.time_left is None else f"{call.time_left:.3f}",
        }
        return StringValue(value=answers.get(request.value, call.metadata.get(request.value, "")))

    async def grow(self, request: BytesValue, _call: Call) -> BytesValue:
        """Answer with as many bytes as the request says in text."""
        return BytesValue(value=bytes(int(request.value)) if request.value.isdigit() else request.value)

    async def count(self, request: StringValue, _call: Call) -> AsyncIterator[StringValue]:
        """Count up to the number; past it fail if the request says so, or go on for ever without one."""
        most, _, then = request.value.partition(" ")
        number = 0
        try:
            while not most or number < int(most):
                number += 1
                self.sent = number
                yield StringValue(value=str(number))
            if then:
                raise NotFoundError("number", str(number + 1))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        except GeneratorExit:
            self.cancelled.set()
            raise

    async def flood(self, _request: StringValue, _call: Call) -> AsyncIterator[BytesValue]:
        """Send large messages without end."""
        while True:
            self.sent += 1
            yield BytesValue(value=bytes(LARGE))

    async def chat(self, requests: AsyncIterator[StringValue], _call: Call) -> AsyncIterator[StringValue]:
        """Say everything twice, until told to stop."""
        try:
            async for request in requests:
                self.heard.append(request.value)
                if request.value == "stop":
                    return
                if request.value == "fail":
                    raise NotFoundError("word", "fail")
                yield StringValue(value=f"{request.value} {request.value}")
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@dataclass
class Tally:
    """An `RpcObserver` that remembers."""

    seen: list[tuple[str, str]] = field(default_factory=list)

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Remember."""
        assert seconds >= 0
        self.seen.append((method, code))

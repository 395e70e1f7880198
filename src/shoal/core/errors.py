"""The exception tree. Everything that Shoal raises on purpose is one of these.

    ShoalError
    ├── InvalidError               a request or a file broke rules; lists every one of them
    │   └── CorruptError           bytes are not what their format says; has the file and the offset
    ├── NotFoundError              the named thing does not exist
    ├── ConflictError              a compare-and-set lost: read again and decide again
    ├── PreconditionError          the state does not allow it
    │   ├── StaleGenerationError   a command of an older generation than one already accepted
    │   ├── SessionSupersededError a newer session holds this node id
    │   ├── NotLeaderError         another control plane leads; its address is among the facts
    │   ├── StaleTermError         a command of a control plane that no longer leads
    │   └── MisroutedError         the call was meant for another node
    ├── ExhaustedError             a bound was reached: memory, disk, queue, message size
    ├── UnauthenticatedError       who calls is not known: no certificate, or one that says nothing here
    ├── DeniedError                the caller's role does not allow it
    ├── UnavailableError           the other side cannot be reached now; try again
    │   └── DamagedError           a file that this process lives by can no longer be read
    ├── DeadlineError              it took longer than allowed
    ├── UnsupportedError           this build or this peer cannot do it
    └── InternalError              a bug of ours

An error carries facts as fields, survives pickling and crosses the wire (`shoal.wire.status`): the caller of
an RPC catches the same type that the server raised. `retryable` says whether the same call may succeed later.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

MAX_SHOWN_VALUE = 80

# What was given may be megabytes, or nested a thousand deep: it is never written out in full to be cut afterwards.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = 6
_SHORT.maxstring = _SHORT.maxother = MAX_SHOWN_VALUE


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: which field, what was given, and what it should have been."""

    field: str
    value: str
    rule: str

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.field}: {self.rule} (got {self.value})" if self.value else f"{self.field}: {self.rule}"


def problem(field: str, value: object, rule: str) -> Problem:
    """Describe a broken rule, with the value cut to a length that fits a line."""
    shown = "" if value is None else _shown(value)
    if len(shown) > MAX_SHOWN_VALUE:
        shown = f"{shown[:MAX_SHOWN_VALUE]}…"
    return Problem(field=field, value=shown, rule=rule)


def _shown(value: object) -> str:
    if isinstance(value, str | bytes):
        return repr(value[: MAX_SHOWN_VALUE + 1])
    try:
        return _SHORT.repr(value)
    except (ValueError, RecursionError):  # such as a whole number of more digits than Python agrees to print
        return f"<{type(value).__name__}>"


class ShoalError(Exception):
    """Root of the tree.

    Attributes:
        message: what happened, as one line without a trailing period.
        hint: what the reader can do about it, or an empty string.
        facts: the values that the sentence was made from.
        details: more lines for a person, each with a label, such as the rows that a step failed on.
    """

    retryable: ClassVar[bool] = False
    details: tuple[tuple[str, str], ...] = ()

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, str] = {name: str(value) for name, value in facts.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors differ from type to type; what they leave behind does not.
        return _rebuild, (type(self), self.args), dict(self.__dict__)


def _rebuild(cls: type[ShoalError], args: tuple[Any, ...]) -> ShoalError:
    return cls.__new__(cls, *args)


class InvalidError(ShoalError):
    """Bad input. Nothing was changed. `problems` lists every broken rule, not only the first."""

    problems: tuple[Problem, ...]

    def __init__(self, problems: Iterable[Problem], *, what: str = "", hint: str = "") -> None:
        self.problems = tuple(problems)
        sentence = "; ".join(str(each) for each in self.problems)
        super().__init__(f"{what}: {sentence}" if what else sentence, hint=hint)


class CorruptError(InvalidError):
    """Bytes that are not what their format says: cut off, damaged or made up.

    Attributes:
        path: the file or stream.
        offset: the byte at which the bad part begins.
    """

    def __init__(self, path: str, offset: int, rule: str, *, value: object = None, hint: str = "") -> None:
        super().__init__([problem(f"{path}, byte {offset}", value, rule)], hint=hint)
        self.path = path
        self.offset = offset
        self.facts.update(file=path, offset=str(offset))


class NotFoundError(ShoalError):
    """The named thing does not exist. The text always contains "not found": foreign schedulers look for it."""

    def __init__(self, kind: str, name: str, *, hint: str = "") -> None:
        super().__init__(f"{kind} {name!r} not found", hint=hint, kind=kind, name=name)


class ConflictError(ShoalError):
    """Somebody else changed the same thing first."""

    retryable = True


class PreconditionError(ShoalError):
    """The state of the thing does not allow this."""


class StaleGenerationError(PreconditionError):
    """A command from an older ownership of the workload."""

    def __init__(self, workload_id: str, *, offered: int, highest: int) -> None:
        super().__init__(
            f"workload {workload_id!r}: generation {offered} is older than {highest}, which was accepted already",
            workload_id=workload_id,
            offered=offered,
            highest=highest,
        )


class SessionSupersededError(PreconditionError):
    """Another agent registered under the same node id after this one."""

    def __init__(self, node_id: str) -> None:
        super().__init__(
            f"node {node_id!r}: this session was superseded by a newer registration",
            hint="two agents use one --node-id; stop one of them, or restart this one to take the id back",
            node_id=node_id,
        )


class NotLeaderError(PreconditionError):
    """This control plane does not lead. Changes go to the leader."""

    def __init__(self, leader: str) -> None:
        super().__init__(
            f"this control plane does not lead; {leader or 'nobody'} does",
            hint="ask the leader" if leader else "try again in a few seconds",
            leader=leader,
        )


class StaleTermError(PreconditionError):
    """A command of a control plane whose term is over."""

    def __init__(self, *, offered: int, highest: int) -> None:
        super().__init__(f"term {offered} is over: term {highest} has begun", offered=offered, highest=highest)


class MisroutedError(PreconditionError):
    """A call for one node reached the agent of another."""


class ExhaustedError(ShoalError):
    """A bound was reached."""


class UnauthenticatedError(ShoalError):
    """Nobody knows who is calling. With other credentials the same call may be welcome."""


class DeniedError(ShoalError):
    """The caller may not do this."""


class UnavailableError(ShoalError):
    """The other side cannot be reached, or cannot serve now."""

    retryable = True


class DamagedError(UnavailableError):
    """What was written to disk can no longer be read. Nothing gets better by itself."""

    retryable = False


class DeadlineError(ShoalError):
    """It took longer than allowed; whether it happened is not known."""

    retryable = True


class UnsupportedError(ShoalError):
    """This build, this node or this peer cannot do it."""


class InternalError(ShoalError):
    """A bug. This should never happen."""

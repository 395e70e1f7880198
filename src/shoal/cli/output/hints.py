"""What to do about an error that does not say so itself: one place, by the kind of the error and its facts.

An error is a sentence and a hint. Whoever raises one knows best what helps, and says it; where that is the same for all
errors of a kind, it is here. Called by `shoal.cli.output` for every error that is shown, and by commands whose flags
have other names than the fields of a request.
"""

from __future__ import annotations

import contextvars
import dataclasses
import re
from collections.abc import Callable, Mapping

from shoal.core.errors import (
    ConflictError,
    DeadlineError,
    DeniedError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)

command: contextvars.ContextVar[str] = contextvars.ContextVar("command", default="shoal")
"""What was called, such as `shoal node get`."""

_LISTS = {
    "node": "`shoal node list` shows those there are",
    "workload": "`shoal workload list` shows those there are",
    "group": "`shoal group list` shows those there are",
    "secret": "`shoal secret list` shows those there are",
    "join token": "`shoal token list` shows those there are",
    "file": "check the path",
}
_ABOUT = (("workload_id", "workload"), ("node_id", "node"), ("group_id", "group"))
_KIND = re.compile(r"(?:not found: )?(node|workload|group|secret|join token|file) .*not found")
#: Apply and Delete answer a refusal with one sentence, which has the hint at its end.
_TAIL = re.compile(r"(?P<message>.+) \((?P<hint>[^()]+)\)")


def told(error: ShoalError) -> tuple[str, str]:
    """The sentence and the hint of an error, each in its place."""
    if error.hint:
        return error.message, error.hint
    if isinstance(error, PreconditionError) and (tail := _TAIL.fullmatch(error.message)) is not None:
        return tail["message"], tail["hint"]
    for kind, advise in _ADVICE.items():
        if isinstance(error, kind):
            return error.message, advise(error)
    return error.message, ""


def renamed(error: InvalidError, names: Mapping[str, str]) -> InvalidError:
    """The same with the names by which whoever typed the command knows the fields."""
    problems = [dataclasses.replace(each, field=names.get(each.field, each.field)) for each in error.problems]
    return InvalidError(problems, hint=error.hint)


def _for_invalid(error: ShoalError) -> str:
    fields = [each.field for each in error.problems] if isinstance(error, InvalidError) else []
    if command.get() == "shoal apply" and not any(field.startswith("-") for field in fields):
        return "`shoal schema process` prints every field and its rule"
    return f"`{command.get()} --help` shows what can be given"


def _for_not_found(error: ShoalError) -> str:
    kind = error.facts.get("kind", "")
    if kind not in _LISTS and (found := _KIND.match(error.message)) is not None:
        kind = found[1]
    return _LISTS.get(kind, "check the name")


def _for_refusal(error: ShoalError) -> str:
    for fact, noun in _ABOUT:
        if fact in error.facts:
            return f"`shoal {noun} get {error.facts[fact]}` shows how it stands"
    return "choose another path" if "path" in error.facts else "`shoal status` shows how everything stands"


def _for_denial(error: ShoalError) -> str:
    if "path" in error.facts:
        return "check whose it is, and as whom this runs"
    return "`shoal certs show` says whose a certificate is; docs/security.md says which role may do what"


def _for_exhausted(error: ShoalError) -> str:
    return "make room, or choose another path" if "path" in error.facts else "ask for less, or try again later"


def _always(words: str) -> Callable[[ShoalError], str]:
    return lambda _error: words


_ADVICE: Mapping[type[ShoalError], Callable[[ShoalError], str]] = {
    InvalidError: _for_invalid,
    NotFoundError: _for_not_found,
    ConflictError: _always("somebody else was first: look at it, and try again"),
    PreconditionError: _for_refusal,
    ExhaustedError: _for_exhausted,
    UnauthenticatedError: _always("check --ca, --cert and --key; `shoal certs show` says what is in them"),
    DeniedError: _for_denial,
    DeadlineError: _always("whether it was done is not known: look before you try again"),
    UnavailableError: _always("check the address, and that the program there is running"),
    UnsupportedError: _always("one of the programs may be of an older version; `shoal version` prints this one's"),
    InternalError: _always("the log of the program that failed has the details"),
}

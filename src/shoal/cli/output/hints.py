"""Hints for errors that bring none of their own, by the type of the error and its facts.

Called by `shoal.cli.output` for every error that is shown, and by commands whose flags have other names than the fields
of a request.
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
"""The command that was called, such as `shoal node get`."""

_LISTS = {
    "node": "`shoal node list` shows the nodes",
    "workload": "`shoal workload list` shows the workloads",
    "group": "`shoal group list` shows the groups",
    "job": "`shoal job list` shows the jobs",
    "secret": "`shoal secret list` shows the secrets",
    "join token": "`shoal token list` shows the tokens",
    "file": "check the path",
}
_ABOUT = (("workload_id", "workload"), ("node_id", "node"), ("group_id", "group"), ("job_id", "job"))
_KIND = re.compile(r"(?:not found: )?(node|workload|group|job|secret|join token|file) .*not found")
#: ApplyWorkload and DeleteWorkload answer a refusal with one sentence that ends in the hint.
_TAIL = re.compile(r"(?P<message>.+) \((?P<hint>[^()]+)\)")


def told(error: ShoalError) -> tuple[str, str]:
    """The sentence and the hint of an error."""
    if error.hint:
        return error.message, error.hint
    if isinstance(error, PreconditionError) and (tail := _TAIL.fullmatch(error.message)) is not None:
        return tail["message"], tail["hint"]
    for kind, advise in _ADVICE.items():
        if isinstance(error, kind):
            return error.message, advise(error)
    return error.message, ""


def renamed(error: InvalidError, names: Mapping[str, str]) -> InvalidError:
    """The same error with the names of flags in place of the fields of a request."""
    problems = [dataclasses.replace(each, field=names.get(each.field, each.field)) for each in error.problems]
    return InvalidError(problems, hint=error.hint)


def _for_invalid(error: ShoalError) -> str:
    fields = [each.field for each in error.problems] if isinstance(error, InvalidError) else []
    if command.get() == "shoal service apply" and not any(field.startswith("-") for field in fields):
        return "docs/services.md has every field of a service; `shoal schema process` those of its workload"
    if fields and all(field.endswith("revision_id") for field in fields):
        return "leave `revision` out of the file: then each spec gets one of its own"
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
            return f"`shoal {noun} get {error.facts[fact]}` shows its state"
    return "choose another path" if "path" in error.facts else "`shoal status` shows the state of the fleet"


def _for_denial(error: ShoalError) -> str:
    if "path" in error.facts:
        return "check who owns it, and which user runs this command"
    return "`shoal certs show` says whose certificate it is; docs/security.md says which role may do what"


def _for_exhausted(error: ShoalError) -> str:
    return "make room, or choose another path" if "path" in error.facts else "ask for less, or try again later"


def _always(words: str) -> Callable[[ShoalError], str]:
    return lambda _error: words


_ADVICE: Mapping[type[ShoalError], Callable[[ShoalError], str]] = {
    InvalidError: _for_invalid,
    NotFoundError: _for_not_found,
    ConflictError: _always("it was changed by another request at the same time: look at it, and try again"),
    PreconditionError: _for_refusal,
    ExhaustedError: _for_exhausted,
    UnauthenticatedError: _always("check --ca, --cert and --key; `shoal certs show` says what is in them"),
    DeniedError: _for_denial,
    DeadlineError: _always("it may have been done: look before you try again"),
    UnavailableError: _always("check the address, and that the program there is running"),
    UnsupportedError: _always("one of the programs may be of an older version; `shoal version` prints this one's"),
    InternalError: _always("the log of the program that failed has the details"),
}

"""Errors as texts: how what failed in a task host reaches the coordinator. Type names and words cross, never objects.

`describe_error` runs in the task host, `rebuild_error` where the run is waited for. An error of Shoal's own comes out
as the same type, or as the nearest one in the table; any other one, such as what a user's function raised, comes out as
`RemoteError` with its type name, its text and its traceback.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.core import errors as core
from shoal.core.errors import InvalidError, Problem, ShoalError
from shoal.dataflow import errors as dataflow
from shoal.dataflow.errors import Location, OperatorFailedError, RemoteError, StepInput
from shoal.dataflow.language.expressions.parts import MismatchError
from shoal.exchange import errors as exchange
from shoal.topics import errors as topics

#: Characters of a text, entries of a list and causes of an error that cross at most.
_MOST_TEXT = 16_000
_MOST_ENTRIES = 100
_MOST_CAUSES = 10


def _errors_in(*modules: Any) -> Iterable[type[ShoalError]]:
    for module in modules:
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, ShoalError):
                yield each


_KNOWN: Mapping[str, type[ShoalError]] = {
    kind.__name__: kind for kind in (*_errors_in(core, exchange, dataflow, topics), MismatchError)
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's program."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class CauseText:
    """One error, without those that led to it."""

    #: The name of its type: that of the nearest known one, or the full name of a foreign type.
    type: str
    message: str
    hint: str
    facts: Mapping[str, str]
    #: Broken rules: field, value and rule of each.
    problems: tuple[tuple[str, ...], ...]
    at: Line | None
    #: Of steps that failed only.
    input: StepInput | None
    #: Of foreign errors only.
    traceback: str
    #: A foreign error that Arrow or the operating system raised.
    is_system: bool


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error and its causes, the last one first."""

    chain: tuple[CauseText, ...]


def describe_error(error: BaseException) -> ErrorText:
    """What crosses of an error."""
    chain: list[CauseText] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _MOST_CAUSES:
        chain.append(_describe(cause))
        cause = cause.__cause__
    return ErrorText(tuple(chain))


def _describe(error: BaseException) -> CauseText:
    at = getattr(error, "at", None)
    line = Line(at.file, at.line, at.function) if isinstance(at, Location) else None
    if not isinstance(error, ShoalError):
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        shown = "".join(traceback.format_exception(kind, error, error.__traceback__, chain=False))
        is_system = isinstance(error, OSError) or kind.__module__.partition(".")[0] == "pyarrow"
        return CauseText(name, _text(error), "", {}, (), line, None, shown[-_MOST_TEXT:], is_system)
    kind = next(each for each in type(error).__mro__ if each.__name__ in _KNOWN)
    facts = {str(name): _cut(value) for name, value in list(error.facts.items())[:_MOST_ENTRIES]}
    problems = error.problems[:_MOST_ENTRIES] if isinstance(error, InvalidError) else ()
    rules = tuple((_cut(each.field), _cut(each.value), _cut(each.rule)) for each in problems)
    worked_on = _cut_input(error.input) if isinstance(error, OperatorFailedError) else None
    return CauseText(kind.__name__, _cut(error.message), _cut(error.hint), facts, rules, line, worked_on, "", False)


def _cut_input(given: StepInput) -> StepInput:
    rows = tuple(_cut(each) for each in given.rows[:_MOST_ENTRIES])
    return replace(given, schema=_cut(given.schema), rows=rows, read=_cut(given.read))


def _text(error: BaseException) -> str:
    try:
        return _cut(error)
    except Exception:  # noqa: BLE001 - a user's class may fail in its own __str__
        return ""


def _cut(value: object) -> str:
    # What UTF-8 cannot write, such as half of a surrogate pair, would not survive the way either.
    return str(value)[:_MOST_TEXT].encode(errors="replace").decode()


def rebuild_error(text: ErrorText) -> ShoalError:
    """The error that crossed, to be raised."""
    found = [_rebuild(each) for each in text.chain] or [RemoteError("", "a task host failed and did not say why")]
    for error, cause in itertools.pairwise(found):
        error.__cause__ = cause
    return found[0]


def _rebuild(text: CauseText) -> ShoalError:
    at = None if text.at is None else Location(text.at.file, text.at.line, text.at.function)
    kind = _KNOWN.get(text.type)
    if kind is None or kind is RemoteError:
        return RemoteError(text.type, text.message, traceback=text.traceback, is_system=text.is_system)
    # Constructors differ from type to type; the attributes that they set do not.
    error: ShoalError = kind.__new__(kind, text.message)
    error.message, error.hint, error.facts = text.message, text.hint, dict(text.facts)
    if isinstance(error, InvalidError):
        error.problems = tuple(Problem(*(*each, "", "", "")[:3]) for each in text.problems)
    if isinstance(error, dataflow.PlanError | OperatorFailedError):
        error.at = at
    if isinstance(error, OperatorFailedError):
        error.operator = text.facts.get("operator", "")
        error.set_input(text.input or StepInput())
    if isinstance(error, core.CorruptError):
        offset = text.facts.get("offset", "")
        error.path, error.offset = text.facts.get("file", ""), int(offset) if offset.isdecimal() else 0
    return error

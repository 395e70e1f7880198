"""What the dataflow engine raises besides the errors of `shoal.core.errors`. One tree.

    ShoalError
    ├── InvalidError
    │   └── PlanError          a stream program cannot work; says the line of it, and what to write instead
    │       ├── NoMethodError  a name that a stream or an app does not have; an AttributeError, too
    │       └── DocumentError  a plan document cannot be read; says the field
    ├── OperatorFailedError    a step raised: which one, the user's line, what it worked on, and what it raised
    ├── FunctionError          a user's function raised, for which row
    ├── ExpressionError        an expression cannot be worked out for the values that came
    ├── PoisonError            a source brought rows that cannot be read, and the policy is to fail
    ├── CheckpointError        checkpoints could not be made, or none of those that are there can be used
    └── RemoteError            an error that is not one of Shoal's, in another process: its type name and its text

A `PlanError` is raised before anything runs, as early as the columns are known; the others while a flow runs.

Elsewhere are those that say what does not fit: `MismatchError` (`language.expressions.parts`) the types of an
expression, `MisfitError` (`language.expressions.values`) a value and its column, `BadMessageError`
(`execution.hosts.control_messages`) bytes and a message.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.core.errors import InvalidError, Problem, ShoalError, problem


@dataclass(frozen=True, slots=True)
class Location:
    """The line of the user's program that made a node; errors point at it."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_MAX_SHOWN = 20
"""How many known names an error lists."""


class PlanError(InvalidError):
    """A stream program breaks a rule.

    Attributes:
        at: the line of the user's program, or None when the plan was not made by one.
    """

    at: Location | None

    def __init__(self, problems: Iterable[Problem], *, at: Location | None = None, hint: str = "") -> None:
        self.at = at
        super().__init__(problems, what="" if at is None else str(at), hint=hint)


class NoMethodError(PlanError, AttributeError):
    """A name that is no method, with the one that was meant or the way that it is done here."""

    def __init__(self, name: str, problems: Iterable[Problem], *, at: Location | None = None) -> None:
        super().__init__(problems, at=at)
        self.name = name


class DocumentError(PlanError):
    """A plan document that is not one. `problems` name the fields by their path."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """What a step worked on when it failed, in words and shortened."""

    #: Its columns and their types.
    schema: str = ""
    #: Some rows: those that it failed on where that is known, else the first ones of their batch.
    rows: tuple[str, ...] = ()
    #: Rows of the batch; 0 when the step failed between batches, such as at the end of a window.
    batch_rows: int = 0
    #: Whether it is known that it failed on these rows.
    is_exact: bool = False
    #: Which part of a source was read last: the split, and the offsets.
    read: str = ""


class OperatorFailedError(ShoalError):
    """A step of a flow raised. What it raised is the cause (`__cause__`).

    Attributes:
        operator: the name of the step.
        at: the line that asked for the step.
        input: what it worked on.
    """

    def __init__(
        self,
        operator: str,
        cause: BaseException,
        *,
        at: Location | None = None,
        subtask: int = 0,
        given: StepInput | None = None,
    ) -> None:
        where = f", from {at}" if at is not None else ""
        super().__init__(
            f"{operator} (task {subtask}{where}): {describe(cause)}",
            hint=getattr(cause, "hint", ""),
            operator=operator,
            subtask=subtask,
            at=at or "",
        )
        self.operator = operator
        self.at = at
        self.set_input(given or StepInput())

    def set_input(self, given: StepInput) -> None:
        """What the step worked on. A traceback shows it, and the command line shows `details`."""
        self.input = given
        self.details = tuple(_words_of(given))
        self.__notes__ = [f"{label}: {text}" for label, text in self.details]


def _words_of(given: StepInput) -> Iterator[tuple[str, str]]:
    if given.schema:
        yield "input", given.schema
    for row in given.rows:
        yield "row" if given.is_exact else f"one of {given.batch_rows} rows", row
    if given.read:
        yield "read", given.read


class FunctionError(ShoalError):
    """A user's function raised. What it raised is the cause; the facts say which function, where, and for which row."""


class ExpressionError(ShoalError):
    """An expression that fits its columns cannot be worked out for the values that came: it overflows, divides by 0."""


class PoisonError(ShoalError):
    """Rows that cannot be read."""


class CheckpointError(ShoalError):
    """A checkpoint could not be made or used."""


class RemoteError(ShoalError):
    """What something other than Shoal raised in a task host: a user's function, Arrow, the operating system.

    Attributes:
        type_name: the full name of its type.
        is_system: whether Arrow or the operating system raised it.
    """

    def __init__(self, type_name: str, text: str, *, traceback: str = "", is_system: bool = False) -> None:
        words = ": ".join(each for each in (type_name, text) if each)
        super().__init__(words, type=type_name)
        self.type_name = type_name
        self.is_system = is_system
        if traceback:
            self.add_note(f"In the task host:\n{traceback}")


def refuse(field: str, value: object, rule: str, *, at: Location | None = None, hint: str = "") -> PlanError:
    """The error for one broken rule."""
    return PlanError([problem(field, value, rule)], at=at, hint=hint)


def near(name: str, known: Iterable[str], kind: str) -> str:
    """Words behind a name that is not known: the one that was probably meant, and what there is."""
    names = [str(each) for each in known]
    alike = [each for each in names if each.lower() == name.lower()]
    close = alike or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    shown = ", ".join(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")
    there = f"the {kind} are {shown}" if names else f"there are no {kind}"
    return f"did you mean {close[0]!r}? ({there})" if close else there


def describe(cause: BaseException) -> str:
    """An error in one line: our own as they are, others with their type."""
    if isinstance(cause, ShoalError):
        return cause.message
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__

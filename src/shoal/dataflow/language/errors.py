"""What the dataflow engine raises besides the errors of `shoal.core.errors`.

    InvalidError
    └── PlanError          a stream program cannot work; says the line of it, and what to write instead
        ├── NoMethodError  a name that a stream or an app does not have; an AttributeError, too
        └── DocumentError  a plan document cannot be read; says the field

A `PlanError` is raised before anything runs: by `shoal.dataflow.plan.resolve` and `shoal.dataflow.language.binding`,
and as early as the columns are known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from shoal.core.errors import InvalidError, Problem, problem
from shoal.dataflow.language.logical import Location


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


_MAX_SHOWN = 20

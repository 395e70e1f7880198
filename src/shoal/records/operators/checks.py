"""Rules for the settings of operators, so that a mistake is told when an operator is made and not by some batch.

Called by the operators beside it.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable

from shoal.core.errors import InvalidError, Problem, problem

#: Actions and special strategies are numbers of 32 bits, ids and channels of 64 bits, all with a sign.
LEAST_32, MOST_32 = -(1 << 31), (1 << 31) - 1
LEAST_64, MOST_64 = -(1 << 63), (1 << 63) - 1
#: More labels in a row are refused: every row has all of them.
MAX_LABELS = 1 << 12


def refuse(*found: list[Problem]) -> None:
    """Raise `InvalidError` with all problems, if there are any."""
    problems = [each for some in found for each in some]
    if problems:
        raise InvalidError(problems)


def number_problems(field: str, values: Iterable[object], low: int, high: int) -> list[Problem]:
    """Those of some values that are no whole numbers within bounds."""
    rule = f"must be a whole number from {low} to {high}"
    wrong = [each for each in values if not isinstance(each, numbers.Integral) or not low <= int(each) <= high]
    return [problem(field, each, rule) for each in wrong]


def action_problems(field: str, values: Iterable[object]) -> list[Problem]:
    """Those of some values that no action can be."""
    return number_problems(field, values, LEAST_32, MOST_32)


def place_problems(field: str, places: Iterable[object]) -> list[Problem]:
    """What is wrong with the places of labels in a row."""
    given = list(places)
    if not given:
        return [problem(field, None, "must have an entry")]
    return number_problems(field, given, 0, MAX_LABELS - 1)


def share_problems(field: str, values: Iterable[float]) -> list[Problem]:
    """Those of some values that are no shares."""
    return [problem(field, each, "must be from 0 to 1") for each in values if not 0 <= each <= 1]

"""Label selectors as users of kubectl write them: `app=web,tier!=db,zone in (a,b),gpu,!spot`.

All terms must hold. A label that is missing is not equal to anything, so `!=` and `notin` hold for it. Used by the
command line, and by the control plane for events.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import InvalidError, problem

RULE = "must be terms such as app=web, tier!=db, zone in (a,b), zone notin (a,b), gpu or !gpu, joined by commas"
MAX_LENGTH = 4096

_KEY = r"(?P<key>[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?)"
_VALUE = r"[^\s,=!()]*"
_EQUALS = re.compile(rf"{_KEY}\s*(?P<operator>==?|!=)\s*(?P<value>{_VALUE})")
_SET = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)")
_EXISTS = re.compile(rf"(?P<operator>!?)\s*{_KEY}")
_SPLIT = re.compile(r",(?![^(]*\))")


class SelectorOperator(enum.StrEnum):
    """How one label is compared."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on one label."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it."""
        value = labels.get(self.key)
        if self.operator is SelectorOperator.EXISTS:
            return value is not None
        if self.operator is SelectorOperator.MISSING:
            return value is None
        return (value is not None and value in self.values) == (self.operator is SelectorOperator.IN)


@dataclass(frozen=True, slots=True)
class Selector:
    """Some conditions that must all hold. Without any, everything matches."""

    terms: tuple[Term, ...] = ()

    @property
    def needed_keys(self) -> tuple[str, ...]:
        """Labels that everything has which matches."""
        having = (SelectorOperator.IN, SelectorOperator.EXISTS)
        return tuple(term.key for term in self.terms if term.operator in having)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet every condition."""
        return all(term.matches(labels) for term in self.terms)


def parse_selector(text: str, *, field: str = "selector") -> Selector:
    """Read a selector. Raises `InvalidError` that names the part which is wrong."""
    if not text.strip():
        return Selector()
    if len(text) > MAX_LENGTH:
        raise InvalidError([problem(field, text[:40], f"must have at most {MAX_LENGTH} characters")])
    terms = [_term(part.strip()) for part in _SPLIT.split(text)]
    wrong = [part.strip() for part, term in zip(_SPLIT.split(text), terms, strict=True) if term is None]
    if wrong:
        raise InvalidError([problem(field, part, RULE) for part in wrong])
    return Selector(tuple(term for term in terms if term is not None))


def _term(text: str) -> Term | None:
    found = _EQUALS.fullmatch(text)
    if found is not None:
        operator = SelectorOperator.NOT_IN if found["operator"] == "!=" else SelectorOperator.IN
        return Term(found["key"], operator, frozenset({found["value"]}))
    found = _SET.fullmatch(text)
    if found is not None:
        values = frozenset(each.strip() for each in found["values"].split(","))
        return Term(found["key"], SelectorOperator(found["operator"]), values)
    found = _EXISTS.fullmatch(text)
    if found is None:
        return None
    return Term(found["key"], SelectorOperator.MISSING if found["operator"] else SelectorOperator.EXISTS)

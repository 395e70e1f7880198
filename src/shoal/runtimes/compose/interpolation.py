"""Replaces variables in a compose project, by the rules of compose files. Pure; called by `project`.

Shoal does this itself, before it checks a project: a rule is applied to the value that will count, and no variable of
the agent's own environment can get into a project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.core.errors import InvalidError, problem

_MAX_DEPTH = 10
_PLAIN = re.compile(r"\$(?:(?P<dollar>\$)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<braced>\{))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-?+]")


def interpolate(text: str, variables: Mapping[str, str], *, at: str, depth: int = 0) -> str:
    """`text` with `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME:?message}` and `${NAME:+other}` replaced.

    `$$` is a dollar sign. A variable that is not set is empty. Raises `InvalidError`.
    """
    pieces: list[str] = []
    position = 0
    while (found := text.find("$", position)) >= 0:
        pieces.append(text[position:found])
        match = _PLAIN.match(text, found)
        if match is None:
            raise InvalidError([problem(at, text, "has a $ that begins no variable; $$ stands for a dollar sign")])
        position = match.end()
        if match["dollar"]:
            pieces.append("$")
        elif match["name"]:
            pieces.append(variables.get(match["name"], ""))
        else:
            end = _closing(text, position)
            if end < 0 or depth >= _MAX_DEPTH:
                raise InvalidError([problem(at, text, "has a ${ without its }")])
            pieces.append(_value(text[position:end], variables, at, depth))
            position = end + 1
    return "".join([*pieces, text[position:]])


def escape(text: str) -> str:
    """`text` as a compose command has to read it: nothing in it is a variable."""
    return text.replace("$", "$$")


def _closing(text: str, position: int) -> int:
    """Where the brace is closed that was opened before `position`; -1 when it is not."""
    level = 1
    for index in range(position, len(text)):
        if text.startswith("${", index):
            level += 1
        elif text[index] == "}":
            level -= 1
            if level == 0:
                return index
    return -1


def _value(inside: str, variables: Mapping[str, str], at: str, depth: int) -> str:
    name = _NAME.match(inside)
    if name is None:
        raise InvalidError([problem(at, f"${{{inside}}}", "must name a variable")])
    value = variables.get(name.group())
    rest = inside[name.end() :]
    if not rest:
        return value or ""
    operator = _OPERATOR.match(rest)
    if operator is None:
        raise InvalidError([problem(at, f"${{{inside}}}", "must be ${NAME} with one of :- - :? ? :+ + after the name")])
    word = rest[operator.end() :]
    is_there = bool(value) if operator.group().startswith(":") else value is not None
    match operator.group()[-1]:
        case "-":
            return (value or "") if is_there else interpolate(word, variables, at=at, depth=depth + 1)
        case "+":
            return interpolate(word, variables, at=at, depth=depth + 1) if is_there else ""
        case _:
            if is_there:
                return value or ""
            said = interpolate(word, variables, at=at, depth=depth + 1)
            raise InvalidError([problem(at, name.group(), f"must be set: {said or 'the project requires it'}")])

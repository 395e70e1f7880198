"""A safe evaluator of small expressions: whole and real numbers, names, arithmetic, comparisons, and, or, not.

`agent.conf` allows arithmetic in numbers (`60 * 1000 * 1000`) and conditions in layout filters (`i % 2 == 1`). Nothing
can be called, indexed or imported, and there is no power or shift, so that a short text cannot make a huge number.
Pure. Used by `shoal.serving.config` and `shoal.serving.filters`.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Number = int | float | bool

MAX_LENGTH = 256

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_RULE = "may have numbers, names, + - * / // %, comparisons, and, or, not, True, False and parentheses only"


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that was checked. Only its values can still be wrong."""

    text: str
    #: The names that it needs values for.
    names: frozenset[str]
    _tree: ast.expr

    def evaluate(self, values: Mapping[str, int]) -> Number:
        """Its value. Raises ValueError with the rule when there is none, as for a division by zero."""
        try:
            value: Number = _value(self._tree, values)
        except ZeroDivisionError:
            raise ValueError("must not divide by zero") from None
        except OverflowError:
            raise ValueError("must be smaller") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a finite number")
        return value


def parse_expression(text: str) -> Expression:
    """Check an expression. Raises ValueError with the rule that it breaks."""
    text = text.strip()
    if not text:
        raise ValueError("must not be empty")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"must have at most {MAX_LENGTH} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd spelling, such as `1if`, which is refused below
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"must be an expression: it {_RULE}") from None
    names: set[str] = set()
    _check(tree, names)
    return Expression(text, frozenset(names), tree)


def evaluate_number(text: str) -> int | float:
    """The value of an expression without names that is a number. Raises ValueError with the rule."""
    try:  # the usual case
        return int(text)
    except ValueError:
        pass
    expression = parse_expression(text)
    value = False if expression.names else expression.evaluate({})
    if value is False or value is True:
        raise ValueError("must be a number")
    return value


def _check(node: ast.expr, names: set[str]) -> None:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return
        case ast.Name(id=name):
            names.add(name)
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            parts = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            parts = [operand]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(op) in _COMPARE for op in ops):
            parts = [left, *comparators]
        case _:
            raise ValueError(_RULE)
    for part in parts:
        _check(part, names)


def _value(node: ast.expr, values: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in values:
                raise ValueError(f"has no value for {name}")
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, values))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, values) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            terms = [_value(each, values) for each in (left, *comparators)]
            return all(_COMPARE[type(op)](terms[at], terms[at + 1]) for at, op in enumerate(ops))
    raise AssertionError(node)

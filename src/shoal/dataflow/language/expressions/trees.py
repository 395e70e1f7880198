"""Expressions over columns: `col("amount") * 1.1 > 5`. Frozen trees that can be read, rewritten and written down.

Users build them with `col`, `lit` and operators. `shoal.dataflow.language.binding` turns one into kernel calls for a
schema, with every literal typed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

Scalar: TypeAlias = Any
Operand: TypeAlias = "Expression | Scalar"

#: No expression is nested deeper: what works on trees calls itself, and Python bounds how deep that may go.
MAX_DEPTH = 200
#: No expression has more parts, each counted as often as it is used.
MAX_PARTS = 100_000


class Expression:
    """A value for each row. `==` gives an expression too; whether two trees are equal is asked of `same`."""

    __slots__ = ()

    def __add__(self, other: Operand) -> Expression:
        return call("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return call("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return call("subtract", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return call("subtract", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return call("multiply", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return call("multiply", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return call("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return call("divide", other, self)

    def __floordiv__(self, other: Operand) -> Expression:
        return call("floor_divide", self, other)

    def __rfloordiv__(self, other: Operand) -> Expression:
        return call("floor_divide", other, self)

    def __mod__(self, other: Operand) -> Expression:
        return call("modulo", self, other)

    def __rmod__(self, other: Operand) -> Expression:
        return call("modulo", other, self)

    def __pow__(self, other: Operand) -> Expression:
        return call("power", self, other)

    def __neg__(self) -> Expression:
        return call("negate", self)

    def __gt__(self, other: Operand) -> Expression:
        return call("greater", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return call("greater_equal", self, other)

    def __lt__(self, other: Operand) -> Expression:
        return call("less", self, other)

    def __le__(self, other: Operand) -> Expression:
        return call("less_equal", self, other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return call("equal", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return call("not_equal", self, other)

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Expression:
        return call("and", self, other)

    def __rand__(self, other: Operand) -> Expression:
        return call("and", other, self)

    def __or__(self, other: Operand) -> Expression:
        return call("or", self, other)

    def __ror__(self, other: Operand) -> Expression:
        return call("or", other, self)

    def __invert__(self) -> Expression:
        return call("not", self)

    def __bool__(self) -> bool:
        raise TypeError("an expression has a value for each row and no truth of its own; use &, | and ~")

    def isin(self, values: list[Scalar] | tuple[Scalar, ...]) -> Expression:
        """Whether the value is one of these."""
        return Call("is_in", (self, Literal(tuple(values))))

    def is_null(self) -> Expression:
        """Whether there is no value."""
        return call("is_null", self)

    def is_valid(self) -> Expression:
        """Whether there is a value."""
        return call("is_valid", self)

    def fill_null(self, value: Scalar) -> Expression:
        """The value, or this one where there is none."""
        return call("fill_null", self, value)

    def between(self, low: Operand, high: Operand) -> Expression:
        """Whether the value lies between two, both included."""
        return call("and", call("greater_equal", self, low), call("less_equal", self, high))

    def cast(self, to: Any) -> Expression:
        """The value as another type: an Arrow type, its name such as "int64", or int, float, str, bool."""
        name = _PYTHON_TYPES.get(to) if isinstance(to, type) else None
        return Call("cast", (self, Literal(name or str(to))))

    def field(self, name: str) -> Expression:
        """A field of a struct."""
        return Call("struct_field", (self, Literal(name)))

    def alias(self, name: str) -> Named:
        """The same under a name, for `select`."""
        return Named(self, name)

    def __repr__(self) -> str:
        return describe(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column(Expression):
    """A column's value."""

    name: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Literal(Expression):
    """The same value for every row."""

    value: Scalar


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expression):
    """A kernel's result. The names are those of `shoal.dataflow.language.binding.KERNELS`."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """An expression with the name that its column gets."""

    expression: Expression
    name: str


#: What Python's own types are called among Arrow's.
_PYTHON_TYPES: dict[type, str] = {int: "int64", float: "double", str: "string", bool: "bool", bytes: "binary"}


def col(name: str) -> Column:
    """A column by its name."""
    return Column(name)


def lit(value: Scalar) -> Literal:
    """A constant."""
    return Literal(value)


def call(function: str, *arguments: Operand) -> Call:
    """A kernel over expressions and constants."""
    return Call(function, tuple(each if isinstance(each, Expression) else Literal(each) for each in arguments))


def same(one: Expression, other: Expression) -> bool:
    """Whether two trees are equal, part by part."""
    match one, other:
        case Column(a), Column(b):
            return a == b
        case Literal(a), Literal(b):
            # By their text: a NaN is like itself, and 0.0 is unlike -0.0.
            return type(a) is type(b) and repr(a) == repr(b)
        case Call(f, xs), Call(g, ys):
            return f == g and len(xs) == len(ys) and all(map(same, xs, ys))
        case _:
            return False


def columns_of(expression: Expression) -> frozenset[str]:
    """The columns that it reads."""
    return frozenset(each.name for each in parts_of(expression) if isinstance(each, Column))


def parts_of(expression: Expression) -> Iterator[Expression]:
    """Every part of it, from the top."""
    waiting = [expression]  # by hand: each part would go through as many generators as it is deep
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, Call):
            waiting.extend(reversed(part.arguments))


def depth_of(expression: Expression) -> int:
    """How many calls lie in each other."""
    deepest, level = 0, [expression]
    while level := [each for part in level if isinstance(part, Call) for each in part.arguments][:MAX_PARTS]:
        deepest += 1
    return deepest


def why_too_large(expression: Expression) -> str:
    """The rule that an expression breaks by its size; empty when it breaks none."""
    parts = sum(1 for _part in islice(parts_of(expression), MAX_PARTS + 1))
    if parts > MAX_PARTS:
        return f"has more than {MAX_PARTS:,} parts, and that many are the most"
    # Only a tree of many parts can be deep.
    depth = depth_of(expression) if parts > MAX_DEPTH else 0
    return f"is {depth} operations deep, and {MAX_DEPTH} are the most" if depth > MAX_DEPTH else ""


def substitute(expression: Expression, values: Mapping[str, Expression]) -> Expression:
    """The same with some columns replaced by what they stand for."""
    match expression:
        case Column(name):
            return values.get(name, expression)
        case Call(function, arguments):
            return Call(function, tuple(substitute(each, values) for each in arguments))
        case _:
            return expression


def conjuncts(predicate: Expression) -> tuple[Expression, ...]:
    """The parts of which all must be true."""
    if isinstance(predicate, Call) and predicate.function == "and":
        return tuple(part for each in predicate.arguments for part in conjuncts(each))
    return (predicate,)


def conjunction(parts: Sequence[Expression]) -> Expression:
    """True where all parts are."""
    if len(parts) > _MAX_IN_LINE:  # by halves: many parts in one line would be too deep
        half = len(parts) // 2
        return Call("and", (conjunction(parts[:half]), conjunction(parts[half:])))
    whole = parts[0]
    for part in parts[1:]:
        whole = Call("and", (whole, part))
    return whole


_MAX_IN_LINE = 32


_SYMBOLS: dict[str, str] = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "modulo": "%",
    "power": "**",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
    "not_equal": "!=",
    "and": "&",
    "or": "|",
}
_MAX_SHOWN = 60


def describe(expression: Expression) -> str:
    """As a person writes it, on one line. What lies deeper than an expression may be is left out."""
    return _text(expression, MAX_DEPTH)


def _text(expression: Expression, left: int) -> str:
    return "…" if left < 0 else _written(expression, left)


def _written(expression: Expression, left: int) -> str:
    match expression:
        case Column(name):
            return name
        case Literal(value):
            shown = repr(value)
            return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
        case Call(function, (one, other)) if function in _SYMBOLS:
            return f"{_operand(one, left)} {_SYMBOLS[function]} {_operand(other, left)}"
        case Call("not", (one,)):
            return f"~{_operand(one, left)}"
        case Call("negate", (one,)):
            return f"-{_operand(one, left)}"
        case Call("cast", (one, Literal(to))):
            return f"{_operand(one, left)}.cast({to})"
        case Call(function, arguments):
            return f"{function}({', '.join(_text(each, left - 1) for each in arguments)})"
        case _:
            return object.__repr__(expression)


def _operand(expression: Expression, left: int) -> str:
    text = _text(expression, left - 1)
    return f"({text})" if isinstance(expression, Call) and expression.function in _SYMBOLS else text

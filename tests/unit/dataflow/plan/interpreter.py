"""A reference interpreter of logical plans: rows are dictionaries, everything is plain Python, nothing is quick.

It is what the optimizer is tested against: a plan and its better form must give the same rows here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.dataflow.language.expressions.trees import Call, Column, Expression, Literal
from shoal.dataflow.language.functions import callable_of
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Distinct,
    Filter,
    Join,
    JoinKind,
    KeyBy,
    MapRecords,
    Node,
    Project,
    Sink,
    Source,
    Union,
    walk,
)
from shoal.dataflow.plan.joining import output_columns

Row = dict[str, Any]
Rows = list[Row]


class RowError(Exception):
    """A row that an expression cannot take."""


def run(sinks: Sequence[Node]) -> list[list[Row]]:
    """The rows of each sink."""
    done: dict[Node, Rows] = {}
    for node in walk(*sinks):
        done[node] = _rows_of(node, [done[each] for each in node.inputs])
    return [done[sink] for sink in sinks]


def results(sinks: Sequence[Node]) -> list[list[str]] | None:
    """The rows of each sink without their order; None when there is one that an expression cannot take."""
    try:
        return [as_multiset(rows) for rows in run(sinks)]
    except RowError:
        return None


def as_multiset(rows: Rows) -> list[str]:
    """Rows without their order; the order of columns counts."""
    return sorted(repr(list(row.items())) for row in rows)


def _rows_of(node: Node, inputs: list[Rows]) -> Rows:  # noqa: PLR0911  one line for each kind
    match node:
        case Source():
            return _source(node)
        case Sink() | KeyBy() | AssignTime():
            return inputs[0]
        case Filter(predicate=Expression() as predicate):
            return [row for row in inputs[0] if value_of(predicate, row) is True]
        case Project():
            return [_project(node, row) for row in inputs[0]]
        case MapRecords():
            return [callable_of(node.function)(row) for row in inputs[0]]
        case Union():
            return [row for rows in inputs for row in rows]
        case Aggregate():
            return _aggregate(node, inputs[0])
        case Distinct():
            return list({tuple(row[name] for name in node.columns): row for row in reversed(inputs[0])}.values())
        case Join():
            return _join(node, inputs[0], inputs[1])
        case _:
            raise AssertionError(f"the interpreter knows no {type(node).__name__}")


def _source(node: Source) -> Rows:
    names = node.connector.columns or node.connector.batches[0].schema.names
    return [{name: row[name] for name in names} for batch in node.connector.batches for row in batch.to_pylist()]


def _project(node: Project, row: Row) -> Row:
    made = {each.name: value_of(each.expression, row) for each in node.columns}
    if not node.keep_others:
        return made
    return {**row, **made}


def _aggregate(node: Aggregate, rows: Rows) -> Rows:
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in node.keys), []).append(row)
    return [
        dict(zip(node.keys, key, strict=True))
        | {
            each.name: _AGGREGATES[each.function]([row.get(each.column, 1) for row in group])
            for each in node.aggregations
        }
        for key, group in groups.items()
    ]


def _valid(values: list[Any]) -> list[Any]:
    return [each for each in values if each is not None]


_AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "count": lambda values: len(_valid(values)),
    "sum": lambda values: sum(_valid(values)) if _valid(values) else None,
    "min": lambda values: min(_valid(values), default=None),
    "max": lambda values: max(_valid(values), default=None),
}


def _join(node: Join, left: Rows, right: Rows) -> Rows:
    out: Rows = []
    right_names = list(right[0]) if right else _names(node.inputs[1])
    for row in left:
        key = tuple(row[name] for name in node.left_keys)
        partners = [
            other for other in right if None not in key and tuple(other[name] for name in node.right_keys) == key
        ]
        columns = output_columns(node, list(row), right_names)
        if not partners and node.kind is JoinKind.LEFT:
            partners = [dict.fromkeys(right_names)]
        out += [{each.name: (row, other)[each.side][each.origin] for each in columns} for other in partners]
    return out


def _names(node: Node) -> list[str]:
    """The columns of a node without rows."""
    match node:
        case Source():
            return list(node.connector.columns or node.connector.batches[0].schema.names)
        case Project(keep_others=False):
            return [each.name for each in node.columns]
        case Project():
            before = _names(node.inputs[0])
            return [*before, *(each.name for each in node.columns if each.name not in before)]
        case Aggregate():
            return [*node.keys, *(each.name for each in node.aggregations)]
        case Join():
            return [each.name for each in output_columns(node, _names(node.inputs[0]), _names(node.inputs[1]))]
        case _:
            return _names(node.inputs[0])


# ---------------------------------------------------------------------------------------------------------
# Expressions


def value_of(expression: Expression, row: Mapping[str, Any]) -> Any:  # noqa: PLR0911  one line for each kind
    """The value of an expression for a row, with None for what is unknown."""
    match expression:
        case Column(name):
            return row[name]
        case Literal(value):
            return value
        case Call("and" | "or" as word, (one, other)):
            return _logic(word, value_of(one, row), value_of(other, row))
        case Call("is_null", (one,)):
            return value_of(one, row) is None
        case Call("is_valid", (one,)):
            return value_of(one, row) is not None
        case Call("fill_null" | "coalesce", arguments):
            known = [value_of(each, row) for each in arguments]  # all of them: kernels look at whole columns, too
            return next((value for value in known if value is not None), None)
        case Call("is_in", (one, Literal(values))):
            return value_of(one, row) in values
        case Call("cast", (one, Literal("int64"))):
            value = value_of(one, row)
            if value is not None and not str(value).lstrip("-").isdigit():
                raise RowError(value)
            return None if value is None else int(value)
        case Call(function, arguments):
            values = [value_of(each, row) for each in arguments]
            return None if None in values else _FUNCTIONS[function](*values)
        case _:
            raise AssertionError(expression)


def _logic(word: str, one: Any, other: Any) -> Any:
    decisive = word == "or"
    if decisive in (one, other) and (one is decisive or other is decisive):
        return decisive
    return None if one is None or other is None else not decisive


def _division(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: None if other == 0 else function(one, other)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor_divide": _division(operator.floordiv),
    "modulo": _division(operator.mod),
    "negate": operator.neg,
    "not": operator.not_,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "upper": str.upper,
    "length": len,
}

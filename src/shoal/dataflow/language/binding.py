"""Expressions bound to the columns of a schema: types checked, literals typed once, kernels called directly.

`bind` is called by `shoal.dataflow.plan.resolve` when a plan is checked and by operators when a task opens;
`Bound.evaluate` runs once for each batch. What is wrong with an expression is a `PlanError` that names the line, the
part and its types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.core.errors import problem
from shoal.dataflow.errors import ExpressionError, Location, PlanError, near
from shoal.dataflow.errors import describe as describe_error
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.kernels import KERNELS
from shoal.dataflow.language.expressions.parts import Evaluate, MismatchError, Part, literal
from shoal.dataflow.language.expressions.trees import Call, Column, Expression, Literal, describe, why_too_large

#: Names of the kernels whose last argument is a Python value that no column could hold.
_TAKES_VALUES = ("is_in",)


@dataclass(frozen=True, slots=True)
class Bound:
    """An expression that knows its columns."""

    type: Any
    _evaluate: Evaluate
    _text: str = ""
    _at: Location | None = None

    def evaluate(self, batch: Batch) -> Any:
        """The value of each row, as an Array. Columns are found by name: the batch may have more of them.

        Raises `ExpressionError` when it cannot be worked out.
        """
        try:
            value = self._evaluate(batch)
        except pa.ArrowException as error:
            where = f", from {self._at}" if self._at is not None else ""
            raise ExpressionError(f"{self._text}{where} raised {describe_error(error)}", at=self._at or "") from error
        return pa.repeat(value, batch.num_rows) if isinstance(value, pa.Scalar) else value


def bind(expression: Expression, schema: Schema, *, at: Location | None = None) -> Bound:
    """Check an expression against a schema and make it ready to run."""
    check_size(expression, at)
    part = _bind(expression, schema, at)
    _refuse_sequences("", [part], at)
    return Bound(part.type, part.evaluate, part.text, at)


def check_size(expression: Expression, at: Location | None) -> None:
    """Refuse an expression that is larger than any may be."""
    rule = why_too_large(expression)
    if rule:
        hint = (
            "ask for one of many values with col(…).isin([…]); name parts of it before, .with_columns(part=…); "
            "or write it as a function, .map(lambda batch: …)"
        )
        raise PlanError([problem("expression", None, rule)], at=at, hint=hint)


def bind_predicate(expression: Expression, schema: Schema, *, at: Location | None = None) -> Bound:
    """The same for a filter, which takes booleans only."""
    bound = bind(expression, schema, at=at)
    if datatypes.types.is_boolean(bound.type):
        return bound
    rule = f"a filter needs true or false for each row, and this is {bound.type}"
    raise PlanError([problem(describe(expression), None, rule)], at=at, hint="compare it: > < == != .is_valid()")


def constant_value(expression: Expression) -> Any:
    """The Scalar that an expression without columns has. Raises what its kernels raise."""
    bound = bind(expression, pa.schema([]))
    return bound.evaluate(pa.RecordBatch.from_arrays([pa.nulls(1)], names=["nothing"]))[0]


def missing_column(name: str, schema: Schema, *, at: Location | None = None, where: str = "") -> PlanError:
    """The error for a column that is not there."""
    field = f"{where} {name!r}" if where else f"column {name!r}"
    return PlanError([problem(field, None, f"does not exist; {near(name, schema.names, 'columns')}")], at=at)


def _bind(expression: Expression, schema: Schema, at: Location | None) -> Part:
    match expression:
        case Column(name):
            return _column(name, schema, at)
        case Literal(value):
            return _literal(value, expression, at)
        case Call(function, arguments):
            return _call(expression, function, arguments, schema, at)
        case _:
            raise PlanError([problem("expression", expression, "must be made of col, lit and fn")], at=at)


def _column(name: str, schema: Schema, at: Location | None) -> Part:
    positions = schema.get_all_field_indices(name)
    if not positions:
        raise missing_column(name, schema, at=at)
    if len(positions) > 1:
        raise PlanError([problem(f"column {name!r}", None, f"is there {len(positions)} times")], at=at)
    return Part(schema.field(positions[0]).type, lambda batch: batch.column(name), name)


def _literal(value: Any, expression: Expression, at: Location | None) -> Part:
    if isinstance(value, tuple | list):
        return Part(pa.null(), lambda _batch: None, describe(expression), value, True)
    try:
        return literal(value, datatypes.literal_type(value), describe(expression))
    except (TypeError, MismatchError) as error:
        raise PlanError([problem("constant", value, str(error))], at=at) from error


def _call(
    whole: Expression, function: str, arguments: tuple[Expression, ...], schema: Schema, at: Location | None
) -> Part:
    kernel = KERNELS.get(function)
    if kernel is None:
        raise PlanError(
            [problem(f"function {function!r}", None, f"does not exist; {near(function, KERNELS, 'functions')}")], at=at
        )
    if not kernel.least <= len(arguments) <= kernel.most:
        wanted = str(kernel.least) if kernel.least == kernel.most else f"{kernel.least} to {kernel.most}"
        raise PlanError([problem(function, len(arguments), f"takes {wanted} arguments")], at=at)
    parts = [_bind(each, schema, at) for each in arguments]
    _refuse_sequences(function, parts, at)
    try:
        kind, evaluate = kernel.make(parts)
    except MismatchError as error:
        raise PlanError([problem(describe(whole), None, error.message)], at=at, hint=error.hint) from error
    return Part(kind, evaluate, describe(whole))


def _refuse_sequences(function: str, parts: list[Part], at: Location | None) -> None:
    """Only `isin` takes a list; a list elsewhere was probably meant for it."""
    wanted = function in _TAKES_VALUES
    for position, part in enumerate(parts):
        is_sequence = part.is_literal and isinstance(part.value, tuple | list)
        if is_sequence and not (wanted and position == len(parts) - 1):
            rule = "is a list, and a column holds one value in each row"
            raise PlanError([problem(part.text, None, rule)], at=at, hint="col(…).isin([…]) asks for one of several")

"""A part of an expression while it is bound: its type, and how a batch becomes its values.

`shoal.dataflow.language.expressions.kernels` makes parts out of parts; `shoal.dataflow.language.binding` makes the
first ones out of columns and literals, and turns a `MismatchError` into a `PlanError` that says where.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.errors import ShoalError
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.datatypes import types

#: From a batch to an Array, or to a Scalar for what is the same in all rows.
Evaluate = Callable[[Batch], Any]

_ARROW_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError)


class MismatchError(ShoalError):
    """Types that do not go together. Never leaves the binding of an expression."""


@dataclass(frozen=True, slots=True)
class Part:
    """One bound part."""

    type: Any
    evaluate: Evaluate
    text: str
    #: For a literal the Python value, so that it can take the type of the other side.
    value: Any = None
    is_literal: bool = False


def literal(value: Any, kind: Any, text: str) -> Part:
    """A constant, typed once."""
    try:
        scalar = datatypes.typed_scalar(value, kind)
    except (TypeError, ValueError) as error:
        raise MismatchError(str(error)) from error
    return Part(kind, lambda _batch: scalar, text, value, True)


def kernel(name: str, parts: Sequence[Part], *, options: Any = None) -> tuple[Any, Evaluate]:
    """An Arrow kernel over parts that have the types it wants. Its own type is found by trying it on no rows."""
    function = pc.get_function(name)
    try:
        kind = function.call([pa.array([], each.type) for each in parts], options).type
    except _ARROW_REFUSALS as error:
        shown = ", ".join(f"{each.text} is {each.type}" for each in parts)
        raise MismatchError(f"is not possible with these types ({shown})") from error
    return kind, calling(function, [each.evaluate for each in parts], options)


def calling(function: Any, evaluates: Sequence[Evaluate], options: Any) -> Evaluate:
    """Calls a kernel with the values of its parts; written out by their number, because it runs for every batch."""
    call = function.call
    if len(evaluates) == 1:
        (one,) = evaluates
        return lambda batch: call((one(batch),), options)
    if len(evaluates) == 2:
        first, second = evaluates
        return lambda batch: call((first(batch), second(batch)), options)
    return lambda batch: call([each(batch) for each in evaluates], options)


def as_type(part: Part, kind: Any) -> Part:
    """The part as another type that can hold it; a literal is typed anew."""
    if part.type == kind:
        return part
    if part.is_literal:
        return literal(part.value, kind, part.text)
    if types.is_integer(part.type) and types.is_decimal(kind) and kind.precision < 20 + kind.scale:
        # The library wants room for every number of the type; whether these fit is seen with the second step.
        part = as_type(part, pa.decimal128(min(20 + kind.scale, 38), kind.scale))
    # Whole numbers above 2**53 lose digits as floats, as everywhere; the safe cast would refuse the whole batch.
    options = pc.CastOptions(kind, allow_int_overflow=False, allow_float_truncate=True, allow_time_truncate=True)
    if datatypes.is_number(part.type) and types.is_floating(kind):
        options = pc.CastOptions.unsafe(kind)
    _kind, evaluate = kernel("cast", [part], options=options)
    return Part(kind, evaluate, part.text)


def plain(part: Part) -> Part:
    """The part in a layout that kernels know."""
    return as_type(part, datatypes.plain(part.type))


def aligned(parts: Sequence[Part], doing: str) -> list[Part]:
    """All of them as one type. Literals follow columns; among columns the type that holds all of them."""
    parts = [plain(each) for each in parts]
    firm = [each for each in parts if not each.is_literal]
    kind = (firm or parts)[0].type
    for each in (firm or parts)[1:]:
        kind = _common(kind, each.type, parts, doing)
    for each in parts:
        if each.is_literal:
            kind = _with_literal(kind, each, parts, doing)
    return [as_type(each, kind) for each in parts]


def _common(one: Any, other: Any, parts: Sequence[Part], doing: str) -> Any:
    kind = datatypes.common_type(one, other)
    if kind is None:
        raise MismatchError(f"{one} and {other} cannot be {doing}", hint=_cast_hint(parts))
    return kind


def _with_literal(kind: Any, part: Part, parts: Sequence[Part], doing: str) -> Any:
    """The type in which a column of one type and a constant meet."""
    value = part.value
    if value is None or _holds(kind, value):
        return kind
    if types.is_date(kind) and isinstance(value, dt.datetime):
        return pa.timestamp("us")
    if types.is_timestamp(kind) and isinstance(value, str | dt.date):
        try:
            return pa.timestamp(datatypes.unit_for(value, kind.unit), tz=kind.tz)
        except ValueError as error:
            raise MismatchError(f"{value!r} is not a time in ISO form") from error
    if types.is_duration(kind) and isinstance(value, dt.timedelta):
        return pa.duration(datatypes.unit_for(value, kind.unit))
    return _common(kind, part.type, parts, doing)


def _holds(kind: Any, value: Any) -> bool:
    """Whether a constant can take a column's type as it is."""
    match value:
        case bool():
            return bool(types.is_boolean(kind))
        case int():
            return bool(types.is_floating(kind)) or _fits(value, kind)
        case float():
            return bool(types.is_floating(kind)) or (
                value.is_integer() and abs(value) < 2**53 and _fits(int(value), kind)
            )
        case str():
            return bool(datatypes.is_text(kind) or types.is_date(kind))
        case bytes():
            return bool(datatypes.is_bytes(kind))
        case _:
            return False


def _fits(value: int, kind: Any) -> bool:
    if not types.is_integer(kind):
        return False
    bits = int(kind.bit_width)
    half = 1 << (bits - 1)
    is_unsigned = bool(types.is_unsigned_integer(kind))
    return 0 <= value < 2 * half if is_unsigned else -half <= value < half


def _cast_hint(parts: Sequence[Part]) -> str:
    """The line to write when a column should be what the other side is."""
    column = next((each for each in parts if not each.is_literal), None)
    other = next((each for each in parts if column is not None and each.type != column.type), None)
    if column is None or other is None or not column.text.isidentifier():
        return ""
    return f'if that is meant: col("{column.text}").cast("{other.type}")'

"""KERNELS: every function that an expression can call, by name, and how it is bound to types.

An entry takes bound parts and returns a type and an evaluation; most of them are one Arrow kernel after the sides were
made alike. `shoal.dataflow.api.streams.fn` and the operators of `Expression` are how users reach them;
`shoal.dataflow.language.binding` is the only caller. `is_total` says that no row can make it raise: the optimizer runs
only such ones earlier than written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.datatypes import types
from shoal.dataflow.language.expressions.division import Divide, dividing, floor_divide, modulo
from shoal.dataflow.language.expressions.parts import (
    Evaluate,
    MismatchError,
    Part,
    aligned,
    as_type,
    calling,
    kernel,
    literal,
    plain,
)

Made = tuple[Any, Evaluate]
Make = Callable[[Sequence[Part]], Made]


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a function is bound."""

    make: Make
    least: int
    most: int
    is_total: bool = True


# ---------------------------------------------------------------------------------------------------------
# Arithmetic


def _arithmetic(name: str, checked: str) -> Make:
    def make(parts: Sequence[Part]) -> Made:
        one, other = (plain(each) for each in parts)
        if name == "add" and (datatypes.is_text(one.type) or datatypes.is_text(other.type)):
            return _concat((one, other))
        one, other = _null_as(one, other), _null_as(other, one)
        if not (datatypes.is_number(one.type) and datatypes.is_number(other.type)):
            return _time_arithmetic(name, one, other)
        one, other = _numbers(one, other)
        if name == "subtract" and types.is_unsigned_integer(one.type):  # what is left may well be below 0
            one, other = as_type(one, pa.int64()), as_type(other, pa.int64())
        return kernel(name if types.is_floating(one.type) else checked, (one, other))

    return make


def _null_as(part: Part, other: Part) -> Part:
    return as_type(part, other.type) if types.is_null(part.type) else part


def _numbers(one: Part, other: Part) -> tuple[Part, Part]:
    """Both sides as the numbers that the calculation is done with."""
    kind = datatypes.common_number(_firm_type(one, other), _firm_type(other, one))
    if types.is_decimal(kind):
        return _as_decimal(one), _as_decimal(other)
    return as_type(one, kind), as_type(other, kind)


def _firm_type(part: Part, other: Part) -> Any:
    """A float literal next to a narrow float is narrow, and a literal of 0 or more next to an unsigned is unsigned."""
    if part.is_literal and types.is_floating(other.type) and not types.is_decimal(part.type):
        return other.type
    if part.is_literal and types.is_unsigned_integer(other.type) and isinstance(part.value, int) and part.value >= 0:
        return other.type
    return part.type


def _as_decimal(part: Part) -> Part:
    if types.is_decimal(part.type):
        return part
    digits = len(str(abs(part.value))) if part.is_literal else datatypes.decimal_size(part.type)[0]
    return as_type(part, pa.decimal128(digits, 0))


def _time_arithmetic(name: str, one: Part, other: Part) -> Made:
    """Times and durations: what the kernels allow, with units made alike."""
    if datatypes.is_time_or_date(one.type) and datatypes.is_time_or_date(other.type) and name == "subtract":
        return kernel(name, aligned((one, other), "subtracted"))
    one, other = _with_unit_of(one, other), _with_unit_of(other, one)
    temporal = any(datatypes.is_time_or_date(each.type) or types.is_duration(each.type) for each in (one, other))
    if not temporal or name == "divide":
        words = {"add": "added", "subtract": "subtracted", "multiply": "multiplied", "power": "raised to a power"}
        raise MismatchError(f"{one.type} and {other.type} cannot be {words.get(name, 'divided')}")
    return kernel(name, (one, other))


def _with_unit_of(part: Part, other: Part) -> Part:
    if part.is_literal and types.is_duration(part.type) and (types.is_timestamp(other.type)):
        return as_type(part, pa.duration(datatypes.unit_for(part.value, other.type.unit)))
    return part


def _divide(parts: Sequence[Part]) -> Made:
    one, other = (plain(each) for each in parts)
    if not (datatypes.is_number(one.type) and datatypes.is_number(other.type)):
        return _time_arithmetic("divide", one, other)
    one, other = _numbers(one, other)
    if types.is_decimal(one.type):
        return kernel("divide", (one, other))
    kind = one.type if types.is_floating(one.type) else pa.float64()
    return kernel("divide", (as_type(one, kind), as_type(other, kind)))


def _whole_division(function: Divide) -> Make:
    """`//` and `%` as Python has them, rounding down."""

    def make(parts: Sequence[Part]) -> Made:
        one, other = (plain(each) for each in parts)
        if not (datatypes.is_number(one.type) and datatypes.is_number(other.type)):
            raise MismatchError(f"{one.type} and {other.type} cannot be divided")
        one, other = _numbers(one, other)
        if types.is_decimal(one.type):
            raise MismatchError("decimals have no // and %", hint='cast one side: .cast("double")')
        return one.type, dividing(function, one, other)

    return make


def _negate(parts: Sequence[Part]) -> Made:
    part = plain(parts[0])
    if types.is_unsigned_integer(part.type):
        part = as_type(part, pa.int64())
    if not (datatypes.is_number(part.type) or types.is_duration(part.type)):
        raise MismatchError(f"{part.type} has no negative")
    return kernel("negate_checked" if types.is_integer(part.type) else "negate", (part,))


def _power(parts: Sequence[Part]) -> Made:
    one, other = (plain(each) for each in parts)
    if not (datatypes.is_number(one.type) and datatypes.is_number(other.type)):
        return _time_arithmetic("power", one, other)
    return kernel("power", (as_type(one, pa.float64()), as_type(other, pa.float64())))


# ---------------------------------------------------------------------------------------------------------
# Comparison and logic


def _compare(name: str) -> Make:
    return lambda parts: kernel(name, aligned(parts, "compared"))


def _logic(name: str) -> Make:
    def make(parts: Sequence[Part]) -> Made:
        for each in parts:
            if not (types.is_boolean(each.type) or types.is_null(each.type)):
                raise MismatchError(
                    f"{each.text} is {each.type}, and &, | and ~ take booleans",
                    hint="put parentheses around comparisons: (a > 1) & (b < 2)",
                )
        return kernel(name, [as_type(each, pa.bool_()) for each in parts])

    return make


def _is_in(parts: Sequence[Part]) -> Made:
    part, values = plain(parts[0]), parts[1].value
    kind, made = part.type, []
    for value in values:
        try:
            one = literal(value, datatypes.literal_type(value), repr(value))
        except TypeError as error:
            raise MismatchError(str(error)) from error
        kind = aligned([Part(kind, part.evaluate, part.text), one], "compared")[0].type
    part = as_type(part, kind)
    made = [literal(value, kind, repr(value)).evaluate(None) for value in values]
    options = pc.SetLookupOptions(value_set=pa.array([each.as_py() for each in made], kind), skip_nulls=True)
    return kernel("is_in", (part,), options=options)


def _simple(name: str) -> Make:
    return lambda parts: kernel(name, [plain(each) for each in parts])


def _alike(name: str, doing: str, options: Any = None) -> Make:
    return lambda parts: kernel(name, aligned(parts, doing), options=options)


def _if_else(parts: Sequence[Part]) -> Made:
    if not types.is_boolean(parts[0].type):
        raise MismatchError(f"the condition {parts[0].text} is {parts[0].type}, not a boolean")
    one, other = aligned(parts[1:], "put into one column")
    return kernel("if_else", (parts[0], one, other))


def _null_if(parts: Sequence[Part]) -> Made:
    one, other = aligned(parts, "compared")
    kind, equal = kernel("equal", (one, other))
    nothing = literal(None, one.type, "null")
    return kernel("if_else", (Part(kind, equal, "equal"), nothing, one))


# ---------------------------------------------------------------------------------------------------------
# Types and structure


def _cast(parts: Sequence[Part]) -> Made:
    part, name = parts[0], parts[1].value
    try:
        kind = datatypes.parse_type(str(name))
    except ValueError as error:
        raise MismatchError(
            f"{name!r} is no type", hint='such as "int64", "double", "string", "timestamp[us]"'
        ) from error
    made = as_type(Part(part.type, part.evaluate, part.text), kind)  # not as a literal: a cast may change its kind
    return kind, made.evaluate


def _struct_field(parts: Sequence[Part]) -> Made:
    part, name = parts[0], parts[1].value
    if not types.is_struct(part.type):
        raise MismatchError(f"{part.text} is {part.type} and has no fields")
    if part.type.get_field_index(name) < 0:
        raise MismatchError(f"has no field {name!r}: there are {', '.join(each.name for each in part.type)}")
    return kernel("struct_field", (part,), options=pc.StructFieldOptions([part.type.get_field_index(name)]))


# ---------------------------------------------------------------------------------------------------------
# Text


def _text(part: Part) -> Part:
    part = plain(part)
    if not datatypes.is_text(part.type):
        hint = f'if that is meant: col("{part.text}").cast("string")' if part.text.isidentifier() else ""
        raise MismatchError(f"{part.text} is {part.type}, not text", hint=hint)
    return part


def _on_text(name: str, options: Callable[..., Any] | None = None) -> Make:
    """A kernel over text, with options made of the literals behind the first argument."""

    def make(parts: Sequence[Part]) -> Made:
        settings = [constant(each) for each in parts[1:]]
        return kernel(name, (_text(parts[0]),), options=options(*settings) if options else None)

    return make


def constant(part: Part) -> Any:
    """A setting: it must be the same for all rows, because the kernel takes it beside the columns."""
    if not part.is_literal:
        raise MismatchError(f"{part.text} must be a constant here")
    return part.value


def _concat(parts: Sequence[Part]) -> Made:
    texts = [_text(each) for each in parts]
    kind = pa.large_string() if any(types.is_large_string(each.type) for each in texts) else pa.string()
    glue = literal("", kind, "''")
    return kernel("binary_join_element_wise", [*(as_type(each, kind) for each in texts), glue])


def _substring(part_start: int, length: int | None = None) -> Any:
    stop = None if length is None else part_start + length
    return pc.SliceOptions(part_start, stop) if stop is not None else pc.SliceOptions(part_start)


# ---------------------------------------------------------------------------------------------------------
# Numbers and time


def _on_number(name: str, *, as_float: bool = False) -> Make:
    def make(parts: Sequence[Part]) -> Made:
        part = plain(parts[0])
        if not datatypes.is_number(part.type):
            raise MismatchError(f"{part.text} is {part.type}, not a number")
        if as_float and not types.is_floating(part.type):
            part = as_type(part, pa.float64())
        return kernel(name, (part,))

    return make


def _round(parts: Sequence[Part]) -> Made:
    digits = constant(parts[1]) if len(parts) > 1 else 0
    options = pc.RoundOptions(ndigits=digits, round_mode="half_to_even")
    return kernel("round", (plain(parts[0]),), options=options)


def _on_time(name: str, options: Any = None) -> Make:
    def make(parts: Sequence[Part]) -> Made:
        part = plain(parts[0])
        if not (datatypes.is_time_or_date(part.type) or types.is_time(part.type)):
            hint = f'numbers become times with fn.to_timestamp(col("{part.text}"), "ms")'
            raise MismatchError(f"{part.text} is {part.type}, not a time", hint=hint)
        return kernel(name, (part,), options=options)

    return make


_TRUNCATIONS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year", "millisecond")


def _truncate(parts: Sequence[Part]) -> Made:
    unit = constant(parts[1])
    if unit not in _TRUNCATIONS:
        raise MismatchError(f"{unit!r} is no unit: there are {', '.join(_TRUNCATIONS)}")
    return _on_time("floor_temporal", pc.RoundTemporalOptions(1, unit))(parts[:1])


def _to_timestamp(parts: Sequence[Part]) -> Made:
    part, unit = plain(parts[0]), _unit(parts[1])
    if types.is_integer(part.type):
        made = as_type(as_type(Part(part.type, part.evaluate, part.text), pa.int64()), pa.timestamp(unit))
        return made.type, made.evaluate
    made = as_type(_text(part), pa.timestamp(unit))
    return made.type, made.evaluate


def _epoch(parts: Sequence[Part]) -> Made:
    part, unit = plain(parts[0]), _unit(parts[1])
    if not datatypes.is_time_or_date(part.type):
        raise MismatchError(f"{part.text} is {part.type}, not a time")
    stamp = as_type(Part(part.type, part.evaluate, part.text), pa.timestamp(unit))
    made = as_type(stamp, pa.int64())
    return made.type, made.evaluate


def _unit(part: Part) -> str:
    unit = constant(part)
    if unit not in ("s", "ms", "us", "ns"):
        raise MismatchError(f"{unit!r} is no unit: there are s, ms, us, ns")
    return str(unit)


def _list_element(parts: Sequence[Part]) -> Made:
    part = parts[0]
    if not (types.is_list(part.type) or types.is_large_list(part.type)):
        raise MismatchError(f"{part.text} is {part.type}, not a list")
    position = literal(constant(parts[1]), pa.int64(), parts[1].text)
    function = pc.get_function("list_element")
    return part.type.value_type, calling(function, (part.evaluate, position.evaluate), None)


_MATCH = pc.MatchSubstringOptions
_EXTREME = pc.ElementWiseAggregateOptions(skip_nulls=True)

KERNELS: dict[str, Kernel] = {
    "add": Kernel(_arithmetic("add", "add_checked"), 2, 2, is_total=False),
    "subtract": Kernel(_arithmetic("subtract", "subtract_checked"), 2, 2, is_total=False),
    "multiply": Kernel(_arithmetic("multiply", "multiply_checked"), 2, 2, is_total=False),
    "divide": Kernel(_divide, 2, 2, is_total=False),
    "floor_divide": Kernel(_whole_division(floor_divide), 2, 2),
    "modulo": Kernel(_whole_division(modulo), 2, 2),
    "power": Kernel(_power, 2, 2),
    "negate": Kernel(_negate, 1, 1, is_total=False),
    **{
        name: Kernel(_compare(name), 2, 2)
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    },
    "and": Kernel(_logic("and_kleene"), 2, 2),
    "or": Kernel(_logic("or_kleene"), 2, 2),
    "not": Kernel(_logic("invert"), 1, 1),
    "is_null": Kernel(_simple("is_null"), 1, 1),
    "is_valid": Kernel(_simple("is_valid"), 1, 1),
    "is_nan": Kernel(_on_number("is_nan", as_float=True), 1, 1),
    "fill_null": Kernel(_alike("coalesce", "put into one column"), 2, 2),
    "coalesce": Kernel(_alike("coalesce", "put into one column"), 1, 64),
    "if_else": Kernel(_if_else, 3, 3),
    "null_if": Kernel(_null_if, 2, 2),
    "greatest": Kernel(_alike("max_element_wise", "compared", _EXTREME), 1, 64),
    "least": Kernel(_alike("min_element_wise", "compared", _EXTREME), 1, 64),
    "is_in": Kernel(_is_in, 2, 2),
    "cast": Kernel(_cast, 2, 2, is_total=False),
    "struct_field": Kernel(_struct_field, 2, 2),
    "list_element": Kernel(_list_element, 2, 2, is_total=False),
    "list_length": Kernel(_simple("list_value_length"), 1, 1),
    "upper": Kernel(_on_text("utf8_upper"), 1, 1),
    "lower": Kernel(_on_text("utf8_lower"), 1, 1),
    "trim": Kernel(_on_text("utf8_trim_whitespace"), 1, 1),
    "left_trim": Kernel(_on_text("utf8_ltrim_whitespace"), 1, 1),
    "right_trim": Kernel(_on_text("utf8_rtrim_whitespace"), 1, 1),
    "length": Kernel(_on_text("utf8_length"), 1, 1),
    "substring": Kernel(_on_text("utf8_slice_codeunits", _substring), 2, 3),
    "replace": Kernel(_on_text("replace_substring", pc.ReplaceSubstringOptions), 3, 3),
    "starts_with": Kernel(_on_text("starts_with", _MATCH), 2, 2),
    "ends_with": Kernel(_on_text("ends_with", _MATCH), 2, 2),
    "contains": Kernel(_on_text("match_substring", _MATCH), 2, 2),
    "matches": Kernel(_on_text("match_substring_regex", _MATCH), 2, 2),
    "concat": Kernel(_concat, 1, 64),
    "abs": Kernel(_on_number("abs_checked"), 1, 1, is_total=False),
    "floor": Kernel(_on_number("floor"), 1, 1),
    "ceil": Kernel(_on_number("ceil"), 1, 1),
    "round": Kernel(_round, 1, 2, is_total=False),
    "sign": Kernel(_on_number("sign"), 1, 1),
    "sqrt": Kernel(_on_number("sqrt", as_float=True), 1, 1),
    "exp": Kernel(_on_number("exp", as_float=True), 1, 1),
    "ln": Kernel(_on_number("ln", as_float=True), 1, 1),
    "log10": Kernel(_on_number("log10", as_float=True), 1, 1),
    **{
        name: Kernel(_on_time(name), 1, 1)
        for name in ("year", "month", "day", "hour", "minute", "second", "quarter", "day_of_year", "iso_week")
    },
    "day_of_week": Kernel(_on_time("day_of_week", pc.DayOfWeekOptions(count_from_zero=False)), 1, 1),
    "truncate": Kernel(_truncate, 2, 2),
    "to_timestamp": Kernel(_to_timestamp, 2, 2, is_total=False),
    "epoch": Kernel(_epoch, 2, 2, is_total=False),
}

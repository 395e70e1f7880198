"""Functions over columns: `fn.upper(col("name"))`, `fn.coalesce(col("a"), col("b"), 0)`.

Each makes a call that `shoal.dataflow.language.binding` checks and runs as a kernel. What is no expression is a
literal.
"""

from __future__ import annotations

from shoal.dataflow.language.expressions.trees import Expression, Operand, call


def upper(text: Operand) -> Expression:
    """In capitals."""
    return call("upper", text)


def lower(text: Operand) -> Expression:
    """In small letters."""
    return call("lower", text)


def trim(text: Operand) -> Expression:
    """Without white space at both ends."""
    return call("trim", text)


def left_trim(text: Operand) -> Expression:
    """Without white space at the beginning."""
    return call("left_trim", text)


def right_trim(text: Operand) -> Expression:
    """Without white space at the end."""
    return call("right_trim", text)


def length(text: Operand) -> Expression:
    """How many characters."""
    return call("length", text)


def substring(text: Operand, start: int, length: int | None = None) -> Expression:
    """So many characters from a place on, counted from 0; to the end without a length."""
    return call("substring", text, start) if length is None else call("substring", text, start, length)


def replace(text: Operand, pattern: str, replacement: str) -> Expression:
    """With every `pattern` replaced."""
    return call("replace", text, pattern, replacement)


def starts_with(text: Operand, pattern: str) -> Expression:
    """Whether it begins so."""
    return call("starts_with", text, pattern)


def ends_with(text: Operand, pattern: str) -> Expression:
    """Whether it ends so."""
    return call("ends_with", text, pattern)


def contains(text: Operand, pattern: str) -> Expression:
    """Whether it is somewhere in it."""
    return call("contains", text, pattern)


def matches(text: Operand, pattern: str) -> Expression:
    """Whether a regular expression is found in it."""
    return call("matches", text, pattern)


def concat(*texts: Operand) -> Expression:
    """One behind the other; null where one of them is."""
    return call("concat", *texts)


def abs(number: Operand) -> Expression:  # noqa: A001  `fn.abs` reads as it should; nothing here uses the built-in
    """Without its sign."""
    return call("abs", number)


def floor(number: Operand) -> Expression:
    """The next whole number below."""
    return call("floor", number)


def ceil(number: Operand) -> Expression:
    """The next whole number above."""
    return call("ceil", number)


def round(number: Operand, digits: int = 0) -> Expression:  # noqa: A001  as `fn.abs`
    """To so many digits; halves to the even one, as Python does."""
    return call("round", number, digits)


def sign(number: Operand) -> Expression:
    """-1, 0 or 1."""
    return call("sign", number)


def sqrt(number: Operand) -> Expression:
    """The square root; NaN below 0."""
    return call("sqrt", number)


def exp(number: Operand) -> Expression:
    """Euler's number to that power."""
    return call("exp", number)


def ln(number: Operand) -> Expression:
    """The natural logarithm."""
    return call("ln", number)


def log10(number: Operand) -> Expression:
    """The logarithm to base 10."""
    return call("log10", number)


def power(base: Operand, exponent: Operand) -> Expression:
    """As a float."""
    return call("power", base, exponent)


def greatest(*values: Operand) -> Expression:
    """The greatest of several in each row, without those that are null."""
    return call("greatest", *values)


def least(*values: Operand) -> Expression:
    """The least of several in each row, without those that are null."""
    return call("least", *values)


def coalesce(*values: Operand) -> Expression:
    """The first that is not null."""
    return call("coalesce", *values)


def if_else(condition: Operand, value: Operand, otherwise: Operand) -> Expression:
    """One of two, as a condition says; null where the condition is."""
    return call("if_else", condition, value, otherwise)


def null_if(value: Operand, other: Operand) -> Expression:
    """The value, or null where it equals the other."""
    return call("null_if", value, other)


def is_nan(number: Operand) -> Expression:
    """Whether it is not a number."""
    return call("is_nan", number)


def year(time: Operand) -> Expression:
    """Of a time: its year."""
    return call("year", time)


def quarter(time: Operand) -> Expression:
    """Of a time: 1 to 4."""
    return call("quarter", time)


def month(time: Operand) -> Expression:
    """Of a time: 1 to 12."""
    return call("month", time)


def iso_week(time: Operand) -> Expression:
    """Of a time: 1 to 53."""
    return call("iso_week", time)


def day(time: Operand) -> Expression:
    """Of a time: the day of its month."""
    return call("day", time)


def day_of_week(time: Operand) -> Expression:
    """Of a time: 1 for Monday to 7 for Sunday."""
    return call("day_of_week", time)


def day_of_year(time: Operand) -> Expression:
    """Of a time: 1 to 366."""
    return call("day_of_year", time)


def hour(time: Operand) -> Expression:
    """Of a time: 0 to 23."""
    return call("hour", time)


def minute(time: Operand) -> Expression:
    """Of a time: 0 to 59."""
    return call("minute", time)


def second(time: Operand) -> Expression:
    """Of a time: 0 to 59."""
    return call("second", time)


def truncate(time: Operand, unit: str) -> Expression:
    """The beginning of its second, minute, hour, day, week, month, quarter or year."""
    return call("truncate", time, unit)


def to_timestamp(value: Operand, unit: str = "us") -> Expression:
    """Whole numbers since 1970 in this unit, or a text in ISO form, as a timestamp."""
    return call("to_timestamp", value, unit)


def epoch(time: Operand, unit: str = "us") -> Expression:
    """A time as a whole number of these units since 1970."""
    return call("epoch", time, unit)


def list_length(values: Operand) -> Expression:
    """How many entries a list has."""
    return call("list_length", values)


def list_element(values: Operand, position: int) -> Expression:
    """An entry of a list, counted from 0."""
    return call("list_element", values, position)

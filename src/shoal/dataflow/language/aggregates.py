"""The aggregate functions by name: what they take, the type that comes out, and whether parts can be merged.

`shoal.dataflow.plan.inference` checks with it, the optimizer asks what can be merged, and the operators calculate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.datatypes import types


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """One of them."""

    #: The type of the result for a type of input, or None when it does not take that.
    result: Callable[[Any], Any | None]
    takes: str
    #: Results over parts of the rows can be put together to the result over all.
    is_mergeable: bool = True
    #: A row can be taken back out of a result, so that it can stand over changes.
    is_reversible: bool = False
    options: tuple[str, ...] = ()


def _sum_type(kind: Any) -> Any | None:
    if types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if types.is_unsigned_integer(kind):
        return pa.uint64()
    if types.is_integer(kind) or types.is_boolean(kind):
        return pa.int64()
    if types.is_duration(kind):
        return kind
    return pa.float64() if types.is_floating(kind) else None


def _float_of_number(kind: Any) -> Any | None:
    return pa.float64() if datatypes.is_number(kind) or types.is_boolean(kind) else None


def _is_view(kind: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _same_if_ordered(kind: Any) -> Any | None:
    plain = datatypes.plain(kind)
    # Arrow can neither take rows of views nor compare decimals of 32 and 64 bits.
    narrow = types.is_decimal(plain) and not (types.is_decimal128(plain) or types.is_decimal256(plain))
    unordered = types.is_nested(plain) or types.is_interval(plain) or _is_view(kind) or narrow
    return None if unordered else plain


def _same(kind: Any) -> Any | None:
    return None if _is_view(kind) else datatypes.plain(kind)


def _count_of_single(kind: Any) -> Any | None:
    plain = datatypes.plain(kind)
    return None if types.is_nested(plain) or types.is_interval(plain) else pa.int64()


def _truth(kind: Any) -> Any | None:
    return kind if types.is_boolean(kind) else None


AGGREGATES: dict[str, AggregateFunction] = {
    "sum": AggregateFunction(_sum_type, "numbers", is_reversible=True),
    "count": AggregateFunction(lambda _kind: pa.int64(), "anything", is_reversible=True),
    "mean": AggregateFunction(_float_of_number, "numbers", is_reversible=True),
    "min": AggregateFunction(_same_if_ordered, "values with an order"),
    "max": AggregateFunction(_same_if_ordered, "values with an order"),
    "first": AggregateFunction(_same, "anything but views", is_mergeable=False),
    "last": AggregateFunction(_same, "anything but views", is_mergeable=False),
    "variance": AggregateFunction(_float_of_number, "numbers", options=("ddof",)),
    "stddev": AggregateFunction(_float_of_number, "numbers", options=("ddof",)),
    "count_distinct": AggregateFunction(_count_of_single, "single values", is_mergeable=False),
    "any": AggregateFunction(_truth, "booleans"),
    "all": AggregateFunction(_truth, "booleans"),
    "list": AggregateFunction(lambda kind: pa.list_(datatypes.plain(kind)), "anything", is_mergeable=False),
}

#: Other names that people know them by.
ALIASES: dict[str, str] = {
    "avg": "mean",
    "average": "mean",
    "var": "variance",
    "std": "stddev",
    "stdev": "stddev",
    "nunique": "count_distinct",
    "distinct": "count_distinct",
    "collect": "list",
}

"""`//` and `%` over columns, as Python has them: rounding down, and null where a whole number is divided by 0.

In numpy, over the columns' own memory: Arrow's integer division cuts toward zero and takes three times as long. Called
by `shoal.dataflow.language.expressions.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.language.expressions.datatypes import types
from shoal.dataflow.language.expressions.parts import Evaluate, Part

#: Over numpy numbers; the divisor is never 0 for whole ones.
Divide: TypeAlias = Callable[[Any, Any], Any]


def floor_divide(a: Any, b: Any) -> Any:
    """The quotient, rounded down."""
    return np.floor_divide(a, b)


def modulo(a: Any, b: Any) -> Any:
    """What is left, with the sign of the divisor."""
    if not (isinstance(a, np.ndarray) and a.dtype.kind in "iu"):
        return np.mod(a, b)
    whole = np.floor_divide(a, b)  # numpy is quick at this by one number, and at its own mod it is not
    np.multiply(whole, b, out=whole)
    return np.subtract(a, whole, out=whole)


def dividing(function: Divide, one: Part, other: Part) -> Evaluate:
    """An evaluation of two parts of one number type."""
    kind, numpy_type = one.type, one.type.to_pandas_dtype()
    if other.is_literal and other.value and types.is_integer(kind):
        return _by_constant(function, one, kind, numpy_type(other.value))

    def evaluate(batch: Any) -> Any:
        return _divide(function, one.evaluate(batch), other.evaluate(batch), kind)

    return evaluate


def _by_constant(function: Divide, one: Part, kind: Any, divisor: Any) -> Evaluate:
    """By one whole number that is not 0: nothing has to be looked at row by row."""
    numpy_type = type(divisor)

    def evaluate(batch: Any) -> Any:
        left = one.evaluate(batch)
        if isinstance(left, pa.Scalar):
            return _divide(function, left, pa.scalar(divisor, kind), kind)
        result = function(_view(left, numpy_type), divisor)
        return pa.array(result, kind, mask=None if not left.null_count else ~_validity(left))

    return evaluate


def _divide(function: Divide, left: Any, right: Any, kind: Any) -> Any:
    numpy_type = kind.to_pandas_dtype()
    is_one = isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar)
    count = 1 if is_one else max(len(each) for each in (left, right) if not isinstance(each, pa.Scalar))
    a, b = _view(left, numpy_type), _view(right, numpy_type)
    valid = _validity(left, right)
    zero = np.equal(b, 0)
    if types.is_integer(kind) and np.any(zero):
        valid = ~zero if valid is None else valid & ~zero
        b = np.where(zero, numpy_type(1), b)
    with np.errstate(all="ignore"):
        result = np.broadcast_to(function(a, b), (count,))
    mask = None if valid is None else ~np.broadcast_to(valid, result.shape)
    made = pa.array(result, kind, mask=mask, from_pandas=False)
    return made[0] if is_one else made


def _view(value: Any, numpy_type: Any) -> Any:
    """The numbers of an array without a copy, whatever stands where there is none; or one number."""
    if isinstance(value, pa.Scalar):
        return numpy_type(value.as_py() if value.is_valid else 0)
    buffer = value.buffers()[1]
    if buffer is None or not len(value):
        return np.zeros(len(value), numpy_type)
    start = value.offset * np.dtype(numpy_type).itemsize
    return np.frombuffer(buffer, numpy_type, count=len(value), offset=start)


def _validity(*values: Any) -> Any:
    """Where all have a value; None when that is everywhere."""
    valid: Any = None
    for value in values:
        if isinstance(value, pa.Scalar):
            if value.is_valid:
                continue
            here: Any = np.False_
        elif value.null_count:
            here = pc.is_valid(value).to_numpy(zero_copy_only=False)
        else:
            continue
        valid = here if valid is None else valid & here
    return valid

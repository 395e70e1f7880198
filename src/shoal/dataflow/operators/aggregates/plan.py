"""What an aggregation needs for the columns of its input: accumulators, and outputs that are made of them.

`bind` is called with the schema of the first batch. Aggregations that need the same thing share an accumulator: the
mean of a column and its sum keep one sum. Over changes, of which rows can be taken back, sums of floats are exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.aggregates import AGGREGATES
from shoal.dataflow.language.elements import CHANGE, Batch, Schema
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.keys import Array, combined
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.operators.aggregates import accumulators, exact, folds, logs
from shoal.dataflow.operators.aggregates.columns import (
    Cells,
    Column,
    Inputs,
    Mask,
    Objects,
    Values,
    Vector,
    back_to,
    is_any,
    is_dense_number,
    nullable,
    number_type,
    numbers,
    presence,
)
from shoal.dataflow.operators.aggregates.sparse import Sparse
from shoal.dataflow.operators.rows import make_records, object_array


@dataclass(frozen=True, slots=True)
class AccumulatorSpec:
    """One thing that is kept for every cell."""

    kind: str
    column: str
    #: The Arrow type of its values.
    type: Any
    as_float: bool = False
    #: A user's function, of a fold.
    function: Any = None

    @property
    def invertible(self) -> bool:
        """Whether what was merged can be removed again, exactly."""
        return self.kind == "nulls" or (self.kind == "sum" and self.dtype.kind in "iu")

    @property
    def function_of_two(self) -> Any:
        """What puts two values together, where that is all there is to it and a cell has one value; else None."""
        match self.kind:
            case "nulls" | "sum":
                return np.add
            case "min" | "max":
                names = ("fmin", "fmax") if self.dtype.kind == "f" else ("minimum", "maximum")
                return getattr(np, names[self.kind == "max"])
            case _:
                return None

    @property
    def identity(self) -> Any:
        """What changes nothing when it is put together with a value; of those that have a `function_of_two`."""
        if self.kind in ("nulls", "sum"):
            return 0
        return accumulators.extreme_start(self.dtype, greatest=self.kind == "max")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of its values."""
        return np.dtype(np.float64) if self.as_float else number_type(self.type)

    def make_accumulator(self) -> accumulators.Accumulator:
        """An empty accumulator."""
        match self.kind:
            case "nulls":
                return accumulators.NullAccumulator()
            case "sum":
                return accumulators.SumAccumulator(self.dtype, self.column)
            case "exact":
                return exact.ExactSumAccumulator()
            case "min" | "max":
                return accumulators.ExtremeAccumulator(self.dtype, greatest=self.kind == "max")
            case "moments":
                return accumulators.MomentAccumulator()
            case "first" | "last":
                return accumulators.EdgeAccumulator(self.dtype, last=self.kind == "last")
            case "fold":
                return folds.FoldAccumulator(self.function, self.type)
            case _:
                return logs.LogAccumulator(self.kind.removeprefix("log:"), self.type, self.column)

    def state_types(self) -> tuple[Any, ...]:
        """The Arrow types of what is written down for each cell."""
        number = pa.from_numpy_dtype(self.dtype) if self.kind in _NUMERIC else None
        match self.kind:
            case "nulls":
                return (pa.int64(),)
            case "sum" | "min" | "max":
                return (number,)
            case "exact":
                return exact.STATE_TYPES
            case "moments":
                return (pa.float64(),) * 3
            case "first" | "last":
                return (pa.bool_(), pa.int64(), number)
            case "fold":
                return (self.type,)
            case _:
                return (pa.large_list(pa.int64()), pa.large_list(self.type))

    def to_arrow(self, part: tuple[Any, ...]) -> list[Array]:
        """What `take` returned, as Arrow arrays."""
        if self.kind == "fold":
            return [part[0] if not isinstance(part[0], np.ndarray) else folds.structs_of(part[0], self.type)]
        if self.kind == "exact":
            return exact.to_arrow(part)
        return [pa.array(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else combined(a) for a in part]

    def from_arrow(self, arrays: Sequence[Array]) -> tuple[Any, ...]:
        """The inverse."""
        arrays = [combined(array) for array in arrays]
        if self.kind == "fold":
            return (folds.records_of(arrays[0]),)
        if self.kind == "exact":
            return exact.from_arrow(arrays)
        if self.kind.startswith("log:"):
            return tuple(arrays)
        return tuple(array.to_numpy(zero_copy_only=False) for array in arrays)


_NUMERIC = ("sum", "min", "max", "first", "last")
_REVERSIBLE = ("nulls", "sum", "exact", "log:sum")


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of the result."""

    name: str
    type: Any
    make: Callable[[Sparse], Array]


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """Accumulators and outputs of an aggregation over one schema."""

    schema: Schema
    specs: tuple[AccumulatorSpec, ...]
    outputs: tuple[ResultColumn, ...]
    #: What all outputs need is made once, of what was kept.
    ready: Callable[[Sparse], Sparse] | None = None

    @property
    def is_invertible(self) -> bool:
        """Whether all accumulators are."""
        return all(spec.invertible for spec in self.specs)

    @property
    def is_reversible(self) -> bool:
        """Whether single rows can be taken back out of its accumulators."""
        return all(spec.kind in _REVERSIBLE for spec in self.specs)

    def inputs(self, batch: Batch, times: Cells, *, with_changes: bool = False) -> Inputs:
        """The columns of a batch for its accumulators."""
        ready: dict[tuple[str, str], Column] = {}
        columns = []
        for spec in self.specs:
            place = (spec.column, _form(spec))
            if place not in ready:
                ready[place] = _prepare(spec, batch)
            columns.append(ready[place])
        return Inputs(tuple(columns), times, _signs(batch) if with_changes else None)

    def results(self, sparse: Sparse) -> list[Array]:
        """The outputs, with a row for each cell."""
        sparse = sparse if self.ready is None else self.ready(sparse)
        return [output.make(sparse) for output in self.outputs]

    def state_fields(self) -> list[Any]:
        """The columns of what is written down for each cell; their names begin as hidden ones do."""
        fields = [pa.field("__rows", pa.int64())]
        for number, spec in enumerate(self.specs):
            fields += [
                pa.field(f"__accumulator_{number}_{place}", kind) for place, kind in enumerate(spec.state_types())
            ]
        return fields

    def to_arrow(self, sparse: Sparse) -> list[Array]:
        """The state of each cell, as `state_fields` says."""
        arrays = [pa.array(sparse.rows)]
        for spec, part in zip(self.specs, sparse.parts, strict=True):
            arrays += spec.to_arrow(part)
        return arrays

    def from_arrow(self, cells: Cells, batch: Any) -> Sparse:
        """The inverse, from a batch or a table that has those columns."""
        parts = tuple(
            spec.from_arrow(
                [batch.column(f"__accumulator_{number}_{place}") for place in range(len(spec.state_types()))]
            )
            for number, spec in enumerate(self.specs)
        )
        return Sparse(cells, combined(batch.column("__rows")).to_numpy(), parts)


def bind(aggregations: Sequence[Aggregation], schema: Schema, *, takes_back: bool = False) -> AggregatePlan:
    """Decide what to keep for these aggregations. With `takes_back` rows can be taken back out of it."""
    draft = _Draft(schema, takes_back=takes_back)
    outputs = tuple(draft.add(aggregation) for aggregation in aggregations)
    return AggregatePlan(schema, tuple(draft.specs), outputs)


def bind_fold(function: folds.Fold, schema: Schema) -> AggregatePlan:
    """A plan that applies a user's function to records; its outputs are the columns of the input."""
    kind = pa.struct(list(schema))
    spec = AccumulatorSpec("fold", "", kind, function=function)

    def ready(sparse: Sparse) -> Sparse:
        items = sparse.parts[0][0]
        structs = folds.structs_of(items, kind) if isinstance(items, np.ndarray) else items
        return Sparse(sparse.cells, sparse.rows, ((structs,),))

    def make(sparse: Sparse, *, place: int) -> Array:
        return sparse.parts[0][0].field(place)

    outputs = tuple(
        ResultColumn(field.name, field.type, functools.partial(make, place=place)) for place, field in enumerate(schema)
    )
    return AggregatePlan(schema, (spec,), outputs, ready)


class _Draft:
    """Accumulators so far."""

    def __init__(self, schema: Schema, *, takes_back: bool) -> None:
        self._schema = schema
        self._takes_back = takes_back
        self.specs: list[AccumulatorSpec] = []

    def add(self, aggregation: Aggregation) -> ResultColumn:
        name, column, function = aggregation.name, aggregation.column, aggregation.function
        if function not in AGGREGATES:
            raise InvalidError([problem(name, function, f"must be one of {', '.join(AGGREGATES)}")])
        if function == "count" and column == "*":
            return ResultColumn(name, pa.int64(), lambda sparse: pa.array(sparse.rows))
        kind = self._schema.field(column).type
        result = AGGREGATES[function].result(datatypes.plain(kind))
        if result is None:
            raise InvalidError([problem(name, str(kind), f"{function} takes {AGGREGATES[function].takes}")])
        return ResultColumn(name, result, self._make(aggregation, datatypes.plain(kind), result))

    def _make(self, aggregation: Aggregation, kind: Any, result: Any) -> Callable[[Sparse], Array]:
        column, function = aggregation.column, aggregation.function
        match function:
            case "count":
                valid = self._valid(column, kind)
                return lambda sparse: pa.array(valid(sparse))
            case "mean":
                return self._mean(column, kind)
            case "variance" | "stddev":
                ddof = int(dict(aggregation.options).get("ddof", 0))
                return self._spread(column, kind, ddof=ddof, root=function == "stddev")
            case "any" | "all":
                return self._dense("max" if function == "any" else "min", column, kind, result)
            case "count_distinct":
                accumulator = self._accumulator("log:distinct", column, _canonical_type(kind))
                return lambda sparse: logs.value_counts(sparse.parts[accumulator])
            case "list":
                accumulator = self._accumulator("log:list", column, kind)
                return lambda sparse: logs.value_lists(sparse.parts[accumulator], result)
            case _:
                return self._value(function, column, kind, result)

    def _value(self, function: str, column: str, kind: Any, result: Any) -> Callable[[Sparse], Array]:
        """Sum, min, max, first and last: one value of the column, or a sum of them."""
        takes_back = self._takes_back and function == "sum"
        if takes_back and pa.types.is_floating(kind):
            return self._exact_sum(column, kind)
        if is_dense_number(kind):
            return self._dense(function, column, kind, result)
        accumulator = self._accumulator(f"log:{function}", column, result)
        if not takes_back:
            return lambda sparse: logs.single_values(sparse.parts[accumulator], result)
        valid = self._valid(column, kind)
        return lambda sparse: nullable(logs.single_values(sparse.parts[accumulator], result), valid(sparse) > 0)

    def _accumulator(self, kind: str, column: str, value_type: Any, *, as_float: bool = False) -> int:
        spec = AccumulatorSpec(kind, column, value_type, as_float)
        if spec not in self.specs:
            self.specs.append(spec)
        return self.specs.index(spec)

    def _valid(self, column: str, kind: Any) -> Callable[[Sparse], Cells]:
        """How many rows of each cell have a value."""
        accumulator = self._accumulator("nulls", column, kind)

        def count(sparse: Sparse) -> Cells:
            nulls = sparse.parts[accumulator][0]
            return sparse.rows - nulls if is_any(nulls) else sparse.rows

        return count

    def _dense(self, function: str, column: str, kind: Any, result: Any) -> Callable[[Sparse], Array]:
        accumulator = self._accumulator(function, column, kind)
        if function in ("first", "last"):
            return lambda sparse: nullable(back_to(sparse.parts[accumulator][2], result), sparse.parts[accumulator][0])
        valid = self._valid(column, kind)
        return lambda sparse: nullable(
            _safe(sparse.parts[accumulator][0], valid(sparse) > 0, result), valid(sparse) > 0
        )

    def _exact_sum(self, column: str, kind: Any) -> Callable[[Sparse], Array]:
        accumulator, valid = self._accumulator("exact", column, kind, as_float=True), self._valid(column, kind)
        return lambda sparse: nullable(pa.array(exact.rounded(sparse.parts[accumulator])), valid(sparse) > 0)

    def _mean(self, column: str, kind: Any) -> Callable[[Sparse], Array]:
        as_float = not is_dense_number(kind)
        is_exact = self._takes_back and (as_float or pa.types.is_floating(kind))
        accumulator = self._accumulator("exact" if is_exact else "sum", column, kind, as_float=as_float or is_exact)
        valid = self._valid(column, kind)

        def mean(sparse: Sparse) -> Array:
            counts, part = valid(sparse), sparse.parts[accumulator]
            sums = exact.rounded(part) if is_exact else part[0]
            return nullable(pa.array(sums / np.maximum(counts, 1)), counts > 0)

        return mean

    def _spread(self, column: str, kind: Any, *, ddof: int, root: bool) -> Callable[[Sparse], Array]:
        accumulator = self._accumulator("moments", column, kind, as_float=True)

        def spread(sparse: Sparse) -> Array:
            counts, _means, squares = sparse.parts[accumulator]
            enough = counts > ddof
            variance = np.maximum(squares, 0) / np.where(enough, counts - ddof, 1)
            return nullable(pa.array(np.sqrt(variance) if root else variance), enough)

        return spread


def _safe(values: Vector, valid: Mask, result: Any) -> Array:
    """Where there is no value the accumulator has its start, which a narrower type may not hold."""
    return back_to(values if valid.all() else np.where(valid, values, values.dtype.type(0)), result)


def _canonical_type(kind: Any) -> Any:
    """The type of `keys.canonical`."""
    return pa.int64() if is_dense_number(kind) or pa.types.is_null(kind) else pa.binary()


def _form(spec: AccumulatorSpec) -> str:
    """Which form of its column an accumulator needs; accumulators of one form share it."""
    if spec.kind == "nulls":
        return "numbers" if is_dense_number(spec.type) else "presence"
    if spec.kind.startswith("log:"):
        return "values"
    if spec.kind == "fold":
        return "objects"
    return "floats" if spec.as_float else "numbers"


def _prepare(spec: AccumulatorSpec, batch: Batch) -> Column:
    form = _form(spec)
    if form == "objects":
        return Objects(object_array(make_records(batch, [field.name for field in spec.type])))
    array = combined(batch.column(spec.column))
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    match form:
        case "numbers":
            return numbers(array)
        case "floats":
            return numbers(array, as_float=True)
        case "presence":
            return presence(array)
        case _:
            return Values(array)


_TAKES_BACK = ("-U", "-D")


def _signs(batch: Batch) -> Cells:
    """-1 for the rows that take an earlier one back."""
    changes = combined(batch.column(CHANGE))
    return np.where(np.isin(np.array(changes.to_pylist(), dtype=object), _TAKES_BACK), -1, 1)

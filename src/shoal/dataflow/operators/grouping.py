"""What is aggregated, by which keys, and what the rows of the result look like.

Shared by all operators that aggregate. The columns: keys, `window_start` and `window_end` where there is a window, the
aggregates by the user's names, then `op` where results change. A reduction has the columns of its input in
place of keys and aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import CHANGE, TIME, WINDOW_END, WINDOW_START, Batch, Schema
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.datatypes import WINDOW_TYPE
from shoal.dataflow.language.keys import Array, Integers
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.operators.aggregates import plan as plans
from shoal.dataflow.operators.aggregates.folds import Fold
from shoal.dataflow.operators.aggregates.sparse import Sparse
from shoal.dataflow.operators.aggregates.store import Rows
from shoal.dataflow.operators.rows import visible_names

#: Where a partial batch says what the columns were that it was made of.
INPUT_SCHEMA = b"shoal.input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """What is aggregated. Either `aggregations`, or the `function` of a reduction."""

    keys: tuple[str, ...] = ()
    aggregations: tuple[Aggregation, ...] = ()
    function: Fold | None = None
    #: Whether the input was aggregated in part already, by `PartialAggregate`.
    is_partial: bool = False
    #: Whether results carry their event time, for those behind.
    emits_time: bool = False

    def input_schema(self, schema: Schema) -> Schema:
        """The columns of the rows that are aggregated, without hidden ones, from the schema of a batch."""
        if self.is_partial:
            return pa.ipc.read_schema(pa.py_buffer(schema.metadata[INPUT_SCHEMA]))
        return pa.schema([schema.field(name) for name in visible_names(schema)])

    @property
    def description(self) -> str:
        """What is aggregated, in the order in which it is kept; results may be called what they like."""
        parts = (
            f"{each.function}({each.column}{''.join(f', {name}={value}' for name, value in each.options)})"
            for each in self.aggregations
        )
        return "a reduction" if self.function is not None else ", ".join(parts) or "keys"

    def bind(self, schema: Schema, *, takes_back: bool = False) -> plans.AggregatePlan:
        """The plan for rows of such columns; with `takes_back` for rows that can be taken back."""
        if self.function is not None:
            return plans.bind_fold(self.function, schema)
        return plans.bind(self.aggregations, schema, takes_back=takes_back)

    def check_types(self, plan: plans.AggregatePlan, schema: Schema) -> None:
        """Refuse rows of other types than the state was made of: it would go on with numbers that are not the rows'."""
        names = {each.column for each in self.aggregations if each.column != "*"}
        if self.function is not None:  # a record of a reduction has all columns
            names = {*plan.schema.names, *schema.names}
        changed = [
            problem(f"column {name!r}", _type_of(schema, name), f"must be {_type_of(plan.schema, name)}")
            for name in sorted(names)
            if _type_of(schema, name) != _type_of(plan.schema, name)
        ]
        if changed:
            raise InvalidError(
                changed,
                what="state in the checkpoint",
                hint="a step over other types is another step: give it a uid of its own, .uid(…)",
            )

    def piece(self, plan: plans.AggregatePlan, batch: Batch, cells: Integers, times: Integers) -> Sparse | Rows:
        """The rows of a batch, for a store."""
        if self.is_partial:
            return plan.from_arrow(cells, batch)
        return Rows(cells, plan.inputs(batch, times))

    def assemble(
        self,
        plan: plans.AggregatePlan,
        keys: Sequence[Array],
        sparse: Sparse,
        *,
        results: Sequence[Array] | None = None,
        windows: tuple[Integers, Integers] | None = None,
        changes: Array | None = None,
        times: Integers | None = None,
    ) -> Batch:
        """A batch of results. `results` where they were made already."""
        names, arrays = self._leading(keys)
        bounds = [] if windows is None else [pa.array(bound).view(WINDOW_TYPE) for bound in windows]
        results = plan.results(sparse) if results is None else results
        outputs = [output.name for output in plan.outputs]
        if self.function is None:
            names += [*([WINDOW_START, WINDOW_END] if bounds else []), *outputs]
            arrays += [*bounds, *results]
        else:
            names += [*outputs, *([WINDOW_START, WINDOW_END] if bounds else [])]
            arrays += [*results, *bounds]
        if changes is not None:
            names.append(CHANGE)
            arrays.append(changes)
        if self.emits_time:
            names.append(TIME)
            arrays.append(pa.array(_result_times(windows, times, len(sparse))))
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _leading(self, keys: Sequence[Array]) -> tuple[list[str], list[Any]]:
        return (list(self.keys), list(keys)) if self.function is None else ([], [])


def _type_of(schema: Schema, name: str) -> str:
    return str(datatypes.plain(schema.field(name).type)) if name in schema.names else "no column"


def _result_times(windows: tuple[Integers, Integers] | None, times: Integers | None, rows: int) -> Integers:
    """A window's result belongs to its last moment, so that a window behind it counts it."""
    if times is not None:
        return times
    return np.zeros(rows, np.int64) if windows is None else windows[1] - 1

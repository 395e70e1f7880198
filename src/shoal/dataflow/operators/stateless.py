"""Filters and projections over bound expressions: what most rows go through, so it does as little as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import HIDDEN_PREFIX, Batch
from shoal.dataflow.language.failures import ExpressionError
from shoal.dataflow.language.keys import Array, combined
from shoal.dataflow.operators.base import Operator, Output
from shoal.dataflow.operators.policies import ErrorPolicy


class Evaluated(Protocol):
    """An expression that was bound to a schema."""

    def evaluate(self, batch: Batch) -> Array:
        """A value for each row."""
        ...


class Filter(Operator):
    """Rows for which an expression is true; null is not. With a policy, rows that it fails on are left out."""

    def __init__(self, *, predicate: Evaluated, policy: ErrorPolicy | None = None) -> None:
        self._predicate = predicate
        self._policy = policy

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Let them through."""
        if self._policy is None:
            emit_filtered(batch, self._predicate.evaluate(batch), out)
            return
        for part, mask in self._policy.apply(self._predicate.evaluate, batch, out):
            emit_filtered(part, mask, out)

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out."""
        return {} if self._policy is None else self._policy.statistics()


class Project(Operator):
    """Named expressions. With `keep_others` they replace columns in their place, and new ones come behind."""

    def __init__(
        self, *, columns: Sequence[tuple[str, Evaluated]], keep_others: bool = False, carried: Sequence[str] = ()
    ) -> None:
        self._columns = dict(columns)
        self._keep_others = keep_others
        self._carried = tuple(carried)
        self._plan: tuple[Any, list[tuple[str, int, Evaluated | None]]] | None = None

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Calculate the columns; hidden ones, and those that are carried, go along."""
        names: list[str] = []
        arrays: list[Array] = []
        for name, place, expression in self._layout(batch.schema):
            names.append(name)
            try:
                arrays.append(
                    batch.column(place) if expression is None else _column(expression.evaluate(batch), batch.num_rows)
                )
            except ExpressionError as error:
                raise ExpressionError(f"column {name!r}: {error.message}", **error.facts, column=name) from error
        if names:
            out.emit(pa.RecordBatch.from_arrays(arrays, names=names))

    def _layout(self, schema: Any) -> list[tuple[str, int, Evaluated | None]]:
        if self._plan is not None and self._plan[0] is schema:
            return self._plan[1]
        layout: list[tuple[str, int, Evaluated | None]] = []
        if self._keep_others:
            for place, name in enumerate(schema.names):
                if not name.startswith(HIDDEN_PREFIX):
                    layout.append((name, place, self._columns.get(name)))
        known = {name for name, _place, _expression in layout}
        layout += [(name, -1, expression) for name, expression in self._columns.items() if name not in known]
        known.update(self._columns)
        layout += [
            (name, place, None)
            for place, name in enumerate(schema.names)
            if name not in known and (name.startswith(HIDDEN_PREFIX) or name in self._carried)
        ]
        self._plan = (schema, layout)
        return layout


def emit_filtered(batch: Batch, mask: Any, out: Output) -> None:
    """Put out the rows for which a mask is true; a single truth stands for all rows."""
    if isinstance(mask, bool | np.bool_ | pa.BooleanScalar):
        if mask.as_py() if isinstance(mask, pa.BooleanScalar) else mask:
            out.emit(batch)
        return
    mask = combined(mask) if not isinstance(mask, np.ndarray) else pa.array(mask)
    kept = mask.true_count
    if kept == batch.num_rows:
        out.emit(batch)
    elif kept:
        out.emit(batch.filter(mask))


def _column(value: Any, rows: int) -> Array:
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, rows)
    return combined(value)

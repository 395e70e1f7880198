"""Filters and projections over bound expressions: what most rows go through, so it does as little as possible.

An expression is worked out for a whole batch. Only when that fails are the rows looked for that it failed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from shoal.dataflow.errors import ExpressionError
from shoal.dataflow.language.elements import HIDDEN_PREFIX, Batch
from shoal.dataflow.language.keys import Array, combined
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.operators.base import Output, StepOperator
from shoal.dataflow.operators.policies import LENIENT, ErrorPolicy, bad_rows, shown_rows

Result = TypeVar("Result")


class Evaluated(Protocol):
    """An expression that was bound to a schema."""

    def evaluate(self, batch: Batch) -> Array:
        """A value for each row."""
        ...


class Filter(StepOperator):
    """Rows for which an expression is true; null is not. Rows that it fails on follow the policy."""

    def __init__(self, *, predicate: Evaluated, policy: ErrorPolicy | None = None, reads: Collection[str] = ()) -> None:
        self._predicate = predicate
        self._policy = policy or ErrorPolicy()
        self._reads = reads

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Let them through."""
        if self._policy.on_error is OnError.FAIL:
            mask = _or_fail(self._predicate.evaluate, batch, lambda _column: self._reads)
            emit_filtered(batch, mask, out)
            return
        for part, mask in self._policy.apply(self._predicate.evaluate, batch, out):
            emit_filtered(part, mask, out)

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out."""
        return self._policy.statistics()


class Project(StepOperator):
    """Named expressions. With `keep_others` they replace columns in their place, and new ones come behind.

    Rows that one of them fails on follow the policy. `reads` says which columns each reads, for what is told of a row.
    """

    def __init__(
        self,
        *,
        columns: Sequence[tuple[str, Evaluated]],
        keep_others: bool = False,
        carried: Sequence[str] = (),
        policy: ErrorPolicy | None = None,
        reads: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._columns = dict(columns)
        self._keep_others = keep_others
        self._carried = tuple(carried)
        self._policy = policy or ErrorPolicy()
        self._reads = reads or {}
        self._plan: tuple[Any, list[tuple[str, int, Evaluated | None]]] | None = None

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Calculate the columns; hidden ones, and those that are carried, go along."""
        if self._policy.on_error is OnError.FAIL:
            made = [_or_fail(self._evaluated, batch, lambda column: self._reads.get(column, ()))]
        else:
            made = [each for _part, each in self._policy.apply(self._evaluated, batch, out)]
        results = [each for each in made if each is not None]
        if results:  # what is left of a batch goes on as one
            out.emit(results[0] if len(results) == 1 else pa.concat_batches(results))

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out."""
        return self._policy.statistics()

    def _evaluated(self, batch: Batch) -> Batch | None:
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
        return pa.RecordBatch.from_arrays(arrays, names=names) if names else None

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


def _or_fail(function: Callable[[Batch], Result], batch: Batch, reads: Callable[[str], Collection[str]]) -> Result:
    """What expressions make of a batch. When they cannot, the error says for which row."""
    try:
        return function(batch)
    except ExpressionError as error:
        bad = bad_rows(function, batch, error)
        if bad is None:
            raise
        told = _error_of(function, bad.slice(0, 1)) or error
        rows = shown_rows(bad, reads(str(told.facts.get("column", ""))))
        facts = {**told.facts, "row": rows[0], "rows": "\n".join(rows)}
        raise ExpressionError(f"{told.message} for the row {rows[0]}", hint=LENIENT, **facts) from error


def _error_of(function: Callable[[Batch], Any], row: Batch) -> ExpressionError | None:
    """The error of a row alone: another column may have failed in the batch before."""
    try:
        function(row)
    except ExpressionError as error:
        return error
    return None


def _column(value: Any, rows: int) -> Array:
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, rows)
    return combined(value)

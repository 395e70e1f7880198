"""The columns of a join's result, and batches of them from rows of both sides.

Left columns, then right columns without those right keys that are named as their left key; a right column whose name
the left has gets the suffix. A key that only the right side has fills the left column. Hidden columns: the event time
is the later one of the two, a trace is the left one, or the right one where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.language.elements import CHANGE, TIME, TRACE, WINDOW_END, WINDOW_START, Batch, Schema
from shoal.dataflow.language.expressions.datatypes import WINDOW_TYPE
from shoal.dataflow.language.keys import Array, Integers
from shoal.dataflow.language.logical import JoinKind
from shoal.dataflow.operators.rows import visible_names


@dataclass(frozen=True, slots=True)
class JoinedColumns:
    """How rows of two schemas become one."""

    left: Schema
    right: Schema
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    suffix: str = "_right"

    def right_names(self) -> list[tuple[str, str]]:
        """The right columns that are in the result: their name there, and here."""
        shared = {right for left, right in zip(self.left_keys, self.right_keys, strict=True) if left == right}
        taken = set(visible_names(self.left))
        return [
            (name, f"{name}{self.suffix}" if name in taken else name)
            for name in visible_names(self.right)
            if name not in shared
        ]

    def assemble(
        self,
        left: Batch | None,
        right: Batch | None,
        *,
        change: str = "",
        windows: tuple[Integers, Integers] | None = None,
        times: Integers | None = None,
    ) -> Batch:
        """Rows side by side; a side that is None has nulls. Single rows of a side may be nulls throughout, too."""
        rows = (left if left is not None else right).num_rows  # type: ignore[union-attr]  # one of them is there
        names, arrays = self._visible(left, right, rows)
        if windows is not None:
            names += [WINDOW_START, WINDOW_END]
            arrays += [pa.array(bound).view(WINDOW_TYPE) for bound in windows]
        if change:
            names.append(CHANGE)
            arrays.append(pa.repeat(pa.scalar(change, pa.string()), rows))
        for name, array in self._hidden(left, right, times):
            names.append(name)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _visible(self, left: Batch | None, right: Batch | None, rows: int) -> tuple[list[str], list[Array]]:
        names, arrays = [], []
        partner = dict(zip(self.left_keys, self.right_keys, strict=True))
        for name in visible_names(self.left):
            names.append(name)
            kind = self.left.field(name).type
            if left is not None:
                mine = _as(left.column(name), kind)
                if mine.null_count and right is not None and partner.get(name) == name:
                    # A key that matches is never null: where it is, there is a right row alone, or no right row.
                    mine = _as(pc.coalesce(mine, _as(right.column(name), kind)), kind)
                arrays.append(mine)
            elif right is not None and partner.get(name) == name:
                arrays.append(_as(right.column(name), kind))
            else:
                arrays.append(pa.nulls(rows, kind))
        for name, shown in self.right_names():
            names.append(shown)
            kind = self.right.field(name).type
            arrays.append(pa.nulls(rows, kind) if right is None else _as(right.column(name), kind))
        return names, arrays

    def _hidden(self, left: Batch | None, right: Batch | None, times: Integers | None) -> list[tuple[str, Array]]:
        sides = [side for side in (left, right) if side is not None]
        found: list[tuple[str, Array]] = []
        if times is not None:
            found.append((TIME, pa.array(times)))
        else:
            columns = [side.column(TIME) for side in sides if TIME in side.schema.names]
            if columns:
                found.append((TIME, columns[0] if len(columns) == 1 else pc.max_element_wise(*columns)))
        traces = [side.column(TRACE) for side in sides if TRACE in side.schema.names]
        if traces:
            found.append((TRACE, pc.coalesce(*traces)))
        return found


def _as(array: Array, kind: Any) -> Array:
    return array if array.type == kind else array.cast(kind)


def keys_of(batch: Batch, names: Sequence[str]) -> list[Array]:
    """The key columns."""
    return [batch.column(name) for name in names]


def described(kind: JoinKind, left: Schema, right: Schema, right_keys: tuple[str, ...]) -> str:
    """What its state is of: rows of another form, or by other keys, would be taken for something they are not."""
    sides = (", ".join(f"{field.name}: {field.type}" for field in side) for side in (left, right))
    return f"{kind.value} join of ({') with ('.join(sides)}) by {', '.join(right_keys)}, there"

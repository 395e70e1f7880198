"""The state of cells as a table, with the key of each: what aggregating operators snapshot and restore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import PreconditionError
from shoal.dataflow.language.elements import START_OF_TIME, Schema
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.language.windows import Window
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse
from shoal.dataflow.operators.base import OperatorState
from shoal.dataflow.operators.keys.index import KeyIndex, Keys
from shoal.dataflow.state.blobs import unpack
from shoal.dataflow.state.tables import TableState

_KEY = "__key_"
#: A column in place of keys where there are none: all rows have one key.
_ALL = "__all"
_FINGERPRINT = "fingerprint"
_NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})
_NO_GROUPS: Integers = np.zeros(0, np.int64)


def key_names(index: KeyIndex | Keys) -> tuple[str, ...]:
    """The key columns of such tables."""
    return tuple(f"{_KEY}{place}" for place in range(len(index.names))) or (_ALL,)


def key_table(index: KeyIndex | Keys, slots: Integers, extra: Mapping[str, Any] = _NO_COLUMNS) -> Any:
    """A table with the keys of these slots, and other columns."""
    keys = index.take(slots) if len(index.names) else [pa.array(np.zeros(len(slots), np.int8))]
    return pa.table([*keys, *map(_arrow, extra.values())], names=[*key_names(index), *extra])


def state_columns(plan: AggregatePlan, sparse: Sparse) -> dict[str, Any]:
    """What a plan keeps for cells, as columns of such a table."""
    return {column.name: array for column, array in zip(plan.state_fields(), plan.to_arrow(sparse), strict=True)}


def late_table(
    index: KeyIndex,
    slots: Integers,
    extra: Mapping[str, Any],
    total: int,
    *,
    by: Sequence[str] = (),
    gone: tuple[Any, Integers] = (None, _NO_GROUPS),
    floor: tuple[str, int] | None = None,
) -> Callable[[], TableState]:
    """The state of slots, known by their keys and the columns `by`: for `LateTables`.

    Keys are most of the work, and are gathered when it is called.
    """
    now = index.frozen()

    def make() -> TableState:
        return TableState(key_table(now, slots, extra), now.groups(slots, total), (*key_names(now), *by), *gone, floor)

    return make


def restored_slots(index: KeyIndex, table: Any) -> Integers:
    """The slots of the keys of such a table."""
    return index.slots_of([table.column(f"{_KEY}{place}") for place in range(len(index.names))], len(table))


def numbers_of(table: Any, name: str) -> Integers:
    """A column of whole numbers."""
    values: Integers = table.column(name).combine_chunks().to_numpy(zero_copy_only=False)
    return values


def fingerprint(keys: Sequence[str], what: str, window: Window | None = None) -> dict[str, str]:
    """What a snapshot says that it is state of, so that state of something else is not taken for it."""
    by = f" by {', '.join(keys)}" if keys else ""
    return {_FINGERPRINT: f"{what}{by}" + (f" in {window}" if window is not None else "")}


def check_fingerprint(facts: Mapping[str, Any], mine: Mapping[str, str]) -> None:
    """Refuse state of another form: read as this one it would silently lead to wrong numbers."""
    if facts.get(_FINGERPRINT) == mine[_FINGERPRINT]:
        return
    raise PreconditionError(
        f"its state in the checkpoint is of {facts.get(_FINGERPRINT)}, and the program has {mine[_FINGERPRINT]}",
        hint="a step that keeps something else is another step: give it a uid of its own, .uid(…), and start with "
        "allow_missing_state and allow_unknown_state; or start the job under another name",
    )


def restore_windows(
    states: Iterable[OperatorState],
    mine: Mapping[str, str],
    *,
    bind: Callable[[Schema], object],
    take_in: Callable[[Mapping[str, Any]], None],
) -> int:
    """Take in what tasks with windows have snapshotted: the columns by `bind`, once, then the rows of each table.

    Gives the watermark. All tasks had one, because barriers come after the same ones everywhere.
    """
    watermarks = []
    is_bound = False
    for state in states:
        if state.shared:
            shared = unpack(state.shared)
            check_fingerprint(shared.facts, mine)
            watermarks.append(shared.facts["watermark"])
            if "input" in shared.tables and not is_bound:
                bind(shared.tables["input"].schema)
                is_bound = True
        tables = {name: table.rows.combine_chunks() for name, table in state.tables.items() if len(table.rows)}
        if tables:
            take_in(tables)
    return min(watermarks, default=START_OF_TIME)


def _arrow(values: Any) -> Any:
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)

"""Tables of keyed state: what changed of one since the last snapshot, and how changes are merged into a whole.

An operator keeps its state as it likes and hands over tables: rows, each of a key group, that are known again by their
key columns. A later row replaces the earlier ones of its key; a key that is gone takes its rows with it; rows below a
floor, such as those of windows that have ended, are gone without being named. Pure. Called by operators that snapshot,
and by `shoal.dataflow.checkpoint`, which writes and merges changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Table: TypeAlias = Any
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_NO_GROUPS: Integers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class TableState:
    """Rows of a table with the key group of each: those that changed, or all of them."""

    rows: Table
    groups: Integers
    #: The columns that rows are known by; without any, rows are only added, and go by the floor.
    keys: tuple[str, ...] = ()
    #: The keys of rows that are gone, and their key groups. A row of the same change is newer than that.
    gone: Table | None = None
    gone_groups: Integers = field(default_factory=lambda: _NO_GROUPS)
    #: A column of whole numbers, and the least number of it that is still needed.
    floor: tuple[str, int] | None = None

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to write down."""
        return len(self.rows) > 0 or (self.gone is not None and len(self.gone) > 0)

    @property
    def nbytes(self) -> int:
        """About how large it is."""
        return int(self.rows.nbytes + (0 if self.gone is None else self.gone.nbytes))

    def of_groups(self, first: int, end: int) -> TableState:
        """The part of some key groups."""
        mine = (self.groups >= first) & (self.groups < end)
        if mine.all() and (self.gone is None or not len(self.gone)):
            return self
        gone, gone_groups = self.gone, self.gone_groups
        if gone is not None:
            chosen = (gone_groups >= first) & (gone_groups < end)
            gone, gone_groups = gone.filter(pa.array(chosen)), gone_groups[chosen]
        rows, groups = self.rows.filter(pa.array(mine)), self.groups[mine]
        return replace(self, rows=rows, groups=groups, gone=gone, gone_groups=gone_groups)


#: The tables of an operator by name.
Tables: TypeAlias = Mapping[str, TableState]


class LateTables(Mapping[str, TableState]):
    """Tables that are made when they are first read: by the thread that writes a snapshot, so that no row waits."""

    def __init__(self, makers: Mapping[str, Callable[[], TableState]]) -> None:
        self._makers = makers

    @functools.cached_property
    def _tables(self) -> Tables:
        return {name: make() for name, make in self._makers.items()}

    def __getitem__(self, name: str) -> TableState:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def merge_tables(layers: Sequence[Tables], *, keep_gone: bool = False) -> dict[str, TableState]:
    """Changes one after the other, the oldest first, as one; see `merge`."""
    names = dict.fromkeys(name for layer in layers for name in layer)
    return {name: merge([layer[name] for layer in layers if name in layer], keep_gone=keep_gone) for name in names}


def merge(parts: Sequence[TableState], *, keep_gone: bool = False) -> TableState:
    """Changes one after the other, the oldest first, as one. `keep_gone` when there are still older ones elsewhere."""
    keys, floors = parts[-1].keys, [part.floor for part in parts if part.floor is not None]
    floor = max(floors, key=lambda each: each[1], default=None)
    kept = [_above(part, floor) for part in parts]
    gone, gone_groups = None, _NO_GROUPS
    if keys and (len(kept) > 1 or not keep_gone):
        kept, gone, gone_groups = _newest(kept, keys, keep_gone=keep_gone)
    elif keep_gone:
        gone, gone_groups = parts[-1].gone, parts[-1].gone_groups
    filled = [part for part in kept if len(part.rows)] or kept[-1:]
    rows = stack([part.rows for part in filled])
    groups = np.concatenate([part.groups for part in filled])
    return TableState(rows, groups, keys, gone, gone_groups, floor)


def _newest(
    parts: list[TableState], keys: tuple[str, ...], *, keep_gone: bool
) -> tuple[list[TableState], Table | None, Integers]:
    """Of each key the rows of the newest part that has it."""
    named = [table for part in parts for table in (part.gone, part.rows) if table is not None]
    all_groups = [groups for part in parts for groups in (None if part.gone is None else part.gone_groups, part.groups)]
    codes = key_codes(
        stack([table.select(keys) for table in named]),
        keys,
        np.concatenate([groups for groups in all_groups if groups is not None]),
    )
    latest = np.full(int(codes.max()) + 1 if len(codes) else 0, -1, np.int64)
    # A key that is gone in a part is newer than the rows before, and older than those of the same part.
    turns, at = [], 0
    for number, part in enumerate(parts):
        for turn, table in ((2 * number, part.gone), (2 * number + 1, part.rows)):
            if table is None:
                continue
            mine = codes[at : at + len(table)]
            at += len(table)
            latest[mine] = turn
            turns.append((turn, mine))
    kept: list[TableState] = []
    gone: list[tuple[Table, Integers]] = []
    for turn, mine in turns:
        part = parts[turn // 2]
        current = latest[mine] == turn
        if turn % 2:
            kept.append(part if current.all() else _at(part, current))
        elif keep_gone and part.gone is not None:
            # Older rows are elsewhere, so a key stays gone also where newer rows of it are here.
            gone.append((part.gone, part.gone_groups))
    if not gone:
        return kept, None, _NO_GROUPS
    tables, groups = stack([table for table, _groups in gone]), np.concatenate([groups for _table, groups in gone])
    return kept, tables, groups


def _above(part: TableState, floor: tuple[str, int] | None) -> TableState:
    """Without the rows below the floor."""
    if floor is None or not len(part.rows):
        return part
    values = part.rows.column(floor[0]).combine_chunks().to_numpy(zero_copy_only=False)
    needed = values >= floor[1]
    return part if needed.all() else _at(part, needed)


def _at(part: TableState, mask: Any) -> TableState:
    return replace(part, rows=part.rows.filter(pa.array(mask)), groups=part.groups[mask])


def key_codes(table: Table, keys: Sequence[str], groups: Integers) -> Integers:
    """A whole number for each row, the same for equal keys of one key group."""
    codes = np.zeros(len(table), np.int64)
    for name in keys:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        encoded = _one_array(column).dictionary_encode(null_encoding="encode")
        found = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = codes * (len(encoded.dictionary) + 1) + found
        if len(keys) > 1:
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    if not len(codes):
        return codes
    found = np.zeros(int(codes.max()) + 1, np.int64)
    found[codes] = groups
    if (found[codes] == groups).all():  # mostly a key is of one group by itself
        return codes
    both = codes * (int(groups.max()) + 1) + groups
    return np.asarray(np.unique(both, return_inverse=True)[1], np.int64)


def _one_array(column: Any) -> Any:
    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def stack(tables: Sequence[Table]) -> Table:
    """Tables one after the other. Their columns may differ in what may be null, and in width.

    A column that some of them lack is left out: a hidden one, which nobody needs then.
    """
    if len(tables) == 1:
        return tables[0]
    if all(each.schema.equals(tables[0].schema) for each in tables):
        return pa.concat_tables(tables)
    names = [name for name in tables[0].schema.names if all(name in each.schema.names for each in tables)]
    tables = [each.select(names) for each in tables]
    return pa.concat_tables([each.replace_schema_metadata() for each in tables], promote_options="permissive")


def split_groups(table: Table, groups: Integers) -> Iterator[tuple[int, Any]]:
    """The rows of a table by key group, as a batch each; rows of a group stay in their order."""
    if not len(groups):
        return
    (rows,) = table.combine_chunks().to_batches()
    if (groups[1:] < groups[:-1]).any():
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        rows = rows.take(pa.array(order))
    counts = np.bincount(groups)
    ends = np.cumsum(counts)
    for group in np.flatnonzero(counts).tolist():
        yield group, rows.slice(int(ends[group] - counts[group]), int(counts[group]))

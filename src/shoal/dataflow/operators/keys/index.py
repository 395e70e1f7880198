"""From the keys of a batch to slots: small whole numbers, one for each different key, that state arrays are indexed by.

Every keyed operator has one. It is a hash table in numpy arrays: a batch is looked up at once, and what was found is
compared with the keys themselves, so two keys of one hash are never taken for each other. With few keys, or with whole
numbers that lie close together, there are quicker ways; such numbers are hashed only when something asks for their
hashes. Slots of keys without state are freed by `compact`, which
renumbers those that stay in their order; else memory would grow with every key that ever came.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language import keys as keying
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.keys import Array, Hashes, Integers
from shoal.dataflow.operators.keys.columns import KeyColumn, NumberColumn, make_column, with_room

#: With so few keys Arrow looks rows up among them directly, quicker than hashing them.
_FEW = 8_192
#: Whole-number keys within so small a range are looked up in a plain array.
_RANGE = 1 << 22

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

_MISSING = pa.scalar(-1, pa.int32())


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys by slot."""

    names: Sequence[str]
    types: Sequence[Any]
    columns: Sequence[KeyColumn]
    #: The hash of each slot, where they are known.
    hashes: Hashes | None = None

    def take(self, slots: Integers) -> list[Array]:
        """The key columns of some slots, in the types of the first batch."""
        return [column.take(slots, kind) for column, kind in zip(self.columns, self.types, strict=True)]

    def groups(self, slots: Integers, total: int) -> Integers:
        """The key group of each of these slots."""
        if not self.names or not len(slots):
            return np.zeros(len(slots), np.int64)
        hashes = keying.hash_arrays(self.take(slots)) if self.hashes is None else self.hashes[slots]
        return keying.groups_of(hashes, total)


class KeyIndex:
    """Slots by key."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._count = 0
        self._types: list[Any] = []
        self._columns: list[KeyColumn] = []
        self._hashes = np.zeros(0, np.uint64)
        self._table = _HashTable()
        #: Whether each slot has its hash and is in the table. The others are whole numbers, so many, and in the range.
        self._is_hashed = np.zeros(0, np.bool_)
        self._unhashed = 0
        #: Keys whose hash is that of another key; next to never is there one.
        self._collided: dict[Hashable, int] = {}
        self._lookup: Any = None
        self._range = _RangeTable()

    def __len__(self) -> int:
        return self._count if self.names else 1

    @property
    def is_bound(self) -> bool:
        """Whether the types of keys are known: rows have come, or were restored."""
        return bool(self._types) or not self.names

    def slots(self, batch: Batch) -> Integers:
        """The slot of each row; new keys get new slots."""
        return self.slots_of([batch.column(name) for name in self.names], batch.num_rows)

    def slots_of(self, columns: Sequence[Array], rows: int) -> Integers:
        """The same for key columns that are not named as the index names them."""
        if not self.names or not rows:
            return np.zeros(rows, np.int64)
        plain = self._canonical(columns)
        if len(plain) == 1:
            return self._single(plain[0])
        return self._by_hash(plain, add=True)

    def find(self, columns: Sequence[Array], rows: int) -> Integers:
        """The slot of each row, -1 where the key is not known. Adds nothing."""
        if not self.names:
            return np.zeros(rows, np.int64)
        if not self._count or not rows:
            return np.full(rows, -1, np.int64)
        return self._by_hash(self._canonical(columns), add=False)

    def take(self, slots: Integers) -> list[Array]:
        """The key columns of some slots, in the types of the first batch."""
        return Keys(self.names, self._types, self._columns).take(slots)

    def groups(self, slots: Integers, total: int) -> Integers:
        """The key group of each of these slots."""
        return Keys(self.names, self._types, self._columns, self._known_hashes()).groups(slots, total)

    def frozen(self) -> Keys:
        """The keys that there are now, for another thread. Copies none of them."""
        return Keys(self.names, self._types, [column.frozen() for column in self._columns], self._known_hashes())

    def _known_hashes(self) -> Hashes | None:
        """The hashes of all slots, if they are kept. Floats are kept by their bits, which have another hash."""
        is_kept = not self._unhashed and not any(pa.types.is_floating(kind) for kind in self._types)
        return self._hashes if is_kept else None

    def compact(self, live: np.ndarray[Any, np.dtype[np.bool_]]) -> Integers:
        """Forget all keys but these. Returns the new slot for each old one, -1 for those that are gone."""
        kept = np.flatnonzero(live)
        moved = np.full(len(live), -1, np.int64)
        moved[kept] = np.arange(len(kept))
        if self.names:
            for column in self._columns:
                column.keep(kept)
            self._count = len(kept)
            self._hashes, self._is_hashed = self._hashes[kept], self._is_hashed[kept]
            self._unhashed = self._count - int(np.count_nonzero(self._is_hashed))
            self._rebuild()
            self._lookup, self._range = None, _RangeTable()
        return moved

    def _rebuild(self) -> None:
        """Begin the table anew: the first key of a hash stands in it, others of the same hash apart."""
        hashed = np.flatnonzero(self._is_hashed)
        firsts = hashed[np.unique(self._hashes[hashed], return_index=True)[1]]
        self._table = _HashTable()
        self._table.insert(firsts, self._hashes)
        self._collided = {}
        self._set_apart(np.setdiff1d(hashed, firsts))

    def _set_apart(self, slots: Integers) -> None:
        """Keys whose hashes are in the table for others."""
        for slot in slots.tolist():
            self._collided[tuple(array[0].as_py() for array in self._plain(np.array([slot])))] = slot

    def _plain(self, slots: Integers) -> list[Array]:
        """The canonical keys of some slots."""
        kinds = [pa.int64() if isinstance(column, NumberColumn) else pa.binary() for column in self._columns]
        return [column.take(slots, kind) for column, kind in zip(self._columns, kinds, strict=True)]

    def _hash_all(self) -> None:
        """Put the slots that were never hashed into the table."""
        if self._unhashed:
            self._hash_some(np.flatnonzero(~self._is_hashed[: self._count]))

    def _hash_some(self, slots: Integers) -> None:
        """The same for some of them. Their keys differ from all others."""
        hashes = keying.hash_arrays(self._plain(slots))
        self._hashes[slots] = hashes
        self._is_hashed[slots] = True
        self._unhashed -= len(slots)
        is_free = np.zeros(len(slots), np.bool_)
        is_free[np.unique(hashes, return_index=True)[1]] = True
        is_free &= self._table.find(hashes, self._hashes) < 0
        self._table.insert(slots[is_free], self._hashes)
        self._set_apart(slots[~is_free])

    # -- how keys are found -----------------------------------------------------------------------------------

    def _canonical(self, columns: Sequence[Array]) -> list[Array]:
        columns = [_decoded(column) for column in columns]
        if not self._types:
            self._types = [column.type for column in columns]
        columns = [
            column if column.type == kind else _as_before(column, kind, name)
            for column, kind, name in zip(columns, self._types, self.names, strict=True)
        ]
        plain = [keying.canonical(column, name=name) for column, name in zip(columns, self.names, strict=True)]
        if not self._columns:
            self._columns = [make_column(array.type) for array in plain]
        return plain

    def _single(self, plain: Array) -> Integers:
        if isinstance(self._columns[0], NumberColumn) and not plain.null_count:
            return self._by_range(plain, self._columns[0])
        if not 0 < self._count <= min(_FEW, len(plain)):
            return self._by_hash([plain], add=True)
        if self._lookup is None:
            known = self._columns[0].take(np.arange(self._count), plain.type)
            self._lookup = pc.SetLookupOptions(value_set=known)
        found = pc.index_in(plain, options=self._lookup)
        if found.null_count:
            return self._fill_missing(found.fill_null(_MISSING).to_numpy().astype(np.int64), plain)
        slots: Integers = found.to_numpy().astype(np.int64)
        return slots

    def _by_range(self, plain: Array, column: NumberColumn) -> Integers:
        values = plain.to_numpy()
        if not self._is_covered(int(values.min()), int(values.max()), column):
            return self._by_range_mostly(plain, values, column)
        slots = self._range.find(values)
        if slots.min() < 0:
            self._add_missing(slots, values)
        return slots

    def _is_covered(self, low: int, high: int, column: NumberColumn) -> bool:
        """Whether the range has these numbers. Keys that it leaves behind are hashed."""
        before = self._range.bounds
        is_covered = self._range.covers(low, high, column)
        if self._unhashed and self._range.bounds != before:
            slots = np.flatnonzero(~self._is_hashed[: self._count])
            self._hash_some(slots[~self._range.has(column.values[slots])])
        return is_covered

    def _add_missing(self, slots: Integers, values: Integers) -> None:
        """Slots for keys that the range covers and does not know: they are new, for it knows all within it."""
        rows = np.flatnonzero(slots < 0)
        missing = values[rows]
        self._append([pa.array(missing[self._range.one_of_each(missing)])])
        slots[rows] = self._range.find(missing)

    def _by_range_mostly(self, plain: Array, values: Integers, column: NumberColumn) -> Integers:
        """A few numbers that are far from the others must not make all of them slow."""
        sample = np.sort(values[:: max(1, len(values) // 256)])
        middle = int(sample[len(sample) // 2])
        low, high = max(middle - _RANGE // 2, _LEAST), min(middle + _RANGE // 2, _MOST)
        near = np.flatnonzero((values > low) & (values < high))
        if 4 * len(near) < 3 * len(values):
            return self._by_hash([plain], add=True)
        close = values[near]
        if not self._is_covered(int(close.min()), int(close.max()), column):
            return self._by_hash([plain], add=True)
        is_inside = self._range.has(values)
        inside, outside = np.flatnonzero(is_inside), np.flatnonzero(~is_inside)
        found = self._range.find(values[inside])
        if found.min() < 0:
            self._add_missing(found, values[inside])
        slots = np.empty(len(values), np.int64)
        slots[inside] = found
        slots[outside] = self._by_hash([plain.take(pa.array(outside))], add=True, is_outside=True)
        return slots

    def _fill_missing(self, slots: Integers, plain: Array) -> Integers:
        rows = np.flatnonzero(slots < 0)
        slots[rows] = self._by_hash([plain.take(pa.array(rows))], add=True)
        return slots

    def _by_hash(self, plain: list[Array], *, add: bool, is_outside: bool = False) -> Integers:
        """Slots by the table. Keys that are outside of the range cannot be those that were never hashed."""
        if not is_outside:
            self._hash_all()
        hashes = keying.hash_arrays(plain)
        slots = self._table.find(hashes, self._hashes)
        known = np.flatnonzero(slots >= 0)
        if len(known):
            self._check(plain, slots, known, add=add)
        if add:
            missing = np.flatnonzero(slots < 0)
            if len(missing):
                slots[missing] = self._add(_taken(plain, missing), hashes[missing])
        return slots

    def _check(self, plain: list[Array], slots: Integers, known: Integers, *, add: bool) -> None:
        """What was found by its hash must be the key itself."""
        given = plain if len(known) == len(slots) else _taken(plain, known)
        same = np.ones(len(known), np.bool_)
        for column, values in zip(self._columns, given, strict=True):
            same &= column.equal(slots[known], values)
        for row in known[~same].tolist():
            slots[row] = self._slot_of_collided(_taken(plain, np.array([row])), add=add)

    def _add(self, plain: list[Array], hashes: Hashes) -> Integers:
        """Slots for new keys; the same key may be there several times."""
        _values, first, places = np.unique(hashes, return_index=True, return_inverse=True)
        slots = self._append(_taken(plain, first))
        self._hash(slots, hashes[first])
        self._table.insert(slots, self._hashes)
        found = slots[places]
        self._check(plain, found, np.arange(len(found)), add=True)
        return found

    def _append(self, plain: list[Array]) -> Integers:
        for column, values in zip(self._columns, plain, strict=True):
            column.append(values)
        slots = np.arange(self._count, self._count + len(plain[0]))
        self._count += len(slots)
        self._unhashed += len(slots)
        self._hashes = with_room(self._hashes, self._count)
        self._is_hashed = with_room(self._is_hashed, self._count)
        self._is_hashed[slots] = False
        self._lookup = None
        if len(self._columns) == 1 and isinstance(self._columns[0], NumberColumn):
            self._range.learn(plain[0], slots)
        return slots

    def _hash(self, slots: Integers, hashes: Hashes) -> None:
        """Remember the hashes of new slots."""
        self._hashes[slots] = hashes
        self._is_hashed[slots] = True
        self._unhashed -= len(slots)

    def _slot_of_collided(self, plain: list[Array], *, add: bool) -> int:
        key = tuple(array[0].as_py() for array in plain)
        if key not in self._collided:
            if not add:
                return -1
            slots = self._append(plain)
            self._hash(slots, keying.hash_arrays(plain))
            self._collided[key] = int(slots[0])
        return self._collided[key]


class _HashTable:
    """Open addressing over slots: where a hash is taken, the next place is tried."""

    def __init__(self) -> None:
        self._places = np.full(16, -1, np.int32)
        self._used = 0

    def find(self, hashes: Hashes, known: Hashes) -> Integers:
        """The slot with each hash, -1 where there is none. `known` are the hashes of all slots."""
        result = np.full(len(hashes), -1, np.int64)
        if not self._used:
            return result
        mask = np.uint64(len(self._places) - 1)
        rows = np.arange(len(hashes))
        places = (hashes & mask).astype(np.int64)
        while len(rows):
            slots = self._places[places]
            there = slots >= 0
            hit = there & (known[slots] == hashes[rows])
            result[rows[hit]] = slots[hit]
            going = there & ~hit
            rows, places = rows[going], (places[going] + 1) & int(mask)
        return result

    def insert(self, slots: Integers, known: Hashes) -> None:
        """Add slots whose hashes are not there yet."""
        self._used += len(slots)
        if self._used * 2 > len(self._places):
            size = 1 << (4 * self._used - 1).bit_length()
            held = self._places[self._places >= 0].astype(np.int64)
            self._places = np.full(size, -1, np.int32)
            slots = np.concatenate([held, slots])
        mask = len(self._places) - 1
        places = (known[slots] & np.uint64(mask)).astype(np.int64)
        while len(slots):
            free = self._places[places] < 0
            self._places[places[free]] = slots[free]  # of several that want one place the last gets it
            going = self._places[places] != slots
            slots, places = slots[going], (places[going] + 1) & mask


class _RangeTable:
    """Slots of whole numbers that lie close together: one array access for each row. It has all keys of its range."""

    def __init__(self) -> None:
        self._base = 0
        self._table = np.full(0, -1, np.int32)

    def covers(self, low: int, high: int, column: NumberColumn) -> bool:
        """Whether all values from `low` to `high` can be looked up here; makes room when that is little."""
        end = self._base + len(self._table)
        if len(self._table) and self._base <= low and high < end:
            return True
        if len(self._table) and max(high, end - 1) - min(low, self._base) < _RANGE:
            low, high = min(low, self._base), max(high, end - 1)
        elif len(self._table) and low < self._base:
            return False  # only upwards: numbers that grow leave old ones behind, but two ranges must not take turns
        span = high - low + 1
        if span > _RANGE:
            return False
        self._base, self._table = low, np.full(min(2 * span, _RANGE), -1, np.int32)
        known, there = column.values, column.present
        inside = there & (known >= low) & (known < low + len(self._table))
        self._table[known[inside] - low] = np.flatnonzero(inside)
        return True

    @property
    def bounds(self) -> tuple[int, int]:
        """The first number that it covers, and the one behind the last."""
        return self._base, self._base + len(self._table)

    def has(self, values: Integers) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of these it covers."""
        low, end = self.bounds
        covered: np.ndarray[Any, np.dtype[np.bool_]] = (values >= low) & (values < end)
        return covered

    def find(self, values: Integers) -> Integers:
        """The slot of each value, -1 where there is none."""
        found: Integers = self._table[values - self._base].astype(np.int64)
        return found

    def one_of_each(self, values: Integers) -> Integers:
        """A place for each different one of these values, none of which is known. They are to be learned right then."""
        places = np.arange(len(values), dtype=np.int32)
        self._table[values - self._base] = places  # of several the last stays
        return np.flatnonzero(self._table[values - self._base] == places)

    def learn(self, keys: Array, slots: Integers) -> None:
        """Remember the new keys that it covers."""
        if not len(self._table):
            return
        places = (keys.fill_null(0) if keys.null_count else keys).to_numpy() - self._base
        inside = (places >= 0) & (places < len(self._table))
        if keys.null_count:
            inside &= keys.is_valid().to_numpy(zero_copy_only=False)
        if inside.all():
            self._table[places] = slots
        else:
            self._table[places[inside]] = slots[inside]


def _decoded(column: Array) -> Array:
    column = keying.combined(column)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _as_before(column: Array, kind: Any, name: str) -> Array:
    """A key in the type that it had at first. Numbers do not become texts: those would be other keys."""
    checks = (keying.is_textual, pa.types.is_integer, pa.types.is_floating)
    if not pa.types.is_null(column.type) and not any(check(column.type) and check(kind) for check in checks):
        raise InvalidError(
            [problem(f"key {name!r}", str(column.type), f"must be {kind}, as it was when its state was made")],
            hint="a step by another key is another step: give it a uid of its own, .uid(…)",
        )
    return column.cast(kind)


def _taken(plain: list[Array], rows: Integers) -> list[Array]:
    index = pa.array(rows)
    return [array.take(index) for array in plain]

"""The keys of a `KeyIndex`, column by column, in arrays that grow: numbers as int64, all else as bytes.

A value is what `keys.canonical` returns, so comparing two is comparing bits. No Python object is kept for a key.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.language import keys as keying
from shoal.dataflow.language.keys import Array, Integers


class KeyColumn(Protocol):
    """One column of all keys, by slot."""

    def append(self, values: Array) -> None:
        """Add the values of new slots."""
        ...

    def equal(self, slots: Integers, values: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each value is that of its slot."""
        ...

    def take(self, slots: Integers, kind: Any) -> Array:
        """The values of some slots, in the type that they came in."""
        ...

    def keep(self, slots: Integers) -> None:
        """Forget all but these, and number them in their order."""
        ...

    def frozen(self) -> Self:
        """The values that there are now, for another thread. Copies none: values are only added, or all made anew."""
        ...


def make_column(kind: Any) -> KeyColumn:
    """An empty column for canonical values of this type."""
    return NumberColumn() if pa.types.is_int64(kind) else BytesColumn()


class NumberColumn:
    """Whole numbers."""

    def __init__(self) -> None:
        self._count = 0
        self._values = np.zeros(0, np.int64)
        self._missing = np.zeros(0, np.bool_)

    @property
    def values(self) -> Integers:
        """All of them; what stands for null has no meaning."""
        return self._values[: self._count]

    @property
    def present(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of them are not null."""
        return ~self._missing[: self._count]

    def append(self, values: Array) -> None:
        """Add."""
        end = self._count + len(values)
        self._values = with_room(self._values, end)
        self._missing = with_room(self._missing, end)
        self._values[self._count : end] = _filled(values)
        self._missing[self._count : end] = _nulls(values)
        self._count = end

    def equal(self, slots: Integers, values: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Compare."""
        same: np.ndarray[Any, np.dtype[np.bool_]] = self._values[slots] == _filled(values)
        if values.null_count or self._missing[: self._count].any():
            same &= self._missing[slots] == _nulls(values)
        return same

    def take(self, slots: Integers, kind: Any) -> Array:
        """Some of them."""
        missing = self._missing[slots]
        return keying.from_canonical(pa.array(self._values[slots], mask=missing if missing.any() else None), kind)

    def keep(self, slots: Integers) -> None:
        """Forget the others."""
        self._values, self._missing = self._values[slots], self._missing[slots]
        self._count = len(slots)

    def frozen(self) -> Self:
        """As it is now."""
        return copy.copy(self)


class BytesColumn:
    """Bytes, one after the other."""

    def __init__(self) -> None:
        self._count = 0
        self._offsets = np.zeros(1, np.int64)
        self._content = np.zeros(0, np.uint8)
        self._missing = np.zeros(0, np.bool_)
        self._arrays: dict[Any, Array] = {}

    def append(self, values: Array) -> None:
        """Add."""
        self._arrays = {}  # not cleared: it is that of frozen values, too
        end = self._count + len(values)
        starts, lengths, content = keying.byte_ranges(values)
        used = int(self._offsets[self._count])
        self._offsets = with_room(self._offsets, end + 1)
        self._missing = with_room(self._missing, end)
        self._content = with_room(self._content, used + len(content))
        # What nulls have in the buffer is not theirs, but it does no harm: their flag is compared first.
        self._content[used : used + len(content)] = content
        self._offsets[self._count + 1 : end + 1] = used + starts + lengths
        self._missing[self._count : end] = _nulls(values)
        self._count = end

    def equal(self, slots: Integers, values: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Compare."""
        known = self._all(values.type).take(pa.array(slots))
        same: np.ndarray[Any, np.dtype[np.bool_]] = (
            pc.equal(known, values).fill_null(False).to_numpy(zero_copy_only=False)
        )
        if values.null_count or self._missing[: self._count].any():
            missing, nulls = self._missing[slots], _nulls(values)
            same = np.where(missing | nulls, missing & nulls, same)
        return same

    def take(self, slots: Integers, kind: Any) -> Array:
        """Some of them."""
        missing = self._missing[slots]
        index = pa.array(slots, mask=missing if missing.any() else None)
        if pa.types.is_decimal(kind) or not keying.is_textual(kind):
            return keying.from_canonical(self._all(pa.binary()).take(index), kind)
        return self._all(kind).take(index)

    def keep(self, slots: Integers) -> None:
        """Forget the others."""
        kept = self.take(slots, pa.large_binary())
        self.__init__()  # type: ignore[misc]  # begins anew, and takes its own values in
        self.append(kept)

    def frozen(self) -> Self:
        """As it is now."""
        return copy.copy(self)

    def _all(self, kind: Any) -> Array:
        """All of them over the bytes that are here: what came as text is text, and is not looked at again."""
        if kind not in self._arrays:
            self._arrays[kind] = self._view(kind)
        return self._arrays[kind]

    def _view(self, kind: Any) -> Array:
        size = int(self._offsets[self._count])
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)) or size >= 1 << 31:
            wide = pa.large_string() if _is_text(kind) else pa.large_binary()
            array = self._over(wide, self._offsets[: self._count + 1])
            return array if array.type == kind else array.cast(kind)
        return self._over(kind, self._offsets[: self._count + 1].astype(np.int32))

    def _over(self, kind: Any, offsets: Any) -> Array:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._content)]
        return pa.Array.from_buffers(kind, self._count, buffers)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def with_room(array: Any, size: int) -> Any:
    """The array with room for so many; twice as much as before, so that growing is rare."""
    if size <= len(array):
        return array
    longer = np.zeros(max(size, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer


def _nulls(values: Array) -> Any:
    return values.is_null().to_numpy(zero_copy_only=False) if values.null_count else np.zeros(len(values), np.bool_)


def _filled(values: Array) -> Integers:
    filled: Integers = (values.fill_null(_ZERO) if values.null_count else values).to_numpy()
    return filled


_ZERO = pa.scalar(0, pa.int64())

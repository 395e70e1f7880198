"""Entries of a table as the bytes of Monolith's `EntryDump`, many at a time. Called by `shoal.tables.dumps.monolith`.

Entries of one table differ in their values only: floats take four bytes each, and whole numbers as many as they need.
So all entries whose whole numbers are equally long have one `Template`. It says which bytes are always the same and
where values stand, and values are copied by columns. Reading takes only records that are a template to the letter, as
serializers write them; protobuf decodes the others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from shoal.tables.layout import Floats, Words, step_columns
from shoal.tables.settings.optimizers import STEP, MovingAverage
from shoal.tables.settings.table import SliceSettings
from shoal.tables.table import Entries
from shoal.wire.pb.monolith.native_training.runtime.hash_table import dump_pb2 as pb

Bytes = npt.NDArray[np.uint8]
_VARINT, _SIZED, _FIXED32, _FIXED64 = 0, 2, 5, 1
#: More templates than this in one batch are not looked for.
_MOST_TEMPLATES = 16


@dataclass(frozen=True, slots=True)
class Template:
    """Where the values of an entry stand."""

    content: Bytes
    #: Bytes that are the same in every entry.
    fixed: npt.NDArray[np.bool_]
    #: The place of each weight, and of each float of the state with its column there.
    weights: Words
    floats: tuple[Words, Words]
    #: Column of the state, place and size of each whole number there.
    steps: tuple[tuple[int, int, int], ...]
    time: tuple[int, int]

    def write(self, entries: Entries) -> Bytes:
        """A line of bytes for each entry. The sizes of their whole numbers are those of the template."""
        made = np.repeat(self.content[None, :], entries.ids.size, axis=0)
        made[:, 1:9] = _as_bytes(entries.ids.astype("<i8"), 8)
        made[:, _spread(self.weights)] = _as_bytes(entries.weights.astype("<f4"), 4 * self.weights.size)
        places, columns = self.floats
        if places.size:
            made[:, _spread(places)] = _as_bytes(entries.states[:, columns].astype("<f4"), 4 * places.size)
        for column, at, size in self.steps:
            made[:, at : at + size] = _varints(_steps_of(entries.states, column), size)
        at, size = self.time
        made[:, at : at + size] = _varints(entries.times, size)
        return made

    def matches(self, lines: Bytes) -> npt.NDArray[np.bool_]:
        """Which lines are this template with other values."""
        good: npt.NDArray[np.bool_] = (lines[:, self.fixed] == self.content[self.fixed]).all(axis=1)
        for at, size in (*(each[1:] for each in self.steps), self.time):
            good &= (lines[:, at : at + size - 1] >= 0x80).all(axis=1) & (lines[:, at + size - 1] < 0x80)
        return good

    def read(self, lines: Bytes, states: int) -> Entries:
        """The entries in lines that match."""
        ids = np.ascontiguousarray(lines[:, 1:9]).view("<i8")[:, 0].astype(np.int64)
        weights = np.ascontiguousarray(lines[:, _spread(self.weights)]).view("<f4").astype(np.float32)
        found = np.zeros((ids.size, states), np.float32)
        places, columns = self.floats
        if places.size:
            found[:, columns] = np.ascontiguousarray(lines[:, _spread(places)]).view("<f4")
        for column, at, size in self.steps:
            values = _from_varints(lines[:, at : at + size])
            found[:, column : column + STEP] = values[:, None].view(np.float32)
        at, size = self.time
        return Entries(ids, _from_varints(lines[:, at : at + size]), weights.reshape(ids.size, -1), found)


def stateful(slices: Sequence[SliceSettings]) -> tuple[SliceSettings, ...]:
    """Those that have a message in the state of an entry: all but moving averages, for which Monolith has none."""
    return tuple(each for each in slices if not isinstance(each.optimizer, MovingAverage))


class Templates:
    """The templates of one table.

    Args:
        slices: those of the table.
        states: whether entries have the states of optimizers.
    """

    def __init__(self, slices: Sequence[SliceSettings], *, states: bool) -> None:
        self._slices = tuple(slices)
        self._stateful = stateful(slices)
        self._states = states
        self._width = sum(each.dim for each in slices)
        self._steps = step_columns(self._slices) if states else []
        self.of = functools.lru_cache(256)(self._make)

    def groups(self, entries: Entries) -> list[tuple[Template, npt.NDArray[np.int64]]]:
        """Which entries have which template."""
        sizes = [
            _varint_sizes(entries.times),
            *(_varint_sizes(_steps_of(entries.states, each)) for each in self._steps),
        ]
        kinds, numbers = np.unique(np.stack(sizes, axis=1), axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)
        return [
            (self.of(int(kind[0]), tuple(kind[1:].tolist())), np.flatnonzero(numbers == number))
            for number, kind in enumerate(kinds)
        ]

    def of_sample(self, record: bytes) -> Template | None:
        """The template of one record, if it has one."""
        try:
            entry = pb.EntryDump.FromString(record)
        except DecodeError:
            return None
        steps = []
        if self._states:
            if len(entry.opt.dump) != len(self._stateful):
                return None
            for each, dump in zip(self._stateful, entry.opt.dump, strict=True):
                names = [name for name, size in each.optimizer.state if size == STEP]
                steps += [getattr(getattr(dump, each.optimizer.kind), name) for name in names]
        sizes = _varint_sizes(np.array([entry.last_update_ts_sec, *steps], np.int64)).tolist()
        return self.of(sizes[0], tuple(sizes[1:]))

    def find(self, records: Sequence[bytes]) -> list[tuple[Template, Words, Bytes]]:
        """Templates, which of the records are each to the letter, and their bytes. Others are left out."""
        found: list[tuple[Template, Words, Bytes]] = []
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        for length in np.unique(lengths).tolist():
            places = np.flatnonzero(lengths == length)
            lines = np.frombuffer(b"".join([records[each] for each in places.tolist()]), np.uint8)
            lines = lines.reshape(places.size, length)
            for _ in range(_MOST_TEMPLATES):
                template = self.of_sample(records[places[0]]) if places.size else None
                if template is None or template.content.size != length:
                    break
                good = template.matches(lines)
                if good.any():
                    found.append((template, places[good], lines[good]))
                # Without the sample, which may be written in another way than serializers do.
                good[0] = True
                places, lines = places[~good], lines[~good]
        return found

    def _make(self, time_size: int, step_sizes: tuple[int, ...]) -> Template:
        layout = _Layout()
        layout.add(_tag(1, _FIXED64), 8)
        weights = [layout.add(_tag(2, _FIXED32), 4) for _ in range(self._width)]
        floats: list[tuple[int, int]] = []
        steps: list[tuple[int, int, int]] = []
        if self._states:
            remaining, column, parts = list(step_sizes), 0, []
            for each in self._stateful:
                part, column = _slice_layout(each, column, remaining)
                parts.append(part)
            whole = _Layout.joined(parts, _tag(1, _SIZED))
            start = layout.nest(_tag(3, _SIZED), whole)
            floats = [(start + at, where) for at, where in whole.floats]
            steps = [(where, start + at, size) for at, where, size in whole.steps]
        time = layout.add(_tag(4, _VARINT), time_size)
        return Template(
            np.frombuffer(bytes(layout.content), np.uint8),
            np.array(layout.fixed, np.bool_),
            np.array(weights, np.int64),
            (np.array([each[0] for each in floats], np.int64), np.array([each[1] for each in floats], np.int64)),
            tuple(steps),
            (time, time_size),
        )


class _Layout:
    """Bytes of a message while they are laid out. `floats` and `steps` are (place, column of the state[, size])."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.fixed: list[bool] = []
        self.floats: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int, int]] = []

    def add(self, tag: bytes, size: int) -> int:
        """A value of so many bytes. Returns its place."""
        self.content += tag + bytes(size)
        self.fixed += [True] * len(tag) + [False] * size
        return len(self.content) - size

    def nest(self, tag: bytes, inner: _Layout) -> int:
        """A message. Returns where it begins; its floats and steps stay those of `inner`."""
        head = tag + _varint(len(inner.content))
        self.content += head + inner.content
        self.fixed += [True] * len(head) + inner.fixed
        return len(self.content) - len(inner.content)

    @classmethod
    def joined(cls, parts: Sequence[_Layout], tag: bytes) -> _Layout:
        """A message that has these as the values of one field."""
        made = cls()
        for part in parts:
            start = made.nest(tag, part)
            made.floats += [(start + at, column) for at, column in part.floats]
            made.steps += [(start + at, column, size) for at, column, size in part.steps]
        return made


def _slice_layout(each: SliceSettings, column: int, step_sizes: list[int]) -> tuple[_Layout, int]:
    """A `SingleOptimizerDump`, and the column of the state after it. Takes the sizes of its steps."""
    member: Any = pb.SingleOptimizerDump.DESCRIPTOR.fields_by_name[each.optimizer.kind]
    spans = []
    for name, size in each.optimizer.state:
        sized = step_sizes.pop(0) if size == STEP else 0
        spans.append((member.message_type.fields_by_name[name].number, size, column, sized))
        column += each.dim if isinstance(size, str) else size
    body = _Layout()
    for number, size, first, sized in sorted(spans, key=lambda span: span[0]):
        if sized:
            body.steps.append((body.add(_tag(number, _VARINT), sized), first, sized))
        else:
            for more in range(each.dim if isinstance(size, str) else int(size)):
                body.floats.append((body.add(_tag(number, _FIXED32), 4), first + more))
    return _Layout.joined([body], _tag(member.number, _SIZED)), column


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*made, value))


def _varint_sizes(values: Words) -> Words:
    """How many bytes each number takes; one below zero takes ten."""
    found = np.ones(values.shape, np.int64)
    left = values.view(np.uint64) >> np.uint64(7)
    while left.any():
        found += left != 0
        left = left >> np.uint64(7)
    return found


def _varints(values: Words, size: int) -> Bytes:
    shifts = np.arange(size, dtype=np.uint64) * np.uint64(7)
    made = (values.view(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    made[:, : size - 1] |= np.uint64(0x80)
    return made.astype(np.uint8)


def _from_varints(lines: Bytes) -> Words:
    """Numbers that are all equally long. Bits beyond 64 are dropped, as protobuf does."""
    total = np.zeros(lines.shape[0], np.uint64)
    for place in range(lines.shape[1]):
        total |= (lines[:, place].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
    return total.view(np.int64)


def _steps_of(states: Floats, column: int) -> Words:
    return np.ascontiguousarray(states[:, column : column + STEP]).view(np.int64)[:, 0]


def _as_bytes(values: npt.NDArray[np.generic], width: int) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _spread(places: Words) -> Words:
    """The places of all four bytes of each float."""
    return (places[:, None] + np.arange(4)).reshape(-1)

"""Which columns are made of records: features by name or slot, facts of the line id, labels and weights.

    schema = RowSchema((ids("fc_user"), ids("fc_slot_3"), floats("price", size=1)), line_id=("req_time", "actions"))

Features that nobody asks for are skipped, not checked. Taken by every parser of this package.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.core.errors import InvalidError, Problem, problem
from shoal.records import fids
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId

LABEL = "label"
WEIGHT = "instance_weight"

_SLOT_NAME = re.compile(r"(?:fc_)?slot_([0-9]{1,4})")
#: More values in each row are refused: a dense column is allocated whole.
MAX_SIZE = 1 << 20


class ColumnKind(enum.Enum):
    """What the values of a column are."""

    #: Feature ids of version 2. Those of version 1 are converted; whole numbers are taken as they are.
    IDS = "ids"
    INTS = "ints"
    FLOATS = "floats"
    BYTES = "bytes"

    @property
    def arrow(self) -> Any:
        """The type of one value."""
        return _ARROW[self]


_ARROW = {
    ColumnKind.IDS: pa.int64(),
    ColumnKind.INTS: pa.int64(),
    ColumnKind.FLOATS: pa.float32(),
    ColumnKind.BYTES: pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A feature as a column. Made by `ids`, `ints`, `floats` and `texts`."""

    name: str
    kind: ColumnKind
    #: None: as many values in each row as there are. A number: exactly so many, the rest is cut off or zero.
    size: int | None = None
    #: The slot of flat ids in an Instance. A name such as `fc_slot_3` says it, too.
    slot: int | None = None

    @property
    def arrow(self) -> Any:
        """The type of the column: a list, or one value, or a fixed number of them."""
        if self.size is None:
            return pa.list_(self.kind.arrow)
        return self.kind.arrow if self.size == 1 else pa.list_(self.kind.arrow, self.size)

    @property
    def flat_slot(self) -> int | None:
        """The slot that it has in an Instance; None for a feature with a name only."""
        found = _SLOT_NAME.fullmatch(self.name)
        if self.slot is None and found is not None and self.kind is ColumnKind.IDS:
            return int(found[1])
        return self.slot


def ids(name: str, *, size: int | None = None, slot: int | None = None) -> Column:
    """A column of feature ids. Messages say of which version they are; readers of tables are told by `fid_v1`."""
    return Column(name, ColumnKind.IDS, size, slot)


def ints(name: str, *, size: int | None = None) -> Column:
    """A column of whole numbers."""
    return Column(name, ColumnKind.INTS, size)


def floats(name: str, *, size: int | None = None) -> Column:
    """A column of numbers."""
    return Column(name, ColumnKind.FLOATS, size)


def texts(name: str, *, size: int | None = None) -> Column:
    """A column of bytes."""
    return Column(name, ColumnKind.BYTES, size)


#: The fields of a line id as columns.
LINE_ID_TYPES: dict[str, Any] = {
    "uid": pa.uint64(),
    "req_time": pa.int64(),
    "item_id": pa.uint64(),
    "actions": pa.list_(pa.int32()),
    "chnid": pa.int64(),
    "pre_actions": pa.list_(pa.int32()),
    "sample_rate": pa.float32(),
    "special_strategies": pa.list_(pa.int32()),
    "device_type": pa.string(),
    "cid": pa.string(),
    "user_id": pa.string(),
    "is_draw": pa.bool_(),
    "rank": pa.int32(),
    "data_source_name": pa.string(),
}


@dataclass(frozen=True, slots=True)
class RowSchema:
    """The columns that records become, in this order: label, weight, facts of the line id, features.

    Raises `InvalidError` with every mistake in it.
    """

    columns: tuple[Column, ...] = ()
    #: Names of fields of the line id; each becomes a column of that name.
    line_id: tuple[str, ...] = ()
    label: bool = True
    #: 1.0 where a record has none.
    weight: bool = True

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for each in self.columns:
            if not each.name:
                problems.append(problem("column", each.name, "must have a name"))
            if each.size is not None and not 1 <= each.size <= MAX_SIZE:
                problems.append(problem(f"column {each.name}: size", each.size, f"must be from 1 to {MAX_SIZE}"))
            slot = each.flat_slot
            if slot is not None and each.kind is not ColumnKind.IDS:
                problems.append(problem(f"column {each.name}: slot", slot, "only ids have one"))
            elif slot is not None and not 0 <= slot < fids.V1_SLOTS:
                problems.append(problem(f"column {each.name}: slot", slot, f"must be below {fids.V1_SLOTS}"))
        for name in self.line_id:
            if name not in LINE_ID_TYPES:
                rule = f"must be a field of a line id: {', '.join(LINE_ID_TYPES)}"
                problems.append(problem("line_id", name, rule))
        for name, count in Counter(self.names).items():
            if count > 1:
                problems.append(problem("column", name, "must be named once"))
        if problems:
            raise InvalidError(problems)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in order."""
        first = (LABEL,) * self.label + (WEIGHT,) * self.weight
        return (*first, *self.line_id, *(each.name for each in self.columns))

    @property
    def arrow(self) -> Any:
        """The same for Arrow."""
        fields = [pa.field(LABEL, pa.list_(pa.float32()))] * self.label
        fields += [pa.field(WEIGHT, pa.float32())] * self.weight
        fields += [pa.field(name, LINE_ID_TYPES[name]) for name in self.line_id]
        return pa.schema([*fields, *(pa.field(each.name, each.arrow) for each in self.columns)])


#: The number of each field of a line id.
LINE_ID_NUMBERS: dict[str, int] = {field.name: field.number for field in LineId.DESCRIPTOR.fields}

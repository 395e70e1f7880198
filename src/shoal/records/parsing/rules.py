"""What records must be to become columns: which kinds of features a column takes, bounds, and the sentences for errors.

One definition for the plain and the compiled parser.
"""

from __future__ import annotations

from shoal.records.messages import MAX_BATCH_ROWS
from shoal.records.parsing.schema import Column, ColumnKind

#: More values, or bytes, in one column are refused: one shared feature must not become gigabytes.
MAX_VALUES = 1 << 27

#: Which kinds of an Example's feature each kind of column takes; the order is that of the numbers.
TAKEN: dict[ColumnKind, frozenset[str]] = {
    ColumnKind.IDS: frozenset(
        {"fid_v1_list", "fid_v2_list", "int64_list", "fid_v1_lists", "fid_v2_lists", "int64_lists", "int64_value"}
    ),
    ColumnKind.INTS: frozenset({"int64_list", "int64_lists", "int64_value"}),
    ColumnKind.FLOATS: frozenset(
        {"float_list", "double_list", "float_lists", "double_lists", "float_value", "double_value"}
    ),
    ColumnKind.BYTES: frozenset({"bytes_list", "bytes_lists", "bytes_value"}),
}

#: Which fields of an Instance's feature each kind of column takes: the first of them that has values.
TAKEN_FIELDS: dict[ColumnKind, tuple[str, ...]] = {
    ColumnKind.IDS: ("fid", "int64_value", "fid_list", "int64_list"),
    ColumnKind.INTS: ("int64_value", "int64_list"),
    ColumnKind.FLOATS: ("float_value", "float_list"),
    ColumnKind.BYTES: ("bytes_value", "bytes_list"),
}


def wrong_kind(column: Column, found: str) -> str:
    """A feature holds something else."""
    return f"feature {column.name} must hold {column.kind.value}, and holds {found}"


def wrong_length(name: str, found: int, rows: int) -> str:
    """A column of a batch has too few or too many features."""
    return f"column {name} must have one feature for each of {rows} rows, or one that is shared, and has {found}"


def wrong_batch_size(found: int) -> str:
    """A batch says that it has more rows than are taken."""
    return f"batch_size must be from 0 to {MAX_BATCH_ROWS}, and is {found}"


def wrong_line_id(error: Exception) -> str:
    """The line id of a row cannot be read."""
    return f"the line id must be an idl.matrix.proto.LineId: {error}"


def not_text(name: str) -> str:
    """A text of a line id is not one."""
    return f"{name} of the line id must be UTF-8"


def too_many_values(name: str) -> str:
    """A column would be larger than is taken."""
    return f"column {name} must have at most {MAX_VALUES} values"

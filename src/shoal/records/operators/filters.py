"""Filters by ids, values and labels."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shoal.core.errors import InvalidError, problem
from shoal.records import fids
from shoal.records.formats.documents import DocumentFormat, load_message
from shoal.records.operators.base import (
    LABEL,
    any_in_row,
    column_of,
    filtered,
    has_any,
    is_list,
    ragged,
    scalar_of,
    splits_of,
)
from shoal.records.operators.checks import LEAST_64, MOST_64, action_problems, number_problems, refuse
from shoal.wire.pb.idl.matrix.proto.example_pb2 import FilterValues


@dataclass(frozen=True, slots=True)
class FilterByFids:
    """Keeps a row by the ids that it has in some columns, its actions and its time.

    Ids are of version 2, as columns have them.
    """

    #: The columns that are looked at.
    columns: tuple[str, ...]
    #: A row with one of these goes.
    filter_fids: tuple[int, ...] = ()
    #: A row with none of these goes.
    has_fids: tuple[int, ...] = ()
    #: A row that lacks one of these goes.
    select_fids: tuple[int, ...] = ()
    #: A row that has no id in one of these slots goes.
    select_slots: tuple[int, ...] = ()
    #: A row with none of these actions goes.
    has_actions: tuple[int, ...] = ()
    #: A row from before this time goes; in seconds.
    req_time_min: int = 0

    def __post_init__(self) -> None:
        refuse(
            *(
                number_problems(name, getattr(self, name), LEAST_64, MOST_64)
                for name in ("filter_fids", "has_fids", "select_fids")
            ),
            number_problems("select_slots", self.select_slots, 0, fids.V2_SLOTS - 1),
            action_problems("has_actions", self.has_actions),
            number_problems("req_time_min", (self.req_time_min,), LEAST_64, MOST_64),
        )

    def keeps(self, batch: Any, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Whether each row stays."""
        del rng
        kept = np.ones(batch.num_rows, np.bool_)
        if self.req_time_min:
            kept &= column_of(batch, "req_time").to_numpy(zero_copy_only=False) >= self.req_time_min
        if self.has_actions:
            kept &= has_any(batch, "actions", self.has_actions)
        if self.filter_fids:
            kept &= ~self._any(batch, self.filter_fids)
        if self.has_fids:
            kept &= self._any(batch, self.has_fids)
        for each in self.select_fids:
            kept &= self._any(batch, (each,))
        for slot in self.select_slots:
            found = np.zeros(batch.num_rows, np.bool_)
            for name in self.columns:
                splits, values = ragged(batch, name)
                found |= any_in_row(splits, fids.slot_v2(values.astype(np.int64)) == slot)
            kept &= found
        return kept

    def _any(self, batch: Any, wanted: tuple[int, ...]) -> NDArray[np.bool_]:
        found = np.zeros(batch.num_rows, np.bool_)
        for name in self.columns:
            found |= has_any(batch, name, wanted)
        return found

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that stay."""
        return filtered(batch, self.keeps(batch, rng))


class Comparison(enum.Enum):
    """How a value is compared with operands."""

    GT = "gt"
    GE = "ge"
    EQ = "eq"
    LT = "lt"
    LE = "le"
    NEQ = "neq"
    #: From the first operand to below the second.
    BETWEEN = "between"
    IN = "in"
    NOT_IN = "not-in"
    #: A list with one of the operands.
    ANY = "any"
    #: A list with all of the operands.
    ALL = "all"
    #: A list with something that is none of the operands.
    DIFF = "diff"
    STARTS_WITH = "startswith"
    ENDS_WITH = "endswith"


_SETS = frozenset({Comparison.ANY, Comparison.ALL, Comparison.DIFF})
_MANY = frozenset({Comparison.IN, Comparison.NOT_IN, Comparison.STARTS_WITH, Comparison.ENDS_WITH}) | _SETS
_NUMERIC = {
    Comparison.GT: pc.greater, Comparison.GE: pc.greater_equal, Comparison.EQ: pc.equal, Comparison.LT: pc.less,
    Comparison.LE: pc.less_equal, Comparison.NEQ: pc.not_equal,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FilterByValue:
    """Keeps a row by the value of one column: a field of the line id, or a feature.

    Of a list, the first value counts for comparisons with one value. Operands that do not fit raise `InvalidError`.
    """

    column: str
    op: Comparison
    operands: tuple[Any, ...]
    #: What becomes of a row whose list is empty.
    keep_empty: bool = False

    def __post_init__(self) -> None:
        needed = 2 if self.op is Comparison.BETWEEN else 1
        if len(self.operands) < needed or (self.op not in _MANY and len(self.operands) != needed):
            raise InvalidError([problem("operands", self.operands, f"{self.op.value} takes {needed} or more")])

    @classmethod
    def from_file(cls, column: str, op: Comparison, path: str, *, keep_empty: bool = False) -> FilterByValue:
        """The same with operands from a file, which holds a `FilterValues` message."""
        if op not in {Comparison.IN, Comparison.NOT_IN}:
            raise InvalidError([problem("op", op.value, "only in and not-in take operands from a file")])
        message = load_message(path, FilterValues, DocumentFormat.BYTES)
        kind = message.WhichOneof("type")
        if kind is None:
            raise InvalidError([problem(path, None, "must have operands")])
        return cls(column, op, tuple(getattr(message, kind).value), keep_empty)

    def keeps(self, batch: Any, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Whether each row stays."""
        del rng
        column = column_of(batch, self.column)
        try:
            if not is_list(column.type):
                return self._flags(column)
            splits = splits_of(column)
            flags = self._of_lists(splits, column.flatten())
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidError([problem(f"operands of {self.column}", self.operands, str(error)[:200])]) from error
        return np.where(np.diff(splits) == 0, self.keep_empty, flags)

    def _of_lists(self, splits: NDArray[np.int64], values: Any) -> NDArray[np.bool_]:
        if self.op in {Comparison.ANY, Comparison.DIFF}:
            found = self._is_in(values)
            return any_in_row(splits, found if self.op is Comparison.ANY else ~found)
        if self.op is Comparison.ALL:
            kept = np.ones(len(splits) - 1, np.bool_)
            for each in self.operands:
                kept &= any_in_row(splits, _numpy(pc.equal(values, scalar_of(each, values.type))))
            return kept
        firsts = np.minimum(splits[:-1], max(len(values) - 1, 0))
        return self._flags(values.take(pa.array(firsts))) if len(values) else np.zeros(len(splits) - 1, np.bool_)

    def _is_in(self, values: Any) -> NDArray[np.bool_]:
        wanted = pa.array([scalar_of(each, values.type).as_py() for each in self.operands], values.type)
        return _numpy(pc.is_in(values, value_set=wanted))

    def _flags(self, values: Any) -> NDArray[np.bool_]:
        if self.op in _SETS:
            raise ValueError(f"{self.op.value} takes a list")
        if self.op in {Comparison.STARTS_WITH, Comparison.ENDS_WITH, Comparison.IN, Comparison.NOT_IN}:
            return self._is_one_of(values)
        if pa.types.is_integer(values.type) and any(isinstance(each, float) for each in self.operands):
            values = values.cast(pa.float64(), safe=False)
        if self.op is Comparison.BETWEEN:
            low, high = (scalar_of(each, values.type) for each in self.operands)
            return _numpy(pc.and_(pc.greater_equal(values, low), pc.less(values, high)))
        return _numpy(_NUMERIC[self.op](values, scalar_of(self.operands[0], values.type)))

    def _is_one_of(self, values: Any) -> NDArray[np.bool_]:
        if self.op in {Comparison.IN, Comparison.NOT_IN}:
            found = self._is_in(values)
            return found if self.op is Comparison.IN else ~found
        match = pc.starts_with if self.op is Comparison.STARTS_WITH else pc.ends_with
        kept = np.zeros(len(values), np.bool_)
        for each in self.operands:
            kept |= _numpy(match(values, each))
        return kept

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that stay."""
        return filtered(batch, self.keeps(batch, rng))


@dataclass(frozen=True, slots=True)
class FilterByLabel:
    """Keeps a row with a label that reaches its threshold. A row with fewer labels than thresholds goes."""

    thresholds: tuple[float, ...]
    #: Whether a label that equals its threshold is not enough.
    filter_equal: bool = False
    column: str = field(default=LABEL)

    def keeps(self, batch: Any, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Whether each row stays."""
        del rng
        splits, values = ragged(batch, self.column)
        enough = np.diff(splits) >= len(self.thresholds)
        kept = np.zeros(batch.num_rows, np.bool_)
        for index, threshold in enumerate(self.thresholds):
            found = values[splits[:-1][enough] + index]
            bar = np.float32(threshold)
            kept[enough] |= found > bar if self.filter_equal else found >= bar
        return kept

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that stay."""
        return filtered(batch, self.keeps(batch, rng))


def _numpy(flags: Any) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), np.bool_)

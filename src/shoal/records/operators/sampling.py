"""Leaves out rows by chance, repeats them by weight, and changes the slots of ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shoal.core.errors import InvalidError, problem
from shoal.records import fids
from shoal.records.operators.base import LABEL, filtered, has_any, list_column, ragged, with_column
from shoal.records.operators.checks import MAX_LABELS, action_problems, number_problems, refuse, share_problems
from shoal.records.parsing.rules import MAX_VALUES

#: A row counts at most so often for one action, and a batch has at most so many rows afterwards.
MAX_WEIGHT = 1 << 20
MAX_ROWS = 1 << 24


@dataclass(frozen=True, slots=True)
class NegativeSample:
    """Leaves out a share of negative rows: those whose label is below the threshold."""

    drop_rate: float
    label_index: int = 0
    threshold: float = 0.0
    #: The first of these actions that a row has decides its rate, if the rate has one for it.
    action_priority: tuple[int, ...] = ()
    drop_rate_of_action: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse(
            share_problems("drop_rate", (self.drop_rate, *self.drop_rate_of_action.values())),
            number_problems("label_index", (self.label_index,), 0, MAX_LABELS - 1),
            action_problems("action_priority", self.action_priority),
        )

    def keeps(self, batch: Any, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Whether each row stays. A row without that label stays."""
        splits, values = ragged(batch, LABEL)
        has = np.diff(splits) > self.label_index
        negative = np.zeros(batch.num_rows, np.bool_)
        negative[has] = values[splits[:-1][has] + self.label_index] < np.float32(self.threshold)
        rates = np.full(batch.num_rows, self.drop_rate)
        if self.drop_rate_of_action:
            for action in reversed(self.action_priority):
                rates[has_any(batch, "actions", (action,))] = self.drop_rate_of_action.get(action, self.drop_rate)
        dropped: NDArray[np.bool_] = negative & (rng.random(batch.num_rows) < rates)
        return ~dropped

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that stay."""
        return filtered(batch, self.keeps(batch, rng))


@dataclass(frozen=True, slots=True)
class Strategy:
    """What becomes of rows with one special strategy."""

    #: The share that stays.
    sample_rate: float = 1.0
    #: What the first label of those becomes; None: it stays.
    label: float | None = None


@dataclass(frozen=True, slots=True)
class SpecialStrategy:
    """Samples and labels rows by the special strategies of their line ids. The first that a row has counts.

    A row with strategies that are not named goes.
    """

    strategies: Mapping[int, Strategy]
    #: What becomes of a row without any.
    keep_empty: bool = True

    def __post_init__(self) -> None:
        refuse(
            action_problems("strategies", self.strategies),
            share_problems("sample_rate", [each.sample_rate for each in self.strategies.values()]),
        )

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that stay, with their labels."""
        splits, _ = ragged(batch, "special_strategies")
        kept = (np.diff(splits) == 0) & self.keep_empty
        chance = rng.random(batch.num_rows)
        label_splits, labels = ragged(batch, LABEL)
        made = labels.astype(np.float32)
        open_rows = np.diff(splits) > 0
        for number, strategy in self.strategies.items():
            rows = open_rows & has_any(batch, "special_strategies", (number,))
            open_rows &= ~rows
            rows &= chance < strategy.sample_rate
            kept |= rows
            if strategy.label is not None:
                made[label_splits[:-1][rows & (np.diff(label_splits) > 0)]] = strategy.label
        return filtered(with_column(batch, LABEL, list_column(label_splits, made)), kept)


@dataclass(frozen=True, slots=True)
class ActionWeight:
    """How often a row with an action counts, and its label."""

    weight: int
    label: float


@dataclass(frozen=True, slots=True)
class Reweight:
    """Repeats rows by their actions, and corrects rows that were emitted early as negatives (`pre_actions`).

    A row counts once, plus (or times) the weights of its most important action and of actions without a priority. A row
    that was emitted early with another label counts for the early one as well, so that both cancel out; with the same
    label only the difference counts, with the label reversed if the early one counted more. A row whose early action is
    at least as important as its present one goes; so does one without a label. The rules are Monolith's.
    """

    actions: Mapping[int, ActionWeight]
    action_priority: tuple[int, ...]
    #: Whether weights are added (Monolith's method 1) or multiplied.
    additive: bool = True

    def __post_init__(self) -> None:
        refuse(
            action_problems("actions", self.actions),
            action_problems("action_priority", self.action_priority),
            number_problems("weight", [each.weight for each in self.actions.values()], 0, MAX_WEIGHT),
        )

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows, each as often as it counts."""
        del rng
        splits, labels = ragged(batch, LABEL)
        has_label = np.diff(splits) > 0
        firsts = splits[:-1][has_label]
        label = np.zeros(batch.num_rows, np.float32)
        label[has_label] = labels[firsts]
        before, before_action = self._most_important(batch, "pre_actions")
        now, action = self._most_important(batch, "actions")
        relabeled = self._label_of(now, action)
        label = np.where(np.isnan(relabeled), label, relabeled).astype(np.float32)
        early = self._label_of(before, before_action)
        before_count = self._count(batch, "pre_actions", before_action)
        count = self._count(batch, "actions", action)
        newer = before > now
        emitted = newer & ~np.isnan(early)
        changed = emitted & (early != label)
        same = emitted & (early == label)
        replicas = np.where(newer, count, 0)
        replicas[changed] = (before_count + count)[changed]
        replicas[same] = np.abs(before_count - count)[same]
        label[same & (before_count > count)] *= -1
        replicas[(before == _ABSENT) & (now == _ABSENT)] = 1
        replicas[~has_label] = 0
        if replicas.sum() > MAX_ROWS:
            rule = f"must make at most {MAX_ROWS} rows of a batch, and makes more"
            raise InvalidError([problem("weight", None, rule)])
        made = labels.astype(np.float32)
        made[firsts] = label[has_label]
        batch = with_column(batch, LABEL, list_column(splits, made))
        return batch.take(pa.array(np.repeat(np.arange(batch.num_rows), replicas)))

    def _most_important(self, batch: Any, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rank of the most important action of each row, and the action."""
        splits, _ = ragged(batch, column)
        rank = np.where(np.diff(splits) > 0, _UNKNOWN, _ABSENT)
        action = np.zeros(batch.num_rows, np.int64)
        for number in range(len(self.action_priority) - 1, -1, -1):
            rows = has_any(batch, column, (self.action_priority[number],))
            rank[rows] = number
            action[rows] = self.action_priority[number]
        return rank, action

    def _label_of(self, rank: NDArray[np.int64], action: NDArray[np.int64]) -> NDArray[np.float64]:
        """The label of an action; NaN without one."""
        made = np.full(len(rank), np.nan)
        for number, weight in self.actions.items():
            made[(rank < _UNKNOWN) & (action == number)] = weight.label
        return made

    def _count(self, batch: Any, column: str, action: NDArray[np.int64]) -> NDArray[np.int64]:
        splits, values = ragged(batch, column)
        sizes = np.diff(splits)
        # Of the actions with a priority only the most important one counts.
        ranked = np.isin(values, self.action_priority)
        counts = ~ranked | (values == np.repeat(action, sizes))
        # As floats: a product of many weights does not fit into 64 bits.
        weights = np.full(len(values), 0.0 if self.additive else 1.0)
        for number, each in self.actions.items():
            weights[counts & (values == number)] = each.weight
        full = sizes > 0
        found = np.zeros(len(sizes))
        if full.any():
            fold, first = (np.add, 1.0) if self.additive else (np.multiply, 0.0)
            found[full] = first + fold.reduceat(weights, splits[:-1][full])
        return np.minimum(found, MAX_ROWS + 1).astype(np.int64)


#: Ranks behind every priority: of a row whose actions have none, and of a row without actions.
_UNKNOWN, _ABSENT = 1 << 20, 1 << 21


@dataclass(frozen=True, slots=True)
class SwitchSlot:
    """Puts the ids of a column into another slot, in place or in a column of another name."""

    column: str
    slot: int
    to: str = ""

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with the ids."""
        del rng
        splits, values = ragged(batch, self.column)
        made = list_column(splits, fids.switch_slot_v2(values.astype(np.int64), self.slot))
        return with_column(batch, self.to or self.column, made)


@dataclass(frozen=True, slots=True)
class CombineFeatures:
    """Makes ids of every pair of ids of two columns, in a slot and a column of their own."""

    left: str
    right: str
    slot: int
    to: str

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with the ids. The pairs of the first id on the left come first."""
        del rng
        left_splits, left = ragged(batch, self.left)
        right_splits, right = ragged(batch, self.right)
        left_sizes, right_sizes = np.diff(left_splits), np.diff(right_splits)
        counts = left_sizes * right_sizes
        if counts.sum() > MAX_VALUES:
            rule = f"must have at most {MAX_VALUES} pairs in a batch, and has {counts.sum()}"
            raise InvalidError([problem(self.to, None, rule)])
        splits = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        row = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(row)) - splits[row]
        left_index = left_splits[row] + within // np.maximum(right_sizes, 1)[row]
        right_index = right_splits[row] + within % np.maximum(right_sizes, 1)[row]
        made = fids.combine_fids(left[left_index].astype(np.int64), right[right_index].astype(np.int64), self.slot)
        return with_column(batch, self.to, list_column(splits, made))

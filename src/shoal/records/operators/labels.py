"""Makes and changes labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shoal.core.errors import InvalidError, Problem, problem
from shoal.records.operators.base import (
    INVALID_LABEL,
    LABEL,
    POSITIVE_LABEL,
    column_of,
    dense_column,
    has_any,
    list_column,
    ragged,
    scalar_of,
    with_column,
)
from shoal.records.operators.checks import MAX_LABELS, action_problems, number_problems, place_problems, refuse
from shoal.records.operators.filters import FilterByValue

_ACTIONS = re.compile(r"(?:-?[0-9]{1,9}(?:,-?[0-9]{1,9})*)?")


@dataclass(frozen=True, slots=True)
class TaskLabel:
    """When a row is positive for one task, and when it is negative."""

    pos_actions: tuple[int, ...]
    #: Empty: every row that is not positive is negative.
    neg_actions: tuple[int, ...] = ()
    #: The share of negative rows that stay negative; others are invalid.
    sample_rate: float = 1.0

    def problems(self, where: str, shown: str) -> list[Problem]:
        """What makes no sense about it. `where` and `shown` say where it stands and how it is written there."""
        found = []
        if not self.pos_actions:
            found.append(problem(where, shown, "must have an action that makes a row positive"))
        if set(self.pos_actions) & set(self.neg_actions):
            found.append(problem(where, shown, "no action may be positive and negative"))
        if not 0 <= self.sample_rate <= 1:
            found.append(problem(where, shown, "the rate must be from 0 to 1"))
        return found


def parse_tasks(text: str) -> tuple[TaskLabel, ...]:
    """Read `pos,pos:neg,neg:rate;…`, one part for each task, such as `1,2:3:1.0;4::0.5`. Raises `InvalidError`."""
    tasks: list[TaskLabel] = []
    problems: list[Problem] = []
    for part in filter(None, (each.strip() for each in text.split(";"))):
        pieces = [each.strip() for each in part.split(":")]
        if len(pieces) != 3 or not all(_ACTIONS.fullmatch(each) for each in pieces[:2]):
            problems.append(problem("config", part, "must be ACTIONS:ACTIONS:RATE, such as 1,2:3:0.5"))
            continue
        positive, negative = (tuple(int(each) for each in piece.split(",") if each) for piece in pieces[:2])
        try:
            rate = float(pieces[2])
        except ValueError:
            rate = -1.0
        tasks.append(TaskLabel(positive, negative, rate))
        problems += tasks[-1].problems("config", part)
    if not tasks and not problems:
        problems.append(problem("config", text, "must have a task"))
    if problems:
        raise InvalidError(problems)
    return tuple(tasks)


@dataclass(frozen=True, slots=True)
class AddLabel:
    """Appends one label for each task to the labels of each row, by its actions. `FilterByLabel` comes after it.

    A first label of zero or less that is there before is made invalid, as Monolith does.
    """

    tasks: tuple[TaskLabel, ...]
    negative_value: float = 0.0
    #: What `sample_rate` of the line id becomes, if it is a column.
    new_sample_rate: float = 1.0

    def __post_init__(self) -> None:
        problems = [] if self.tasks else [problem("tasks", self.tasks, "must have a task")]
        for number, each in enumerate(self.tasks):
            where = f"tasks[{number}]"
            problems += each.problems(where, str(each))
            problems += action_problems(where, (*each.pos_actions, *each.neg_actions))
        refuse(problems)

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with their labels."""
        splits, values = ragged(batch, LABEL)
        before = values.astype(np.float32)
        firsts = splits[:-1][np.diff(splits) > 0]
        before[firsts[before[firsts] <= 0]] = INVALID_LABEL
        made = np.stack([self._labels(batch, task, rng) for task in self.tasks], axis=1)
        counts = np.diff(splits)
        after = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts + len(self.tasks))))
        whole = np.empty(after[-1], np.float32)
        is_new = np.zeros(len(whole), np.bool_)
        is_new[((after[1:] - len(self.tasks))[:, None] + np.arange(len(self.tasks))).ravel()] = True
        whole[is_new], whole[~is_new] = made.ravel(), before
        batch = with_column(batch, LABEL, list_column(after, whole))
        if "sample_rate" in batch.schema.names:
            rate = pa.array(np.full(batch.num_rows, self.new_sample_rate, np.float32))
            batch = with_column(batch, "sample_rate", rate)
        return batch

    def _labels(self, batch: Any, task: TaskLabel, rng: np.random.Generator) -> NDArray[np.float32]:
        positive = has_any(batch, "actions", task.pos_actions)
        negative = ~positive
        if task.neg_actions:
            negative &= has_any(batch, "actions", task.neg_actions)
        if task.sample_rate < 1.0:
            negative &= rng.random(batch.num_rows) < task.sample_rate
        labels = np.full(batch.num_rows, INVALID_LABEL, np.float32)
        labels[positive] = POSITIVE_LABEL
        labels[negative] = self.negative_value
        return labels


@dataclass(frozen=True, slots=True)
class AddAction:
    """Adds an action to rows whose value fits."""

    condition: FilterByValue
    action: int

    def __post_init__(self) -> None:
        refuse(action_problems("action", (self.action,)))

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with their actions."""
        splits, values = ragged(batch, "actions")
        more = self.condition.keeps(batch, rng).astype(np.int64)
        after = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.diff(splits) + more)))
        whole = np.full(after[-1], self.action, np.int32)
        is_old = np.ones(len(whole), np.bool_)
        is_old[after[1:][more > 0] - 1] = False
        whole[is_old] = values
        return with_column(batch, "actions", list_column(after, whole))


@dataclass(frozen=True, slots=True)
class ScatterLabel:
    """Puts the first label into the place of the row's channel; the other places are invalid."""

    #: The place of each value of the column.
    places: Mapping[int, int]
    column: str = "chnid"

    def __post_init__(self) -> None:
        refuse(place_problems("places", self.places.values()))

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with as many labels as there are places."""
        del rng
        return with_column(batch, LABEL, dense_column(_scattered(batch, self.column, self.places, _firsts(batch), 0)))


@dataclass(frozen=True, slots=True)
class MultiLabel:
    """Makes one label for the head that a row belongs to, by its most important action, or of its first label."""

    #: The place of each value of the column: whole numbers, or texts.
    heads: Mapping[Any, int]
    column: str = "chnid"
    pos_actions: tuple[int, ...] = ()
    neg_actions: tuple[int, ...] = ()
    #: The first of these that a row has decides; without them its first action.
    action_priority: tuple[int, ...] = ()
    pos_label: float = 1.0
    neg_label: float = 0.0
    #: How many labels there are; 0: as many as there are heads need.
    tasks: int = 0

    def __post_init__(self) -> None:
        refuse(
            place_problems("heads", self.heads.values()),
            number_problems("tasks", (self.tasks,), 0, MAX_LABELS),
            action_problems("action_priority", self.action_priority),
        )

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with their labels."""
        del rng
        values = _firsts(batch)
        if self.pos_actions:
            actions, known = first_actions(batch, "actions", self.action_priority)
            values = np.full(batch.num_rows, INVALID_LABEL, np.float32)
            values[known & np.isin(actions, self.neg_actions)] = self.neg_label
            values[known & np.isin(actions, self.pos_actions)] = self.pos_label
        return with_column(batch, LABEL, dense_column(_scattered(batch, self.column, self.heads, values, self.tasks)))


def first_actions(batch: Any, column: str, priority: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The most important action of each row, and whether it has one. Without a known one, the first counts."""
    splits, values = ragged(batch, column)
    has = np.diff(splits) > 0
    chosen = np.zeros(batch.num_rows, np.int64)
    chosen[has] = values[splits[:-1][has]]
    for action in reversed(priority):
        chosen[has_any(batch, column, (action,))] = action
    return chosen, has


def _firsts(batch: Any) -> NDArray[np.float32]:
    splits, values = ragged(batch, LABEL)
    firsts = np.full(batch.num_rows, INVALID_LABEL, np.float32)
    has = np.diff(splits) > 0
    firsts[has] = values[splits[:-1][has]]
    return firsts


def _scattered(
    batch: Any, column: str, places: Mapping[Any, int], values: NDArray[np.float32], count: int
) -> NDArray[np.float32]:
    keys = column_of(batch, column)
    made = np.full((batch.num_rows, max(count, max(places.values()) + 1)), INVALID_LABEL, np.float32)
    for key, place in places.items():
        try:
            rows = pc.equal(keys, scalar_of(key, keys.type)).to_numpy(zero_copy_only=False)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidError([problem(column, key, f"must be a value of a column of {keys.type}")]) from error
        made[rows, place] = values[rows]
    return made


@dataclass(frozen=True, slots=True)
class LabelUpperBound:
    """Cuts labels at bounds, one for each place."""

    bounds: tuple[float, ...]

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with their labels."""
        del rng
        splits, values = ragged(batch, LABEL)
        made = values.astype(np.float32)
        places = np.arange(len(made)) - np.repeat(splits[:-1], np.diff(splits))
        bounds = np.full(max(int(np.diff(splits).max(initial=0)), len(self.bounds)), np.inf, np.float32)
        bounds[: len(self.bounds)] = self.bounds
        return with_column(batch, LABEL, list_column(splits, np.minimum(made, bounds[places])))


@dataclass(frozen=True, slots=True)
class UseFieldAsLabel:
    """Raises every label to a number of the row, such as a field of its line id. A label above it stays."""

    column: str
    #: A number that reaches this counts as 0; None: every number counts.
    threshold: float | None = None

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with their labels."""
        del rng
        field = column_of(batch, self.column)
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            raise InvalidError(
                [problem("column", self.column, f"must have one number in each row, and is {field.type}")]
            )
        found = field.to_numpy(zero_copy_only=False).astype(np.float32)
        if self.threshold is not None:
            found[found >= np.float32(self.threshold)] = 0
        splits, values = ragged(batch, LABEL)
        made = values.astype(np.float32)
        wanted = np.repeat(found, np.diff(splits))
        return with_column(batch, LABEL, list_column(splits, np.where(made < wanted, wanted, made)))


@dataclass(frozen=True, slots=True)
class NormalizeLabel:
    """Changes every label by some methods in turn, each with its value: log, scale, scale2int, pow, repow, scalelog."""

    methods: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        wrong = [name for name, _ in self.methods if name not in _NORMS]
        if wrong:
            raise InvalidError([problem("method", name, f"must be one of {', '.join(_NORMS)}") for name in wrong])

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows with their labels."""
        del rng
        splits, values = ragged(batch, LABEL)
        made = values.astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for name, number in self.methods:
                made = _NORMS[name](made, np.float32(number)).astype(np.float32)
        return with_column(batch, LABEL, list_column(splits, made))


_NORMS: dict[str, Any] = {
    "log": lambda label, value: np.log(np.maximum(label + value, 0)),
    "scale": lambda label, value: label / value,
    "scale2int": lambda label, value: np.trunc(label / value),
    "pow": lambda label, value: np.power(label + 1, value),
    "repow": lambda label, value: np.where(label > 0, np.power(np.maximum(label, 0), value), 0),
    "scalelog": lambda label, value: np.log(np.maximum(label / value + 1, 0)),
}

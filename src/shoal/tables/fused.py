"""The fused layout: ids of many features, looked up over N shards of servers, straight into the inputs of a model.

`FusedLayout` is made of features (which table, which columns form which slice, how they are pooled) and outputs (which
slices, put together how). For a batch, `plan` removes duplicate ids and sorts them by the server that has them:
`forward` turns the rows that the servers send back into the outputs, and `backward` turns the gradients of the outputs
into one gradient per id, in the order of the ids that were asked for. What comes out equals the plain path: look up
each feature, pool it, cut the slices out and put them together. The names and numbers are those of Monolith's
`FeatureConfigs`. Called by the learner and by model servers; knows no table and no network.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import Range, check
from shoal.tables.kernels import pools
from shoal.tables.kernels.compiling import for_kernel
from shoal.tables.layout import Floats, Words
from shoal.tables.pooling import KINDS, Pooling, check_splits


class Combine(enum.IntEnum):
    """How the slices of an output are put together. The numbers are those of Monolith's `OutType`."""

    CONCAT = 0
    """Side by side, in one array."""
    STACK = 1
    """One above the other, along a new second axis; all of one width."""
    ADD_N = 2
    """Added up; all of one width."""
    NONE = 3
    """Each for itself."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Where the rows of a feature come from, and what is done with those of one example."""

    table: str
    #: The widths of its slices, in the order of their columns.
    slice_dims: tuple[int, ...]
    pooling: Pooling = Pooling.SUM
    #: n of first n.
    length: Annotated[int, Range(0, 1 << 20)] = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """Columns of a feature."""

    feature: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FusedOutput:
    """Slices that become one input of the model, or one each with `Combine.NONE`."""

    slices: tuple[Slice, ...]
    combine: Combine = Combine.CONCAT


@dataclass(frozen=True, slots=True)
class Ragged:
    """The ids of a feature in a batch. A shared feature has those of one example, which count for every example."""

    ids: Words
    splits: Words
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """Which ids to ask for, and how their rows are used."""

    examples: int
    #: By table and server: each id once.
    ids: Mapping[str, tuple[Words, ...]]
    #: By feature: which line of the rows of its table each id is, and the splits of its examples.
    lines: Mapping[str, Words]
    splits: Mapping[str, Words]
    shared: frozenset[str]


class FusedLayout:
    """From ids to the inputs of a model.

    Args:
        features: by name.
        outputs: by name.
        servers: over how many servers the ids of each table are spread: id modulo this number, as a floor.
    """

    def __init__(
        self, features: Mapping[str, Feature], outputs: Mapping[str, FusedOutput], *, servers: int = 1
    ) -> None:
        self.features = dict(features)
        self.outputs = dict(outputs)
        self.servers = servers
        problems = [*self._feature_problems(), *self._output_problems()]
        if servers < 1:
            problems.append(problem("servers", servers, "must be at least 1"))
        if problems:
            raise InvalidError(problems)
        self.widths = {
            name: sum(each.slice_dims) for name, each in {each.table: each for each in self.features.values()}.items()
        }

    # -----------------------------------------------------------------------------------------------------
    # A batch

    def plan(self, batch: Mapping[str, Ragged], *, examples: int | None = None) -> LookupPlan:
        """What to ask the servers for. Raises `InvalidError` when a feature is missing, or lines do not fit.

        Args:
            batch: the ids of each feature.
            examples: how many the batch has. It is needed only where every feature is shared.
        """
        missing = [problem(name, None, "is missing from the batch") for name in self.features if name not in batch]
        if missing:
            raise InvalidError(missing)
        checked = {name: self._check_ragged(name, batch[name]) for name in sorted(self.features)}
        counts = {name: each.splits.size - 1 for name, each in checked.items() if not each.shared}
        if examples is None:
            if not counts:
                raise InvalidError([problem("examples", None, "must be given, because every feature is shared")])
            examples = next(iter(counts.values()))
        if examples < 0 or any(count != examples for count in counts.values()):
            rule = f"must have as many examples in every feature, which are {examples}"
            raise InvalidError([problem("batch", counts, rule)])
        ids: dict[str, tuple[Words, ...]] = {}
        lines: dict[str, Words] = {}
        for table in sorted({each.table for each in self.features.values()}):
            names = [name for name in checked if self.features[name].table == table]
            ids[table], found = self._route([checked[name].ids for name in names])
            lines.update(zip(names, found, strict=True))
        shared = frozenset(name for name, each in checked.items() if each.shared)
        return LookupPlan(examples, ids, lines, {name: each.splits for name, each in checked.items()}, shared)

    def _route(self, parts: list[Words]) -> tuple[tuple[Words, ...], list[Words]]:
        """Each id once, by server; and for every id of the parts, which line of all of them it is."""
        everything = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        unique, inverse = np.empty_like(everything), np.empty_like(everything)
        scratch = np.zeros(1 << max(4, (everything.size * 2).bit_length()), np.int64)
        unique = unique[: pools.deduplicate(everything, scratch, unique, inverse)]
        server = np.mod(unique, self.servers)
        order = np.argsort(server, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(order.size)
        bounds = np.searchsorted(server[order], np.arange(1, self.servers))
        lines = position.astype(np.int64)[inverse]
        cuts = np.cumsum([each.size for each in parts])[:-1]
        return tuple(np.split(unique[order], bounds)), np.split(lines, cuts)

    def forward(self, plan: LookupPlan, rows: Mapping[str, tuple[npt.ArrayLike, ...]]) -> dict[str, tuple[Floats, ...]]:
        """The outputs: one array each, or one per slice with `Combine.NONE`.

        Args:
            plan: that of the batch.
            rows: by table and server, a line per id of the plan.
        """
        found = {table: self._check_rows(plan, table, rows.get(table, ())) for table in plan.ids}
        outputs = {name: self._blank(name, plan.examples) for name in self.outputs}
        for name, output in self.outputs.items():
            for number, each in enumerate(output.slices):
                feature = self.features[each.feature]
                array, column, pitch = self._spot(name, number, outputs[name])
                pools.pool(
                    found[feature.table],
                    plan.lines[each.feature],
                    plan.splits[each.feature],
                    KINDS[feature.pooling],
                    feature.length,
                    each.start,
                    each.end,
                    plan.examples,
                    each.feature in plan.shared,
                    array,
                    column,
                    pitch,
                )
        return {
            name: tuple(each.reshape(shape) for each, shape in zip(made, self.shapes(name, plan.examples), strict=True))
            for name, made in outputs.items()
        }

    def backward(
        self, plan: LookupPlan, gradients: Mapping[str, tuple[npt.ArrayLike, ...]]
    ) -> dict[str, tuple[Floats, ...]]:
        """By table and server, the gradient of each id of the plan. An output without a gradient counts as zeros."""
        counts = {table: sum(each.size for each in parts) for table, parts in plan.ids.items()}
        sums = {table: np.zeros((count, self.widths[table]), np.float32) for table, count in counts.items()}
        for name in gradients:
            if name not in self.outputs:
                raise InvalidError([problem(f"gradients.{name}", None, "is not an output of this layout")])
            given = self._check_gradients(name, gradients[name], plan.examples)
            for number, each in enumerate(self.outputs[name].slices):
                feature = self.features[each.feature]
                array, column, pitch = self._spot(name, number, given)
                pools.pool_gradient(
                    array,
                    column,
                    pitch,
                    plan.lines[each.feature],
                    plan.splits[each.feature],
                    KINDS[feature.pooling],
                    feature.length,
                    each.start,
                    each.end,
                    plan.examples,
                    each.feature in plan.shared,
                    sums[feature.table],
                )
        return {
            table: tuple(np.split(sums[table], np.cumsum([each.size for each in parts])[:-1]))
            for table, parts in plan.ids.items()
        }

    def shapes(self, name: str, examples: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of an output: one, or one per slice with `Combine.NONE`."""
        output = self.outputs[name]
        widths = [each.end - each.start for each in output.slices]
        first = self.features[output.slices[0].feature]
        sequence = (first.length,) if first.pooling is Pooling.FIRST_N else ()
        match output.combine:
            case Combine.NONE:
                own = [self.features[each.feature] for each in output.slices]
                lengths = [(each.length,) if each.pooling is Pooling.FIRST_N else () for each in own]
                return tuple((examples, *length, width) for length, width in zip(lengths, widths, strict=True))
            case Combine.CONCAT:
                return ((examples, *sequence, sum(widths)),)
            case Combine.STACK:
                return ((examples, len(widths), *sequence, widths[0]),)
            case Combine.ADD_N:
                return ((examples, *sequence, widths[0]),)

    # -----------------------------------------------------------------------------------------------------
    # Where slices are in outputs

    def _blank(self, name: str, examples: int) -> list[Floats]:
        return [
            np.zeros((examples, int(np.prod(shape[1:], dtype=np.int64))), np.float32)
            for shape in self.shapes(name, examples)
        ]

    def _spot(self, name: str, number: int, arrays: list[Floats]) -> tuple[Floats, int, int]:
        """The array, the column where a slice begins, and how far the rows of a sequence are apart."""
        output = self.outputs[name]
        widths = [each.end - each.start for each in output.slices]
        width, length = widths[number], max(1, self.features[output.slices[number].feature].length)
        match output.combine:
            case Combine.NONE:
                return arrays[number], 0, width
            case Combine.ADD_N:
                return arrays[0], 0, width
            case Combine.STACK:
                return arrays[0], number * length * width, width
            case Combine.CONCAT:
                return arrays[0], sum(widths[:number]), sum(widths)

    # -----------------------------------------------------------------------------------------------------
    # Rules

    def _feature_problems(self) -> list[Problem]:
        found: list[Problem] = []
        widths: dict[str, int] = {}
        for name, each in self.features.items():
            try:
                check(each, at=name)
            except InvalidError as error:
                found += error.problems
            if not each.slice_dims or min(each.slice_dims) < 1:
                found.append(problem(f"{name}.slice_dims", each.slice_dims, "must be positive, and at least one"))
            if (each.pooling is Pooling.FIRST_N) != (each.length > 0):
                found.append(problem(f"{name}.length", each.length, "must be given for first n, and for nothing else"))
            if widths.setdefault(each.table, sum(each.slice_dims)) != sum(each.slice_dims):
                rule = f"must add up to the {widths[each.table]} columns of table {each.table}"
                found.append(problem(f"{name}.slice_dims", each.slice_dims, rule))
        return found

    def _output_problems(self) -> list[Problem]:
        found: list[Problem] = []
        for name, output in self.outputs.items():
            if not output.slices:
                found.append(problem(f"{name}.slices", None, "must not be empty"))
            kinds = set()
            for number, each in enumerate(output.slices):
                at = f"{name}.slices[{number}]"
                feature = self.features.get(each.feature)
                if feature is None:
                    found.append(problem(f"{at}.feature", each.feature, "is not a feature of this layout"))
                    continue
                if not 0 <= each.start < each.end <= sum(feature.slice_dims):
                    rule = f"must be within the {sum(feature.slice_dims)} columns of the feature"
                    found.append(problem(at, (each.start, each.end), rule))
                length = feature.length if feature.pooling is Pooling.FIRST_N else 0
                width = each.end - each.start
                kinds.add((length, width if output.combine in (Combine.STACK, Combine.ADD_N) else 0))
            if len(kinds) > 1 and output.combine is not Combine.NONE:
                rule = "must have slices of one width and one length" if output.combine else "must have one length"
                found.append(problem(f"{name}.slices", sorted(kinds), rule))
        return found

    def _check_ragged(self, name: str, given: Ragged) -> Ragged:
        ids = np.asarray(given.ids)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
            raise InvalidError([problem(f"{name}.ids", ids.shape, "must be an array of 64-bit whole numbers")])
        ids = np.ascontiguousarray(ids.view(np.int64) if ids.dtype == np.uint64 else ids, np.int64)
        splits = check_splits(given.splits, ids.size)
        if given.shared and splits.size != 2:
            raise InvalidError([problem(f"{name}.splits", splits.size - 1, "must be of one example, as it is shared")])
        return Ragged(for_kernel(ids), splits, given.shared)

    def _check_rows(self, plan: LookupPlan, table: str, given: tuple[npt.ArrayLike, ...]) -> Floats:
        wanted = [(each.size, self.widths[table]) for each in plan.ids[table]]
        arrays = [np.asarray(each, np.float32) for each in given]
        if [each.shape for each in arrays] != wanted:
            shown = [each.shape for each in arrays]
            raise InvalidError([problem(f"rows.{table}", shown, f"must have the shapes {wanted}, one per server")])
        return for_kernel(np.ascontiguousarray(np.concatenate(arrays)))

    def _check_gradients(self, name: str, given: tuple[npt.ArrayLike, ...], examples: int) -> list[Floats]:
        wanted = list(self.shapes(name, examples))
        arrays = [np.ascontiguousarray(each, np.float32) for each in given]
        if [each.shape for each in arrays] != wanted:
            shown = [each.shape for each in arrays]
            raise InvalidError([problem(f"gradients.{name}", shown, f"must have the shapes {wanted}")])
        # Written out: numpy cannot tell the width of no lines.
        return [for_kernel(each.reshape(examples, math.prod(each.shape[1:]))) for each in arrays]

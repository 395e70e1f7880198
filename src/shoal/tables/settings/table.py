"""The settings of a whole table, and their form in JSON for dumps and for readers in other processes."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import Check, MaxLength, Range, build, check, find_problems, to_mapping, unknown_field
from shoal.tables.settings.compressors import COMPRESSORS, Compressor, Fp32
from shoal.tables.settings.initializers import INITIALIZERS, Initializer, Uniform
from shoal.tables.settings.optimizers import OPTIMIZERS, Adagrad, BatchSoftmax, Optimizer
from shoal.tables.settings.rates import LEARNING_RATES, LearningRate

#: Slot numbers have 15 bits: (id >> 48) & 0x7fff.
SLOTS = 1 << 15
MAX_WIDTH = 1 << 16
FOREVER = 0
T = TypeVar("T")
_SECONDS = 2**32 - 1


def _slots(value: Mapping[Any, int]) -> str | None:
    for slot, number in value.items():
        if not isinstance(slot, int) or not 0 <= slot < SLOTS:
            return f"must have slots between 0 and {SLOTS - 1}"
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _SECONDS:
            return f"must have whole numbers between 0 and {_SECONDS}"
    return None


class TableKind(enum.StrEnum):
    """What the rows of a table hold."""

    TRAINING = "training"
    """Weights as float32, and the state of their optimizers."""
    SERVING = "serving"
    """Compressed weights; values are assigned, gradients are refused."""


class FilterKind(enum.StrEnum):
    """How occurrences of ids that are not in the table are counted."""

    NONE = "none"
    SLIDING = "sliding"
    """Exact counts of recent ids in bounded memory; what was not seen for long is forgotten."""
    PROBABILISTIC = "probabilistic"
    """No memory: an occurrence is admitted with a chance of 1 in the threshold."""
    PROBABILISTIC_EQUAL = "probabilistic_equal"
    """No memory: after as many occurrences as the threshold, 95 of 100 ids are admitted."""


class NotFinite(enum.StrEnum):
    """What happens to a batch with gradients that are no number, infinite, or larger than 1e15."""

    FAIL = "fail"
    """The batch is refused, and the table is as before."""
    SKIP = "skip"
    """The ids with such gradients are left out, and counted."""


@dataclass(frozen=True, slots=True)
class SliceSettings:
    """A range of columns with its own training."""

    dim: Annotated[int, Range(1, MAX_WIDTH)]
    name: Annotated[str, MaxLength(200)] = ""
    initializer: Initializer = Uniform()
    optimizer: Optimizer = Adagrad()
    compressor: Compressor = Fp32()
    #: None is the `learning_rate` of the optimizer at every step.
    learning_rate: LearningRate | None = None

    def rate_at(self, step: int) -> float:
        """The learning rate at a step."""
        return self.learning_rate.at(step) if self.learning_rate is not None else self.optimizer.learning_rate

    def extra_problems(self, at: str) -> list[Problem]:
        """The rules of the parts, and those between them."""
        found = []
        for name, kinds in _PARTS.items():
            part = getattr(self, name)
            if part is None and name == "learning_rate":
                continue
            if not isinstance(part, kinds):
                found.append(problem(_at(at, name), part, f"must be one of {', '.join(k.__name__ for k in kinds)}"))
        if isinstance(self.optimizer, BatchSoftmax) and self.dim != 1:
            found.append(problem(_at(at, "dim"), self.dim, "must be 1 for batch softmax"))
        return found


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """When an id may enter the table. With a threshold of T, its first T occurrences train nothing; T+1 does."""

    filter: FilterKind = FilterKind.NONE
    threshold: Annotated[int, Range(0, _SECONDS)] = 0
    #: Other thresholds, by slot.
    slot_thresholds: Annotated[Mapping[int, int], Check(_slots)] = field(default_factory=dict)
    #: Ids that the sliding filter remembers at most, and in how many parts it forgets them.
    capacity: Annotated[int, Range(1, 2**36)] = 1 << 20
    splits: Annotated[int, Range(2, 64)] = 7

    def extra_problems(self, at: str) -> list[Problem]:
        """A threshold needs a filter that counts."""
        if self.filter is not FilterKind.NONE or not (self.threshold or any(self.slot_thresholds.values())):
            return []
        rule = "must be sliding, probabilistic or probabilistic_equal, because there is a threshold"
        return [problem(_at(at, "filter"), self.filter, rule)]


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """When an id leaves the table: when it was not updated for its lifetime, in seconds; 0 is never."""

    lifetime: Annotated[int, Range(0, _SECONDS)] = FOREVER
    #: Other lifetimes, by slot.
    slot_lifetimes: Annotated[Mapping[int, int], Check(_slots)] = field(default_factory=dict)
    #: As many ids as this never leave, however old they are.
    keep_at_least: Annotated[int, Range(0, 2**40)] = 0

    @property
    def enabled(self) -> bool:
        """Whether any id can expire."""
        return self.lifetime > 0 or any(self.slot_lifetimes.values())


@dataclass(frozen=True, slots=True)
class TableSettings:
    """One table."""

    slices: Annotated[tuple[SliceSettings, ...], MaxLength(256, 1)]
    name: Annotated[str, MaxLength(200, 1)] = "table"
    kind: TableKind = TableKind.TRAINING
    admission: AdmissionSettings = AdmissionSettings()
    expiry: ExpirySettings = ExpirySettings()
    not_finite: NotFinite = NotFinite.FAIL
    #: Parts of the table that grow one by one; a power of two. A thread works on some of them.
    shards: Annotated[int, Range(1, 1024)] = 16
    #: New ids beyond this many are refused and counted; each shard takes an equal part of them.
    max_ids: Annotated[int, Range(1, 2**36)] = 2**36
    #: Room is made for this many ids at once; more or fewer work, too.
    expected_ids: Annotated[int, Range(0, 2**36)] = 0
    #: First weights depend on it.
    seed: Annotated[int, Range(0, 2**62)] = 0

    @property
    def dim(self) -> int:
        """Columns of all slices together."""
        return sum(each.dim for each in self.slices)

    def extra_problems(self, at: str) -> list[Problem]:
        """Rules between fields."""
        found = []
        if self.shards & (self.shards - 1):
            found.append(problem(_at(at, "shards"), self.shards, "must be a power of two"))
        if self.max_ids < self.shards:
            rule = f"must be at least the number of shards, which is {self.shards}"
            found.append(problem(_at(at, "max_ids"), self.max_ids, rule))
        if self.dim > MAX_WIDTH:
            found.append(problem(_at(at, "slices"), self.dim, f"must have at most {MAX_WIDTH} columns together"))
        return found

    def check(self) -> None:
        """Raise `InvalidError` with every broken rule."""
        check(self)

    def to_json(self) -> str:
        """The form that `from_json` reads."""
        mapping = to_mapping(self)
        for each, document in zip(self.slices, mapping["slices"], strict=True):
            for name in _PARTS:
                part = getattr(each, name)
                document[name] = None if part is None else {"kind": part.kind, **to_mapping(part)}
        return json.dumps(mapping)

    @classmethod
    def from_json(cls, text: str | bytes, *, what: str = "table settings") -> TableSettings:
        """Read what `to_json` wrote. Raises `InvalidError` for anything else."""
        try:
            mapping = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidError([problem("", None, f"must be JSON: {error}")], what=what) from None
        if not isinstance(mapping, dict) or not isinstance(mapping.get("slices"), list):
            raise InvalidError([problem("slices", None, "must be a list of slices")], what=what)
        slices = tuple(_read_slice(each, f"slices[{n}]", what) for n, each in enumerate(mapping.pop("slices")))
        admission = _read_by_slot(AdmissionSettings, mapping.pop("admission", {}), "slot_thresholds", "admission", what)
        expiry = _read_by_slot(ExpirySettings, mapping.pop("expiry", {}), "slot_lifetimes", "expiry", what)
        rest = build(_Rest, mapping, what=what)
        others = {each: getattr(rest, each) for each in _Rest.__dataclass_fields__}
        made = cls(slices=slices, admission=admission, expiry=expiry, **others)
        problems = find_problems(made)
        if problems:
            raise InvalidError(problems, what=what)
        return made


_PARTS: dict[str, tuple[Any, ...]] = {
    "initializer": INITIALIZERS,
    "optimizer": OPTIMIZERS,
    "compressor": COMPRESSORS,
    "learning_rate": LEARNING_RATES,
}


@dataclass(frozen=True, slots=True)
class _Rest:
    """The fields that are read as they are."""

    name: str
    kind: TableKind = TableKind.TRAINING
    not_finite: NotFinite = NotFinite.FAIL
    shards: int = 16
    max_ids: int = 2**36
    expected_ids: int = 0
    seed: int = 0


def _at(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _read_by_slot(cls: type[T], given: Any, part: str, at: str, what: str) -> T:
    """A value with a mapping by slot, whose keys are text in JSON."""
    by_slot = given.get(part, {}) if isinstance(given, dict) else None
    if not isinstance(by_slot, dict) or not all(str(slot).isdecimal() for slot in by_slot):
        raise InvalidError([problem(_at(at, part), by_slot, "must be a mapping of slots")], what=what)
    made = build(cls, {name: value for name, value in given.items() if name != part}, at=at, what=what)
    filled: T = dataclasses.replace(made, **{part: {int(slot): by_slot[slot] for slot in by_slot}})  # type: ignore[type-var]
    return filled


def _read_slice(given: Any, at: str, what: str) -> SliceSettings:
    if not isinstance(given, dict):
        raise InvalidError([problem(at, given, "must be a mapping")], what=what)
    known = {"dim", "name", *_PARTS}
    problems = [unknown_field(key, known, at=at) for key in given if key not in known]
    if not isinstance(given.get("dim"), int) or not isinstance(given.get("name", ""), str):
        problems.append(problem(_at(at, "dim"), given.get("dim"), "must be a whole number, and name a text"))
    if problems:
        raise InvalidError(problems, what=what)
    parts = {
        name: _read_part(given[name], kinds, _at(at, name), what)
        for name, kinds in _PARTS.items()
        if given.get(name) is not None
    }
    return SliceSettings(given["dim"], given.get("name", ""), **parts)


def _read_part(given: Any, kinds: tuple[Any, ...], at: str, what: str) -> Any:
    by_name = {each.kind: each for each in kinds}
    name = given.get("kind") if isinstance(given, dict) else None
    if name not in by_name:
        raise InvalidError([problem(_at(at, "kind"), name, f"must be one of {', '.join(by_name)}")], what=what)
    return build(by_name[name], {key: value for key, value in given.items() if key != "kind"}, at=at, what=what)

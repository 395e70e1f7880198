"""Reads `feature_list.conf`: which features there are, their slots and how they are made.

    column_name: uid, item_id
    cache_column: user
    feed_name=user_feed shared=true feature_id=1
    cache_name=c1 capacity=100 timeout=60
    feature_name=fc_user_id slot=1 method=Direct depend=uid, args=3 shared=true need_raw=false feature_id=7

A line is a list of `key=value`; a value ends where the next key begins, and may hold blanks and commas. Keys that are
not known are left out, as Monolith does. Called by users, and where random data is made by such a list.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.core import files
from shoal.core.errors import InvalidError, NotFoundError, Problem, problem

MAX_FILE_BYTES = 64 << 20

_TRUE = frozenset({"true", "yes", "t", "y", "1"})
_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z_][A-Za-z0-9_]*)\s*=")
_PREFIXES = ("fc_", "f_")


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature, and how it is made."""

    feature_name: str
    slot: int | None = None
    method: str = ""
    depend: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    feature_version: int | None = None
    shared: bool = False
    need_raw: bool = False
    feature_id: int | None = None
    cache_keys: tuple[str, ...] = ()
    input_optional: tuple[bool, ...] = ()
    feature_group: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name without the prefixes of its terms, in lower case."""
        return _bare(self.feature_name)


@dataclass(frozen=True, slots=True)
class Feed:
    """Data that is given with a request."""

    feed_name: str
    shared: bool = False
    feature_id: int | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of features."""

    cache_column: str = ""
    cache_name: str = ""
    capacity: int | None = None
    timeout: int | None = None
    cache_type: str = ""
    cache_key_class: str = ""

    @property
    def name(self) -> str:
        """What it is known by."""
        return self.cache_name or self.cache_key_class or "cache_column"


class FeatureList:
    """The features of a file, by name and by slot."""

    def __init__(
        self,
        features: tuple[Feature, ...],
        *,
        feeds: tuple[Feed, ...] = (),
        caches: tuple[Cache, ...] = (),
        column_names: frozenset[str] = frozenset(),
    ) -> None:
        self.feeds = feeds
        self.caches = caches
        self.column_names = column_names
        self._by_name = {each.feature_name: each for each in features}
        self._by_slot: dict[int, list[Feature]] = {}
        for each in self._by_name.values():
            if each.slot is not None:
                self._by_slot.setdefault(each.slot, []).append(each)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._by_name.values())

    def __contains__(self, item: str | int) -> bool:
        return self.find(item) is not None

    def __getitem__(self, item: str | int) -> Feature:
        """A feature by its name, with or without `fc_` and `f_`, or by its slot. Raises `NotFoundError`."""
        found = self.find(item)
        if found is None:
            raise NotFoundError("feature", str(item))
        return found

    def find(self, item: str | int) -> Feature | None:
        """The same; None when there is none."""
        if isinstance(item, int):
            return next(iter(self._by_slot.get(item, ())), None)
        name = item.strip()
        for candidate in (name, f"f_{name}", f"fc_{name}", _prefixed(name, "fc_"), _prefixed(name, "f_")):
            if candidate in self._by_name:
                return self._by_name[candidate]
        return None

    def in_slot(self, slot: int) -> tuple[Feature, ...]:
        """All features of a slot."""
        return tuple(self._by_slot.get(slot, ()))


def load_feature_list(path: str) -> FeatureList:
    """Read a file. Raises `InvalidError` with every line that is wrong."""
    data = files.read_bytes(path, limit=MAX_FILE_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidError([problem(f"{path}, byte {error.start}", None, "must be UTF-8")]) from error
    return parse_feature_list(text, path=path)


def parse_feature_list(text: str, *, path: str = "feature_list.conf") -> FeatureList:
    """Read the text of such a file. Raises `InvalidError` with every line that is wrong."""
    columns: set[str] = set()
    features: list[Feature] = []
    feeds: list[Feed] = []
    caches: list[Cache] = []
    problems: list[Problem] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("column_name"):
                columns.update(_words(line.removeprefix("column_name").lstrip(" :=")))
            elif line.startswith("cache_column"):
                caches.append(Cache(cache_column=line.removeprefix("cache_column").lstrip(" :=").strip()))
            elif line.startswith("feed"):
                feeds.append(_made(Feed, line, "feed_name"))
            elif line.startswith("cache"):
                caches.append(_made(Cache, line, None))
            else:
                features.append(_made(Feature, line, "feature_name"))
        except ValueError as error:
            problems.append(problem(f"{path}, line {number}", raw, str(error)))
    if problems:
        raise InvalidError(problems)
    return FeatureList(tuple(features), feeds=tuple(feeds), caches=tuple(caches), column_names=frozenset(columns))


_Made = TypeVar("_Made", Feature, Feed, Cache)


def _made(kind: type[_Made], line: str, needed: str | None) -> _Made:
    given = _pairs(line)
    if needed is not None and not given.get(needed):
        raise ValueError(f"must have {needed}=…")
    values = {
        each.name: _READERS[str(each.type)](each.name, given[each.name])
        for each in dataclasses.fields(kind)
        if each.name in given
    }
    return kind(**values)


def _pairs(line: str) -> dict[str, str]:
    keys = list(_KEY.finditer(line))
    ends = [each.start() for each in keys[1:]] + [len(line)]
    pairs = {}
    for key, end in zip(keys, ends, strict=True):
        pairs[key[1]] = line[key.end() : end].strip().rstrip(",").rstrip(";").rstrip()
    return pairs


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{key} must be a whole number") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip().replace('"', "").replace("'", "") for each in text.split(","))


_READERS: dict[str, Callable[[str, str], Any]] = {
    "str": lambda _key, text: text,
    "int | None": _number,
    "bool": lambda _key, text: text.lower() in _TRUE,
    "tuple[str, ...]": lambda _key, text: _words(text),
    "tuple[bool, ...]": lambda _key, text: tuple(each.lower() == "true" for each in _words(text)),
}


def _bare(name: str) -> str:
    terms = []
    for term in name.split("-"):
        prefix = next((each for each in _PREFIXES if term.startswith(each)), "")
        terms.append(term.removeprefix(prefix))
    return "-".join(terms).lower()


def _prefixed(name: str, prefix: str) -> str:
    return "-".join(f"{prefix}{term}" for term in name.split("-"))

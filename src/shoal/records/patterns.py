"""Which files are meant: lists with commas, globs, files that list files, dates and numbers, and shares of hosts.

    part-*.snappy, more/**/x        globs; `**` stands for any directories
    @lists/today.txt                one path or pattern in each line
    data_{DATE(20201120,20201210)}/hour_{INT(0,5)}/part_{INT(0,3)}

Both ends of `DATE` and `INT` count; a date may have hours (YYYYMMDDHH). What comes out is the same list on every host:
in the order of the patterns, by name within one, each file once. Paths go through `shoal.core.files`. Called by readers
of training data.
"""

from __future__ import annotations

import fnmatch
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shoal.core import files
from shoal.core.errors import ExhaustedError, InvalidError, NotFoundError, problem

logger = logging.getLogger(__name__)

#: More are refused: `{INT(0,999999999)}` must not claim all memory.
MAX_PATTERNS = 1_000_000
MAX_LIST_BYTES = 64 << 20

# No blank fits two places of it: a list of files with a long line of them must not take hours.
_RANGE = re.compile(r"\{\s*([A-Z]+)\s*\(([^(),{}]*),([^(),{}]*)\)\s*\}")
_MAGIC = re.compile(r"[*?\[]")
_HOURS = {text: hour for hour in range(24) for text in (f"{hour}", f"{hour:02}")}
_DATES = {8: ("%Y%m%d", timedelta(days=1)), 10: ("%Y%m%d%H", timedelta(hours=1))}


@dataclass(frozen=True, slots=True)
class Shard:
    """One host's share of the files: every `count`-th, beginning with `index`."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise InvalidError([problem("shard", f"{self.index} of {self.count}", "must be from 0 to count - 1")])


def find_files(patterns: str | Iterable[str], *, shard: Shard | None = None) -> tuple[str, ...]:
    """Every file that the patterns mean, or a host's share of them.

    A pattern that no file matches is logged and left out. Raises `NotFoundError` when there is no file at all, and
    `InvalidError` for a pattern that cannot be read.
    """
    found: dict[str, None] = {}
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in _expanded(given):
        matches = _matches(pattern)
        if not matches:
            logger.warning("no file matches %s", pattern)
        found.update(dict.fromkeys(matches))
    if not found:
        raise NotFoundError("file", ", ".join(given), hint="no file matches any of the patterns")
    share = shard or Shard()
    return tuple(itertools.islice(found, share.index, None, share.count))


def expand_pattern(pattern: str) -> tuple[str, ...]:
    """The paths and globs that one pattern with `{DATE()}` and `{INT()}` stands for. Raises `InvalidError`."""
    pieces = _RANGE.split(pattern)
    # Text, kind, first, last, text, kind, … as `split` gives it.
    texts = pieces[0::4]
    if any("{" in text or "}" in text for text in texts):
        raise InvalidError([problem("pattern", pattern, "braces must hold DATE(first,last) or INT(first,last)")])
    ranges = [
        _values(pattern, kind, first.strip(), last.strip())
        for kind, first, last in zip(pieces[1::4], pieces[2::4], pieces[3::4], strict=True)
    ]
    count = 1
    for each in ranges:
        count *= len(each)
    if count > MAX_PATTERNS:
        raise ExhaustedError(f"pattern {pattern!r} stands for {count:,} paths; at most {MAX_PATTERNS:,} are taken")
    return tuple(
        "".join(itertools.chain.from_iterable(itertools.zip_longest(texts, values, fillvalue="")))
        for values in itertools.product(*ranges)
    )


def dated_patterns(
    root: str,
    start: str,
    end: str,
    *,
    date_format: str = "%Y%m%d",
    wildcard: str = "*",
    hourly: bool = False,
) -> tuple[str, ...]:
    """One pattern for each day, or hour, from `start` to before `end`: `root/20201120/*`, or `root/20201120/07*`.

    Args:
        root: the directory above the days.
        start: the first day, in `date_format`. With `hourly` the hour may follow after a colon: `20201120:07`.
        end: the day, or hour, after the last one.
        date_format: how days are written, as `strftime` has it; it may contain `/`.
        wildcard: what the files of a day, or of an hour, are called.
        hourly: whether files lie by hour.
    """
    first, last = _moment("start", start, date_format), _moment("end", end, date_format)
    if last <= first:
        raise InvalidError([problem("end", end, f"must be after {start}")])
    step = timedelta(hours=1) if hourly else timedelta(days=1)
    count = -((first - last) // step)
    if count > MAX_PATTERNS:
        raise ExhaustedError(f"{start} to {end} are {count:,} patterns; at most {MAX_PATTERNS:,} are taken")
    form = f"{date_format}/%H" if hourly else date_format
    moments = [(first + number * step).strftime(form) for number in range(count)]
    return tuple(files.join(root, each + wildcard if hourly else f"{each}/{wildcard}") for each in moments)


# ---------------------------------------------------------------------------------------------------------
# Patterns


def _expanded(patterns: Sequence[str], *, nested: bool = False) -> Iterator[str]:
    for text in patterns:
        for pattern in _split(text):
            if not pattern.startswith("@"):
                yield from expand_pattern(pattern)
            elif nested:
                raise InvalidError([problem("pattern", pattern, "a list of files must not name another list")])
            else:
                yield from _expanded(_listed(pattern[1:]), nested=True)


def _listed(path: str) -> list[str]:
    try:
        lines = files.read_bytes(path, limit=MAX_LIST_BYTES).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidError([problem(f"{path}, byte {error.start}", None, "must be UTF-8")]) from error
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _split(text: str) -> list[str]:
    """At commas that are not within braces."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "," and depth <= 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _values(pattern: str, kind: str, first: str, last: str) -> list[str]:
    def wrong(rule: str) -> InvalidError:
        return InvalidError([problem("pattern", pattern, rule)])

    if kind == "INT":
        if not all(re.fullmatch(r"[0-9]{1,18}", each) for each in (first, last)):
            raise wrong("INT takes two whole numbers")
        low, high = int(first), int(last)
        if high - low >= MAX_PATTERNS:
            raise ExhaustedError(f"pattern {pattern!r} stands for more than {MAX_PATTERNS:,} paths")
        if low > high:
            raise wrong("the first number must not be above the last")
        return [str(each) for each in range(low, high + 1)]
    if kind != "DATE":
        raise wrong("braces must hold DATE(first,last) or INT(first,last)")
    if len(first) != len(last) or len(first) not in _DATES:
        raise wrong("DATE takes two dates as YYYYMMDD, or as YYYYMMDDHH")
    form, step = _DATES[len(first)]
    begin, end = _moment("pattern", first, form), _moment("pattern", last, form)
    if begin > end:
        raise wrong("the first date must not be after the last")
    count = (end - begin) // step + 1
    if count > MAX_PATTERNS:
        raise ExhaustedError(f"pattern {pattern!r} stands for more than {MAX_PATTERNS:,} paths")
    return [(begin + number * step).strftime(form) for number in range(count)]


def _moment(field: str, text: str, form: str) -> datetime:
    day, _, hour = text.partition(":")
    try:
        found = datetime.strptime(day, form).replace(tzinfo=UTC)
        return found + timedelta(hours=_HOURS[hour]) if hour else found
    except (ValueError, KeyError, OverflowError):
        raise InvalidError(
            [problem(field, text, f"must be a date as {form}, perhaps with an hour behind a colon")]
        ) from None


# ---------------------------------------------------------------------------------------------------------
# Globs


def _matches(pattern: str) -> list[str]:
    if not _MAGIC.search(pattern):
        return [pattern] if files.exists(pattern) else []
    parts = pattern.split("/")
    fixed = next(index for index, part in enumerate(parts) if _MAGIC.search(part))
    base = "/".join(parts[:fixed])
    return sorted(set(_below(base or ("/" if fixed else "."), parts[fixed:], hide=fixed == 0)))


def _below(folder: str, parts: Sequence[str], *, hide: bool = False) -> Iterator[str]:
    """Files below a directory whose names match, one part for each level. `hide`: the folder is not in the paths."""
    part, rest = parts[0], parts[1:]
    entries = files.list_files(folder)
    for entry in entries:
        path = files.name(entry.path) if hide else entry.path
        if part == "**":
            if entry.is_directory:
                yield from _below(path, parts)
            continue
        if not fnmatch.fnmatchcase(files.name(entry.path), part):
            continue
        if rest and entry.is_directory:
            yield from _below(path, rest)
        elif not rest and not entry.is_directory:
            yield path
    if part == "**":
        yield from _below(folder, rest or ["*"], hide=hide)

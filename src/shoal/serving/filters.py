"""Layout filters: which sub graphs of a layout a container serves.

A filter is `match` or `match;condition`, one per `layout_filters` line of `agent.conf`:

    entry                        the sub graph `entry`
    ps_{i}; i % 2 == 1           every second parameter server
    ps_{i}; i % ${shard_num} == ${shard_id}

`{name}` stands for a number; all else in the match is a regular expression, which has to match the whole name of the
sub graph. `${shard_id}` and `${shard_num}` are replaced first. A sub graph is served when any filter accepts it, or
when there are no filters. Pure. Called by `shoal.serving.layouts` and, to check the file, by `shoal.serving.config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.serving.expressions import Expression, parse_expression

MAX_LENGTH = 512

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ALWAYS = parse_expression("True")
#: A condition that has no value for one of these may have one for others; one that has none for any is a mistake.
_TRIED = (1, 0, 2, 7)


@dataclass(frozen=True, slots=True)
class LayoutFilter:
    """One filter."""

    text: str
    #: As it is reported to peers: the match is a plain regular expression.
    normal: str
    _match: re.Pattern[str]
    _condition: Expression

    def accepts(self, sub_graph: str) -> bool:
        """Whether it accepts a sub graph. Raises ValueError when its condition has no value for it."""
        found = self._match.fullmatch(sub_graph)
        if found is None:
            return False
        values = {name: int(text) for name, text in found.groupdict().items() if text is not None}
        try:
            return bool(self._condition.evaluate(values))
        except ValueError as error:
            raise ValueError(f"the condition of the filter {self.text!r} {error}") from None


def parse_filter(text: str, *, shard_id: int = 0, shard_num: int = 1) -> LayoutFilter:
    """Read a filter. Raises ValueError with the rule that it breaks."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"must have at most {MAX_LENGTH} characters")
    filled = text.replace("${shard_id}", str(max(shard_id, 0))).replace("${shard_num}", str(max(shard_num, 1)))
    match, _, condition = (part.strip() for part in filled.partition(";"))
    if not match:
        raise ValueError("must begin with the name of a sub graph, such as ps_{i}")
    pattern = _PLACE.sub(r"(?P<\1>\\d+)", match)
    try:
        compiled = re.compile(pattern, re.ASCII)
    except (re.error, RecursionError) as error:
        raise ValueError(f"must begin with a regular expression: {error}") from None
    expression = parse_expression(condition) if condition else _ALWAYS
    unknown = sorted(expression.names - compiled.groupindex.keys())
    if unknown:
        raise ValueError(f"has a condition on {', '.join(unknown)}, which {match!r} does not contain")
    _check_has_values(expression)
    return LayoutFilter(text, f"{pattern};{expression.text}", compiled, expression)


def _check_has_values(condition: Expression) -> None:
    """Refuse a condition that has a value for no number at all, such as `i % 0 == 1`."""
    failure: ValueError | None = None
    for number in _TRIED:
        try:
            condition.evaluate(dict.fromkeys(condition.names, number))
        except ValueError as error:
            failure = error
        else:
            return
    raise ValueError(f"has a condition that never has a value: {condition.text!r} {failure}")


def parse_filters(texts: Iterable[str], *, shard_id: int, shard_num: int) -> tuple[LayoutFilter, ...]:
    """Read several filters."""
    return tuple(parse_filter(text, shard_id=shard_id, shard_num=shard_num) for text in texts)


def accepts(filters: Sequence[LayoutFilter], sub_graph: str) -> bool:
    """Whether a container with these filters serves a sub graph.

    Raises ValueError when none accepts it and the condition of one of them has no value for it.
    """
    if not filters:
        return True
    failure: ValueError | None = None
    for each in filters:
        try:
            if each.accepts(sub_graph):
                return True
        except ValueError as error:
            failure = error
    if failure is not None:
        raise failure
    return False

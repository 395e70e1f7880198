"""The output of a join: which keys go together, which columns come out under which names, and what each mode needs.

Called by `shoal.dataflow.plan.inference`; `output_columns` also by the optimizer, which asks where a column came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.core.errors import problem
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.logical import Join, JoinKind, JoinMode
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.plan.facts import Answers, Facts, check_keys, make_schema, time_columns, window_fields

_TIMED = (JoinMode.WINDOW, JoinMode.INTERVAL, JoinMode.ASOF)
_ONE_SIDED = (JoinMode.ASOF, JoinMode.TABLE, JoinMode.BROADCAST)


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """A column of a join's output: what it is called there, and where it comes from."""

    name: str
    side: int
    origin: str


def output_columns(node: Join, left: Sequence[str], right: Sequence[str]) -> list[JoinColumn]:
    """The columns of both sides as they come out; a right key named as its left key is there once."""
    shared = {mine for mine, theirs in zip(node.left_keys, node.right_keys, strict=False) if mine == theirs}
    taken = set(left)
    columns = [JoinColumn(name, 0, name) for name in left]
    columns += [
        JoinColumn(f"{name}{node.suffix}" if name in taken else name, 1, name) for name in right if name not in shared
    ]
    return columns


def infer_join(node: Join, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    """The facts of a join."""
    left, right = inputs
    _check_mode(node, left, right)
    if len(node.left_keys) != len(node.right_keys):
        rule = f"{len(node.left_keys)} on the left and {len(node.right_keys)} on the right"
        raise PlanError([problem("join keys", None, f"must be as many on both sides: {rule}")], at=node.at)
    check_keys(node.left_keys, left.schema, at=node.at, what="left join key")
    check_keys(node.right_keys, right.schema, at=node.at, what="right join key")
    schema = None
    if left.schema is not None and right.schema is not None:
        _check_key_types(node, left.schema, right.schema)
        schema = _join_schema(node, left.schema, right.schema)
    time = left.time if node.mode in _ONE_SIDED else left.time and right.time
    return Facts(schema, bounded=left.bounded and right.bounded, time=time)


def _join_schema(node: Join, left: Schema, right: Schema) -> Any:
    sides = (left, right)
    fields = [
        pa.field(each.name, sides[each.side].field(each.origin).type)
        for each in output_columns(node, left.names, right.names)
    ]
    windows = window_fields() if node.mode is JoinMode.WINDOW else []
    hint = f'another suffix tells them apart: suffix="{node.suffix}_2"; or rename the columns before'
    return make_schema([*fields, *windows], at=node.at, what="join", hint=hint)


def _check_key_types(node: Join, left: Schema, right: Schema) -> None:
    for mine, theirs in zip(node.left_keys, node.right_keys, strict=True):
        one, other = datatypes.plain(left.field(mine).type), datatypes.plain(right.field(theirs).type)
        if one == other or (datatypes.is_text(one) and datatypes.is_text(other)):
            continue
        raise PlanError(
            [
                problem(
                    f"join key {mine!r} = {theirs!r}",
                    None,
                    f"{mine} is {one} here, and {theirs} is {other} on the right",
                )
            ],
            at=node.at,
            hint=f"make them alike first: {_casts((mine, one), (theirs, other))}",
        )


def _casts(left: tuple[str, Any], right: tuple[str, Any]) -> str:
    """What to write so that two keys have one type: the one that holds both, else that of the left one."""
    wanted = datatypes.common_type(left[1], right[1]) or left[1]
    return " and ".join(
        f"{_cast(name, wanted)} on the {side} side"
        for side, (name, kind) in (("left", left), ("right", right))
        if kind != wanted
    )


def _cast(name: str, kind: Any) -> str:
    cast = f'col("{name}").cast("{kind}")'
    return f".with_columns({name}={cast})" if name.isidentifier() else f'.with_columns({cast}.alias("{name}"))'


def _check_mode(node: Join, left: Facts, right: Facts) -> None:
    if left.changes or (right.changes and node.mode not in (JoinMode.TABLE, JoinMode.BROADCAST)):
        rule = "cannot stand behind rows that change: it would match each change as a row"
        raise PlanError([problem("join", None, rule)], at=node.at, hint="aggregate in windows before joining")
    if not node.left_keys and node.mode not in (JoinMode.ASOF, JoinMode.INTERVAL):
        hint = 'name them: .join(other, on="user_id"), or left_keys= and right_keys='
        raise PlanError([problem("join keys", None, "are needed")], at=node.at, hint=hint)
    if node.mode in _ONE_SIDED and node.kind not in (JoinKind.INNER, JoinKind.LEFT):
        words = {JoinMode.ASOF: "an as-of join", JoinMode.TABLE: "a join with a table"}
        rule = f"{words.get(node.mode, 'a broadcast join')} is inner or left"
        raise PlanError([problem("how", node.kind.value, rule)], at=node.at)
    if node.mode is JoinMode.INTERVAL and node.lower > node.upper:
        raise PlanError([problem("interval", f"{node.lower} > {node.upper}", "must have lower <= upper")], at=node.at)
    if node.mode is JoinMode.WINDOW and not isinstance(node.window, SlidingWindow):
        raise PlanError([problem("window", None, "of a join is tumbling or sliding")], at=node.at)
    if node.mode in _TIMED:
        _check_times(node, left, right)
    _check_end(node, left, right)


def _check_times(node: Join, left: Facts, right: Facts) -> None:
    for side, facts in (("left", left), ("right", right)):
        if facts.time:
            continue
        column = next(iter(time_columns(facts.schema)), "…")
        rule = f"an {node.mode.value} join is made of it, and the {side} side has none"
        hint = f'name its column before joining: .event_time("{column}")'
        raise PlanError([problem("event time", None, rule.replace("an window", "a windowed"))], at=node.at, hint=hint)


def _check_end(node: Join, left: Facts, right: Facts) -> None:
    """A row without a partner can be put out only when it is sure that none comes."""
    waits = {JoinKind.LEFT: (right,), JoinKind.RIGHT: (left,), JoinKind.OUTER: (left, right)}.get(node.kind, ())
    if node.mode is not JoinMode.REGULAR or node.ttl or all(each.bounded for each in waits):
        return
    rule = f"a {node.kind.value} join waits for partners, and the other side has no end"
    hint = 'say how long: ttl="1h"; or join within windows, window=tumbling(minutes=5)'
    raise PlanError([problem("how", node.kind.value, rule)], at=node.at, hint=hint)

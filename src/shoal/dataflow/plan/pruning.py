"""The rule that drops columns nobody reads, down to the sources, which then do not even read them.

Called by `shoal.dataflow.plan.optimizer`. A first pass goes from the sinks to the sources and finds what each node's
readers want of it; a second one narrows projections, unions and sources. A batch keeps at least one column: without any
it would not know how many rows it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from shoal.dataflow.connectors.abilities import SupportsColumnPruning, error_policy
from shoal.dataflow.language.elements import CHANGE, Schema
from shoal.dataflow.language.expressions.datatypes import types
from shoal.dataflow.language.expressions.trees import Column, Expression, Named, columns_of
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Distinct,
    Filter,
    Join,
    KeyBy,
    Merge,
    Node,
    OnError,
    Project,
    SideOutput,
    Source,
    Union,
    readers,
    rewrite,
    walk,
)
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.joining import output_columns

#: Columns that are wanted; None for all of them, known or not.
Wanted = frozenset[str] | None
Known = Mapping[Node, Facts]


def prune_columns(sinks: tuple[Node, ...], facts: Known) -> tuple[Node, ...]:
    """Nothing is read, calculated or carried that no sink gets to see."""
    wanted = wanted_columns(sinks, facts)
    by_uid = {node.uid: node for node in walk(*sinks)}
    behind = readers(sinks)

    def change(node: Node) -> Node:
        original = by_uid.get(node.uid)
        if original is None or wanted[original] is None:
            return node
        names, schema = wanted[original], facts[original].schema
        match node:
            case Project():
                return _narrow_project(node, names or frozenset())
            case Union() if schema is not None:
                return _narrow_union(node, [name for name in schema.names if name in (names or ())], facts, original)
            case Source() if schema is not None:
                selects = all(_selects(each, behind) for each in behind[original])
                return _narrow_source(node, names or frozenset(), schema, selects)
            case _:
                return node

    return rewrite(sinks, change)


# ---------------------------------------------------------------------------------------------------------
# What is wanted


def wanted_columns(sinks: Sequence[Node], facts: Known) -> dict[Node, Wanted]:
    """For each node the columns of its output that a step behind it reads."""
    behind = readers(sinks)
    wanted: dict[Node, Wanted] = {}
    for node in reversed(list(walk(*sinks))):
        asked: list[Wanted] = []
        for reader in behind[node]:
            asked += _asks(reader, node, wanted, facts)
            asked += [
                wanted[aside]
                for aside in behind[reader]
                if isinstance(aside, SideOutput) and reader.inputs[aside.port] is node
            ]
        wanted[node] = _together(asked) if behind[node] else None
    return wanted


def _together(asked: Iterable[Wanted]) -> Wanted:
    every: set[str] = set()
    for each in asked:
        if each is None:
            return None
        every |= each
    return frozenset(every)


def _asks(reader: Node, node: Node, wanted: Mapping[Node, Wanted], facts: Known) -> list[Wanted]:
    """What a reader asks of a node, once for each place where it reads it."""
    if isinstance(reader, SideOutput):
        return [frozenset()]  # what goes aside is asked of the input of the node that puts it there
    if isinstance(reader, Join):
        return [_join_asks(reader, side, wanted[reader], facts) for side in (0, 1) if reader.inputs[side] is node]
    asked = _columns_asked(reader, wanted[reader])
    if asked is not None and facts[node].changes:
        asked |= {CHANGE, *facts[node].keys}
    return [asked]


def _columns_asked(reader: Node, onward: Wanted) -> Wanted:
    """What a reader asks of its input, when those behind it want `onward` of its output."""
    match reader:
        case Aggregate(keys=keys, aggregations=aggregations):
            return frozenset((*keys, *(each.column for each in aggregations if each.column != "*")))
        case Project(columns=columns, keep_others=False) if reader.on_error is not OnError.FAIL:
            return _read_by(columns, None)
        case Project(columns=columns, keep_others=False):
            return _read_by(columns, onward)
        case _ if onward is None:
            return None
        case Project(columns=columns):
            lenient = reader.on_error is not OnError.FAIL
            return _read_by([each for each in columns if lenient or each.name in onward], None) | (
                onward - {each.name for each in columns}
            )
        case Union():
            return onward
        case _:
            own = _own_columns(reader)
            return None if own is None else onward | own


def _own_columns(reader: Node) -> Wanted:
    """What a node that hands its rows on reads for itself; None for functions, users' operators and sinks."""
    match reader:
        case Filter(predicate=Expression() as predicate):
            return columns_of(predicate)
        case KeyBy(keys=columns) | Distinct(columns=columns):
            return frozenset(columns)
        case AssignTime(time=time):
            return frozenset((time.column,))
        case Merge(by=by):
            return frozenset((by,))
        case _:
            return None


def _read_by(columns: Sequence[Named], onward: Wanted) -> frozenset[str]:
    kept = _kept(columns, onward)
    return frozenset(name for each in kept for name in columns_of(each.expression))


def _kept(columns: Sequence[Named], onward: Wanted) -> Sequence[Named]:
    if onward is None:
        return columns
    return [each for each in columns if each.name in onward] or columns[:1]


def _join_asks(join: Join, side: int, onward: Wanted, facts: Known) -> Wanted:
    left, right = (facts[each].schema for each in join.inputs)
    if onward is None or left is None or right is None:
        return None
    columns = output_columns(join, left.names, right.names)
    asked = {each.origin for each in columns if each.side == side and each.name in onward}
    if side == 0:  # a left column that gives a right one its suffix must stay, or the name would change
        asked |= {each.origin for each in columns if each.side == 1 and each.name in onward} & set(left.names)
    asked |= set(join.left_keys if side == 0 else join.right_keys)
    changes = facts[join.inputs[side]].changes
    return frozenset(asked | ({CHANGE, *facts[join.inputs[side]].keys} if changes else set()))


# ---------------------------------------------------------------------------------------------------------
# Narrowing


def _narrow_project(node: Project, names: frozenset[str]) -> Node:
    if node.on_error is not OnError.FAIL:
        return node  # a row that is bad in a column nobody reads must stay bad; see `_narrow_source`
    kept = (
        tuple(_kept(node.columns, names))
        if not node.keep_others
        else tuple(each for each in node.columns if each.name in names)
    )
    if len(kept) == len(node.columns):
        return node
    return replace(node, columns=kept) if kept else node.inputs[0]


def _narrow_union(node: Union, names: Sequence[str], facts: Known, original: Node) -> Node:
    """The inputs of a union have to stay alike: each is narrowed by a projection of its own."""
    before = facts[original].schema
    if before is None or len(names) == len(before) or not names:
        return node
    columns = tuple(Named(Column(name), name) for name in names)
    inputs = tuple(Project(inputs=(each,), columns=columns, at=node.at) for each in node.inputs)
    return replace(node, inputs=inputs)


def _narrow_source(node: Source, names: frozenset[str], schema: Schema, selects: bool) -> Node:
    time = {node.time.column} if node.time is not None and node.time.column else set()
    kept = [each for each in schema if each.name in names or each.name in time] or [_cheapest(schema)]
    if len(kept) == len(schema):
        return node
    if error_policy(node.connector) not in (None, OnError.FAIL):
        # Rows that are bad in a column nobody reads must stay bad: what is left out does not depend on who reads what.
        return node
    chosen = tuple(each.name for each in kept)
    if isinstance(node.connector, SupportsColumnPruning):
        return replace(node, connector=node.connector.with_columns(chosen), schema=pa.schema(kept))
    if selects:
        return node  # its readers take what they want right away
    columns = tuple(Named(Column(name), name) for name in chosen)
    return Project(inputs=(node,), columns=columns, at=node.at)


def _selects(reader: Node, behind: Mapping[Node, list[Node]]) -> bool:
    """Whether a reader takes only the columns that it wants, at once or behind filters.

    A projection below such a filter would be of no use: the filter would move below it, and the two projections would
    become one again, round after round.
    """
    if isinstance(reader, Filter):
        return all(_selects(each, behind) for each in behind[reader])
    return isinstance(reader, Project) and not reader.keep_others


def _cheapest(schema: Schema) -> pa.Field:
    return min(schema, key=lambda each: each.type.bit_width if types.is_primitive(each.type) else 1_000)

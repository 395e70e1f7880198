"""Whether the steps behind an ordered merge can tell how the rows of its inputs lie between each other. Pure.

Streams are often merged and then told apart again: each filter behind the merge lets rows of one input through, because
it asks for a column that only this input has. Such a merge need not weave its inputs into one batch. Called by
`shoal.dataflow.execution.building`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shoal.dataflow.language.expressions.trees import Call, Column, Expression
from shoal.dataflow.language.logical import AssignTime, Filter, Merge, Node
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.physical import MAIN, Edge, Stage
from shoal.dataflow.plan.rewrites import is_total

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def can_keep_apart(stage: Stage, index: int, outputs: Sequence[Edge], facts: Mapping[Node, Facts]) -> bool:
    """Whether every reader of a merge, the step at `index`, lets rows of one input through at most."""
    merge = stage.steps[index].node
    schemas = [schema for each in merge.inputs if (schema := facts[each].schema) is not None]
    if not isinstance(merge, Merge) or len(schemas) < len(merge.inputs):
        return False  # steps of other kinds weave nothing
    every = {name for schema in schemas for name in schema.names}
    absent = [every.difference(schema.names) for schema in schemas]
    return _is_told_apart(stage, index, outputs, absent)


def _is_told_apart(stage: Stage, index: int, outputs: Sequence[Edge], absent: Sequence[Collection[str]]) -> bool:
    behind = [
        (number, step.node, link.tag)
        for number, step in enumerate(stage.steps)
        for link in step.links
        if link.step == index
    ]
    if not behind or any(edge.source_step == index for edge in outputs):
        return False
    for number, node, tag in behind:
        if isinstance(node, AssignTime) and tag == MAIN:
            if not _is_told_apart(stage, number, outputs, absent):
                return False
        elif not isinstance(node, Filter) or tag != MAIN or _inputs_through(node, absent) > 1:
            return False
    return True


def _inputs_through(node: Filter, absent: Sequence[Collection[str]]) -> int:
    """How many inputs may have rows that pass a filter."""
    predicate = node.predicate
    if not isinstance(predicate, Expression) or not is_total(predicate):
        return len(absent)
    return sum(not rejects(predicate, names) for names in absent)


def rejects(predicate: Expression, absent: Collection[str]) -> bool:
    """Whether no row passes for which these columns are null."""
    if not isinstance(predicate, Call):
        return _is_null(predicate, absent)
    match predicate.function:
        case "and":
            return any(rejects(each, absent) for each in predicate.arguments)
        case "or":
            return all(rejects(each, absent) for each in predicate.arguments)
        case "is_valid" | "is_in":
            return _is_null(predicate.arguments[0], absent)
        case function if function in _COMPARISONS:
            return any(_is_null(each, absent) for each in predicate.arguments)
    return False


def _is_null(expression: Expression, absent: Collection[str]) -> bool:
    """Whether an expression is null where these columns are. Only what is certain counts."""
    return isinstance(expression, Column) and expression.name in absent

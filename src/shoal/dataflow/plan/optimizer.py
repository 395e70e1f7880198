"""The optimizer: named rules, each a pure function from plan to plan, run until none finds anything more to do.

Called by `shoal.dataflow.plan.prepare`. A rule may change how a result comes about and never what it is; where that is
not certain (opaque functions, state, side outputs that are read) it changes nothing. No rule loads a
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shoal.dataflow.language.logical import Node
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.hints import hint_partial_aggregates
from shoal.dataflow.plan.pruning import prune_columns
from shoal.dataflow.plan.resolve import with_uids
from shoal.dataflow.plan.rewrites import (
    drop_idle_projects,
    fold_constants,
    merge_filters,
    merge_projects,
    name_times_early,
    push_filters,
)

Resolve = Callable[[tuple[Node, ...]], Mapping[Node, Facts]]
Apply = Callable[[tuple[Node, ...], Mapping[Node, Facts]], tuple[Node, ...]]

#: More rounds than any plan has needed; a rule that undoes another would go on for ever.
_MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `apply` returns the very plan it was given when there is nothing to do."""

    name: str
    apply: Apply


RULES: tuple[Rule, ...] = (
    Rule("fold constants", fold_constants),
    Rule("push filters down", push_filters),
    Rule("name times early", name_times_early),
    Rule("merge filters", merge_filters),
    Rule("merge projections", merge_projects),
    Rule("prune columns", prune_columns),
    Rule("drop idle projections", drop_idle_projects),
    Rule("aggregate before exchange", hint_partial_aggregates),
)


def optimise(
    sinks: tuple[Node, ...], facts: Mapping[Node, Facts], resolve: Resolve, rules: Sequence[Rule] = RULES
) -> tuple[tuple[Node, ...], Mapping[Node, Facts], tuple[str, ...]]:
    """A better plan, what is known of its nodes, and the names of the rules that changed something."""
    applied: dict[str, None] = {}
    for _round in range(_MAX_ROUNDS):
        before = sinks
        for rule in rules:
            changed = rule.apply(sinks, facts)
            if not is_same_plan(changed, sinks):
                sinks = with_uids(changed)  # what a rule has made is named too; who had a name keeps it
                facts = resolve(sinks)
                applied[rule.name] = None
        if is_same_plan(before, sinks):
            break
    return sinks, facts, tuple(applied)


def is_same_plan(one: Sequence[Node], other: Sequence[Node]) -> bool:
    """Whether two plans are the very same nodes."""
    return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other, strict=True))

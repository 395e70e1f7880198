"""Rules that change nothing but say what the physical plan may do: aggregate before an exchange.

Called by `shoal.dataflow.plan.optimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.dataflow.language.aggregates import AGGREGATES
from shoal.dataflow.language.logical import (
    Aggregate,
    Node,
    SideOutput,
    readers,
    rewrite,
    walk,
)
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.plan.facts import Facts


def hint_partial_aggregates(sinks: tuple[Node, ...], facts: Mapping[Node, Facts]) -> tuple[Node, ...]:
    """An aggregate whose parts can be merged may begin before rows are exchanged.

    Not when somebody reads its late rows: behind an exchange they would be sums already. Not over changes.
    """
    behind = readers(sinks)
    able = {
        node.uid
        for node in walk(*sinks)
        if isinstance(node, Aggregate)
        and not node.partial
        and (node.window is None or isinstance(node.window, SlidingWindow))
        and all(AGGREGATES[each.function].is_mergeable for each in node.aggregations)
        and not facts[node.inputs[0]].changes
        and not any(isinstance(each, SideOutput) for each in behind[node])
    }
    if not able:
        return sinks
    return rewrite(
        sinks, lambda node: replace(node, partial=True) if isinstance(node, Aggregate) and node.uid in able else node
    )

"""Scores how well a node suits a workload: a sum of named parts, higher is better. Pure.

All parts have one scale. The strategy gives 0 to 100 by how full the node would be; spreading also counts tenants,
because a workload that reserves little still makes a node busier. A preferred affinity gives 0 to its weight (1 to
100). Staying on the present node outweighs everything else, because a move costs more than a better place gains. Equal
sums are ordered by the number of tenants and then by node id, so the same facts always give the same order.

Called by `shoal.control.placement.scheduler`.
"""

from __future__ import annotations

from shoal.control.placement.affinity import AffinityIndex
from shoal.control.placement.demand import AffinityRule, Demand
from shoal.control.state.facts import NodeFacts, Score, Strategy
from shoal.core.ids import WorkloadId
from shoal.model.resources import Resources

#: More than 64 preferences of weight 100 and a strategy's 100 together can give.
STAYING = 10_000.0

#: What a tenant counts for at least when work is spread, in millicores. It reserves nothing.
LEAST_MILLICORES = 100

#: Totals are rounded to this many digits, so that what is equal on paper is equal here too.
_DIGITS = 6


def total(
    node: NodeFacts,
    demand: Demand,
    *,
    strategy: Strategy,
    affinities: AffinityIndex | None,
    itself: WorkloadId | None = None,
    staying: bool = False,
) -> float:
    """The sum of the parts. `affinities` may be left out for a demand without preferred ones."""
    result = _fullness(node, demand.request, strategy)
    if affinities is not None:
        for rule in demand.preferred:
            result += _affinity(node, rule, affinities, itself)
    return round(result + STAYING if staying else result, _DIGITS)


def explain(
    node: NodeFacts,
    demand: Demand,
    *,
    strategy: Strategy,
    affinities: AffinityIndex | None,
    itself: WorkloadId | None = None,
    staying: bool = False,
) -> Score:
    """The same with its parts, for a person."""
    parts = {strategy.value: round(_fullness(node, demand.request, strategy), _DIGITS)}
    if affinities is not None:
        for rule in demand.preferred:
            name = f"{'apart from' if rule.apart else 'near'} {rule.neighbors} by {rule.neighbors.scope}"
            parts[name] = round(parts.get(name, 0.0) + _affinity(node, rule, affinities, itself), _DIGITS)
    if staying:
        parts["current"] = STAYING
    return Score(
        node_id=node.node_id,
        total=total(node, demand, strategy=strategy, affinities=affinities, itself=itself, staying=staying),
        parts=parts,
    )


def reserved_share(capacity: Resources, reserved: Resources, request: Resources) -> float:
    """The mean share of cpu, memory and slots that would be reserved with `request`; kinds a node lacks do not count.

    The mean and not the largest share: it moves with every reservation, so that nodes whose fullest kind is equal
    are still told apart. Disk is left out: it is asked for rarely and would only dilute the others.
    """
    share, kinds = 0.0, 0
    if capacity.cpu_millicores:
        share += (reserved.cpu_millicores + request.cpu_millicores) / capacity.cpu_millicores
        kinds += 1
    if capacity.memory_mb:
        share += (reserved.memory_mb + request.memory_mb) / capacity.memory_mb
        kinds += 1
    if capacity.slots:
        share += (reserved.slots + request.slots) / capacity.slots
        kinds += 1
    return share / kinds if kinds else 0.0


def _fullness(node: NodeFacts, request: Resources, strategy: Strategy) -> float:
    capacity = node.spec.capacity
    share = reserved_share(capacity, node.reserved, request)
    if strategy is Strategy.BINPACK:
        return 100.0 * share
    # A factor and not one more kind in the mean: it lies between 0 and 1 however many tenants there are, and each one
    # more makes it smaller, so that nodes with the same reservations are told apart by their number.
    cpu = capacity.cpu_millicores or LEAST_MILLICORES
    return 100.0 * (1.0 - share) * cpu / (cpu + LEAST_MILLICORES * len(node.tenants))


def _affinity(node: NodeFacts, rule: AffinityRule, affinities: AffinityIndex, itself: WorkloadId | None) -> float:
    # The first neighbor counts half of the weight and each further one less. So a tenth replica still prefers the zone
    # with two over the zone with four, and many neighbors do not outweigh the other parts.
    found = affinities.count(rule.neighbors, node.node_id, besides=itself)
    return rule.weight / (1 + found) if rule.apart else rule.weight * found / (1 + found)

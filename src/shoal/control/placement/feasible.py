"""Decides which nodes can take a workload, and gives the reason of each that cannot. Pure.

Each filter is a function from a node and a demand to a `Rejection`, or None when the node passes. The first rejection
in the order of `FILTERS` is reported: cheap filters first, then affinities, then the node's own refusal. Resources
count by reservation, never by measured usage.

Only the affinity rules of the workload that is placed count. A workload that is to be apart from `app=web` avoids such
tenants; a later `app=web` may still be placed beside it, unless that one has a rule too.

Called by `shoal.control.placement.scheduler`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from shoal.control.placement.affinity import AffinityIndex
from shoal.control.placement.demand import AffinityRule, Demand, label_of
from shoal.control.state.facts import NodeFacts
from shoal.core.ids import WorkloadId
from shoal.model.nodes import Feature, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import Constraint, ConstraintOperator, Rejection, WorkloadType

#: More reasons than this do not help in one line.
_SHOWN_REJECTIONS = 20

Filter = Callable[[NodeFacts, Demand], Rejection | None]


class RejectionCode(enum.StrEnum):
    """Why a node cannot take a workload."""

    NOT_READY = "not_ready"  # its state lets no work in
    CORDONED = "cordoned"  # an operator wants no new work there
    DRAINING = "draining"  # an operator wants it empty
    POOL = "storage_pool"  # no such storage pool, or too little room in it
    DISK_PRESSURE = "disk_pressure"  # its disk is nearly full
    GIT = "git"  # its agent cannot fetch a compose project from git
    TYPE = "type"  # its agent has no runtime for this kind
    GENERATIONS = "generations"  # its agent cannot tell an old command from a new one
    STOP_ALONE = "stop_alone"  # its agent cannot stop a workload by itself when contact is lost
    SECRETS = "secrets"  # its agent does not keep secrets
    IDENTITY = "identity"  # its agent gets no certificates for workloads
    ARTIFACTS = "artifacts"  # its agent fetches no artifacts
    NAMED_PORTS = "named_ports"  # its agent cannot choose ports
    LABEL = "label"  # a constraint on its labels is not met
    STORAGE_DRIVER = "storage_driver"  # it lacks a storage driver
    PORT = "port"  # a host port is taken
    SLOTS = "slots"  # too few slots are free
    CPU = "cpu"  # too little cpu is free
    MEMORY = "memory"  # too little memory is free
    DISK = "disk"  # too little disk is free
    SLOT_MEMORY = "slot_memory"  # it asks for more memory than its slots have
    NEAR = "near"  # a required neighbor is missing
    APART = "apart"  # an excluded neighbor is there
    REFUSED = "refused"  # its agent refused it lately


def not_ready(node: NodeFacts, demand: Demand) -> Rejection | None:
    """Only a Ready node takes new work, unless an operator said otherwise."""
    if node.state in (NodeState.DRAINING, NodeState.DRAINED):
        return _reject(node, RejectionCode.DRAINING, f"the node is {node.state.value}")
    if node.cordoned and node.state is NodeState.READY:
        return _reject(node, RejectionCode.CORDONED, "the node is cordoned")
    if node.disk_pressure and node.state is NodeState.READY:
        return _reject(node, RejectionCode.DISK_PRESSURE, f"the node is under disk pressure: {node.disk_pressure}")
    if node.state is NodeState.READY:
        return None
    return _reject(node, RejectionCode.NOT_READY, f"the node is {node.state.value}")


def gone(node: NodeFacts, demand: Demand) -> Rejection | None:
    """A workload may stay on its node while the node is cordoned, under disk pressure, or Suspect.

    It is left alone until the lease ends.
    """
    closed = node.cordoned or bool(node.disk_pressure)
    if node.state is NodeState.SUSPECT or (closed and node.state is NodeState.READY):
        return None
    return not_ready(node, demand)


def workload_type(node: NodeFacts, demand: Demand) -> Rejection | None:
    """The agent has a runtime for it. A foreign one that names no types runs all but virtual machines."""
    types = node.spec.workload_types
    if demand.type in node.unsupported_types:
        return _reject(node, RejectionCode.TYPE, f"cannot run {demand.type}: the agent refused it as unsupported")
    unnamed = not types and not node.spec.features
    if demand.type in types or (unnamed and demand.type != WorkloadType.VM.value):
        return None
    none = "names no types, which means all but vm" if unnamed else "runs nothing now"
    known = f"runs only {', '.join(sorted(types))}" if types else none
    return _reject(node, RejectionCode.TYPE, f"cannot run {demand.type}: the agent {known}")


def git_source(node: NodeFacts, demand: Demand) -> Rejection | None:
    """A foreign agent takes the text of a compose project, not the repository that holds it."""
    if not demand.needs_git or node.spec.features:
        return None
    return _reject(node, RejectionCode.GIT, "the agent cannot fetch a compose project from git")


def generations(node: NodeFacts, demand: Demand) -> Rejection | None:
    """Groups and at-most-one workloads need an agent that refuses commands of an older generation."""
    if not demand.needs_generations or node.spec.has(Feature.GENERATIONS):
        return None
    return _reject(
        node, RejectionCode.GENERATIONS, "the agent knows no generations, which groups and at-most-one workloads need"
    )


def stop_alone(node: NodeFacts, demand: Demand) -> Rejection | None:
    """A workload that is to be stopped without contact needs an agent that does so by itself."""
    if not demand.needs_stop_alone or node.spec.has(Feature.STOP_ALONE):
        return None
    return _reject(node, RejectionCode.STOP_ALONE, "the agent stops nothing by itself when contact is lost")


def secrets(node: NodeFacts, demand: Demand) -> Rejection | None:
    """Secrets need an agent that takes their values and keeps them encrypted."""
    if not demand.needs_secrets or node.spec.has(Feature.SECRETS):
        return None
    return _reject(node, RejectionCode.SECRETS, "the agent does not keep secrets")


def identity(node: NodeFacts, demand: Demand) -> Rejection | None:
    """A certificate of its own needs an agent that gets it one."""
    if not demand.needs_identity or node.spec.has(Feature.IDENTITY):
        return None
    return _reject(node, RejectionCode.IDENTITY, "the agent gets no certificates for its workloads")


def artifacts(node: NodeFacts, demand: Demand) -> Rejection | None:
    """Artifacts need an agent that fetches them."""
    if not demand.needs_artifacts or node.spec.has(Feature.ARTIFACTS):
        return None
    return _reject(node, RejectionCode.ARTIFACTS, "the agent fetches no artifacts for its workloads")


def named_ports(node: NodeFacts, demand: Demand) -> Rejection | None:
    """Named ports need an agent that hands them over."""
    if not demand.needs_named_ports or node.spec.has(Feature.PORTS):
        return None
    return _reject(node, RejectionCode.NAMED_PORTS, "the agent cannot give a process named ports")


def labels(node: NodeFacts, demand: Demand) -> Rejection | None:
    """Every constraint on labels is met."""
    for constraint in demand.constraints:
        value = label_of(node.spec, constraint.key)
        if not _meets(constraint, value):
            return _reject(node, RejectionCode.LABEL, _constraint_words(constraint, value))
    return None


def storage_driver(node: NodeFacts, demand: Demand) -> Rejection | None:
    """It has the storage drivers: in its list, or as a label `storage.<driver>=true`. All have `local`."""
    for driver in sorted(demand.storage_drivers):
        if driver not in node.spec.storage_drivers and node.spec.labels.get(f"storage.{driver}") != "true":
            return _reject(node, RejectionCode.STORAGE_DRIVER, f"has no storage driver {driver}")
    return None


def ports(node: NodeFacts, demand: Demand) -> Rejection | None:
    """The host ports are free."""
    taken = demand.ports & node.ports
    if not taken:
        return None
    words = ", ".join(f"{port}/{protocol}" for port, protocol in sorted(taken))
    return _reject(node, RejectionCode.PORT, f"host port {words} is taken")


def resources(node: NodeFacts, demand: Demand) -> Rejection | None:
    """The request fits into what is free. A request for nothing fits everywhere, also on a node that is too full."""
    request, capacity, reserved = demand.request, node.spec.capacity, node.reserved
    if request.slots > 0 and request.slots > capacity.slots - reserved.slots:
        return _too_little(node, RejectionCode.SLOTS, request.slots, capacity.slots - reserved.slots, "slots")
    if request.cpu_millicores > 0 and request.cpu_millicores > capacity.cpu_millicores - reserved.cpu_millicores:
        have = capacity.cpu_millicores - reserved.cpu_millicores
        return _too_little(node, RejectionCode.CPU, request.cpu_millicores, have, "millicores")
    if request.memory_mb > 0 and request.memory_mb > capacity.memory_mb - reserved.memory_mb:
        return _too_little(node, RejectionCode.MEMORY, request.memory_mb, capacity.memory_mb - reserved.memory_mb, "MB")
    if request.disk_gb > 0 and request.disk_gb > capacity.disk_gb - reserved.disk_gb:
        return _too_little(node, RejectionCode.DISK, request.disk_gb, capacity.disk_gb - reserved.disk_gb, "GB")
    return _pools(node, request) if request.pools else None


def _pools(node: NodeFacts, request: Resources) -> Rejection | None:
    """Every storage pool that disks and volumes name is there, and has room. A foreign agent does not go by names."""
    if not node.spec.features:
        return None
    sizes = {pool.name: pool.total_gb for pool in node.spec.storage_pools}
    for share in request.pools:
        if share.name not in sizes:
            known = f"it has {', '.join(sorted(sizes))}" if sizes else "it has none"
            return _reject(node, RejectionCode.POOL, f"the node has no storage pool {share.name!r}: {known}")
        have = sizes[share.name] - node.reserved.in_pool(share.name)
        if share.gb > have:
            words = f"needs {share.gb} GB of storage pool {share.name!r}, {have} free"
            return _reject(node, RejectionCode.POOL, words)
    return None


def slot_memory(node: NodeFacts, demand: Demand) -> Rejection | None:
    """A slot stands for an equal share of the node's memory; a task fits into the share of its slots."""
    asked, capacity = demand.request, node.spec.capacity
    if asked.slots < 1 or asked.memory_mb * capacity.slots <= capacity.memory_mb * asked.slots:
        return None
    share = capacity.memory_mb * asked.slots // capacity.slots if capacity.slots else 0
    return _reject(
        node,
        RejectionCode.SLOT_MEMORY,
        f"needs {asked.memory_mb} MB but {asked.slots} of {capacity.slots} slots have {share} MB "
        f"of the node's {capacity.memory_mb} MB",
    )


#: In the order in which a node's first failure is reported. Affinities and refusals come after them.
FILTERS: tuple[Filter, ...] = (
    not_ready,
    workload_type,
    git_source,
    generations,
    stop_alone,
    named_ports,
    secrets,
    identity,
    artifacts,
    labels,
    storage_driver,
    ports,
    resources,
    slot_memory,
)


def filters_for(demand: Demand, *, staying: bool = False) -> tuple[Filter, ...]:
    """The filters that this demand can fail, in order; `staying` for a workload that stays on its node."""
    idle: set[Filter] = set()
    if not demand.needs_git:
        idle.add(git_source)
    if not demand.needs_generations:
        idle.add(generations)
    if not demand.needs_stop_alone:
        idle.add(stop_alone)
    if not demand.needs_named_ports:
        idle.add(named_ports)
    if not demand.needs_secrets:
        idle.add(secrets)
    if not demand.needs_identity:
        idle.add(identity)
    if not demand.needs_artifacts:
        idle.add(artifacts)
    if not demand.constraints:
        idle.add(labels)
    if not demand.storage_drivers:
        idle.add(storage_driver)
    if not demand.ports:
        idle.add(ports)
    if demand.request.slots < 1 or not demand.request.memory_mb:
        idle.add(slot_memory)
    chosen = tuple(each for each in FILTERS if each not in idle)
    return (gone, *chosen[1:]) if staying else chosen


def affinity(
    node: NodeFacts, demand: Demand, neighbors: AffinityIndex, *, itself: WorkloadId | None = None
) -> Rejection | None:
    """Required affinities hold. A workload is never its own neighbor; `itself` names it when it has a node."""
    for rule in demand.required:
        found = neighbors.count(rule.neighbors, node.node_id, besides=itself)
        if rule.apart and found:
            return _reject(node, RejectionCode.APART, f"{_count(found)} with {rule.neighbors} {_where(node, rule)}")
        if not rule.apart and not found and not _may_begin(rule, neighbors, itself):
            return _reject(node, RejectionCode.NEAR, f"no workload with {rule.neighbors} {_where(node, rule)}")
    return None


def refused(node: NodeFacts, words: str) -> Rejection:
    """A node that passes every filter but refused it lately."""
    return _reject(node, RejectionCode.REFUSED, words or "its agent refused it lately")


def first_failure(filters: Iterable[Filter], node: NodeFacts, demand: Demand) -> Rejection | None:
    """The first filter that the node fails, if any."""
    for each in filters:
        rejection = each(node, demand)
        if rejection is not None:
            return rejection
    return None


def _may_begin(rule: AffinityRule, neighbors: AffinityIndex, itself: WorkloadId | None) -> bool:
    # Members that must be near each other would wait for each other for ever: the first may go anywhere.
    return rule.names_itself and not neighbors.total(rule.neighbors, besides=itself)


def _meets(constraint: Constraint, value: str | None) -> bool:
    if constraint.operator == ConstraintOperator.IN:
        return value in constraint.values
    if constraint.operator == ConstraintOperator.NOT_IN:
        return value not in constraint.values
    return (value is not None) == (constraint.operator == ConstraintOperator.EXISTS)


def _constraint_words(constraint: Constraint, value: str | None) -> str:
    has = f"{constraint.key} is {value}" if value is not None else f"{constraint.key} is not set"
    if constraint.operator in (ConstraintOperator.EXISTS, ConstraintOperator.NOT_EXISTS):
        return f"{has}; must {'' if constraint.operator == ConstraintOperator.EXISTS else 'not '}be set"
    shown = ", ".join(constraint.values[:5]) + (", …" if len(constraint.values) > 5 else "")
    return f"{has}; must {'' if constraint.operator == ConstraintOperator.IN else 'not '}be in {shown}"


def _too_little(node: NodeFacts, code: RejectionCode, need: int, have: int, unit: str) -> Rejection:
    # A node that shrank under its tenants has less than nothing; to a reader that is nothing.
    kind = "" if code is RejectionCode.SLOTS else f" of {code.value}"
    return _reject(node, code, f"needs {need} {unit}{kind}, {max(have, 0)} free")


def _where(node: NodeFacts, rule: AffinityRule) -> str:
    scope = rule.neighbors.scope
    return (
        f"on this {scope}" if scope in ("node", "host") else f"in {scope}={label_of(node.spec, scope) or '(not set)'}"
    )


def _count(found: int) -> str:
    return "1 workload" if found == 1 else f"{found} workloads"


def _reject(node: NodeFacts, code: RejectionCode, message: str) -> Rejection:
    return Rejection(node_id=node.node_id, code=code.value, message=message)


def describe_rejections(rejections: tuple[Rejection, ...]) -> str:
    """Every node with its reason, in one line."""
    if not rejections:
        return "no suitable node available (no node has registered)"
    reasons = "; ".join(f"{each.node_id}: {each.message}" for each in rejections[:_SHOWN_REJECTIONS])
    more = f"; and {len(rejections) - _SHOWN_REJECTIONS} more" if len(rejections) > _SHOWN_REJECTIONS else ""
    return f"no suitable node available ({reasons}{more})"

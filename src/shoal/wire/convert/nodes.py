"""Registrations of nodes, and the usage and conditions in their heartbeats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from shoal.core.clock import epoch_ms, from_epoch_ms
from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import NO_SESSION, SessionId
from shoal.core.shape import find_problems
from shoal.model.nodes import ROOT_POOL, Feature, NodeCondition, NodeSpec, NodeUsage, StoragePool
from shoal.model.resources import Resources
from shoal.wire.addresses import parse_address
from shoal.wire.convert.fields import (
    find_workload_type,
    path,
    read_count,
    timestamp_to_proto,
    type_problem,
    writing,
)
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2

_MAX_FEATURES = 64
_INSTANCE = re.compile(r"[a-z0-9]{0,64}")
_INT32 = 2**31 - 1
_MAX_CONDITIONS = 16
_MAX_CONDITION_TYPE = 64
_MAX_CONDITION_MESSAGE = 500
#: The year 9999.
_LATEST_MS = 253_370_764_800_000

#: The names of the model's fields in the message.
_NAMES_ON_THE_WIRE = {
    "endpoint": "grpc_endpoint",
    "capacity.cpu_millicores": "capabilities.cpu_total_millicores",
    "capacity.memory_mb": "capabilities.memory_total_mb",
    "capacity.disk_gb": "capabilities.storage_pools",
    "capacity.slots": "slots",
    "workload_types": "capabilities.supported_workload_types",
    "storage_drivers": "capabilities.supported_storage_drivers",
    "storage_pools": "capabilities.storage_pools",
}


def node_spec_from_proto(pb: control.RegisterNodeRequest) -> NodeSpec:
    """Read a registration. Raises `InvalidError`."""
    problems: list[Problem] = []
    features = _read_features(pb, problems)
    if not _INSTANCE.fullmatch(pb.instance):
        problems.append(problem("instance", pb.instance, "must be at most 64 lower-case letters and digits"))
    capabilities = pb.capabilities
    pools = tuple(StoragePool(each.name, each.type or "local", each.total_gb) for each in capabilities.storage_pools)
    spec = NodeSpec(
        node_id=pb.node_id,
        endpoint=_read_endpoint(pb.grpc_endpoint, features, problems),
        capacity=Resources(
            capabilities.cpu_total_millicores,
            capabilities.memory_total_mb,
            _disk_of(pools),
            pb.slots,
        ),
        workload_types=_read_types(capabilities.supported_workload_types, problems),
        storage_drivers=tuple(capabilities.supported_storage_drivers),
        storage_pools=pools,
        labels=dict(pb.labels),
        agent_version=pb.agent_version,
        host_id=pb.host_id,
        cluster_id=pb.cluster_id,
        features=features,
    )
    problems.extend(_as_on_the_wire(each) for each in find_problems(spec))
    if problems:
        raise InvalidError(problems)
    return spec


def _disk_of(pools: tuple[StoragePool, ...]) -> int:
    """The disk that belongs to no pool: that of the pool `root`; without one, all pools together."""
    root = [pool for pool in pools if pool.name == ROOT_POOL]
    return sum(max(0, pool.total_gb) for pool in root or pools)


def node_spec_to_proto(
    spec: NodeSpec,
    *,
    timestamp: datetime | None = None,
    previous_session: SessionId = NO_SESSION,
    instance: str = "",
) -> control.RegisterNodeRequest:
    """Write a registration. Disk that belongs to no pool goes into the pool `root`."""
    pools = spec.storage_pools
    if not pools and spec.capacity.disk_gb:
        pools = (StoragePool(ROOT_POOL, "local", spec.capacity.disk_gb),)
    with writing("node"):
        return control.RegisterNodeRequest(
            node_id=spec.node_id,
            capabilities=control.NodeCapabilities(
                cpu_total_millicores=spec.capacity.cpu_millicores,
                memory_total_mb=spec.capacity.memory_mb,
                storage_pools=[
                    control.StoragePool(name=each.name, type=each.type, total_gb=each.total_gb) for each in pools
                ],
                supported_workload_types=spec.workload_types,
                supported_storage_drivers=spec.storage_drivers,
            ),
            labels=spec.labels,
            agent_version=spec.agent_version,
            grpc_endpoint=spec.endpoint,
            cluster_id=spec.cluster_id,
            timestamp=timestamp_to_proto(timestamp),
            host_id=spec.host_id,
            slots=spec.capacity.slots,
            features=sorted(spec.features),
            previous_session=previous_session,
            instance=instance,
        )


def _read_types(names: Sequence[str], problems: list[Problem]) -> tuple[str, ...]:
    """The types of workload that an agent runs, by the names that we use, each once."""
    found: dict[str, None] = {}
    for index, name in enumerate(names):
        kind = find_workload_type(name)
        if kind is not None:
            found[kind.value] = None
        elif name.strip():
            problems.append(type_problem(name, f"capabilities.supported_workload_types[{index}]"))
    return tuple(found)


def _read_features(pb: control.RegisterNodeRequest, problems: list[Problem]) -> frozenset[str]:
    if len(pb.features) > _MAX_FEATURES or any(not 0 < len(each) <= 64 for each in pb.features):
        rule = f"must be at most {_MAX_FEATURES} words of at most 64 characters"
        problems.append(problem("features", len(pb.features), rule))
        return frozenset()
    return frozenset(pb.features)


def _read_endpoint(text: str, features: frozenset[str], problems: list[Problem]) -> str:
    if not text:
        # An agent with this feature is reached through a stream that it opened.
        if Feature.STREAM.value not in features:
            problems.append(problem("grpc_endpoint", None, "is required: host:port at which the agent can be called"))
        return ""
    try:
        # Foreign agents that listen everywhere register ":50051" and mean this machine.
        return str(parse_address(f"127.0.0.1{text}" if text.startswith(":") else text, field="grpc_endpoint"))
    except InvalidError as error:
        problems.extend(error.problems)
        return ""


def _as_on_the_wire(found: Problem) -> Problem:
    for ours, theirs in _NAMES_ON_THE_WIRE.items():
        rest = found.field.removeprefix(ours)
        if rest != found.field and (not rest or rest[0] in ".["):
            return Problem(field=theirs + rest, value=found.value, rule=found.rule)
    return found


def node_usage_to_proto(usage: NodeUsage) -> control.NodeUsage:
    """Usage for a heartbeat or a view."""
    return control.NodeUsage(
        cpu_allocated_millicores=usage.cpu_allocated_millicores,
        cpu_used_millicores=usage.cpu_used_millicores,
        memory_allocated_mb=usage.memory_allocated_mb,
        memory_used_mb=usage.memory_used_mb,
        disk_allocated_gb=usage.disk_allocated_gb,
        disk_used_gb=usage.disk_used_gb,
        slots_used=usage.slots_used,
    )


def node_condition_to_proto(condition: NodeCondition) -> run_pb2.NodeCondition:
    """A condition for the control plane and its clients."""
    since = epoch_ms(condition.since) if condition.since is not None else 0
    return run_pb2.NodeCondition(
        type=condition.type, message=condition.message[:_MAX_CONDITION_MESSAGE], since_ms=since
    )


def node_conditions_from_proto(given: Iterable[run_pb2.NodeCondition]) -> tuple[NodeCondition, ...]:
    """The inverse. Long texts are cut and extra entries dropped: no heartbeat is refused for them."""
    found: dict[str, NodeCondition] = {}
    for each in given:
        if each.type and len(found) < _MAX_CONDITIONS:
            kind, message = each.type[:_MAX_CONDITION_TYPE], each.message[:_MAX_CONDITION_MESSAGE]
            since = from_epoch_ms(each.since_ms) if 0 < each.since_ms < _LATEST_MS else None
            found.setdefault(kind, NodeCondition(kind, message, since))
    return tuple(found.values())


def node_usage_from_proto(pb: control.NodeUsage, *, at: str = "usage") -> NodeUsage:
    """The inverse. Raises `InvalidError` for negative amounts."""
    problems: list[Problem] = []
    usage = read_node_usage(pb, at, problems)
    if problems:
        raise InvalidError(problems)
    return usage


def read_node_usage(pb: control.NodeUsage, at: str, problems: list[Problem]) -> NodeUsage:
    """The same for a message within another."""
    return NodeUsage(
        cpu_allocated_millicores=read_count(
            pb.cpu_allocated_millicores, path(at, "cpu_allocated_millicores"), problems
        ),
        cpu_used_millicores=read_count(pb.cpu_used_millicores, path(at, "cpu_used_millicores"), problems),
        memory_allocated_mb=read_count(pb.memory_allocated_mb, path(at, "memory_allocated_mb"), problems),
        memory_used_mb=read_count(pb.memory_used_mb, path(at, "memory_used_mb"), problems),
        disk_allocated_gb=read_count(pb.disk_allocated_gb, path(at, "disk_allocated_gb"), problems),
        disk_used_gb=read_count(pb.disk_used_gb, path(at, "disk_used_gb"), problems),
        slots_used=read_count(pb.slots_used, path(at, "slots_used"), problems, most=_INT32),
    )

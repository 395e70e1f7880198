"""The usage of workloads, in the forms of both contracts."""

from __future__ import annotations

import math
from datetime import datetime

from shoal.core.errors import Problem, problem
from shoal.model.workloads import Usage, WorkloadType
from shoal.wire.convert.fields import (
    path,
    read_count,
    read_seconds,
    read_timestamp,
    seconds_of,
    shorten,
    timestamp_to_proto,
    workload_type_to_agent,
)
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control

_MAX_SOURCE = 128


def usage_to_control(usage: Usage | None, workload_id: str, type: str) -> control.WorkloadUsageSnapshot | None:  # noqa: A002
    """A measurement as heartbeats and views carry it."""
    if usage is None:
        return None
    return control.WorkloadUsageSnapshot(
        workload_id=workload_id,
        type=type,
        cpu_percent=usage.cpu_percent,
        memory_bytes=usage.memory_bytes,
        disk_read_bytes=usage.disk_read_bytes,
        disk_write_bytes=usage.disk_write_bytes,
        net_rx_bytes=usage.net_rx_bytes,
        net_tx_bytes=usage.net_tx_bytes,
        collected_at=timestamp_to_proto(usage.collected_at),
        source=usage.source,
    )


def usage_from_control(pb: control.WorkloadUsageSnapshot, at: str, problems: list[Problem]) -> Usage:
    """The inverse, without the id and type, which the status around it has."""
    return _usage(pb, at, problems, read_timestamp(pb, "collected_at", at, problems))


def usage_to_agent(usage: Usage | None, workload_id: str, type: WorkloadType) -> agent.WorkloadUsageSnapshot | None:  # noqa: A002
    """A measurement as an agent answers with it: its time in whole seconds."""
    if usage is None:
        return None
    return agent.WorkloadUsageSnapshot(
        workload_id=workload_id,
        type=workload_type_to_agent(type),
        cpu_percent=usage.cpu_percent,
        memory_bytes=usage.memory_bytes,
        disk_read_bytes=usage.disk_read_bytes,
        disk_write_bytes=usage.disk_write_bytes,
        net_rx_bytes=usage.net_rx_bytes,
        net_tx_bytes=usage.net_tx_bytes,
        collected_at=seconds_of(usage.collected_at),
        source=usage.source,
    )


def usage_from_agent(pb: agent.WorkloadUsageSnapshot, at: str, problems: list[Problem]) -> Usage:
    """The inverse."""
    return _usage(pb, at, problems, read_seconds(pb.collected_at, path(at, "collected_at"), problems))


def _usage(
    pb: control.WorkloadUsageSnapshot | agent.WorkloadUsageSnapshot,
    at: str,
    problems: list[Problem],
    collected_at: datetime | None,
) -> Usage:
    if not (math.isfinite(pb.cpu_percent) and pb.cpu_percent >= 0):
        problems.append(problem(path(at, "cpu_percent"), pb.cpu_percent, "must be a number from 0"))
    return Usage(
        cpu_percent=pb.cpu_percent,
        memory_bytes=read_count(pb.memory_bytes, path(at, "memory_bytes"), problems),
        disk_read_bytes=read_count(pb.disk_read_bytes, path(at, "disk_read_bytes"), problems),
        disk_write_bytes=read_count(pb.disk_write_bytes, path(at, "disk_write_bytes"), problems),
        net_rx_bytes=read_count(pb.net_rx_bytes, path(at, "net_rx_bytes"), problems),
        net_tx_bytes=read_count(pb.net_tx_bytes, path(at, "net_tx_bytes"), problems),
        collected_at=collected_at,
        source=shorten(pb.source, _MAX_SOURCE),
    )

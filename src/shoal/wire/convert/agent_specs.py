"""Specs for agents: `persys.agent.v1.WorkloadSpec`, written from a control spec and read by the agent.

The two contracts have different fields. What the agent's contract lacks is in fields from 100 on, so that our agents
lose nothing; the published fields are filled as foreign agents expect them.
"""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.message import DecodeError

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import find_problems
from shoal.model.resources import Resources
from shoal.model.workloads import AgentSpec, Failover, FailoverPolicy, ResourceRequest, WorkloadSpec, WorkloadType
from shoal.wire.convert.agent_kinds import (
    compose_from_agent,
    compose_to_agent,
    container_from_agent,
    container_to_agent,
    vm_from_agent,
    vm_to_agent,
)
from shoal.wire.convert.fields import (
    duration_to_millis,
    path,
    read_duration,
    workload_type_from_agent,
    writing,
)
from shoal.wire.convert.processes import process_from_proto, process_to_proto
from shoal.wire.convert.specs import workload_spec_to_proto
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control

_MIB = 1024 * 1024


def agent_spec_from_control(spec: WorkloadSpec, workload_id: str) -> agent.WorkloadSpec:
    """Write a spec for an agent."""
    request = spec.request
    with writing("spec"):
        return agent.WorkloadSpec(
            container=container_to_agent(spec, spec.container) if spec.container is not None else None,
            compose=compose_to_agent(spec.compose, workload_id) if spec.compose is not None else None,
            vm=vm_to_agent(spec, spec.vm, workload_id) if spec.vm is not None else None,
            process=process_to_proto(spec.process) if spec.process is not None else None,
            reservation=agent.Reservation(
                cpu_millicores=request.cpu_millicores,
                memory_mb=request.memory_mb,
                disk_gb=request.disk_gb,
                slots=request.slots,
            ),
            at_most_one=spec.at_most_one,
            stop_after_ms=duration_to_millis(spec.failover.after) if spec.failover.policy == FailoverPolicy.STOP else 0,
        )


def agent_spec_from_proto(pb: agent.WorkloadSpec, type: int, *, at: str = "spec") -> AgentSpec:  # noqa: A002 - the field's name on the wire
    """Read and check a spec in an agent. Raises `InvalidError` and nothing else."""
    kind = workload_type_from_agent(type)
    problems: list[Problem] = []
    member = pb.WhichOneof("spec")
    if member != kind.value:
        found = f"; found {member}" if member else ""
        problems.append(problem(path(at, kind.value), None, f"is required when type is {kind.value}{found}"))
    foreign = not pb.HasField("reservation")
    inner = path(at, str(member))
    spec = AgentSpec(
        type=kind,
        container=container_from_agent(pb.container, inner, problems, foreign=foreign)
        if member == "container"
        else None,
        compose=compose_from_agent(pb.compose, inner, problems) if member == "compose" else None,
        vm=vm_from_agent(pb.vm, inner, problems, foreign=foreign) if member == "vm" else None,
        process=process_from_proto(pb.process, inner, problems) if member == "process" else None,
        request=_reservation(pb, at, problems),
        at_most_one=pb.at_most_one,
        stop_after=read_duration(pb.stop_after_ms, timedelta(0), path(at, "stop_after_ms"), problems),
    )
    if member == kind.value:
        problems.extend(_as_on_the_wire(each, at) for each in find_problems(spec, at=at))
    if problems:
        raise InvalidError(problems)
    return spec


def control_spec_from_agent(data: bytes, type: int) -> control.WorkloadSpec:  # noqa: A002 - the field's name on the wire
    """Rebuild the control plane's spec from an agent's, for a workload that is adopted.

    Made from it again, the agent's form is the same to the byte if it was made here in the first place. Where a
    workload may run and how it is labelled never reached the agent, and is lost. Raises `InvalidError`.
    """
    kind = workload_type_from_agent(type)
    try:
        pb = agent.WorkloadSpec.FromString(data)
    except DecodeError:
        raise InvalidError([problem("spec", None, "must be a serialized persys.agent.v1.WorkloadSpec")]) from None
    spec = agent_spec_from_proto(pb, type)
    stops = Failover(policy=FailoverPolicy.STOP, after=spec.stop_after) if spec.stop_after else Failover()
    rebuilt = WorkloadSpec(
        type=kind,
        resources=ResourceRequest(spec.request.cpu_millicores, spec.request.memory_mb, spec.request.disk_gb),
        container=spec.container,
        compose=spec.compose,
        vm=spec.vm,
        process=spec.process,
        metadata=dict(pb.vm.metadata),
        slots=spec.request.slots,
        at_most_one=spec.at_most_one,
        failover=stops,
    )
    return workload_spec_to_proto(rebuilt)


def _as_on_the_wire(found: Problem, at: str) -> Problem:
    ours, theirs = path(at, "request"), path(at, "reservation")
    if not found.field.startswith(ours):
        return found
    return Problem(field=theirs + found.field.removeprefix(ours), value=found.value, rule=found.rule)


def _reservation(pb: agent.WorkloadSpec, at: str, problems: list[Problem]) -> Resources:
    """The reserved resources; a foreign scheduler sends none, so then those in the workload's own fields."""
    if pb.HasField("reservation"):
        given = pb.reservation
        return Resources(given.cpu_millicores, given.memory_mb, given.disk_gb, given.slots)
    member = pb.WhichOneof("spec")
    cpu, memory = 0, 0
    if member == WorkloadType.CONTAINER.value:
        limits = pb.container.resources
        memory = -(-limits.memory_bytes // _MIB)
    elif member == WorkloadType.VM.value:
        cpu, memory = pb.vm.vcpus * 1000, pb.vm.memory_mb
    asked = Resources(cpu, memory)
    problems.extend(
        problem(path(at, str(member)), (cpu, memory), f"asks for {each.field}, which {each.rule}")
        for each in find_problems(asked)
    )
    return asked if not find_problems(asked) else Resources()

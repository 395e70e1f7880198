"""Specs for agents: `persys.agent.v1.WorkloadSpec`, written from a control spec and read by the agent.

The two contracts have different fields. What the agent's contract lacks is in fields from 100 on, so that our agents
lose nothing; the published fields are filled as foreign agents expect them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import timedelta

from google.protobuf.message import DecodeError

from shoal.core.errors import InvalidError, Problem, UnsupportedError, problem
from shoal.core.shape import find_problems
from shoal.model.resources import Resources
from shoal.model.workloads import (
    AgentSpec,
    ComposeSpec,
    ContainerSpec,
    ManagedVolume,
    VmSpec,
    WorkloadSpec,
    WorkloadType,
)
from shoal.wire.convert.fields import (
    duration_to_millis,
    path,
    read_duration,
    workload_type_from_agent,
    writing,
)
from shoal.wire.convert.processes import process_from_proto, process_to_proto
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2 as run

_MIB = 1024 * 1024
# The size that a foreign agent gives to a disk without one.
_DEFAULT_DISK_GB = 20
_FOREIGN_IMAGES = "/var/lib/libvirt/images"
_MAX_PROJECT = 63


def agent_spec_from_control(spec: WorkloadSpec, workload_id: str) -> agent.WorkloadSpec:
    """Write a spec for an agent."""
    request = spec.request
    with writing("spec"):
        return agent.WorkloadSpec(
            container=_container(spec, spec.container) if spec.container is not None else None,
            compose=_compose(spec.compose, workload_id) if spec.compose is not None else None,
            vm=_vm(spec, spec.vm, workload_id) if spec.vm is not None else None,
            process=process_to_proto(spec.process) if spec.process is not None else None,
            reservation=agent.Reservation(
                cpu_millicores=request.cpu_millicores,
                memory_mb=request.memory_mb,
                disk_gb=request.disk_gb,
                slots=request.slots,
            ),
            at_most_one=spec.at_most_one,
            stop_after_ms=duration_to_millis(spec.failover.after) if spec.failover.policy == "stop" else 0,
        )


def agent_spec_from_proto(pb: agent.WorkloadSpec, type: int, *, at: str = "spec") -> AgentSpec:  # noqa: A002 - the field's name on the wire
    """Read and check a spec in an agent. Raises `InvalidError` and nothing else."""
    kind = workload_type_from_agent(type)
    problems: list[Problem] = []
    member = pb.WhichOneof("spec")
    if member != kind.value:
        found = f"; found {member}" if member else ""
        problems.append(problem(path(at, kind.value), None, f"is required when type is {kind.value}{found}"))
    spec = AgentSpec(
        type=kind,
        process=process_from_proto(pb.process, path(at, "process"), problems) if member == "process" else None,
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
    workload may run and how it is labelled never reached the agent, and is lost. Raises `InvalidError`, and
    `UnsupportedError` for kinds of which more is lost than that.
    """
    kind = workload_type_from_agent(type)
    if kind is not WorkloadType.PROCESS:
        raise UnsupportedError(
            f"a {kind.value} cannot be taken over from its agent: its spec there says less than what was asked for",
            hint="apply its spec under the same id, with a constraint to its node",
            type=kind.value,
        )
    try:
        pb = agent.WorkloadSpec.FromString(data)
    except DecodeError:
        raise InvalidError([problem("spec", None, "must be a serialized persys.agent.v1.WorkloadSpec")]) from None
    spec = agent_spec_from_proto(pb, type)
    return control.WorkloadSpec(
        type=kind.value,
        resources=control.ResourceRequirements(
            cpu_millicores=spec.request.cpu_millicores,
            memory_mb=spec.request.memory_mb,
            disk_gb=spec.request.disk_gb,
        ),
        process=pb.process,
        slots=spec.request.slots,
        at_most_one=spec.at_most_one,
        failover=run.Failover(policy="stop", after_ms=pb.stop_after_ms) if pb.stop_after_ms else None,
    )


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
        cpu, memory = limits.cpu_shares, -(-limits.memory_bytes // _MIB)
    elif member == WorkloadType.VM.value:
        cpu, memory = pb.vm.vcpus * 1000, pb.vm.memory_mb
    asked = Resources(cpu, memory)
    problems.extend(
        problem(path(at, str(member)), (cpu, memory), f"asks for {each.field}, which {each.rule}")
        for each in find_problems(asked)
    )
    return asked if not find_problems(asked) else Resources()


# ---------------------------------------------------------------------------------------------------------
# Types


def _container(spec: WorkloadSpec, container: ContainerSpec) -> agent.ContainerSpec:
    asked = spec.resources
    return agent.ContainerSpec(
        image=container.image,
        command=container.command,
        env=container.env,
        volumes=[
            agent.VolumeMount(host_path=each.host_path, container_path=each.container_path, read_only=each.read_only)
            for each in container.volumes
        ],
        ports=[
            agent.PortMapping(host_port=each.host_port, container_port=each.container_port, protocol=each.protocol)
            for each in container.ports
        ],
        # Foreign agents expect a thousand shares per core; ours limit by the reservation.
        resources=agent.ResourceLimits(cpu_shares=asked.cpu_millicores, memory_bytes=asked.memory_mb * _MIB),
        restart_policy=agent.RestartPolicy(policy=container.restart_policy) if container.restart_policy else None,
        labels=spec.labels,
        managed_volumes=[_volume(each) for each in container.managed_volumes],
        privileged=container.privileged,
    )


def _compose(compose: ComposeSpec, workload_id: str) -> agent.ComposeSpec:
    inline = compose.source_type == "inline"
    return agent.ComposeSpec(
        project_name=compose_project(workload_id),
        compose_yaml=base64.b64encode(compose.inline_yaml.encode()).decode() if inline else "",
        env=compose.env,
        git_repo="" if inline else compose.git_repo,
        git_ref="" if inline else compose.git_ref,
    )


def compose_project(workload_id: str) -> str:
    """A project name that compose accepts: lower case, no dots. A changed name gets a hash, to stay unique."""
    name = re.sub(r"[^a-z0-9_-]", "-", workload_id.lower())
    if name == workload_id and len(name) <= _MAX_PROJECT:
        return name
    digest = hashlib.sha256(workload_id.encode()).hexdigest()[:8]
    return f"{name[: _MAX_PROJECT - 9]}-{digest}"


def _vm(spec: WorkloadSpec, vm: VmSpec, workload_id: str) -> agent.VMSpec:
    disks = []
    for index, disk in enumerate(vm.disks):
        device = _device(index)
        disks.append(
            agent.DiskConfig(
                # A foreign agent needs a path; ours use the pool.
                path=f"{_FOREIGN_IMAGES}/{workload_id}-{device}.qcow2",
                device=device,
                format="qcow2",
                size_gb=disk.size_gb or _DEFAULT_DISK_GB,
                type="disk",
                boot=index == 0,
                pool_name=disk.pool_name,
                mount_point=disk.mount_point,
            )
        )
    cloud_init = vm.cloud_init
    return agent.VMSpec(
        name=workload_id,
        vcpus=vm.vcpus,
        memory_mb=vm.memory_mb,
        disks=disks,
        networks=[
            agent.NetworkConfig(network=each.bridge, ip_address=each.static_ip, bridge=each.bridge, dhcp=each.dhcp)
            for each in vm.networks
        ],
        cloud_init=cloud_init.user_data if cloud_init is not None else "",
        metadata=spec.metadata,
        cloud_init_config=agent.CloudInitConfig(
            user_data=cloud_init.user_data,
            meta_data=cloud_init.meta_data,
            network_config=cloud_init.network_config,
            vendor_data=cloud_init.vendor_data,
        )
        if cloud_init is not None
        else None,
        managed_volumes=[_volume(each) for each in vm.managed_volumes],
        os_image=vm.os_image,
    )


def _device(index: int) -> str:
    """The kernel's name of a disk: vda to vdz, then vdaa."""
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return f"vd{letters}"


def _volume(volume: ManagedVolume) -> agent.ManagedVolumeSpec:
    return agent.ManagedVolumeSpec(
        name=volume.name,
        driver=volume.driver,
        size_gb=volume.size_gb,
        access_mode=volume.access_mode,
        fs_type=volume.fs_type,
        mount_path=volume.mount_path,
        read_only=volume.read_only,
        retain_policy=volume.retain_policy,
    )

"""Specs from clients: `persys.control.v1.WorkloadSpec` ↔ `shoal.model.workloads.WorkloadSpec`.

Zero and empty mean "not given" on the wire and become the model's defaults. Every rule of the model is applied to what
was read, and the problems carry the full path of the field as the wire names it.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from google.protobuf.message import DecodeError, Message

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import find_problems
from shoal.model.workloads import (
    Affinity,
    AffinityDirection,
    CloudInit,
    ComposeSource,
    ComposeSpec,
    Constraint,
    ConstraintOperator,
    ContainerSpec,
    Failover,
    ManagedVolume,
    PlacementRules,
    PortMapping,
    ResourceRequest,
    VmDisk,
    VmNetwork,
    VmSpec,
    VolumeMount,
    WorkloadSpec,
    WorkloadType,
)
from shoal.wire.convert.fields import (
    duration_to_millis,
    find_workload_type,
    path,
    read_duration,
    type_problem,
    writing,
)
from shoal.wire.convert.options import (
    compose_options_from_proto,
    compose_options_to_proto,
    container_options_from_proto,
    container_options_to_proto,
    disk_options_from_proto,
    disk_options_to_proto,
    network_options_from_proto,
    network_options_to_proto,
    vm_options_from_proto,
    vm_options_to_proto,
)
from shoal.wire.convert.processes import process_from_proto, process_to_proto
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2 as run

# Shared by all specs that leave these out.
_ANYWHERE = PlacementRules()
_FAILOVER = Failover()


def workload_spec_from_proto(pb: control.WorkloadSpec, *, at: str = "spec") -> WorkloadSpec:
    """Read and check a spec. Raises `InvalidError` with everything that is wrong with it, and nothing else."""
    problems: list[Problem] = []
    spec = _read_spec(pb, at, problems)
    problems.extend(find_problems(spec, at=at))
    if problems:
        raise InvalidError(problems)
    return spec


def _read_spec(pb: control.WorkloadSpec, at: str, problems: list[Problem]) -> WorkloadSpec:
    member = pb.WhichOneof("workload")
    kind = find_workload_type(pb.type)
    if kind is None:
        problems.append(type_problem(pb.type or None, path(at, "type")))
        if member is None:
            raise InvalidError(problems)
        kind = WorkloadType(member)  # so that the rest is checked too
    return WorkloadSpec(
        type=kind,
        resources=ResourceRequest(pb.resources.cpu_millicores, pb.resources.memory_mb, pb.resources.disk_gb),
        container=_container_from_proto(pb.container, path(at, "container"), problems)
        if member == "container"
        else None,
        compose=_compose_from_proto(pb.compose, path(at, "compose"), problems) if member == "compose" else None,
        vm=_vm_from_proto(pb.vm, path(at, "vm"), problems) if member == "vm" else None,
        process=process_from_proto(pb.process, path(at, "process"), problems) if member == "process" else None,
        metadata=dict(pb.metadata),
        placement=_placement_from_proto(pb.placement) if pb.HasField("placement") else _ANYWHERE,
        slots=pb.slots,
        at_most_one=pb.at_most_one,
        labels=dict(pb.labels),
        failover=_failover_from_proto(pb.failover, path(at, "failover"), problems)
        if pb.HasField("failover")
        else _FAILOVER,
    )


def workload_spec_to_proto(spec: WorkloadSpec, *, at: str = "spec") -> control.WorkloadSpec:
    """Write a spec. A duration below a millisecond becomes one, because 0 means the default."""
    with writing(at):
        return control.WorkloadSpec(
            type=spec.type.value,
            resources=control.ResourceRequirements(
                cpu_millicores=spec.resources.cpu_millicores,
                memory_mb=spec.resources.memory_mb,
                disk_gb=spec.resources.disk_gb,
            ),
            container=_container_to_proto(spec.container) if spec.container is not None else None,
            compose=_compose_to_proto(spec.compose) if spec.compose is not None else None,
            vm=_vm_to_proto(spec.vm) if spec.vm is not None else None,
            process=process_to_proto(spec.process) if spec.process is not None else None,
            metadata=spec.metadata,
            placement=_placement_to_proto(spec.placement) if spec.placement != _ANYWHERE else None,
            slots=spec.slots,
            at_most_one=spec.at_most_one,
            labels=spec.labels,
            failover=_failover_to_proto(spec.failover) if spec.failover != _FAILOVER else None,
        )


def spec_bytes(pb: Message) -> bytes:
    """The exact bytes of a spec, equal for equal messages: map entries are in order of their keys."""
    return pb.SerializeToString(deterministic=True)


def spec_sha256(data: bytes) -> bytes:
    """The hash that identifies a spec."""
    return hashlib.sha256(data).digest()


def decode_spec_bytes(data: bytes) -> WorkloadSpec:
    """Read a spec that was accepted and stored. Raises `InvalidError` only when it is none at all.

    The rules of today are not asked: what an earlier version accepted stays accepted.
    """
    try:
        pb = control.WorkloadSpec.FromString(data)
    except DecodeError:
        raise InvalidError([problem("spec", None, "must be a serialized persys.control.v1.WorkloadSpec")]) from None
    problems: list[Problem] = []
    spec = _read_spec(pb, "spec", problems)
    if problems:
        raise InvalidError(problems)
    return spec


# ---------------------------------------------------------------------------------------------------------
# Containers


def _container_from_proto(pb: control.ContainerSpec, at: str, problems: list[Problem]) -> ContainerSpec:
    return ContainerSpec(
        image=pb.image,
        command=tuple(pb.command),
        env=dict(pb.env),
        volumes=tuple(VolumeMount(each.host_path, each.container_path, each.read_only) for each in pb.volumes),
        ports=tuple(
            PortMapping(each.container_port, each.host_port, each.protocol or "tcp", each.name) for each in pb.ports
        ),
        restart_policy=pb.restart_policy,
        privileged=pb.privileged,
        managed_volumes=tuple(_volume_from_proto(each) for each in pb.managed_volumes),
        args=tuple(pb.args),
        labels=dict(pb.labels),
        **container_options_from_proto(pb.options, at, problems),
    )


def _container_to_proto(spec: ContainerSpec) -> control.ContainerSpec:
    return control.ContainerSpec(
        image=spec.image,
        command=spec.command,
        env=spec.env,
        volumes=[
            control.VolumeMount(host_path=each.host_path, container_path=each.container_path, read_only=each.read_only)
            for each in spec.volumes
        ],
        ports=[
            control.Port(
                host_port=each.host_port, container_port=each.container_port, protocol=each.protocol, name=each.name
            )
            for each in spec.ports
        ],
        restart_policy=spec.restart_policy,
        privileged=spec.privileged,
        managed_volumes=[_volume_to_proto(each) for each in spec.managed_volumes],
        args=spec.args,
        labels=spec.labels,
        options=container_options_to_proto(spec),
    )


def _volume_from_proto(pb: control.ManagedVolumeSpec) -> ManagedVolume:
    return ManagedVolume(
        name=pb.name,
        driver=pb.driver or "local",
        size_gb=pb.size_gb,
        access_mode=pb.access_mode,
        fs_type=pb.fs_type,
        mount_path=pb.mount_path,
        read_only=pb.read_only,
        retain_policy=pb.retain_policy,
        pool_name=pb.pool_name,
    )


def _volume_to_proto(volume: ManagedVolume) -> control.ManagedVolumeSpec:
    return control.ManagedVolumeSpec(
        name=volume.name,
        driver=volume.driver,
        size_gb=volume.size_gb,
        access_mode=volume.access_mode,
        fs_type=volume.fs_type,
        mount_path=volume.mount_path,
        read_only=volume.read_only,
        retain_policy=volume.retain_policy,
        pool_name=volume.pool_name,
    )


# ---------------------------------------------------------------------------------------------------------
# Compose projects and virtual machines


def _compose_from_proto(pb: control.ComposeSpec, at: str, problems: list[Problem]) -> ComposeSpec:
    return ComposeSpec(
        source_type=pb.source_type or ComposeSource.INLINE,
        git_repo=pb.git_repo,
        git_ref=pb.git_ref,
        inline_yaml=pb.inline_yaml,
        env=dict(pb.env),
        **compose_options_from_proto(pb.options, at, problems),
    )


def _compose_to_proto(spec: ComposeSpec) -> control.ComposeSpec:
    return control.ComposeSpec(
        source_type=spec.source_type,
        git_repo=spec.git_repo,
        git_ref=spec.git_ref,
        inline_yaml=spec.inline_yaml,
        env=spec.env,
        options=compose_options_to_proto(spec),
    )


def _vm_from_proto(pb: control.VMSpec, at: str, problems: list[Problem]) -> VmSpec:
    return VmSpec(
        vcpus=pb.vcpus or VmSpec().vcpus,
        memory_mb=pb.memory_mb or VmSpec().memory_mb,
        disks=tuple(
            VmDisk(each.pool_name, each.size_gb, each.mount_point, **disk_options_from_proto(each.options))
            for each in pb.disks
        ),
        networks=tuple(
            VmNetwork(each.bridge, each.dhcp, each.static_ip, **network_options_from_proto(each.options))
            for each in pb.networks
        ),
        cloud_init=_cloud_init_from_proto(pb.cloud_init) if pb.HasField("cloud_init") else None,
        os_image=pb.os_image,
        managed_volumes=tuple(_volume_from_proto(each) for each in pb.managed_volumes),
        **vm_options_from_proto(pb.options, at, problems),
    )


def _cloud_init_from_proto(pb: control.CloudInitConfig) -> CloudInit:
    return CloudInit(pb.user_data, pb.meta_data, pb.network_config, pb.vendor_data)


def _vm_to_proto(spec: VmSpec) -> control.VMSpec:
    cloud_init = spec.cloud_init
    return control.VMSpec(
        vcpus=spec.vcpus,
        memory_mb=spec.memory_mb,
        disks=[
            control.DiskConfig(
                pool_name=each.pool_name,
                size_gb=each.size_gb,
                mount_point=each.mount_point,
                options=disk_options_to_proto(each),
            )
            for each in spec.disks
        ],
        networks=[
            control.NetworkConfig(
                bridge=each.bridge, dhcp=each.dhcp, static_ip=each.static_ip, options=network_options_to_proto(each)
            )
            for each in spec.networks
        ],
        cloud_init=control.CloudInitConfig(
            user_data=cloud_init.user_data,
            meta_data=cloud_init.meta_data,
            network_config=cloud_init.network_config,
            vendor_data=cloud_init.vendor_data,
        )
        if cloud_init is not None
        else None,
        os_image=spec.os_image,
        managed_volumes=[_volume_to_proto(each) for each in spec.managed_volumes],
        options=vm_options_to_proto(spec),
    )


# ---------------------------------------------------------------------------------------------------------
# Placement


def _placement_from_proto(pb: run.Placement) -> PlacementRules:
    return PlacementRules(
        constraints=tuple(
            Constraint(each.key, each.operator or ConstraintOperator.IN, tuple(each.values)) for each in pb.constraints
        ),
        affinities=tuple(
            Affinity(
                workloads=dict(each.workloads),
                scope=each.scope or "node",
                direction=each.direction or AffinityDirection.APART,
                required=each.required,
                weight=each.weight or 50,
            )
            for each in pb.affinities
        ),
        storage_drivers=tuple(pb.storage_drivers),
    )


def _placement_to_proto(rules: PlacementRules) -> run.Placement:
    return run.Placement(
        constraints=[
            run.Constraint(key=each.key, operator=each.operator, values=each.values) for each in rules.constraints
        ],
        affinities=[
            run.Affinity(
                workloads=each.workloads,
                scope=each.scope,
                direction=each.direction,
                required=each.required,
                weight=each.weight,
            )
            for each in rules.affinities
        ],
        storage_drivers=rules.storage_drivers,
    )


def _failover_from_proto(pb: run.Failover, at: str, problems: list[Problem]) -> Failover:
    return Failover(
        policy=pb.policy or _FAILOVER.policy,
        after=read_duration(pb.after_ms, timedelta(0), path(at, "after_ms"), problems),
        migrate=pb.migrate,
    )


def _failover_to_proto(failover: Failover) -> run.Failover:
    return run.Failover(
        policy=failover.policy,
        after_ms=duration_to_millis(failover.after) if failover.after else 0,
        migrate=failover.migrate,
    )

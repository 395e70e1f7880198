"""Containers, compose projects and VMs in the agent's contract, `persys.agent.v1`, both ways.

Our control plane fills the published fields as foreign agents expect them, and puts everything else into fields from
100 on. A spec without a reservation comes from a foreign scheduler: then the published fields are all there is.
Called by `shoal.wire.convert.agent_specs`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any

from shoal.core.errors import Problem
from shoal.model.workloads import (
    CloudInit,
    ComposeSource,
    ComposeSpec,
    ContainerSpec,
    ManagedVolume,
    PortMapping,
    RestartPolicy,
    VmDisk,
    VmNetwork,
    VmSpec,
    VolumeMount,
    WorkloadSpec,
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
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent

_MIB = 1024 * 1024
# The size that a foreign agent gives to a disk without one.
_DEFAULT_DISK_GB = 20
_FOREIGN_IMAGES = "/var/lib/libvirt/images"
#: The name of the network that a foreign scheduler means by "any": user-mode networking here.
_DEFAULT_NETWORK = "default"
_MAX_PROJECT = 63


# ---------------------------------------------------------------------------------------------------------
# Containers


def container_to_agent(spec: WorkloadSpec, container: ContainerSpec) -> agent.ContainerSpec:
    """Write a container for an agent."""
    asked, restart = spec.resources, container.restart_rules
    given = container.restart is not None or container.restart_policy
    return agent.ContainerSpec(
        image=container.image,
        command=container.command,
        args=container.args,
        env=container.env,
        volumes=[
            agent.VolumeMount(host_path=each.host_path, container_path=each.container_path, read_only=each.read_only)
            for each in container.volumes
        ],
        ports=[
            agent.PortMapping(
                host_port=each.host_port, container_port=each.container_port, protocol=each.protocol, name=each.name
            )
            for each in container.ports
        ],
        # Foreign agents expect a thousand shares per core; ours limit by the reservation.
        resources=agent.ResourceLimits(cpu_shares=asked.cpu_millicores, memory_bytes=asked.memory_mb * _MIB),
        restart_policy=agent.RestartPolicy(policy=restart.policy, max_retry_count=restart.max_retries)
        if given
        else None,
        labels={**spec.labels, **container.labels},
        managed_volumes=[_volume_to_agent(each) for each in container.managed_volumes],
        privileged=container.privileged,
        options=container_options_to_proto(container),
    )


def container_from_agent(pb: agent.ContainerSpec, at: str, problems: list[Problem], *, foreign: bool) -> ContainerSpec:
    """Read a container. The CPU shares of a foreign scheduler stay a weight."""
    options = container_options_from_proto(pb.options, at, problems)
    if foreign:
        options["cpu_shares"] = pb.resources.cpu_shares
        if pb.restart_policy.max_retry_count:
            options["restart"] = RestartPolicy(
                policy=pb.restart_policy.policy, max_retries=pb.restart_policy.max_retry_count
            )
    return ContainerSpec(
        image=pb.image,
        command=tuple(pb.command),
        args=tuple(pb.args),
        env=dict(pb.env),
        volumes=tuple(VolumeMount(each.host_path, each.container_path, each.read_only) for each in pb.volumes),
        ports=tuple(
            PortMapping(each.container_port, each.host_port, each.protocol or "tcp", each.name) for each in pb.ports
        ),
        restart_policy=pb.restart_policy.policy,
        privileged=pb.privileged,
        managed_volumes=tuple(_volume_from_agent(each) for each in pb.managed_volumes),
        labels=dict(pb.labels),
        **options,
    )


# ---------------------------------------------------------------------------------------------------------
# Compose projects


def compose_to_agent(compose: ComposeSpec, workload_id: str) -> agent.ComposeSpec:
    """Write a compose project for an agent."""
    inline = compose.source_type == ComposeSource.INLINE
    return agent.ComposeSpec(
        project_name=compose_project(workload_id),
        compose_yaml=base64.b64encode(compose.inline_yaml.encode()).decode() if inline else "",
        env=compose.env,
        git_repo="" if inline else compose.git_repo,
        git_ref="" if inline else compose.git_ref,
        options=compose_options_to_proto(compose),
    )


def compose_from_agent(pb: agent.ComposeSpec, at: str, problems: list[Problem]) -> ComposeSpec:
    """Read a compose project."""
    return ComposeSpec(
        source_type=ComposeSource.GIT if pb.git_repo else ComposeSource.INLINE,
        git_repo=pb.git_repo,
        git_ref=pb.git_ref,
        inline_yaml=_plain(pb.compose_yaml),
        env=dict(pb.env),
        **compose_options_from_proto(pb.options, at, problems),
    )


def _plain(text: str) -> str:
    """A compose file that may be in base64; foreign schedulers send it either way."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return text


def compose_project(workload_id: str) -> str:
    """A project name that compose accepts: lower case, no dots. A changed name gets a hash, to stay unique."""
    name = re.sub(r"[^a-z0-9_-]", "-", workload_id.lower())
    if name == workload_id and len(name) <= _MAX_PROJECT:
        return name
    digest = hashlib.sha256(workload_id.encode()).hexdigest()[:8]
    return f"{name[: _MAX_PROJECT - 9]}-{digest}"


# ---------------------------------------------------------------------------------------------------------
# Virtual machines


def vm_to_agent(spec: WorkloadSpec, vm: VmSpec, workload_id: str) -> agent.VMSpec:
    """Write a VM for an agent."""
    cloud_init = vm.cloud_init
    return agent.VMSpec(
        name=workload_id,
        vcpus=vm.vcpus,
        memory_mb=vm.memory_mb,
        disks=[_disk_to_agent(index, disk, workload_id) for index, disk in enumerate(vm.disks)],
        networks=[
            agent.NetworkConfig(
                network=each.bridge,
                mac_address=each.mac,
                ip_address=each.static_ip,
                bridge=each.bridge,
                dhcp=each.dhcp,
                options=network_options_to_proto(each),
            )
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
        managed_volumes=[_volume_to_agent(each) for each in vm.managed_volumes],
        os_image=vm.os_image,
        options=vm_options_to_proto(vm),
    )


def vm_from_agent(pb: agent.VMSpec, at: str, problems: list[Problem], *, foreign: bool) -> VmSpec:
    """Read a VM."""
    return VmSpec(
        vcpus=pb.vcpus or VmSpec().vcpus,
        memory_mb=pb.memory_mb or VmSpec().memory_mb,
        disks=_foreign_disks(pb) if foreign else tuple(_disk_from_agent(each) for each in pb.disks),
        networks=tuple(_foreign_network(each) if foreign else _network_from_agent(each) for each in pb.networks),
        cloud_init=_cloud_init(pb),
        os_image=pb.os_image,
        managed_volumes=tuple(_volume_from_agent(each) for each in pb.managed_volumes),
        **vm_options_from_proto(pb.options, at, problems),
    )


def _cloud_init(pb: agent.VMSpec) -> CloudInit | None:
    if pb.HasField("cloud_init_config"):
        given = pb.cloud_init_config
        return CloudInit(given.user_data or pb.cloud_init, given.meta_data, given.network_config, given.vendor_data)
    return CloudInit(user_data=pb.cloud_init) if pb.cloud_init else None


def _disk_to_agent(index: int, disk: VmDisk, workload_id: str) -> agent.DiskConfig:
    device = _device(index)
    iso = disk.format == "iso"
    return agent.DiskConfig(
        # A foreign agent needs a path; ours use the pool and the options.
        path=disk.path or f"{_FOREIGN_IMAGES}/{workload_id}-{disk.name or device}.qcow2",
        device=device,
        format=disk.format or "qcow2",
        size_gb=disk.size_gb or _DEFAULT_DISK_GB,
        type="cdrom" if iso else "disk",
        boot=index == 0,
        pool_name=disk.pool_name,
        mount_point=disk.mount_point,
        options=disk_options_to_proto(disk),
        exact_size_gb=disk.size_gb,
    )


def _disk_from_agent(pb: agent.DiskConfig) -> VmDisk:
    return VmDisk(pb.pool_name, pb.exact_size_gb, pb.mount_point, **disk_options_from_proto(pb.options))


def _foreign_disks(pb: agent.VMSpec) -> tuple[VmDisk, ...]:
    """The disks of a foreign scheduler, the one to boot from first: files of the node, made if they are not there."""
    disks = sorted(pb.disks, key=lambda each: not each.boot)
    return tuple(_foreign_disk(each) for each in disks)


def _foreign_disk(pb: agent.DiskConfig) -> VmDisk:
    fields: dict[str, Any] = {"pool_name": pb.pool_name, "mount_point": pb.mount_point, "size_gb": pb.size_gb}
    if pb.type == "cdrom" or pb.format == "iso":
        return VmDisk(**fields, image=pb.path, format="iso", read_only=True)
    return VmDisk(**fields, path="" if pb.pool_name else pb.path, format=pb.format)


def _network_from_agent(pb: agent.NetworkConfig) -> VmNetwork:
    return VmNetwork(pb.bridge, pb.dhcp, pb.ip_address, **network_options_from_proto(pb.options))


def _foreign_network(pb: agent.NetworkConfig) -> VmNetwork:
    bridge = pb.network if pb.network != _DEFAULT_NETWORK else ""
    return VmNetwork(bridge, not pb.ip_address, pb.ip_address, mac=pb.mac_address.lower())


def _device(index: int) -> str:
    """The kernel's name of a disk: vda to vdz, then vdaa."""
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return f"vd{letters}"


# ---------------------------------------------------------------------------------------------------------
# Volumes


def _volume_to_agent(volume: ManagedVolume) -> agent.ManagedVolumeSpec:
    return agent.ManagedVolumeSpec(
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


def _volume_from_agent(pb: agent.ManagedVolumeSpec) -> ManagedVolume:
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

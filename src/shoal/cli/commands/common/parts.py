"""What a container, compose project or VM is made of, in words. Called by `describe` and `workload get`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.cli import output
from shoal.core.ids import NodeId
from shoal.model.spec.kinds import DEFAULT_DISK_GB
from shoal.model.views import WorkloadView
from shoal.model.workloads import (
    ComposeSpec,
    ContainerSpec,
    ManagedVolume,
    PortMapping,
    VmDisk,
    VmNetwork,
    VmSpec,
    WorkloadType,
)

_INDENT = "  "


def show_parts(view: WorkloadView) -> None:
    """Print the parts of a workload, under the name of its kind. A process has none."""
    if rows := list(parts_of(view)):
        output.data(f"\n{view.type}")
        output.facts([(f"{_INDENT}{name}", value) for name, value in rows])


def parts_of(view: WorkloadView) -> Iterator[tuple[str, str]]:
    """The parts of a workload, as names and values. Pure."""
    body = view.spec.body if view.spec is not None else None
    ports = view.run.ports if view.run is not None else {}
    if isinstance(body, ContainerSpec):
        yield "image", body.image
        yield "name", _engine_name(view)
        yield "command", " ".join([*body.command, *body.args])
        yield from _ports(body.ports, ports)
        for mount in body.volumes:
            yield "volume", f"{mount.container_path} is {mount.host_path}{', read-only' if mount.read_only else ''}"
        yield from _volumes(body.managed_volumes)
    if isinstance(body, ComposeSpec):
        yield "source", f"{body.git_repo} at {body.git_ref or 'its default branch'}" if body.git_repo else "inline"
        yield "project", _engine_name(view)
    if isinstance(body, VmSpec):
        yield "image", body.os_image
        yield "kernel", body.kernel
        yield "size", f"{body.vcpus} vCPU, {body.memory_mb} MB"
        yield from (("disk", _disk(disk, body.os_image if not index else "")) for index, disk in enumerate(body.disks))
        yield from _volumes(body.managed_volumes)
        yield from (("network", _network(network)) for network in body.networks or (VmNetwork(),))
        yield from _ports(body.port_mappings, ports)
        yield "console", f"shoal logs {view.workload_id}"
    services = view.run.services if view.run is not None else {}
    yield from ((f"service {name}", state) for name, state in sorted(services.items()))


def _engine_name(view: WorkloadView) -> str:
    """The name in the engine of its node; empty when it is nowhere, or when a foreign agent has named it."""
    from shoal.runtimes.compose.project import project_name
    from shoal.runtimes.container.creating import Owner

    if not view.assigned_node_id or view.run is None or not view.run.generation:
        return ""
    name = Owner("", NodeId(view.assigned_node_id)).name_of(view.workload_id)
    return project_name(name) if view.type == WorkloadType.COMPOSE.value else name


def _ports(mappings: tuple[PortMapping, ...], chosen: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for mapping in mappings:
        number = chosen.get(mapping.name, mapping.host_port) if mapping.name else mapping.host_port
        host = str(number) if number else f"chosen by the {'agent' if mapping.name else 'engine'}"
        name = f"{mapping.name}: " if mapping.name else ""
        yield "port", f"{name}{mapping.container_port}/{mapping.protocol or 'tcp'}, host port {host}"


def _volumes(volumes: tuple[ManagedVolume, ...]) -> Iterator[tuple[str, str]]:
    for volume in volumes:
        where = f" in pool {volume.pool_name}" if volume.pool_name else ""
        at = f"{volume.mount_path} is " if volume.mount_path else ""
        kept = volume.retain_policy or "Retain"
        yield "volume", f"{at}{volume.name} ({volume.driver}{where}, {kept}{', read-only' if volume.read_only else ''})"


def _disk(disk: VmDisk, os_image: str) -> str:
    has_image = disk.image or disk.path or os_image
    size = f"{disk.size_gb} GB" if disk.size_gb else "as large as its image" if has_image else f"{DEFAULT_DISK_GB} GB"
    words = [
        disk.name,
        size,
        disk.format,
        f"of {disk.image}" if disk.image else "",
        f"in pool {disk.pool_name}" if disk.pool_name else disk.path,
        f"mounted at {disk.mount_point}" if disk.mount_point else "",
        "read-only" if disk.read_only else "",
    ]
    return ", ".join(word for word in words if word)


def _network(network: VmNetwork) -> str:
    link = f"bridge {network.bridge}" if network.bridge else f"tap {network.tap}" if network.tap else "user-mode"
    words = [network.name, link, "dhcp" if network.dhcp else "", network.static_ip, network.mac]
    return ", ".join(word for word in words if word)

"""What containers, compose projects and VMs have beyond the published contracts ↔ `shoal.v1`.

Both contracts carry the same messages, so nothing of a spec is lost on its way to an agent. Options that are all at
their defaults are left out. Called by `specs` (control plane) and `agent_specs` (agent).
"""

from __future__ import annotations

from typing import Any

from shoal.core.errors import Problem
from shoal.model.workloads import (
    ComposeSpec,
    ContainerSpec,
    PortMapping,
    Ulimit,
    VmBoot,
    VmDisk,
    VmNetwork,
    VmSpec,
)
from shoal.wire.convert.fields import duration_to_millis, path, read_duration
from shoal.wire.convert.parts import (
    file_from_proto,
    file_to_proto,
    liveness_from_proto,
    liveness_to_proto,
    readiness_from_proto,
    readiness_to_proto,
    restart_from_proto,
    restart_to_proto,
    stop_from_proto,
    stop_to_proto,
)
from shoal.wire.pb.shoal.v1 import run_pb2 as run

_VM = VmSpec()
_BOOT = VmBoot()
_CONTAINER = ContainerSpec("")
_COMPOSE = ComposeSpec()


def container_options_from_proto(pb: run.ContainerOptions, at: str, problems: list[Problem]) -> dict[str, Any]:
    """The fields of a container spec that are in its options."""
    at = path(at, "options")
    return {
        "init": pb.init,
        "user": pb.user,
        "working_dir": pb.working_dir,
        "stop": stop_from_proto(pb.stop, path(at, "stop"), problems) if pb.HasField("stop") else _CONTAINER.stop,
        "pull_policy": pb.pull_policy,
        "ulimits": tuple(Ulimit(each.name, each.soft, each.hard) for each in pb.ulimits),
        "cpu_shares": pb.cpu_shares,
        "restart": restart_from_proto(pb.restart, path(at, "restart"), problems) if pb.HasField("restart") else None,
        "readiness": readiness_from_proto(pb.readiness, path(at, "readiness"), problems)
        if pb.HasField("readiness")
        else None,
        "liveness": liveness_from_proto(pb.liveness, path(at, "liveness"), problems)
        if pb.HasField("liveness")
        else None,
        "env_from_secrets": dict(pb.env_from_secrets),
        "files": tuple(file_from_proto(each) for each in pb.files),
    }


def container_options_to_proto(spec: ContainerSpec) -> run.ContainerOptions | None:
    """The inverse; None when there are none."""
    options = run.ContainerOptions(
        init=spec.init,
        user=spec.user,
        working_dir=spec.working_dir,
        stop=stop_to_proto(spec.stop) if spec.stop != _CONTAINER.stop else None,
        pull_policy=spec.pull_policy,
        ulimits=[run.Ulimit(name=each.name, soft=each.soft, hard=each.hard) for each in spec.ulimits],
        cpu_shares=spec.cpu_shares,
        restart=restart_to_proto(spec.restart) if spec.restart is not None else None,
        readiness=readiness_to_proto(spec.readiness) if spec.readiness is not None else None,
        liveness=liveness_to_proto(spec.liveness) if spec.liveness is not None else None,
        env_from_secrets=spec.env_from_secrets,
        files=[file_to_proto(each) for each in spec.files],
    )
    return options if options.ListFields() else None


def compose_options_from_proto(pb: run.ComposeOptions, at: str, problems: list[Problem]) -> dict[str, Any]:
    """The fields of a compose spec that are in its options."""
    at = path(at, "options")
    return {
        "stop": stop_from_proto(pb.stop, path(at, "stop"), problems) if pb.HasField("stop") else _COMPOSE.stop,
        "restart": restart_from_proto(pb.restart, path(at, "restart"), problems)
        if pb.HasField("restart")
        else _COMPOSE.restart,
        "retain_policy": pb.retain_policy,
        "env_from_secrets": dict(pb.env_from_secrets),
        "files": tuple(file_from_proto(each) for each in pb.files),
    }


def compose_options_to_proto(spec: ComposeSpec) -> run.ComposeOptions | None:
    """The inverse; None when there are none."""
    options = run.ComposeOptions(
        stop=stop_to_proto(spec.stop) if spec.stop != _COMPOSE.stop else None,
        restart=restart_to_proto(spec.restart) if spec.restart != _COMPOSE.restart else None,
        retain_policy=spec.retain_policy,
        env_from_secrets=spec.env_from_secrets,
        files=[file_to_proto(each) for each in spec.files],
    )
    return options if options.ListFields() else None


def vm_options_from_proto(pb: run.VmOptions, at: str, problems: list[Problem]) -> dict[str, Any]:
    """The fields of a VM spec that are in its options."""
    at = path(at, "options")
    return {
        "kernel": pb.kernel,
        "initrd": pb.initrd,
        "kernel_args": pb.kernel_args,
        "os_image_sha256": pb.os_image_sha256,
        "acceleration": pb.acceleration or _VM.acceleration,
        "boot": _boot_from_proto(pb.boot, path(at, "boot"), problems) if pb.HasField("boot") else None,
        "stop": stop_from_proto(pb.stop, path(at, "stop"), problems, default=_VM.stop)
        if pb.HasField("stop")
        else _VM.stop,
        "restart": restart_from_proto(pb.restart, path(at, "restart"), problems)
        if pb.HasField("restart")
        else _VM.restart,
        "retain_policy": pb.retain_policy,
    }


def vm_options_to_proto(spec: VmSpec) -> run.VmOptions | None:
    """The inverse; None when there are none."""
    options = run.VmOptions(
        kernel=spec.kernel,
        initrd=spec.initrd,
        kernel_args=spec.kernel_args,
        os_image_sha256=spec.os_image_sha256,
        acceleration=spec.acceleration if spec.acceleration != _VM.acceleration else "",
        boot=run.VmBoot(
            console=spec.boot.console,
            tcp_port=spec.boot.tcp_port,
            guest_agent=spec.boot.guest_agent,
            deadline_ms=duration_to_millis(spec.boot.deadline),
        )
        if spec.boot is not None
        else None,
        stop=stop_to_proto(spec.stop) if spec.stop != _VM.stop else None,
        restart=restart_to_proto(spec.restart) if spec.restart != _VM.restart else None,
        retain_policy=spec.retain_policy,
    )
    return options if options.ListFields() else None


def _boot_from_proto(pb: run.VmBoot, at: str, problems: list[Problem]) -> VmBoot:
    deadline = read_duration(pb.deadline_ms, _BOOT.deadline, path(at, "deadline_ms"), problems)
    return VmBoot(pb.console, pb.tcp_port, pb.guest_agent, deadline)


def disk_options_from_proto(pb: run.VmDiskOptions) -> dict[str, Any]:
    """The fields of a disk that are in its options."""
    return {
        "image": pb.image,
        "sha256": pb.sha256,
        "format": pb.format,
        "read_only": pb.read_only,
        "path": pb.path,
        "name": pb.name,
    }


def disk_options_to_proto(disk: VmDisk) -> run.VmDiskOptions | None:
    """The inverse; None when there are none."""
    options = run.VmDiskOptions(
        image=disk.image,
        sha256=disk.sha256,
        format=disk.format,
        read_only=disk.read_only,
        path=disk.path,
        name=disk.name,
    )
    return options if options.ListFields() else None


def network_options_from_proto(pb: run.VmNetworkOptions) -> dict[str, Any]:
    """The fields of a network interface that are in its options."""
    return {
        "tap": pb.tap,
        "mac": pb.mac,
        "name": pb.name,
        "ports": tuple(
            PortMapping(each.guest_port, each.host_port, each.protocol or "tcp", each.name) for each in pb.ports
        ),
    }


def network_options_to_proto(network: VmNetwork) -> run.VmNetworkOptions | None:
    """The inverse; None when there are none."""
    options = run.VmNetworkOptions(
        tap=network.tap,
        mac=network.mac,
        name=network.name,
        ports=[
            run.PortForward(
                guest_port=each.container_port, host_port=each.host_port, protocol=each.protocol, name=each.name
            )
            for each in network.ports
        ],
    )
    return options if options.ListFields() else None

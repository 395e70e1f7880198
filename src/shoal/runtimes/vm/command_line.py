"""A guest as the arguments of QEMU. Pure; called by `shoal.runtimes.vm.runtime`.

The console goes to standard output, so it is the workload's log. Nothing listens on a network except the ports that
the spec forwards: the monitor and the guest agent have unix sockets in the workload's own directory, and there is no
display.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Locally administered, unicast: the range that QEMU's own documentation uses.
_MAC_PREFIX = "52:54:00"


class DiskKind(enum.Enum):
    """How a disk is attached."""

    DISK = "disk"
    CDROM = "cdrom"


@dataclass(frozen=True, slots=True)
class GuestDisk:
    """One disk, as it lies on this machine."""

    path: Path
    format: str = "qcow2"
    kind: DiskKind = DiskKind.DISK
    read_only: bool = False
    #: What the guest sees in /dev/disk/by-id/virtio-<serial>; at most 20 letters.
    serial: str = ""


@dataclass(frozen=True, slots=True)
class PortForward:
    """A port of this machine that leads into the guest."""

    host_port: int
    guest_port: int
    protocol: str = "tcp"
    host_address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """One network interface: user-mode networking, a bridge or a tap device that is there already."""

    mac: str
    bridge: str = ""
    tap: str = ""
    forwards: tuple[PortForward, ...] = ()


@dataclass(frozen=True, slots=True)
class DirectBoot:
    """A kernel that QEMU loads itself, without a boot loader."""

    kernel: Path
    initrd: Path | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Guest:
    """Everything that QEMU is told when it starts."""

    name: str
    vcpus: int
    memory_mb: int
    accelerator: str
    monitor_socket: Path
    agent_socket: Path
    disks: Sequence[GuestDisk] = ()
    networks: Sequence[GuestNetwork] = ()
    direct_boot: DirectBoot | None = None


def mac_address(workload_id: str, interface: int) -> str:
    """The address of an interface: the same after every restart, on every node."""
    digest = hashlib.sha256(f"{workload_id}/{interface}".encode()).digest()
    return f"{_MAC_PREFIX}:{digest[0]:02x}:{digest[1]:02x}:{digest[2]:02x}"


def qemu_arguments(guest: Guest, *, binary: str = "qemu-system-x86_64") -> tuple[str, ...]:
    """The command line of a guest."""
    cpu = "host" if guest.accelerator == "kvm" else "max"
    arguments = [
        binary,
        *("-name", _escaped(guest.name)),
        *("-machine", f"q35,accel={guest.accelerator}"),
        *("-cpu", cpu),
        *("-smp", str(guest.vcpus)),
        *("-m", str(guest.memory_mb)),
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=monitor,path={_escaped(guest.monitor_socket)},server=on,wait=off"),
        *("-mon", "chardev=monitor,mode=control"),
        *("-device", "virtio-rng-pci"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=agent,path={_escaped(guest.agent_socket)},server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
    ]
    for number, disk in enumerate(guest.disks):
        arguments += _disk(number, disk)
    for number, network in enumerate(guest.networks):
        arguments += _network(number, network)
    if guest.direct_boot is not None:
        arguments += _direct_boot(guest.direct_boot)
    return tuple(arguments)


def _disk(number: int, disk: GuestDisk) -> list[str]:
    backend = f"if=none,id=disk{number},file={_escaped(disk.path)},format={disk.format}"
    device = f"virtio-blk-pci,drive=disk{number}"
    if disk.read_only or disk.kind is DiskKind.CDROM:
        backend += ",readonly=on"
    else:
        backend += ",discard=unmap"
        device += f",bootindex={number + 1}"
    if disk.serial:
        device += f",serial={_escaped(disk.serial[:20])}"
    return ["-drive", backend, "-device", device]


def _network(number: int, network: GuestNetwork) -> list[str]:
    if network.tap:
        backend = f"tap,id=net{number},ifname={_escaped(network.tap)},script=no,downscript=no"
    elif network.bridge:
        backend = f"bridge,id=net{number},br={_escaped(network.bridge)}"
    else:
        backend = f"user,id=net{number}"
        for forward in network.forwards:
            target = f"{forward.host_address}:{forward.host_port}-:{forward.guest_port}"
            backend += f",hostfwd={forward.protocol}:{target}"
    return ["-netdev", backend, "-device", f"virtio-net-pci,netdev=net{number},mac={network.mac}"]


def _direct_boot(boot: DirectBoot) -> list[str]:
    arguments = ["-kernel", str(boot.kernel)]
    if boot.initrd is not None:
        arguments += ["-initrd", str(boot.initrd)]
    if boot.arguments:
        arguments += ["-append", boot.arguments]
    return arguments


def _escaped(value: object) -> str:
    """A value inside an option: QEMU reads two commas as one."""
    return str(value).replace(",", ",,")

"""A guest as the arguments of QEMU. Pure; called by `shoal.runtimes.vm.runtime`.

The console goes to standard output, so it is the workload's log. Nothing listens on a network except the ports that
the spec forwards. The monitors and the guest agent have unix sockets in QEMU's working directory, named without a
path, because the address of a socket is short and a data directory may be deep. There is no display.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.runtimes.vm.acceleration import processor
from shoal.runtimes.vm.programs import QEMU

#: The names of the sockets. QEMU serves one client per monitor: the keeper has its own, to ask the guest to shut down.
MONITOR_SOCKET, STOP_SOCKET, AGENT_SOCKET = "monitor.sock", "stop.sock", "agent.sock"
#: Locally administered, unicast: the range that QEMU's own documentation uses.
_MAC_PREFIX = "52:54:00"
#: What TCG may use for translated code. QEMU's default is an eighth of the machine.
_TCG_CACHE_MB = 256
#: What QEMU itself may use beyond the memory of the guest.
OVERHEAD_MB = 512
#: The longest serial number of a virtio disk.
SERIAL_LENGTH = 20
#: The guest's address with user-mode networking, when the spec gives none. Each interface has a network of its own; the
#: first is the one that QEMU's documentation speaks of.
_USER_ADDRESS = "10.0.{}.15/24"
_FIRST_USER_NETWORK = 2
#: The first addresses of a network that user-mode networking may take for its gateway and its name server.
_FIRST_HOST = 2


@dataclass(frozen=True, slots=True)
class GuestDisk:
    """One disk, as it lies on this machine."""

    path: Path
    format: str = "qcow2"
    read_only: bool = False
    #: What the guest sees in /dev/disk/by-id/virtio-<serial>; at most 20 characters.
    serial: str = ""


@dataclass(frozen=True, slots=True)
class PortForward:
    """A port of this machine that leads into the guest."""

    host_port: int
    guest_port: int
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """One network interface: user-mode networking, a bridge or a tap device that is there already."""

    mac: str
    #: As in `KnownNetwork`.
    name: str = "eth0"
    number: int = 0
    dhcp: bool = False
    bridge: str = ""
    tap: str = ""
    #: The guest's own address, if it has one that is known before.
    address: ipaddress.IPv4Interface | ipaddress.IPv6Interface | None = None
    forwards: tuple[PortForward, ...] = ()


@dataclass(frozen=True, slots=True)
class UserNetwork:
    """The network of an interface with user-mode networking."""

    guest: ipaddress.IPv4Interface
    gateway: ipaddress.IPv4Address
    name_server: ipaddress.IPv4Address


@dataclass(frozen=True, slots=True)
class DirectBoot:
    """A kernel that QEMU loads itself, without a boot loader."""

    kernel: str
    initrd: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Guest:
    """Everything that QEMU is told when it starts."""

    name: str
    vcpus: int
    memory_mb: int
    accelerator: str
    disks: Sequence[GuestDisk] = ()
    networks: Sequence[GuestNetwork] = ()
    direct_boot: DirectBoot | None = None


def mac_address(workload_id: str, interface: str) -> str:
    """The address of an interface: the same after every restart, on every node."""
    digest = hashlib.sha256(f"{workload_id}/{interface}".encode()).digest()
    return f"{_MAC_PREFIX}:{digest[0]:02x}:{digest[1]:02x}:{digest[2]:02x}"


def tap_name(mac: str) -> str:
    """The tap device of an interface on a bridge, named after its MAC address; a name has at most 15 characters."""
    return f"shoal{mac.removeprefix(_MAC_PREFIX).replace(':', '')[-8:]}"


def user_network(network: GuestNetwork) -> UserNetwork:
    """The network that user-mode networking makes for an interface: around the guest's address, if that is known."""
    address = network.address
    if isinstance(address, ipaddress.IPv4Interface):
        guest = address
    else:
        guest = ipaddress.IPv4Interface(_USER_ADDRESS.format(network.number + _FIRST_USER_NETWORK))
    hosts = (host for host in guest.network.hosts() if host != guest.ip)
    free = [host for host, _ in zip(hosts, range(_FIRST_HOST + 1), strict=False)]
    return UserNetwork(guest, gateway=free[1], name_server=free[2])


def qemu_arguments(guest: Guest, *, binary: str = QEMU) -> tuple[str, ...]:
    """The command line of a guest."""
    tcg = guest.accelerator == "tcg"
    arguments = [
        binary,
        *("-name", _escaped(guest.name)),
        *("-machine", "q35"),
        *("-accel", f"tcg,tb-size={_TCG_CACHE_MB}" if tcg else guest.accelerator),
        *("-cpu", processor(guest.accelerator)),
        *("-smp", str(guest.vcpus)),
        *("-m", str(guest.memory_mb)),
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
        *_monitor("monitor", MONITOR_SOCKET),
        *_monitor("stop", STOP_SOCKET),
        *("-device", "virtio-rng-pci"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=agent,path={AGENT_SOCKET},server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
    ]
    for number, disk in enumerate(guest.disks):
        arguments += _disk(number, disk)
    for network in guest.networks:
        arguments += _network(network)
    if guest.direct_boot is not None:
        arguments += _direct_boot(guest.direct_boot)
    return tuple(arguments)


def _monitor(name: str, socket: str) -> tuple[str, ...]:
    return (
        *("-chardev", f"socket,id={name},path={socket},server=on,wait=off"),
        *("-mon", f"chardev={name},mode=control"),
    )


def _disk(number: int, disk: GuestDisk) -> list[str]:
    backend = f"if=none,id=disk{number},file={_escaped(disk.path)},format={disk.format}"
    device = f"virtio-blk-pci,drive=disk{number}"
    if disk.read_only:
        backend += ",readonly=on"
    else:
        backend += ",discard=unmap"
        device += f",bootindex={number + 1}"
    if disk.serial:
        device += f",serial={_escaped(disk.serial[:SERIAL_LENGTH])}"
    return ["-drive", backend, "-device", device]


def _network(network: GuestNetwork) -> list[str]:
    number = network.number
    if network.tap:
        backend = f"tap,id=net{number},ifname={_escaped(network.tap)},script=no,downscript=no"
    elif network.bridge:
        name = tap_name(network.mac)
        backend = f"tap,id=net{number},ifname={name},script={bridge_script_name(number)},downscript=no"
    else:
        backend = _user_backend(network)
    return ["-netdev", backend, "-device", f"virtio-net-pci,netdev=net{number},mac={network.mac}"]


def _user_backend(network: GuestNetwork) -> str:
    found = user_network(network)
    backend = f"user,id=net{network.number},net={found.guest.network},host={found.gateway},dns={found.name_server}"
    backend += f",dhcpstart={found.guest.ip}"
    for forward in network.forwards:
        protocol = forward.protocol or "tcp"
        backend += f",hostfwd={protocol}::{forward.host_port}-{found.guest.ip}:{forward.guest_port}"
    return backend


def bridge_script_name(number: int) -> str:
    """The script in QEMU's working directory that adds the tap device of an interface to its bridge."""
    return f"./bridge{number}"


def bridge_script(bridge: str) -> str:
    """QEMU makes the tap device, calls this with its name, and removes it when it ends."""
    return f'#!/bin/sh -e\nip link set dev "$1" master \'{bridge}\'\nip link set dev "$1" up\n'


def _direct_boot(boot: DirectBoot) -> list[str]:
    arguments = ["-kernel", boot.kernel]
    if boot.initrd:
        arguments += ["-initrd", boot.initrd]
    if boot.arguments:
        arguments += ["-append", boot.arguments]
    return arguments


def _escaped(value: object) -> str:
    """A value inside an option: QEMU reads two commas as one."""
    return str(value).replace(",", ",,")

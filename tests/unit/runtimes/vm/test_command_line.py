"""The arguments of QEMU."""

from __future__ import annotations

import ipaddress
import itertools
from pathlib import Path

import pytest

from shoal.runtimes.vm.command_line import (
    DirectBoot,
    Guest,
    GuestDisk,
    GuestNetwork,
    PortForward,
    mac_address,
    qemu_arguments,
    tap_name,
    user_network,
)

MAC = "52:54:00:00:00:01"


def arguments(**fields: object) -> list[tuple[str, str]]:
    """Options with their values."""
    guest = Guest(**{"name": "web", "vcpus": 2, "memory_mb": 256, "accelerator": "tcg", **fields})
    words = qemu_arguments(guest)[1:]
    return list(itertools.pairwise(words))


def test_a_guest_has_its_cpus_its_memory_and_no_default_devices() -> None:
    found = arguments()
    for pair in (("-smp", "2"), ("-m", "256"), ("-machine", "q35"), ("-cpu", "max"), ("-display", "none")):
        assert pair in found
    assert "-nodefaults" in qemu_arguments(Guest("web", 1, 1, "tcg"))


def test_kvm_uses_the_cpu_of_the_machine() -> None:
    found = arguments(accelerator="kvm")
    assert ("-accel", "kvm") in found
    assert ("-cpu", "host") in found


def test_a_comma_in_a_path_stays_in_the_path() -> None:
    disk = GuestDisk(Path("/a,b/c"), "raw", read_only=True, serial="x" * 30)
    found = arguments(disks=(disk,))
    assert ("-drive", "if=none,id=disk0,file=/a,,b/c,format=raw,readonly=on") in found
    assert ("-device", f"virtio-blk-pci,drive=disk0,serial={'x' * 20}") in found


def test_ports_are_forwarded_to_the_guests_address() -> None:
    network = GuestNetwork(
        MAC,
        address=ipaddress.ip_interface("192.168.9.2/24"),
        forwards=(PortForward(8080, 80), PortForward(53, 53, "udp")),
    )
    words = (
        "user,id=net0,net=192.168.9.0/24,host=192.168.9.3,dns=192.168.9.4,dhcpstart=192.168.9.2"
        ",hostfwd=tcp::8080-192.168.9.2:80,hostfwd=udp::53-192.168.9.2:53"
    )
    assert ("-netdev", words) in arguments(networks=(network,))


@pytest.mark.parametrize("address", ["10.1.0.1/29", "10.1.0.2/29", "10.1.0.3/29", "10.1.0.6/29"])
def test_gateway_and_name_server_are_not_the_guest(address: str) -> None:
    found = user_network(GuestNetwork(MAC, address=ipaddress.ip_interface(address)))
    assert len({found.guest.ip, found.gateway, found.name_server}) == 3
    assert {found.gateway, found.name_server} <= set(found.guest.network.hosts())


def test_every_interface_has_a_network_of_its_own() -> None:
    first, second = (user_network(GuestNetwork(MAC, number=number)).guest for number in range(2))
    assert str(first) == "10.0.2.15/24"
    assert not first.network.overlaps(second.network)


def test_a_bridge_gets_a_tap_device_that_goes_with_qemu() -> None:
    found = arguments(networks=(GuestNetwork(MAC, bridge="br0"), GuestNetwork(MAC, number=1, tap="tap7")))
    tap = tap_name(MAC)
    assert len(tap) <= 15
    assert ("-netdev", f"tap,id=net0,ifname={tap},script=./bridge0,downscript=no") in found
    assert ("-netdev", "tap,id=net1,ifname=tap7,script=no,downscript=no") in found


def test_a_kernel_is_loaded_directly() -> None:
    found = arguments(direct_boot=DirectBoot("/k", "/i", "console=ttyS0, quiet"))
    assert [pair for pair in found if pair[0] in ("-kernel", "-initrd", "-append")] == [
        ("-kernel", "/k"),
        ("-initrd", "/i"),
        ("-append", "console=ttyS0, quiet"),
    ]


def test_mac_addresses_are_stable_and_differ() -> None:
    found = {mac_address(workload, name) for workload in ("a", "b") for name in ("0", "1", "lan", "wan")}
    assert len(found) == 8
    assert mac_address("a", "0") == mac_address("a", "0")
    assert all(int(mac[:2], 16) & 3 == 2 for mac in found)

"""A network interface stays the same one, whatever an update does to the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.workloads import VmNetwork
from shoal.runtimes.vm.command_line import mac_address
from shoal.runtimes.vm.network_names import KnownNetwork, name_networks, networks_from_json, networks_to_json

LAN, WAN = VmNetwork(bridge="lan"), VmNetwork(bridge="wan")
USER, FIXED = VmNetwork(), VmNetwork(static_ip="10.0.9.5/24")
NAMED, STATIC = VmNetwork(name="data"), VmNetwork(mac="52:54:00:00:00:09")


def names(networks: tuple[VmNetwork, ...], known: tuple[KnownNetwork, ...] = ()) -> list[str]:
    return [each.name for each in name_networks(networks, known)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((), (USER, LAN), ["eth0", "eth1"]),
        ((USER, LAN), (LAN, USER), ["eth1", "eth0"]),
        ((LAN, WAN), (USER, WAN, LAN), ["eth2", "eth1", "eth0"]),
        ((LAN, WAN), (WAN,), ["eth1"]),
        ((USER, FIXED), (FIXED, USER), ["eth1", "eth0"]),
        ((USER, USER), (USER, USER, LAN), ["eth0", "eth1", "eth2"]),
        ((LAN, USER), (VmNetwork(bridge="lan", static_ip="10.1.1.1/24"), USER), ["eth0", "eth1"]),
        ((LAN, USER), (WAN, USER), ["eth0", "eth1"]),
        ((STATIC, LAN), (LAN, VmNetwork(bridge="wan", mac=STATIC.mac)), ["eth1", "eth0"]),
        ((USER, NAMED), (NAMED, USER), ["data", "eth0"]),
        ((USER,), (NAMED, USER), ["data", "eth0"]),
        ((USER,), (VmNetwork(name="eth0"), USER), ["eth0", "eth1"]),
        ((), (USER, VmNetwork(name="eth0")), ["eth1", "eth0"]),
    ],
)
def test_an_interface_is_found_again(
    before: tuple[VmNetwork, ...], after: tuple[VmNetwork, ...], expected: list[str]
) -> None:
    assert names(after, name_networks(before, ())) == expected


def test_addresses_of_earlier_versions_stay() -> None:
    """They were made from the position."""
    (first, second) = name_networks((USER, LAN), ())
    assert (first.mac_seed, second.mac_seed) == ("0", "1")
    assert mac_address("web", "data") != mac_address("web", "0")


NETWORKS = st.lists(
    st.sampled_from([USER, LAN, WAN, FIXED, NAMED, STATIC, VmNetwork(name="eth1"), VmNetwork(tap="tap0")]), max_size=6
).map(lambda found: tuple(dict.fromkeys(found)))


@given(st.lists(NETWORKS, min_size=1, max_size=4))
def test_no_two_interfaces_are_the_same(specs: list[tuple[VmNetwork, ...]]) -> None:
    known: tuple[KnownNetwork, ...] = ()
    for networks in specs:
        before = {(each.name, each.number) for each in known}
        known = networks_from_json(networks_to_json(name_networks(networks, known)))
        assert len({each.name for each in known}) == len({each.number for each in known}) == len(networks)
        assert [each.name for each, wanted in zip(known, networks, strict=True) if wanted.name] == [
            each.name for each in networks if each.name
        ]
        # The same spec again changes nothing, and what has a name keeps its number.
        assert name_networks(networks, known) == known
        kept = {name for name, _ in before} & {each.name for each in known}
        assert {(each.name, each.number) for each in known if each.name in kept} <= before


@pytest.mark.parametrize("damaged", [b"", b"{}x", b"[1]", b'[{"name": 1, "number": 0}]', b'[{"name": "a"}]', b"\xff"])
def test_damage_is_noticed(damaged: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 as all damage is
        networks_from_json(damaged)

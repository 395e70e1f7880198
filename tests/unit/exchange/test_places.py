"""Which transport leads from one process to another."""

from __future__ import annotations

import itertools
import socket
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, PreconditionError
from shoal.exchange.flight.endpoint import FlightEndpoint
from shoal.exchange.hosts import HOST_VARIABLE, HostEndpoint, listening_address, open_endpoint
from shoal.exchange.inbox import Inbox
from shoal.exchange.places import Place, Transport, choose, read_place
from shoal.exchange.unix import UnixEndpoint
from shoal.testing.suites.exchange import GATE, ExchangeSuite, MakeEndpoint, closing_all, read, rows
from tests.services.absence import need_ipv6

HOSTS, PATHS, PORTS = ("", "a", "b"), ("", "/s.sock"), ("", "h:1")
PLACES = [Place(*each) for each in itertools.product(HOSTS, PATHS, PORTS)]


@pytest.mark.parametrize("own", PLACES, ids=str)
@pytest.mark.parametrize("peer", PLACES, ids=str)
def test_the_choice_is_by_equal_host_ids(own: Place, peer: Place) -> None:
    is_near = own.host_id == peer.host_id != ""
    if is_near and own.unix and peer.unix:
        assert choose(own, peer) == (Transport.UNIX, peer.unix)
    elif own.flight and peer.flight:
        assert choose(own, peer) == (Transport.FLIGHT, peer.flight)
    else:
        with pytest.raises(PreconditionError, match="nothing leads from host"):
            choose(own, peer)


@given(st.builds(Place, st.text(max_size=50), st.text(max_size=50), st.text(max_size=50)))
def test_a_place_is_read_back(place: Place) -> None:
    assert read_place(place.text) == place


@pytest.mark.parametrize("text", ["", "exchange:", "exchange:host=a", "exchange:host=a&host=b&unix=&flight=", "x" * 9])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="address of an exchange"):
        read_place(text)


class TestOnOneHost(ExchangeSuite):
    """Both transports, on one host."""

    __test__ = True

    @pytest.fixture
    def endpoints(self) -> Iterator[MakeEndpoint]:
        numbers = itertools.count()
        with tempfile.TemporaryDirectory(prefix="sx") as folder, closing_all() as keep:
            yield lambda gate: keep(
                HostEndpoint(
                    "h",
                    unix=UnixEndpoint(f"{folder}/{next(numbers)}.sock", gate),
                    flight=FlightEndpoint("127.0.0.1", gate),
                )
            )


def test_peers_near_and_far_meet_in_one_inbox() -> None:
    with tempfile.TemporaryDirectory(prefix="sx") as folder, closing_all() as keep:

        def make(number: int, host_id: str) -> HostEndpoint:
            environment = {HOST_VARIABLE: "127.0.0.1", "SHOAL_HOST_ID": host_id}
            found = open_endpoint(f"{folder}/{number}.sock", GATE, environment)
            keep(found)
            assert isinstance(found, HostEndpoint)
            return found

        receiver, near, far = make(0, "a"), make(1, "a"), make(2, "b")
        inbox = Inbox(2, capacity=1000)
        receiver.serve(["near", "far"], inbox)
        near.connect(receiver.address, "near").send(rows(1))
        far.connect(receiver.address, "far").send(rows(1))
        assert [read(inbox).num_rows, read(inbox).num_rows] == [1, 1]
        with pytest.raises(PreconditionError, match="has a sender already"):
            far.connect(receiver.address, "near")


def test_without_an_address_for_others_it_is_a_socket() -> None:
    with tempfile.TemporaryDirectory(prefix="sx") as folder, closing_all() as keep:
        assert isinstance(keep(open_endpoint(f"{folder}/0.sock", GATE, {})), UnixEndpoint)


def test_a_host_behind_another_address_tells_that_one_and_listens_at_its_own() -> None:
    # 192.0.2.1 is no address of this machine, as that of a router is none.
    with tempfile.TemporaryDirectory() as folder, closing_all() as keep:
        found = keep(open_endpoint(f"{folder}/0.sock", GATE, {HOST_VARIABLE: "192.0.2.1", "SHOAL_HOST_ID": "a"}))
        host, _, port = read_place(found.address).flight.rpartition(":")
        assert host == "192.0.2.1"
        socket.create_connection(("127.0.0.1", int(port)), timeout=10).close()


def test_hosts_with_ipv6_addresses_reach_each_other() -> None:
    need_ipv6()
    with tempfile.TemporaryDirectory(prefix="sx") as folder, closing_all() as keep:
        made = [
            keep(open_endpoint(f"{folder}/{number}.sock", GATE, {HOST_VARIABLE: "::1", "SHOAL_HOST_ID": str(number)}))
            for number in range(2)
        ]
        inbox = Inbox(1, capacity=1000)
        made[0].serve(["channel"], inbox)
        made[1].connect(made[0].address, "channel").send(rows(1))
        assert read(inbox).num_rows == 1


@pytest.mark.parametrize(
    ("host", "listens"),
    [
        ("10.1.2.3", "0.0.0.0"),
        ("127.0.0.1", "127.0.0.1"),
        ("fd00::1", "[::]"),
        ("::1", "[::1]"),
        ("node-1", "0.0.0.0"),
    ],
)
def test_others_reach_a_host_unless_its_address_is_that_of_itself(host: str, listens: str) -> None:
    assert listening_address(host) == listens

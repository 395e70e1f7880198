from __future__ import annotations

import itertools
import socket
from types import SimpleNamespace

import pytest

from shoal.core.entropy import SeededEntropy
from shoal.core.errors import InvalidError
from shoal.discovery.hosts import local_address
from shoal.discovery.replicas.records import AddressFamily
from shoal.serving.config.deployment import HIGHEST_FREE, LOWEST_FREE, Role, ServerPorts, deploy, free_ports
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings

BASE = {"bzid": "gip", "base_name": "m", "base_path": "/d"}
MIXED = ServingSettings(**BASE, deploy_type="mixed")
UNIFIED = ServingSettings(bzid="gip", deploy_type="unified", agent_version=3)
ALL_PORTS = {"PORT": "100", **{f"PORT{number}": str(100 + number) for number in range(1, 11)}}


def made(settings: ServingSettings, **env: str):
    counter = itertools.count(9000)
    return deploy(settings, read_environment(env), take_ports=lambda count: tuple(next(counter) for _ in range(count)))


def ports(deployment) -> dict[str, ServerPorts]:
    return {server.name: server.ports for server in deployment.servers}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ServingSettings(**BASE, deploy_type="mixed", dense_alone=True),
            {"ps": (105, 106, 107), "dense": (108, 109, 110), "entry": (103, 104, 100)},
        ),
        (MIXED, {"ps": (105, 106, 107), "entry": (103, 104, 100)}),
        (
            ServingSettings(**BASE, deploy_type="ps", stand_alone_serving=True),
            {"ps": (105, 106, 107), "entry": (103, 104, 100)},
        ),
        (ServingSettings(**BASE, deploy_type="entry"), {"entry": (103, 104, 100)}),
        (ServingSettings(**BASE, server_type="ps"), {"ps": (103, 104, 100)}),
        (
            ServingSettings(**BASE, deploy_type="dense", dense_alone=True, dense_service_num=2),
            {"dense": (103, 104, 100), "dense1": (9000, 9001, 9002)},
        ),
        (UNIFIED, {"unified": (103, 104, 100)}),
    ],
    ids=["mixed with dense", "mixed", "stand-alone", "entry", "ps", "dense", "unified"],
)
def test_the_ports_of_the_platform(settings, expected):
    deployment = made(settings, **ALL_PORTS)
    assert ports(deployment) == {name: ServerPorts(*numbers) for name, numbers in expected.items()}
    assert deployment.agent_port == 102


def test_the_file_comes_after_the_environment_except_for_the_agent():
    settings = ServingSettings(**BASE, deploy_type="entry", tfs_entry_port=1, tfs_entry_http_port=2, agent_port=3)
    deployment = made(settings, PORT3="103", PORT2="102")
    assert ports(deployment) == {"entry": ServerPorts(grpc=103, http=2, archon=9000)}
    assert deployment.agent_port == 3


def test_free_ports_are_all_different_and_free():
    with socket.socket() as taken:
        first = free_ports(1, entropy=SeededEntropy(5))[0]
        taken.bind(("", first))
        taken.listen()
        found = free_ports(20, entropy=SeededEntropy(5))
    assert len(set(found)) == 20
    assert first not in found
    assert all(LOWEST_FREE <= port <= HIGHEST_FREE for port in found)


def test_two_listeners_on_one_port_are_refused():
    with pytest.raises(InvalidError, match="is the port of"):
        made(ServingSettings(**BASE, deploy_type="entry", agent_port=5, tfs_entry_port=5))


@pytest.mark.parametrize(
    ("in_file", "env", "expected"),
    [
        (None, {}, (0, 1)),
        (1, {}, (0, 1)),
        (3, {"SHARD_ID": "2"}, (2, 3)),
        (None, {"SHARD_ID": "2", "MONOLITH_HOST_SHARD_N": "3"}, (2, 3)),
        (3, {"SHARD_ID": "0", "MONOLITH_HOST_SHARD_N": "3"}, (0, 3)),
        (None, {"SHARD_ID": "2", "byterec_host_shard_n": "3"}, (2, 3)),
        (None, {"SHARD_ID": "2", "MONOLITH_HOST_SHARD_N": "4", "byterec_host_shard_n": "3"}, (2, 4)),
    ],
)
def test_the_shard(in_file, env, expected):
    deployment = made(ServingSettings(**BASE, deploy_type="ps", num_shard=in_file, num_ps=7), **env)
    assert (deployment.shard_id, deployment.shard_num) == expected
    assert deployment.ps_indexes() == tuple(range(expected[0], 7, expected[1]))


@pytest.mark.parametrize(
    ("in_file", "env", "field", "rule"),
    [
        (3, {}, "SHARD_ID", "is required: there are 3 shards"),
        (3, {"MONOLITH_HOST_SHARD_N": "4", "SHARD_ID": "0"}, "num_shard", "must be equal to MONOLITH_HOST_SHARD_N"),
        (None, {"SHARD_ID": "1"}, "SHARD_ID", "must be less than the number of shards"),
        (None, {"SHARD_ID": "one"}, "SHARD_ID", "must be a whole number"),
        (None, {"PORT3": "99999"}, "PORT3", "must be a whole number between 0 and 65,535"),
        (None, {"MY_CPU_LIMIT": "many"}, "MY_CPU_LIMIT", "must be a number"),
        (None, {"TCE_CLUSTER": "a/b"}, "TCE_CLUSTER", "must not contain"),
        (None, {"MY_POD_NAME": "a:b"}, "MY_POD_NAME", "must not contain"),
        (None, {"TCE_INTERNAL_IDC": ".."}, "TCE_INTERNAL_IDC", "must not"),
        (None, {"MY_HOST_IP": "10.0.0.1:8500"}, "MY_HOST_IP", "must be an address or the name of a host"),
        (None, {"MY_HOST_IP": "two words"}, "MY_HOST_IP", "must be an address or the name of a host"),
        (None, {"MY_POD_IP": "[]"}, "MY_POD_IP", "must be an address or the name of a host"),
        (None, {"MY_POD_IP": "0.0.0.0"}, "MY_POD_IP", "must be an address that peers can call"),
        (None, {"MY_HOST_IPV6": "[::]"}, "MY_HOST_IPV6", "must be an address that peers can call"),
        (None, {"MY_HOST_IPV6": "10.0.0.1"}, "MY_HOST_IPV6", "must be an IPv6 address"),
    ],
)
def test_a_bad_environment(in_file, env, field, rule):
    with pytest.raises(InvalidError) as caught:
        made(ServingSettings(**BASE, deploy_type="ps", num_shard=in_file), **env)
    assert any(each.field == field and rule in each.rule for each in caught.value.problems)


@pytest.mark.parametrize(
    ("given", "host"),
    [("10.0.0.1", "10.0.0.1"), ("node-1.lan", "node-1.lan"), ("fd00::1", "fd00::1"), ("[fd00::1]", "fd00::1")],
)
def test_the_address_that_peers_are_told(given, host):
    assert made(MIXED, MY_HOST_IP=given).advertised_host == host


@pytest.mark.parametrize(
    ("settings", "env", "replica"),
    [
        (MIXED, {"MY_POD_NAME": "pod-abc-1"}, 213158916079),
        (MIXED, {"MY_POD_NAME": "pod-abc-1", "REPLICA_ID": "4"}, 213158916079),
        (MIXED, {}, -1),
        (UNIFIED, {"MY_POD_NAME": "pod-abc-1", "REPLICA_ID": "4"}, 4),
        (UNIFIED, {"MY_POD_NAME": "pod-abc-1"}, 213158916079),
    ],
)
def test_the_replica_id(settings, env, replica):
    assert made(settings, **env).replica_id == replica


def test_dense_services_of_one_machine_have_ids_of_their_own():
    settings = ServingSettings(**BASE, deploy_type="dense", dense_alone=True, dense_service_num=3)
    deployment = made(settings, REPLICA_ID="5")
    assert [deployment.replica_of(server) for server in deployment.servers] == [15, 16, 17]
    assert [deployment.replica_of(server, -1) for server in deployment.servers] == [-1, -1, -1]
    assert [server.name for server in deployment.servers_of(Role.DENSE)] == ["dense", "dense1", "dense2"]


@pytest.mark.parametrize(
    ("env", "found", "family"),
    [
        ({}, "10.0.0.1", AddressFamily.IPV4),
        ({}, "fd00::1", AddressFamily.IPV6),
        ({}, "localhost", AddressFamily.IPV4),
        ({"MY_HOST_IPV6": "fd00::5"}, "10.0.0.1", AddressFamily.IPV4),
        ({"MY_HOST_IPV6": "fd00::5"}, "fd00::1", AddressFamily.IPV6),
        ({"MY_HOST_IP": "10.0.0.5"}, "fd00::1", AddressFamily.IPV4),
        ({"MY_POD_IP": "fd00::5"}, "10.0.0.1", AddressFamily.IPV6),
    ],
)
def test_a_machine_with_ipv6_alone_calls_ipv6_addresses(monkeypatch, env, found, family):
    monkeypatch.setattr("shoal.discovery.hosts.local_address", lambda: found)
    assert made(MIXED, **env).address_family is family


def test_the_address_of_a_machine_without_a_way_out(monkeypatch):
    def interface(family, address):
        return SimpleNamespace(family=family, address=address)

    def no_socket(*_args):
        raise OSError

    monkeypatch.setattr("socket.socket", no_socket)
    up = SimpleNamespace(isup=True)
    both = [interface(socket.AF_INET6, "fd00::1"), interface(socket.AF_INET, "10.0.0.1")]
    monkeypatch.setattr("psutil.net_if_stats", lambda: {"lo": up, "eth0": up})
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"lo": [interface(socket.AF_INET, "127.0.0.1")], "eth0": both})
    assert local_address() == "10.0.0.1"
    both.pop()
    assert local_address() == "fd00::1"
    both[0] = interface(socket.AF_INET6, "fe80::1%eth0")
    assert local_address() == "localhost"


def test_names_in_the_tree():
    env = {"TCE_INTERNAL_IDC": "LF", "TCE_CLUSTER": "Second", "TCE_LOGICAL_CLUSTER": "Default", "TCE_PSM": "p.s.m"}
    deployment = made(ServingSettings(**BASE, deploy_type="mixed", dc_aware=True), **env, MY_POD_NAME="pod-1")
    assert deployment.path_prefix == "/gip/service/m/lf:default"
    assert deployment.container_cluster == "p.s.m;lf;default"
    assert deployment.container_id == "pod-1"


def test_names_in_the_tree_of_an_unknown_place():
    deployment = made(ServingSettings(**BASE, deploy_type="mixed", dc_aware=True), MY_HOST_IPV6="[fe80::1]")
    assert deployment.location == ""
    assert deployment.path_prefix == "/gip/service/m"
    assert deployment.container_cluster == "unknown;None;None"
    assert deployment.advertised_host == "fe80::1"
    assert deployment.container_id == "fe80--1"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [(None, "/gip/layouts/default"), ("prod", "/gip/layouts/prod"), ("/other/layouts/x", "/other/layouts/x")],
)
def test_the_layout(pattern, path):
    settings = ServingSettings(bzid="gip", deploy_type="unified", agent_version=3, layout_pattern=pattern)
    assert made(settings).layout_path == path


def test_filters_know_the_shard():
    settings = ServingSettings(
        bzid="gip", deploy_type="unified", agent_version=3, layout_filters=("ps_{i}; i % ${shard_num} == ${shard_id}",)
    )
    (each,) = made(settings, SHARD_ID="1", MONOLITH_HOST_SHARD_N="2").filters
    assert [each.accepts(f"ps_{index}") for index in range(3)] == [False, True, False]


def test_the_secret_is_not_printed():
    assert "hunter2" not in repr(read_environment({"ZK_AUTH": "me:hunter2"}))
    with pytest.raises(InvalidError, match="ZK_AUTH: must be user:password") as caught:
        read_environment({"ZK_AUTH": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_proxy_runs_beside_entry_only():
    with_proxy = ServingSettings(**BASE, deploy_type="entry", proxy_binary="/bin/proxy")
    assert made(with_proxy).proxy_port
    assert not made(ServingSettings(**BASE, deploy_type="ps", proxy_binary="/bin/proxy")).proxy_port
    assert not made(ServingSettings(**BASE, deploy_type="entry")).proxy_port

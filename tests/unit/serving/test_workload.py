"""A serving agent as a workload: what it takes from the environment that its node agent gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError
from shoal.discovery.embedded import EmbeddedStore
from shoal.discovery.remote import RemoteStore
from shoal.discovery.zookeeper import ZookeeperStore
from shoal.runtimes.base import port_variable
from shoal.serving.config.deployment import deploy
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings
from shoal.serving.server import ServeOptions, _open_store
from shoal.wire.local import LocalNetwork

UNIFIED = ServingSettings(bzid="g", deploy_type="unified", agent_version=3)
MIXED = ServingSettings(bzid="g", base_name="m", base_path="/d", deploy_type="mixed", dense_alone=True)


def with_ports(settings: ServingSettings, *names: str, **env: str):
    ports = {port_variable(name): str(9000 + number) for number, name in enumerate(names)}
    return deploy(settings, read_environment({**ports, **env}))


def test_named_ports_are_those_of_the_roles():
    made = with_ports(UNIFIED, "agent", "grpc", "http", "archon")
    (server,) = made.servers
    assert (made.agent_port, server.ports.grpc, server.ports.http, server.ports.archon) == (9000, 9001, 9002, 9003)
    made = with_ports(MIXED, "grpc", "ps-grpc", "ps-http", "ps-archon", "dense-grpc", "dense-http", "dense-archon")
    ps, dense, entry = made.servers
    assert entry.ports.grpc == 9000
    assert (ps.ports.grpc, ps.ports.http, ps.ports.archon) == (9001, 9002, 9003)
    assert (dense.ports.grpc, dense.ports.http, dense.ports.archon) == (9004, 9005, 9006)


def test_what_the_platform_says_comes_first():
    made = with_ports(UNIFIED, "grpc", "agent", PORT3="8500", SHOAL_WORKLOAD_ID="w-1", MY_POD_NAME="pod-1")
    assert (made.servers[0].ports.grpc, made.agent_port, made.container_id) == (8500, 9001, "pod-1")
    made = with_ports(UNIFIED, SHOAL_WORKLOAD_ID="w-1")
    assert made.container_id == "w-1"
    assert made.replica_id == read_environment({"MY_POD_NAME": "w-1"}).hashed_pod_name


def test_a_bad_named_port_is_named():
    with pytest.raises(InvalidError, match="SHOAL_PORT_GRPC"):
        read_environment({"SHOAL_PORT_GRPC": "x"})


@pytest.mark.parametrize(
    ("zk_servers", "control", "own", "kind"),
    [
        ("127.0.0.1:1", (), False, ZookeeperStore),
        ("127.0.0.1:1", ("127.0.0.1:2",), True, ZookeeperStore),
        (None, ("127.0.0.1:2",), True, RemoteStore),
        (None, ("127.0.0.1:2",), False, RemoteStore),
        (None, (), True, EmbeddedStore),
    ],
)
async def test_which_tree_is_used(zk_servers, control, own, kind):
    deployment = deploy(
        ServingSettings(bzid="g", base_name="m", base_path="/d", deploy_type="mixed", zk_servers=zk_servers),
        read_environment({}),
    )
    options = ServeOptions("agent.conf", Path(), control=control, prefers_zookeeper=own)
    async with _open_store(deployment, options, LocalNetwork().transport("x"), SystemClock()) as store:
        assert isinstance(store, kind)


async def test_a_tree_that_was_named_is_not_ignored():
    deployment = deploy(ServingSettings(bzid="g", deploy_type="unified", agent_version=3, zk_servers="h:1"),
                        read_environment({}))  # fmt: skip
    options = ServeOptions("agent.conf", Path(), control=("127.0.0.1:2",))
    with pytest.raises(InvalidError, match="together with --control"):
        async with _open_store(deployment, options, LocalNetwork().transport("x"), SystemClock()):
            pass

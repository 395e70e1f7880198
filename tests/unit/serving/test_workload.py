"""A serving agent as a workload: what it takes from the environment that its node agent gives it."""

from __future__ import annotations

import re
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
from shoal.serving.server import ServeOptions, _open_store, make_deployment
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


def test_a_tree_that_was_named_is_not_ignored(tmp_path):
    conf = tmp_path / "agent.conf"
    conf.write_text("bzid g\ndeploy_type unified\nagent_version 3\nzk_servers h:1\ntfs_binary /bin/true\n")
    options = ServeOptions(str(conf), tmp_path, control=("127.0.0.1:2",))
    with pytest.raises(InvalidError, match="together with --control"):
        make_deployment(options, {})
    conf.write_text("bzid g\ndeploy_type unified\nagent_version 3\ntfs_binary /bin/true\n")
    with pytest.raises(InvalidError, match="is required with deploy_type unified"):
        make_deployment(ServeOptions(str(conf), tmp_path), {})
    assert make_deployment(options, {}).deploy_type == "unified"


def test_programs_and_the_tree_are_checked_at_once(tmp_path):
    conf, plain = tmp_path / "agent.conf", tmp_path / "proxy"
    plain.write_text("not a program")
    lines = (
        "bzid g", "base_name m", "base_path /x", "deploy_type entry", "tfs_binary /no/such", f"proxy_binary {plain}"
    )  # fmt: skip
    conf.write_text("\n".join(lines))
    with pytest.raises(InvalidError) as caught:
        make_deployment(ServeOptions(str(conf), tmp_path), {})
    assert [(each.field, each.rule) for each in caught.value.problems] == [
        ("tfs_binary", "must name a program that exists"),
        ("proxy_binary", "must name a program that can be executed"),
        ("zk_servers", "is required with deploy_type entry, which does not serve everything by itself"),
    ]


@pytest.mark.parametrize(
    ("conf", "env", "said"),
    [
        ("bzid g\ndeploy_type unified\nagent_version 2\n", {}, "agent.conf:3: agent_version: must be 1 or 3"),
        ("bzid g\ninclude agent.conf\n", {}, "must not include itself"),
        (
            "bzid g\ndeploy_type unified\nagent_version 3\nnum_shard 2\n",
            {},
            "SHARD_ID: is required: there are 2 shards",
        ),
        ("bzid g\ndeploy_type unified\nagent_version 3\n", {}, "zk_servers: is required"),
        (
            "bzid g\ndeploy_type unified\nagent_version 3\nzk_servers here\n",
            {},
            "agent.conf:4: zk_servers: must be HOST:PORT",
        ),
        (
            "bzid g\nstand_alone_serving 1\nbase_name m\nbase_path /x\n",
            {"MONOLITH_TFS_BINARY": "/no/such/program"},
            "MONOLITH_TFS_BINARY: must name a program that exists",
        ),
        (
            "bzid g\ndeploy_type ps\nbase_name m\nbase_path /x\nzk_servers h:1\n",
            {},
            "MY_POD_NAME: or REPLICA_ID is required with deploy_type ps",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_or_its_variable(tmp_path, conf, env, said):
    (tmp_path / "agent.conf").write_text(conf)
    with pytest.raises(InvalidError, match=re.escape(said)):
        make_deployment(ServeOptions(str(tmp_path / "agent.conf"), tmp_path), {"MONOLITH_TFS_BINARY": "true", **env})

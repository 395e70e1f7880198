"""Models that a scheduler published, on fake model servers."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidError, NotFoundError
from shoal.discovery.mirror.records import PublishedModel, PublishType
from shoal.discovery.replicas.records import ModelState
from shoal.serving.config.deployment import Role, deploy
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings
from shoal.serving.models.client import ModelServerClient
from shoal.serving.models.monitor import ModelServerMonitor, published_configs, published_models
from shoal.testing.model_server import FakeModelServer
from shoal.wire.local import LocalNetwork

SETTINGS = ServingSettings(bzid="b", base_name="m", base_path="/d", deploy_type="mixed")


def published(name: str = "test_1", *sub_models: str, **changes) -> PublishedModel:
    paths = {each: f"/exports/{each}/17" for each in sub_models or ("entry", "ps_0", "ps_3")}
    return PublishedModel(shard_id=1, replica_id=2, model_name=name, num_ps=5, sub_models=paths, **changes)


@pytest.fixture
async def stage():
    network = LocalNetwork()
    servers = {role: FakeModelServer("model_config_list {}") for role in (Role.ENTRY, Role.PS)}
    clients = {}
    for role, server in servers.items():
        address = await server.start(network.transport(role.value), f"{role.value}:0")
        clients[role] = ModelServerClient(network.transport("monitor").connect(address))
    yield ModelServerMonitor(deploy(SETTINGS, read_environment({})), clients), servers
    for client in clients.values():
        await client.close()
    for server in servers.values():
        await server.stop()


@pytest.mark.parametrize(
    ("dense_alone", "fixed", "versions"),
    [
        (False, False, {"m:dense_0": 17, "m:entry": None, "m:ps_0": 17}),
        (True, False, {"m:dense_0": None, "m:entry": 17, "m:ps_0": 17}),
        (False, True, {"m:dense_0": 17, "m:entry": 17, "m:ps_0": 17}),
    ],
)
def test_the_dense_part_follows_the_newest_version(dense_alone, fixed, versions):
    model = published("m", "entry", "ps_0", "dense_0")
    found = published_models(model, dense_alone=dense_alone, fix_dense_version=fixed)
    assert {each.name: each.version for each in found} == versions


def test_configs_are_made_for_each_role():
    models = [published("a"), published("b", "ps_1"), published("c", ptype=PublishType.UNLOAD)]
    configs = published_configs(models, dense_alone=False)
    names = {role: [model.name for model in config.model_config_list.config] for role, config in configs.items()}
    assert names == {Role.ENTRY: ["a:entry"], Role.PS: ["a:ps_0", "a:ps_3", "b:ps_1"]}
    (entry,) = configs[Role.ENTRY].model_config_list.config
    assert entry.base_path == "/exports/entry"
    assert entry.model_version_policy.latest.num_versions == 1
    assert list(configs[Role.PS].model_config_list.config[0].model_version_policy.specific.versions) == [17]


@pytest.mark.parametrize(("sub_model", "path"), [("proxy_0", "/x/1"), ("ps_0", "/x/latest"), ("ps_0", "")])
def test_a_bad_publication(sub_model, path):
    model = PublishedModel(model_name="m", sub_models={sub_model: path})
    with pytest.raises(InvalidError):
        list(published_models(model, dense_alone=False))


async def test_models_are_loaded_and_removed(stage):
    monitor, servers = stage
    before = await monitor.status_of_published(published())
    assert {(status.version, status.error_code) for _, status in before.values()} == {(-1, 5)}
    for role, config in published_configs([published()], dense_alone=False).items():
        await monitor.reload(role, config)
    after = await monitor.status_of_published(published())
    assert {name: (path, status.version) for name, (path, status) in after.items()} == {
        "test_1:entry": ("/exports/entry/17", 1),
        "test_1:ps_0": ("/exports/ps_0/17", 17),
        "test_1:ps_3": ("/exports/ps_3/17", 17),
    }
    assert all(status.is_available for _, status in after.values())
    assert [each.state for each in await monitor.status("test_1:ps_0")] == [ModelState.AVAILABLE]

    for role, config in published_configs([published("other", "entry", "ps_1")], dense_alone=False).items():
        await monitor.reload(role, config)
    gone = await monitor.status_of_published(published())
    assert {status.version for _, status in gone.values()} == {-1}
    assert servers[Role.ENTRY].models.names() == ("default", "other:entry")


async def test_a_role_that_is_not_here(stage):
    monitor, _ = stage
    assert await monitor.status("m:dense_0") == ()
    with pytest.raises(NotFoundError):
        await monitor.status_of_published(published("m", "dense_0"))

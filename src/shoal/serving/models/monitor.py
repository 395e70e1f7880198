"""Asks the model servers of one machine about models that a scheduler published, and tells them what to serve.

The scheduler's tree (`shoal.discovery.mirror`) names a version directory for each sub model: `entry` and `dense` follow
the newest version, others stay at the one that was published. `published_models` and `published_configs` decide,
`ModelServerMonitor` calls. Used by programs that schedule models with `agent_version` 2 data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shoal.core.errors import InvalidError, NotFoundError, problem
from shoal.discovery.mirror.records import PublishedModel, PublishType
from shoal.serving.config.deployment import Deployment, Role
from shoal.serving.models.client import ModelServerClient
from shoal.serving.models.configs import DEFAULT_MODEL, default_model, is_version, model_config, server_config
from shoal.serving.models.lifecycle import VersionStatus
from shoal.wire.pb.tensorflow import serving_pb2 as pb


@dataclass(frozen=True, slots=True)
class PublishedSubModel:
    """One sub model of a published model."""

    #: As model servers know it: `model:sub_model`.
    name: str
    role: Role
    #: The directory of the published version.
    path: str
    #: None when it follows the newest.
    version: int | None

    @property
    def base_path(self) -> str:
        """The directory with every version."""
        return self.path.rstrip("/").rpartition("/")[0]


def role_of(sub_model: str) -> Role:
    """The role that serves a sub model such as `ps_3`. Raises `InvalidError`."""
    kind = sub_model.lower().partition("_")[0]
    if kind not in {Role.PS.value, Role.ENTRY.value, Role.DENSE.value}:
        raise InvalidError([problem("sub_model", sub_model, "must begin with ps, entry or dense")])
    return Role(kind)


def published_models(
    model: PublishedModel, *, dense_alone: bool, fix_dense_version: bool = False
) -> Iterator[PublishedSubModel]:
    """The sub models of a published model, by name. Raises `InvalidError`.

    The dense part (`dense`, or `entry` where there is no dense service) follows the newest version unless
    `fix_dense_version` keeps it at the published one.
    """
    newest = Role.DENSE if dense_alone else Role.ENTRY
    for sub_model, path in sorted((model.sub_models or {}).items()):
        role = role_of(sub_model)
        name = path.rstrip("/").rpartition("/")[2]
        if not is_version(name):
            raise InvalidError([problem(f"sub_models.{sub_model}", path, "must end with a version number")])
        follows = role is newest and not fix_dense_version
        yield PublishedSubModel(f"{model.model_name}:{sub_model}", role, path, None if follows else int(name))


def published_configs(
    models: Iterable[PublishedModel], *, dense_alone: bool, fix_dense_version: bool = False
) -> dict[Role, pb.ModelServerConfig]:
    """The configuration of each role for the models that are published to be loaded."""
    made: dict[Role, list[pb.ModelConfig]] = {}
    for model in models:
        if model.ptype is PublishType.UNLOAD:
            continue
        for each in published_models(model, dense_alone=dense_alone, fix_dense_version=fix_dense_version):
            policy, versions = ("latest", 1) if each.version is None else ("specific", each.version)
            made.setdefault(each.role, []).append(
                model_config(each.name, each.base_path, policy=policy, versions=versions)
            )
    return {role: server_config(configs) for role, configs in made.items()}


class ModelServerMonitor:
    """The model servers of one machine, by role."""

    def __init__(self, deployment: Deployment, clients: Mapping[Role, ModelServerClient]) -> None:
        self._dense_alone = deployment.settings.dense_alone
        self._clients = clients

    async def status_of_published(
        self, model: PublishedModel, *, fix_dense_version: bool = False
    ) -> dict[str, tuple[str, VersionStatus]]:
        """The version directory and the state of each sub model, by the name that model servers know."""
        wanted = list(published_models(model, dense_alone=self._dense_alone, fix_dense_version=fix_dense_version))
        found = await asyncio.gather(*(self._client(each.role).status(each.name, each.version) for each in wanted))
        return {each.name: (each.path, status) for each, status in zip(wanted, found, strict=True)}

    async def status(
        self, name: str, version: int | str | None = None, signature_name: str = ""
    ) -> tuple[VersionStatus, ...]:
        """The states of a model's versions; nothing when no role of this machine serves it."""
        role = role_of(name.rpartition(":")[2])
        client = self._clients.get(role)
        return () if client is None else await client.versions(name, version, signature_name)

    async def reload(self, role: Role, config: pb.ModelServerConfig) -> None:
        """Have a model server serve these models. One that would have none keeps the model `default`."""
        wanted = pb.ModelServerConfig()
        wanted.CopyFrom(config)
        names = {model.name for model in wanted.model_config_list.config}
        if DEFAULT_MODEL not in names:
            wanted.model_config_list.config.append(default_model())
        await self._client(role).reload(wanted)

    def _client(self, role: Role) -> ModelServerClient:
        client = self._clients.get(role)
        if client is None:
            raise NotFoundError("model server of role", role.value)
        return client

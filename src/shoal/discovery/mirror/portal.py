"""Requests models to be loaded or unloaded, and shows what became of it. Called by `shoal model`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError
from shoal.discovery.documents import read_record, write_record
from shoal.discovery.errors import NodeExistsError, NoNodeError
from shoal.discovery.mirror.records import PortalModel, SchedulerPaths
from shoal.discovery.names import check_part
from shoal.discovery.replicas.paths import parse_replica_name, parse_task_name
from shoal.discovery.replicas.records import ModelState, Replica
from shoal.discovery.store import CoordinationStore


class Branch(enum.StrEnum):
    """A part of the scheduler's tree."""

    PORTAL = "portal"
    PUBLISH = "publish"
    RESOURCE = "resource"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """How far a model is."""

    #: Whether it is requested.
    portal: bool = False
    #: Whether it is assigned to an agent.
    publish: bool = False
    #: The states of its replicas, by `type:task:replica`.
    service: dict[str, ModelState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Portal:
    """The requests of a namespace."""

    store: CoordinationStore
    paths: SchedulerPaths

    async def load(self, model: PortalModel) -> None:
        """Request a model. Raises `PreconditionError` for one that is requested already."""
        path = self.paths.portal_model(model.model_name or "")
        try:
            await self.store.create(path, write_record(model), makepath=True)
        except NodeExistsError:
            raise PreconditionError(
                f"model {model.model_name!r} is requested already",
                hint="unload it first: `shoal model unload`",
                model_name=model.model_name,
            ) from None

    async def unload(self, model_name: str) -> None:
        """Withdraw the request for a model. Raises `NotFoundError`."""
        try:
            await self.store.delete(self.paths.portal_model(model_name))
        except NoNodeError:
            raise NotFoundError("model", model_name, hint="it is not requested") from None

    async def status(self, model_name: str) -> LoadStatus:
        """How far a model is."""
        check_part(model_name, field="model_name")
        requested = await self.store.exists(self.paths.portal_model(model_name)) is not None
        published = [name.split(":", 2)[2:] for name in await self._children(self.paths.publish)]
        return LoadStatus(requested, [model_name] in published, await self._states(model_name))

    async def clean(self, branch: Branch) -> int:
        """Delete everything below a branch, and return how many nodes were directly below it."""
        root = f"/{self.paths.bzid}/{branch}"
        names = await self._children(root)
        for name in names:
            try:
                await self.store.delete(f"{root}/{name}", recursive=True)
            except NoNodeError:
                continue
        return len(names)

    async def _states(self, model_name: str) -> dict[str, ModelState]:
        root = f"{self.paths.service}/{model_name}"
        states = {}
        for task in await self._children(root):
            if parse_task_name(task) is None:
                continue
            for replica in await self._children(f"{root}/{task}"):
                if parse_replica_name(replica) is not None:
                    states[f"{task}:{replica}"] = await self._state(f"{root}/{task}/{replica}")
        return states

    async def _state(self, path: str) -> ModelState:
        try:
            return read_record(Replica, (await self.store.get(path)).data, at=path).stat
        except (InvalidError, NoNodeError):
            return ModelState.UNKNOWN

    async def _children(self, path: str) -> tuple[str, ...]:
        try:
            return await self.store.children(path)
        except NoNodeError:
            return ()

"""Serves `AgentService` from a tree in the same process, for clients that have no serving agent beside them.

A serving agent answers for its own namespace. This answers for every namespace of the tree; headers of the call say
for which one, and as an agent of which version:

    x-shoal-bzid             the namespace; not needed in a tree with one
    x-shoal-agent-version    1, 2 or 3. Otherwise 3 where models are declared, 2 where there is a portal, else 1
    x-shoal-base-name        the model, for version 1; not needed in a namespace with one

Of a replica with two addresses a caller gets the IPv4 one, unless this machine has IPv6 alone, and so its callers.
Views are made when they are first asked for, and the ones that were not asked for longest are dropped. Called by the
control plane that leads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import InvalidError, NotFoundError, Problem, problem
from shoal.discovery import services
from shoal.discovery.embedded.owner import TreeOwner
from shoal.discovery.embedded.watches import TreeWatches
from shoal.discovery.grants import RESERVED
from shoal.discovery.hosts import family_of
from shoal.discovery.mirror.mirror import Mirror
from shoal.discovery.mirror.records import SchedulerPaths
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.names import check_node_name
from shoal.discovery.replicas.watcher import ReplicaWatcher
from shoal.discovery.service import ServingAgentHandlers
from shoal.discovery.store import ROOT
from shoal.discovery.views import AddressView, MirrorAddresses, ModelAddresses, ReplicaAddresses
from shoal.wire.methods import SERVING_BASE_NAME_HEADER, SERVING_BZID_HEADER, SERVING_VERSION_HEADER
from shoal.wire.pb.monolith.serving import agent_service_pb2 as pb
from shoal.wire.transport import Call, Prepared

#: How many views are kept.
MAX_VIEWS = 64
#: How long a call waits for a new view.
LOADED_WITHIN = 2.0

_SAVED_MODELS, _PORTAL, _SERVICE = "saved_models", "portal", "service"
#: The tops of the tree that belong to the control plane.
_NO_NAMESPACES = frozenset({services.ROOT, RESERVED})
#: What a namespace has one of.
_MARKS = frozenset({_SAVED_MODELS, _PORTAL, "publish", _SERVICE, "layouts", "binding", "container_service"})


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """What one view answers for."""

    bzid: str
    version: int
    #: Of version 1 only.
    base_name: str = ""


@dataclass(slots=True)
class _Kept:
    source: ServiceMap | Mirror | ReplicaWatcher
    handlers: ServingAgentHandlers


class AddressDirectory:
    """The handlers of `AgentService` for a whole tree."""

    def __init__(self, owner: TreeOwner) -> None:
        self._owner = owner
        self._watches = TreeWatches(owner)
        self._kept: OrderedDict[Scope, _Kept] = OrderedDict()

    def close(self) -> None:
        """Follow nothing any longer."""
        for kept in self._kept.values():
            kept.source.close()
        self._kept.clear()
        self._watches.close()

    async def heart_beat(self, request: pb.HeartBeatRequest, call: Call) -> Prepared:
        """The addresses of every task of a type."""
        return await (await self._handlers(call)).heart_beat(request, call)

    async def get_replicas(self, request: pb.GetReplicasRequest, call: Call) -> pb.GetReplicasResponse:
        """The addresses of one task. In version 1 the request may name the model as well."""
        handlers = await self._handlers(call, base_name=request.model_name)
        return await handlers.get_replicas(request, call)

    async def get_resource(self, _request: pb.GetResourceRequest, _call: Call) -> pb.GetResourceResponse:
        """Nothing, as agents of version 1 answer: what is free is known to the serving agent of each machine."""
        return pb.GetResourceResponse()

    async def _handlers(self, call: Call, *, base_name: str = "") -> ServingAgentHandlers:
        scope = self.scope_of(call.metadata, base_name=base_name)
        kept = self._kept.get(scope)
        if kept is None:
            kept = self._kept[scope] = self._follow(scope)
            while len(self._kept) > MAX_VIEWS:
                self._kept.popitem(last=False)[1].source.close()
        self._kept.move_to_end(scope)
        if not kept.source.is_loaded:
            # Its handlers answer UNAVAILABLE until it is.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOADED_WITHIN):
                    await kept.source.wait_loaded()
        return kept.handlers

    def _follow(self, scope: Scope) -> _Kept:
        view: AddressView
        source: ServiceMap | Mirror | ReplicaWatcher
        if scope.version == 3:
            source = ServiceMap(self._watches, ModelPaths(scope.bzid))
            view = ModelAddresses(source)
        elif scope.version == 2:
            source = Mirror(self._watches, SchedulerPaths(scope.bzid))
            view = MirrorAddresses(source, family=family_of())
        else:
            source = ReplicaWatcher(self._watches, scope.bzid, scope.base_name)
            view = ReplicaAddresses(source, family=family_of())
        source.start()
        return _Kept(source, ServingAgentHandlers(view))

    # ------------------------------------------------------------------------------------------------
    # What is asked for

    def scope_of(self, metadata: Mapping[str, str], *, base_name: str = "") -> Scope:
        """What a call asks about. Raises `InvalidError` or `NotFoundError`."""
        bzid = self._bzid(metadata.get(SERVING_BZID_HEADER, ""))
        version = self._version(bzid, metadata.get(SERVING_VERSION_HEADER, ""))
        if version != 1:
            return Scope(bzid, version)
        named = metadata.get(SERVING_BASE_NAME_HEADER, "") or base_name
        return Scope(bzid, version, self._base_name(bzid, named))

    def _bzid(self, given: str) -> str:
        if given:
            check_node_name(given, field=SERVING_BZID_HEADER)
            if not self._is_namespace(given):
                raise NotFoundError("namespace", given, hint="nothing is declared or registered in it")
            return given
        found = [name for name in self._names(ROOT) if f"/{name}" not in _NO_NAMESPACES and self._is_namespace(name)]
        if len(found) == 1:
            return found[0]
        raise _unclear(SERVING_BZID_HEADER, "namespace", found)

    def _version(self, bzid: str, given: str) -> int:
        if given:
            if given not in {"1", "2", "3"}:
                raise InvalidError([problem(SERVING_VERSION_HEADER, given, "must be 1, 2 or 3")])
            return int(given)
        names = self._names(f"/{bzid}")
        if _SAVED_MODELS in names:
            return 3
        return 2 if _PORTAL in names else 1

    def _base_name(self, bzid: str, given: str) -> str:
        found = self._names(f"/{bzid}/{_SERVICE}")
        if given:
            check_node_name(given, field=SERVING_BASE_NAME_HEADER)
            if given not in found:
                raise NotFoundError("model", given, hint=f"no replica of it was ever registered in namespace {bzid!r}")
            return given
        if len(found) == 1:
            return found[0]
        raise _unclear(SERVING_BASE_NAME_HEADER, "model", found)

    def _is_namespace(self, name: str) -> bool:
        return not _MARKS.isdisjoint(self._names(f"/{name}"))

    def _names(self, path: str) -> tuple[str, ...]:
        return self._owner.tree.find_children(path) or ()


def _unclear(header: str, what: str, found: list[str] | tuple[str, ...]) -> InvalidError | NotFoundError:
    if not found:
        return NotFoundError(what, "any", hint=f"the tree has no {what} yet")
    shown = ", ".join(found[:10])
    more = f" and {len(found) - 10} more" if len(found) > 10 else ""
    problems: list[Problem] = [problem(header, None, f"is required: there are several, {shown}{more}")]
    return InvalidError(problems)

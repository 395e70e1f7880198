"""Serves `monolith.serving.agent_service.AgentService` over one of the views of `views`.

Until the first view of the tree is complete, calls end with UNAVAILABLE: Monolith's model servers decide from their
first answer how their peers are named, and an empty one would bind them to the wrong way. An answer is serialized once
for each change. Called by the servers that have a view; see `shoal.serving`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from shoal.core.errors import InvalidError, UnavailableError, problem
from shoal.discovery.mirror.records import AgentResource
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.views import AddressView
from shoal.wire.methods import ServingAgent, methods_of
from shoal.wire.pb.monolith.serving import agent_service_pb2 as pb
from shoal.wire.transport import Call, Prepared, Service

#: What a field of type int32 holds at most.
MAX_INT32 = 2**31 - 1
#: Stands for a replica id that the field cannot hold.
UNKNOWN_REPLICA = -1

SERVER_TYPES = {pb.PS: ServerType.PS, pb.ENTRY: ServerType.ENTRY, pb.DENSE: ServerType.DENSE}


class ServingAgentHandlers:
    """The handlers.

    Args:
        view: the addresses.
        resource: what this agent has free. Without it `GetResource` answers an empty message, as version 1 does.
    """

    def __init__(self, view: AddressView, *, resource: Callable[[], AgentResource] | None = None) -> None:
        self._view = view
        self._resource = resource
        self._prepared: dict[ServerType, tuple[Hashable, Prepared]] = {}

    def service(self) -> Service:
        """As a server takes it."""
        return Service(methods_of(ServingAgent), self)

    async def heart_beat(self, request: pb.HeartBeatRequest, _call: Call) -> Prepared:
        """The addresses of every task of a type."""
        server_type = _server_type(request.server_type)
        self._check_loaded()
        version = self._view.version
        known = self._prepared.get(server_type)
        if known is None or known[0] != version:
            tasks = self._view.tasks(server_type)
            answer = pb.HeartBeatResponse(
                addresses={name: pb.AddressList(address=addresses) for name, addresses in tasks.items()}
            )
            known = version, Prepared(answer)
            self._prepared[server_type] = known
        return known[1]

    async def get_replicas(self, request: pb.GetReplicasRequest, _call: Call) -> pb.GetReplicasResponse:
        """The addresses of one task."""
        server_type = _server_type(request.server_type)
        self._check_loaded()
        addresses = self._view.replicas(server_type, request.task, request.model_name)
        return pb.GetReplicasResponse(address_list=pb.AddressList(address=addresses))

    async def get_resource(self, _request: pb.GetResourceRequest, _call: Call) -> pb.GetResourceResponse:
        """What this agent has free."""
        if self._resource is None:
            return pb.GetResourceResponse()
        found = self._resource()
        replica_id = found.replica_id if found.replica_id is not None else UNKNOWN_REPLICA
        return pb.GetResourceResponse(
            address=found.address or "",
            shard_id=found.shard_id or 0,
            replica_id=replica_id if abs(replica_id) <= MAX_INT32 else UNKNOWN_REPLICA,
            memory=found.memory or 0,
            cpu=found.cpu,
            network=found.network,
            work_load=found.work_load,
        )

    def _check_loaded(self) -> None:
        if not self._view.is_loaded:
            raise UnavailableError("the addresses are not loaded yet", hint="try again in a moment")


def _server_type(number: pb.ServerType.ValueType) -> ServerType:
    found = SERVER_TYPES.get(number)
    if found is None:
        raise InvalidError([problem("server_type", number, "must be 0 (PS), 1 (ENTRY) or 2 (DENSE)")])
    return found

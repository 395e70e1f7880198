"""What an agent says about itself in the scheduler's tree: the replicas that it serves, and what it has free.

Used by programs that run models of `agent_version` 2. The nodes are ephemeral and kept by a registrar, which restores
them in every new session.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.discovery.documents import write_record
from shoal.discovery.mirror.records import AgentResource, SchedulerPaths
from shoal.discovery.registrar import Registrar
from shoal.discovery.replicas.records import Replica


class AgentRegistrations:
    """The nodes of one agent. The caller starts and closes the registrar, which may have other nodes as well."""

    def __init__(self, registrar: Registrar, paths: SchedulerPaths) -> None:
        self._registrar = registrar
        self._paths = paths
        self._replicas: frozenset[str] = frozenset()
        self._resource = ""

    @property
    def local_replica_paths(self) -> frozenset[str]:
        """The nodes of the replicas of this agent."""
        return self._replicas

    def update_service(self, replicas: Iterable[Replica]) -> None:
        """The agent serves these replicas and no others: their nodes are created, updated and deleted accordingly.

        Raises `InvalidError` for a replica whose model or type is no part of a path; then nothing changes.
        """
        wanted = {self._paths.replica(each): write_record(each) for each in replicas}
        for path in self._replicas - wanted.keys():
            self._registrar.withdraw(path)
        for path, data in wanted.items():
            self._registrar.register(path, data)
        self._replicas = frozenset(wanted)

    def report_resource(self, resource: AgentResource) -> None:
        """Say what the agent has free, in place of what it said before."""
        path = self._paths.agent_resource(resource)
        if self._resource not in ("", path):
            self._registrar.withdraw(self._resource)
        self._registrar.register(path, write_record(resource))
        self._resource = path

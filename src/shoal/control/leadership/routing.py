"""Routes each call to the leader; a follower serves reads only.

A follower refuses writes with the leader's address, so that clients and agents follow it. It refuses reads of what only
the leader knows, such as when a node last sent a heartbeat, in the same way. While no leader is known, callers are told
to try again. Made by `shoal.control.server`, which sets the route when leadership changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.control.leadership.leader import Leadership
from shoal.core.errors import NotLeaderError
from shoal.wire.methods import LIVE_HEADER, AgentControl, Credentials, Enrollment, Jobs, Secrets

#: The RPCs that a follower serves.
READS = frozenset(
    method.attribute
    for method in (
        AgentControl.LIST_NODES,
        AgentControl.GET_NODE,
        AgentControl.LIST_WORKLOADS,
        AgentControl.GET_WORKLOAD,
        AgentControl.GET_CLUSTER_SUMMARY,
        AgentControl.GET_GROUP,
        AgentControl.LIST_GROUPS,
        AgentControl.PLAN_PLACEMENT,
        AgentControl.LIST_EVENTS,
        AgentControl.READ_LOGS,
        Credentials.LIST_JOIN_TOKENS,
        Enrollment.GET_AUTHORITY,
        Jobs.GET,
        Jobs.LIST,
        Secrets.LIST_SECRETS,
    )
)


class LeaderRouting:
    """Finds the handler of each call in the present leadership."""

    def __init__(self) -> None:
        self._leadership: Leadership | None = None
        self._leads = False
        self._leader = ""

    def route_to(self, leadership: Leadership, *, leads: bool, leader: str) -> None:
        """Serve calls from this leadership from now on."""
        self._leadership, self._leads, self._leader = leadership, leads, leader

    def handlers(self, service: type, pick: Callable[[Leadership], Any]) -> RoutedHandlers:
        """The handlers of one service, which `pick` finds in a leadership."""
        return RoutedHandlers(self, service, pick)

    def find(self, name: str, pick: Callable[[Leadership], Any], *, live: bool) -> Any:
        """The handler of one RPC. Raises `NotLeaderError`, also for a read that only the leader can answer (`live`)."""
        if self._leadership is None or (not self._leads and (live or name not in READS)):
            raise NotLeaderError(self._leader)
        return getattr(pick(self._leadership), name)


class RoutedHandlers:
    """An object with a handler for each RPC of a service. Handlers are looked up when a call arrives."""

    def __init__(self, routing: LeaderRouting, service: type, pick: Callable[[Leadership], Any]) -> None:
        self._routing = routing
        self._service = service
        self._pick = pick

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._service, name):
            raise AttributeError(name)

        def handle(request: Any, call: Any) -> Any:
            live = bool(call.metadata.get(LIVE_HEADER))
            return self._routing.find(name, self._pick, live=live)(request, call)

        return handle

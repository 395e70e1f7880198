"""Lets each call through to whoever may answer it: the reign that has begun, or a copy that only answers reads.

A control plane that does not lead refuses writes with the leader's address, so that clients and agents follow it; and
so it does with reads that ask for what only the leader knows, such as when a node was last heard of. While
no leader is known, they are told to try again. One for each service; `shoal.control.server` makes and opens them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.control.api.service import ControlService
from shoal.control.leadership.leader import Leadership
from shoal.core.errors import NotLeaderError
from shoal.wire.methods import LIVE_HEADER, AgentControl, Credentials, Enrollment, Secrets

#: What a control plane that does not lead may answer.
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
        Secrets.LIST_SECRETS,
    )
)


class Gate:
    """The object that serves; it has a handler for whatever the service has one for.

    Args:
        handlers: the class of the service.
        pick: finds it in a reign.
    """

    def __init__(
        self, handlers: type = ControlService, pick: Callable[[Leadership], Any] = lambda leadership: leadership.service
    ) -> None:
        self._handlers = handlers
        self._pick = pick
        self._leadership: Leadership | None = None
        self._leads = False
        self._leader = ""

    def open_to(self, leadership: Leadership, *, leads: bool, leader: str) -> None:
        """Answer from this reign from now on."""
        self._leadership, self._leads, self._leader = leadership, leads, leader

    def __getattr__(self, name: str) -> Any:
        # Looked up on each call: a reign may have ended since the last one.
        if name.startswith("_") or not hasattr(self._handlers, name):
            raise AttributeError(name)
        return _Handler(self, name)

    def handler(self, name: str, *, live: bool) -> Any:
        """The handler of one RPC, or the refusal. Live: what is not stored is wanted as well, so it is the leader's."""
        if self._leadership is None or (not self._leads and (live or name not in READS)):
            raise NotLeaderError(self._leader)
        return getattr(self._pick(self._leadership), name)


class _Handler:
    """Calls the handler that is in charge when the call arrives."""

    def __init__(self, gate: Gate, name: str) -> None:
        self._gate = gate
        self._name = name

    def __call__(self, request: Any, call: Any) -> Any:
        live = bool(call.metadata.get(LIVE_HEADER))
        return self._gate.handler(self._name, live=live)(request, call)

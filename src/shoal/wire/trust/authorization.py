"""Which role may call which RPC: one table, and the one place that applies it.

A rule names the roles that may call a method, and for some of them a condition on the request: an agent speaks for its
own node, a workload changes its own group. A method without a rule is refused to everyone, and a test compares the
table with `shoal.wire.methods`. Rules are pure: request and identity in, a reason or None out.

Enforced by `shoal.wire.serving`, for every transport alike, wherever callers have identities. A stream is admitted by
role; its handler calls `Policy.check_request` for each message, with the rule of the unary call of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import DeniedError, UnauthenticatedError
from shoal.model.identity import Identity, Role
from shoal.wire.health import CHECK, WATCH
from shoal.wire.methods import (
    AgentControl,
    AgentExec,
    AgentService,
    Artifacts,
    Coordination,
    Credentials,
    Enrollment,
    Jobs,
    Secrets,
    ServingAgent,
    WorkloadExec,
)
from shoal.wire.reflection import SERVER_REFLECTION_INFO
from shoal.wire.transport import Method

#: Why a request is refused, or None.
Condition = Callable[[Any, Identity], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may call a method."""

    roles: frozenset[Role]
    #: What must be true of the request, for roles that may not send just any.
    conditions: Mapping[Role, Condition] = field(default_factory=dict)


def _allow(*roles: Role, **conditions: Condition) -> Rule:
    return Rule(frozenset(roles), {Role(role): condition for role, condition in conditions.items()})


def own_node_only(request: Any, identity: Identity) -> str | None:
    """An agent speaks for its own node."""
    if request.node_id == identity.name:
        return None
    return f"the certificate of agent {identity.name!r} speaks for its own node only, not for {request.node_id!r}"


def own_group_only(request: Any, identity: Identity) -> str | None:
    """A workload changes the group of its own job."""
    if request.group_id == identity.job:
        return None
    return f"a workload of job {identity.job!r} may change its own group only, not {request.group_id!r}"


def own_job_only(request: Any, identity: Identity) -> str | None:
    """A workload speaks for its own job and from its own node."""
    if request.job_id != identity.job:
        return f"a workload of job {identity.job!r} may report to its own job only, not to {request.job_id!r}"
    if request.node_id != identity.node:
        return f"the certificate is of a workload on node {identity.node!r}, not on {request.node_id!r}"
    return None


_OPERATOR = _allow(Role.OPERATOR)
_OWN_NODE = _allow(Role.AGENT, agent=own_node_only)
_CONTROL = _allow(Role.CONTROL)
_LOOK_AT_AGENT = _allow(Role.CONTROL, Role.OPERATOR)
_ANYONE = _allow(*Role)
_NOBODY = _allow()

_TABLE: dict[Method[Any, Any], Rule] = {
    # Agents, each for itself.
    AgentControl.REGISTER_NODE: _OWN_NODE,
    AgentControl.HEARTBEAT: _OWN_NODE,
    # Each message in it is judged by the rule of the unary call that it stands for.
    AgentControl.CONTROL_STREAM: _allow(Role.AGENT, Role.OPERATOR),
    # Changes by operators.
    AgentControl.APPLY_WORKLOAD: _OPERATOR,
    AgentControl.DELETE_WORKLOAD: _OPERATOR,
    AgentControl.RETRY_WORKLOAD: _OPERATOR,
    AgentControl.SET_DESIRED_STATE: _OPERATOR,
    AgentControl.SUBMIT_AUTOMATION_SUGGESTION: _OPERATOR,
    AgentControl.DELETE_GROUP: _OPERATOR,
    AgentControl.REMOVE_NODE: _OPERATOR,
    AgentControl.CORDON_NODE: _OPERATOR,
    AgentControl.UNCORDON_NODE: _OPERATOR,
    AgentControl.LABEL_NODE: _OPERATOR,
    AgentControl.DRAIN_NODE: _OPERATOR,
    AgentControl.MARK_NODE_DEAD: _OPERATOR,
    AgentControl.ADOPT_WORKLOAD: _OPERATOR,
    # A job's coordinator replaces the members that it lost.
    AgentControl.APPLY_GROUP: _allow(Role.OPERATOR, Role.WORKLOAD, workload=own_group_only),
    # Reads. An agent asks whose a workload is before it stops one that it was not told of.
    AgentControl.GET_WORKLOAD: _allow(Role.OPERATOR, Role.AGENT),
    AgentControl.LIST_WORKLOADS: _OPERATOR,
    AgentControl.LIST_NODES: _OPERATOR,
    AgentControl.GET_NODE: _OPERATOR,
    AgentControl.GET_CLUSTER_SUMMARY: _OPERATOR,
    AgentControl.GET_GROUP: _OPERATOR,
    AgentControl.LIST_GROUPS: _OPERATOR,
    AgentControl.PLAN_PLACEMENT: _OPERATOR,
    AgentControl.LIST_EVENTS: _OPERATOR,
    AgentControl.WATCH_EVENTS: _OPERATOR,
    AgentControl.READ_LOGS: _OPERATOR,
    # Only the control plane commands agents; operators may look.
    AgentService.APPLY_WORKLOAD: _CONTROL,
    AgentService.DELETE_WORKLOAD: _CONTROL,
    AgentService.GET_WORKLOAD_STATUS: _LOOK_AT_AGENT,
    AgentService.LIST_WORKLOADS: _LOOK_AT_AGENT,
    AgentService.HEALTH_CHECK: _LOOK_AT_AGENT,
    AgentService.LIST_ACTIONS: _LOOK_AT_AGENT,
    AgentService.READ_LOGS: _LOOK_AT_AGENT,
    # A spec may hold private values; an operator reads it from the control plane.
    AgentService.GET_WORKLOAD_SPEC: _CONTROL,
    # Served on the join listener only, to callers without a certificate.
    Enrollment.GET_AUTHORITY: _NOBODY,
    Enrollment.JOIN: _NOBODY,
    # Operators decide who joins. An agent renews its own certificate and gets those of its workloads; the control plane
    # checks that they are its own.
    Credentials.CREATE_JOIN_TOKEN: _OPERATOR,
    Credentials.LIST_JOIN_TOKENS: _OPERATOR,
    Credentials.REVOKE_JOIN_TOKEN: _OPERATOR,
    Credentials.RENEW_CERTIFICATE: _allow(Role.AGENT),
    Credentials.ISSUE_WORKLOAD_CERTIFICATE: _allow(Role.AGENT),
    Secrets.SET_SECRET: _OPERATOR,
    Secrets.LIST_SECRETS: _OPERATOR,
    Secrets.DELETE_SECRET: _OPERATOR,
    # Who changes a job decides what runs on nodes.
    Jobs.SUBMIT: _OPERATOR,
    Jobs.CANCEL: _OPERATOR,
    Jobs.SAVEPOINT: _OPERATOR,
    Jobs.RESUME: _OPERATOR,
    Jobs.RESCALE: _OPERATOR,
    Jobs.UPGRADE: _OPERATOR,
    Jobs.GET: _OPERATOR,
    Jobs.LIST: _OPERATOR,
    Jobs.WATCH: _OPERATOR,
    Jobs.REPORT: _allow(Role.WORKLOAD, workload=own_job_only),
    # Blobs are code: who uploads decides what runs. The control plane checks that a reader's own work names the blob.
    Artifacts.UPLOAD: _OPERATOR,
    Artifacts.DOWNLOAD: _allow(Role.OPERATOR, Role.AGENT, Role.WORKLOAD),
    # The control plane records every command, so an operator may not call an agent.
    WorkloadExec.EXEC: _OPERATOR,
    AgentExec.EXEC: _CONTROL,
    # Addresses of model servers, for everyone who calls them.
    ServingAgent.GET_REPLICAS: _ANYONE,
    ServingAgent.GET_RESOURCE: _ANYONE,
    ServingAgent.HEART_BEAT: _ANYONE,
    # The tree itself decides what an agent or a workload may change in it.
    Coordination.SESSION: _allow(Role.OPERATOR, Role.AGENT, Role.WORKLOAD),
    # Served by every server, to every role of its cluster.
    CHECK: _ANYONE,
    WATCH: _ANYONE,
    SERVER_REFLECTION_INFO: _ANYONE,
}

#: The table, by path.
RULES: Mapping[str, Rule] = {method.path: rule for method, rule in _TABLE.items()}


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules as one cluster's servers apply them."""

    cluster: str
    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)

    def admit(self, method: Method[Any, Any], identity: Identity | None) -> Identity:
        """Admit a caller by its role. Raises `UnauthenticatedError` for another cluster's, else `DeniedError`."""
        if identity is None:
            raise UnauthenticatedError("the caller has no certificate", hint="connect with --ca, --cert and --key")
        if identity.cluster != self.cluster:
            raise UnauthenticatedError(
                f"the caller's certificate is of cluster {identity.cluster!r}; this is {self.cluster!r}",
                hint="use a certificate of this cluster, or dial that one",
                cluster=identity.cluster,
            )
        rule = self.rules.get(method.path)
        if rule is None or identity.role not in rule.roles:
            raise _denied(method, identity, rule)
        return identity

    def check_request(self, method: Method[Any, Any], identity: Identity, request: Any) -> None:
        """Raise `DeniedError` if an admitted caller may not send this request."""
        rule = self.rules.get(method.path)
        condition = rule.conditions.get(identity.role) if rule is not None else None
        reason = condition(request, identity) if condition is not None else None
        if reason is not None:
            raise DeniedError(f"{method.name}: {reason}", role=identity.role, name=identity.name, method=method.path)


def _denied(method: Method[Any, Any], identity: Identity, rule: Rule | None) -> DeniedError:
    allowed = [role for role in Role if rule is not None and role in rule.roles]
    if not allowed:
        return DeniedError(f"{method.name} is open to nobody", role=identity.role, method=method.path)
    words = f"the role {allowed[0]}" if len(allowed) == 1 else f"one of the roles {', '.join(allowed)}"
    return DeniedError(
        f"{method.name} needs {words}; the caller is {identity}",
        hint=f"use a certificate of that role: `shoal certs issue --role {allowed[0]}`",
        needed=",".join(allowed),
        role=identity.role,
        method=method.path,
    )

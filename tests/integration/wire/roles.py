"""Who may call what, written down once more, for the tests of single calls and of the messages in a stream."""

from __future__ import annotations

from shoal.model.identity import Identity, Role, workload_identity
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
    methods_of,
)
from shoal.wire.transport import Cardinality

AGENT, CONTROL, OPERATOR, WORKLOAD = Role.AGENT, Role.CONTROL, Role.OPERATOR, Role.WORKLOAD
NODE, JOB = "n1", "clicks"

ALLOWED = {
    AgentControl: {
        "RegisterNode": {AGENT},
        "Heartbeat": {AGENT},
        "ControlStream": {AGENT, OPERATOR},
        "ApplyWorkload": {OPERATOR},
        "DeleteWorkload": {OPERATOR},
        "RetryWorkload": {OPERATOR},
        "SubmitAutomationSuggestion": {OPERATOR},
        "SetDesiredState": {OPERATOR},
        "ApplyGroup": {OPERATOR, WORKLOAD},
        "DeleteGroup": {OPERATOR},
        "RemoveNode": {OPERATOR},
        "CordonNode": {OPERATOR},
        "LabelNode": {OPERATOR},
        "UncordonNode": {OPERATOR},
        "DrainNode": {OPERATOR},
        "MarkNodeDead": {OPERATOR},
        "AdoptWorkload": {OPERATOR},
        "ListNodes": {OPERATOR},
        "GetNode": {OPERATOR},
        "ListWorkloads": {OPERATOR},
        "GetWorkload": {OPERATOR, AGENT},
        "GetClusterSummary": {OPERATOR},
        "GetGroup": {OPERATOR},
        "ListGroups": {OPERATOR},
        "PlanPlacement": {OPERATOR},
        "ListEvents": {OPERATOR},
        "WatchEvents": {OPERATOR},
        "ReadLogs": {OPERATOR},
    },
    AgentService: {
        "ApplyWorkload": {CONTROL},
        "DeleteWorkload": {CONTROL},
        "GetWorkloadStatus": {CONTROL, OPERATOR},
        "ListWorkloads": {CONTROL, OPERATOR},
        "HealthCheck": {CONTROL, OPERATOR},
        "ListActions": {CONTROL, OPERATOR},
        "ReadLogs": {CONTROL, OPERATOR},
        "GetWorkloadSpec": {CONTROL},
    },
    # Where these are served nobody is known; a server that knows its callers has them for nobody.
    Enrollment: {"GetAuthority": set(), "Join": set()},
    Credentials: {
        "CreateJoinToken": {OPERATOR},
        "ListJoinTokens": {OPERATOR},
        "RevokeJoinToken": {OPERATOR},
        "RenewCertificate": {AGENT},
        "IssueWorkloadCertificate": {AGENT},
    },
    Coordination: {"Session": {OPERATOR, AGENT, WORKLOAD}},
    WorkloadExec: {"Exec": {OPERATOR}},
    AgentExec: {"Exec": {CONTROL}},
    Secrets: {"SetSecret": {OPERATOR}, "ListSecrets": {OPERATOR}, "DeleteSecret": {OPERATOR}},
    Jobs: {
        name: {OPERATOR}
        for name in ("Submit", "Get", "List", "Watch", "Cancel", "Savepoint", "Resume", "Rescale", "Upgrade")
    }
    | {"Report": {WORKLOAD}},
    Artifacts: {"Upload": {OPERATOR}, "Download": {OPERATOR, AGENT, WORKLOAD}},
    ServingAgent: {name: set(Role) for name in ("GetReplicas", "GetResource", "HeartBeat")},
}

#: What a caller that is allowed to sends: conditions look at these fields.
FIELDS = {
    "RegisterNode": {"node_id": NODE},
    "Heartbeat": {"node_id": NODE},
    "ApplyGroup": {"group_id": JOB},
    "Report": {"job_id": JOB, "node_id": NODE},
}

#: What a role may call and may not send, because it would speak for another.
FOR_OTHERS = [
    (AGENT, AgentControl.REGISTER_NODE, {"node_id": "n2"}),
    (AGENT, AgentControl.REGISTER_NODE, {}),
    (AGENT, AgentControl.HEARTBEAT, {"node_id": "n2"}),
    (WORKLOAD, AgentControl.APPLY_GROUP, {"group_id": "others"}),
    (WORKLOAD, Jobs.REPORT, {"job_id": "others", "node_id": NODE}),
    (WORKLOAD, Jobs.REPORT, {"job_id": JOB, "node_id": "n2"}),
]

OK = "ok"


def identity_of(role, cluster="blue"):
    if role is WORKLOAD:
        return workload_identity(cluster, job=JOB, node=NODE)
    return Identity(role, cluster, {AGENT: NODE, CONTROL: "c1", OPERATOR: "ada"}[role])


class Everything:
    """Answers every method with an empty message."""

    def __init__(self, methods):
        self.served = []
        for method in methods:
            setattr(self, method.attribute, self._make(method))

    def _make(self, method):
        async def unary(_request, call):
            self.served.append((method.name, call.identity))
            return method.response()

        async def stream(_request, call):
            self.served.append((method.name, call.identity))
            yield method.response()

        return unary if method.cardinality is Cardinality.UNARY else stream


def expected_for(service, role):
    """What each method of a service answers a role: `OK`, or why not."""
    expected = {}
    for method in methods_of(service):
        allowed = ALLOWED[service][method.name]
        needed = [each for each in Role if each in allowed]
        words = f"the role {needed[0]}" if len(needed) == 1 else f"one of the roles {', '.join(needed)}"
        refused = f"{method.name} needs {words}; the caller is {identity_of(role)}"
        if not needed:
            refused = f"{method.name} is open to nobody"
        expected[method.name] = OK if role in allowed else refused
    return expected

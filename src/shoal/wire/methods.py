"""Every RPC there is, as values. A test compares this table with the compiled protos, so none can be forgotten."""

from __future__ import annotations

from typing import Any

from shoal.wire.pb.monolith.serving import agent_service_pb2 as serving
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as artifacts
from shoal.wire.pb.shoal.v1 import coordination_pb2 as coordination
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.pb.shoal.v1 import exec_pb2 as execution
from shoal.wire.pb.shoal.v1 import jobs_pb2 as jobs
from shoal.wire.pb.shoal.v1 import secrets_pb2 as secrets
from shoal.wire.transport import Cardinality, Method

_CONTROL = "persys.control.v1.AgentControl"
_AGENT = "persys.agent.v1.AgentService"
_ENROLLMENT = "shoal.v1.Enrollment"
_CREDENTIALS = "shoal.v1.Credentials"
_SECRETS = "shoal.v1.Secrets"
_EXEC = "shoal.v1.WorkloadExec"
_JOBS = "shoal.v1.Jobs"
_ARTIFACTS = "shoal.v1.Artifacts"
_AGENT_EXEC = "shoal.v1.AgentExec"
_SERVING_AGENT = "monolith.serving.agent_service.AgentService"
_COORDINATION = "shoal.v1.Coordination"


class AgentControl:
    """The control plane's service."""

    NAME = _CONTROL
    REGISTER_NODE = Method(_CONTROL, "RegisterNode", control.RegisterNodeRequest, control.RegisterNodeResponse)
    HEARTBEAT = Method(_CONTROL, "Heartbeat", control.HeartbeatRequest, control.HeartbeatResponse)
    APPLY_WORKLOAD = Method(_CONTROL, "ApplyWorkload", control.ApplyWorkloadRequest, control.ApplyWorkloadResponse)
    DELETE_WORKLOAD = Method(_CONTROL, "DeleteWorkload", control.DeleteWorkloadRequest, control.DeleteWorkloadResponse)
    RETRY_WORKLOAD = Method(_CONTROL, "RetryWorkload", control.RetryWorkloadRequest, control.RetryWorkloadResponse)
    SUBMIT_AUTOMATION_SUGGESTION = Method(
        _CONTROL,
        "SubmitAutomationSuggestion",
        control.SubmitAutomationSuggestionRequest,
        control.SubmitAutomationSuggestionResponse,
    )
    LIST_NODES = Method(_CONTROL, "ListNodes", control.ListNodesRequest, control.ListNodesResponse)
    GET_NODE = Method(_CONTROL, "GetNode", control.GetNodeRequest, control.GetNodeResponse)
    LIST_WORKLOADS = Method(_CONTROL, "ListWorkloads", control.ListWorkloadsRequest, control.ListWorkloadsResponse)
    GET_WORKLOAD = Method(_CONTROL, "GetWorkload", control.GetWorkloadRequest, control.GetWorkloadResponse)
    GET_CLUSTER_SUMMARY = Method(
        _CONTROL, "GetClusterSummary", control.GetClusterSummaryRequest, control.ClusterSummary
    )
    CONTROL_STREAM = Method(
        _CONTROL, "ControlStream", control.ControlMessage, control.ControlMessage, Cardinality.BOTH_STREAM
    )
    APPLY_GROUP = Method(_CONTROL, "ApplyGroup", control.ApplyGroupRequest, control.ApplyGroupResponse)
    DELETE_GROUP = Method(_CONTROL, "DeleteGroup", control.DeleteGroupRequest, control.DeleteGroupResponse)
    GET_GROUP = Method(_CONTROL, "GetGroup", control.GetGroupRequest, control.GetGroupResponse)
    LIST_GROUPS = Method(_CONTROL, "ListGroups", control.ListGroupsRequest, control.ListGroupsResponse)
    SET_DESIRED_STATE = Method(
        _CONTROL, "SetDesiredState", control.SetDesiredStateRequest, control.SetDesiredStateResponse
    )
    REMOVE_NODE = Method(_CONTROL, "RemoveNode", control.RemoveNodeRequest, control.RemoveNodeResponse)
    CORDON_NODE = Method(_CONTROL, "CordonNode", control.CordonNodeRequest, control.CordonNodeResponse)
    UNCORDON_NODE = Method(_CONTROL, "UncordonNode", control.UncordonNodeRequest, control.UncordonNodeResponse)
    DRAIN_NODE = Method(_CONTROL, "DrainNode", control.DrainNodeRequest, control.DrainNodeResponse)
    LABEL_NODE = Method(_CONTROL, "LabelNode", control.LabelNodeRequest, control.LabelNodeResponse)
    MARK_NODE_DEAD = Method(_CONTROL, "MarkNodeDead", control.MarkNodeDeadRequest, control.MarkNodeDeadResponse)
    ADOPT_WORKLOAD = Method(_CONTROL, "AdoptWorkload", control.AdoptWorkloadRequest, control.AdoptWorkloadResponse)
    PLAN_PLACEMENT = Method(_CONTROL, "PlanPlacement", control.PlanPlacementRequest, control.PlanPlacementResponse)
    LIST_EVENTS = Method(_CONTROL, "ListEvents", control.ListEventsRequest, control.ListEventsResponse)
    WATCH_EVENTS = Method(_CONTROL, "WatchEvents", control.WatchEventsRequest, control.Event, Cardinality.SERVER_STREAM)
    READ_LOGS = Method(_CONTROL, "ReadLogs", control.ReadLogsRequest, control.LogChunk, Cardinality.SERVER_STREAM)


class AgentService:
    """The node agent's service."""

    NAME = _AGENT
    APPLY_WORKLOAD = Method(_AGENT, "ApplyWorkload", agent.ApplyWorkloadRequest, agent.ApplyWorkloadResponse)
    DELETE_WORKLOAD = Method(_AGENT, "DeleteWorkload", agent.DeleteWorkloadRequest, agent.DeleteWorkloadResponse)
    GET_WORKLOAD_STATUS = Method(
        _AGENT, "GetWorkloadStatus", agent.GetWorkloadStatusRequest, agent.GetWorkloadStatusResponse
    )
    LIST_WORKLOADS = Method(_AGENT, "ListWorkloads", agent.ListWorkloadsRequest, agent.ListWorkloadsResponse)
    HEALTH_CHECK = Method(_AGENT, "HealthCheck", agent.HealthCheckRequest, agent.HealthCheckResponse)
    LIST_ACTIONS = Method(_AGENT, "ListActions", agent.ListActionsRequest, agent.ListActionsResponse)
    READ_LOGS = Method(_AGENT, "ReadLogs", agent.ReadLogsRequest, agent.LogChunk, Cardinality.SERVER_STREAM)
    GET_WORKLOAD_SPEC = Method(_AGENT, "GetWorkloadSpec", agent.GetWorkloadSpecRequest, agent.GetWorkloadSpecResponse)


class Enrollment:
    """How those who have no certificate yet get one. Served on a port of its own."""

    NAME = _ENROLLMENT
    GET_AUTHORITY = Method(_ENROLLMENT, "GetAuthority", enrollment.GetAuthorityRequest, enrollment.GetAuthorityResponse)
    JOIN = Method(_ENROLLMENT, "Join", enrollment.JoinRequest, enrollment.JoinResponse)


class Credentials:
    """Join tokens, and new certificates for those who have one."""

    NAME = _CREDENTIALS
    CREATE_JOIN_TOKEN = Method(
        _CREDENTIALS, "CreateJoinToken", enrollment.CreateJoinTokenRequest, enrollment.CreateJoinTokenResponse
    )
    LIST_JOIN_TOKENS = Method(
        _CREDENTIALS, "ListJoinTokens", enrollment.ListJoinTokensRequest, enrollment.ListJoinTokensResponse
    )
    REVOKE_JOIN_TOKEN = Method(
        _CREDENTIALS, "RevokeJoinToken", enrollment.RevokeJoinTokenRequest, enrollment.RevokeJoinTokenResponse
    )
    RENEW_CERTIFICATE = Method(
        _CREDENTIALS, "RenewCertificate", enrollment.RenewCertificateRequest, enrollment.RenewCertificateResponse
    )
    ISSUE_WORKLOAD_CERTIFICATE = Method(
        _CREDENTIALS,
        "IssueWorkloadCertificate",
        enrollment.IssueWorkloadCertificateRequest,
        enrollment.IssueWorkloadCertificateResponse,
    )


class Secrets:
    """Values that specs name and nobody reads back."""

    NAME = _SECRETS
    SET_SECRET = Method(_SECRETS, "SetSecret", secrets.SetSecretRequest, secrets.SetSecretResponse)
    LIST_SECRETS = Method(_SECRETS, "ListSecrets", secrets.ListSecretsRequest, secrets.ListSecretsResponse)
    DELETE_SECRET = Method(_SECRETS, "DeleteSecret", secrets.DeleteSecretRequest, secrets.DeleteSecretResponse)


class Jobs:
    """Named sets of workloads that one engine owns."""

    NAME = _JOBS
    SUBMIT = Method(_JOBS, "Submit", jobs.SubmitJobRequest, jobs.SubmitJobResponse)
    GET = Method(_JOBS, "Get", jobs.GetJobRequest, jobs.GetJobResponse)
    LIST = Method(_JOBS, "List", jobs.ListJobsRequest, jobs.ListJobsResponse)
    WATCH = Method(_JOBS, "Watch", jobs.WatchJobRequest, jobs.JobView, Cardinality.SERVER_STREAM)
    CANCEL = Method(_JOBS, "Cancel", jobs.CancelJobRequest, jobs.JobResponse)
    SAVEPOINT = Method(_JOBS, "Savepoint", jobs.SavepointJobRequest, jobs.JobResponse)
    RESUME = Method(_JOBS, "Resume", jobs.ResumeJobRequest, jobs.JobResponse)
    RESCALE = Method(_JOBS, "Rescale", jobs.RescaleJobRequest, jobs.JobResponse)
    UPGRADE = Method(_JOBS, "Upgrade", jobs.UpgradeJobRequest, jobs.JobResponse)
    REPORT = Method(_JOBS, "Report", jobs.ReportJobRequest, jobs.ReportJobResponse)


class Artifacts:
    """Blobs that are named by their SHA-256."""

    NAME = _ARTIFACTS
    UPLOAD = Method(
        _ARTIFACTS,
        "Upload",
        artifacts.UploadArtifactRequest,
        artifacts.UploadArtifactResponse,
        Cardinality.BOTH_STREAM,
    )
    DOWNLOAD = Method(
        _ARTIFACTS,
        "Download",
        artifacts.DownloadArtifactRequest,
        artifacts.DownloadArtifactResponse,
        Cardinality.SERVER_STREAM,
    )


class WorkloadExec:
    """Commands inside running workloads, at the control plane."""

    NAME = _EXEC
    EXEC = Method(_EXEC, "Exec", execution.ExecRequest, execution.ExecResponse, Cardinality.BOTH_STREAM)


class AgentExec:
    """The same at an agent."""

    NAME = _AGENT_EXEC
    EXEC = Method(_AGENT_EXEC, "Exec", execution.ExecRequest, execution.ExecResponse, Cardinality.BOTH_STREAM)


class ServingAgent:
    """Which address serves which part of a model: Monolith's `AgentService`."""

    NAME = _SERVING_AGENT
    GET_REPLICAS = Method(_SERVING_AGENT, "GetReplicas", serving.GetReplicasRequest, serving.GetReplicasResponse)
    GET_RESOURCE = Method(_SERVING_AGENT, "GetResource", serving.GetResourceRequest, serving.GetResourceResponse)
    HEART_BEAT = Method(_SERVING_AGENT, "HeartBeat", serving.HeartBeatRequest, serving.HeartBeatResponse)


class Coordination:
    """The coordination tree: one stream is the connection of one session."""

    NAME = _COORDINATION
    SESSION = Method(
        _COORDINATION,
        "Session",
        coordination.CoordinationRequest,
        coordination.CoordinationResponse,
        Cardinality.BOTH_STREAM,
    )


def methods_of(service: type) -> tuple[Method[Any, Any], ...]:
    """Every method of one of the classes above, in order."""
    return tuple(value for value in vars(service).values() if isinstance(value, Method))


#: Sent with every call to an agent: the node it is meant for, so that a reused address cannot be mistaken.
NODE_HEADER = "x-shoal-node"

#: Sent with every call of a control plane to an agent: the term of its leadership. An agent that has heard of a later
#: one refuses the call.
TERM_HEADER = "x-shoal-term"

#: Sent by a client that wants the leader's answer to a read: one that does not lead refuses it, as it does a write.
LIVE_HEADER = "x-shoal-live"

#: Sent by a client that asks a control plane, and not a serving agent, for the addresses of model servers: which
#: namespace, in the way of which agent version, and of which model.
SERVING_BZID_HEADER = "x-shoal-bzid"
SERVING_VERSION_HEADER = "x-shoal-agent-version"
SERVING_BASE_NAME_HEADER = "x-shoal-base-name"

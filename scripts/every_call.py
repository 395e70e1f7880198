"""A conversation that calls every RPC there is at least once, well and, here and there, badly.

The steps are played by `scripts/conversation.py`. Every value in them is made up: the secret is none, and the guest's
key is in plain sight. A test compares the steps with the services, so a new RPC has to get one here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from google.protobuf.message import Message

from scripts.conversation import CLUSTER, GUEST_KEY, GUEST_NODE, REAL_NODE, Step, full_name
from shoal.model.identity import Identity, Role
from shoal.model.nodes import Feature
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
    WorkloadExec,
)
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as artifacts
from shoal.wire.pb.shoal.v1 import coordination_pb2 as coordination
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.pb.shoal.v1 import exec_pb2 as execution
from shoal.wire.pb.shoal.v1 import jobs_pb2 as jobs
from shoal.wire.pb.shoal.v1 import run_pb2 as run
from shoal.wire.pb.shoal.v1 import secrets_pb2 as secrets
from shoal.wire.status import Code
from shoal.wire.transport import Method

SECRET = "throwaway"
EMPTY = hashlib.sha256().hexdigest()
"""The name of the smallest blob."""
GROUP, MEMBER = "crew", "crew-0"
_STREAM = full_name(AgentControl.CONTROL_STREAM)


def every_call() -> tuple[Step, ...]:
    """The steps, in order."""
    return (
        *_joining(),
        *_secrets(),
        *_artifacts(),
        *_workloads(),
        *_agent(),
        *_nodes(),
        *_group(),
        *_stream(),
        *_jobs(),
        *_leaving(),
    )


# ---------------------------------------------------------------------------------------------------------
# How steps are written


def _call(
    method: Method[Any, Any], request: Message, *, by: str = "operator", ends: str = "OK", pieces: int = 0
) -> Step:
    return Step("call", by, full_name(method), request, status=ends, pieces=pieces)


def _begin(method: Method[Any, Any], request: Message, *, pieces: int = 0) -> Step:
    return Step("begin", "operator", full_name(method), request, pieces=pieces)


def _finish(method: Method[Any, Any], *, ends: str = "OK") -> Step:
    return Step("finish", "operator", full_name(method), status=ends)


def _send(message: control.ControlMessage, *, by: str) -> Step:
    return Step("send", by, _STREAM, message)


def _take(*kind: str, by: str) -> Step:
    return Step("take", by, _STREAM, awaited=kind)


def _wait(what: str, name: str, wanted: str) -> Step:
    return Step("wait", awaited=(what, name, wanted))


def signing_request(name: str) -> bytes:
    """A request to have the guest's key certified for an agent; the same each time."""
    identity = Identity(Role.AGENT, CLUSTER, name)
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False)
    )
    signed = builder.sign(GUEST_KEY, hashes.SHA256(), ecdsa_deterministic=True)
    return signed.public_bytes(serialization.Encoding.PEM)


def _process(command: Sequence[str], *, node: str = REAL_NODE, **given: Any) -> control.WorkloadSpec:
    """A process that runs on one node only."""
    return control.WorkloadSpec(
        type="process",
        process=run.ProcessSpec(command=command, **given),
        resources=control.ResourceRequirements(cpu_millicores=100, memory_mb=64),
        placement=run.Placement(constraints=[run.Constraint(key="node_id", operator="in", values=[node])]),
        metadata={"owner": "somebody"},
    )


# ---------------------------------------------------------------------------------------------------------
# The conversation


def _joining() -> tuple[Step, ...]:
    csr = signing_request(GUEST_NODE)
    token = enrollment.CreateJoinTokenRequest(ttl_ms=600_000, role="agent", node_id=GUEST_NODE, uses=1)
    join = enrollment.JoinRequest(token="{token.1}", csr=csr)
    another = enrollment.JoinRequest(token="{token.1}", csr=signing_request("another"))
    return (
        _call(Enrollment.GET_AUTHORITY, enrollment.GetAuthorityRequest(), by="nobody"),
        _call(Credentials.CREATE_JOIN_TOKEN, token),
        _call(Enrollment.JOIN, another, by="nobody", ends="PERMISSION_DENIED"),
        _call(Enrollment.JOIN, join, by="nobody"),
        # While there is one: several are listed in the order of their ids, which are random.
        _call(Credentials.LIST_JOIN_TOKENS, enrollment.ListJoinTokensRequest()),
        _call(Credentials.CREATE_JOIN_TOKEN, enrollment.CreateJoinTokenRequest(uses=2)),
        _call(Credentials.REVOKE_JOIN_TOKEN, enrollment.RevokeJoinTokenRequest(token_id="{token_id.2}")),
        _call(Credentials.CREATE_JOIN_TOKEN, enrollment.CreateJoinTokenRequest(role="king"), ends="INVALID_ARGUMENT"),
        _call(Credentials.RENEW_CERTIFICATE, enrollment.RenewCertificateRequest(csr=csr), by=GUEST_NODE),
        _call(
            Credentials.LIST_JOIN_TOKENS, enrollment.ListJoinTokensRequest(), by=GUEST_NODE, ends="PERMISSION_DENIED"
        ),
        _call(AgentControl.REGISTER_NODE, _registration(), by=GUEST_NODE),
        _call(AgentControl.HEARTBEAT, _heartbeat(1, session="{session.1}"), by=GUEST_NODE),
        _wait("node", REAL_NODE, "Ready"),
    )


def _secrets() -> tuple[Step, ...]:
    return (
        _call(Secrets.SET_SECRET, secrets.SetSecretRequest(name=SECRET, value=b"worth nothing")),
        _call(Secrets.LIST_SECRETS, secrets.ListSecretsRequest()),
        _call(Secrets.DELETE_SECRET, secrets.DeleteSecretRequest(name="none-such"), ends="NOT_FOUND"),
    )


def _artifacts() -> tuple[Step, ...]:
    start = artifacts.ArtifactStart(sha256=EMPTY, size=0)
    wrong = artifacts.ArtifactStart(sha256="none", size=0)
    read = artifacts.DownloadArtifactRequest(sha256=EMPTY)
    return (
        _call(Artifacts.UPLOAD, artifacts.UploadArtifactRequest(start=start)),
        _call(Artifacts.UPLOAD, artifacts.UploadArtifactRequest(start=start)),  # it is there already
        _call(Artifacts.UPLOAD, artifacts.UploadArtifactRequest(start=wrong), ends="INVALID_ARGUMENT"),
        _call(Artifacts.DOWNLOAD, read),
        _call(Artifacts.DOWNLOAD, read, by=GUEST_NODE, ends="PERMISSION_DENIED"),
        _call(Artifacts.DOWNLOAD, artifacts.DownloadArtifactRequest(sha256="f" * 64), ends="NOT_FOUND"),
    )


def _workloads() -> tuple[Step, ...]:
    web = control.ApplyWorkloadRequest(
        workload_id="web",
        revision_id="v1",
        spec=_process(
            ["sleep", "3600"],
            env={"GREETING": "grüß Gott"},
            env_from_secrets={"WORD": SECRET},
            restart=run.RestartPolicy(policy="always", delay_ms=200),
            stop=run.StopPolicy(signal="INT", grace_ms=2000),
        ),
    )
    chatty = control.ApplyWorkloadRequest(
        workload_id="chatty",
        spec=_process(
            ["sh", "-c", "echo one; echo two"],
            restart=run.RestartPolicy(policy="no"),
            artifacts=[run.Artifact(sha256=EMPTY, path="lib/nothing")],
        ),
    )
    broken = control.ApplyWorkloadRequest(workload_id="broken", spec=control.WorkloadSpec(type="process"))
    suggestion = control.AutomationSuggestion(
        suggestion_id="s1",
        policy_id="p1",
        policy_name="mornings",
        target_workload="web",
        action_type=control.SET_DESIRED_STATE,
        desired_state="Running",
        reason="it is morning",
    )
    more = control.AutomationSuggestion(target_workload="web", action_type=control.SCALE_REPLICAS, desired_replicas=2)
    plan = control.PlanPlacementRequest(
        members=[control.GroupMember(workload_id="planned", spec=_process(["sleep", "1"]))], together=True
    )
    stop = control.SetDesiredStateRequest(workload_id="web", desired_state="Stopped")
    logs = control.ReadLogsRequest(workload_id="chatty", tail_lines=2)
    return (
        _call(AgentControl.APPLY_WORKLOAD, web),
        _call(AgentControl.APPLY_WORKLOAD, chatty),
        _call(AgentControl.APPLY_WORKLOAD, broken),
        _wait("workload", "web", "Running"),
        _wait("workload", "chatty", "Completed"),
        _call(AgentControl.GET_WORKLOAD, control.GetWorkloadRequest(workload_id="web")),
        _call(AgentControl.GET_WORKLOAD, control.GetWorkloadRequest(workload_id="none-such"), ends="NOT_FOUND"),
        _call(AgentControl.LIST_WORKLOADS, control.ListWorkloadsRequest(node_id=REAL_NODE, status="Running")),
        _call(AgentControl.LIST_WORKLOADS, control.ListWorkloadsRequest(status="Sleepy"), ends="INVALID_ARGUMENT"),
        _call(AgentControl.READ_LOGS, logs),
        _call(AgentControl.READ_LOGS, control.ReadLogsRequest(workload_id="none-such"), ends="NOT_FOUND"),
        _call(AgentControl.PLAN_PLACEMENT, plan),
        _call(AgentControl.SET_DESIRED_STATE, stop),
        _wait("workload", "web", "Stopped"),
        _call(
            AgentControl.SUBMIT_AUTOMATION_SUGGESTION, control.SubmitAutomationSuggestionRequest(suggestion=suggestion)
        ),
        _wait("workload", "web", "Running"),
        _call(AgentControl.SUBMIT_AUTOMATION_SUGGESTION, control.SubmitAutomationSuggestionRequest(suggestion=more)),
        _call(AgentControl.RETRY_WORKLOAD, control.RetryWorkloadRequest(workload_id="chatty")),
        _call(AgentControl.RETRY_WORKLOAD, control.RetryWorkloadRequest(workload_id="none-such")),
        _wait("workload", "chatty", "Completed"),
    )


def _agent() -> tuple[Step, ...]:
    stray = agent.ApplyWorkloadRequest(
        id="stray",
        type=agent.WORKLOAD_TYPE_PROCESS,
        revision_id="theirs",
        desired_state=agent.DESIRED_STATE_RUNNING,
        spec=agent.WorkloadSpec(process=run.ProcessSpec(command=["sleep", "3600"])),
    )
    adopt = control.AdoptWorkloadRequest(node_id=REAL_NODE, workload_id="stray")
    none = agent.GetWorkloadStatusRequest(id="none-such")
    command = execution.ExecRequest(start=execution.ExecStart(workload_id="web", command=["echo", "inside"]))
    tree = coordination.CoordinationRequest(open=coordination.OpenSession(timeout_ms=1000))
    nowhere = execution.ExecRequest(start=execution.ExecStart(workload_id="none-such", command=["true"]))
    return (
        _call(AgentService.APPLY_WORKLOAD, stray, by="control"),
        _call(AgentService.APPLY_WORKLOAD, stray, ends="PERMISSION_DENIED"),
        _wait("orphan", REAL_NODE, "stray"),
        _wait("workload", "web", "Running"),
        _call(AgentService.GET_WORKLOAD_STATUS, agent.GetWorkloadStatusRequest(id="web")),
        _call(AgentService.GET_WORKLOAD_STATUS, none, ends="NOT_FOUND"),
        _call(AgentService.LIST_ACTIONS, agent.ListActionsRequest(workload_id="web", limit=2)),
        _call(AgentService.HEALTH_CHECK, agent.HealthCheckRequest()),
        _call(AgentService.READ_LOGS, agent.ReadLogsRequest(workload_id="chatty", tail_lines=2)),
        _call(WorkloadExec.EXEC, command),
        _call(WorkloadExec.EXEC, nowhere, ends="NOT_FOUND"),
        _call(AgentExec.EXEC, command, by="control"),
        _call(AgentExec.EXEC, command, ends="PERMISSION_DENIED"),
        _call(Coordination.SESSION, tree),
        _call(AgentService.GET_WORKLOAD_SPEC, agent.GetWorkloadSpecRequest(id="stray"), by="control"),
        _call(AgentControl.ADOPT_WORKLOAD, adopt),
        _call(AgentControl.ADOPT_WORKLOAD, adopt, ends="FAILED_PRECONDITION"),
        _wait("workload", "stray", "Running"),
        _call(AgentService.LIST_WORKLOADS, agent.ListWorkloadsRequest(type=agent.WORKLOAD_TYPE_PROCESS)),
        _call(AgentService.DELETE_WORKLOAD, agent.DeleteWorkloadRequest(id="never-there"), by="control"),
    )


def _nodes() -> tuple[Step, ...]:
    drain = control.DrainNodeRequest(node_id=GUEST_NODE, deadline_ms=60_000)
    return (
        _call(AgentControl.CORDON_NODE, control.CordonNodeRequest(node_id=GUEST_NODE)),
        _call(AgentControl.UNCORDON_NODE, control.UncordonNodeRequest(node_id=GUEST_NODE)),
        _call(AgentControl.LABEL_NODE, control.LabelNodeRequest(node_id=GUEST_NODE, set={"rack": "r1"})),
        _call(AgentControl.LABEL_NODE, control.LabelNodeRequest(node_id=GUEST_NODE, remove=["rack"])),
        _call(AgentControl.DRAIN_NODE, drain),
        _call(AgentControl.DRAIN_NODE, control.DrainNodeRequest(node_id="none-such"), ends="NOT_FOUND"),
        _wait("wish", GUEST_NODE, "drained"),
        _call(AgentControl.GET_NODE, control.GetNodeRequest(node_id=GUEST_NODE)),
        _call(AgentControl.UNCORDON_NODE, control.UncordonNodeRequest(node_id=GUEST_NODE)),
        _call(AgentControl.LIST_NODES, control.ListNodesRequest(status="Ready", page_size=1)),
        _call(AgentControl.GET_CLUSTER_SUMMARY, control.GetClusterSummaryRequest()),
        _call(AgentControl.REMOVE_NODE, control.RemoveNodeRequest(node_id=REAL_NODE), ends="FAILED_PRECONDITION"),
    )


def _group() -> tuple[Step, ...]:
    """The guest gets its commands through the stream that it has opened, and asks for a certificate of its workload."""
    member = control.GroupMember(
        workload_id=MEMBER, revision_id="v1", spec=_process(["serve"], node=GUEST_NODE, identity=True)
    )
    applied = agent.ApplyWorkloadResponse(
        applied=True,
        message="accepted",
        status=agent.WorkloadStatus(
            id=MEMBER, type=agent.WORKLOAD_TYPE_PROCESS, actual_state=agent.ACTUAL_STATE_PENDING
        ),
    )
    running = control.WorkloadStatus(
        workload_id=MEMBER,
        state="Running",
        run=run.RunDetail(generation=1, revision_id="v1", ready=True, restarts=0),
    )
    removed = agent.DeleteWorkloadResponse(success=True, session="{session.2}", next_beat=3)
    issue = enrollment.IssueWorkloadCertificateRequest(workload_id=MEMBER, csr=signing_request(GUEST_NODE))
    foreign = enrollment.IssueWorkloadCertificateRequest(workload_id="web", csr=signing_request(GUEST_NODE))
    guest = GUEST_NODE
    return (
        Step("open", guest, _STREAM),
        _send(control.ControlMessage(message_id=1, register=_registration("{session.1}")), by=guest),
        _take("register_reply", by=guest),
        _send(control.ControlMessage(message_id=2, heartbeat=_heartbeat(1)), by=guest),
        _take("heartbeat_reply", by=guest),
        _send(control.ControlMessage(message_id=3, heartbeat=control.HeartbeatRequest(node_id=REAL_NODE)), by=guest),
        _take("error", by=guest),
        _call(
            AgentControl.APPLY_GROUP,
            control.ApplyGroupRequest(group_id=GROUP, members=[member], expected_generation=0),
        ),
        _take("call", "ApplyWorkload", by=guest),
        _send(_answer(applied), by=guest),
        _send(control.ControlMessage(message_id=4, heartbeat=_heartbeat(2, running)), by=guest),
        _take("heartbeat_reply", by=guest),
        _wait("workload", MEMBER, "Running"),
        _call(AgentControl.GET_GROUP, control.GetGroupRequest(group_id=GROUP)),
        _call(AgentControl.GET_GROUP, control.GetGroupRequest(group_id="none-such"), ends="NOT_FOUND"),
        _call(AgentControl.LIST_GROUPS, control.ListGroupsRequest(page_size=10)),
        *_carried(),
        _call(Credentials.ISSUE_WORKLOAD_CERTIFICATE, issue, by=guest),
        _call(Credentials.ISSUE_WORKLOAD_CERTIFICATE, foreign, by=guest, ends="PERMISSION_DENIED"),
        _call(AgentControl.DELETE_GROUP, control.DeleteGroupRequest(group_id=GROUP)),
        _take("call", "DeleteWorkload", by=guest),
        _send(_answer(removed), by=guest),
        _send(control.ControlMessage(message_id=5, heartbeat=_heartbeat(3)), by=guest),
        _take("heartbeat_reply", by=guest),
        _wait("workload", MEMBER, "gone"),
        Step("close", guest, _STREAM),
        _wait("node", guest, "Suspect"),
    )


def _carried() -> tuple[Step, ...]:
    """Calls that the control plane carries on through the guest's stream: in pieces, broken off, and refused."""
    guest, piece = GUEST_NODE, agent.LogChunk(data=b"one\n", stream="stdout")
    logs = control.ReadLogsRequest(workload_id=MEMBER, tail_lines=1)
    follow = control.ReadLogsRequest(workload_id=MEMBER, follow=True)
    adopt = control.AdoptWorkloadRequest(node_id=guest, workload_id="none-such")
    unknown = control.CallStatus(
        code=Code.NOT_FOUND,
        message="workload 'none-such' not found",
        detail=run.ErrorDetail(type="NotFoundError", facts={"kind": "workload", "id": "none-such"}),
    )
    return (
        _begin(AgentControl.READ_LOGS, logs),
        _take("call", "ReadLogs", by=guest),
        _send(_answer(piece, more=True), by=guest),
        _send(_answer(), by=guest),
        _finish(AgentControl.READ_LOGS),
        _begin(AgentControl.READ_LOGS, follow, pieces=1),
        _take("call", "ReadLogs", by=guest),
        _send(_answer(piece, more=True), by=guest),
        _finish(AgentControl.READ_LOGS),
        _take("call", "cancel", by=guest),
        _begin(AgentControl.ADOPT_WORKLOAD, adopt),
        _take("call", "GetWorkloadSpec", by=guest),
        _send(_answer(status=unknown), by=guest),
        _finish(AgentControl.ADOPT_WORKLOAD, ends="NOT_FOUND"),
    )


def _stream() -> tuple[Step, ...]:
    """An operator's stream carries requests."""
    brief = control.ApplyWorkloadRequest(workload_id="brief", spec=_process(["sleep", "3600"]))
    return (
        Step("open", "operator", _STREAM),
        _send(control.ControlMessage(message_id=1, apply=brief), by="operator"),
        _take("apply_reply", by="operator"),
        _wait("workload", "brief", "Running"),
        _send(
            control.ControlMessage(message_id=2, delete=control.DeleteWorkloadRequest(workload_id="brief")),
            by="operator",
        ),
        _take("delete_reply", by="operator"),
        _wait("workload", "brief", "gone"),
        Step("close", "operator", _STREAM),
    )


def _jobs() -> tuple[Step, ...]:
    """A service from its submit to its end."""
    submit = jobs.SubmitJobRequest(job_id="shop", engine="service", spec=_service(), client_key="key-1")
    other = jobs.SubmitJobRequest(job_id="shop", engine="service", spec=_service(count=2), client_key="key-1")
    unknown = jobs.SubmitJobRequest(job_id="shop", engine="none-such")
    savepoint = jobs.SavepointJobRequest(job_id="shop", stop=True)
    report = jobs.ReportJobRequest(
        job_id="shop", workload_id="shop-0", node_id=REAL_NODE, revision_id="r1", report=b"well", read=["shop-0"]
    )
    return (
        _call(Jobs.SUBMIT, submit),
        _call(Jobs.SUBMIT, other, ends="INVALID_ARGUMENT"),
        _call(Jobs.SUBMIT, unknown, ends="INVALID_ARGUMENT"),
        _wait("job", "shop", "Running"),
        _call(Jobs.SUBMIT, submit),  # the same one again
        _call(Jobs.GET, jobs.GetJobRequest(job_id="shop")),
        _call(Jobs.GET, jobs.GetJobRequest(job_id="none-such"), ends="NOT_FOUND"),
        _call(Jobs.GET, jobs.GetJobRequest(job_id="shop"), by=GUEST_NODE, ends="PERMISSION_DENIED"),
        _call(Jobs.REPORT, report, by="workload"),
        _call(Jobs.REPORT, report, ends="PERMISSION_DENIED"),
        _call(Jobs.LIST, jobs.ListJobsRequest(engine="service", page_size=10)),
        _call(Jobs.WATCH, jobs.WatchJobRequest(job_id="shop"), pieces=1),
        _call(Jobs.RESCALE, jobs.RescaleJobRequest(job_id="shop", width=2)),
        _wait("job", "shop", "Running"),
        _call(Jobs.RESCALE, jobs.RescaleJobRequest(job_id="shop", width=-1), ends="INVALID_ARGUMENT"),
        _call(Jobs.UPGRADE, jobs.UpgradeJobRequest(job_id="shop", spec=_service(count=2, word="two"))),
        _wait("job", "shop", "Running"),
        _call(Jobs.SAVEPOINT, savepoint),
        _wait("job", "shop", "Stopped"),
        _call(Jobs.RESUME, jobs.ResumeJobRequest(job_id="shop")),
        _wait("job", "shop", "Running"),
        _call(Jobs.CANCEL, jobs.CancelJobRequest(job_id="shop")),
        _wait("job", "shop", "Canceled"),
    )


def _service(*, count: int = 1, word: str = "one") -> bytes:
    """What the engine `service` reads."""
    workload = {
        "type": "process",
        "process": {"command": ["sleep", "3600"], "env": {"WORD": word}},
        "resources": {"cpu_millicores": 100, "memory_mb": 64},
        "placement": {"constraints": [{"key": "node_id", "operator": "in", "values": [REAL_NODE]}]},
    }
    plain = {"count": count, "update": {"parallel": 2, "settle": "0s"}, "workload": workload}
    return json.dumps(plain, sort_keys=True).encode()


def _leaving() -> tuple[Step, ...]:
    events = control.ListEventsRequest(limit=3, subject_kind="node", subject_id=GUEST_NODE)
    watch = control.WatchEventsRequest(subject_kind="node", subject_id=GUEST_NODE)
    return (
        _call(AgentControl.LIST_EVENTS, events),
        _call(AgentControl.WATCH_EVENTS, watch, pieces=1),
        _call(AgentControl.DELETE_WORKLOAD, control.DeleteWorkloadRequest(workload_id="web")),
        _wait("workload", "web", "gone"),
        _call(AgentControl.DELETE_WORKLOAD, control.DeleteWorkloadRequest(workload_id="web")),
        _call(Secrets.DELETE_SECRET, secrets.DeleteSecretRequest(name=SECRET)),
        _call(AgentControl.MARK_NODE_DEAD, control.MarkNodeDeadRequest(node_id=GUEST_NODE, force=True)),
        _call(AgentControl.REMOVE_NODE, control.RemoveNodeRequest(node_id=GUEST_NODE)),
    )


def _registration(previous: str = "") -> control.RegisterNodeRequest:
    return control.RegisterNodeRequest(
        node_id=GUEST_NODE,
        capabilities=control.NodeCapabilities(
            cpu_total_millicores=4000,
            memory_total_mb=4096,
            storage_pools=[control.StoragePool(name="root", type="local", total_gb=10)],
            supported_workload_types=["process"],
            supported_storage_drivers=["local"],
        ),
        labels={"kind": "guest"},
        agent_version="recorded",
        cluster_id=CLUSTER,
        host_id="elsewhere",
        slots=2,
        features=[feature.value for feature in Feature],
        previous_session=previous,
        instance="first" if not previous else "second",
    )


def _heartbeat(
    sequence: int, *statuses: control.WorkloadStatus, session: str = "{session.2}"
) -> control.HeartbeatRequest:
    return control.HeartbeatRequest(
        node_id=GUEST_NODE,
        session=session,
        sequence=sequence,
        usage=control.NodeUsage(cpu_used_millicores=10, memory_used_mb=64),
        workload_statuses=statuses,
    )


def _answer(
    response: Message | None = None, *, more: bool = False, status: control.CallStatus | None = None
) -> control.ControlMessage:
    """An answer to the call of the control plane that was taken last."""
    data = response.SerializeToString(deterministic=True) if response is not None else b""
    return control.ControlMessage(call_reply=control.CallReply(response=data, more=more, status=status))

"""For every RPC a request that is right in the world of `worlds.py`. Rubbish is made from these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from shoal.testing.control import process_spec
from shoal.wire.pb.monolith.serving import agent_service_pb2 as serving
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as artifacts
from shoal.wire.pb.shoal.v1 import coordination_pb2 as coordination
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.pb.shoal.v1 import exec_pb2 as execution
from shoal.wire.pb.shoal.v1 import jobs_pb2 as jobs
from shoal.wire.pb.shoal.v1 import secrets_pb2 as secrets
from tests.fuzz.worlds import EMPTY, SERVICE, AgentWorld, ControlWorld, DiscoveryWorld, TrustWorld
from tests.unit.agent.making import workload


def _register(_world: ControlWorld) -> Message:
    return control.RegisterNodeRequest(
        node_id="n2",
        capabilities=control.NodeCapabilities(
            cpu_total_millicores=1000,
            memory_total_mb=1024,
            supported_workload_types=["container"],
            storage_pools=[control.StoragePool(name="root", type="local", total_gb=10)],
        ),
        labels={"os": "linux"},
        agent_version="1",
        grpc_endpoint="127.0.0.1:50051",
    )


def _heartbeat(world: ControlWorld) -> Message:
    request = control.HeartbeatRequest(
        node_id="n1",
        session=world.node.session,
        sequence=world.node.sequence + 1000,
        usage=control.NodeUsage(cpu_used_millicores=1),
    )
    status = request.workload_statuses.add(workload_id="web", state="Running", message="up")
    status.run.generation = 1
    status.usage.cpu_percent = 1.0
    request.workload_usage.add(workload_id="web", memory_bytes=1)
    request.timestamp.FromDatetime(world.kit.clock.wall())
    return request


def _apply(_world: ControlWorld) -> Message:
    request = control.ApplyWorkloadRequest(workload_id="fresh", spec=process_spec(port=9000, labels={"a": "b"}))
    request.revision_id, request.desired_state = "r1", "Running"
    return request


def _group(_world: ControlWorld) -> Message:
    members = [control.GroupMember(workload_id=f"crew-{number}", spec=process_spec()) for number in range(3)]
    return control.ApplyGroupRequest(group_id="crew", members=members)


def _suggestion(_world: ControlWorld) -> Message:
    suggestion = control.AutomationSuggestion(
        suggestion_id="s1", target_workload="web", action_type=control.SET_DESIRED_STATE, desired_state="Stopped"
    )
    return control.SubmitAutomationSuggestionRequest(suggestion=suggestion)


def _plan(_world: ControlWorld) -> Message:
    return control.PlanPlacementRequest(members=[control.GroupMember(workload_id="web", spec=process_spec())])


def _stream(world: ControlWorld) -> Message:
    return control.ControlMessage(apply=_apply(world))


def _agent_apply(_world: AgentWorld) -> Message:
    return agent.ApplyWorkloadRequest(
        id="web",
        type=agent.WORKLOAD_TYPE_PROCESS,
        revision_id="r2",
        desired_state=agent.DESIRED_STATE_RUNNING,
        spec=workload(),
        generation=7,
    )


def _same(message: Message) -> Callable[[Any], Message]:
    return lambda _world: message


#: By the method's name. A new RPC gets its line here in the change that adds it.
EXEC = execution.ExecRequest(
    start=execution.ExecStart(
        workload_id="web",
        command=["true"],
        terminal=True,
        window=execution.WindowSize(rows=20, columns=70),
        term="xterm",
    )
)

SESSION = coordination.CoordinationRequest(open=coordination.OpenSession(timeout_ms=5000))

CONTROL: dict[str, Callable[[ControlWorld], Message]] = {
    "RegisterNode": _register,
    "Heartbeat": _heartbeat,
    "ApplyWorkload": _apply,
    "DeleteWorkload": _same(control.DeleteWorkloadRequest(workload_id="web")),
    "RetryWorkload": _same(control.RetryWorkloadRequest(workload_id="web")),
    "SubmitAutomationSuggestion": _suggestion,
    "ListNodes": _same(control.ListNodesRequest(status="Ready")),
    "GetNode": _same(control.GetNodeRequest(node_id="n1")),
    "ListWorkloads": _same(control.ListWorkloadsRequest(node_id="n1", status="Running")),
    "GetWorkload": _same(control.GetWorkloadRequest(workload_id="web")),
    "GetClusterSummary": _same(control.GetClusterSummaryRequest()),
    "ControlStream": _stream,
    "ApplyGroup": _group,
    "DeleteGroup": _same(control.DeleteGroupRequest(group_id="crew")),
    "GetGroup": _same(control.GetGroupRequest(group_id="crew")),
    "ListGroups": _same(control.ListGroupsRequest()),
    "SetDesiredState": _same(control.SetDesiredStateRequest(workload_id="web", desired_state="Stopped")),
    "RemoveNode": _same(control.RemoveNodeRequest(node_id="lost")),
    "CordonNode": _same(control.CordonNodeRequest(node_id="n1")),
    "UncordonNode": _same(control.UncordonNodeRequest(node_id="n1")),
    "LabelNode": _same(control.LabelNodeRequest(node_id="n1", set={"zone": "a"}, remove=["rack"])),
    "DrainNode": _same(control.DrainNodeRequest(node_id="n1", deadline_ms=60_000)),
    "MarkNodeDead": _same(control.MarkNodeDeadRequest(node_id="lost")),
    "AdoptWorkload": _same(control.AdoptWorkloadRequest(node_id="n1", workload_id="stray")),
    "PlanPlacement": _plan,
    "ListEvents": _same(control.ListEventsRequest(after=1, limit=10, subject_kind="node", subject_id="n1")),
    "WatchEvents": _same(control.WatchEventsRequest(after=1, subject_kind="node", subject_id="n1")),
    "ReadLogs": _same(control.ReadLogsRequest(workload_id="web", tail_lines=5)),
    "Exec": _same(EXEC),
    "Session": _same(SESSION),
    "Submit": _same(jobs.SubmitJobRequest(job_id="fresh-job", engine="service", spec=SERVICE, client_key="k1")),
    "Get": _same(jobs.GetJobRequest(job_id="shop")),
    "List": _same(jobs.ListJobsRequest(engine="service", page_size=5)),
    "Watch": _same(jobs.WatchJobRequest(job_id="shop")),
    "Cancel": _same(jobs.CancelJobRequest(job_id="shop")),
    "Savepoint": _same(jobs.SavepointJobRequest(job_id="shop", stop=True)),
    "Resume": _same(jobs.ResumeJobRequest(job_id="resting")),
    "Rescale": _same(jobs.RescaleJobRequest(job_id="shop", width=2)),
    "Upgrade": _same(jobs.UpgradeJobRequest(job_id="shop", spec=SERVICE)),
    "Report": _same(
        jobs.ReportJobRequest(
            job_id="shop", workload_id="shop-0", node_id="n1", revision_id="r1", report=b"{}", read=["shop-0"]
        )
    ),
    "Upload": _same(artifacts.UploadArtifactRequest(start=artifacts.ArtifactStart(sha256=EMPTY, size=0))),
    "Download": _same(artifacts.DownloadArtifactRequest(sha256=EMPTY)),
}

AGENT: dict[str, Callable[[AgentWorld], Message]] = {
    "ApplyWorkload": _agent_apply,
    "DeleteWorkload": _same(agent.DeleteWorkloadRequest(id="web", generation=9)),
    "GetWorkloadStatus": _same(agent.GetWorkloadStatusRequest(id="web")),
    "ListWorkloads": _same(agent.ListWorkloadsRequest(type=agent.WORKLOAD_TYPE_PROCESS)),
    "HealthCheck": _same(agent.HealthCheckRequest()),
    "ListActions": _same(agent.ListActionsRequest(workload_id="web", limit=3, newest_first=True)),
    "ReadLogs": _same(agent.ReadLogsRequest(workload_id="web", tail_lines=5)),
    "Exec": _same(EXEC),
    "GetWorkloadSpec": _same(agent.GetWorkloadSpecRequest(id="web")),
}

TRUST: dict[str, Callable[[TrustWorld], Message]] = {
    "GetAuthority": _same(enrollment.GetAuthorityRequest()),
    "Join": lambda world: enrollment.JoinRequest(token=world.token, csr=world.new_request.csr),
    "CreateJoinToken": _same(enrollment.CreateJoinTokenRequest(ttl_ms=60_000, node_id="n2", uses=1)),
    "ListJoinTokens": _same(enrollment.ListJoinTokensRequest()),
    "RevokeJoinToken": lambda world: enrollment.RevokeJoinTokenRequest(token_id=world.token_id),
    "RenewCertificate": lambda world: enrollment.RenewCertificateRequest(csr=world.request.csr),
    "IssueWorkloadCertificate": lambda world: enrollment.IssueWorkloadCertificateRequest(
        workload_id="web", csr=world.workload_request.csr
    ),
    "SetSecret": _same(secrets.SetSecretRequest(name="password", value=b"hidden")),
    "ListSecrets": _same(secrets.ListSecretsRequest()),
    "DeleteSecret": _same(secrets.DeleteSecretRequest(name="password")),
}

DISCOVERY: dict[str, Callable[[DiscoveryWorld], Message]] = {
    "GetReplicas": _same(serving.GetReplicasRequest(server_type=serving.PS, task=0, model_name="m")),
    "GetResource": _same(serving.GetResourceRequest()),
    "HeartBeat": _same(serving.HeartBeatRequest(server_type=serving.DENSE)),
}

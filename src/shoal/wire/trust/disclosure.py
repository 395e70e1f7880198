"""What each role may see: one table over every field of every answer, and the one place that applies it.

An answer to anyone but an operator is built anew from the fields that the table lists for that caller, at every depth,
in lists and in streams alike. A field that the table does not list is shown to nobody, and a test compares the table
with the messages of `shoal.wire.methods`. Pure: message and identity in, message out.

Called by `shoal.wire.serving` for every answer wherever callers have identities, for every transport alike.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from shoal.model.identity import Identity, Role

M = TypeVar("M", bound=Message)


class Audience(enum.Enum):
    """Who reads an answer."""

    OPERATOR = "operator"
    CONTROL = "control"
    #: The agent of the node that the workload is assigned to.
    OWNER = "agent of the owner"
    AGENT = "agent"
    #: A member of the group that the answer is about.
    WORKLOAD = "workload"


Audiences = frozenset[Audience]

_NOBODY: Audiences = frozenset()
_OPERATOR = frozenset({Audience.OPERATOR})
_CONTROL = frozenset({Audience.CONTROL})
_CONTROL_AND_OPERATOR = _CONTROL | _OPERATOR
_AGENTS = frozenset({Audience.AGENT, Audience.OWNER})
_AGENTS_AND_OPERATOR = _AGENTS | _OPERATOR
_MEMBERS = frozenset({Audience.WORKLOAD})
_MEMBERS_AND_OPERATOR = _MEMBERS | _OPERATOR
_CLIENTS = _AGENTS_AND_OPERATOR | _MEMBERS_AND_OPERATOR
_OWNERS = frozenset({Audience.OWNER}) | _CONTROL_AND_OPERATOR
_OWNERS_AND_MEMBERS = _OWNERS | _MEMBERS_AND_OPERATOR
_EVERYONE = frozenset(Audience)

_TABLE: Mapping[str, Mapping[Audiences, str]] = {
    # Registration and heartbeats; agents and foreign schedulers.
    "persys.control.v1.RegisterNodeResponse": {
        _AGENTS_AND_OPERATOR: "accepted reason heartbeat_interval_seconds lease_expires_at session "
        "heartbeat_interval_ms lease_ms",
    },
    "persys.control.v1.HeartbeatResponse": {
        _AGENTS_AND_OPERATOR: "acknowledged drain_node lease_expires_at lease_ms heartbeat_interval_ms term "
        "unconfirmed takes_batches",
    },
    "persys.control.v1.ApplyWorkloadResponse": {
        _AGENTS_AND_OPERATOR: "success failure_reason error_message revision_id generation outcome problems",
    },
    "shoal.v1.FieldProblem": {_CLIENTS: "field value rule"},
    "persys.control.v1.DeleteWorkloadResponse": {_AGENTS_AND_OPERATOR: "success error_message"},
    # Output of a command: the operator's, passed on by the control plane.
    "shoal.v1.ExecResponse": {_CONTROL_AND_OPERATOR: "started stdout stderr ended"},
    "shoal.v1.ExecStarted": {_CONTROL_AND_OPERATOR: "node_id"},
    "shoal.v1.ExecEnded": {_CONTROL_AND_OPERATOR: "exit_code signal"},
    # Answers to operators.
    "persys.control.v1.RetryWorkloadResponse": {_OPERATOR: "accepted error_message"},
    "persys.control.v1.SubmitAutomationSuggestionResponse": {
        _OPERATOR: "accepted decision reason applied_action decided_at",
    },
    "persys.control.v1.ListNodesResponse": {_OPERATOR: "nodes next_page_token"},
    "persys.control.v1.NodeView": {
        _OPERATOR: "node_id status status_reason status_updated_by status_updated_at last_heartbeat grpc_endpoint "
        "total_cpu_cores available_cpu_cores total_memory_mb available_memory_mb supported_workload_types "
        "labels total_slots available_slots host_id session agent_version features clock_skew_ms "
        "total_disk_gb available_disk_gb usage workload_count lease_expires_at orphans cluster_id "
        "storage_drivers wish wish_updated_at drain_deadline leaving failover conditions storage_pools",
    },
    "shoal.v1.NodeCondition": {_OPERATOR: "type message since_ms"},
    "persys.control.v1.NodeUsage": {
        _OPERATOR: "cpu_allocated_millicores cpu_used_millicores memory_allocated_mb memory_used_mb disk_allocated_gb "
        "disk_used_gb slots_used",
    },
    "persys.control.v1.GetNodeResponse": {_OPERATOR: "node"},
    "persys.control.v1.ListWorkloadsResponse": {_OPERATOR: "workloads next_page_token"},
    # One workload. An agent that does not own it learns who does, and nothing else.
    "persys.control.v1.WorkloadView": {
        _EVERYONE: "workload_id desired_state assigned_node_id generation",
        _OWNERS_AND_MEMBERS: "type status state revision_id group_id observed_revision_id",
        _OWNERS: "retry_attempts retry_max_attempts retry_next_at failure_reason last_updated reason usage run spec "
        "created_at spec_sha256 labels",
        _OPERATOR: "rejections moving_from left_on",
    },
    "persys.control.v1.ReasonDetail": {_OWNERS: "code message last_transition next_retry_at retryable"},
    "persys.control.v1.WorkloadUsageSnapshot": {
        _OWNERS: "workload_id type cpu_percent memory_bytes disk_read_bytes disk_write_bytes net_rx_bytes net_tx_bytes "
        "collected_at source",
    },
    "shoal.v1.RunDetail": {
        _OWNERS: "generation exit ports restarts ready last_output started_at_ms spec_sha256 revision_id completed pid "
        "deleting next_restart_at_ms services",
    },
    "shoal.v1.ExitDetail": {_OWNERS: "code signal unknown ended_at_ms out_of_memory"},
    "persys.control.v1.NodeRejection": {_OPERATOR: "node_id code message"},
    # Specs: for the node that runs them.
    "persys.control.v1.WorkloadSpec": {
        _OWNERS: "type resources container compose vm process metadata placement slots at_most_one labels failover",
    },
    "persys.control.v1.ResourceRequirements": {_OWNERS: "cpu_millicores memory_mb disk_gb"},
    "persys.control.v1.ContainerSpec": {
        _OWNERS: "image command env volumes ports restart_policy privileged managed_volumes args labels options",
    },
    "persys.control.v1.VolumeMount": {_OWNERS: "host_path container_path read_only"},
    "persys.control.v1.Port": {_OWNERS: "host_port container_port protocol name"},
    "persys.control.v1.ManagedVolumeSpec": {
        _OWNERS: "name driver size_gb access_mode fs_type mount_path read_only retain_policy pool_name",
    },
    "persys.control.v1.ComposeSpec": {_OWNERS: "source_type git_repo git_ref inline_yaml env options"},
    "persys.control.v1.VMSpec": {_OWNERS: "vcpus memory_mb disks networks cloud_init os_image managed_volumes options"},
    "persys.control.v1.DiskConfig": {_OWNERS: "pool_name size_gb mount_point options"},
    "persys.control.v1.NetworkConfig": {_OWNERS: "bridge dhcp static_ip options"},
    "persys.control.v1.CloudInitConfig": {_OWNERS: "user_data meta_data network_config vendor_data"},
    "shoal.v1.ProcessSpec": {
        _OWNERS: "command env working_dir args user restart readiness stop ports clear_env env_from_secrets identity "
        "liveness files artifacts",
    },
    "shoal.v1.File": {_OWNERS: "path content secret mode"},
    "shoal.v1.Artifact": {_OWNERS: "sha256 path"},
    "shoal.v1.ContainerOptions": {
        _OWNERS: "init user working_dir stop pull_policy ulimits cpu_shares restart readiness liveness "
        "env_from_secrets files",
    },
    "shoal.v1.Ulimit": {_OWNERS: "name soft hard"},
    "shoal.v1.ComposeOptions": {_OWNERS: "stop restart retain_policy env_from_secrets files"},
    "shoal.v1.VmOptions": {
        _OWNERS: "kernel initrd kernel_args os_image_sha256 acceleration boot stop restart retain_policy",
    },
    "shoal.v1.VmBoot": {_OWNERS: "console tcp_port guest_agent deadline_ms"},
    "shoal.v1.VmDiskOptions": {_OWNERS: "image sha256 format read_only path name"},
    "shoal.v1.VmNetworkOptions": {_OWNERS: "tap mac ports name"},
    "shoal.v1.PortForward": {_OWNERS: "guest_port host_port protocol name"},
    "shoal.v1.RestartPolicy": {_OWNERS: "policy max_retries delay_ms max_delay_ms healthy_after_ms"},
    "shoal.v1.Readiness": {
        _OWNERS: "tcp_port http command interval_ms timeout_ms deadline_ms period_ms failure_threshold"
    },
    "shoal.v1.Liveness": {_OWNERS: "tcp_port http command interval_ms timeout_ms failure_threshold"},
    "shoal.v1.HttpProbe": {_OWNERS: "port path"},
    "shoal.v1.CommandProbe": {_OWNERS: "command"},
    "shoal.v1.StopPolicy": {_OWNERS: "signal grace_ms"},
    "shoal.v1.NamedPort": {_OWNERS: "name port"},
    "shoal.v1.Placement": {_OWNERS: "constraints affinities storage_drivers"},
    "shoal.v1.Constraint": {_OWNERS: "key operator values"},
    "shoal.v1.Affinity": {_OWNERS: "workloads scope direction required weight"},
    "shoal.v1.Failover": {_OWNERS: "policy after_ms migrate"},
    # Answers.
    "persys.control.v1.GetWorkloadResponse": {_AGENTS_AND_OPERATOR: "workload"},
    "persys.control.v1.ClusterSummary": {
        _OPERATOR: "total_nodes ready_nodes not_ready_nodes total_workloads running_workloads pending_workloads "
        "failed_workloads deleted_workloads generated_at suspect_nodes stopped_workloads completed_workloads "
        "deleting_workloads lost_workloads groups cluster_id",
    },
    "persys.control.v1.ControlMessage": {
        _AGENTS_AND_OPERATOR: "register_reply heartbeat_reply apply_reply delete_reply call error message_id "
        "in_reply_to batch",
        # Only clients send these.
        _NOBODY: "register heartbeat apply delete call_reply",
    },
    "persys.control.v1.RegisterNodeRequest": {
        _NOBODY: "node_id capabilities labels agent_version grpc_endpoint cluster_id timestamp host_id slots features "
        "previous_session instance",
    },
    "persys.control.v1.NodeCapabilities": {
        _NOBODY: "cpu_total_millicores memory_total_mb storage_pools supported_workload_types "
        "supported_storage_drivers",
    },
    "persys.control.v1.StoragePool": {_OPERATOR: "name type total_gb available_gb"},
    "persys.control.v1.HeartbeatRequest": {
        _NOBODY: "node_id usage workload_statuses timestamp workload_usage session sequence conditions",
    },
    "persys.control.v1.WorkloadStatus": {
        _NOBODY: "workload_id state failure_reason message last_transition reason usage run",
    },
    "persys.control.v1.ApplyWorkloadRequest": {
        _NOBODY: "workload_id spec revision_id desired_state expected_revision",
    },
    "persys.control.v1.DeleteWorkloadRequest": {_NOBODY: "workload_id"},
    "persys.control.v1.CallRequest": {
        _AGENTS_AND_OPERATOR: "method request metadata timeout_ms cancel credit piece end"
    },
    "persys.control.v1.CallReply": {_NOBODY: "response more status credit"},
    "persys.control.v1.CallStatus": {_AGENTS_AND_OPERATOR: "code message detail invalid"},
    "shoal.v1.ErrorDetail": {_CLIENTS: "type facts hint"},
    "shoal.v1.InvalidRequest": {_CLIENTS: "problems"},
    # The coordination tree: everybody who may connect reads it.
    "shoal.v1.CoordinationResponse": {_CLIENTS: "opened pong answer followed ended"},
    "shoal.v1.SessionOpened": {_CLIENTS: "session_id timeout_ms"},
    "shoal.v1.TreeAnswer": {_CLIENTS: "id error error_type path node children"},
    "shoal.v1.TreeError": {_CLIENTS: "code message detail invalid"},
    "shoal.v1.TreeNode": {_CLIENTS: "data version owner created modified"},
    "shoal.v1.NodeFollowed": {_CLIENTS: "path children exists node names"},
    "persys.control.v1.ApplyGroupResponse": {_MEMBERS_AND_OPERATOR: "generation outcome members"},
    "persys.control.v1.DeleteGroupResponse": {_OPERATOR: "generation"},
    "persys.control.v1.GetGroupResponse": {_OPERATOR: "group"},
    "persys.control.v1.GroupView": {_OPERATOR: "group_id generation status message members member_changes"},
    "shoal.v1.MemberChanges": {_OPERATOR: "min_members max_members arg_prefixes"},
    "persys.control.v1.ListGroupsResponse": {_OPERATOR: "groups next_page_token"},
    "persys.control.v1.SetDesiredStateResponse": {_OPERATOR: "workload"},
    "persys.control.v1.RemoveNodeResponse": {},
    "persys.control.v1.CordonNodeResponse": {_OPERATOR: "node"},
    "persys.control.v1.LabelNodeResponse": {_OPERATOR: "node"},
    "persys.control.v1.UncordonNodeResponse": {_OPERATOR: "node"},
    "persys.control.v1.DrainNodeResponse": {_OPERATOR: "node"},
    "persys.control.v1.MarkNodeDeadResponse": {_OPERATOR: "node"},
    "persys.control.v1.AdoptWorkloadResponse": {_OPERATOR: "workload"},
    "persys.control.v1.PlanPlacementResponse": {_OPERATOR: "placements placeable"},
    "persys.control.v1.PlannedPlacement": {_OPERATOR: "workload_id node_id rejections scores change"},
    "persys.control.v1.NodeScore": {_OPERATOR: "node_id score parts"},
    "persys.control.v1.ListEventsResponse": {_OPERATOR: "events next oldest"},
    "persys.control.v1.Event": {
        _OPERATOR: "cursor time subject_kind subject_id kind message source cause facts labels"
    },
    "persys.control.v1.LogChunk": {_OPERATOR: "data stream time_ms position"},
    # Join tokens, certificates and secrets.
    "shoal.v1.CreateJoinTokenResponse": {_OPERATOR: "token view join_port"},
    "shoal.v1.JoinTokenView": {_OPERATOR: "token_id role node_id created_at expires_at created_by uses used_by"},
    "shoal.v1.ListJoinTokensResponse": {_OPERATOR: "tokens join_port"},
    "shoal.v1.RevokeJoinTokenResponse": {},
    "shoal.v1.RenewCertificateResponse": {_AGENTS: "certificate ca"},
    "shoal.v1.IssueWorkloadCertificateResponse": {_AGENTS: "certificate ca"},
    "shoal.v1.SetSecretResponse": {_OPERATOR: "secret"},
    "shoal.v1.SecretView": {_OPERATOR: "name created_at updated_at revision"},
    "shoal.v1.ListSecretsResponse": {_OPERATOR: "secrets"},
    "shoal.v1.DeleteSecretResponse": {},
    # Jobs.
    "shoal.v1.SubmitJobResponse": {_OPERATOR: "job created"},
    "shoal.v1.GetJobResponse": {_OPERATOR: "job reports"},
    "shoal.v1.ListJobsResponse": {_OPERATOR: "jobs next_page_token"},
    "shoal.v1.JobResponse": {_OPERATOR: "job"},
    "shoal.v1.JobView": {
        _OPERATOR: "job_id engine format state desired message transition request workload_ids spec progress "
        "created_at updated_at state_at taken_request",
    },
    "shoal.v1.JobRequestView": {_OPERATOR: "action number width operator stop cause"},
    "shoal.v1.ReportJobResponse": {
        _MEMBERS: "state desired action request_number stop reports taken_request job_key key_generation",
    },
    # Blobs. The control plane has checked that the reader's own work names the blob.
    "shoal.v1.UploadArtifactResponse": {_OPERATOR: "stored"},
    "shoal.v1.DownloadArtifactResponse": {_CLIENTS: "size data"},
    "shoal.v1.GetAuthorityResponse": {_NOBODY: "ca"},
    "shoal.v1.JoinResponse": {_NOBODY: "certificate ca"},
    # Answers of agents.
    "persys.agent.v1.ApplyWorkloadResponse": {_CONTROL_AND_OPERATOR: "applied skipped message status"},
    "persys.agent.v1.WorkloadStatus": {
        _CONTROL_AND_OPERATOR: "id type revision_id desired_state actual_state message created_at updated_at metadata "
        "usage run failure_reason",
    },
    "persys.agent.v1.WorkloadUsageSnapshot": {
        _CONTROL_AND_OPERATOR: "workload_id type cpu_percent memory_bytes disk_read_bytes disk_write_bytes "
        "net_rx_bytes net_tx_bytes collected_at source",
    },
    "persys.agent.v1.DeleteWorkloadResponse": {_CONTROL: "success message session next_beat"},
    "persys.agent.v1.GetWorkloadStatusResponse": {_CONTROL_AND_OPERATOR: "status"},
    "persys.agent.v1.ListWorkloadsResponse": {_CONTROL_AND_OPERATOR: "workloads"},
    "persys.agent.v1.HealthCheckResponse": {
        _CONTROL_AND_OPERATOR: "healthy version runtime_status memory_utilization cpu_utilization disk_utilization",
    },
    "persys.agent.v1.ListActionsResponse": {_CONTROL_AND_OPERATOR: "actions"},
    "persys.agent.v1.AgentAction": {
        _CONTROL_AND_OPERATOR: "task_id workload_id action_type status error created_at started_at ended_at",
    },
    "persys.agent.v1.LogChunk": {_CONTROL_AND_OPERATOR: "data stream time_ms position"},
    "persys.agent.v1.GetWorkloadSpecResponse": {
        _CONTROL: "id type revision_id desired_state spec generation deleting",
    },
}

#: Who may see a field, by the message's full name and the field's name.
FIELDS: Mapping[str, Mapping[str, Audiences]] = {
    message: {name: audiences for audiences, names in rows.items() for name in names.split()}
    for message, rows in _TABLE.items()
}

#: Packages whose messages are Shoal's; others, such as timestamps and the health service's, hold nothing to hide.
OWN_PACKAGES = ("persys.", "shoal.")

_WORKLOAD_VIEW = "persys.control.v1.WorkloadView"

_AUDIENCES = {
    Role.OPERATOR: Audience.OPERATOR,
    Role.CONTROL: Audience.CONTROL,
    Role.AGENT: Audience.AGENT,
    Role.WORKLOAD: Audience.WORKLOAD,
}


def disclose(answer: M, identity: Identity) -> M:
    """The part of an answer that this caller may see."""
    audience = _AUDIENCES[identity.role]
    if _is_open(answer, audience, identity):
        return answer
    return _visible(answer, audience, identity)


def _is_open(message: Message, audience: Audience, identity: Identity) -> bool:
    """Whether the caller may see everything that is set in a message, so that it need not be copied."""
    if _is_always_open(message.DESCRIPTOR, audience):
        return True
    fields = _fields(message)
    if fields is None:
        return True
    audience = _audience(message, audience, identity)
    doubtful = _doubtful_fields(message.DESCRIPTOR, audience)
    for field, value in message.ListFields():
        if field.name in doubtful and (
            audience not in fields.get(field.name, _NOBODY)
            or not all(_is_open(each, audience, identity) for each in _messages(field, value))
        ):
            return False
    return True


@functools.cache
def _is_always_open(kind: Descriptor, audience: Audience) -> bool:
    """Whether an audience may see every field of a kind of message, at every depth: most answers are of such a kind."""
    if not kind.full_name.startswith(OWN_PACKAGES):
        return True
    if audience is Audience.AGENT and kind.full_name == _WORKLOAD_VIEW:
        return False  # it depends on the owner
    return all(_is_open_field(kind, field, audience) for field in kind.fields)


@functools.cache
def _doubtful_fields(kind: Descriptor, audience: Audience) -> frozenset[str]:
    """The fields that an audience may not see, or not all of: the only ones that each message is searched for."""
    return frozenset(field.name for field in kind.fields if not _is_open_field(kind, field, audience))


def _is_open_field(kind: Descriptor, field: FieldDescriptor, audience: Audience) -> bool:
    inside = field.message_type
    return audience in FIELDS.get(kind.full_name, {}).get(field.name, _NOBODY) and (
        inside is None or _is_map(field) or _is_always_open(inside, audience)
    )


def _visible(message: M, audience: Audience, identity: Identity) -> M:
    fields = _fields(message)
    if fields is None:
        return message
    audience = _audience(message, audience, identity)
    shown = type(message)()
    for field, value in message.ListFields():
        if audience not in fields.get(field.name, _NOBODY):
            continue
        target = getattr(shown, field.name)
        if _is_map(field):
            target.MergeFrom(value)
        elif _is_list(value):
            target.extend(_visible(each, audience, identity) if field.message_type else each for each in value)
        elif field.message_type is None:
            setattr(shown, field.name, value)
        else:
            target.CopyFrom(_visible(value, audience, identity))
    return shown


def _fields(message: Message) -> Mapping[str, Audiences] | None:
    """The table's rows for a message; None for one that is not Shoal's."""
    name = message.DESCRIPTOR.full_name
    return FIELDS.get(name, {}) if name.startswith(OWN_PACKAGES) else None


def _audience(message: Message, audience: Audience, identity: Identity) -> Audience:
    """An agent owns the workloads that are assigned to its node."""
    if audience is Audience.AGENT and message.DESCRIPTOR.full_name == _WORKLOAD_VIEW:
        owner: str = message.assigned_node_id  # type: ignore[attr-defined]
        return Audience.OWNER if owner == identity.name else Audience.AGENT
    return audience


def _messages(field: FieldDescriptor, value: Any) -> tuple[Message, ...]:
    if field.message_type is None or _is_map(field):
        return ()  # a test checks that no map holds messages
    return tuple(value) if _is_list(value) else (value,)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry

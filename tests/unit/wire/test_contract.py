"""The contracts that others see cannot change by accident: every message, field, number and type, written out by hand.

Numbers below 100 belong to the published contracts `persys.control.v1` and `persys.agent.v1`; ours begin at 100. A
field is `number name type`, with `*` for a repeated one and `<k,v>` for a map.
"""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor

from shoal.wire.methods import (
    AgentControl,
    AgentExec,
    AgentService,
    Coordination,
    Credentials,
    Enrollment,
    Secrets,
    ServingAgent,
    WorkloadExec,
    methods_of,
)
from shoal.wire.pb.monolith.serving import agent_service_pb2
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.pb.shoal.v1 import (
    artifacts_pb2,
    coordination_pb2,
    enrollment_pb2,
    exec_pb2,
    jobs_pb2,
    run_pb2,
    secrets_pb2,
)
from shoal.wire.transport import Cardinality

CONTROL = {
    "RegisterNodeRequest": """
        1 node_id string, 2 capabilities NodeCapabilities, 3 labels <string,string>, 4 agent_version string,
        5 grpc_endpoint string, 6 cluster_id string, 7 timestamp Timestamp,
        100 host_id string, 101 slots int32, 102 features string*, 103 previous_session string,
        104 instance string""",
    "NodeCapabilities": """
        1 cpu_total_millicores int64, 2 memory_total_mb int64, 3 storage_pools StoragePool*,
        4 supported_workload_types string*, 5 supported_storage_drivers string*""",
    "StoragePool": "1 name string, 2 type string, 3 total_gb int64, 100 available_gb int64",
    "RegisterNodeResponse": """
        1 accepted bool, 2 reason string, 3 heartbeat_interval_seconds int32, 4 lease_expires_at Timestamp,
        100 session string, 101 heartbeat_interval_ms int64, 102 lease_ms int64""",
    "HeartbeatRequest": """
        1 node_id string, 2 usage NodeUsage, 3 workload_statuses WorkloadStatus*, 4 timestamp Timestamp,
        5 workload_usage WorkloadUsageSnapshot*, 100 session string, 101 sequence int64,
        102 conditions NodeCondition*""",
    "NodeUsage": """
        1 cpu_allocated_millicores int64, 2 cpu_used_millicores int64, 3 memory_allocated_mb int64,
        4 memory_used_mb int64, 5 disk_allocated_gb int64, 6 disk_used_gb int64, 100 slots_used int32""",
    "HeartbeatResponse": """
        1 acknowledged bool, 2 drain_node bool, 3 lease_expires_at Timestamp,
        100 lease_ms int64, 101 heartbeat_interval_ms int64, 102 term int64, 103 unconfirmed bool,
        104 takes_batches bool""",
    "ApplyWorkloadRequest": """
        1 workload_id string, 2 spec WorkloadSpec, 10 revision_id string, 11 desired_state string,
        100 expected_revision string""",
    "ApplyWorkloadResponse": """
        1 success bool, 2 failure_reason FailureReason, 3 error_message string,
        100 revision_id string, 101 generation int64, 102 outcome string, 103 problems FieldProblem*""",
    "DeleteWorkloadRequest": "1 workload_id string",
    "DeleteWorkloadResponse": "1 success bool, 2 error_message string",
    "RetryWorkloadRequest": "1 workload_id string",
    "RetryWorkloadResponse": "1 accepted bool, 100 error_message string",
    "WorkloadSpec": """
        1 type string, 2 resources ResourceRequirements, 10 container ContainerSpec, 11 compose ComposeSpec,
        12 vm VMSpec, 20 metadata <string,string>,
        100 process ProcessSpec, 101 placement Placement, 102 slots int32, 103 at_most_one bool,
        104 labels <string,string>, 105 failover Failover""",
    "ResourceRequirements": "1 cpu_millicores int64, 2 memory_mb int64, 3 disk_gb int64",
    "ContainerSpec": """
        1 image string, 2 command string*, 3 env <string,string>, 4 volumes VolumeMount*, 5 ports Port*,
        6 restart_policy string, 7 privileged bool, 8 managed_volumes ManagedVolumeSpec*,
        100 args string*, 101 labels <string,string>, 102 options ContainerOptions""",
    "VolumeMount": "1 host_path string, 2 container_path string, 3 read_only bool",
    "Port": "1 host_port int32, 2 container_port int32, 3 protocol string, 100 name string",
    "ComposeSpec": """
        1 source_type string, 2 git_repo string, 3 git_ref string, 4 inline_yaml string, 5 env <string,string>,
        100 options ComposeOptions""",
    "VMSpec": """
        1 vcpus int32, 2 memory_mb int64, 3 disks DiskConfig*, 4 networks NetworkConfig*,
        5 cloud_init CloudInitConfig, 6 os_image string, 7 managed_volumes ManagedVolumeSpec*, 100 options VmOptions""",
    "DiskConfig": "1 pool_name string, 2 size_gb int64, 3 mount_point string, 100 options VmDiskOptions",
    "NetworkConfig": "1 bridge string, 2 dhcp bool, 3 static_ip string, 100 options VmNetworkOptions",
    "CloudInitConfig": "1 user_data string, 2 meta_data string, 3 network_config string, 4 vendor_data string",
    "ManagedVolumeSpec": """
        1 name string, 2 driver string, 3 size_gb int64, 4 access_mode string, 5 fs_type string,
        6 mount_path string, 7 read_only bool, 8 retain_policy string, 100 pool_name string""",
    "WorkloadStatus": """
        1 workload_id string, 2 state string, 3 failure_reason FailureReason, 4 message string,
        5 last_transition Timestamp, 6 reason ReasonDetail, 7 usage WorkloadUsageSnapshot, 100 run RunDetail""",
    "ReasonDetail": """
        1 code string, 2 message string, 3 last_transition Timestamp, 4 next_retry_at Timestamp, 5 retryable bool""",
    "WorkloadUsageSnapshot": """
        1 workload_id string, 2 type string, 3 cpu_percent double, 4 memory_bytes int64, 5 disk_read_bytes int64,
        6 disk_write_bytes int64, 7 net_rx_bytes int64, 8 net_tx_bytes int64, 9 collected_at Timestamp,
        10 source string""",
    "ListNodesRequest": "1 status string, 100 page_size int32, 101 page_token string",
    "ListNodesResponse": "1 nodes NodeView*, 100 next_page_token string",
    "GetNodeRequest": "1 node_id string",
    "GetNodeResponse": "1 node NodeView",
    "ListWorkloadsRequest": """
        1 node_id string, 2 status string, 100 group_id string, 101 page_size int32, 102 page_token string""",
    "ListWorkloadsResponse": "1 workloads WorkloadView*, 100 next_page_token string",
    "GetWorkloadRequest": "1 workload_id string",
    "GetWorkloadResponse": "1 workload WorkloadView",
    "GetClusterSummaryRequest": "",
    "NodeView": """
        1 node_id string, 2 status string, 3 status_reason string, 4 status_updated_by string,
        5 status_updated_at Timestamp, 6 last_heartbeat Timestamp, 7 grpc_endpoint string, 8 total_cpu_cores double,
        9 available_cpu_cores double, 10 total_memory_mb int64, 11 available_memory_mb int64,
        12 supported_workload_types string*, 13 labels <string,string>,
        100 total_slots int32, 101 available_slots int32, 102 host_id string, 103 session string,
        104 agent_version string, 105 features string*, 106 clock_skew_ms int64, 107 total_disk_gb int64,
        108 available_disk_gb int64, 109 usage NodeUsage, 110 workload_count int32, 111 lease_expires_at Timestamp,
        112 orphans string*, 113 cluster_id string, 114 storage_drivers string*,
        115 wish string, 116 wish_updated_at Timestamp, 117 drain_deadline Timestamp, 118 leaving int32,
        119 failover string, 120 conditions NodeCondition*, 121 storage_pools StoragePool*""",
    "WorkloadView": """
        1 workload_id string, 2 type string, 3 desired_state string, 4 status string, 5 assigned_node_id string,
        6 revision_id string, 7 retry_attempts int32, 8 retry_max_attempts int32, 9 retry_next_at Timestamp,
        10 failure_reason string, 11 last_updated Timestamp, 12 reason ReasonDetail, 13 usage WorkloadUsageSnapshot,
        100 generation int64, 101 group_id string, 102 run RunDetail, 103 rejections NodeRejection*,
        104 spec WorkloadSpec, 105 created_at Timestamp, 106 observed_revision_id string, 107 spec_sha256 bytes,
        108 moving_from string, 109 left_on string*, 120 labels <string,string>,
        121 state string""",
    "NodeRejection": "1 node_id string, 2 code string, 3 message string",
    "ClusterSummary": """
        1 total_nodes int32, 2 ready_nodes int32, 3 not_ready_nodes int32, 4 total_workloads int32,
        5 running_workloads int32, 6 pending_workloads int32, 7 failed_workloads int32, 8 deleted_workloads int32,
        9 generated_at Timestamp,
        100 suspect_nodes int32, 101 stopped_workloads int32, 102 completed_workloads int32,
        103 deleting_workloads int32, 104 lost_workloads int32, 105 groups int32, 106 cluster_id string""",
    "AutomationSuggestion": """
        1 suggestion_id string, 2 policy_id string, 3 policy_name string, 4 target_workload string,
        5 action_type AutomationActionType, 6 desired_state string, 7 desired_replicas int32, 8 replica_delta int32,
        9 reason string, 10 suggested_at Timestamp""",
    "SubmitAutomationSuggestionRequest": "1 suggestion AutomationSuggestion",
    "SubmitAutomationSuggestionResponse": """
        1 accepted bool, 2 decision string, 3 reason string, 4 applied_action string, 5 decided_at Timestamp""",
    "ControlMessage": """
        1 register RegisterNodeRequest, 2 heartbeat HeartbeatRequest, 3 apply ApplyWorkloadRequest,
        4 delete DeleteWorkloadRequest,
        100 message_id int64, 101 in_reply_to int64, 102 batch ControlMessage*, 110 register_reply RegisterNodeResponse,
        111 heartbeat_reply HeartbeatResponse, 112 apply_reply ApplyWorkloadResponse,
        113 delete_reply DeleteWorkloadResponse, 114 call CallRequest, 115 call_reply CallReply,
        116 error CallStatus""",
    # Shoal's own messages.
    "CallRequest": """
        1 method string, 2 request bytes, 3 metadata <string,string>, 4 timeout_ms int64, 5 cancel bool,
        6 credit int32, 7 piece bool, 8 end bool""",
    "CallReply": "1 response bytes, 2 more bool, 3 status CallStatus, 4 credit int32",
    "CallStatus": "1 code int32, 2 message string, 3 detail ErrorDetail, 4 invalid InvalidRequest",
    "GroupMember": "1 workload_id string, 2 spec WorkloadSpec, 3 revision_id string, 4 desired_state string",
    "ApplyGroupRequest": "1 group_id string, 2 members GroupMember*, 3 expected_generation int64, "
    "100 member_changes MemberChanges",
    "ApplyGroupResponse": "1 generation int64, 2 outcome string, 3 members WorkloadView*",
    "DeleteGroupRequest": "1 group_id string, 2 expected_generation int64",
    "DeleteGroupResponse": "1 generation int64",
    "GetGroupRequest": "1 group_id string",
    "GetGroupResponse": "1 group GroupView",
    "ListGroupsRequest": "1 page_size int32, 2 page_token string",
    "ListGroupsResponse": "1 groups GroupView*, 2 next_page_token string",
    "GroupView": "1 group_id string, 2 generation int64, 3 status string, 4 message string, 5 members WorkloadView*, "
    "100 member_changes MemberChanges",
    "SetDesiredStateRequest": "1 workload_id string, 2 desired_state string",
    "SetDesiredStateResponse": "1 workload WorkloadView",
    "RemoveNodeRequest": "1 node_id string",
    "RemoveNodeResponse": "",
    "LabelNodeRequest": "1 node_id string, 2 set <string,string>, 3 remove string*",
    "LabelNodeResponse": "1 node NodeView",
    "CordonNodeRequest": "1 node_id string",
    "CordonNodeResponse": "1 node NodeView",
    "UncordonNodeRequest": "1 node_id string",
    "UncordonNodeResponse": "1 node NodeView",
    "DrainNodeRequest": "1 node_id string, 2 deadline_ms int64, 3 force bool",
    "DrainNodeResponse": "1 node NodeView",
    "MarkNodeDeadRequest": "1 node_id string, 2 force bool",
    "MarkNodeDeadResponse": "1 node NodeView",
    "AdoptWorkloadRequest": "1 node_id string, 2 workload_id string",
    "AdoptWorkloadResponse": "1 workload WorkloadView",
    "PlanPlacementRequest": "1 members GroupMember*, 2 together bool",
    "PlannedPlacement": """
        1 workload_id string, 2 node_id string, 3 rejections NodeRejection*, 4 scores NodeScore*, 5 change string""",
    "NodeScore": "1 node_id string, 2 score double, 3 parts <string,double>",
    "PlanPlacementResponse": "1 placements PlannedPlacement*, 2 placeable bool",
    "Event": """
        1 cursor int64, 2 time Timestamp, 3 subject_kind string, 4 subject_id string, 5 kind string,
        6 message string, 7 source string, 8 cause string, 9 facts <string,string>, 100 labels <string,string>""",
    "ListEventsRequest": """
        1 after int64, 2 limit int32, 3 subject_kind string, 4 subject_id string, 5 newest bool, 100 selector string""",
    "ListEventsResponse": "1 events Event*, 2 next int64, 3 oldest int64",
    "WatchEventsRequest": "1 after int64, 2 subject_kind string, 3 subject_id string, 100 selector string",
    "ReadLogsRequest": """
        1 workload_id string, 2 tail_lines int32, 3 follow bool,
        100 since_ms int64, 101 previous bool, 102 times bool, 103 after string""",
    "LogChunk": "1 data bytes, 2 stream string, 100 time_ms int64, 101 position string",
}

AGENT = {
    "ApplyWorkloadRequest": """
        1 id string, 2 type WorkloadType, 3 revision_id string, 4 desired_state DesiredState, 5 spec WorkloadSpec,
        100 generation int64, 101 attempt int64, 102 secrets <string,bytes>""",
    "ApplyWorkloadResponse": "1 applied bool, 2 skipped bool, 3 message string, 4 status WorkloadStatus",
    "DeleteWorkloadRequest": "1 id string, 100 generation int64, 101 keep_data bool",
    "DeleteWorkloadResponse": "1 success bool, 2 message string, 100 session string, 101 next_beat int64",
    "GetWorkloadStatusRequest": "1 id string",
    "GetWorkloadStatusResponse": "1 status WorkloadStatus",
    "ListWorkloadsRequest": "1 type WorkloadType",
    "ListWorkloadsResponse": "1 workloads WorkloadStatus*",
    "HealthCheckRequest": "",
    "HealthCheckResponse": """
        1 healthy bool, 2 version string, 3 runtime_status <string,string>, 4 memory_utilization double,
        5 cpu_utilization double, 6 disk_utilization double""",
    "ListActionsRequest": """
        1 workload_id string, 2 action_type string, 3 status string, 4 limit int32, 5 newest_first bool""",
    "ListActionsResponse": "1 actions AgentAction*",
    "AgentAction": """
        1 task_id string, 2 workload_id string, 3 action_type string, 4 status string, 5 error string,
        6 created_at int64, 7 started_at int64, 8 ended_at int64""",
    "WorkloadSpec": """
        1 container ContainerSpec, 2 compose ComposeSpec, 3 vm VMSpec,
        100 process ProcessSpec, 101 reservation Reservation, 102 at_most_one bool, 103 stop_after_ms int64""",
    "Reservation": "1 cpu_millicores int64, 2 memory_mb int64, 3 disk_gb int64, 4 slots int32",
    "ContainerSpec": """
        1 image string, 2 command string*, 3 args string*, 4 env <string,string>, 5 volumes VolumeMount*,
        6 ports PortMapping*, 7 resources ResourceLimits, 8 restart_policy RestartPolicy, 9 labels <string,string>,
        10 managed_volumes ManagedVolumeSpec*, 100 privileged bool, 101 options ContainerOptions""",
    "VolumeMount": "1 host_path string, 2 container_path string, 3 read_only bool",
    "PortMapping": "1 host_port int32, 2 container_port int32, 3 protocol string, 100 name string",
    "ResourceLimits": "1 cpu_shares int64, 2 memory_bytes int64, 3 memory_swap_bytes int64",
    "RestartPolicy": "1 policy string, 2 max_retry_count int32",
    "ManagedVolumeSpec": """
        1 name string, 2 driver string, 3 size_gb int64, 4 access_mode string, 5 fs_type string,
        6 mount_path string, 7 read_only bool, 8 retain_policy string, 100 pool_name string""",
    "ComposeSpec": """
        1 project_name string, 2 compose_yaml string, 3 env <string,string>, 100 git_repo string, 101 git_ref string,
        102 options ComposeOptions""",
    "VMSpec": """
        1 name string, 2 vcpus int32, 3 memory_mb int64, 4 disks DiskConfig*, 5 networks NetworkConfig*,
        6 cloud_init string, 7 metadata <string,string>, 8 cloud_init_config CloudInitConfig,
        9 managed_volumes ManagedVolumeSpec*, 100 os_image string, 101 options VmOptions""",
    "DiskConfig": """
        1 path string, 2 device string, 3 format string, 4 size_gb int64, 5 type string, 6 boot bool,
        100 pool_name string, 101 mount_point string, 102 options VmDiskOptions, 103 exact_size_gb int64""",
    "NetworkConfig": """
        1 network string, 2 mac_address string, 3 ip_address string, 100 bridge string, 101 dhcp bool,
        102 options VmNetworkOptions""",
    "CloudInitConfig": "1 user_data string, 2 meta_data string, 3 network_config string, 4 vendor_data string",
    "WorkloadStatus": """
        1 id string, 2 type WorkloadType, 3 revision_id string, 4 desired_state DesiredState,
        5 actual_state ActualState, 6 message string, 7 created_at int64, 8 updated_at int64,
        9 metadata <string,string>, 10 usage WorkloadUsageSnapshot, 100 run RunDetail, 101 failure_reason string""",
    "WorkloadUsageSnapshot": """
        1 workload_id string, 2 type WorkloadType, 3 cpu_percent double, 4 memory_bytes int64,
        5 disk_read_bytes int64, 6 disk_write_bytes int64, 7 net_rx_bytes int64, 8 net_tx_bytes int64,
        9 collected_at int64, 10 source string""",
    "ReadLogsRequest": """
        1 workload_id string, 2 tail_lines int32, 3 follow bool,
        100 since_ms int64, 101 previous bool, 102 times bool, 103 after string""",
    "LogChunk": "1 data bytes, 2 stream string, 100 time_ms int64, 101 position string",
    "GetWorkloadSpecRequest": "1 id string",
    "GetWorkloadSpecResponse": """
        1 id string, 2 type WorkloadType, 3 revision_id string, 4 desired_state DesiredState, 5 spec bytes,
        6 generation int64, 7 deleting bool""",
}

SHOAL = {
    "ProcessSpec": """
        1 command string*, 2 env <string,string>, 3 working_dir string, 4 args string*, 5 user string,
        6 restart RestartPolicy, 7 readiness Readiness, 8 stop StopPolicy, 9 ports NamedPort*, 10 clear_env bool,
        11 env_from_secrets <string,string>, 12 identity bool, 100 liveness Liveness, 101 files File*,
        102 artifacts Artifact*""",
    "Artifact": "1 sha256 string, 2 path string",
    "File": "1 path string, 2 content string, 3 secret string, 4 mode int32",
    "ContainerOptions": """
        1 init bool, 2 user string, 3 working_dir string, 4 stop StopPolicy, 5 pull_policy string, 6 ulimits Ulimit*,
        7 cpu_shares int64, 8 restart RestartPolicy, 9 readiness Readiness, 10 liveness Liveness,
        11 env_from_secrets <string,string>, 12 files File*""",
    "Ulimit": "1 name string, 2 soft int64, 3 hard int64",
    "ComposeOptions": """
        1 stop StopPolicy, 2 restart RestartPolicy, 3 retain_policy string, 4 env_from_secrets <string,string>,
        5 files File*""",
    "VmOptions": """
        1 kernel string, 2 initrd string, 3 kernel_args string, 4 os_image_sha256 string, 5 acceleration string,
        6 boot VmBoot, 7 stop StopPolicy, 8 restart RestartPolicy, 9 retain_policy string""",
    "VmBoot": "1 console string, 2 tcp_port int32, 3 guest_agent bool, 4 deadline_ms int64",
    "VmDiskOptions": "1 image string, 2 sha256 string, 3 format string, 4 read_only bool, 5 path string, 6 name string",
    "VmNetworkOptions": "1 tap string, 2 mac string, 3 ports PortForward*, 4 name string",
    "PortForward": "1 guest_port int32, 2 host_port int32, 3 protocol string, 4 name string",
    "RestartPolicy": """
        1 policy string, 2 max_retries int32, 3 delay_ms int64, 4 max_delay_ms int64, 5 healthy_after_ms int64""",
    "Readiness": """
        1 tcp_port string, 2 http HttpProbe, 3 command CommandProbe, 10 interval_ms int64, 11 timeout_ms int64,
        12 deadline_ms int64, 100 period_ms int64, 101 failure_threshold int32""",
    "Liveness": """
        1 tcp_port string, 2 http HttpProbe, 3 command CommandProbe, 10 interval_ms int64, 11 timeout_ms int64,
        12 failure_threshold int32""",
    "HttpProbe": "1 port string, 2 path string",
    "CommandProbe": "1 command string*",
    "StopPolicy": "1 signal string, 2 grace_ms int64",
    "NamedPort": "1 name string, 2 port int32",
    "Placement": "1 constraints Constraint*, 2 affinities Affinity*, 3 storage_drivers string*",
    "Constraint": "1 key string, 2 operator string, 3 values string*",
    "Affinity": """
        1 workloads <string,string>, 2 scope string, 3 direction string, 4 required bool, 5 weight int32""",
    "MemberChanges": "1 min_members int32, 2 max_members int32, 3 arg_prefixes string*",
    "Failover": "1 policy string, 2 after_ms int64, 3 migrate string",
    "ExitDetail": "1 code int32, 2 signal int32, 3 unknown bool, 4 ended_at_ms int64, 5 out_of_memory bool",
    "RunDetail": """
        1 generation int64, 2 exit ExitDetail, 3 ports <string,int32>, 4 restarts int32, 5 ready bool,
        6 last_output string, 7 started_at_ms int64, 8 spec_sha256 bytes, 9 revision_id string, 10 completed bool,
        11 pid int32, 12 deleting bool, 13 next_restart_at_ms int64, 100 services <string,string>""",
    "NodeCondition": "1 type string, 2 message string, 3 since_ms int64",
    "FieldProblem": "1 field string, 2 value string, 3 rule string",
    "InvalidRequest": "1 problems FieldProblem*",
    "ErrorDetail": "1 type string, 2 facts <string,string>, 3 hint string",
}

ENROLLMENT = {
    "GetAuthorityRequest": "",
    "GetAuthorityResponse": "1 ca bytes",
    "JoinRequest": "1 token string, 2 csr bytes",
    "JoinResponse": "1 certificate bytes, 2 ca bytes",
    "CreateJoinTokenRequest": "1 ttl_ms int64, 2 role string, 3 node_id string, 4 uses int32",
    "CreateJoinTokenResponse": "1 token string, 2 view JoinTokenView, 3 join_port int32",
    "ListJoinTokensRequest": "",
    "ListJoinTokensResponse": "1 tokens JoinTokenView*, 2 join_port int32",
    "RevokeJoinTokenRequest": "1 token_id string",
    "RevokeJoinTokenResponse": "",
    "JoinTokenView": """
        1 token_id string, 2 role string, 3 node_id string, 4 created_at Timestamp, 5 expires_at Timestamp,
        6 created_by string, 7 uses int32, 8 used_by string*""",
    "RenewCertificateRequest": "1 csr bytes",
    "RenewCertificateResponse": "1 certificate bytes, 2 ca bytes",
    "IssueWorkloadCertificateRequest": "1 workload_id string, 2 csr bytes",
    "IssueWorkloadCertificateResponse": "1 certificate bytes, 2 ca bytes",
}

SECRETS = {
    "SetSecretRequest": "1 name string, 2 value bytes",
    "SetSecretResponse": "1 secret SecretView",
    "ListSecretsRequest": "",
    "ListSecretsResponse": "1 secrets SecretView*",
    "DeleteSecretRequest": "1 name string",
    "DeleteSecretResponse": "",
    "SecretView": "1 name string, 2 created_at Timestamp, 3 updated_at Timestamp, 4 revision int64",
}

JOBS = {
    "SubmitJobRequest": "1 job_id string, 2 engine string, 3 spec bytes, 4 client_key string",
    "SubmitJobResponse": "1 job JobView, 2 created bool",
    "GetJobRequest": "1 job_id string",
    "GetJobResponse": "1 job JobView, 2 reports <string,bytes>",
    "ListJobsRequest": "1 engine string, 2 page_size int32, 3 page_token string",
    "ListJobsResponse": "1 jobs JobView*, 2 next_page_token string",
    "WatchJobRequest": "1 job_id string",
    "CancelJobRequest": "1 job_id string",
    "SavepointJobRequest": "1 job_id string, 2 stop bool",
    "ResumeJobRequest": "1 job_id string",
    "RescaleJobRequest": "1 job_id string, 2 width int32, 3 operator string",
    "UpgradeJobRequest": "1 job_id string, 2 spec bytes",
    "ReportJobRequest": """
        1 job_id string, 2 workload_id string, 3 node_id string, 4 revision_id string, 5 report bytes,
        6 read string*, 7 key_of string""",
    "ReportJobResponse": """
        1 state string, 2 desired string, 3 action string, 4 request_number int64, 5 stop bool,
        6 reports <string,bytes>, 7 taken_request int64, 8 job_key bytes, 9 key_generation int64""",
    "JobResponse": "1 job JobView",
    "JobView": """
        1 job_id string, 2 engine string, 3 format int32, 4 state string, 5 desired string, 6 message string,
        7 transition int64, 8 request JobRequestView, 9 workload_ids string*, 10 spec bytes, 11 progress bytes,
        12 created_at Timestamp, 13 updated_at Timestamp, 14 state_at Timestamp, 15 taken_request int64""",
    "JobRequestView": "1 action string, 2 number int64, 3 width int32, 4 operator string, 5 stop bool, 6 cause string",
}

ARTIFACTS = {
    "UploadArtifactRequest": "1 start ArtifactStart, 2 data bytes",
    "ArtifactStart": "1 sha256 string, 2 size int64",
    "UploadArtifactResponse": "1 stored bool",
    "DownloadArtifactRequest": "1 sha256 string",
    "DownloadArtifactResponse": "1 size int64, 2 data bytes",
}

EXEC = {
    "ExecRequest": "1 start ExecStart, 2 input bytes, 3 end_of_input bool, 4 resize WindowSize",
    "ExecStart": """
        1 workload_id string, 2 command string*, 3 service string, 4 terminal bool, 5 interactive bool,
        6 window WindowSize, 7 term string""",
    "WindowSize": "1 rows int32, 2 columns int32",
    "ExecResponse": "1 started ExecStarted, 2 stdout bytes, 3 stderr bytes, 4 ended ExecEnded",
    "ExecStarted": "1 node_id string",
    "ExecEnded": "1 exit_code int32, 2 signal int32",
}

SERVING_AGENT = {
    "AddressList": "1 address string*",
    "GetReplicasRequest": "1 server_type ServerType, 2 task int32, 3 model_name string",
    "GetReplicasResponse": "1 address_list AddressList",
    "GetResourceRequest": "",
    "GetResourceResponse": """
        1 address string, 2 shard_id int32, 3 replica_id int32, 4 memory int64, 5 cpu float, 6 network float,
        7 work_load float""",
    "HeartBeatRequest": "1 server_type ServerType",
    "HeartBeatResponse": "1 addresses <string,AddressList>",
}

COORDINATION = {
    "CoordinationRequest": "1 open OpenSession, 2 ping bool, 3 call TreeCall, 4 follow FollowNode, 5 close bool",
    "OpenSession": "1 session_id string, 2 timeout_ms int64",
    "TreeCall": """
        1 id int64, 2 create CreateNode, 3 ensure_path string, 4 get string, 5 exists string, 6 children string,
        7 set SetNode, 8 delete DeleteNode, 9 take_over SetNode""",
    "CreateNode": "1 path string, 2 data bytes, 3 ephemeral bool, 4 sequential bool, 5 makepath bool",
    "SetNode": "1 path string, 2 data bytes, 3 version int64",
    "DeleteNode": "1 path string, 2 version int64, 3 recursive bool",
    "FollowNode": "1 path string, 2 children bool, 3 stop bool",
    "CoordinationResponse": """
        1 opened SessionOpened, 2 pong bool, 3 answer TreeAnswer, 4 followed NodeFollowed, 5 ended bool""",
    "SessionOpened": "1 session_id string, 2 timeout_ms int64",
    "TreeAnswer": """
        1 id int64, 2 error TreeError, 3 path string, 4 node TreeNode, 5 children string*, 6 error_type string""",
    "TreeError": "1 code int32, 2 message string, 3 detail ErrorDetail, 4 invalid InvalidRequest",
    "TreeNode": "1 data bytes, 2 version int64, 3 owner string, 4 created int64, 5 modified int64",
    "NodeFollowed": "1 path string, 2 children bool, 3 exists bool, 4 node TreeNode, 5 names string*",
}

ENUMS = {
    "monolith.serving.agent_service.ServerType": "0 PS, 1 ENTRY, 2 DENSE",
    "persys.control.v1.FailureReason": """
        0 FAILURE_REASON_UNSPECIFIED, 1 IMAGE_PULL_FAILED, 2 IMAGE_NOT_FOUND, 3 INSUFFICIENT_RESOURCES,
        4 INVALID_SPEC, 5 RUNTIME_ERROR, 6 NETWORK_ERROR, 7 STORAGE_ERROR, 8 VM_BOOT_FAILED""",
    "persys.control.v1.AutomationActionType": """
        0 AUTOMATION_ACTION_TYPE_UNSPECIFIED, 1 SET_DESIRED_STATE, 2 RETRY_WORKLOAD, 3 DELETE_WORKLOAD,
        4 SCALE_REPLICAS""",
    "persys.agent.v1.WorkloadType": """
        0 WORKLOAD_TYPE_UNSPECIFIED, 1 WORKLOAD_TYPE_CONTAINER, 2 WORKLOAD_TYPE_COMPOSE, 3 WORKLOAD_TYPE_VM,
        100 WORKLOAD_TYPE_PROCESS""",
    "persys.agent.v1.DesiredState": """
        0 DESIRED_STATE_UNSPECIFIED, 1 DESIRED_STATE_RUNNING, 2 DESIRED_STATE_STOPPED""",
    "persys.agent.v1.ActualState": """
        0 ACTUAL_STATE_UNSPECIFIED, 1 ACTUAL_STATE_PENDING, 2 ACTUAL_STATE_RUNNING, 3 ACTUAL_STATE_STOPPED,
        4 ACTUAL_STATE_FAILED, 5 ACTUAL_STATE_UNKNOWN""",
}

FILES = (
    control_pb2,
    agent_pb2,
    run_pb2,
    enrollment_pb2,
    secrets_pb2,
    jobs_pb2,
    exec_pb2,
    agent_service_pb2,
    coordination_pb2,
    artifacts_pb2,
)


def _split(text):
    depth, part, parts = 0, "", []
    for letter in " ".join(text.split()):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [*parts, part.strip()] if part.strip() else parts


def _expected(text):
    fields = [part.split() for part in _split(text)]
    return {name: (int(number), kind) for number, name, kind in fields}


_SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
}


def _kind(field):
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"<{_kind(key)},{_kind(value)}>"
    named = field.message_type or field.enum_type
    kind = named.name if named is not None else _SCALARS[field.type]
    return f"{kind}*" if field.is_repeated else kind


def _actual(descriptor):
    return {field.name: (field.number, _kind(field)) for field in descriptor.fields}


@pytest.mark.parametrize(
    ("file", "table"),
    list(
        zip(
            FILES,
            (CONTROL, AGENT, SHOAL, ENROLLMENT, SECRETS, JOBS, EXEC, SERVING_AGENT, COORDINATION, ARTIFACTS),
            strict=True,
        )
    ),
    ids=[
        "control",
        "agent",
        "shoal",
        "enrollment",
        "secrets",
        "jobs",
        "exec",
        "serving agent",
        "coordination",
        "artifacts",
    ],
)
def test_every_message_is_as_it_was_published(file, table):
    messages = file.DESCRIPTOR.message_types_by_name
    assert sorted(messages) == sorted(table)
    for name, descriptor in messages.items():
        assert _actual(descriptor) == _expected(table[name]), name


def test_every_enum_is_as_it_was_published():
    found = {
        enum.full_name: {value.name: value.number for value in enum.values}
        for file in FILES
        for enum in file.DESCRIPTOR.enum_types_by_name.values()
    }
    expected = {
        name: {word: int(number) for number, word in (part.split() for part in _split(text))}
        for name, text in ENUMS.items()
    }
    assert found == expected


def test_the_kinds_of_workload_exclude_each_other():
    def members(message, oneof):
        return [field.name for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields]

    assert members(control_pb2.WorkloadSpec, "workload") == ["container", "compose", "vm", "process"]
    assert members(agent_pb2.WorkloadSpec, "spec") == ["container", "compose", "vm", "process"]
    requests = ["register", "heartbeat", "apply", "delete"]
    replies = [*(f"{name}_reply" for name in requests), "call", "call_reply", "error"]
    assert members(control_pb2.ControlMessage, "message") == requests + replies
    assert members(run_pb2.Readiness, "probe") == ["tcp_port", "http", "command"]


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            control_pb2.RegisterNodeRequest(
                node_id="n1",
                capabilities=control_pb2.NodeCapabilities(cpu_total_millicores=4000, memory_total_mb=300),
                labels={"os": "linux"},
                grpc_endpoint="h:1",
                host_id="b",
                slots=2,
            ),
            b"\x0a\x02n1" b"\x12\x06\x08\xa0\x1f\x10\xac\x02" b"\x1a\x0b\x0a\x02os\x12\x05linux" b"\x2a\x03h:1"
            b"\xa2\x06\x01b" b"\xa8\x06\x02",
        ),
        (
            control_pb2.ApplyWorkloadRequest(
                workload_id="web",
                spec=control_pb2.WorkloadSpec(type="process", process=run_pb2.ProcessSpec(command=["sleep", "9"])),
                revision_id="r1",
                desired_state="Running",
            ),
            b"\x0a\x03web" b"\x12\x16" b"\x0a\x07process" b"\xa2\x06\x0a" b"\x0a\x05sleep\x0a\x019"
            b"\x52\x02r1" b"\x5a\x07Running",
        ),
        (
            agent_pb2.ApplyWorkloadRequest(
                id="web", type=agent_pb2.WORKLOAD_TYPE_PROCESS, desired_state=1, generation=7
            ),
            b"\x0a\x03web" b"\x10\x64" b"\x20\x01" b"\xa0\x06\x07",
        ),
        (
            agent_pb2.ListActionsRequest(workload_id="w", action_type="delete_workload", limit=1, newest_first=True),
            b"\x0a\x01w" b"\x12\x0fdelete_workload" b"\x20\x01" b"\x28\x01",
        ),
        (agent_service_pb2.HeartBeatRequest(server_type=agent_service_pb2.PS), b""),
        (agent_service_pb2.HeartBeatRequest(server_type=agent_service_pb2.DENSE), b"\x08\x02"),
        (
            agent_service_pb2.HeartBeatResponse(
                addresses={"ps:0": agent_service_pb2.AddressList(address=["10.0.0.5:8500"])}
            ),
            bytes.fromhex("0a170a0470733a30120f0a0d31302e302e302e353a38353030"),
        ),
    ],
    ids=["register", "apply", "agent apply", "actions", "heartbeat ps", "heartbeat dense", "heartbeat answer"],
)  # fmt: skip
def test_the_bytes_on_the_wire_are_these(message, wire):
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (AgentControl, control_pb2.DESCRIPTOR.services_by_name["AgentControl"]),
        (AgentService, agent_pb2.DESCRIPTOR.services_by_name["AgentService"]),
        (Enrollment, enrollment_pb2.DESCRIPTOR.services_by_name["Enrollment"]),
        (Credentials, enrollment_pb2.DESCRIPTOR.services_by_name["Credentials"]),
        (Secrets, secrets_pb2.DESCRIPTOR.services_by_name["Secrets"]),
        (Coordination, coordination_pb2.DESCRIPTOR.services_by_name["Coordination"]),
        (WorkloadExec, exec_pb2.DESCRIPTOR.services_by_name["WorkloadExec"]),
        (AgentExec, exec_pb2.DESCRIPTOR.services_by_name["AgentExec"]),
        (ServingAgent, agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"]),
    ],
    ids=[
        "control",
        "agent",
        "enrollment",
        "credentials",
        "secrets",
        "coordination",
        "exec",
        "agent exec",
        "serving agent",
    ],
)
def test_every_rpc_is_in_the_table_of_methods(ours, theirs):
    def cardinality(method):
        return {
            (False, False): Cardinality.UNARY,
            (False, True): Cardinality.SERVER_STREAM,
            (True, True): Cardinality.BOTH_STREAM,
        }[method.client_streaming, method.server_streaming]

    expected = [
        (theirs.full_name, each.name, each.input_type.full_name, each.output_type.full_name, cardinality(each))
        for each in theirs.methods
    ]
    found = [
        (
            each.service,
            each.name,
            each.request.DESCRIPTOR.full_name,
            each.response.DESCRIPTOR.full_name,
            each.cardinality,
        )
        for each in methods_of(ours)
    ]
    assert found == expected
    assert theirs.full_name == ours.NAME


def test_the_published_rpcs_are_there():
    published = {
        AgentControl: """RegisterNode Heartbeat ApplyWorkload DeleteWorkload RetryWorkload SubmitAutomationSuggestion
            ListNodes GetNode ListWorkloads GetWorkload GetClusterSummary ControlStream""",
        AgentService: "ApplyWorkload DeleteWorkload GetWorkloadStatus ListWorkloads HealthCheck ListActions",
    }
    for service, names in published.items():
        assert set(names.split()) <= {method.name for method in methods_of(service)}

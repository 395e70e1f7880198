"""The control plane's series, ours and those that existing dashboards ask for, from a control plane at work."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.control.metrics import DELETED, ControlMetrics, go_code
from shoal.core.errors import ExhaustedError
from shoal.model.nodes import NodeState
from shoal.model.phases import ContractStatus, WorkloadPhase
from shoal.wire.status import Code

pytestmark = pytest.mark.looptime(start=time.monotonic)

#: Names and labels that are not ours to change.
PUBLISHED = {
    "persys_scheduler_grpc_server_requests_total": ("method", "code"),
    "persys_scheduler_grpc_server_request_duration_seconds": ("method",),
    "persys_scheduler_agent_rpc_requests_total": ("rpc", "code"),
    "persys_scheduler_agent_rpc_duration_seconds": ("rpc",),
    "persys_scheduler_reconciliation_results_total": ("action", "success"),
    "persys_scheduler_nodes_status": ("status",),
    "persys_scheduler_workloads_status": ("status",),
    "persys_scheduler_workloads_desired_state": ("desired_state",),
    "persys_scheduler_state_store_writes_total": ("category",),
}


def read(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(samples, name, **labels):
    return samples.get((name, tuple(sorted(labels.items()))))


def test_the_published_series_are_there_by_name_and_labels():
    found = {each.name: each.labels for each in ControlMetrics().registry.described()}
    assert {name: labels for name, labels in found.items() if name.startswith("persys_")} == PUBLISHED


def test_codes_are_spelled_as_go_does():
    assert [go_code(code.name) for code in (Code.OK, Code.NOT_FOUND, Code.CANCELLED, Code.DEADLINE_EXCEEDED)] == [
        "OK",
        "NotFound",
        "Canceled",
        "DeadlineExceeded",
    ]


async def test_a_control_plane_at_work_counts(kit):
    kit.node("n1")
    await kit.wait_node("n1", "Ready")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    await kit.apply("huge", cpu=1_000_000)
    await kit.wait_status("huge", "Pending")
    samples = read(kit.plane._render_metrics())
    assert value(samples, "persys_scheduler_nodes_status", status="Ready") == 1
    assert value(samples, "persys_scheduler_nodes_status", status="NotReady") == 0
    assert value(samples, "persys_scheduler_workloads_status", status="Running") == 1
    assert value(samples, "persys_scheduler_workloads_status", status="Pending") == 1
    assert value(samples, "persys_scheduler_workloads_desired_state", desired_state="Running") == 2
    assert value(samples, "persys_scheduler_agent_rpc_requests_total", rpc="ApplyWorkload", code="OK") == 1
    assert value(samples, "persys_scheduler_agent_rpc_duration_seconds_count", rpc="ApplyWorkload") == 1
    assert value(samples, "persys_scheduler_reconciliation_results_total", action="Place", success="true") == 1
    assert value(samples, "persys_scheduler_reconciliation_results_total", action="Place", success="false") >= 1
    assert value(samples, "persys_scheduler_state_store_writes_total", category="workloads") >= 3
    assert value(samples, "shoal_control_records_written_total", kind="nodes") >= 1
    assert value(samples, "shoal_control_workloads", state="Running") == 1
    assert value(samples, "shoal_control_workloads", state="Unplaceable") == 1


async def test_heartbeats_and_ignored_reports_are_counters(kit):
    kinds = {each.name: each.kind for each in ControlMetrics().registry.described()}
    assert kinds["shoal_control_heartbeats_received_total"] == kinds["shoal_control_reports_ignored_total"] == "counter"
    node = kit.node("n1")
    await kit.wait_node("n1", "Ready")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    node.runs["stray"] = node.runs["web"]
    node.changed.set()
    await kit.wait(lambda: kit.plane.leadership.contacts.get("n1").orphans == ("stray",))
    samples = read(kit.plane._render_metrics())
    heartbeats = value(samples, "shoal_control_heartbeats_received_total")
    assert heartbeats >= 2
    assert value(samples, "shoal_control_reports_ignored_total") >= 1
    assert b"# TYPE shoal_control_heartbeats_received_total counter" in kit.plane._render_metrics()
    assert value(read(kit.plane._render_metrics()), "shoal_control_heartbeats_received_total") == heartbeats
    await kit.clock.sleep(25)
    assert value(read(kit.plane._render_metrics()), "shoal_control_heartbeats_received_total") >= heartbeats + 2


async def test_what_is_over_is_not_shown(kit):
    node = kit.node("n1")
    await kit.wait_node("n1", "Ready")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    kit.plane._render_metrics()
    await kit.delete("web")
    await kit.wait_gone("web")
    kit.agents.kill(node.node_id)
    await kit.wait_node("n1", "NotReady", seconds=120)
    samples = read(kit.plane._render_metrics())
    shown = {labels: count for (name, labels), count in samples.items() if name == "persys_scheduler_workloads_status"}
    assert set(shown.values()) == {0}
    assert {labels[0][1] for labels in shown} == {*ContractStatus, DELETED}
    ours = {labels[0][1] for name, labels in samples if name == "shoal_control_workloads"}
    assert ours == {*WorkloadPhase, DELETED}
    by_state = {labels[0][1]: count for (name, labels), count in samples.items() if name == "shoal_control_nodes"}
    assert by_state == {state.value: int(state is NodeState.NOT_READY) for state in NodeState}


async def test_a_call_that_fails_counts_by_its_code(kit):
    node = kit.node("n1")
    node.refuse["*"] = ExhaustedError("no room")
    await kit.wait_node("n1", "Ready")
    await kit.apply("web")
    await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
    samples = read(kit.plane._render_metrics())
    refused = value(samples, "persys_scheduler_agent_rpc_requests_total", rpc="ApplyWorkload", code="ResourceExhausted")
    assert refused >= 1


def test_a_served_call_counts_under_both_names():
    metrics = ControlMetrics()
    metrics.observe("/persys.control.v1.AgentControl/GetNode", "NOT_FOUND", 0.02)
    samples = read(metrics.render())
    method = "/persys.control.v1.AgentControl/GetNode"
    assert value(samples, "persys_scheduler_grpc_server_requests_total", method=method, code="NotFound") == 1
    assert value(samples, "persys_scheduler_grpc_server_request_duration_seconds_count", method=method) == 1
    assert value(samples, "shoal_control_rpc_total", method=method, code="NOT_FOUND") == 1

"""The agent's series, ours and those that existing dashboards ask for, from an agent at work."""

import asyncio

import pytest

from shoal.agent.metrics import AgentMetrics
from shoal.core.errors import ExhaustedError
from shoal.core.telemetry import MetricRegistry
from shoal.model.resources import Resources
from shoal.model.workloads import RestartPolicy
from shoal.testing.runtimes import FakeScript
from shoal.wire.methods import AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from tests.unit.agent.making import process
from tests.unit.agent.scene import scene
from tests.unit.control.test_metrics import read, value

pytestmark = pytest.mark.looptime

PUBLISHED = {
    "persys_agent_workload_count": ("state", "type"),
    "persys_agent_workload_created_total": ("type",),
    "persys_agent_workload_deleted_total": ("type",),
    "persys_agent_workload_failed_total": ("type",),
    "persys_agent_workload_apply_duration_seconds": (),
    "persys_agent_workload_delete_duration_seconds": (),
    "persys_agent_runtime_health_status": ("runtime",),
    "persys_agent_system_memory_utilization_percent": (),
    "persys_agent_system_cpu_utilization_percent": (),
    "persys_agent_system_disk_utilization_percent": (),
    "persys_agent_errors_total": ("error_code",),
    "persys_agent_task_queue_depth": (),
    "persys_agent_task_latency_seconds": ("type",),
    "persys_agent_task_executions_total": ("type",),
    "persys_agent_task_failures_total": ("type",),
}


def test_the_published_series_are_there_by_name_and_labels():
    registry = MetricRegistry()
    AgentMetrics(registry)
    found = {each.name: each.labels for each in registry.described()}
    assert {name: labels for name, labels in found.items() if name.startswith("persys_")} == PUBLISHED


async def test_without_anybody_to_read_them_nothing_is_counted(tmp_path):
    async with scene(tmp_path, serve=False) as stage:
        agent = await stage.start(control=(), standalone=True)
        await stage.apply(agent, "stays")
        await asyncio.sleep(5)
        assert agent._render_metrics() == b""


async def test_the_life_of_workloads_is_counted(tmp_path):
    async with scene(tmp_path, serve=False) as stage:
        stage.metrics = AgentMetrics(MetricRegistry())
        agent = await stage.start(control=(), standalone=True)
        await stage.apply(agent, "stays")
        stage.machine.scripts["breaks"] = FakeScript(run_for=1.0, exit_code=3)
        await stage.apply(agent, "breaks", process(restart=RestartPolicy(policy="no")))
        with pytest.raises(ExhaustedError):
            await stage.apply(agent, "huge", request=Resources(memory_mb=99_999))
        channel = stage.network.transport("control").connect(agent.address)
        await asyncio.sleep(5)
        samples = read(agent._render_metrics())
        assert value(samples, "persys_agent_workload_count", state="running", type="process") == 1
        assert value(samples, "persys_agent_workload_count", state="failed", type="process") == 1
        assert value(samples, "persys_agent_workload_created_total", type="process") == 2
        assert value(samples, "persys_agent_workload_failed_total", type="process") == 1
        assert value(samples, "persys_agent_errors_total", error_code="RUNTIME_ERROR") == 1
        assert value(samples, "persys_agent_errors_total", error_code="INSUFFICIENT_RESOURCES") == 1
        assert value(samples, "persys_agent_runtime_health_status", runtime="process") == 1
        assert value(samples, "persys_agent_workload_apply_duration_seconds_count") == 2
        assert value(samples, "persys_agent_task_queue_depth") == 0
        assert value(samples, "persys_agent_system_memory_utilization_percent") > 0
        await channel.call(AgentService.DELETE_WORKLOAD, agent_pb2.DeleteWorkloadRequest(id="breaks"))
        await asyncio.sleep(5)
        samples = read(agent._render_metrics())
        assert value(samples, "persys_agent_workload_deleted_total", type="process") == 1
        assert value(samples, "persys_agent_workload_delete_duration_seconds_count") == 1
        assert value(samples, "persys_agent_task_executions_total", type="delete_workload") == 1
        assert value(samples, "persys_agent_workload_count", state="failed", type="process") == 0
        await channel.close()

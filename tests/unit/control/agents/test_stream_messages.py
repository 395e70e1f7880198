"""Each message of a stream is counted, timed and traced under the name of the call that it stands for."""

import time

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shoal.agent.metrics import AgentMetrics
from shoal.core import tracing
from shoal.core.errors import SessionSupersededError
from shoal.core.telemetry import MetricRegistry
from shoal.testing.control import ControlKit
from shoal.wire.methods import AgentControl, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from tests.unit.agent.scene import scene
from tests.unit.control.test_metrics import read, value

pytestmark = pytest.mark.looptime(start=time.monotonic)


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path, streams=True) as made:
        yield made


def calls(kit, method, code="OK"):
    samples = read(kit.plane._render_metrics())
    return value(samples, "shoal_control_rpc_total", method=method.path, code=code) or 0


async def test_heartbeats_and_registrations_are_counted_by_name(kit):
    kit.node("n1")
    await kit.wait_node("n1", "Ready")
    assert calls(kit, AgentControl.REGISTER_NODE) == 1
    before = calls(kit, AgentControl.HEARTBEAT)
    await kit.clock.sleep(100)
    assert calls(kit, AgentControl.HEARTBEAT) == before + 10


async def test_what_is_refused_is_counted_with_its_code(kit):
    node = kit.node("n1")
    await kit.wait_node("n1", "Ready")
    node.session = "000000000000001-nobody"
    with pytest.raises(SessionSupersededError):
        await kit.agents.heartbeat(node)
    assert calls(kit, AgentControl.HEARTBEAT, "FAILED_PRECONDITION") == 1


async def test_each_message_has_a_trace_of_its_own(kit):
    exporter = InMemorySpanExporter()
    with tracing.exporting(
        "shoal-test", env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, make_exporter=lambda: exporter
    ):
        kit.node("n1")
        await kit.wait_node("n1", "Ready")
        await kit.clock.sleep(50)
    spans = [span for span in exporter.get_finished_spans() if span.name == AgentControl.HEARTBEAT.path]
    assert len(spans) >= 5
    assert {span.parent for span in spans} == {None}
    assert len({span.context.trace_id for span in spans}) == len(spans)
    assert {span.attributes["rpc.response.status_code"] for span in spans} == {"OK"}


async def test_an_agent_counts_the_calls_that_come_through_its_stream(tmp_path):
    async with scene(tmp_path, streams=True) as it:
        it.metrics = AgentMetrics(MetricRegistry())
        agent = await it.start()
        await it.clock.sleep(1)
        await it.control.stream.call(AgentService.LIST_WORKLOADS, agent_pb2.ListWorkloadsRequest())
        samples = read(agent._render_metrics())
        path = AgentService.LIST_WORKLOADS.path
        assert value(samples, "shoal_agent_rpc_total", method=path, code="OK") == 1

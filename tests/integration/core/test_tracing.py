"""Spans of a control plane and its agents arrive at a collector, over HTTP, as OTLP says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from shoal.core import tracing
from shoal.testing.control import ControlKit

pytestmark = pytest.mark.integration


class Collector(ThreadingHTTPServer):
    """Keeps what it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.requests: list[ExportTraceServiceRequest] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def services(self) -> set[str]:
        return {
            attribute.value.string_value
            for request in self.requests
            for resource in request.resource_spans
            for attribute in resource.resource.attributes
            if attribute.key == "service.name"
        }


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf":
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
        else:
            self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name is given
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def endpoint(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> str:
    # The library reads the process' own environment.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    return collector.address


async def test_a_request_is_one_trace_from_its_call_to_the_agent(tmp_path, collector: Collector, endpoint: str) -> None:
    with tracing.exporting("shoal-control") as sends:
        assert sends
        async with ControlKit(tmp_path) as kit:
            kit.node("n1")
            await kit.wait_node("n1", "Ready")
            await kit.apply("web")
            await kit.wait_status("web", "Running")
            await kit.delete("web")
            await kit.wait_gone("web")
    by_name: dict[str, list[Span]] = {}
    for span in collector.spans():
        by_name.setdefault(span.name, []).append(span)
    apply = by_name["/persys.control.v1.AgentControl/ApplyWorkload"][0]
    command = by_name["command.apply"][0]
    carried = by_name["/persys.agent.v1.AgentService/ApplyWorkload"][0]
    commits = [each for each in by_name["store.commit"] if each.parent_span_id == apply.span_id]
    assert commits
    assert command.parent_span_id == apply.span_id
    assert carried.parent_span_id == command.span_id
    assert carried.trace_id == command.trace_id == apply.trace_id
    assert "placement" in by_name
    assert "command.delete" in by_name
    facts = {each.key: each.value.string_value for each in carried.attributes}
    assert facts["rpc.response.status_code"] == "OK"
    assert collector.services() == {"shoal-control"}


async def test_a_refused_call_bears_its_code(tmp_path, collector: Collector, endpoint: str) -> None:
    with tracing.exporting("shoal-control"):
        async with ControlKit(tmp_path) as kit:
            with contextlib.suppress(Exception):
                await kit.workload("nobody")
    (call,) = [span for span in collector.spans() if span.name.endswith("/GetWorkload")]
    assert {each.key: each.value.string_value for each in call.attributes}["rpc.response.status_code"] == "NOT_FOUND"

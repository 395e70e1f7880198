from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shoal.core import tracing

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


class Spans:
    """What was sent while the block ran, by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._exporting = tracing.exporting("shoal-test", env=ENDPOINT, make_exporter=lambda: self._exporter)

    def __enter__(self) -> Spans:
        assert self._exporting.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._exporting.__exit__(None, None, None)

    def __getitem__(self, name: str) -> ReadableSpan:
        (found,) = [each for each in self._exporter.get_finished_spans() if each.name == name]
        return found

    def names(self) -> list[str]:
        return sorted(each.name for each in self._exporter.get_finished_spans())


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def test_without_an_endpoint_nothing_is_loaded_and_nothing_is_made() -> None:
    program = (
        "import sys\n"
        "from shoal.core import tracing\n"
        "with tracing.exporting('shoal-test', env={}) as on, tracing.span('work', a=1) as span:\n"
        "    span.set('b', 2)\n"
        "    assert not on and tracing.headers() == {}\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_spans_nest_carry_facts_and_the_name_of_the_service() -> None:
    with Spans() as spans, tracing.span("outer", node_id="n1"), tracing.span("inner", rpc__system="grpc") as inner:
        inner.set("placed", 3)
    assert spans["outer"].attributes == {"node_id": "n1"}
    assert spans["inner"].attributes == {"rpc.system": "grpc", "placed": 3}
    assert spans["inner"].parent == spans["outer"].get_span_context()
    assert spans["outer"].resource.attributes["service.name"] == "shoal-test"


def test_the_variable_names_the_service() -> None:
    exporter = InMemorySpanExporter()
    env = {**ENDPOINT, "OTEL_SERVICE_NAME": "blue"}
    with tracing.exporting("shoal-test", env=env, make_exporter=lambda: exporter), tracing.span("work"):
        pass
    assert exporter.get_finished_spans()[0].resource.attributes["service.name"] == "blue"


def test_an_error_is_noted_by_its_type_alone() -> None:
    with Spans() as spans, pytest.raises(ValueError, match="password"), tracing.span("work"):
        raise ValueError("password=1234")
    assert spans["work"].status.is_ok is False
    assert spans["work"].attributes == {"error.type": "ValueError"}
    assert spans["work"].events == ()
    assert "1234" not in spans["work"].to_json()


async def test_a_cancelled_span_is_no_failure() -> None:
    async def work() -> None:
        with tracing.span("work"):
            await asyncio.sleep(3600)

    with Spans() as spans:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert spans["work"].status.is_ok
    assert spans["work"].attributes == {"error.type": "CancelledError"}


def test_a_trace_goes_on_where_its_headers_arrive() -> None:
    with Spans() as spans:
        with tracing.span("call"):
            carried = tracing.headers()
        with tracing.span("elsewhere"), tracing.span("served", parent=carried):
            pass
        with tracing.span("around"), tracing.span("uncalled", parent={}):
            pass
    assert list(carried) == ["traceparent"]
    assert trace_of(spans["served"]) == trace_of(spans["call"])
    assert trace_of(spans["elsewhere"]) != trace_of(spans["call"])
    assert spans["uncalled"].parent is None


async def test_what_is_done_soon_after_its_cause_is_in_its_trace_and_what_is_done_later_is_linked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def follow(name: str) -> None:
        await started.wait()
        with tracing.span(name):
            pass

    with Spans() as spans:
        started = asyncio.Event()
        with tracing.span("request"):
            soon, later = asyncio.ensure_future(follow("soon")), asyncio.ensure_future(follow("later"))
            await asyncio.sleep(0)
        started.set()
        await soon if not soon.done() else None
        await later
        monkeypatch.setattr(tracing, "FOLLOWS_WITHIN_SECONDS", -1.0)
        with tracing.span("cause"):
            late = asyncio.ensure_future(follow("late"))
        await late
    assert trace_of(spans["soon"]) == trace_of(spans["later"]) == trace_of(spans["request"])
    assert trace_of(spans["late"]) != trace_of(spans["cause"])
    assert [link.context for link in spans["late"].links] == [spans["cause"].get_span_context()]


def test_a_hostile_header_is_no_parent() -> None:
    with Spans() as spans, tracing.span("served", parent={"traceparent": "00-" + "z" * 5000, "tracestate": "=,="}):
        pass
    assert spans["served"].parent is None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, ""),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, ""),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "protocol grpc"),
    ],
)
def test_when_no_traces_are_sent(env: dict[str, str], words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), tracing.exporting("shoal-test", env=env) as sends:
        assert not sends
    assert words in caplog.text
    assert bool(words) == bool(caplog.records)


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    with caplog.at_level(logging.WARNING), tracing.exporting("shoal-test", env=ENDPOINT) as sends:
        assert not sends
    assert "shoal[otel]" in caplog.text


def test_within_one_process_the_first_one_counts() -> None:
    with Spans() as spans:
        with tracing.exporting("another", env=ENDPOINT) as sends:
            assert sends
        with tracing.span("after"):
            pass
    assert spans.names() == ["after"]


def test_a_collector_that_hangs_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    reached, released = threading.Event(), threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            reached.set()
            released.wait()
            return SpanExportResult.FAILURE

    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.1)
    try:
        with tracing.exporting("shoal-test", env=ENDPOINT, make_exporter=Hanging), tracing.span("work"):
            pass
        assert reached.wait(30)
        assert tracing.headers() == {}
    finally:
        released.set()

"""Traces of what a process does, sent to an OpenTelemetry collector when one is named; nothing at all otherwise.

    with exporting("shoal-control"):                          # once, by the composition roots in `shoal.cli`
        with span("placement", requests=3) as placing:        # anywhere
            placing.set("placed", 2)

`OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) names the collector, which speaks OTLP over HTTP; the other
variables of OpenTelemetry, such as those for sampling and headers, count as its own library reads them. That library
comes with the `otel` extra and is imported only when an endpoint is set. Without one a span costs a function call.

A trace goes on in the process that is called: `headers` gives what to send along, `span(parent=…)` takes it up. Values
of a span are ids, counts and codes, never what people wrote: an error is noted by its type alone.

Called by `shoal.wire.serving`, `shoal.control.store`, `shoal.control.placement.placer` and
`shoal.control.agents.calls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

Value = str | int | float | bool

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The variables that turn traces on; the first one is the whole address, the second gets /v1/traces appended."""

PROTOCOL = "http/protobuf"

CLOSE_SECONDS = 3.0
"""How long the end of a process waits for the last spans to arrive."""

#: What is done later than this after the end of what caused it, such as a retry by a timer, is a trace of its own with
#: a link to its cause: else the trace of a request would never end.
FOLLOWS_WITHIN_SECONDS = 30.0

_SERVICE_NAME = "OTEL_SERVICE_NAME"


class Span(Protocol):
    """Something that takes time."""

    def set(self, name: str, value: Value) -> None:
        """Note a fact."""
        ...


class _NoSpan:
    """What everything is when nobody asked for traces: one object, entered over and over."""

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def set(self, name: str, value: Value) -> None:
        """Forget it."""


_NO_SPAN = _NoSpan()


class _Exporter:
    """The library, set up: what there is between `exporting` and its end."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def headers(self) -> dict[str, str]:
        """The current span, for the one who is called."""
        carried: dict[str, str] = {}
        self._propagator.inject(carried)
        return carried

    @contextlib.contextmanager
    def span(self, name: str, parent: Mapping[str, str] | None, attributes: dict[str, Value]) -> Iterator[Span]:
        """A span around the block."""
        from opentelemetry.trace import Status, StatusCode, use_span

        context = self._propagator.extract(dict(parent)) if parent is not None else None
        made = self._start(name, context, attributes)
        try:
            with use_span(made, record_exception=False, set_status_on_exception=False):
                yield _OpenSpan(made)
        except BaseException as error:
            made.set_attribute("error.type", type(error).__name__)
            if not isinstance(error, asyncio.CancelledError | GeneratorExit):
                made.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            made.end()

    def _start(self, name: str, context: Context | None, attributes: dict[str, Value]) -> OtelSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import INVALID_SPAN, Link, get_current_span, set_span_in_context

        made = self._tracer.start_span(name, context, attributes=attributes)
        cause = get_current_span(context)
        if not isinstance(cause, ReadableSpan) or not isinstance(made, ReadableSpan):
            return made
        ended, started = cause.end_time, made.start_time
        if ended is None or started is None or started - ended <= FOLLOWS_WITHIN_SECONDS * 1e9:
            return made
        # The first one is never ended, and so never sent.
        nobody = set_span_in_context(INVALID_SPAN)
        links = [Link(cause.get_span_context())]
        return self._tracer.start_span(name, nobody, attributes=attributes, links=links)


class _OpenSpan:
    """A span of the library behind our protocol."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    def set(self, name: str, value: Value) -> None:
        """Note a fact."""
        self._span.set_attribute(name, value)


_exporter: _Exporter | None = None


def span(name: str, *, parent: Mapping[str, str] | None = None, **attributes: Value) -> AbstractContextManager[Span]:
    """A span around a block; an error that leaves the block marks it.

    Args:
        name: what is done, one of few.
        parent: the headers of the call that caused it, if it came from another process.
        attributes: facts about it; a double underscore in a name stands for a dot.
    """
    if _exporter is None:
        return _NO_SPAN
    facts = {key.replace("__", "."): value for key, value in attributes.items()}
    return _exporter.span(name, parent, facts)


def headers() -> dict[str, str]:
    """What to send along with a call so that the trace goes on there; empty without traces."""
    return _exporter.headers() if _exporter is not None else {}


@contextlib.contextmanager
def exporting(
    service: str,
    *,
    env: Mapping[str, str] | None = None,
    make_exporter: Callable[[], SpanExporter] | None = None,
) -> Iterator[bool]:
    """Send spans to the endpoint that the environment names, for the length of the block. Yields whether it does.

    Args:
        service: how this process is called among others; `OTEL_SERVICE_NAME` wins.
        env: the environment, os.environ if not given.
        make_exporter: makes something else than the sender over HTTP.
    """
    global _exporter  # noqa: PLW0603 one per process, as the log is
    env = os.environ if env is None else env
    if _exporter is not None or not _wanted(env):
        yield _exporter is not None
        return
    tracer, close = _set_up(env.get(_SERVICE_NAME) or service, make_exporter or _otlp_exporter)
    _exporter = _Exporter(tracer)
    try:
        yield True
    finally:
        _exporter = None
        # The collector may be away or hang: its loss must not keep a server from ending.
        closing = threading.Thread(target=close, name="shoal-traces-end", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def _wanted(env: Mapping[str, str]) -> bool:
    if not any(env.get(name) for name in ENDPOINTS) or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or PROTOCOL
    if protocol != PROTOCOL:
        log.warning("no traces are sent: the protocol %s is not spoken here, only %s", protocol, PROTOCOL)
        return False
    if not _is_installed():
        log.warning("no traces are sent: OpenTelemetry is not installed (pip install 'shoal[otel]')")
        return False
    return True


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _otlp_exporter() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _set_up(service: str, make_exporter: Callable[[], SpanExporter]) -> tuple[Tracer, Callable[[], None]]:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # Not the library's global one: that can be set only once in a process.
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    # Its queue is bounded; what comes when it is full is dropped, and nothing waits for it.
    provider.add_span_processor(BatchSpanProcessor(make_exporter()))
    return provider.get_tracer("shoal"), provider.shutdown

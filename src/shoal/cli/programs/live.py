"""What `shoal run` shows while dataflows run: a live table on a terminal, JSON lines, and Prometheus' metrics.

Looks at the counts of the engine once a second, and at each scrape. Rich is imported on a terminal only.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.output.displays import is_lively
from shoal.cli.output.printing import console_for, table_lines
from shoal.cli.output.tables import Column
from shoal.core.errors import PreconditionError
from shoal.dataflow.execution.progress import FlowSeries, Rates, step_progress

_COLUMNS = (
    Column("STEP", least=12),
    Column("IN/s", right=True),
    Column("OUT/s", right=True),
    Column("LAG", right=True),
    Column("STATE", rank=2),
    Column("WAITING", right=True, rank=1),
    Column("CHECKPOINT", rank=3),
)
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "K"))


class Look:
    """One look after the other at running dataflows."""

    def __init__(self) -> None:
        self._rates: dict[str, Rates] = {}

    def documents(self, flows: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Each step of dataflows that run, as `--json` prints it."""
        clock = session.clock()
        now, wall = clock.monotonic(), clock.wall()
        for flow in flows:
            metrics = metrics_of(flow)
            if metrics is None:
                continue
            rates = self._rates.setdefault(flow.name, Rates())
            for step in step_progress(metrics):
                received, emitted = rates.look(step, now)
                yield {
                    "time": wall,
                    "dataflow": flow.name,
                    "step": step.uid,
                    "name": step.name,
                    "rows_in": step.received,
                    "rows_out": step.emitted,
                    "rows_in_per_second": round(received, 1),
                    "rows_out_per_second": round(emitted, 1),
                    "watermark_lag_seconds": step.lag(_micros(wall)),
                    "state": dict(step.state),
                    "left_out": dict(step.left_out),
                    "waiting_bytes": step.waiting_bytes,
                    "slow": step.is_slow,
                    "checkpoint": metrics.checkpoints.last_number or None,
                    "checkpoint_age_seconds": metrics.checkpoints.age,
                }


def metrics_of(flow: Any) -> Any:
    """The counts of a dataflow; None before it runs, when it is over, and while it goes back to a checkpoint."""
    running = getattr(flow, "running", None)
    if running is None:
        return None
    try:
        return running.metrics()
    except Exception:  # noqa: BLE001  it is ending or restarting in other threads: the next look sees it
        return None


@contextlib.contextmanager
def live_lines(*, as_json: bool) -> Iterator[Callable[[Sequence[Any]], None]]:
    """A function that shows dataflows as they are now: JSON lines, a live table on a terminal, else nothing."""
    look = Look()
    if as_json:
        yield lambda flows: _print(look.documents(flows))
        return
    if not is_lively(sys.stderr):
        yield lambda _flows: None
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = console_for(sys.stderr)
    with Live(Text(""), console=console, transient=True, auto_refresh=False, redirect_stdout=False) as live:

        def show(flows: Sequence[Any]) -> None:
            rows = [row_of(each) for each in look.documents(flows)]
            live.update(Group(*table_lines(_COLUMNS, rows, width=console.width)), refresh=True)

        yield show


def _print(documents: Iterator[dict[str, Any]]) -> None:
    for each in documents:
        output.json_line(each)


def row_of(step: dict[str, Any]) -> list[str | output.Cell]:
    """A line of the live table."""
    lag, age = step["watermark_lag_seconds"], step["checkpoint_age_seconds"]
    waiting = output.size(step["waiting_bytes"]) if step["waiting_bytes"] else ""
    state = ", ".join(f"{amount(count)} {kind.replace('_', ' ')}" for kind, count in step["state"].items() if count)
    return [
        output.Cell(step["name"], "bold yellow") if step["slow"] else step["name"],
        amount(step["rows_in_per_second"]),
        amount(step["rows_out_per_second"]),
        "" if lag is None else f"{lag:.1f}s" if lag < 60 else output.span(lag),
        state,
        output.Cell(f"{waiting} slow", "bold yellow") if step["slow"] else waiting,
        "" if age is None else f"{step['checkpoint'] or 'none'}, {output.span(age)} ago",
    ]


def amount(count: float) -> str:
    """A number in three digits or so."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def _micros(wall: Any) -> int:
    return int(wall.timestamp() * 1_000_000)


# ---------------------------------------------------------------------------------------------------------
# Prometheus


@contextlib.contextmanager
def serving_metrics(flows: Sequence[Any], host: str, port: int | None) -> Iterator[None]:
    """Serve the metrics of dataflows while the block runs; nothing without a port."""
    if port is None:
        yield
        return
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from shoal.core.telemetry import CONTENT_TYPE, MetricRegistry

    series = FlowSeries(MetricRegistry())

    def render() -> bytes:
        now = _micros(session.clock().wall())
        for flow in flows:
            metrics = metrics_of(flow)
            if metrics is not None:
                series.update(flow.name, metrics, now)
        return series.registry.render()

    class Handler(BaseHTTPRequestHandler):
        """Answers scrapes."""

        timeout = 10.0

        def do_GET(self) -> None:
            """One scrape."""
            found = self.path.partition("?")[0] == "/metrics"
            body = render() if found else b"not found: /metrics is here\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: Any) -> None:
            """Scrapes are no news."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise PreconditionError(
            f"metrics cannot be served at {host}:{port}: {error.strerror or error}",
            hint="another --metrics-port, or 0 for any that is free",
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    output.words(f"metrics: http://{host}:{server.server_address[1]}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

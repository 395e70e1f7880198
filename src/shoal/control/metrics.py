"""The control plane's figures, as Prometheus series. Called by `shoal.control.server`; nothing is decided by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.telemetry import MetricRegistry
from shoal.model.views import ClusterSummary

if TYPE_CHECKING:
    from shoal.control.nodes import Nodes


class ControlMetrics:
    """Every series that the control plane serves."""

    def __init__(self) -> None:
        self.registry = MetricRegistry()
        self._nodes = self.registry.gauge("shoal_control_nodes", "Nodes by state.", ("state",))
        self._workloads = self.registry.gauge("shoal_control_workloads", "Workloads by status.", ("status",))
        self._groups = self.registry.gauge("shoal_control_groups", "Groups.")
        self._steps = self.registry.counter(
            "shoal_control_steps_total", "Steps that were carried out towards wishes.", ("action", "result")
        )
        self._beats = self.registry.gauge("shoal_control_beats_received", "Heartbeats received since the start.")
        self._ignored = self.registry.gauge(
            "shoal_control_reports_ignored", "Reports on workloads from nodes that do not own them, since the start."
        )
        self._calls = self.registry.counter("shoal_control_rpc_total", "RPCs served.", ("method", "code"))
        self._seconds = self.registry.histogram("shoal_control_rpc_seconds", "How long RPCs took.", ("method",))

    def step(self, action: str, success: bool) -> None:
        """Count a step."""
        self._steps.labels(action, "ok" if success else "failed").inc()

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Count a served RPC."""
        self._calls.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)

    def refresh(self, summary: ClusterSummary, nodes: Nodes) -> None:
        """Bring the gauges up to date. Each is set on every call, so none keeps a value that is over."""
        self._nodes.labels("Ready").set(summary.ready_nodes)
        self._nodes.labels("Suspect").set(summary.suspect_nodes)
        self._nodes.labels("NotReady").set(summary.not_ready_nodes)
        for status, count in (
            ("Running", summary.running_workloads),
            ("Pending", summary.pending_workloads),
            ("Failed", summary.failed_workloads),
            ("Stopped", summary.stopped_workloads),
            ("Completed", summary.completed_workloads),
            ("Deleting", summary.deleting_workloads),
            ("Deleted", summary.deleted_workloads),
            ("Unknown", summary.lost_workloads),
        ):
            self._workloads.labels(status).set(count)
        self._groups.set(summary.groups)
        self._beats.set(nodes.beats_received)
        self._ignored.set(nodes.reports_ignored)

    def render(self) -> bytes:
        """As Prometheus reads it."""
        return self.registry.render()

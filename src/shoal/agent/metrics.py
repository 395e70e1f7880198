"""The agent's figures, as Prometheus series. Nothing is decided by them.

Counted only when somebody can read them: without an HTTP server there is no registry, and counting does nothing.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING

from shoal.core.telemetry import MetricRegistry
from shoal.model.nodes import NodeUsage
from shoal.model.resources import Resources
from shoal.model.workloads import RunState

if TYPE_CHECKING:
    from shoal.agent.roster import WorkloadReport


class AgentMetrics:
    """Every series that an agent serves."""

    def __init__(self, registry: MetricRegistry | None = None) -> None:
        self._registry = registry
        if registry is None:
            return
        self._beats = registry.counter(
            "shoal_agent_heartbeats_total", "Heartbeats sent, by what came of them.", ["result"]
        )
        self._registrations = registry.counter(
            "shoal_agent_registrations_total", "Registrations tried, by what came of them.", ["result"]
        )
        self._orders = registry.counter(
            "shoal_agent_orders_total", "Orders received, by kind and by what came of them.", ["action", "result"]
        )
        self._calls = registry.counter("shoal_agent_rpc_total", "RPCs served.", ["method", "code"])
        self._seconds = registry.histogram("shoal_agent_rpc_seconds", "How long RPCs took.", ["method"])
        self._workloads = registry.gauge("shoal_agent_workloads", "Workloads, by kind and state.", ["type", "state"])
        self._orphans = registry.gauge("shoal_agent_orphans", "Runs that belong to no workload known here.")
        self._runtimes = registry.gauge("shoal_agent_runtime_healthy", "Whether a runtime is well.", ["type"])
        self._registered = registry.gauge(
            "shoal_agent_registered", "Whether the control plane acknowledges this agent."
        )
        self._draining = registry.gauge("shoal_agent_draining", "Whether new work is refused.")
        self._capacity = registry.gauge("shoal_agent_capacity", "What the node offers.", ["resource"])
        self._reserved = registry.gauge("shoal_agent_reserved", "What is reserved for workloads.", ["resource"])
        self._used = registry.gauge("shoal_agent_used", "What is used, measured.", ["resource"])

    def beat(self, result: str) -> None:
        """Count a heartbeat."""
        if self._registry is not None:
            self._beats.labels(result).inc()

    def registration(self, result: str) -> None:
        """Count a registration."""
        if self._registry is not None:
            self._registrations.labels(result).inc()

    def order(self, action: str, result: str) -> None:
        """Count an order."""
        if self._registry is not None:
            self._orders.labels(action, result).inc()

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Count a served RPC."""
        if self._registry is not None:
            self._calls.labels(method, code).inc()
            self._seconds.labels(method).observe(seconds)

    def refresh(
        self,
        *,
        reports: tuple[WorkloadReport, ...],
        orphans: int,
        runtimes: dict[str, str],
        registered: bool,
        draining: bool,
        capacity: Resources,
        reserved: Resources,
        usage: NodeUsage,
    ) -> None:
        """Bring what is counted in numbers that go up and down to the present."""
        if self._registry is None:
            return
        counted = Tally((report.type.value, report.status.state) for report in reports)
        for kind in runtimes:
            for state in RunState:
                self._workloads.labels(kind, state.value).set(counted[kind, state])
        self._orphans.set(orphans)
        for kind, health in runtimes.items():
            self._runtimes.labels(kind).set(health == "healthy")
        self._registered.set(registered)
        self._draining.set(draining)
        for gauge, amount in ((self._capacity, capacity), (self._reserved, reserved)):
            gauge.labels("cpu_millicores").set(amount.cpu_millicores)
            gauge.labels("memory_mb").set(amount.memory_mb)
            gauge.labels("disk_gb").set(amount.disk_gb)
            gauge.labels("slots").set(amount.slots)
        self._used.labels("cpu_millicores").set(usage.cpu_used_millicores)
        self._used.labels("memory_mb").set(usage.memory_used_mb)
        self._used.labels("disk_gb").set(usage.disk_used_gb)

    def render(self) -> bytes:
        """Every series as text."""
        return self._registry.render() if self._registry is not None else b""

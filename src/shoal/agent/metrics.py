"""The agent's metrics, as Prometheus series. Nothing is decided by them.

The series `persys_agent_…` have the names and labels that dashboards for Persys use. docs/reference/metrics.md lists
every series. Without an HTTP server there is no registry, and counting does nothing.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shoal.core.errors import ExhaustedError, InvalidError, ShoalError
from shoal.core.telemetry import MetricRegistry
from shoal.model.nodes import ConditionType, NodeUsage
from shoal.model.resources import Resources
from shoal.model.workloads import FailureReason, RunState, WorkloadType
from shoal.runtimes.base import HEALTHY

if TYPE_CHECKING:
    from shoal.agent.facts import HealthReport, WorkloadReport
    from shoal.agent.store.action_log import Action


class AgentMetrics:
    """Every series that an agent serves."""

    def __init__(self, registry: MetricRegistry | None = None) -> None:
        self._registry = registry
        if registry is None:
            return
        self._heartbeats = registry.counter("shoal_agent_heartbeats_total", "Heartbeats sent, by result.", ["result"])
        self._registrations = registry.counter(
            "shoal_agent_registrations_total", "Registrations tried, by result.", ["result"]
        )
        self._commands = registry.counter(
            "shoal_agent_commands_total", "Commands received, by kind and result.", ["action", "result"]
        )
        self._calls = registry.counter("shoal_agent_rpc_total", "RPCs served.", ["method", "code"])
        self._seconds = registry.histogram("shoal_agent_rpc_seconds", "How long RPCs took.", ["method"])
        self._workloads = registry.gauge("shoal_agent_workloads", "Workloads, by kind and state.", ["type", "state"])
        self._orphans = registry.gauge("shoal_agent_orphans", "Runs that belong to no workload known here.")
        self._lateness = registry.gauge(
            "shoal_agent_keeper_late_seconds", "How late the keeper answered when it was last asked; 0 when in time."
        )
        self._conditions = registry.gauge(
            "shoal_agent_condition", "Whether the node has a condition, by type.", ["type"]
        )
        self._runtimes = registry.gauge("shoal_agent_runtime_healthy", "Whether a runtime is healthy.", ["type"])
        self._registered = registry.gauge(
            "shoal_agent_registered", "Whether the control plane acknowledges this agent."
        )
        self._draining = registry.gauge("shoal_agent_draining", "Whether new work is refused.")
        self._capacity = registry.gauge("shoal_agent_capacity", "Capacity of the node.", ["resource"])
        self._reserved = registry.gauge("shoal_agent_reserved", "Reserved for workloads.", ["resource"])
        self._used = registry.gauge("shoal_agent_used", "In use, measured.", ["resource"])
        self._foreign = _ForeignSeries(registry)

    def heartbeat(self, result: str) -> None:
        """Count a heartbeat."""
        if self._registry is not None:
            self._heartbeats.labels(result).inc()

    def registration(self, result: str) -> None:
        """Count a registration."""
        if self._registry is not None:
            self._registrations.labels(result).inc()

    def command(self, action: str, result: str) -> None:
        """Count a command."""
        if self._registry is not None:
            self._commands.labels(action, result).inc()

    def refused(self, action: str, error: ShoalError) -> None:
        """Count a refused command."""
        if self._registry is not None:
            self._commands.labels(action, type(error).__name__).inc()
            self._foreign.errors.labels(_error_code(error)).inc()

    def began(self, kind: WorkloadType) -> None:
        """Count a workload that is new here."""
        if self._registry is not None:
            self._foreign.created.labels(kind.value).inc()

    def removed(self, kind: WorkloadType) -> None:
        """Count a workload that is gone."""
        if self._registry is not None:
            self._foreign.deleted.labels(kind.value).inc()

    def failed(self, kind: WorkloadType, failure: FailureReason) -> None:
        """Count a workload that failed for good."""
        if self._registry is not None:
            self._foreign.failed.labels(kind.value).inc()
            self._foreign.errors.labels(failure.value).inc()

    def finished(self, actions: Iterable[Action]) -> None:
        """Count entries of the log of actions that have ended."""
        if self._registry is None:
            return
        for action in actions:
            if action.is_open or action.ended_at is None:
                continue
            kind, seconds = action.type.value, max(0.0, (action.ended_at - action.created_at).total_seconds())
            self._foreign.tasks.labels(kind).inc()
            self._foreign.latency.labels(kind).observe(seconds)
            if action.error:
                self._foreign.task_failures.labels(kind).inc()
            duration = self._foreign.durations.get(kind)
            if duration is not None:
                duration.observe(seconds)

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
        health: HealthReport,
        open_actions: int,
        lateness: float = 0.0,
        conditions: tuple[str, ...] = (),
    ) -> None:
        """Compute every gauge, so that no label keeps a stale value."""
        if self._registry is None:
            return
        foreign = self._foreign
        counted = Tally((report.type.value, report.status.state) for report in reports)
        for gauge in (self._workloads, self._runtimes, foreign.workloads, foreign.runtimes):
            gauge.clear()
        for kind in {*runtimes, *(kind for kind, _state in counted)}:
            for state in RunState:
                self._workloads.labels(kind, state.value).set(counted[kind, state])
                foreign.workloads.labels(state.value.lower(), kind).set(counted[kind, state])
        self._orphans.set(orphans)
        self._lateness.set(lateness)
        for condition in ConditionType:
            self._conditions.labels(condition.value).set(condition.value in conditions)
        for kind, words in runtimes.items():
            self._runtimes.labels(kind).set(words == HEALTHY)
            foreign.runtimes.labels(kind).set(words == HEALTHY)
        foreign.memory.set(health.memory_percent)
        foreign.cpu.set(health.cpu_percent)
        foreign.disk.set(health.disk_percent)
        foreign.queue.set(open_actions)
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


class _ForeignSeries:
    """What the dashboards of the published agent ask for."""

    def __init__(self, registry: MetricRegistry) -> None:
        name = "persys_agent_{}".format
        self.workloads = registry.gauge(name("workload_count"), "Workloads, by state and kind.", ["state", "type"])
        self.created = registry.counter(name("workload_created_total"), "Workloads that were new here.", ["type"])
        self.deleted = registry.counter(name("workload_deleted_total"), "Workloads that are gone.", ["type"])
        self.failed = registry.counter(name("workload_failed_total"), "Workloads that failed for good.", ["type"])
        self.durations = {
            "apply_workload": registry.histogram(
                name("workload_apply_duration_seconds"), "From an apply command to its result."
            ),
            "delete_workload": registry.histogram(
                name("workload_delete_duration_seconds"), "From a delete command to its end."
            ),
        }
        self.runtimes = registry.gauge(name("runtime_health_status"), "Whether a runtime is healthy.", ["runtime"])
        self.memory = registry.gauge(name("system_memory_utilization_percent"), "Memory of the machine in use.")
        self.cpu = registry.gauge(name("system_cpu_utilization_percent"), "CPU of the machine in use.")
        self.disk = registry.gauge(name("system_disk_utilization_percent"), "Disk under the data directory in use.")
        self.errors = registry.counter(
            name("errors_total"), "Refused commands and failed workloads, by reason.", ["error_code"]
        )
        self.queue = registry.gauge(name("task_queue_depth"), "Commands that have not ended.")
        self.latency = registry.histogram(name("task_latency_seconds"), "From a command to its end.", ["type"])
        self.tasks = registry.counter(name("task_executions_total"), "Commands that have ended.", ["type"])
        self.task_failures = registry.counter(name("task_failures_total"), "Commands that failed.", ["type"])


def _error_code(error: ShoalError) -> str:
    """The failure reason that corresponds to a refusal."""
    if isinstance(error, InvalidError):
        return FailureReason.INVALID_SPEC.value
    if isinstance(error, ExhaustedError):
        return error.facts.get("failure") or FailureReason.INSUFFICIENT_RESOURCES.value
    return error.facts.get("failure") or FailureReason.RUNTIME_ERROR.value

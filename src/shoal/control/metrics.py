"""The control plane's metrics, as Prometheus series. Nothing is decided by them.

The series `persys_scheduler_…` have the names and labels that existing dashboards ask for, and spell status codes as Go
does. docs/reference/metrics.md lists every series. Counters are raised by the code that does the work
(`shoal.control.leadership.leader` and `shoal control` connect them). Gauges are computed for each reader.
"""

from __future__ import annotations

import functools
from collections import Counter as Tally
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.control.state.fleet import Fleet
from shoal.control.state.lifecycle.phases import Waiting, contract_status, phase_of
from shoal.control.store.base import Batch
from shoal.core.telemetry import MetricRegistry
from shoal.model.nodes import NodeState
from shoal.model.phases import ContractStatus, WorkloadPhase
from shoal.model.workloads import DesiredState

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

    _CallSeries = tuple[tuple[Counter, Counter], tuple[Histogram, Histogram]]

#: Deleted, and only a copy on a lost node is left.
DELETED = "Deleted"


class ControlMetrics:
    """Every series that the control plane serves."""

    def __init__(self) -> None:
        self.registry = registry = MetricRegistry()
        self._nodes = registry.gauge("shoal_control_nodes", "Nodes by state.", ("state",))
        self._workloads = registry.gauge("shoal_control_workloads", "Workloads by state.", ("state",))
        self._groups = registry.gauge("shoal_control_groups", "Groups.")
        self._steps = registry.counter(
            "shoal_control_steps_total", "Steps that were carried out towards the desired state.", ("action", "result")
        )
        self._heartbeats = registry.counter("shoal_control_heartbeats_received_total", "Heartbeats received.")
        self._ignored = registry.counter(
            "shoal_control_reports_ignored_total",
            "Ignored reports on workloads: from nodes that do not own them, or unreadable.",
        )
        self._calls = registry.counter("shoal_control_rpc_total", "RPCs served.", ("method", "code"))
        self._seconds = registry.histogram("shoal_control_rpc_seconds", "How long RPCs took.", ("method",))
        self._agent_calls = registry.counter("shoal_control_agent_rpc_total", "Calls to agents.", ("rpc", "code"))
        self._agent_seconds = registry.histogram(
            "shoal_control_agent_rpc_seconds", "How long calls to agents took.", ("rpc",)
        )
        self._writes = registry.counter(
            "shoal_control_records_written_total", "Records that were stored, by kind.", ("kind",)
        )
        self._foreign = _ForeignSeries(registry)
        # Finding a series by its labels costs more than counting in it, and there are few.
        self._of_call = functools.cache(self._find_call)
        self._of_agent_call = functools.cache(self._find_agent_call)
        self._of_step = functools.cache(self._find_step)
        self._of_kind = functools.cache(self._find_kind)

    def step(self, action: str, success: bool) -> None:
        """Count a step."""
        for counter in self._of_step(action, success):
            counter.inc()

    def heartbeat(self) -> None:
        """Count a heartbeat."""
        self._heartbeats.inc()

    def ignored(self, count: int) -> None:
        """Count reports that were left out."""
        self._ignored.inc(count)

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Count a served RPC."""
        counters, histograms = self._of_call(method, code)
        for counter in counters:
            counter.inc()
        for histogram in histograms:
            histogram.observe(seconds)

    def called_agent(self, rpc: str, code: str, seconds: float) -> None:
        """Count a call to an agent."""
        counters, histograms = self._of_agent_call(rpc, code)
        for counter in counters:
            counter.inc()
        for histogram in histograms:
            histogram.observe(seconds)

    def _find_call(self, method: str, code: str) -> _CallSeries:
        foreign = self._foreign
        return (
            (self._calls.labels(method, code), foreign.calls.labels(method, go_code(code))),
            (self._seconds.labels(method), foreign.seconds.labels(method)),
        )

    def _find_agent_call(self, rpc: str, code: str) -> _CallSeries:
        foreign = self._foreign
        return (
            (self._agent_calls.labels(rpc, code), foreign.agent_calls.labels(rpc, go_code(code))),
            (self._agent_seconds.labels(rpc), foreign.agent_seconds.labels(rpc)),
        )

    def _find_step(self, action: str, success: bool) -> tuple[Counter, Counter]:
        ours = self._steps.labels(action, "ok" if success else "failed")
        return ours, self._foreign.steps.labels(action, "true" if success else "false")

    def _find_kind(self, kind: str) -> tuple[Counter, Counter]:
        return self._writes.labels(kind), self._foreign.writes.labels(kind)

    def stored(self, batch: Batch) -> None:
        """Count what was written."""
        for kind, count in _written(batch).items():
            if count:
                for counter in self._of_kind(kind):
                    counter.inc(count)

    def refresh(self, fleet: Fleet, waiting: Waiting) -> None:
        """Count anew what goes up and down, so that nothing keeps a value that is over."""
        states = {state.value: 0 for state in NodeState} | Tally(node.state.value for node in fleet.nodes.values())
        phases, statuses, desired = _count_workloads(fleet, waiting)
        for gauge, counts in (
            (self._nodes, states),
            (self._foreign.nodes, states),
            (self._workloads, phases),
            (self._foreign.workloads, statuses),
            (self._foreign.desired, desired),
        ):
            _show(gauge, counts)
        self._groups.set(len(fleet.groups))

    def render(self) -> bytes:
        """As Prometheus reads it."""
        return self.registry.render()


class _ForeignSeries:
    """What the dashboards of the published scheduler ask for."""

    def __init__(self, registry: MetricRegistry) -> None:
        name = "persys_scheduler_{}".format
        self.calls = registry.counter(name("grpc_server_requests_total"), "RPCs served.", ("method", "code"))
        self.seconds = registry.histogram(
            name("grpc_server_request_duration_seconds"), "How long RPCs took.", ("method",)
        )
        self.agent_calls = registry.counter(name("agent_rpc_requests_total"), "Calls to agents.", ("rpc", "code"))
        self.agent_seconds = registry.histogram(
            name("agent_rpc_duration_seconds"), "How long calls to agents took.", ("rpc",)
        )
        self.steps = registry.counter(
            name("reconciliation_results_total"), "Steps towards the desired state, by success.", ("action", "success")
        )
        self.nodes = registry.gauge(name("nodes_status"), "Nodes by state.", ("status",))
        self.workloads = registry.gauge(name("workloads_status"), "Workloads by status.", ("status",))
        self.desired = registry.gauge(
            name("workloads_desired_state"), "Workloads by desired state.", ("desired_state",)
        )
        self.writes = registry.counter(
            name("state_store_writes_total"), "Records that were stored, by kind.", ("category",)
        )


def go_code(code: str) -> str:
    """A status code as Go spells it: NOT_FOUND is NotFound."""
    if code in ("OK", "CANCELLED"):
        return {"OK": "OK", "CANCELLED": "Canceled"}[code]
    return "".join(word.capitalize() for word in code.split("_"))


def _show(gauge: Gauge, counts: Mapping[str, int]) -> None:
    gauge.clear()
    for label, count in counts.items():
        gauge.labels(label).set(count)


def _count_workloads(fleet: Fleet, waiting: Waiting) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Workloads by state, by the contract's status and by desired state. Each counts once in all of them.

    Shown with 0 when there is none: a series that comes and goes makes a gap in every graph.
    """
    phases = dict.fromkeys((*WorkloadPhase, DELETED), 0)
    statuses = dict.fromkeys((*ContractStatus, DELETED), 0)
    desired = {state.value: 0 for state in DesiredState}
    for record in fleet.workloads.values():
        owner = fleet.owner_of(record)
        observation = fleet.observations.get(record.workload_id)
        buried = fleet.is_buried(record)
        phases[DELETED if buried else phase_of(record, observation, owner, waiting)] += 1
        statuses[DELETED if buried else contract_status(record, observation, owner, waiting)] += 1
        desired[record.desired.value] += 1
    return phases, statuses, desired


def _written(batch: Batch) -> dict[str, int]:
    return {
        "nodes": len(batch.nodes) + len(batch.removed_nodes) + len(batch.heartbeats),
        "workloads": len(batch.workloads) + len(batch.removed_workloads),
        "groups": len(batch.groups) + len(batch.removed_groups),
        "tokens": len(batch.tokens) + len(batch.removed_tokens),
        "secrets": len(batch.secrets) + len(batch.removed_secrets),
        "revocations": len(batch.revocations) + len(batch.removed_revocations),
        "jobs": len(batch.jobs) + len(batch.removed_jobs),
        "observations": len(batch.observations) + len(batch.forgotten_observations),
        "coordination": _tree_rows(batch),
        "events": len(batch.events),
    }


def _tree_rows(batch: Batch) -> int:
    changes = batch.coordination
    return 0 if changes is None else sum(map(len, (changes.put, changes.removed, changes.opened, changes.ended)))

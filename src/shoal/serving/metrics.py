"""The metrics of a serving agent, as Prometheus series. Nothing is decided by them.

Those about versions have the names that Monolith's agents emit, with `shoal_serving_` before them:
`serving_model.latest_version` is `shoal_serving_model_latest_version`. What they carry as tags about the agent itself
is in `shoal_serving_agent`. Without an HTTP server there is no registry, and counting does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.core.clock import Clock
from shoal.core.telemetry import MetricRegistry
from shoal.serving.config.deployment import Deployment


@dataclass(slots=True)
class _Age:
    version: int
    #: When it became available, in seconds since 1970.
    since: float


@dataclass(slots=True)
class _Ages:
    """What changes by itself as time passes."""

    models: dict[str, _Age] = field(default_factory=dict)
    received: dict[str, _Age] = field(default_factory=dict)


class ServingMetrics:
    """Every series that a serving agent has."""

    def __init__(self, clock: Clock, registry: MetricRegistry | None = None) -> None:
        self._clock = clock
        self._registry = registry
        self._ages = _Ages()
        if registry is None:
            return
        self._agent = registry.gauge(
            "shoal_serving_agent", "Always 1; who this agent is.", ["base_name", "location", "shard_id", "replica_id"]
        )
        self._latest = registry.gauge(
            "shoal_serving_model_latest_version", "The version of a model that is available.", ["model_name"]
        )
        self._since = registry.gauge(
            "shoal_serving_model_since_last_update_seconds", "Since that version became available.", ["model_name"]
        )
        self._updated = registry.gauge(
            "shoal_serving_model_update_ts_seconds", "When that version became available.", ["model_name"]
        )
        self._version_delay = registry.gauge(
            "shoal_serving_version_delay_seconds",
            "The age of the received version, if its number is the time it was made.",
            ["model_name"],
        )
        self._update_delay = registry.gauge(
            "shoal_serving_update_delay_seconds", "Since a version was last received.", ["model_name"]
        )
        self._missed = registry.counter(
            "shoal_serving_loop_once_failed_total", "Looks for a new version that failed.", ["model_name"]
        )
        self._restarts = registry.counter(
            "shoal_serving_restarts_total", "Processes that were started again.", ["process"]
        )

    def agent(self, deployment: Deployment, replica_id: int) -> None:
        """Who this agent is."""
        if self._registry is not None:
            base, shard = deployment.settings.base_name or "", str(deployment.shard_id)
            self._agent.labels(base, deployment.location, shard, str(replica_id)).set(1)

    def available(self, model_name: str, version: int) -> None:
        """A version of a model is available."""
        if self._registry is None:
            return
        known = self._ages.models.get(model_name)
        if known is None or known.version != version:
            self._ages.models[model_name] = _Age(version, self._now())
            self._latest.labels(model_name).set(version)
            self._updated.labels(model_name).set(self._now())

    def gone(self, model_name: str) -> None:
        """A model is no longer served here."""
        if self._registry is not None and self._ages.models.pop(model_name, None) is not None:
            for series in (self._latest, self._updated, self._since):
                series.remove(model_name)

    def received(self, model_name: str, version: int) -> None:
        """A version of a model was received."""
        self._ages.received[model_name] = _Age(version, self._now())

    def missed(self, model_name: str) -> None:
        """A look for a new version failed."""
        if self._registry is not None:
            self._missed.labels(model_name).inc()

    def restarted(self, process: str) -> None:
        """A process was started again."""
        if self._registry is not None:
            self._restarts.labels(process).inc()

    def render(self) -> bytes:
        """Every series in Prometheus' text format."""
        if self._registry is None:
            return b""
        now = self._now()
        for name, age in self._ages.models.items():
            self._since.labels(name).set(now - age.since)
        for name, age in self._ages.received.items():
            self._version_delay.labels(name).set(now - age.version)
            self._update_delay.labels(name).set(now - age.since)
        return self._registry.render()

    def _now(self) -> float:
        return self._clock.wall().timestamp()

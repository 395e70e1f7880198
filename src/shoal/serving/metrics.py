"""The metrics of a serving agent, as Prometheus series. Nothing is decided by them.

Those about versions have the names that Monolith's agents emit, with `shoal_serving_` before them:
`serving_model.latest_version` is `shoal_serving_model_latest_version`. Their tags are labels: the model, and who the
agent is. Without an HTTP server, or with `use_metrics false`, there is no registry, and counting does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.core.clock import Clock
from shoal.core.telemetry import MetricRegistry
from shoal.serving.config.deployment import Deployment

#: The labels of series about the models of an agent.
MODEL_LABELS = ("model_name", "base_name", "idc", "cluster", "shard_id", "replica_id")


@dataclass(slots=True)
class _Age:
    version: int
    #: When it became available, in seconds since 1970.
    since: float


@dataclass(slots=True)
class _Ages:
    """What changes by itself as time passes."""

    #: By model and replica: several dense services of one machine serve the same model.
    models: dict[tuple[str, int], _Age] = field(default_factory=dict)
    received: dict[str, _Age] = field(default_factory=dict)


class ServingMetrics:
    """Every series that a serving agent has."""

    def __init__(self, clock: Clock, registry: MetricRegistry | None = None) -> None:
        self._clock = clock
        self._registry = registry
        self._ages = _Ages()
        self._tags: tuple[str, ...] = ("", "", "", "0")
        self._replica_id = -1
        if registry is None:
            return
        self._agent = registry.gauge("shoal_serving_agent", "Always 1; who this agent is.", MODEL_LABELS[1:])
        self._latest = registry.gauge(
            "shoal_serving_model_latest_version", "The version of a model that is available.", MODEL_LABELS
        )
        self._since = registry.gauge(
            "shoal_serving_model_since_last_update_seconds", "Since that version became available.", MODEL_LABELS
        )
        self._updated = registry.gauge(
            "shoal_serving_model_update_ts_seconds", "When that version became available.", MODEL_LABELS
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
        """Who this agent is. Called before anything is said of its models."""
        environment = deployment.environment
        base, shard = deployment.settings.base_name or "", str(deployment.shard_id)
        self._tags = (base, environment.idc, environment.cluster, shard)
        self._replica_id = replica_id
        if self._registry is not None:
            self._agent.labels(*self._tags, str(replica_id)).set(1)

    def available(self, model_name: str, version: int, *, replica_id: int | None = None) -> None:
        """A version of a model is available, at the agent or at one of its replicas."""
        if self._registry is None:
            return
        key = self._key(model_name, replica_id)
        known = self._ages.models.get(key)
        if known is None or known.version != version:
            self._ages.models[key] = _Age(version, self._now())
            self._latest.labels(*self._labels(key)).set(version)
            self._updated.labels(*self._labels(key)).set(self._now())

    def gone(self, model_name: str, *, replica_id: int | None = None) -> None:
        """A model is no longer served, by the agent or by one of its replicas."""
        key = self._key(model_name, replica_id)
        if self._ages.models.pop(key, None) is not None:
            for series in (self._latest, self._updated, self._since):
                series.remove(*self._labels(key))

    def _key(self, model_name: str, replica_id: int | None) -> tuple[str, int]:
        return model_name, self._replica_id if replica_id is None else replica_id

    def _labels(self, key: tuple[str, int]) -> tuple[str, ...]:
        return (key[0], *self._tags, str(key[1]))

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
        for key, each in self._ages.models.items():
            self._since.labels(*self._labels(key)).set(now - each.since)
        for name, age in self._ages.received.items():
            self._version_delay.labels(name).set(now - age.version)
            self._update_delay.labels(name).set(now - age.since)
        return self._registry.render()

    def _now(self) -> float:
        return self._clock.wall().timestamp()

"""The metrics of tables, as Prometheus series with the name of the table. Called by the processes that hold tables."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.telemetry import MetricRegistry
from shoal.tables.table import EmbeddingTable, TableStatistics, TimeBasis

_COUNTERS = {
    "lookups": ("lookup_ids", "Ids that were looked up."),
    "hits": ("lookup_hits", "Ids that were looked up and were there."),
    "inserted": ("inserted_ids", "Ids that entered the table."),
    "removed": ("removed_ids", "Ids that expired or were removed."),
    "not_admitted": ("not_admitted_ids", "Updates of ids that were not admitted yet."),
    "no_room": ("refused_ids", "Updates of new ids that were refused because the table has as many as it may."),
    "not_finite": ("not_finite_gradients", "Gradients that were left out because they were not finite."),
}


class TableMetrics:
    """Every series that tables have. Counters follow the statistics of tables; each reader calls `update`."""

    def __init__(self, registry: MetricRegistry) -> None:
        labels = ["table"]
        self._ids = registry.gauge("shoal_tables_ids", "Ids in the table.", labels)
        self._bytes = registry.gauge("shoal_tables_memory_bytes", "Memory that the table has asked for.", labels)
        self._rate = registry.gauge("shoal_tables_hit_ratio", "Hits among the lookups since the last reading.", labels)
        self._newest = registry.gauge(
            "shoal_tables_newest_update_seconds", "The newest time of an update, in seconds since 1970.", labels
        )
        self._basis = registry.gauge(
            "shoal_tables_time_basis", "1 for the kind of times that expiry counts with.", ["table", "basis"]
        )
        self._counters = {
            field: registry.counter(f"shoal_tables_{name}_total", text, labels)
            for field, (name, text) in _COUNTERS.items()
        }
        self._last: dict[str, TableStatistics] = {}

    def update(self, tables: Mapping[str, EmbeddingTable]) -> None:
        """Bring every series up to date."""
        for name, table in tables.items():
            now, last = table.statistics(), self._last.get(name)
            self._ids.labels(name).set(now.ids)
            self._bytes.labels(name).set(now.bytes)
            self._newest.labels(name).set(now.newest)
            for basis in TimeBasis:
                self._basis.labels(name, basis.value).set(now.time_basis is basis)
            grown = {each: getattr(now, each) - (getattr(last, each) if last else 0) for each in self._counters}
            for each, counter in self._counters.items():
                counter.labels(name).inc(max(0, grown[each]))
            if grown["lookups"] > 0:
                self._rate.labels(name).set(grown["hits"] / grown["lookups"])
            self._last[name] = now

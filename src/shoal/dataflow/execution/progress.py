"""How far the steps of a running dataflow are: rows, rates, lag, state, queues. Pure, and as Prometheus series.

Called by `shoal run`, once a second for its live lines and at every scrape of `--metrics-port`, and by the processes of
a job on a fleet; reads `FlowMetrics`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.telemetry import MetricRegistry
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME

#: What steps count of their state.
STATE_KINDS = ("keys", "panes", "rows", "left_rows", "right_rows", "timers", "waiting")
#: What steps count of rows that they left out.
LEFT_OUT_KINDS = ("skipped", "put_aside", "late", "late_right")
#: A queue that is filled to this part holds up who sends to it.
_FULL = 0.5


@dataclass(frozen=True, slots=True)
class StepProgress:
    """One step, over all of its tasks."""

    uid: str
    name: str
    received: int
    emitted: int
    #: The slowest task's, in microseconds since 1970; None while there is none, and at the end of time.
    watermark: int | None
    #: Entries of its state, by kind.
    state: Mapping[str, int] = field(default_factory=dict)
    #: Rows that it left out, by kind.
    left_out: Mapping[str, int] = field(default_factory=dict)
    waiting_bytes: int = 0
    #: Whether its queue is so full that the steps before it have to wait.
    is_slow: bool = False
    #: Of the tasks that begin with it: bytes that came in, seconds of work, and seconds of waiting for room behind.
    received_bytes: int = 0
    busy_seconds: float = 0.0
    backpressured_seconds: float = 0.0
    #: Of the step alone.
    emitted_bytes: int = 0
    step_busy_seconds: float = 0.0
    step_backpressured_seconds: float = 0.0
    #: Bytes of its keyed state in the last checkpoint; and the longest that the snapshot for it took.
    state_bytes: int = 0
    snapshot_seconds: float = 0.0

    def lag(self, now: int) -> float | None:
        """Seconds that its watermark is behind the time of day."""
        return None if self.watermark is None else max(0.0, (now - self.watermark) / 1e6)


def step_progress(metrics: Any) -> tuple[StepProgress, ...]:
    """The steps of a run (`FlowMetrics`), in the order of the plan."""
    tasks: dict[str, list[Any]] = {}
    for each in metrics.steps:
        tasks.setdefault(each.uid, []).append(each)
    return tuple(_progress(uid, found, metrics.queue_bytes) for uid, found in tasks.items())


def _progress(uid: str, tasks: Sequence[Any], queue_bytes: int) -> StepProgress:
    slowest = min(each.watermark for each in tasks)
    fullest = max(each.waiting_bytes for each in tasks)
    return StepProgress(
        uid=uid,
        name=tasks[0].name,
        received=sum(each.received for each in tasks),
        emitted=sum(each.rows for each in tasks),
        watermark=slowest if START_OF_TIME < slowest < END_OF_TIME else None,
        state=_totals(tasks, STATE_KINDS),
        left_out=_totals(tasks, LEFT_OUT_KINDS),
        waiting_bytes=sum(each.waiting_bytes for each in tasks),
        is_slow=queue_bytes > 0 and fullest >= queue_bytes * _FULL,
        received_bytes=sum(each.received_bytes for each in tasks),
        busy_seconds=sum(each.busy_seconds for each in tasks),
        backpressured_seconds=sum(each.backpressured_seconds for each in tasks),
        emitted_bytes=sum(each.emitted_bytes for each in tasks),
        step_busy_seconds=sum(each.step_busy_seconds for each in tasks),
        step_backpressured_seconds=sum(each.step_backpressured_seconds for each in tasks),
        state_bytes=sum(each.state_bytes for each in tasks),
        snapshot_seconds=max(each.snapshot_seconds for each in tasks),
    )


def _totals(tasks: Sequence[Any], kinds: Sequence[str]) -> dict[str, int]:
    """What tasks count, by kind: those that some task of the step counts at all."""
    return {
        kind: sum(each.statistics.get(kind, 0) for each in tasks)
        for kind in kinds
        if any(kind in each.statistics for each in tasks)
    }


class Rates:
    """Rows per second of each step since the last look."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int, int]] = {}

    def look(self, step: StepProgress, now: float) -> tuple[float, float]:
        """Rows per second in and out. After a restart steps count anew: the first look then has no rate."""
        before = self._last.get(step.uid)
        self._last[step.uid] = (now, step.received, step.emitted)
        if before is None or now <= before[0] or step.received < before[1] or step.emitted < before[2]:
            return 0.0, 0.0
        seconds = now - before[0]
        return (step.received - before[1]) / seconds, (step.emitted - before[2]) / seconds


class FlowSeries:
    """Every series of running dataflows. Counters follow the counts of steps; a restart makes them go on, not fall."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.registry = registry
        by_step, by_flow = ["dataflow", "step"], ["dataflow"]
        self._received = registry.counter(
            "shoal_dataflow_rows_received_total", "Rows that came into the step.", by_step
        )
        self._emitted = registry.counter("shoal_dataflow_rows_emitted_total", "Rows that the step put out.", by_step)
        self._bytes_received = registry.counter(
            "shoal_dataflow_bytes_received_total",
            "Bytes of rows that came into the tasks that begin with the step; of a source what it read, from samples.",
            by_step,
        )
        self._busy = registry.counter(
            "shoal_dataflow_busy_seconds_total",
            "Seconds in which the tasks that begin with the step worked, over all of them.",
            by_step,
        )
        self._backpressured = registry.counter(
            "shoal_dataflow_backpressured_seconds_total",
            "Seconds in which the tasks that begin with the step waited for room in the channels behind them.",
            by_step,
        )
        self._bytes_emitted = registry.counter(
            "shoal_dataflow_bytes_emitted_total", "Bytes of rows that the step put out, from samples.", by_step
        )
        self._step_busy = registry.counter(
            "shoal_dataflow_step_busy_seconds_total", "Seconds in which the step itself worked.", by_step
        )
        self._step_backpressured = registry.counter(
            "shoal_dataflow_step_backpressured_seconds_total",
            "Seconds in which the step waited for room in the channels behind it.",
            by_step,
        )
        self._left_out = registry.counter(
            "shoal_dataflow_rows_left_out_total", "Rows that were late, skipped or put aside.", [*by_step, "kind"]
        )
        self._watermark = registry.gauge(
            "shoal_dataflow_watermark_seconds", "The watermark of the slowest task, in seconds since 1970.", by_step
        )
        self._lag = registry.gauge(
            "shoal_dataflow_watermark_lag_seconds", "How far the watermark is behind the time of day.", by_step
        )
        self._state = registry.gauge("shoal_dataflow_state_entries", "Entries of the state.", [*by_step, "kind"])
        self._state_bytes = registry.gauge(
            "shoal_dataflow_state_bytes", "Bytes of the step's keyed state in the last checkpoint.", by_step
        )
        self._snapshot = registry.gauge(
            "shoal_dataflow_snapshot_seconds", "The longest that the step's last snapshot took in a task.", by_step
        )
        self._queue = registry.gauge(
            "shoal_dataflow_queue_bytes", "Bytes that wait in the queues in front of the step.", by_step
        )
        self._slow = registry.gauge(
            "shoal_dataflow_step_slow", "1 while a queue in front of the step is half full or more.", by_step
        )
        self._checkpoints = registry.counter(
            "shoal_dataflow_checkpoints_total", "Checkpoints that were completed or failed.", [*by_flow, "result"]
        )
        self._age = registry.gauge(
            "shoal_dataflow_checkpoint_age_seconds", "Seconds since the last complete checkpoint.", by_flow
        )
        self._duration = registry.gauge(
            "shoal_dataflow_checkpoint_duration_seconds", "How long the last checkpoint took.", by_flow
        )
        self._pause = registry.gauge(
            "shoal_dataflow_checkpoint_pause_seconds", "The longest that a task stood still for it.", by_flow
        )
        self._bytes = registry.gauge("shoal_dataflow_checkpoint_bytes", "Bytes that it wrote.", by_flow)
        self._recoveries = registry.counter(
            "shoal_dataflow_recoveries_total", "How often a lost task host took tasks back to a checkpoint.", by_flow
        )
        self._kafka = registry.gauge(
            "shoal_dataflow_kafka_info",
            "1, with the interface of Kafka's client that is used.",
            [*by_flow, "interface"],
        )
        self._last: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()

    def update(self, dataflow: str, metrics: Any, now: int) -> None:
        """Bring the series of a dataflow up to date. `now` is the time of day in microseconds. From any thread."""
        self.update_steps(dataflow, metrics, now)
        self.update_checkpoints(dataflow, metrics)

    def update_steps(self, dataflow: str, metrics: Any, now: int) -> None:
        """Those of steps alone."""
        with self._lock:
            for step in step_progress(metrics):
                self._update_step(dataflow, step, now)
                if metrics.checkpoints.age is not None:
                    self._state_bytes.labels(dataflow, step.uid).set(step.state_bytes)
                    self._snapshot.labels(dataflow, step.uid).set(step.snapshot_seconds)

    def update_checkpoints(self, dataflow: str, metrics: Any) -> None:
        """Those of checkpoints and recoveries alone."""
        with self._lock:
            self._update_checkpoints(dataflow, metrics)
            if metrics.kafka:
                self._kafka.labels(dataflow, metrics.kafka).set(1)

    def _update_step(self, dataflow: str, step: StepProgress, now: int) -> None:
        labels = (dataflow, step.uid)
        self._follow(self._received, labels, step.received)
        self._follow(self._emitted, labels, step.emitted)
        if step.received_bytes or step.busy_seconds:  # the first step of its tasks
            self._follow(self._bytes_received, labels, step.received_bytes)
            self._follow(self._busy, labels, step.busy_seconds)
            self._follow(self._backpressured, labels, step.backpressured_seconds)
        self._follow(self._bytes_emitted, labels, step.emitted_bytes)
        self._follow(self._step_busy, labels, step.step_busy_seconds)
        self._follow(self._step_backpressured, labels, step.step_backpressured_seconds)
        self._queue.labels(*labels).set(step.waiting_bytes)
        self._slow.labels(*labels).set(step.is_slow)
        for kind, count in step.state.items():
            self._state.labels(*labels, kind).set(count)
        for kind, rows in step.left_out.items():
            self._follow(self._left_out, (*labels, kind), rows)
        lag = step.lag(now)
        if step.watermark is not None and lag is not None:
            self._watermark.labels(*labels).set(step.watermark / 1e6)
            self._lag.labels(*labels).set(lag)

    def _update_checkpoints(self, dataflow: str, metrics: Any) -> None:
        counts = metrics.checkpoints
        self._follow(self._recoveries, (dataflow,), metrics.recoveries)
        if counts.age is None:
            return
        self._follow(self._checkpoints, (dataflow, "completed"), counts.completed)
        self._follow(self._checkpoints, (dataflow, "failed"), counts.failed)
        self._age.labels(dataflow).set(counts.age)
        self._duration.labels(dataflow).set(counts.last_seconds)
        self._pause.labels(dataflow).set(counts.last_pause)
        self._bytes.labels(dataflow).set(counts.last_bytes)

    def _follow(self, counter: Any, labels: tuple[str, ...], count: float) -> None:
        key = (str(id(counter)), *labels)
        before = self._last.get(key, 0)
        counter.labels(*labels).inc(count - before if count >= before else count)
        self._last[key] = count

"""What the steps of a job have done, in the form in which the coordinator tells it. Called by `coordinator`."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.clock import Clock
from shoal.dataflow.execution.coordinator.running import FlowMetrics
from shoal.dataflow.fleet.reports import MOST_STEPS, StepReport
from shoal.dataflow.plan.physical import PhysicalPlan

#: Event times outside of this are no times: the beginning and the end of time.
_MOST_TIME = 2**62
#: Seconds over which a rate is taken, at least.
_LEAST_SECONDS = 0.5


class StepTelling:
    """Turns counts into reports. It remembers the counts before, for rates."""

    def __init__(self, plan: PhysicalPlan, clock: Clock) -> None:
        self._inputs = inputs_of(plan)
        self._widths = {step.uid: stage.parallelism for stage in plan.stages for step in stage.steps}
        self._clock = clock
        self._before: Mapping[str, int] = {}
        self._at = clock.monotonic()
        self._rates: dict[str, float] = {}

    def tell(self, metrics: FlowMetrics) -> tuple[StepReport, ...]:
        """By step, over all of its tasks."""
        rows: dict[str, int] = {}
        pressure: dict[str, float] = {}
        times: dict[str, int] = {}
        names: dict[str, str] = {}
        for each in metrics.steps:
            names[each.uid] = each.name
            rows[each.uid] = rows.get(each.uid, 0) + each.rows
            waiting = each.waiting_bytes / metrics.queue_bytes if metrics.queue_bytes else 0.0
            pressure[each.uid] = max(waiting, pressure.get(each.uid, 0.0))
            if abs(each.watermark) < _MOST_TIME:
                times[each.uid] = min(each.watermark, times.get(each.uid, each.watermark))
        self._note(rows)
        return tuple(
            StepReport(
                uid=uid[:512],
                name=names[uid][:512],
                width=self._widths.get(uid, 0),
                inputs=tuple(each[:512] for each in self._inputs.get(uid, ())),
                rows=count,
                rate=round(self._rates.get(uid, 0.0), 1),
                backpressure=round(pressure[uid], 3),
                watermark=times.get(uid),
            )
            for uid, count in list(rows.items())[:MOST_STEPS]
        )

    def _note(self, rows: Mapping[str, int]) -> None:
        now = self._clock.monotonic()
        seconds = now - self._at
        if seconds < _LEAST_SECONDS:
            return
        # After a recovery counts begin anew.
        self._rates = {uid: max(0, count - self._before.get(uid, 0)) / seconds for uid, count in rows.items()}
        self._before, self._at = rows, now


def inputs_of(plan: PhysicalPlan) -> dict[str, tuple[str, ...]]:
    """The steps that each step reads, by uid, in the order of the plan."""
    found: dict[str, list[str]] = {}
    for stage in plan.stages:
        for step in stage.steps:
            found.setdefault(step.uid, []).extend(stage.steps[link.step].uid for link in step.links)
    for edge in plan.edges:
        source = plan.stages[edge.source].steps[edge.source_step]
        target = plan.stages[edge.target].steps[edge.target_step]
        found[target.uid].append(source.uid)
    # A step that works on both sides of an exchange reads itself: that is no edge for people.
    return {uid: tuple(dict.fromkeys(each for each in inputs if each != uid)) for uid, inputs in found.items()}

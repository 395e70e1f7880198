"""Coordinates the source tasks of a run: assigns splits that appear while it runs, and keeps event time together.

New splits: an endless source is asked for its splits every `discovery` seconds, here and nowhere else, and each new one
is sent to the task that the rule of `splits` names. Event time: each source task reports the time of its slowest split
(`SourceTime`), and every task of that source is told the slowest of all (`AlignTime`), so that no split of any task
runs more than `split_drift` ahead. Sources are not aligned with each other: their times may have nothing in common.

Made for each attempt by `shoal.dataflow.execution.coordinator.running`; one thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.threads import threads_of
from shoal.dataflow.checkpoint.messages import AddSplits, AlignTime, Command, SourceTime, TaskId
from shoal.dataflow.execution.coordinator.splits import Assignment
from shoal.dataflow.language.logical import Source
from shoal.dataflow.plan.physical import PhysicalPlan
from shoal.dataflow.settings import FlowSettings

log = logging.getLogger(__name__)

#: Seconds between two looks at what source tasks reported; and the shortest and longest wait for the next look.
ALIGN_EVERY = 0.1
_SHORTEST, _LONGEST = 0.005, 0.5


@dataclass(slots=True)
class _Group:
    """The tasks of one source."""

    node: Source
    tasks: tuple[TaskId, ...]
    assignment: Assignment
    #: The time of the slowest split of each task; None for one that holds nobody back.
    slowest: dict[TaskId, int | None] = field(default_factory=dict)
    told: int | None = None
    has_failed: bool = False


class SourceCoordinator:
    """The source tasks of one attempt. Every method may be called from any thread."""

    def __init__(
        self,
        plan: PhysicalPlan,
        assignments: Mapping[str, Assignment],
        *,
        settings: FlowSettings,
        clock: Clock,
        send: Callable[[TaskId, Command], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._send = send
        self._fail = fail
        self._groups = [
            _Group(
                step.node, tuple(TaskId(stage.number, each) for each in range(stage.parallelism)), assignments[step.uid]
            )
            for stage in plan.stages
            for step in stage.steps
            if isinstance(step.node, Source)
        ]
        self._group_of = {task: group for group in self._groups for task in group.tasks}
        self._lock = threading.Lock()
        self._is_over = threads_of(clock).event()
        self._thread: threading.Thread | None = None
        self._look_at = clock.monotonic() + settings.discovery

    def start(self, name: str) -> None:
        """Start the thread, if there is something to do: an endless source, or several tasks to align."""
        if any(not group.node.connector.is_bounded or self._is_aligned(group) for group in self._groups):
            self._thread = threads_of(self._clock).thread(self._run, name=f"{name}/sources")
            self._thread.start()

    def stop(self) -> None:
        """End. A look for splits that is under way may still end after this returns."""
        self._is_over.set()

    def report(self, report: SourceTime) -> None:
        """A source task reported the time of its slowest split."""
        with self._lock:
            self._group_of[report.task].slowest[report.task] = report.slowest

    def _is_aligned(self, group: _Group) -> bool:
        return self._settings.split_drift > 0 and group.node.time is not None and len(group.tasks) > 1

    def _run(self) -> None:
        wait = min(_LONGEST, max(_SHORTEST, self._settings.discovery / 4))
        if any(self._is_aligned(group) for group in self._groups):
            wait = min(wait, ALIGN_EVERY)
        while not self._is_over.wait(wait):
            try:
                self.align()
                self.look_for_splits()
            except BaseException as error:  # noqa: BLE001 - it is raised where the run is waited for
                self._fail(error)
                return

    def align(self) -> None:
        """Tell the tasks of each source the time of its slowest split, where that has changed."""
        for group in self._groups:
            if not self._is_aligned(group):
                continue
            with self._lock:
                slowest = min((each for each in group.slowest.values() if each is not None), default=None)
            if slowest != group.told:
                group.told = slowest
                for task in group.tasks:
                    self._send(task, AlignTime(slowest))

    def look_for_splits(self) -> None:
        """Ask endless sources whether there is more of them, when it is time."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._settings.discovery
        for group in self._groups:
            if group.node.connector.is_bounded or self._is_over.is_set():
                continue
            try:
                assignment = group.assignment.add(group.node.connector.find_splits())
            except ShoalError as error:
                if not error.retryable:
                    raise
                if not group.has_failed:
                    log.warning("new splits of %s cannot be looked for now: %s", group.node.connector.label, error)
                group.has_failed = True
                continue
            group.has_failed = False
            for task, splits in zip(group.tasks, assignment.since(group.assignment), strict=True):
                if splits and not self._is_over.is_set():
                    self._send(task, AddSplits(tuple(split.name for split in splits)))
            group.assignment = assignment

"""The coordinator of source tasks, without its thread: who is told which splits and which time, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import NotFoundError, UnavailableError
from shoal.dataflow.checkpoint.messages import AddSplits, AlignTime, SourceTime, TaskId
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution.coordinator.sources import SourceCoordinator
from shoal.dataflow.execution.coordinator.splits import assign_splits
from shoal.dataflow.language.logical import Source
from shoal.dataflow.plan.physical import PhysicalPlan, Stage, Step
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.execution.flows import MICROS, SCHEMA


@dataclass
class Growing:
    """A source that answers as the test says."""

    answers: list[Any]
    is_bounded: bool = False
    label: str = "growing"
    asked: int = 0

    def find_splits(self) -> Sequence[Split]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [Split(name) for name in answer]


@dataclass
class World:
    """One coordinator, and what it sent."""

    coordinator: SourceCoordinator = field(init=False)
    sent: list[tuple[TaskId, Any]] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    def take(self) -> list[tuple[int, Any]]:
        taken, self.sent[:] = [(task.subtask, command) for task, command in self.sent], []
        return taken


def world(connector: Growing, start: str, *, width: int = 2, drift: float = 60.0) -> World:
    made = World()
    node = Source(connector=connector, schema=SCHEMA, time=MICROS)  # type: ignore[arg-type]
    plan = PhysicalPlan((Stage(0, (Step("in", "source", node),), width),), (), 128)
    made.coordinator = SourceCoordinator(
        plan,
        {"in": assign_splits([Split(name) for name in start], width)},
        settings=FlowSettings(discovery=0.001, split_drift=drift),
        clock=SystemClock(),
        send=lambda task, command: made.sent.append((task, command)),
        fail=made.failed.append,
    )
    return made


def look(made: World) -> None:
    """Look for splits, although it may not be time yet."""
    made.coordinator._look_at = 0.0
    made.coordinator.look_for_splits()


def test_new_splits_go_to_one_task_each_and_are_sent_once():
    made = world(Growing(["abc", "abcde", "abcde"]), "ab")
    look(made)
    assert made.take() == [(0, AddSplits(("c",)))]
    look(made)
    assert made.take() == [(0, AddSplits(("e",))), (1, AddSplits(("d",)))]
    look(made)
    assert made.take() == []


def test_a_split_that_is_gone_and_comes_back_is_not_sent_again():
    made = world(Growing(["a", "ab", "b", "ab"]), "ab")
    for _ in range(4):
        look(made)
    assert made.take() == []


def test_a_broker_that_does_not_answer_is_asked_again():
    made = world(Growing([UnavailableError("later"), UnavailableError("later"), "abc"]), "ab")
    look(made)
    look(made)
    assert made.take() == []
    look(made)
    assert made.take() == [(0, AddSplits(("c",)))]


def test_a_source_that_is_gone_is_an_error():
    made = world(Growing([NotFoundError("topic", "in")]), "ab")
    with pytest.raises(NotFoundError):
        look(made)


def test_a_source_with_an_end_is_not_asked():
    connector = Growing(["abc"], is_bounded=True)
    look(world(connector, "ab"))
    assert connector.asked == 0


def test_every_task_is_told_the_slowest_time_when_it_changes():
    made = world(Growing(["ab"]), "ab", width=3)
    made.coordinator.align()
    assert made.take() == [], "no task has reported"
    for subtask, slowest in ((0, 500), (1, 100), (2, None)):
        made.coordinator.report(SourceTime(TaskId(0, subtask), slowest))
    made.coordinator.align()
    assert made.take() == [(subtask, AlignTime(100)) for subtask in range(3)]
    made.coordinator.report(SourceTime(TaskId(0, 0), 600))
    made.coordinator.align()
    assert made.take() == [], "the slowest is the same"
    made.coordinator.report(SourceTime(TaskId(0, 1), None))  # it has read everything
    made.coordinator.align()
    assert made.take() == [(subtask, AlignTime(600)) for subtask in range(3)]
    made.coordinator.report(SourceTime(TaskId(0, 0), None))
    made.coordinator.align()
    assert made.take() == [(subtask, AlignTime(None)) for subtask in range(3)]


@pytest.mark.parametrize("options", [{"drift": 0.0}, {"width": 1}])
def test_where_nothing_is_to_be_aligned_nobody_is_told(options):
    made = world(Growing(["ab"]), "ab", **options)
    made.coordinator.report(SourceTime(TaskId(0, 0), 100))
    made.coordinator.align()
    assert made.take() == []

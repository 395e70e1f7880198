"""Exact writers of topics when a commit fails, and when checkpoints and commits come in an odd order."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.errors import InternalError, PreconditionError
from shoal.dataflow.connectors.base import CommitContext, Recovery, SinkContext
from shoal.dataflow.connectors.topics import writers as topic_writers
from shoal.dataflow.connectors.topics.endpoints import TopicSink
from shoal.dataflow.errors import PlanError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Sink
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.topics.errors import FencedError
from tests.unit.dataflow.connectors.sinks import committed_values
from tests.unit.dataflow.execution.flows import Tap, rows, tap_source


@pytest.fixture
def broker(tmp_path: Path) -> str:
    return str(tmp_path / "log")


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    faults.disarm_all()


def open_writer(broker: str):
    context = SinkContext("job", "out", 0, 1, SystemClock(), exactly_once=True, incarnation=3)
    return TopicSink("out", broker).open_writer(None, context)


def recover(broker: str, checkpoint: int, content: bytes) -> None:
    """What a start does."""
    context = CommitContext("job", "out", 1, 1, 1, SystemClock(), exactly_once=True)
    committer = TopicSink("out", broker).open_committer(context)
    committed = {task: 0 if marker is None else marker.checkpoint for task, marker in committer.fence().items()}
    committer.recover(Recovery(3, checkpoint, {0: content}, committed))
    committer.close()


def write(writer, number: int) -> None:
    writer.write(rows(("a", number, number)))


def values(broker: str) -> list[int]:
    return committed_values(broker, "out")


@pytest.mark.parametrize("prepared", [1, 2, 3])
def test_after_a_writer_was_fenced_commits_are_refused(broker: str, prepared: int) -> None:
    zombie = open_writer(broker)
    for number in range(1, prepared + 1):
        write(zombie, number)
        content = zombie.prepare(number)
    newer = open_writer(broker)
    with pytest.raises(FencedError):
        zombie.commit(prepared)
    for _ in range(3):
        with pytest.raises(
            PreconditionError, match=r"'out': the output of checkpoint 1 could not be committed"
        ) as told:
            zombie.commit(prepared)
        assert "newest checkpoint" in told.value.hint
        assert isinstance(told.value.__cause__, FencedError)
    assert values(broker) == []
    zombie.close()
    newer.close()
    recover(broker, prepared, content)
    assert values(broker) == list(range(1, prepared + 1))


def test_what_was_committed_before_one_failed_does_not_come_again(broker: str) -> None:
    writer = open_writer(broker)
    for number in (1, 2, 3):
        write(writer, number)
        content = writer.prepare(number)
    commits = 0

    def fail_at_second(name: str) -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise InternalError(name)

    faults.arm("topics.commit.before", fail_at_second)
    with pytest.raises(InternalError):
        writer.commit(3)
    faults.disarm_all()
    with pytest.raises(PreconditionError, match="checkpoint 2"):
        writer.commit(3)
    assert values(broker) == [1]
    assert len(writer.prepare(4)) < len(content)  # the first is not in it any more
    writer.close()
    recover(broker, 3, content)
    assert values(broker) == [1, 2, 3]


def test_a_commit_that_comes_late_leaves_a_writer_for_what_is_in_no_transaction(broker: str) -> None:
    writer = open_writer(broker)
    for number in (1, 2, 3):  # the third has no writer
        write(writer, number)
        writer.prepare(number)
    writer.commit(2)
    write(writer, 4)
    writer.prepare(4)
    write(writer, 5)  # now both are taken, and the third is still to be sent
    writer.commit(4)
    assert values(broker) == [1, 2, 3, 4]
    write(writer, 6)
    writer.prepare(6)
    writer.commit(6)
    assert values(broker) == [1, 2, 3, 4, 5, 6]
    writer.close()


def test_a_commit_that_comes_late_when_both_wait(broker: str) -> None:
    writer = open_writer(broker)
    for number in (1, 2, 3):
        write(writer, number)
        writer.prepare(number)
    writer.commit(2)
    for number in (4, 5, 6):
        write(writer, number)
        writer.prepare(number)
    writer.commit(6)
    assert values(broker) == [1, 2, 3, 4, 5, 6]
    writer.close()


class SetClock(SystemClock):
    """A clock that a test sets."""

    now = 0.0

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


def test_transactions_that_wait_too_long_are_aborted_and_sent_with_their_checkpoint(broker: str, monkeypatch) -> None:
    monkeypatch.setattr(topic_writers, "transaction_timeout", lambda _broker: 60.0)
    clock = SetClock()
    context = SinkContext("job", "out", 0, 1, clock, exactly_once=True, incarnation=3)
    writer = TopicSink("out", broker).open_writer(None, context)
    assert writer.next_tick() is None
    write(writer, 1)
    assert writer.next_tick() == 30_000_000
    writer.prepare(1)  # and no disk takes it
    clock.now = 20.0
    write(writer, 2)
    clock.now = 30.0
    writer.on_tick(30_000_000)
    assert writer.next_tick() == 50_000_000
    clock.now = 50.0
    writer.on_tick(50_000_000)
    assert writer.next_tick() is None
    write(writer, 3)
    writer.prepare(2)
    assert values(broker) == []
    writer.commit(2)
    assert values(broker) == [1, 2, 3]
    writer.close()


def test_checkpoints_that_come_more_seldom_than_transactions_may_last_are_refused(tmp_path: Path) -> None:
    sink = TopicSink("out", "127.0.0.1:9092")
    sink.check_checkpoints(CheckpointSettings(directory=str(tmp_path), interval=29))
    sink.check_checkpoints(CheckpointSettings(directory=str(tmp_path), interval=90, exactly_once=False))
    TopicSink("out", str(tmp_path)).check_checkpoints(CheckpointSettings(directory=str(tmp_path), interval=90))
    with pytest.raises(PreconditionError, match=r"90 s from one checkpoint to the next .* after 60 s") as caught:
        sink.check_checkpoints(CheckpointSettings(directory=str(tmp_path), interval=90))
    assert "at most 30 s" in caught.value.hint
    plan = [Sink(inputs=(tap_source(Tap(), time=None),), connector=sink)]
    checkpoint = CheckpointSettings(directory=str(tmp_path), interval=90)
    with pytest.raises(PlanError, match="from one checkpoint to the next"):  # before anybody is asked
        engine.start(plan, settings=FlowSettings(checkpoint=checkpoint))

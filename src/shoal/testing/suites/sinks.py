"""What every sink that commits with checkpoints keeps to, whatever it writes into.

A backend's tests derive from `SinkSuite` and say how a sink is made and how its rows are read.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import ShoalError
from shoal.dataflow.connectors.base import CommitContext, Recovery, SinkContext, SinkWriter, SupportsCommit
from shoal.dataflow.connectors.markers import ALL_TASKS, Marker

#: How often a sink is looked at until it shows what was committed, and how many seconds lie between.
_LOOKS, _LOOK_EVERY = 200, 0.05


@dataclass(frozen=True)
class SinkKit:
    """A sink under test."""

    #: A connector; each call gives one that writes into the same place.
    make: Callable[[], Any]
    #: The values that are visible, in any order.
    read: Callable[[], list[int]]

    def sees(self, *expected: int) -> bool:
        """Whether these are visible, and nothing else. What is committed may be so a moment later."""
        pause = threading.Event()
        for _ in range(_LOOKS):
            if (found := sorted(self.read())) == list(expected):
                return True
            if not set(found) <= set(expected) or len(found) > len(expected):
                return False
            pause.wait(_LOOK_EVERY)
        return False


class Attempt:
    """One attempt of a job with one sink: what its coordinator and its tasks do, in one thread."""

    def __init__(self, kit: SinkKit, epoch: int, *, width: int = 1, former: int = 0, incarnation: int = 5) -> None:
        connector = kit.make()
        if not isinstance(connector, SupportsCommit):
            raise TypeError(f"{connector} does not commit with checkpoints")
        context = CommitContext("job", "out", epoch, width, former, SystemClock(), exactly_once=True)
        committer = connector.open_committer(context)
        assert committer is not None
        self.committer = committer
        self.markers: Mapping[int, Marker | None] = committer.fence()
        self.prepared: dict[int, bytes] = {}
        self.incarnation = incarnation
        self._connector: Any = connector
        self._width = width
        self.writers: list[SinkWriter] = []

    def recover(self, checkpoint: int = 0, prepared: Mapping[int, bytes] | None = None, through: int = 0) -> Attempt:
        """Go on from a checkpoint, with what the markers say and the record says."""
        known = {key: 0 if marker is None else marker.checkpoint for key, marker in self.markers.items()}
        committed = {key: max(number, through) if checkpoint else 0 for key, number in known.items()}
        self.committer.recover(Recovery(self.incarnation, checkpoint, prepared or {}, committed, through))
        for subtask in range(self._width):
            context = SinkContext(
                "job",
                "out",
                subtask,
                self._width,
                SystemClock(),
                exactly_once=True,
                has_checkpoints=True,
                incarnation=self.incarnation,
            )
            self.writers.append(self._connector.open_writer(None, context))
        return self

    def write(self, *values: int, subtask: int = 0) -> None:
        """Rows of one task."""
        self.writers[subtask].write(pa.record_batch({"value": pa.array(values, pa.int64())}))

    def prepare(self, checkpoint: int) -> dict[int, bytes]:
        """Every task prepares."""
        self.prepared = {subtask: writer.prepare(checkpoint) for subtask, writer in enumerate(self.writers)}
        return self.prepared

    def commit(self, checkpoint: int) -> None:
        """The checkpoint is complete."""
        if not self.committer.commits_in_tasks:
            self.committer.commit(checkpoint, self.prepared)
        for writer in self.writers:
            writer.commit(checkpoint)

    def close(self) -> None:
        """The process ends."""
        for writer in self.writers:
            writer.close()
        self.committer.close()


class SinkSuite(ABC):
    """Derive from it, and say what `kit` is."""

    __test__ = False

    @pytest.fixture
    @abstractmethod
    def kit(self) -> SinkKit:
        """The sink under test."""

    def test_rows_are_visible_with_the_commit_of_their_checkpoint(self, kit: SinkKit) -> None:
        """Neither before it, nor twice."""
        job = Attempt(kit, 1).recover()
        job.write(1)
        job.prepare(1)
        assert kit.sees()
        job.commit(1)
        job.write(2)
        assert kit.sees(1)
        job.prepare(2)
        job.commit(2)
        job.commit(2)
        assert kit.sees(1, 2)
        job.close()

    def test_checkpoints_that_failed_go_with_the_next(self, kit: SinkKit) -> None:
        """More of them than a sink may have transactions."""
        job = Attempt(kit, 1).recover()
        for number in range(1, 6):
            job.write(number)
            job.prepare(number)
        assert kit.sees()
        job.commit(5)
        assert kit.sees(1, 2, 3, 4, 5)
        job.write(6)
        job.prepare(6)
        job.commit(6)
        assert kit.sees(1, 2, 3, 4, 5, 6)
        job.close()

    def test_what_was_prepared_and_not_committed_becomes_visible_once(self, kit: SinkKit) -> None:
        """The process died between the checkpoint and the commit; then twice more while it started."""
        job = Attempt(kit, 1).recover()
        for number in (1, 2):
            job.write(number)
            prepared = dict(job.prepare(number))
        job.write(99)  # of no checkpoint
        job.close()
        for epoch in (2, 3):
            again = Attempt(kit, epoch, former=1).recover(2, prepared)
            again.close()
            assert kit.sees(1, 2)
        assert again.markers == dict.fromkeys(again.markers, Marker(5, 2))

    def test_what_was_committed_does_not_come_again(self, kit: SinkKit) -> None:
        """The process died between the commit and the record of it."""
        job = Attempt(kit, 1).recover()
        job.write(1)
        prepared = dict(job.prepare(1))
        job.commit(1)
        job.close()
        again = Attempt(kit, 2, former=1)
        assert set(again.markers.values()) == {Marker(5, 1)}
        again.recover(1, prepared).close()
        assert kit.sees(1)

    def test_the_record_counts_where_the_marker_is_smaller(self, kit: SinkKit) -> None:
        """A record says through where everything was committed: nothing up to there is sent."""
        job = Attempt(kit, 1).recover()
        job.write(1)
        prepared = dict(job.prepare(1))
        job.commit(1)
        job.close()
        Attempt(kit, 2, former=1).recover(1, prepared, through=1).close()
        assert kit.sees(1)

    def test_an_earlier_attempt_publishes_nothing(self, kit: SinkKit) -> None:
        """A zombie wakes up after a newer attempt has fenced it."""
        zombie = Attempt(kit, 1).recover()
        zombie.write(1)
        prepared = dict(zombie.prepare(1))
        zombie.commit(1)
        zombie.write(2)
        zombie.prepare(2)
        newer = Attempt(kit, 2, former=1)
        with pytest.raises(ShoalError):
            zombie.commit(2)
        newer.recover(1, prepared, through=1)
        newer.write(3)
        newer.prepare(3)
        newer.commit(3)
        assert kit.sees(1, 3)
        newer.close()
        zombie.close()
        assert kit.sees(1, 3)

    def test_an_attempt_that_never_committed_publishes_nothing_either(self, kit: SinkKit) -> None:
        """The zombie wakes up where the sink has no output of the job yet."""
        zombie = Attempt(kit, 1).recover()
        zombie.write(1)
        zombie.prepare(1)
        newer = Attempt(kit, 2, former=1)
        with pytest.raises(ShoalError):
            zombie.commit(1)
        zombie.close()
        newer.recover()
        newer.write(2)
        newer.prepare(1)
        newer.commit(1)
        newer.close()
        assert kit.sees(2)

    def test_tasks_that_there_are_no_more_leave_nothing_open(self, kit: SinkKit) -> None:
        """From three tasks to one, and back: what each prepared becomes visible, and nothing else."""
        wide = Attempt(kit, 1, width=3).recover()
        for subtask in range(3):
            wide.write(subtask, subtask=subtask)
        prepared = dict(wide.prepare(4))
        for subtask in range(3):
            wide.write(90 + subtask, subtask=subtask)
        narrow = Attempt(kit, 2, former=3).recover(4, prepared)
        assert kit.sees(0, 1, 2)
        narrow.write(7)
        prepared = dict(narrow.prepare(5))
        narrow.commit(5)
        wide.close()
        narrow.close()
        wide = Attempt(kit, 3, width=3, former=3).recover(5, prepared, through=5)
        wide.write(8, subtask=2)
        wide.prepare(6)
        wide.commit(6)
        wide.close()
        assert kit.sees(0, 1, 2, 7, 8)

    def test_a_new_life_of_the_job_has_markers_of_its_own(self, kit: SinkKit) -> None:
        """The old ones are seen once, with their incarnation, and then replaced."""
        job = Attempt(kit, 1).recover()
        job.write(1)
        job.prepare(1)
        job.commit(1)
        job.close()
        anew = Attempt(kit, 1, incarnation=6)
        assert {marker and marker.incarnation for marker in anew.markers.values()} == {5}
        anew.recover()
        anew.write(2)
        anew.prepare(1)
        anew.commit(1)
        anew.close()
        assert kit.sees(1, 2)
        last = Attempt(kit, 2, former=1, incarnation=6)
        assert set(last.markers.values()) == {Marker(6, 1)}
        last.close()

    def test_a_checkpoint_without_rows_is_committed_too(self, kit: SinkKit) -> None:
        """It leaves nothing, and the next one goes on."""
        job = Attempt(kit, 1).recover()
        for number in (1, 2):
            job.prepare(number)
            job.commit(number)
        job.write(3)
        job.prepare(3)
        job.commit(3)
        assert kit.sees(3)
        job.close()

    def test_a_start_that_was_refused_changes_nothing(self, kit: SinkKit) -> None:
        """It fences, reads, and goes away."""
        job = Attempt(kit, 1).recover()
        job.write(1)
        prepared = dict(job.prepare(1))
        job.close()
        refused = Attempt(kit, 2, former=1)
        before = refused.markers
        refused.close()
        assert kit.sees()
        later = Attempt(kit, 3, former=1)
        assert later.markers == before
        later.recover(1, prepared).close()
        assert kit.sees(1)

    def test_the_keys_of_markers_are_subtasks(self, kit: SinkKit) -> None:
        """Or one for all of them."""
        job = Attempt(kit, 1, width=2)
        assert set(job.markers) in ({ALL_TASKS}, {0, 1})
        assert set(job.markers.values()) == {None}
        job.close()

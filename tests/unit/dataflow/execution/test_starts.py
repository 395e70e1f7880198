"""Starts of a job whose checkpoints, markers or record are damaged or gone: no output is lost or doubled unasked."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.records import Layout
from shoal.dataflow.checkpoint.start import PlannedSink, start_job
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.connectors.base import CommitContext, SinkConnector
from shoal.dataflow.connectors.files.sinks import ParquetSink
from shoal.dataflow.connectors.sql import SqlSink
from shoal.dataflow.connectors.topics.endpoints import TopicSink
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Sink
from shoal.dataflow.operators.base import OperatorState
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.testing.streams import Recording, RecordingCommitter, RecordingSink
from tests.unit.dataflow.checkpoint.writing import write_task
from tests.unit.dataflow.connectors.sinks import committed_values
from tests.unit.dataflow.connectors.test_sink_commits import KITS
from tests.unit.dataflow.execution.flows import Tap, rows, tap_source


def settings(directory: Path, **options) -> FlowSettings:
    """With one checkpoint, when the flow stops."""
    checkpoint = CheckpointSettings(directory=str(directory / "checkpoints"), interval=60, min_pause=60, **options)
    return FlowSettings(checkpoint=checkpoint)


@dataclass
class Job:
    """A job that reads a tap and writes into a sink, life after life."""

    directory: Path
    connector: SinkConnector
    tap: Tap = field(default_factory=Tap)
    given: int = 0

    def live(self, **options) -> engine.RunReport:
        """Run over two rows more, and stop."""
        for _ in range(2):
            self.tap.give(rows(("k", self.given, self.given)))
            self.given += 1
        return self.run(**options)

    def run(self, **options) -> engine.RunReport:
        """Run until everything is read, and stop."""
        sink = Sink(inputs=(tap_source(self.tap, time=None, uid="in"),), connector=self.connector, uid="out")
        flow = engine.start([sink], name="job", settings=settings(self.directory, **options))
        try:
            empty = self.tap.empty
            self.tap.wait_empty(empty + 1)  # a reader that finds nothing has read everything
            return flow.stop()
        finally:
            flow.abort()

    def damage(self, number: int) -> None:
        """The disk has lost a part of a checkpoint."""
        for part in (self.directory / "checkpoints" / "job" / "state").glob(f"*{number}-*.state"):
            part.write_bytes(part.read_bytes()[:-1])


@pytest.fixture(params=KITS)
def job_and_rows(request, tmp_path):
    kit = KITS[request.param][1](tmp_path)
    return Job(tmp_path, kit.make()), lambda: sorted(kit.read())


@pytest.fixture(params=["parquet", "sqlite", "local topic"])
def exact_job(request, tmp_path):
    """One sink of each way to commit: files, tables, and topics in their tasks."""
    kit = KITS[request.param][1](tmp_path)
    return Job(tmp_path, kit.make()), lambda: sorted(kit.read())


def test_a_committed_checkpoint_that_is_damaged_is_not_passed_over(job_and_rows):
    job, visible = job_and_rows
    job.live()
    newest = job.live().checkpoints.last_number
    job.damage(newest)
    with pytest.raises(PreconditionError, match=f"has committed checkpoint {newest}") as caught:
        job.live()
    assert "(sink 'out')" in caught.value.message
    assert f"--from-checkpoint {newest - 1} --accept-duplicates" in caught.value.hint
    assert visible() == [0, 1, 2, 3]
    report = job.run(from_checkpoint=newest - 1, accept_duplicates=True)
    assert report.restored == newest - 1
    assert visible() == [0, 1, 2, 2, 3, 3, 4, 5]  # 2 and 3 again: what was accepted
    job.live()
    assert visible() == [0, 1, 2, 2, 3, 3, 4, 5, 6, 7]


def test_a_checkpoint_that_no_sink_has_committed_is_passed_over(job_and_rows):
    job, visible = job_and_rows
    first = job.live().checkpoints.last_number
    faults.arm("dataflow.manifest.after", _crash)
    with pytest.raises(_Crash):
        job.live()
    faults.disarm_all()
    job.damage(first + 1)
    assert job.run().restored == first
    assert visible() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_that_readers_have_taken_away_are_not_missed(tmp_path, kind):
    kit = KITS[kind][1](tmp_path)
    job = Job(tmp_path, kit.make())
    job.live()
    assert sorted(kit.read()) == [0, 1]
    for each in (tmp_path / "out").glob("part-*"):
        each.unlink()
    job.live()
    assert sorted(kit.read()) == [2, 3]


@pytest.mark.parametrize(("origin", "again"), [(0, [0, 1, 2, 3, 4, 5]), (1, [2, 3, 4, 5])])
def test_a_rollback_is_repeated_until_its_first_checkpoint_is_complete(exact_job, origin, again):
    """A kill before then must not bring the job back to where it was before the rollback."""
    job, visible = exact_job
    for _ in range(3):
        job.live()
    _crash_at("dataflow.manifest.before", job, from_checkpoint=origin, accept_duplicates=True)
    assert visible() == list(range(6))
    _crash_at("dataflow.manifest.before", job)
    report = job.run()
    assert report.restored == (origin or None)
    assert visible() == sorted([*range(6), *again])
    assert job.live().restored == report.checkpoints.last_number
    assert visible() == sorted([*range(8), *again])


@pytest.mark.parametrize("point", ["dataflow.recover.before", "dataflow.recover.after"])
@pytest.mark.parametrize("origin", [0, 1])
def test_a_rollback_that_dies_while_it_starts_is_repeated(exact_job, origin, point):
    job, visible = exact_job
    for _ in range(3):
        job.live()
    _crash_at(point, job, from_checkpoint=origin, accept_duplicates=True)
    assert job.run().restored == (origin or None)
    assert visible() == sorted([*range(6), *range(2 * origin, 6)])


def test_a_damaged_checkpoint_after_a_rollback_falls_back_to_where_that_began(exact_job):
    job, visible = exact_job
    for _ in range(3):
        job.live()
    _crash_at("dataflow.manifest.after", job, from_checkpoint=1, accept_duplicates=True)
    job.damage(4)
    assert job.run().restored == 1
    assert visible() == sorted([*range(6), *range(2, 6)])


def test_a_committed_checkpoint_after_a_rollback_is_not_passed_over(exact_job):
    job, visible = exact_job
    for _ in range(3):
        job.live()
    newest = job.run(from_checkpoint=1, accept_duplicates=True).checkpoints.last_number
    job.damage(newest)
    with pytest.raises(PreconditionError, match=f"has committed checkpoint {newest}"):
        job.run()
    assert visible() == sorted([*range(6), *range(2, 6)])


def test_a_number_that_a_sink_has_committed_is_not_used_again(exact_job):
    """The folder of the newest checkpoint is lost: its number would make new output look committed."""
    job, visible = exact_job
    for _ in range(2):
        job.live()
    shutil.rmtree(job.directory / "checkpoints" / "job" / "000000000002")
    for part in (job.directory / "checkpoints" / "job" / "state").glob("*2-*.state"):
        part.unlink()
    _crash_at("dataflow.manifest.after", job, accept_duplicates=True)
    assert job.run().restored == 3
    assert visible() == [0, 1, 2, 2, 3, 3]


def test_manifests_without_an_incarnation_are_read(exact_job):
    job, visible = exact_job
    job.live()
    for path in job.directory.glob("checkpoints/job/*/manifest.json"):
        content = json.loads(path.read_text())
        del content["incarnation"], content["checksum"]
        path.write_text(json.dumps(content))
    assert job.live().restored == 1
    assert visible() == [0, 1, 2, 3]


def test_a_lost_data_dir_is_noticed(job_and_rows):
    job, visible = job_and_rows
    newest = job.live().checkpoints.last_number
    shutil.rmtree(job.directory / "checkpoints")
    with pytest.raises(
        PreconditionError, match=f"another incarnation of job 'job'.*through checkpoint {newest}"
    ) as seen:
        job.run()
    assert "--accept-duplicates" in seen.value.hint
    assert visible() == [0, 1]
    job.run(accept_duplicates=True)
    assert visible() == [0, 0, 1, 1]
    assert job.live().restored
    assert visible() == [0, 0, 1, 1, 2, 3]


def test_a_marker_that_was_lost_while_the_job_stood_still_doubles_nothing(tmp_path):
    recording = Recording()
    job = Job(tmp_path, RecordingSink(recording, commits_in_tasks=True))
    job.live()
    recording.lose_markers()
    job.live()
    assert sorted(row["value"] for row in recording.rows) == [0, 1, 2, 3]


def test_a_marker_that_was_lost_after_a_crash_is_not_guessed(tmp_path):
    recording = Recording()
    job = Job(tmp_path, RecordingSink(recording, commits_in_tasks=True))
    job.live()
    faults.arm("dataflow.record.before", _crash)  # committed, and nobody has written that down
    with pytest.raises(_Crash):
        job.live()
    faults.disarm_all()
    recording.lose_markers()
    with pytest.raises(PreconditionError, match=r"cannot tell whether recording .* has the output of checkpoint 2"):
        job.run()
    assert len(recording.rows) == 4
    job.run(from_checkpoint=2, accept_duplicates=True)
    assert sorted(row["value"] for row in recording.rows) == [0, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("kind", ["files", "sqlite", "topics"])
def test_a_job_of_the_version_before_goes_on(tmp_path, kind):
    """It has no record, and its markers no incarnation."""
    kits = {"files": "parquet", "sqlite": "sqlite", "topics": "local topic"}
    kit = KITS[kits[kind]][1](tmp_path)
    job = Job(tmp_path, kit.make())
    job.live()
    (tmp_path / "checkpoints" / "job" / "commits.json").unlink()
    for marker in tmp_path.glob("out/.pending/*.json"):
        marker.unlink()
    if kind == "sqlite":
        _forget_incarnation(tmp_path / "rows.sqlite")
    if kind == "topics":
        _write_plain_marker(tmp_path / "log", 1)
    job.live()
    assert sorted(kit.read()) == [0, 1, 2, 3]


def _forget_incarnation(path: Path) -> None:
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE shoal_commits")
        connection.execute(
            "CREATE TABLE shoal_commits (job TEXT, sink TEXT, subtask INTEGER, checkpoint INTEGER, "
            "PRIMARY KEY (job, sink, subtask))"
        )
        connection.execute("INSERT INTO shoal_commits VALUES ('job', 'out', 0, 1)")


def _write_plain_marker(log: Path, checkpoint: int) -> None:
    from shoal.dataflow.connectors.topics.brokers import topics_of
    from shoal.topics.base import TopicPartition

    with topics_of(str(log)) as topics, topics.writer(transactional_id="job.out.0.0") as writer:
        writer.begin()
        writer.commit(offsets={"shoal.job.out.0": {TopicPartition("out", 0): checkpoint}})


def test_the_checkpoint_is_chosen_when_nobody_else_can_commit_any_more(tmp_path):
    """A zombie completes a checkpoint, and commits it, until the moment that it is fenced."""
    storage = CheckpointStorage(str(tmp_path), "job")
    layout = Layout(8, {"out": "sink"}, {"out": 1})

    def complete(number: int) -> None:
        part = write_task(storage, number, TaskId(0, 0), {"out": OperatorState()})
        storage.complete(number, layout, [part])

    class LateCommitter(RecordingCommitter):
        def fence(self):
            complete(2)
            return super().fence()

    class LateSink(RecordingSink):
        def open_committer(self, context: CommitContext):
            return LateCommitter(self, context)

    complete(1)
    job = start_job(
        "job",
        CheckpointSettings(directory=str(tmp_path)),
        layout,
        [PlannedSink("out", LateSink(Recording()), 1)],
        stateful=frozenset({"out"}),
        clock=SystemClock(),
    )
    assert job.checkpoint.number == 2
    job.release()


def test_a_start_that_is_refused_lets_go_of_everything(tmp_path):
    job = Job(tmp_path, TopicSink("out", str(tmp_path / "log")))
    job.damage(job.live().checkpoints.last_number)
    for _ in range(2):
        with pytest.raises(PreconditionError, match="can be read"):
            job.run()
    assert committed_values(str(tmp_path / "log"), "out") == [0, 1]


def test_files_and_tables_are_committed_by_the_coordinator_alone(tmp_path):
    """What a task of an earlier attempt still does publishes nothing: it has no way to."""
    for connector in (ParquetSink(str(tmp_path / "out")), SqlSink("rows", str(tmp_path / "rows.sqlite"))):
        job = Job(tmp_path / connector.label.replace("/", "-"), connector)
        job.live()
    assert sorted(pq.read_table(tmp_path / "out")["value"].to_pylist()) == [0, 1]


class _Crash(BaseException):
    """Nobody handles it, as nobody handles a kill."""


def _crash(name: str) -> None:
    raise _Crash(name)


def _crash_at(point: str, job: Job, **options) -> None:
    faults.arm(point, _crash)
    with pytest.raises(_Crash):
        job.run(**options)
    faults.disarm_all()


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    faults.disarm_all()

"""Stopping, crashing and going on: at the same width and at another one, every row counts once."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core import faults
from shoal.core.errors import DamagedError, InvalidError, PreconditionError, UnavailableError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import session
from shoal.dataflow.checkpoint.claim import read_record
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.errors import CheckpointError, OperatorFailedError
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.coordinator import running
from shoal.dataflow.execution.hosts.base import HostLostError, LocalHosts
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.logical import AssignTime, EventTime
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.topics.errors import FencedError
from tests.unit.dataflow.execution.flows import (
    SCHEMA,
    Multiply,
    Recording,
    RecordingSink,
    Tap,
    TapSource,
    collect,
    custom,
    expected_sums,
    recording_sink,
    rows,
    sums_of,
    tap_source,
    window_sums,
)

POINTS = [name for name in faults.POINTS if name.startswith("dataflow.")]


def batches(count: int, *, start: int = 0) -> list:
    return [
        rows(*((f"k{(each * 7 + row) % 11}", row, each * 5 + row) for row in range(5)))
        for each in range(start, start + count)
    ]


def settings(directory: Path, **options) -> FlowSettings:
    options.setdefault("interval", 60.0)
    return FlowSettings(batch_rows=4, checkpoint=CheckpointSettings(directory=str(directory), **options))


def job(tap: Tap, recording: Recording, *, bounded: bool = True):
    return [recording_sink(window_sums(tap_source(tap, bounded=bounded)), recording)]


def feed(tap: Tap, given: list) -> None:
    for number, batch in enumerate(given):
        tap.give(batch, str(number % len(tap.batches)))


def visible(recording: Recording) -> list:
    return sorted((row["key"], row["start"], row["total"]) for row in recording.rows)


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("second", [1, 2, 5])
def test_a_flow_that_was_stopped_goes_on_at_another_width(tmp_path, first, second):
    tap, recording = Tap(splits=3), Recording()
    feed(tap, batches(9))
    flow = engine.start(job(tap, recording, bounded=False), name="job", parallelism=first, settings=settings(tmp_path))
    tap.wait_fetched(9)
    stopped = flow.stop()
    feed(tap, batches(9, start=9))
    tap.close()
    report = engine.run(job(tap, recording), name="job", parallelism=second, settings=settings(tmp_path))
    assert report.restored == stopped.checkpoints.last_number
    assert visible(recording) == expected_sums(batches(18))
    assert tap.fetched == 18  # nothing was read twice


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("widths", [(1, 1), (1, 3), (4, 2)])
def test_a_crash_around_a_checkpoint_loses_and_doubles_nothing(tmp_path, point, widths):
    tap, recording = Tap(splits=2), Recording()
    feed(tap, batches(10))
    tap.close()
    faults.arm(point, _raise)
    with pytest.raises(Crash):
        engine.run(job(tap, recording), name="job", parallelism=widths[0], settings=settings(tmp_path))
    faults.disarm_all()
    engine.run(job(tap, recording), name="job", parallelism=widths[1], settings=settings(tmp_path))
    assert visible(recording) == expected_sums(batches(10))


class Crash(BaseException):
    """Nobody handles it, as nobody handles a kill."""


def _raise(name: str) -> None:
    raise Crash(name)


def test_a_flow_that_came_to_its_end_has_nothing_left_to_do(tmp_path):
    tap, recording = Tap(), Recording()
    feed(tap, batches(4))
    tap.close()
    for _ in range(3):
        engine.run(job(tap, recording), name="job", settings=settings(tmp_path))
    assert visible(recording) == expected_sums(batches(4))
    assert tap.fetched == 4


class Last:
    """An operator of a user's own that speaks at the end."""

    def __init__(self):
        self.rows = 0

    def process_batch(self, batch):
        self.rows += batch.num_rows

    def finish(self):
        return pa.record_batch({"n": [self.rows]})

    def snapshot(self):
        return self.rows

    def restore(self, states):
        self.rows = sum(states)


AT_THE_END = {
    "running aggregate": lambda a: a.group_by("key").aggregate(n=("*", "count")),
    "reduction": lambda a: a.key_by("key").reduce(lambda one, _other: one),
    "rows without a partner": lambda a: a.join(a.filter(col("key") == "none"), on="key", how="left"),
    "operator of one's own": lambda a: a.apply(Last, schema=pa.schema([("n", pa.int64())])).with_parallelism(1),
    "window": lambda a: a.key_by("key").window(session(gap_milliseconds=1)).aggregate(n=("*", "count")),
}


@pytest.mark.parametrize("name", AT_THE_END)
@pytest.mark.parametrize("point", ["", "dataflow.commit.after"])
def test_what_is_put_out_at_the_end_is_put_out_once(tmp_path, name, point):
    """Also when the process dies with the last checkpoint complete, and when a job that is done is started again."""
    tap = Tap()
    feed(tap, batches(4))
    tap.close()

    def run(width: int, recording: Recording, directory: Path = tmp_path) -> None:
        source = Stream.from_source(TapSource(tap, True), schema=SCHEMA, event_time="time", time_unit="us").uid("in")
        node = AT_THE_END[name](source).to_sink(RecordingSink(recording)).uid("out").node
        engine.run([node], name="job", parallelism=width, settings=settings(directory))

    once, recording = Recording(), Recording()
    run(2, once, tmp_path / "once")
    assert once.rows
    if point:
        faults.arm(point, _raise)
        with pytest.raises(Crash):
            run(2, recording)
        faults.disarm_all()
    for width in (2, 1, 3):
        run(width, recording)
        assert sorted(map(str, recording.rows)) == sorted(map(str, once.rows))


def test_watermarks_do_not_go_back_over_a_restart(tmp_path):
    tap, recording = Tap(), Recording()
    tap.give(rows(("a", 1, 5), ("a", 1, 25)))
    flow = engine.start(job(tap, recording, bounded=False), name="job", settings=settings(tmp_path))
    tap.wait_fetched(1)
    flow.stop()
    assert visible(recording) == [("a", 0, 1)]
    flow = engine.start(job(tap, recording, bounded=False), name="job", settings=settings(tmp_path))
    while {each.uid: each.watermark for each in flow.metrics().steps}["sums"] < 25:  # as soon as it reads on
        threading.Event().wait(0.001)
    marks = {each.uid: each.watermark for each in flow.stop().steps}
    assert marks["sums"] == 25


def test_assigned_time_survives_a_restart(tmp_path):
    tap, recording = Tap(), Recording()

    def plan(bounded: bool):
        timed = AssignTime(inputs=(tap_source(tap, time=None, bounded=bounded),), time=EventTime("time", unit="us"))
        return [recording_sink(window_sums(timed), recording)]

    tap.give(rows(("a", 1, 5), ("a", 1, 25)))
    flow = engine.start(plan(False), name="job", parallelism=2, settings=settings(tmp_path))
    tap.wait_fetched(1)
    flow.stop()
    assert visible(recording) == [("a", 0, 1)]
    tap.give(rows(("a", 1, 26), ("b", 1, 41)))
    tap.close()
    engine.run(plan(True), name="job", parallelism=1, settings=settings(tmp_path))
    assert visible(recording) == [("a", 0, 1), ("a", 20, 2), ("b", 40, 1)]


def test_sinks_that_there_are_no_more_are_fenced_and_recovered(tmp_path):
    tap, recording = Tap(splits=4), Recording()
    feed(tap, batches(8))
    tap.close()
    faults.arm("dataflow.manifest.after", _raise)
    flow = [recording_sink(window_sums(tap_source(tap, bounded=True)), recording, commits_in_tasks=True)]
    with pytest.raises(Crash):  # in the only checkpoint, which has the output of all four
        engine.run(flow, name="job", parallelism=4, settings=settings(tmp_path, min_pause=600.0))
    faults.disarm_all()
    assert not recording.rows
    engine.run(flow, name="job", parallelism=1, settings=settings(tmp_path))
    assert {each.subtask for each in recording.commits} == {0, 1, 2, 3}
    assert visible(recording) == expected_sums(batches(8))


def test_a_changed_plan_finds_its_state_by_uid_or_says_what_is_missing(tmp_path):
    tap, recording = Tap(), Recording()
    feed(tap, batches(3))
    flow = engine.start(job(tap, recording, bounded=False), name="job", settings=settings(tmp_path))
    tap.wait_fetched(3)
    flow.stop()
    tap.close()
    upgraded = [
        recording_sink(window_sums(custom(tap_source(tap, bounded=True), lambda: Multiply(1), uid="new")), recording)
    ]
    with pytest.raises(PreconditionError, match="'new' has no state in it"):
        engine.run(upgraded, name="job", settings=settings(tmp_path))
    engine.run(upgraded, name="job", settings=settings(tmp_path, allow_missing_state=True))
    assert visible(recording) == expected_sums(batches(3))


def test_another_job_does_not_find_it(tmp_path):
    tap = Tap()
    feed(tap, batches(3))
    tap.close()
    one, other = Recording(), Recording()
    engine.run(job(tap, one), name="one", settings=settings(tmp_path))
    engine.run(job(tap, other), name="other", settings=settings(tmp_path))
    assert visible(one) == visible(other) == expected_sums(batches(3))


def test_without_restore_it_begins_at_the_beginning(tmp_path):
    tap = Tap()
    feed(tap, batches(3))
    tap.close()
    first = engine.run(job(tap, Recording()), name="job", settings=settings(tmp_path))
    again = Recording()
    report = engine.run(
        job(tap, again), name="job", settings=settings(tmp_path, from_checkpoint=0, accept_duplicates=True)
    )
    assert report.restored is None
    assert visible(again) == expected_sums(batches(3))
    assert report.checkpoints.last_number > first.checkpoints.last_number, "numbers are not used again"


def test_a_checkpoint_that_cannot_be_written_fails_the_run_in_the_end(tmp_path):
    (tmp_path / "job").mkdir()
    tap = Tap()
    tap.close()
    faults.arm("dataflow.manifest.before", _refuse)
    with pytest.raises(CheckpointError, match="3 checkpoints in a row failed, the last: disk full"):
        engine.run(job(tap, Recording()), name="job", settings=settings(tmp_path, tolerated_failures=2, min_pause=0.0))


def _refuse(name: str) -> None:
    raise CheckpointError("disk full")


def test_one_failed_checkpoint_loses_nothing(tmp_path):
    tap, recording, failures = Tap(splits=2), Recording(), []

    def fail_twice(name: str) -> None:
        if len(failures) < 2:
            failures.append(name)
            raise CheckpointError("disk full")

    feed(tap, batches(10))
    tap.close()
    faults.arm("dataflow.manifest.before", fail_twice)
    report = engine.run(job(tap, recording), name="job", parallelism=2, settings=settings(tmp_path))
    assert (report.checkpoints.completed, report.checkpoints.failed) == (1, 2)
    assert visible(recording) == expected_sums(batches(10))


def test_collected_tables_need_no_checkpoint(tmp_path):
    tap = Tap()
    feed(tap, batches(5))
    tap.close()
    report = engine.run([collect(window_sums(tap_source(tap, bounded=True)))], name="job", settings=settings(tmp_path))
    assert sums_of(report.tables["out"]) == expected_sums(batches(5))


# ---------------------------------------------------------------------------------------------------------
# Jobs that had come to their end


def test_a_job_that_had_ended_says_so(tmp_path, caplog):
    tap, recording = Tap(splits=2), Recording()
    feed(tap, batches(4))
    tap.close()
    for attempt in range(2):
        caplog.clear()
        report = engine.run(job(tap, recording), name="job", settings=settings(tmp_path))
        assert report.restored == (attempt or None)
        assert ("job job had come to its end with checkpoint 1; there is nothing more to do" in caplog.text) == (
            attempt == 1
        )
    assert visible(recording) == expected_sums(batches(4))


def test_a_job_that_was_stopped_has_not_ended(tmp_path, caplog):
    tap, recording = Tap(splits=1), Recording()
    feed(tap, batches(4))
    flow = engine.start(job(tap, recording, bounded=False), name="job", settings=settings(tmp_path))
    tap.wait_fetched(4)
    flow.stop()
    tap.close()
    engine.run(job(tap, recording), name="job", settings=settings(tmp_path))
    assert "come to its end" not in caplog.text


def test_new_input_of_a_job_that_had_ended_is_refused_where_it_would_be_lost(tmp_path):
    (tmp_path / "in").mkdir()
    out = str(tmp_path / "out")

    def give(number: int) -> None:
        pq.write_table(pa.table({"a": [number, number + 1]}), tmp_path / "in" / f"{number}.parquet")

    def read() -> Stream:
        return Stream.from_parquet(str(tmp_path / "in"))

    def run(stream: Stream, name: str) -> int:
        kept = settings(tmp_path / "checkpoints", exactly_once=True)
        engine.run([stream.to_parquet(f"{out}/{name}").node], name=name, settings=kept)
        return pq.read_table(f"{out}/{name}").num_rows

    give(0)
    assert run(read().group_by("a").count(), "counts") == 2
    assert run(read().filter(col("a") >= 0), "plain") == 2
    give(10)
    with pytest.raises(
        PreconditionError, match=r"'counts' had come to its end with checkpoint 1: .*10\.parquet"
    ) as error:
        run(read().group_by("a").count(), "counts")
    assert "another app id or data_dir" in error.value.hint
    assert str(tmp_path / "checkpoints" / "counts") in error.value.hint
    assert run(read().filter(col("a") >= 0), "plain") == 4  # nothing is held here: new files just come through
    shutil.rmtree(tmp_path / "checkpoints" / "counts")
    shutil.rmtree(tmp_path / "out" / "counts")
    assert run(read().group_by("a").count(), "counts") == 4


class DyingHosts(LocalHosts):
    """Hosts that are lost when told, and die while their tasks are built again, so many times."""

    deaths = 0
    most = 10

    def __init__(self, plan, clock):
        super().__init__(plan, clock)
        self.begun = 0
        self.built = []
        self.is_running = False
        DyingHosts.last = self

    @property
    def most_losses(self):
        return self.most

    def begin(self, share, found, listener):
        self.begun += 1
        if 1 < self.begun <= 1 + self.deaths:
            raise UnavailableError("a task host did not start: signal 9")
        super().begin(share, found, listener)
        self.listener = listener
        self.built.append(share.tasks)

    def run(self):
        super().run()
        self.is_running = True

    def end(self):
        self.is_running = False
        super().end()


def start_dying(monkeypatch, directory, deaths):
    monkeypatch.setattr(engine, "LocalHosts", DyingHosts)
    monkeypatch.setattr(running, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(DyingHosts, "deaths", deaths)
    tap, recording = Tap(), Recording()
    feed(tap, batches(4))
    flow = engine.start(job(tap, recording), name="job", settings=settings(directory))
    DyingHosts.last.listener.lost("process 1 is gone")
    tap.close()
    return flow, recording


def test_hosts_that_die_while_they_are_built_again_are_tried_again(tmp_path, monkeypatch):
    flow, recording = start_dying(monkeypatch, tmp_path, 9)
    flow.wait(60)
    assert flow.recoveries == 10
    assert visible(recording) == expected_sums(batches(4))


def test_hosts_that_die_again_and_again_end_the_job(tmp_path, monkeypatch):
    flow, _recording = start_dying(monkeypatch, tmp_path, 10)
    with pytest.raises(UnavailableError, match="did not start: signal 9"):
        flow.wait(60)
    assert DyingHosts.last.begun == 11


def test_hosts_on_nodes_that_come_back_are_tried_again_for_as_long_as_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(DyingHosts, "most", None)
    flow, recording = start_dying(monkeypatch, tmp_path, 30)
    flow.wait(60)
    assert flow.recoveries == 31
    assert visible(recording) == expected_sums(batches(4))


class StillbornHosts(LocalHosts):
    """Hosts that are lost before anything runs, so many times."""

    deaths = 0
    begun = 0

    @property
    def most_losses(self):
        return 10

    def begin(self, share, found, listener):
        StillbornHosts.begun += 1
        if self.begun <= self.deaths:
            raise HostLostError("a task host did not start: signal 9")
        super().begin(share, found, listener)


@pytest.mark.parametrize("has_checkpoints", [True, False])
@pytest.mark.parametrize("deaths", [1, 10, 11])
def test_hosts_that_are_lost_before_anything_runs_are_tried_again(tmp_path, monkeypatch, deaths, has_checkpoints):
    monkeypatch.setattr(engine, "LocalHosts", StillbornHosts)
    monkeypatch.setattr(StillbornHosts, "deaths", deaths)
    monkeypatch.setattr(StillbornHosts, "begun", 0)
    tap, recording = Tap(), Recording()
    feed(tap, batches(4))
    tap.close()
    chosen = settings(tmp_path) if has_checkpoints else FlowSettings(batch_rows=4)
    if deaths > 10:
        with pytest.raises(HostLostError):
            engine.run(job(tap, recording), name="job", settings=chosen)
    else:
        engine.run(job(tap, recording), name="job", settings=chosen)
        assert visible(recording) == expected_sums(batches(4))
    assert StillbornHosts.begun == min(deaths + 1, 11)


def fence(flow):
    """A coordinator of an earlier epoch wakes and fences the sinks of this one."""
    for _ in range(4000):
        if flow.is_done or (not flow.is_recovering and DyingHosts.last.is_running):
            break
        threading.Event().wait(0.005)
    error = UnavailableError("sink(out) failed")
    error.__cause__ = FencedError("job.out.0", epoch=6, reason="a newer writer has the same transactional id")
    DyingHosts.last.listener.failed(error)


@pytest.mark.parametrize("times", [1, 3])
def test_sinks_that_a_woken_coordinator_fenced_are_fenced_again(tmp_path, monkeypatch, times):
    flow, tap, recording = start_fenced(monkeypatch, tmp_path)
    for _ in range(times):
        fence(flow)
    tap.close()
    flow.wait(60)
    assert flow.recoveries == times
    assert visible(recording) == expected_sums(batches(4))


def test_sinks_that_are_fenced_again_and_again_end_the_job(tmp_path, monkeypatch):
    flow, _tap, _recording = start_fenced(monkeypatch, tmp_path)
    for _ in range(4):
        fence(flow)
    with pytest.raises(UnavailableError, match=r"sink\(out\) failed"):
        flow.wait(60)


def away():
    """What a task says of a broker that is away."""
    error = OperatorFailedError("sink(out)", UnavailableError("the broker cannot be reached"))
    error.__cause__ = UnavailableError("the broker cannot be reached")
    return error


def tell_again_and_again(flow, error, times):
    """Every epoch ends with this error, so many times."""
    for _ in range(times):
        for _ in range(4000):
            if flow.is_done or (not flow.is_recovering and DyingHosts.last.is_running):
                break
            threading.Event().wait(0.005)
        DyingHosts.last.listener.failed(error)


def test_what_is_away_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(DyingHosts, "most", None)
    flow, tap, recording = start_fenced(monkeypatch, tmp_path)
    tell_again_and_again(flow, away(), 30)
    tap.close()
    flow.wait(60)
    assert flow.recoveries == 30
    assert "the broker cannot be reached" in flow.last_loss
    assert visible(recording) == expected_sums(batches(4))


def test_processes_of_one_machine_wait_so_many_times(tmp_path, monkeypatch):
    flow, _tap, _recording = start_fenced(monkeypatch, tmp_path)
    tell_again_and_again(flow, away(), 11)
    with pytest.raises(OperatorFailedError, match="the broker cannot be reached"):
        flow.wait(60)
    assert flow.recoveries == 10


@pytest.mark.parametrize(
    "cause", [DamagedError("a segment is damaged"), InvalidError([]), ValueError("5"), PreconditionError("no")]
)
def test_what_does_not_come_back_ends_the_job(tmp_path, monkeypatch, cause):
    monkeypatch.setattr(DyingHosts, "most", None)
    flow, _tap, _recording = start_fenced(monkeypatch, tmp_path)
    error = OperatorFailedError("map", cause)
    error.__cause__ = cause
    tell_again_and_again(flow, error, 1)
    with pytest.raises(OperatorFailedError, match="map"):
        flow.wait(60)
    assert flow.recoveries == 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_coordinator_that_wakes_does_not_take_the_job_from_the_next_one(tmp_path, monkeypatch, times):
    """Where checkpoints lie at a URL no lock keeps it out: it finds its hosts gone and goes back to a checkpoint."""
    monkeypatch.setattr(engine, "LocalHosts", DyingHosts)
    monkeypatch.setattr(running, "_PAUSES", (0.0, 0.0))
    chosen = settings(f"file://{tmp_path}/checkpoints")
    older, newer, recording = Tap(), Tap(), Recording()
    feed(older, batches(2))
    feed(newer, batches(4))
    zombie = engine.start(job(older, recording), name="job", settings=chosen)
    hosts_of_zombie = DyingHosts.last
    for _ in range(times - 1):  # it has gone back before, and has claimed the job anew itself
        tell_lost(zombie, hosts_of_zombie)
    flow = engine.start(job(newer, recording), name="job", settings=chosen)
    tell_lost(zombie, hosts_of_zombie)
    with pytest.raises(PreconditionError, match="was claimed under a newer epoch"):
        zombie.wait(60)
    newer.close()
    flow.wait(60)
    assert flow.recoveries == 0
    assert visible(recording) == expected_sums(batches(4))


def test_a_coordinator_asks_before_each_claim_and_makes_none_when_it_was_replaced(tmp_path, monkeypatch):
    flow, _tap, _recording = start_fenced(monkeypatch, tmp_path)
    asked = []
    flow._before_claim = lambda: asked.append(flow.epoch)
    for _ in range(2):
        tell_lost(flow, DyingHosts.last)
    assert len(asked) == 2

    def refuse() -> None:
        raise PreconditionError("another coordinator has its place")

    flow._before_claim = refuse
    epoch = read_record(str(tmp_path), "job").epoch
    tell_lost(flow, DyingHosts.last)
    with pytest.raises(PreconditionError, match="has its place"):
        flow.wait(60)
    assert read_record(str(tmp_path), "job").epoch == epoch


def tell_lost(flow, hosts):
    epoch, recoveries = flow.epoch, flow.recoveries
    hosts.listener.lost("process 1 is gone")
    for _ in range(4000):
        if flow.is_done or (flow.recoveries > recoveries and flow.epoch != epoch and hosts.is_running):
            break
        threading.Event().wait(0.005)


def start_fenced(monkeypatch, directory):
    monkeypatch.setattr(engine, "LocalHosts", DyingHosts)
    monkeypatch.setattr(running, "_PAUSES", (0.0, 0.0))
    tap, recording = Tap(), Recording()
    feed(tap, batches(4))
    return engine.start(job(tap, recording), name="job", settings=settings(directory)), tap, recording


def test_a_lost_host_takes_its_whole_dataflow_back_and_no_other_one(tmp_path, monkeypatch):
    """Also what is not connected with its tasks: the checkpoints of a dataflow are of all of it."""
    monkeypatch.setattr(engine, "LocalHosts", DyingHosts)
    taps = [Tap() for _ in range(3)]
    recordings = [Recording() for _ in taps]
    for tap in taps:
        feed(tap, batches(4))
    sinks = [
        recording_sink(window_sums(tap_source(tap, bounded=True, uid=f"in-{n}"), f"sums-{n}"), recording, f"out-{n}")
        for n, (tap, recording) in enumerate(zip(taps, recordings, strict=True))
    ]
    other = engine.start(sinks[2:], name="other", settings=settings(tmp_path))
    beside = DyingHosts.last
    flow = engine.start(sinks[:2], name="job", settings=settings(tmp_path))
    DyingHosts.last.listener.lost("process 1 is gone")
    for tap in taps:
        tap.close()
    flow.wait(60)
    other.wait(60)
    assert (flow.recoveries, other.recoveries) == (1, 0)
    assert DyingHosts.last.built == [(TaskId(0, 0), TaskId(1, 0))] * 2
    assert beside.begun == 1
    assert [visible(each) for each in recordings] == [expected_sums(batches(4))] * 3

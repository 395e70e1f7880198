"""How long tasks work, and wait for room: in virtual time the figures are exact."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from shoal import Stream
from shoal.core.threads import threads_of
from shoal.dataflow.execution import engine
from shoal.dataflow.settings import FlowSettings
from shoal.testing.streams import Pause, Recording, RecordingSink, Script, ScriptedSource
from shoal.testing.virtual_time import VirtualTime

SCHEMA = pa.schema([("value", pa.int64())])
BATCHES = 10
ROWS = 1000


def batch() -> pa.RecordBatch:
    return pa.record_batch({"value": list(range(ROWS))}, schema=SCHEMA)


class Worker:
    """Takes a second for each batch."""

    def open(self, context: Any) -> None:
        self._wait = threads_of(context.clock).event().wait

    def process_batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self._wait(1.0)
        return rows


def run(*steps: Any, **settings: Any) -> dict[str, Any]:
    # Two tasks read, of which one has nothing to read, and one works: so there is a queue between them.
    stream = Stream.from_source(ScriptedSource(Script(list(steps), [])), schema=SCHEMA).uid("in")
    stream = stream.apply(Worker, schema=SCHEMA).with_parallelism(1).uid("work")
    with VirtualTime() as clock:
        report = engine.run(
            [stream.to_sink(RecordingSink(Recording())).uid("out").node],
            parallelism=2,
            settings=FlowSettings(**settings),
            clock=clock,
        )
    return {each.uid: each for each in report.steps if each.subtask == 0}


def test_a_source_in_front_of_a_slow_step_waits_for_room():
    found = run(*[batch() for _ in range(BATCHES)], queue_bytes=1)  # room for one
    source, worker = found["in"], found["work"]
    assert worker.busy_seconds == BATCHES
    assert worker.backpressured_seconds == 0
    assert source.backpressured_seconds == BATCHES - 2  # one is being worked on, one lies in the queue
    assert source.busy_seconds == 0
    assert worker.received_bytes >= BATCHES * batch().nbytes
    assert source.received_bytes == BATCHES * batch().nbytes
    # The worker and the sink are in one task: what one of them takes is not charged to the other.
    assert (worker.step_busy_seconds, found["out"].step_busy_seconds) == (BATCHES, 0)
    assert source.step_backpressured_seconds == BATCHES - 2
    assert source.emitted_bytes == worker.emitted_bytes == BATCHES * batch().nbytes


def test_a_task_without_rows_is_neither_busy_nor_held_up():
    steps = [step for _ in range(BATCHES) for step in (batch(), Pause(9.0))]
    found = run(*steps)
    source, worker = found["in"], found["work"]
    assert worker.busy_seconds == BATCHES
    assert (source.busy_seconds, source.backpressured_seconds) == (0, 0)


def test_steps_that_are_called_by_another_one_have_no_time_of_their_own():
    found = run(batch())
    assert (found["out"].busy_seconds, found["out"].received_bytes) == (0, 0)

"""How long a run took: from the start of its tasks to the end of the last, whatever ending its processes takes."""

from __future__ import annotations

import queue
from datetime import UTC, datetime
from typing import Any

from shoal import Stream
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.execution.hosts.control_messages import HostShare
from shoal.dataflow.execution.hosts.linked import LinkedHosts
from shoal.dataflow.execution.hosts.task_host import HostListener
from shoal.dataflow.plan.physical import plan
from shoal.dataflow.plan.prepare import prepare
from shoal.dataflow.plan.prepared import read_prepared, write_prepared
from shoal.testing.clock import LoopClock


class SlowClock(LoopClock):
    """A clock that moves when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class SlowToEnd(LinkedHosts):
    """Hosts whose processes take a second to end."""

    def begin(self, share: HostShare | None, found: Checkpoint | None, listener: Any) -> None:
        self._listener, self._is_over = listener, False

    def _describe(self, number: int) -> str:
        return ""

    def _stop_all(self, patience: float) -> None:
        assert isinstance(self._clock, SlowClock)
        self._clock.now += 1.0


class Listener(HostListener):
    """Notes when the last task ended."""

    def __init__(self) -> None:
        self.ends: queue.Queue[float] = queue.Queue()

    def ended(self, at: float) -> None:
        self.ends.put(at)


def test_ending_the_processes_is_no_part_of_a_run():
    prepared = prepare([Stream.from_dicts([{"a": 1}]).to_callback(print).node])
    document = write_prepared(prepared, plan(prepared.sinks, parallelism=1), is_local=True)
    clock, listener = SlowClock(datetime(2026, 1, 1, tzinfo=UTC)), Listener()
    hosts = SlowToEnd(read_prepared(document), document, hosts=1, clock=clock)
    hosts.begin(None, None, listener)
    hosts.cancel()
    assert listener.ends.get(timeout=20) == 100.0
    assert clock.now == 101.0

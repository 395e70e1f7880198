"""Random plans that crash somewhere and go on at another width give what a naive reading gives, once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core import faults
from shoal.dataflow.checkpoint import uploads
from shoal.dataflow.execution import engine
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.dataflow.state import dirty
from tests.unit.dataflow.execution.flows import Recording, RecordingSink
from tests.unit.dataflow.execution.timed_plans import Flow, timed_plans

POINTS = [name for name in faults.POINTS if name.startswith("dataflow.")]


class Crash(BaseException):
    """Nobody handles it, as nobody handles a kill."""


def crash_at(turn: int) -> Callable[[str], None]:
    seen = 0

    def reach(name: str) -> None:
        nonlocal seen
        seen += 1
        if seen == turn:
            raise Crash(name)

    return reach


@settings(max_examples=30, deadline=None)
@given(
    flow=timed_plans(),
    widths=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    crashes=st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 12)), max_size=3),
)
def test_a_crash_anywhere_changes_no_result(flow: Flow, widths: list[int], crashes: list[tuple[str, int]]) -> None:
    recording = Recording()
    node = flow.stream.select("key", "value", "time").to_sink(RecordingSink(recording)).uid("out").node
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # Snapshots have what changed only, and chains of files are merged all the time.
        patch.setattr(dirty, "_MOST", 0)
        patch.setattr(uploads, "_MOST_LINKS", 2)
        checkpoint = CheckpointSettings(directory=directory, interval=0.01, min_pause=0.0)
        chosen = FlowSettings(batch_rows=2, checkpoint=checkpoint)
        for place in range(len(crashes) + 1):
            if place < len(crashes):
                point, turn = crashes[place]
                faults.arm(point, crash_at(turn))
            try:
                engine.run([node], name="job", parallelism=widths[place % len(widths)], settings=chosen)
            except Crash:
                continue
            finally:
                faults.disarm_all()
    found = sorted(repr((row["key"], row["value"], row["time"])) for row in recording.rows)
    assert found == sorted(repr((row["key"], row["value"], row["time"])) for _time, row in flow.rows)

"""What a coordinator does about requests: it takes a savepoint once, and says so when it cannot."""

import time
from types import SimpleNamespace

import pytest

from shoal.core.errors import DeadlineError
from shoal.dataflow.checkpoint.coordinator import CheckpointCounts
from shoal.dataflow.errors import OperatorFailedError, StepInput
from shoal.dataflow.execution.coordinator.running import FlowMetrics
from shoal.dataflow.execution.remote.board import Answer
from shoal.dataflow.execution.remote.coordinator import Life
from shoal.dataflow.fleet.reports import Phase


class Flow:
    """A job that runs, and may be saved."""

    is_recovering = False
    last_loss = ""
    epoch = 3
    recoveries = 0

    def __init__(self, error=None):
        self.error = error
        self.saved = 0

    def metrics(self):
        return FlowMetrics((), {}, CheckpointCounts())

    def save(self):
        self.saved += 1
        if self.error is not None:
            raise self.error
        return "/c/a.b/7"

    def begin(self):
        """It has begun."""

    def wait(self):
        """It has ended."""

    def stop(self):
        """It stops at once."""

    def keep_last(self):
        return "/c/a.b/8"


def life(flow, *, deployed_for=1):
    around = SimpleNamespace(generation=4, address="127.0.0.1", node_id="n0", metrics="")
    made = Life(
        around,
        SimpleNamespace(name="a.b", checkpoint_settings=None),
        SimpleNamespace(missing={}, unreachable=(), port=1),
        SimpleNamespace(tell=lambda _counts: ()),
        deployed_for,
    )
    made._flow = flow
    return made


def ask(made, *, request, taken, action="savepoint", stop=False):
    made._obey(Answer("Running", action, request, stop, taken, {}))
    ends_at = time.monotonic() + 10
    while made.report().request < request and time.monotonic() < ends_at:
        time.sleep(0.001)
    return made.report()


def test_a_savepoint_is_taken_once():
    flow = Flow()
    made = life(flow)
    assert ask(made, request=2, taken=1).savepoint == "/c/a.b/7"
    report = ask(made, request=2, taken=1)
    assert (report.phase, report.request, flow.saved) == (Phase.RUNNING, 2, 1)


def test_a_coordinator_that_begins_after_a_savepoint_does_not_take_it_again():
    flow = Flow()
    report = ask(life(flow), request=2, taken=2)
    assert (report.request, flow.saved) == (2, 0)


@pytest.mark.parametrize("error", [DeadlineError("no checkpoint within 600 s"), RuntimeError("boom")], ids=repr)
def test_a_savepoint_that_fails_is_answered_and_the_next_one_may_be_good(error):
    flow = Flow(error)
    made = life(flow)
    report = ask(made, request=2, taken=1)
    assert (report.phase, report.savepoint) == (Phase.RUNNING, "")
    assert str(error) in report.refusal
    flow.error = None
    report = ask(made, request=3, taken=2)
    assert (report.savepoint, report.refusal) == ("/c/a.b/7", "")


@pytest.mark.parametrize(
    ("action", "stop", "kept"), [("savepoint", True, "/c/a.b/8"), ("rescale", False, ""), ("upgrade", False, "")]
)
def test_the_last_checkpoint_is_kept_where_a_savepoint_was_asked_for(action, stop, kept):
    flow = Flow()
    made = life(flow)
    made._obey(Answer("Running", action, 2, stop, 1, {}))
    made.run(flow)
    report = made.report()
    assert (report.phase, report.request, report.savepoint) == (Phase.STOPPED, 2, kept)


def test_the_message_of_a_job_that_failed_has_the_rows_and_the_offsets():
    worked_on = StepInput("a: int64", ("{'a': 1}",), 64, True, "topic t, split 0, offsets 3 to 66")
    flow = Flow()
    flow.begin = lambda: None
    flow.wait = lambda: (_ for _ in ()).throw(OperatorFailedError("sum", ValueError("no"), given=worked_on))
    made = life(flow)
    made.run(flow)
    assert (made.report().phase, made.report().message) == (
        Phase.FAILED,
        "sum (task 0): ValueError: no; input: a: int64; row: {'a': 1}; read: topic t, split 0, offsets 3 to 66",
    )

"""What counts as there, as failed and as without a place."""

from __future__ import annotations

import pytest

from shoal.cli.commands.common.waiting import Goal, Settling, Verdict, Waited, judge, why
from shoal.model.views import Reason
from shoal.model.workloads import Exit, RunState, RunStatus
from tests.unit.cli.scripted import NO_ROOM, workload

NO_NODE_AT_ALL = Reason("INSUFFICIENT_RESOURCES", "no suitable node available (no node has registered)")

DONE, WAITING, UNPLACED, FAILED = Verdict.DONE, Verdict.WAITING, Verdict.UNPLACED, Verdict.FAILED


@pytest.mark.parametrize(
    ("goal", "fields", "verdict"),
    [
        (Goal.SETTLED, {"status": "Running"}, DONE),
        (Goal.SETTLED, {"status": "Completed"}, DONE),
        (Goal.SETTLED, {"status": "Stopped"}, WAITING),
        (Goal.SETTLED, {"status": "Stopped", "desired_state": "Stopped"}, DONE),
        (Goal.SETTLED, {"status": "Running", "desired_state": "Stopped"}, WAITING),
        (Goal.SETTLED, {"status": "Stopping", "desired_state": "Stopped"}, WAITING),
        (Goal.SETTLED, {"status": "Scheduled"}, WAITING),
        (Goal.SETTLED, {"status": "Updating"}, WAITING),
        (Goal.SETTLED, {"status": "Updating", "rejections": NO_ROOM}, UNPLACED),
        (Goal.SETTLED, {"status": "Pending"}, WAITING),
        (Goal.SETTLED, {"status": "Pending", "assigned_node_id": ""}, WAITING),
        (Goal.SETTLED, {"status": "Pending", "assigned_node_id": "", "reason": NO_NODE_AT_ALL}, UNPLACED),
        (Goal.SETTLED, {"status": "Unknown"}, WAITING),
        (Goal.SETTLED, {"status": "Failed"}, FAILED),
        (Goal.SETTLED, {"status": "Deleting"}, FAILED),
        (Goal.RUNNING, {"status": "Running"}, DONE),
        (Goal.RUNNING, {"status": "Completed"}, FAILED),
        (Goal.RUNNING, {"status": "Stopped"}, FAILED),
        (Goal.COMPLETED, {"status": "Running"}, WAITING),
        (Goal.COMPLETED, {"status": "Completed"}, DONE),
        (Goal.COMPLETED, {"status": "Failed"}, FAILED),
        (Goal.STOPPED, {"status": "Running"}, WAITING),
        (Goal.STOPPED, {"status": "Stopped"}, DONE),
        (Goal.STOPPED, {"status": "Completed"}, DONE),
        (Goal.GONE, {"status": "Deleting"}, WAITING),
        (Goal.GONE, {"status": "Running"}, WAITING),
    ],
)
def test_verdicts(goal, fields, verdict):
    assert judge(workload("web", **fields), goal).verdict is verdict


def ready_view(*, restarts=0, **fields):
    return workload("web", run=RunStatus("web", RunState.RUNNING, restarts=restarts, ready=True), **fields)


def settled_at(*looks, settle=2.0):
    """The verdicts on a workload that looks so at these times."""
    settling = Settling({"web": settle})
    return [settling.judge("web", view, judge(view, Goal.SETTLED), now=now).verdict for now, view in looks]


def test_one_that_is_ready_counts_once_it_has_stayed_so():
    view = ready_view()
    assert settled_at((0, view), (1.9, view), (2.0, view)) == [WAITING, WAITING, DONE]


@pytest.mark.parametrize(
    "between",
    [ready_view(restarts=1), ready_view(restarts=1, status="Pending")],
    ids=["it was restarted unseen", "it is seen to be down"],
)
def test_one_that_dies_young_is_no_success(between):
    again = ready_view(restarts=1)
    verdicts = settled_at((0, ready_view()), (0.7, between), (2.0, again), (2.6, again), (4.1, again))
    assert verdicts == [WAITING, WAITING, WAITING, WAITING, DONE]


@pytest.mark.parametrize("status", ["Completed", "Failed"])
def test_only_what_runs_has_to_settle(status):
    assert settled_at((0, workload("web", status=status))) == [
        judge(workload("web", status=status), Goal.SETTLED).verdict
    ]


def test_what_is_not_there():
    assert judge(None, Goal.GONE).verdict is DONE
    assert judge(None, Goal.SETTLED).verdict is FAILED


def test_reasons():
    ended = RunStatus("web", RunState.FAILED, exit=Exit(signal=9, out_of_memory=True))
    assert why(workload("web", reason=Reason("X", "because"))) == "because"
    assert why(workload("web", status="Failed", failure_reason="RUNTIME_ERROR")) == "RUNTIME_ERROR"
    assert why(workload("web", status="Failed", run=ended)) == "the last run ended by signal 9, out of memory"
    unknown = RunStatus("web", RunState.FAILED, exit=Exit(unknown=True))
    assert why(workload("web", status="Pending", run=unknown)) == "the last run ended in an unknown way"
    assert why(workload("web")) == ""


@pytest.mark.parametrize(
    ("views", "code"),
    [
        ({"a": workload("a")}, 0),
        ({"a": workload("a"), "b": workload("b", status="Pending", assigned_node_id="", rejections=NO_ROOM)}, 3),
        ({"a": workload("a", status="Scheduled"), "b": workload("b", status="Pending", assigned_node_id="")}, 4),
        ({"a": workload("a", status="Failed"), "b": workload("b", status="Scheduled")}, 1),
    ],
)
def test_the_worst_decides_the_exit_code(views, code):
    judgements = {name: judge(view, Goal.SETTLED) for name, view in views.items()}
    assert Waited(judgements, views, 1.0).exit_code == code

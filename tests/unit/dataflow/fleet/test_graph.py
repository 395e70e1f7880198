"""The graph of a running job, as text."""

from shoal.dataflow.fleet.graph import draw_graph
from shoal.dataflow.fleet.reports import CoordinatorReport, Phase, StepReport


def test_a_join_is_drawn_below_its_last_input():
    steps = (
        StepReport("orders", "topic orders", 2, (), 10, 12_300.4, 0.0, 1_000_000),
        StepReport("users", "topic users", 1, (), 5),
        StepReport("join", "join", 2, ("orders", "users"), 9, 410.0, 0.35, 2**61),
        StepReport("out", "topic out", 2, ("join",), 9),
    )
    assert draw_graph(CoordinatorReport(Phase.RUNNING, epoch=3, checkpoint=17, steps=steps)).splitlines() == [
        "running, epoch 3, checkpoint 17, recovered 0 times",
        "topic orders [orders]        ×2         12,300/s  waits   0%  1970-01-01 00:00:01",
        "topic users [users]          ×1              0/s  waits   0%",
        "└─ join (with topic orders)  ×2            410/s  waits  35%",
        "   └─ topic out [out]        ×2              0/s  waits   0%",
    ]


def test_a_job_that_starts_says_whom_it_waits_for():
    report = CoordinatorReport(Phase.STARTING, missing={"1": 2.0, "0": 1.0})
    assert draw_graph(report) == "starting, epoch 0, checkpoint 0, recovered 0 times, without task hosts 0, 1"


def test_checkpoints_that_fail_are_told_with_the_reason():
    report = CoordinatorReport(
        Phase.RUNNING,
        epoch=3,
        checkpoint=17,
        checkpoint_age=42.4,
        failed_checkpoints=5,
        checkpoint_error="No space left on device",
    )
    assert draw_graph(report).splitlines() == [
        "running, epoch 3, checkpoint 17 (42 s ago), recovered 0 times",
        "5 checkpoints failed since then: No space left on device",
    ]


def test_steps_that_read_each_other_are_drawn_once():
    steps = (StepReport("a", inputs=("b",)), StepReport("b", inputs=("a",)), StepReport("c", inputs=("none",)))
    assert len(draw_graph(CoordinatorReport(Phase.RUNNING, steps=steps)).splitlines()) == 2

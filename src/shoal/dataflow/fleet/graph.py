"""Draws the plan of a running job for a terminal: each step with its width, rate, backpressure and event time. Pure.

    source(orders) [source-1]      ×2    12,300/s  waits   0%  2026-01-01 12:00:05
    └─ aggregate(user) [sums]      ×2       410/s  waits  35%  2026-01-01 12:00:04
       └─ sink(totals) [sink-1]    ×2       410/s  waits   0%

In brackets is the uid. A step with several inputs is drawn below the last of them, and names the others. Called by
`shoal job graph`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from shoal.dataflow.fleet.reports import CoordinatorReport, StepReport

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDEST = 60


def draw_graph(report: CoordinatorReport) -> str:
    """The graph as text, with a line about the job first."""
    about = f"{report.phase.value}, epoch {report.epoch}, checkpoint {report.checkpoint}"
    if report.checkpoint_age is not None:
        about += f" ({report.checkpoint_age:.0f} s ago)"
    about += f", recovered {report.recoveries} time{'' if report.recoveries == 1 else 's'}"
    if report.missing:
        about += f", without task host{'s' if len(report.missing) > 1 else ''} {', '.join(sorted(report.missing))}"
    lines = [about]
    if report.failed_checkpoints:
        lines.append(f"{report.failed_checkpoints} checkpoints failed since then: {report.checkpoint_error}")
    return "\n".join([*lines, *_lines(report.steps)])


def _lines(steps: Sequence[StepReport]) -> list[str]:
    names = {each.uid: each.name or each.uid for each in steps}
    depths: dict[str, int] = {}
    below: dict[str, list[StepReport]] = {}
    roots: list[StepReport] = []
    for each in steps:
        known = [uid for uid in each.inputs if uid in names]
        if known and known[-1] != each.uid:
            below.setdefault(known[-1], []).append(each)
        else:
            roots.append(each)
    drawn: list[tuple[str, StepReport]] = []
    waiting = [(each, 0) for each in reversed(roots)]
    while waiting:
        step, depth = waiting.pop()
        if step.uid in depths:
            continue
        depths[step.uid] = depth
        others = [names[uid] for uid in step.inputs[:-1] if uid in names]
        beside = f" (with {', '.join(others)})" if others else ""
        uid = "" if step.uid == names[step.uid] else f" [{step.uid}]"
        drawn.append((f"{'   ' * (depth - 1)}{'└─ ' if depth else ''}{names[step.uid]}{uid}{beside}"[:_WIDEST], step))
        waiting += [(each, depth + 1) for each in reversed(below.get(step.uid, []))]
    widest = max((len(text) for text, _step in drawn), default=0)
    return [f"{text:<{widest}}  {_numbers(step)}".rstrip() for text, step in drawn]


def _numbers(step: StepReport) -> str:
    numbers = f"×{step.width:<3} {step.rate:>12,.0f}/s  waits {step.backpressure:>4.0%}"
    if step.watermark is None:
        return numbers
    try:
        at = (_EPOCH + timedelta(microseconds=step.watermark)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return numbers
    return f"{numbers}  {at}"

"""What the demo decides by itself: how patient it is on a slow machine, and what its report says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shoal.cli.local import demo
from shoal.cli.local.demo_stage import Report


@pytest.mark.parametrize(("seconds", "lease"), [(0.0, 6.0), (0.25, 6.0), (0.5, 8.0), (1.0, 16.0), (60.0, 20.0)])
def test_a_slow_machine_gets_a_longer_lease(seconds: float, lease: float) -> None:
    assert demo._fitting_lease(seconds) == timedelta(seconds=lease)


def test_how_long_this_process_has_been_there() -> None:
    first = demo._seconds_since_start()
    assert first > 0
    assert demo._seconds_since_start() >= first


def test_a_report_is_good_when_every_promise_was_kept() -> None:
    report = Report()
    assert not report.good, "nothing was shown"
    report.note(True, "one")
    assert report.good
    report.note(False, "two")
    assert not report.good


def test_what_was_left_out_is_neither_kept_nor_broken() -> None:
    report = Report()
    report.leave_out("one")
    assert not report.good, "nothing was shown"
    report.note(True, "two")
    assert report.good

"""The HEALTHCHECK of an image as a probe."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shoal.runtimes.container.health import readiness_of

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    "nothing",
    [
        {},
        {"Test": []},
        {"Test": ["NONE"]},
        {"Test": ["CMD"]},
        {"Test": ["OTHER", "x"]},
        {"Test": "CMD true"},
        {"Test": ["CMD", 3]},
    ],
)
def test_an_image_without_a_healthcheck_has_no_probe(nothing: dict[str, object]) -> None:
    assert readiness_of(nothing) is None


def test_what_the_image_leaves_out_is_as_with_engines() -> None:
    probe = readiness_of({"Test": ["CMD", "check", "--fast"]})
    assert probe is not None
    assert probe.command is not None
    assert probe.command.command == ("check", "--fast")
    assert (probe.period, probe.timeout, probe.failure_threshold) == (
        timedelta(seconds=30),
        timedelta(seconds=30),
        3,
    )
    # Until it is ready first it is asked often.
    assert (probe.interval, probe.deadline) == (timedelta(seconds=0.5), timedelta(seconds=90))


def test_a_shell_command_runs_in_a_shell_and_the_start_period_counts() -> None:
    given = {"Test": ["CMD-SHELL", "a || b"], "Interval": SECOND // 5, "StartPeriod": 300 * SECOND, "Retries": 2}
    probe = readiness_of(given)
    assert probe is not None
    assert probe.command is not None
    assert probe.command.command == ("/bin/sh", "-c", "a || b")
    assert (probe.interval, probe.period) == (timedelta(seconds=0.2), timedelta(seconds=0.2))
    assert probe.deadline == timedelta(seconds=300.4)


@pytest.mark.parametrize("odd", [-1, 0, "soon", 10**30])
def test_odd_numbers_are_bounded(odd: object) -> None:
    probe = readiness_of({"Test": ["CMD", "x"], "Interval": odd, "Timeout": odd, "StartPeriod": odd, "Retries": odd})
    assert probe is not None
    assert probe.failure_threshold == 3
    assert timedelta(0) < probe.period <= timedelta(days=365)
    assert probe.deadline <= timedelta(days=365)

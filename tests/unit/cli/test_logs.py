"""`shoal logs`: bytes as they came, several workloads, times, runs, and streams that break."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.errors import (
    DeadlineError,
    NotFoundError,
    NotLeaderError,
    PreconditionError,
    UnavailableError,
)
from tests.unit.cli.scripted import (
    START,
    run_cli,
)


def test_logs_are_bytes_as_they_came(control, capsysbinary):
    outcome = run_cli(control, ["logs", "web"], capsysbinary)
    assert outcome.stdout == b"hello\noh no\n\xff\xfe no text"
    outcome = run_cli(control, ["logs", "web", "--tail", "1", "-f"], capsysbinary)
    assert outcome.stdout == b"\xff\xfe no textmore\n"


def test_logs_as_json_are_lines(control, capsys):
    outcome = run_cli(control, ["logs", "web", "--json", "--follow"], capsys)
    assert [json.loads(line) for line in outcome.stdout.splitlines()] == [
        {"workload": "web", "stream": "stdout", "text": "hello", "time": None},
        {"workload": "web", "stream": "stderr", "text": "oh no", "time": None},
        {"workload": "web", "stream": "stdout", "text": "\ufffd\ufffd no textmore", "time": None},
    ]


@pytest.mark.parametrize("at", [2, 3, 4])
@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("the agent went away"),
        DeadlineError("too slow"),
        NotLeaderError(""),
        PreconditionError("it has no node yet"),
        NotFoundError("workload", "web"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_logs_that_are_followed_go_on_where_they_were(control, capsysbinary, at, error):
    """Whatever breaks the stream: nothing is printed twice and nothing is missing."""
    control.log_breaks[at] = [error]
    outcome = run_cli(control, ["logs", "-f", "web"], capsysbinary)
    assert (outcome.code, outcome.stderr) == (0, b"")
    assert outcome.stdout == b"hello\noh no\n\xff\xfe no textmore\n"


def test_logs_that_cannot_be_read_at_all_are_not_waited_for(control, capsys):
    control.log_breaks[1] = [PreconditionError("it has no node yet")]
    outcome = run_cli(control, ["logs", "-f", "web"], capsys)
    assert (outcome.code, outcome.seconds) == (1, 0)
    assert outcome.stderr.startswith("error: it has no node yet")


def test_logs_are_not_followed_for_ever_without_a_control_plane(control, capsys):
    control.logs = [(b"hello\n", "stdout"), (b"oh no\n", "stderr")]
    control.log_breaks = {2: [UnavailableError("away")]}
    control.fail_with_after = {"ReadLogs": (1, UnavailableError("away"))}
    outcome = run_cli(control, ["logs", "-f", "web"], capsys)
    assert (outcome.code, outcome.stdout) == (1, "hello\n")
    assert 60 <= outcome.seconds < 70


def test_logs_with_the_time_of_each_line(control, capsys):
    outcome = run_cli(control, ["logs", "--timestamps", "web"], capsys)
    assert outcome.stdout.splitlines() == [
        "2026-03-01T12:00:01.000Z hello",
        "2026-03-01T12:00:02.000Z oh no",
        "2026-03-01T12:00:03.000Z \ufffd\ufffd no text",
    ]
    lines = run_cli(control, ["logs", "--timestamps", "--json", "web"], capsys).stdout.splitlines()
    assert [json.loads(line)["time"] for line in lines][:2] == ["2026-03-01T12:00:01.000Z", "2026-03-01T12:00:02.000Z"]


@pytest.mark.parametrize("since", ["2026-03-01T12:00:02Z", "2026-03-01T13:00:02+01:00", "2026-03-01 12:00:02"])
def test_logs_since_a_moment(control, capsys, since):
    control.logs = [(b"hello\n", "stdout"), (b"oh no\n", "stderr")]
    assert run_cli(control, ["logs", "--since", since, "web"], capsys).stdout.startswith("oh no\n")


def test_logs_since_some_time_ago(control, capsys):
    control.logs = [(b"hello\n", "stdout"), (b"oh no\n", "stderr")]
    run_cli(control, ["logs", "--since", "10m", "web"], capsys)
    asked = datetime.fromtimestamp(control.log_requests[-1].since_ms / 1000, UTC)
    assert asked == START - timedelta(minutes=10)
    outcome = run_cli(control, ["logs", "--since", "yesterday", "web"], capsys)
    assert outcome.code == 2
    assert outcome.stderr.startswith("error: --since: must be a duration such as 10m, or a time such as")


def test_logs_of_the_previous_run(control, capsys):
    control.logs = [(b"hello\n", "stdout"), (b"oh no\n", "stderr")]
    run_cli(control, ["logs", "--previous", "web"], capsys)
    assert control.log_requests[-1].previous
    assert run_cli(control, ["logs", "--previous", "-f", "web"], capsys).code == 2


@pytest.mark.parametrize("flags", [["--since", "1h"], ["--previous"], ["--timestamps"]], ids=" ".join)
def test_an_older_control_plane_is_not_taken_to_have_understood(control, capsys, flags):
    control.logs = [(b"hello\n", "stdout"), (b"oh no\n", "stderr")]
    control.is_older = True
    outcome = run_cli(control, ["logs", "web", *flags], capsys)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "older version" in outcome.stderr
    assert run_cli(control, ["logs", "web"], capsys).code == 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [(["-l", "app=web"], ["huge", "web"]), (["--group", "nightly"], ["batch"]), (["web", "batch"], ["web", "batch"])],
    ids=" ".join,
)
@pytest.mark.parametrize("follow", [[], ["-f"]], ids=["all", "follow"])
def test_logs_of_several_say_whose_a_line_is(labelled, capsys, arguments, names, follow):
    outcome = run_cli(labelled, ["logs", *arguments, *follow], capsys)
    assert outcome.code == 0
    lines = outcome.stdout.splitlines()
    more = ["\ufffd\ufffd no textmore"] if follow else ["\ufffd\ufffd no text"]
    for name in names:
        assert [line for line in lines if line.startswith(f"{name} | ")] == [
            f"{name} | {text}" for text in ("hello", "oh no", *more)
        ]
    assert len(lines) == 3 * len(names)


def test_logs_of_several_go_on_when_one_has_none(labelled, capsys):
    outcome = run_cli(labelled, ["logs", "nobody", "web"], capsys)
    assert outcome.code == 1
    assert "web | hello" in outcome.stdout
    assert "error: workload 'nobody' not found" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["logs"], "WORKLOAD: is required"),
        (["logs", "web", "-l", "app=web"], "-l: must not be given together"),
        (["logs", "-l", "app=nobody"], "error: no workload has the labels app=nobody"),
        (["logs", "-l", "app=nobody", "--group", "g"], "has the labels app=nobody and is in group g"),
        (["logs", "-l", "a b"], "-l: must be terms such as app=web"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_selection_that_makes_no_sense(labelled, capsys, arguments, words):
    outcome = run_cli(labelled, arguments, capsys)
    assert outcome.code in (1, 2)
    assert words in outcome.stderr

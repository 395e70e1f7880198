"""What is printed: colours on a terminal only, live displays on a terminal only, JSON that anybody can read."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from shoal.cli import output
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, NotFoundError, problem
from shoal.dataflow.errors import OperatorFailedError, StepInput
from shoal.model.resources import Resources
from shoal.model.workloads import WorkloadType

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclasses.dataclass
class Screens:
    stdout: Terminal
    stderr: Terminal


@pytest.fixture
def terminal(monkeypatch):
    """Turns stdout and stderr into terminals of 60 columns, when called."""

    def turn() -> Screens:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "60")
        screens = Screens(Terminal(), Terminal())
        monkeypatch.setattr(sys, "stdout", screens.stdout)
        monkeypatch.setattr(sys, "stderr", screens.stderr)
        return screens

    return turn


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def show_table() -> None:
    output.table(
        [Column("ID"), Column("STATE"), Column("WHY", rank=1, least=5)], [["web", output.state("Failed"), "x" * 99]]
    )


def test_colours_on_a_terminal(terminal):
    screens = terminal()
    show_table()
    assert "\x1b[31mFailed" in screens.stdout.getvalue()
    assert all(len(line) <= 60 for line in plain(screens.stdout.getvalue()).splitlines())


def test_no_colours_when_they_are_not_wanted(terminal, monkeypatch):
    screens = terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    show_table()
    output.fail(NotFoundError("node", "x", hint="look elsewhere"))
    written = screens.stdout.getvalue() + screens.stderr.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", written)


def test_nothing_but_text_without_a_terminal(capsys):
    show_table()
    output.warn("mind this")
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert captured.err == "warning: mind this\n"


def test_square_brackets_are_text(capsys):
    output.words("[bold]not markup[/bold] :smile: 12 'quoted'")
    assert capsys.readouterr().err == "[bold]not markup[/bold] :smile: 12 'quoted'\n"


def test_long_lines_are_not_broken(capsys):
    output.words("word " * 60)
    output.fail(NotFoundError("workload", "w" * 120, hint="h" * 200))
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_the_details_of_an_error_are_lines_of_their_own(capsys):
    worked_on = StepInput("a: int64", ("{'a': 1}",), 1, True, "topic t, split 0, offsets 3 to 3")
    output.fail(OperatorFailedError("sum", ValueError("no"), given=worked_on))
    assert capsys.readouterr().err.splitlines() == [
        "error: sum (task 0): ValueError: no",
        "  input  a: int64",
        "  row    {'a': 1}",
        "  read   topic t, split 0, offsets 3 to 3",
    ]


def test_escape_sequences_of_others_do_not_pass(capsys):
    output.fail(NotFoundError("node", "\x1b[2J"))
    output.fail_with("it \x1b[31mfailed", output="line\x07one\n", rejections=[("n", "a\nb")])
    output.table([Column("A")], [["x\x1b]0;title\x07"]])
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert "\x07" not in captured.out + captured.err
    assert "  n  a b\n" in captured.err


def test_every_problem_has_a_line(capsys):
    output.fail(InvalidError([problem("a", 1, "must be 2"), problem("b", None, "is required")], hint="fix it"))
    assert capsys.readouterr().err == "error: a: must be 2 (got 1)\nerror: b: is required\n\nhint: fix it\n"


def test_many_nodes_are_counted(capsys):
    output.fail_with("no room", rejections=[(f"n-{number}", "full") for number in range(150)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 102
    assert lines[-1] == "  … and 50 more nodes; --json has them all"


def test_json_carries_what_values_are(capsys):
    zone = timezone(timedelta(hours=2))
    value = {
        "when": datetime(2026, 3, 1, 14, 0, 0, 123456, tzinfo=zone),
        "how_long": timedelta(seconds=90),
        "what": WorkloadType.VM,
        "bytes": b"\x00\xff",
        "set": frozenset({"b", "a"}),
        "resources": Resources(1, 2),
        "none": None,
        "text": "é",
    }
    output.json_document(value)
    output.json_line(value)
    written = capsys.readouterr().out
    documents = [json.loads(written[: written.rindex("\n{")]), json.loads(written[written.rindex("\n{") :])]
    assert documents[0] == documents[1]
    assert documents[0] == {
        "when": "2026-03-01T12:00:00.123Z",
        "how_long": "90s",
        "what": "vm",
        "bytes": "00ff",
        "set": ["a", "b"],
        "resources": {"cpu_millicores": 1, "memory_mb": 2, "disk_gb": 0, "slots": 0, "pools": []},
        "none": None,
        "text": "é",
    }


def test_progress_elsewhere_is_a_line_for_each_change(capsys):
    with output.progress() as display:
        for state in ("Pending", "Pending", "Running"):
            display.show(
                [output.ProgressRow("web", state, "on node-1"), output.ProgressRow("db", "Running", done=True)]
            )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "web: Pending on node-1\ndb: Running\nweb: Running on node-1\n"


def test_progress_on_a_terminal_is_live_and_leaves_nothing(terminal):
    screens = terminal()
    rows = [output.ProgressRow(f"w-{number:02}", "Pending", "waiting") for number in range(20)]
    with output.progress() as display:
        display.show([output.ProgressRow("done", "Running", "on node-1", done=True), *rows])
        shown = plain(screens.stderr.getvalue())
    assert screens.stdout.getvalue() == ""
    assert "w-00" in shown
    assert "… and 9 more, 1 of 21 done" in shown
    assert screens.stderr.getvalue().endswith("\x1b[2K") or "\x1b[1A\x1b[2K" in screens.stderr.getvalue()


def test_a_screen_is_drawn_again(terminal):
    screens = terminal()
    from rich.text import Text

    with output.screen() as draw:
        draw(lambda width: [Text(f"width {width}")])
    assert "width 60" in plain(screens.stdout.getvalue())


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0s"), (-5, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")]
)
def test_lengths_of_time(seconds, words):
    assert output.span(seconds) == words


def test_moments():
    assert output.ago(None, NOW) == ""
    assert output.ago_words(NOW - timedelta(seconds=3), NOW) == "3s ago"
    assert output.in_words(NOW + timedelta(seconds=3), NOW) == "in 3s"
    assert output.in_words(NOW - timedelta(seconds=3), NOW) == "3s ago"

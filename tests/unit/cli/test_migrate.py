"""`shoal migrate`: what is printed where, and its exit code."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from shoal.cli import main

PROGRAM = """\
from sabot import App

app = App("shop")


@app.agent("orders", sink="totals")
async def totals(order):
    yield {"total": order.total}
"""
NEW = """\
from shoal import App
from shoal import Stream

app = App("shop")


@app.dataflow("totals")
def totals():
    return (
        Stream.from_kafka("orders")
        .select("total")
        .to_kafka("totals")
    )
"""


def test_the_new_form_goes_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_app.py").write_text(PROGRAM)
    assert main.run(["migrate", str(tmp_path / "my_app.py")]) == 0
    told = capsys.readouterr()
    assert told.out == NEW.replace("import Stream\n", "import Stream, col\n")
    assert told.err == ""
    assert (tmp_path / "my_app.py").read_text() == PROGRAM


def test_what_is_left_to_do_is_said_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my_app.py"
    path.write_text(PROGRAM.replace("order):", "order, more):"))
    assert main.run(["migrate", str(path)]) == 1
    told = capsys.readouterr()
    assert "@app.agent" in told.out
    assert f"warning: {path}:7: totals takes not one record but more" in told.err


def test_a_program_without_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my_app.py"
    path.write_text("x = 1\n")
    assert main.run(["migrate", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out == "x = 1\n"
    assert "has no @app.agent function" in told.err


def test_a_program_on_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PROGRAM.encode()), encoding="utf-8"))
    assert main.run(["migrate", "-"]) == 0
    assert "@app.dataflow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, 1, "not found"),
        (b"def f(:\n", 2, "is not Python"),
        (b"\xff\xfe", 2, "cannot be read"),
        (b"x = '\0'\n", 2, "is not Python"),
    ],
)
def test_what_is_no_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, code: int, said: str
) -> None:
    path = tmp_path / "my_app.py"
    if content is not None:
        path.write_bytes(content)
    assert main.run(["migrate", str(path)]) == code
    assert said in capsys.readouterr().err
    assert main.run(["migrate", str(tmp_path)]) == 2

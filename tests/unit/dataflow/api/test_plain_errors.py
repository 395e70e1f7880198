"""What a program says of its mistakes: short paths, the user's line, and no calls of ours where they do not help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.dataflow.api.apps.app import App
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.errors import PlanError

_HEAD = """
from shoal import App, PlanError, Stream, col, tumbling
app = App("plain", data_dir="data")
"""

_WRONG_PLAN = """
@app.dataflow()
def totals():
    return Stream.from_dicts([{"a": 1}]).select("b").to_callback(print)
"""

_WRONG_FUNCTION = """
def divide(batch):
    raise ZeroDivisionError("mine")

@app.dataflow()
def totals():
    return Stream.from_dicts([{"a": 1}]).map(divide, schema={"a": "int64"}).to_callback(print)
"""


def run_program(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_app.py").write_text(_HEAD + text)
    return subprocess.run([sys.executable, "my_app.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_a_mistake_that_nobody_catches_is_told_without_a_traceback(tmp_path: Path) -> None:
    ended = run_program(tmp_path, _WRONG_PLAN + "app.run()\n")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: my_app.py:7: column 'b': does not exist")
    assert "Traceback" not in ended.stderr


def test_a_mistake_can_be_caught_as_ever(tmp_path: Path) -> None:
    ended = run_program(
        tmp_path, _WRONG_PLAN + "try:\n    app.run()\nexcept PlanError as error:\n    print('caught', error)\n1 / 0\n"
    )
    assert ended.returncode == 1
    assert ended.stdout.startswith("caught my_app.py:7")
    assert "Traceback" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr


def test_what_the_users_own_function_raises_keeps_its_traceback(tmp_path: Path) -> None:
    ended = run_program(tmp_path, _WRONG_FUNCTION + "app.run()\n")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "in divide" in ended.stderr


def test_a_dataflow_that_returns_nothing_has_a_short_path(monkeypatch: Any) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    app = App("short")

    @app.dataflow()
    def nothing() -> Any:
        return None

    with pytest.raises(PlanError, match=rf"^{Path(__file__).name}:\d+: dataflow 'nothing': must return"):
        nothing.plan()


def test_too_many_tasks_of_an_app_are_told_at_the_line_that_asks(tmp_path: Path) -> None:
    app = App("wide", data_dir=str(tmp_path))

    @app.dataflow()
    def rows() -> Any:
        return Stream.from_dicts([{"a": 1}]).to_callback(print)

    with pytest.raises(
        PlanError, match=r"test_plain_errors\.py:\d+: parallelism: must be a whole number from 1 to 128"
    ):
        app.run(parallelism=1000)


def test_changes_as_rows_have_one_column_that_says_what_they_do(tmp_path: Path) -> None:
    rows = Stream.from_dicts([{"v": 2, "at": 15}, {"v": 1, "at": 5}], event_time="at", time_unit="s", disorder=60)
    changes = rows.window(tumbling(seconds=10), allowed_lateness="5s").sum("v", "total").changes_as_rows()
    seen: list[dict[str, Any]] = []
    app = App("rows", data_dir=str(tmp_path))

    @app.dataflow()
    def all_changes() -> Any:
        return changes.to_callback(lambda batch: seen.extend(batch.to_pylist()))

    all_changes.run()
    assert [list(row) for row in seen] == [["window_start", "window_end", "total", "change"]] * 2
    assert changes.select("total").collect().schema.names == ["total"]

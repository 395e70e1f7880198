"""What `shoal run` shows of running dataflows: JSON lines, the live table, and Prometheus' series."""

from __future__ import annotations

import io
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.output.printing import table_lines
from shoal.cli.programs import live
from shoal.cli.programs.live import amount, row_of, serving_metrics
from shoal.core.telemetry import MetricRegistry
from shoal.dataflow.checkpoint.coordinator import CheckpointCounts
from shoal.dataflow.execution.chain import StepCounts
from shoal.dataflow.execution.engine import FlowMetrics
from shoal.dataflow.execution.progress import FlowSeries, Rates, step_progress
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME

PROGRAM = """\
from shoal import App, Stream, col

app = App("shop")


@app.dataflow()
def large():
    rows = [{"a": each % 10, "n": each} for each in range(1000)]
    kept = Stream.from_dicts(rows).filter(col("a") > 4)
    return kept.group_by("a").aggregate({"n": "sum"}).to_callback(print)
"""
SECOND = 1_000_000


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "live_shop.py").write_text(PROGRAM.replace("print", "lambda batch: None"))
    yield "live_shop.py"
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


def counts(uid: str = "map-1", subtask: int = 0, **others: object) -> StepCounts:
    made = StepCounts(uid, "map", subtask, 10, 1, 0, 5 * SECOND, {"keys": 3, "late": 1}, received=20, waiting_bytes=7)
    return replace(made, **others)  # type: ignore[arg-type]


def metrics(*steps: StepCounts, **others: object) -> FlowMetrics:
    made = FlowMetrics(steps, {}, CheckpointCounts(), queue_bytes=100)
    return replace(made, **others)  # type: ignore[arg-type]


def test_tasks_of_a_step_are_one_line():
    (step,) = step_progress(metrics(counts(), counts(subtask=1, rows=5, watermark=3 * SECOND, statistics={})))
    assert (step.received, step.emitted, step.watermark) == (40, 15, 3 * SECOND)
    assert (step.state, step.left_out, step.waiting_bytes) == ({"keys": 3}, {"late": 1}, 14)
    assert step.lag(10 * SECOND) == 7.0
    assert not step.is_slow


@pytest.mark.parametrize("watermark", [START_OF_TIME, END_OF_TIME])
def test_without_a_watermark_there_is_no_lag(watermark):
    (step,) = step_progress(metrics(counts(watermark=watermark)))
    assert step.lag(10 * SECOND) is None


@pytest.mark.parametrize(("waiting", "slow"), [(0, False), (49, False), (50, True), (100, True)])
def test_the_step_behind_a_full_queue_is_slow(waiting, slow):
    (step,) = step_progress(metrics(counts(waiting_bytes=waiting)))
    assert step.is_slow is slow


def test_rates_are_those_since_the_last_look():
    rates = Rates()
    looks = [(0.0, 20, 10), (2.0, 60, 20), (4.0, 5, 1), (5.0, 15, 2)]  # it began anew in between
    found = [
        rates.look(step_progress(metrics(counts(received=received, rows=rows)))[0], now)
        for now, received, rows in looks
    ]
    assert found == [(0.0, 0.0), (20.0, 5.0), (0.0, 0.0), (10.0, 1.0)]


def values(series: FlowSeries) -> dict[str, float]:
    lines = series.registry.render().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_counters_go_on_when_steps_begin_anew():
    series = FlowSeries(MetricRegistry())
    checkpoints = CheckpointCounts(completed=4, failed=1, last_number=4, last_bytes=99, last_seconds=0.5, age=2.0)
    figures = {"received_bytes": 80, "busy_seconds": 2.0, "backpressured_seconds": 0.5}
    figures |= {"emitted_bytes": 40, "step_busy_seconds": 1.0, "step_backpressured_seconds": 0.25}
    figures |= {"state_bytes": 4096, "snapshot_seconds": 0.125}
    series.update("large", metrics(counts(**figures), checkpoints=checkpoints), 10 * SECOND)
    anew = counts(rows=3, received=2, **figures | {"busy_seconds": 1.5})
    series.update("large", metrics(anew, checkpoints=checkpoints, recoveries=1, kafka="C interface"), 11 * SECOND)
    found = values(series)
    labels = '{dataflow="large",step="map-1"}'
    assert found[f"shoal_dataflow_rows_emitted_total{labels}"] == 13
    assert found[f"shoal_dataflow_rows_received_total{labels}"] == 22
    assert found[f"shoal_dataflow_watermark_lag_seconds{labels}"] == 6
    assert found[f"shoal_dataflow_queue_bytes{labels}"] == 7
    assert found[f"shoal_dataflow_bytes_received_total{labels}"] == 80
    assert found[f"shoal_dataflow_busy_seconds_total{labels}"] == 3.5
    assert found[f"shoal_dataflow_backpressured_seconds_total{labels}"] == 0.5
    assert found[f"shoal_dataflow_bytes_emitted_total{labels}"] == 40
    assert found[f"shoal_dataflow_step_busy_seconds_total{labels}"] == 1
    assert found[f"shoal_dataflow_step_backpressured_seconds_total{labels}"] == 0.25
    assert found[f"shoal_dataflow_state_bytes{labels}"] == 4096
    assert found[f"shoal_dataflow_snapshot_seconds{labels}"] == 0.125
    assert found['shoal_dataflow_kafka_info{dataflow="large",interface="C interface"}'] == 1
    assert found['shoal_dataflow_state_entries{dataflow="large",kind="keys",step="map-1"}'] == 3
    assert found['shoal_dataflow_rows_left_out_total{dataflow="large",kind="late",step="map-1"}'] == 1
    assert found['shoal_dataflow_checkpoints_total{dataflow="large",result="completed"}'] == 4
    assert found['shoal_dataflow_checkpoint_duration_seconds{dataflow="large"}'] == 0.5
    assert found['shoal_dataflow_recoveries_total{dataflow="large"}'] == 1


@pytest.mark.parametrize("options", [[], ["--parallelism", "2"]])
def test_json_lines_end_with_the_totals(program, options, capsys):
    assert main.run(["run", program, "--json", *options]) == 0
    last = {}
    for line in capsys.readouterr().out.splitlines():
        found = json.loads(line)
        last[found["step"]] = found
    assert all(each["dataflow"] == "large" for each in last.values())
    totals = [(each["rows_in"], each["rows_out"]) for each in last.values()]
    assert (0, 1000) in totals  # the source
    assert (1000, 500) in totals  # the filter
    assert any(each["state"].get("keys") == 5 for each in last.values())


def test_nothing_is_shown_without_a_terminal(program, capsys):
    assert main.run(["run", program]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split(" after")[0] for line in printed.err.splitlines()] == ["shop: large runs", "shop: large ended"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_live_table(program, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    assert main.run(["run", program]) == 0
    shown = screen.getvalue()
    assert "OUT/s" in shown
    assert "large ended" in shown


def test_a_line_of_the_table():
    step = {
        "name": "sum by user",
        "rows_in_per_second": 12_345.0,
        "rows_out_per_second": 7.2,
        "watermark_lag_seconds": 1.26,
        "state": {"keys": 1200, "panes": 0},
        "waiting_bytes": 9 * 2**20,
        "slow": True,
        "checkpoint": 41,
        "checkpoint_age_seconds": 3.0,
    }
    (_header, line) = table_lines(live._COLUMNS, [row_of(step)], width=120)
    assert " ".join(line.plain.split()) == "sum by user 12.3K 7 1.3s 1.2K keys 9M slow 41, 3s ago"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1000, "1.0K"), (2_500_000, "2.5M"), (3e9, "3.0G")]
)
def test_amounts(count, text):
    assert amount(count) == text


class Running:
    """A dataflow with these counts, or one that cannot be asked now."""

    name = "large"

    def __init__(self, found: FlowMetrics | None) -> None:
        self._found = found

    @property
    def running(self) -> Running:
        return self

    def metrics(self) -> FlowMetrics:
        if self._found is None:
            raise RuntimeError("the tasks are not built")
        return self._found


def test_metrics_are_served_while_it_runs(capsys):
    with serving_metrics([Running(metrics(counts())), Running(None)], "127.0.0.1", 0):
        address = capsys.readouterr().err.split("metrics: ")[1].strip()
        with urllib.request.urlopen(address, timeout=30) as answer:
            body = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(address.replace("metrics", "other"), timeout=30)
    assert 'shoal_dataflow_rows_emitted_total{dataflow="large",step="map-1"} 10.0' in body
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=30)


def test_a_port_that_is_taken_is_refused_before_anything_runs(program, capsys):
    with serving_metrics([], "127.0.0.1", 0):
        port = capsys.readouterr().err.rsplit(":", 1)[1].split("/")[0]
        assert main.run(["run", program, "--metrics-port", port]) == 1
    error = capsys.readouterr().err
    assert "metrics cannot be served" in error
    assert "runs" not in error

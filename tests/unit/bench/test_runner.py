"""Runs put together, shown, written and read; the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import areas, report, runner
from bench.__main__ import main
from bench.areas import Area, Note
from bench.figures import Against, Figure, at_most
from bench.machine import machine_facts
from shoal.core.errors import UnavailableError

FIGURES = (
    Figure("latency", "ms", "From here to there.", bar=at_most(100), against=Against("bare echo", "echo")),
    Figure("echo", "ms", "There and back."),
    Figure("rare", "s", "Something slow.", once=True),
)
VALUES = [
    {"latency": 12.0, "echo": 2.0, "rare": 30.0},
    {"latency": 10.0, "echo": 4.0},
    {"latency": 14.123456, "echo": 1.0},
]


def area(values=VALUES) -> Area:
    def measure(run: int, note: Note) -> dict[str, float]:
        note("It rained.")
        return values[run]

    return Area("control", "A title", "About it.", FIGURES, measure, packages=("grpcio",))


@pytest.fixture
def results() -> runner.Results:
    return runner.run_area(area(), say=lambda _words: None)


def test_three_runs_are_put_together(results) -> None:
    latency, echo, rare = results.figures
    assert (latency.value, latency.spread, latency.ok, latency.ratio) == (12.0, 4.123, True, 6.0)
    assert (echo.value, rare.value, rare.spread) == (2.0, 30.0, None)
    assert results.runs == 3
    assert results.values == {"latency": [12.0, 10.0, 14.12], "echo": [2.0, 4.0, 1.0], "rare": [30.0]}


def test_a_note_is_kept_once(results, tmp_path) -> None:
    assert results.notes == ("It rained.",)
    path = runner.write(results, tmp_path)
    assert "- It rained." in report.render(tmp_path)
    older = json.loads(path.read_text(encoding="utf-8"))
    del older["notes"]
    path.write_text(json.dumps(older), encoding="utf-8")
    assert runner.read(path).notes == ()


def test_results_survive_their_file(results, tmp_path) -> None:
    path = runner.write(results, tmp_path)
    assert path.name == "control.json"
    assert runner.read(path) == results
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert [set(each) for each in figures] == [
        {"name", "value", "unit", "spread", "bar", "ok", "peer", "ratio"} for _ in FIGURES
    ]


def test_the_table_names_every_figure_and_lines_up(results) -> None:
    lines = runner.table(results).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["latency", "echo", "rare"]
    assert "<= 100 ms" in lines[2]
    assert "kept" in lines[2]
    assert "6.00 ×" in lines[2]
    assert len({line.index("ms") for line in lines[2:4]}) == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.1234, "0.12 s"), (12.34, "12.3 s"), (123.4, "123 s"), (12345.6, "12,346 s")],
)
def test_numbers_for_people(value, shown) -> None:
    assert runner.number(value, "s") == shown


def test_machine_facts_name_no_place() -> None:
    facts = machine_facts()
    assert {"cpu", "cores", "memory_gb", "kernel", "python"} <= facts.keys()
    assert facts["cores"] >= 1
    assert not any("/" in str(value) for value in facts.values())


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setattr(areas, "load", lambda _name: area())
    return {"folder": tmp_path / "results", "page": tmp_path / "docs" / "page.md"}


def test_kept_bars_exit_with_0_and_are_written(places, capsys) -> None:
    assert main(["--only", "control"], **places) == 0
    assert runner.read(places["folder"] / "control.json").good
    assert "| `latency` | 12.0 ms | 4.12 ms | <= 100 ms | kept | bare echo | 6.00 × |" in places["page"].read_text()
    assert "- `latency`: From here to there. Compared with `echo`." in places["page"].read_text()
    assert "- `rare`: Something slow. Measured in the first run alone." in places["page"].read_text()
    assert "latency" in capsys.readouterr().out


def test_a_missed_bar_exits_with_1_and_is_written(places, monkeypatch, capsys) -> None:
    slow = [{**VALUES[0], "latency": 101.0}, {"latency": 102.0, "echo": 1.0}, {"latency": 1.0, "echo": 1.0}]
    monkeypatch.setattr(areas, "load", lambda _name: area(slow))
    assert main([], **places) == 1
    assert not runner.read(places["folder"] / "control.json").good
    assert "**missed**" in places["page"].read_text()
    assert "MISSED" in capsys.readouterr().out


def test_a_trial_writes_nothing(places) -> None:
    assert main(["--trial"], **places) == 0
    assert not places["folder"].exists()
    assert not places["page"].exists()


def test_what_cannot_be_measured_is_said_in_one_line(places, monkeypatch, capsys) -> None:
    def measure(_run: int, _note: Note) -> dict[str, float]:
        raise UnavailableError("the control plane is away", hint="look at its log")

    broken = Area("control", "A title", "About it.", FIGURES, measure)
    monkeypatch.setattr(areas, "load", lambda _name: broken)
    assert main([], **places) == 1
    said = capsys.readouterr().err
    assert "control could not be measured: the control plane is away" in said
    assert "hint: look at its log" in said
    assert not places["folder"].exists()


def test_a_part_alone_takes_the_place_of_its_own_figures(places, monkeypatch, capsys) -> None:
    assert main(["--only", "control"], **places) == 0
    with_part = replace(area(), parts={"rare": lambda run, _note: {"rare": 40.0 + run, "echo": 6.0}})
    monkeypatch.setattr(areas, "load", lambda _name: with_part)
    assert main(["--only", "control", "--part", "rare", "--runs", "2"], **places) == 0
    found = runner.read(places["folder"] / "control.json")
    assert found.values == {"latency": [12.0, 10.0, 14.12], "echo": [6.0, 6.0], "rare": [40.0, 41.0]}
    assert [each.value for each in found.figures] == [12.0, 6.0, 40.5]
    assert found.notes[0] == "It rained."
    assert "runs: 2. These are `rare`, `echo`." in found.notes[1]
    assert main(["--only", "control", "--part", "common"], **places) == 1
    assert "must be one of: rare" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--part", "rare"])


def test_a_part_may_be_the_first_of_its_area_that_is_measured(places, monkeypatch) -> None:
    with_part = replace(area(), parts={"rare": lambda run, _note: {"rare": 40.0 + run}})
    monkeypatch.setattr(areas, "load", lambda _name: with_part)
    assert main(["--only", "control", "--part", "rare", "--runs", "2"], **places) == 0
    found = runner.read(places["folder"] / "control.json")
    assert found.values == {"rare": [40.0, 41.0]}
    assert [each.name for each in found.figures] == ["rare"]


def test_an_unknown_area_is_wrong_usage(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nonsense"])
    assert ended.value.code == 2
    assert "control" in capsys.readouterr().err


@pytest.mark.parametrize("optional", [True, False])
def test_a_peer_that_cannot_be_installed_is_told_of(optional) -> None:
    class Missing:
        name, requirements, script = "nobody", (), "nothing.py"

        def __init__(self) -> None:
            self.optional = optional

        def prepare(self) -> None:
            raise UnavailableError("no index")

    made = replace(area(), peers=(Missing(),))
    if not optional:
        with pytest.raises(UnavailableError):
            runner.run_area(made, say=lambda _words: None)
        return
    notes = runner.run_area(made, say=lambda _words: None).notes
    assert notes[0] == "The peer nobody could not be installed, so that its figures are left out: no index"

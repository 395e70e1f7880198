"""The page in the repository is what the results in the repository give."""

from __future__ import annotations

import pytest

from bench import areas, report, runner
from bench.areas import AREAS


def test_the_page_is_written_from_the_results() -> None:
    written = report.PAGE.read_text(encoding="utf-8")
    assert written == report.render(), "run `python -m bench --report`"


def test_the_page_depends_on_nothing_else() -> None:
    assert report.render() == report.render()


def test_without_results_there_is_only_the_head(tmp_path) -> None:
    assert report.render(tmp_path).startswith("# Benchmarks")
    assert "##" not in report.render(tmp_path)


#: An area that is new has no results until it is measured.
MEASURED = [name for name in AREAS if (runner.RESULTS / f"{name}.json").exists()]


@pytest.mark.parametrize("name", MEASURED)
def test_the_results_are_of_the_figures_as_they_are_declared_now(name) -> None:
    area, results = areas.load(name), runner.read(runner.RESULTS / f"{name}.json")
    declared = [
        (
            each.name,
            each.unit,
            each.bar.text(each.unit) if each.bar else None,
            each.against.peer if each.against else None,
        )
        for each in area.figures
        if each.name in {figure.name for figure in results.figures}  # a new one has no value until it is measured
    ]
    assert [(each.name, each.unit, each.bar, each.peer) for each in results.figures] == declared
    assert results.values.keys() <= {each.name for each in area.figures}
    assert results.runs == runner.RUNS
    assert results.peers.keys() == {peer.name for peer in area.peers}


@pytest.mark.parametrize("name", AREAS)
def test_every_figure_says_what_it_is(name) -> None:
    figures = areas.load(name).figures
    assert len({each.name for each in figures}) == len(figures)
    for each in figures:
        assert each.meaning.endswith(".")

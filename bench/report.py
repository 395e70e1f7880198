"""Writes docs/benchmarks.md from the files in bench/results and from what the areas say about their figures.

The same files give the same page, to the letter; a test compares the page in the repository with them. Called by
`bench.__main__`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import areas, runner
from bench.areas import Area
from bench.figures import Figure, Measured
from bench.runner import Results, number

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

_HEAD = """\
# Benchmarks

This page is written by `make bench` from the files in [bench/results](../bench/results); do not edit it.
`make bench` measures everything again, `make bench ONLY=control` one area. It exits with 1 when a bar is missed.

Each figure is the median of the runs, and the spread is the highest run less the lowest. A bar is a promise; a figure
without one is there to be watched. Percentiles are by nearest rank. Peers run in the same runs, on the same machine, in
virtual environments of their own; a ratio is the median divided by the peer's. Figures depend on the machine and on
what else it does: compare those of one page with one another before those of two machines.
"""


def render(folder: Path = runner.RESULTS) -> str:
    """The page for the results in a folder."""
    sections = [_HEAD]
    for name in areas.AREAS:
        path = folder / f"{name}.json"
        if path.is_file():
            sections.append("\n".join(_section(areas.load(name), runner.read(path))))
    return "\n".join(sections)


def write(folder: Path = runner.RESULTS, page: Path = PAGE) -> Path:
    """Write the page."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(folder), encoding="utf-8")
    return page


def _section(area: Area, results: Results) -> Iterator[str]:
    yield f"## {area.title}"
    yield ""
    yield area.about
    yield ""
    yield f"Measured on {results.date} in {results.runs} runs on {_machine(results)}."
    yield f"Packages: {_listed(f'{name} {version}' for name, version in results.packages.items())}."
    for name, requirements in results.peers.items():
        yield f"Peer {name}: {_listed(each.replace('==', ' ') for each in requirements)}."
    yield f"To repeat it: `make bench ONLY={area.name}`."
    yield ""
    yield "| Figure | Median | Spread | Bar | | Peer | Ratio |"
    yield "| --- | ---: | ---: | --- | --- | --- | ---: |"
    for figure in results.figures:
        yield _row(figure)
    yield ""
    yield "What each of them is:"
    yield ""
    meanings = {figure.name: figure for figure in area.figures}
    for measured in results.figures:
        declared = meanings.get(measured.name)
        if declared is not None:
            yield f"- `{declared.name}`: {' '.join(_words(declared))}"
    yield ""
    if results.notes:
        yield "What the numbers do not say:"
        yield ""
        yield from (f"- {note}" for note in results.notes)
        yield ""


def _words(figure: Figure) -> Iterator[str]:
    yield figure.meaning
    if figure.once:
        yield "Measured in the first run alone."
    if figure.against is not None:
        yield f"Compared with `{figure.against.figure}`."


def _row(figure: Measured) -> str:
    kept = {True: "kept", False: "**missed**", None: ""}[figure.ok]
    cells = (
        f"`{figure.name}`",
        number(figure.value, figure.unit),
        number(figure.spread, figure.unit),
        figure.bar or "",
        kept,
        figure.peer or "",
        f"{number(figure.ratio)} ×" if figure.ratio is not None else "",
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _machine(results: Results) -> str:
    facts = results.machine
    return (
        f"{facts['cpu']} ({facts['architecture']}), {facts['cores']} cores, {facts['memory_gb']} GB of memory, "
        f"{facts['kernel']}, Python {facts['python']}"
    )


def _listed(names: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(names)

"""Runs an area three times, puts the runs together, shows them and writes them down.

The results of an area are one file, `bench/results/<area>.json`; `bench.report` makes the page from these files. Called
by `bench.__main__`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.areas import Area
from bench.figures import Measured, judge, judge_values, rounded
from bench.machine import machine_facts, package_versions
from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import UnavailableError

RESULTS = Path(__file__).resolve().parent / "results"
RUNS = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that is known of one measurement of an area."""

    area: str
    date: str
    runs: int
    machine: Mapping[str, str | int | float]
    packages: Mapping[str, str]
    #: What was installed for each peer.
    peers: Mapping[str, Sequence[str]]
    figures: tuple[Measured, ...]
    #: The values of the single runs behind each figure.
    values: Mapping[str, Sequence[float]]
    #: What the numbers cannot say.
    notes: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether every bar holds."""
        return all(figure.ok is not False for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "area": self.area,
            "date": self.date,
            "runs": self.runs,
            "machine": dict(self.machine),
            "packages": dict(self.packages),
            "peers": {name: list(requirements) for name, requirements in self.peers.items()},
            "figures": [figure.to_json() for figure in self.figures],
            "values": {name: list(values) for name, values in self.values.items()},
            "notes": list(self.notes),
        }


def run_area(area: Area, *, runs: int = RUNS, say: Say, clock: Clock | None = None) -> Results:
    """Measure an area."""
    clock = clock or SystemClock()
    measured: list[Mapping[str, float]] = []
    notes: list[str] = []

    def note(words: str) -> None:
        if words not in notes:
            notes.append(words)
            say(f"{area.name}: {words}")

    for peer in area.peers:
        say(f"{area.name}: preparing the peer {peer.name}")
        try:
            peer.prepare()
        except UnavailableError as error:
            if not peer.optional:
                raise
            note(f"The peer {peer.name} could not be installed, so that its figures are left out: {error.message}")
    for number in range(runs):
        say(f"{area.name}: run {number + 1} of {runs}")
        measured.append(area.measure(number, note))
    values = {
        each.name: [rounded(run[each.name]) for run in measured if each.name in run]
        for each in area.figures
        if any(each.name in run for run in measured)
    }
    return replace(
        _without_figures(area, runs, clock), figures=judge(area.figures, measured), values=values, notes=tuple(notes)
    )


def _without_figures(area: Area, runs: int, clock: Clock) -> Results:
    """What is known before anything is measured: the day, the machine, the packages."""
    return Results(
        area=area.name,
        date=clock.wall().date().isoformat(),
        runs=runs,
        machine=machine_facts(),
        packages=package_versions(area.packages),
        peers={peer.name: peer.requirements for peer in area.peers},
        figures=(),
        values={},
    )


def run_part(
    area: Area, part: str, *, runs: int = RUNS, say: Say, folder: Path = RESULTS, clock: Clock | None = None
) -> Results:
    """Measure a group of figures alone. What the file has of the others stays, and a note names those that are new."""
    clock = clock or SystemClock()
    path = folder / f"{area.name}.json"
    before = read(path) if path.exists() else _without_figures(area, runs, clock)
    today = clock.wall().date().isoformat()
    notes = [note for note in before.notes if not note.startswith(f"Part {part}:")]

    def note(words: str) -> None:
        notes.append(f"Part {part}: {words}")
        say(f"{area.name}: {words}")

    found: dict[str, list[float]] = {}
    for number in range(runs):
        say(f"{area.name}: {part}, run {number + 1} of {runs}")
        for name, value in area.parts[part](number, note).items():
            found.setdefault(name, []).append(rounded(value))
    names = ", ".join(f"`{name}`" for name in found)
    notes.append(f"Part {part}: measured alone on {today}, runs: {runs}. These are {names}.")
    values = {**before.values, **found}
    return replace(before, figures=judge_values(area.figures, values), values=values, notes=tuple(notes))


def write(results: Results, folder: Path = RESULTS) -> Path:
    """Write the results of an area down."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{results.area}.json"
    path.write_text(json.dumps(results.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> Results:
    """Read them again."""
    found = json.loads(path.read_text(encoding="utf-8"))
    figures = tuple(Measured(**figure) for figure in found.pop("figures"))
    notes = tuple(found.pop("notes", ()))
    return Results(figures=figures, notes=notes, **found)


HEADINGS = ("figure", "median", "spread", "bar", "", "peer", "ratio")


def table(results: Results) -> str:
    """The figures for the screen."""
    rows = [HEADINGS, *(_cells(figure) for figure in results.figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    right = {1, 2, 6}
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def number(value: float | None, unit: str = "") -> str:
    """A number for people: without decimals that say nothing, with commas in thousands."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:,.{digits}f}"
    return f"{text} {unit}".rstrip()


def _cells(figure: Measured) -> tuple[str, ...]:
    return (
        figure.name,
        number(figure.value, figure.unit),
        number(figure.spread, figure.unit),
        figure.bar or "",
        {True: "kept", False: "MISSED", None: ""}[figure.ok],
        figure.peer or "",
        f"{number(figure.ratio)} ×" if figure.ratio is not None else "",
    )

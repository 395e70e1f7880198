"""`python -m bench`: measure, show, write down. `make bench` calls it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import areas, report, runner
from shoal.core.errors import InvalidError, ShoalError, problem


def main(arguments: Sequence[str] | None = None, *, folder: Path = runner.RESULTS, page: Path = report.PAGE) -> int:
    """Exit code 0 when every bar holds, 1 when one is missed or something failed, 2 for wrong usage."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.part is not None and given.only is None:
        parser.error("--part needs --only")
    if given.report:
        report.write(folder, page)
        return 0
    good = True
    for name in [given.only] if given.only else areas.AREAS:
        try:
            results = _measure(areas.load(name), given, folder)
        except ShoalError as error:
            _say(f"{name} could not be measured: {error.message}")
            if error.hint:
                _say(f"hint: {error.hint}")
            return 1
        print(runner.table(results), flush=True)
        good = good and results.good
        if not given.trial:
            _say(f"{name}: the results are in {runner.write(results, folder).name}")
    if not given.trial:
        _say(f"{report.write(folder, page).name} is written from the results")
    if not good:
        _say("a bar was missed")
    return 0 if good else 1


def _measure(area: areas.Area, given: argparse.Namespace, folder: Path) -> runner.Results:
    runs = 1 if given.trial else given.runs
    if given.part is None:
        return runner.run_area(area, runs=runs, say=_say)
    if given.part not in area.parts:
        rule = f"must be one of: {', '.join(area.parts)}" if area.parts else "has no parts"
        raise InvalidError([problem("part", given.part, rule)], what=area.name)
    return runner.run_part(area, given.part, runs=runs, say=_say, folder=folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what Shoal promises in numbers.")
    parser.add_argument("--only", choices=areas.AREAS, metavar="AREA", help=f"one of: {', '.join(areas.AREAS)}")
    parser.add_argument("--part", metavar="PART", help="with --only: a group of its figures alone; the others stay")
    parser.add_argument("--runs", type=int, default=runner.RUNS, help="how often everything is measured")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--trial", action="store_true", help="one run, and nothing is written")
    mode.add_argument("--report", action="store_true", help="measure nothing; write docs/benchmarks.md from the files")
    return parser


def _say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

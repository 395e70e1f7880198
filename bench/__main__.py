"""`python -m bench`: measure, show, write down. `make bench` calls it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import areas, report, runner
from shoal.core.errors import ShoalError


def main(arguments: Sequence[str] | None = None, *, folder: Path = runner.RESULTS, page: Path = report.PAGE) -> int:
    """Exit code 0 when every bar holds, 1 when one is missed or something failed, 2 for wrong usage."""
    given = _parser().parse_args(arguments)
    if given.report:
        report.write(folder, page)
        return 0
    good = True
    for name in [given.only] if given.only else areas.AREAS:
        try:
            results = runner.run_area(areas.load(name), runs=1 if given.trial else runner.RUNS, say=_say)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what Shoal promises in numbers.")
    parser.add_argument("--only", choices=areas.AREAS, metavar="AREA", help=f"one of: {', '.join(areas.AREAS)}")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--trial", action="store_true", help="one run, and nothing is written")
    mode.add_argument("--report", action="store_true", help="measure nothing; write docs/benchmarks.md from the files")
    return parser


def _say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

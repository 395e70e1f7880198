"""Checks what no linter does: how long files are, and what must not stand in them. Called by `make check`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "bench", "scripts", "examples")
GENERATED = ROOT / "src" / "shoal" / "wire" / "pb"
MOST_LINES = 800

# Written in pieces, so that this file passes its own check.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/")


def problems_of(path: Path) -> Iterator[str]:
    """Every complaint about one file."""
    name = path.relative_to(ROOT)
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > MOST_LINES:
        yield f"{name}: {len(lines)} lines; split it, {MOST_LINES} are the most"
    in_product = name.parts[0] == "src"
    for number, line in enumerate(lines, start=1):
        if "\t" in line:
            yield f"{name}:{number}: a tab"
        if in_product and UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished work; finish it or open an issue"
        if in_product and MACHINE_PATH.search(line):
            yield f"{name}:{number}: a path of somebody's machine"


def is_ours(path: Path) -> bool:
    """Whether a person wrote it: not generated, and not in a hidden folder."""
    hidden = any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    return not hidden and not path.is_relative_to(GENERATED)


def main() -> None:
    """Check every Python file of ours that was not generated."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    found = [each for path in paths if is_ours(path) for each in problems_of(path)]
    for each in found:
        print(each, file=sys.stderr)
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

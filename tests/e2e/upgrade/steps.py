"""The steps of a page in docs/, to be run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"

COMMAND_NOT_FOUND = 127

_HEADING = re.compile(r"^(#+) (.*)$")


def steps(page: str, *headings: str) -> str:
    """The shell script below the heading that is reached by these, from the outermost to the innermost."""
    wanted, below, inside, script = list(headings), [], False, []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        found = None if inside else _HEADING.match(line)
        if found:
            below = [*below[: len(found[1]) - 2], found[2]]
        elif line.startswith("```"):
            inside = line == "```sh" and below == wanted
        elif inside:
            script.append(line)
    assert script, f"{page} has no steps below {' / '.join(headings)}"
    return "\n".join(script)


def run(script: str, **variables: str) -> None:
    """Run it as a person would, except that the first mistake ends it."""
    for name in re.findall(r"\$\{?([A-Z_]+)", script):
        assert name in variables, f"the page does not say what {name} is"
    answer = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode == COMMAND_NOT_FOUND and os.environ.get("CI") != "true":
        pytest.skip(f"{answer.stderr.strip()} (on Debian: apt-get install sqlite3 postgresql)")
    assert answer.returncode == 0, f"{script}\n{answer.stdout}{answer.stderr}"

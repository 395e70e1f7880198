"""The steps of a page in docs/, to be run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.e2e.pages.blocks import DOCS, SCRIPT, blocks

COMMAND_NOT_FOUND = 127


def steps(page: str, *headings: str) -> str:
    """The shell script below the heading that is reached by these, from the outermost to the innermost."""
    found = [each.text for each in blocks(DOCS / page) if each.language == SCRIPT and each.headings == headings]
    assert found, f"{page} has no steps below {' / '.join(headings)}"
    return "\n".join(found)


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

"""The guides run as written: every Python block of a page, one after the other, and what the page says they print."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["docs/dataflow.md", "docs/records.md", "docs/tables.md", "docs/topics.md", "README.md"]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> list[tuple[int, str, str | None]]:
    """The code blocks of a page: the line each begins at, its code, and what it prints where the page says that."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(text.count("\n", 0, each.start()) + 2, each["code"], each["printed"]) for each in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    assert blocks
    # As in a notebook: what a block defines is there in those that follow.
    surroundings: dict[str, object] = {"__name__": "guide"}
    for line, code, printed in blocks:
        compiled = compile("\n" * (line - 1) + code, str(ROOT / page), "exec")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("error")
            known = set(surroundings)
            exec(compiled, surroundings)
            for name in sorted(surroundings.keys() - known):
                if name.startswith("test_"):
                    call_test(surroundings[name], tmp_path / name)
        if printed is not None:
            assert said.getvalue() == printed, f"{page}:{line}"


def call_test(test: Any, folder: Path) -> None:
    """Run a test that a page shows, as pytest does."""
    folder.mkdir()
    test(**({"tmp_path": folder} if "tmp_path" in inspect.signature(test).parameters else {}))


def test_nothing_that_should_run_is_left_out() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert text.count("```python") == len(blocks_of(page)), page

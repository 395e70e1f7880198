"""A reader of the pages notices what is wrong with them: blocks that nobody runs, answers that do not come."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.pages.blocks import CONSOLE, Command, blocks, commands
from tests.e2e.pages.terminal import Reader, Stage, Terminal, is_as_shown

pytestmark = pytest.mark.e2e

PAGE = """# A page

## First

```console
$ export GREETING=hello
$ printf '%s %s\\n' "$GREETING" \\
    everybody
hello everybody
```

### Below it

```yaml
id: web
```

## Second

```sh
systemctl restart shoal-agent
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def read(page: Path, **not_run: tuple[str, ...]) -> Reader:
    return Reader(page.name, not_run={key: why for why, key in not_run.items()}, folder=page.parent)


def test_blocks_are_found_with_their_headings(page: Path) -> None:
    found = [(each.language, each.headings, each.line) for each in blocks(page)]
    assert found == [
        ("console", ("First",), 5),
        ("yaml", ("First", "Below it"), 14),
        ("sh", ("Second",), 20),
    ]
    first = next(blocks(page))
    assert list(commands(first)) == [
        Command("export GREETING=hello", ()),
        Command("printf '%s %s\\n' \"$GREETING\" everybody", ("hello everybody",)),
    ]


def test_a_block_that_is_neither_run_nor_named_fails(page: Path) -> None:
    reader = read(page, systemd=(CONSOLE, "Second"))
    reader.next("First")
    with pytest.raises(AssertionError, match=r"nobody says why: First / Below it, line 14 \(yaml\)"):
        reader.close()
    reader.next("First", "Below it", language="yaml")
    reader.close()


def test_blocks_come_in_the_order_of_the_page(page: Path) -> None:
    with pytest.raises(AssertionError, match="comes next"):
        read(page).next("Second")


def test_a_reason_for_a_block_that_is_gone_fails(page: Path) -> None:
    with pytest.raises(AssertionError, match="no such block any more"):
        read(page, systemd=(CONSOLE, "Third"))


async def test_what_is_exported_stays_and_what_is_shown_has_to_come(stage: Stage, page: Path) -> None:
    block = read(page).next("First")
    terminal = Terminal(stage, "somebody", stage.folder)
    assert await terminal.run(block) == ["", "hello everybody\n"]
    other = Terminal(stage, "other", stage.folder, instead={"=hello": "=goodbye", "nobody": "somebody"})
    with pytest.raises(AssertionError, match="the page shows:\nhello everybody\nit says:\ngoodbye everybody"):
        await other.run(block)
    with pytest.raises(AssertionError, match=r"not on the page any more: \['nobody'\]"):
        other.close()


async def test_a_command_that_fails_or_names_what_nobody_has_said(stage: Stage) -> None:
    terminal = Terminal(stage, "somebody", stage.folder)
    with pytest.raises(AssertionError, match="exit code 3"):
        await terminal.call(Command("exit 3", ()), "a block")
    with pytest.raises(AssertionError, match="does not say what NOWHERE is"):
        await terminal.call(Command('ls "$NOWHERE"', ()), "a block")


def test_an_answer_is_the_one_that_is_shown() -> None:
    said = "NAME    STATE\nnode-1  Ready 5s\nnode-2  Ready 6s\n"
    assert is_as_shown(["NAME STATE", "node-1 Ready …s", "node-2   Ready …"], said)
    assert is_as_shown(["NAME …", "…", "node-2 …"], said)
    assert not is_as_shown(["NAME STATE", "node-1 Ready …"], said), "more is said than is shown"
    assert not is_as_shown(["NAME STATE", "node-1 Lost …", "…"], said)
    assert not is_as_shown(["node-1 Ready 5s", "NAME STATE", "…"], said)

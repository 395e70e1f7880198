"""Live displays: a progress list on stderr, and a screen on stdout that is redrawn.

Both need a terminal. Without one, progress is one line for each change. Called by commands that wait or watch; rich is
imported when a display starts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from shoal.cli.output.printing import STATE_STYLES, console_for, words
from shoal.cli.output.tables import clean, pad

if TYPE_CHECKING:
    from rich.text import Text

MAX_ROWS = 12


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """One item of a progress list."""

    name: str
    state: str
    #: Where it is, or why it waits.
    detail: str = ""
    done: bool = False


class Progress:
    """A progress list: live on a terminal, one line for each change elsewhere."""

    def __init__(self) -> None:
        self._shown: dict[str, ProgressRow] = {}
        self._live: Any = None

    def show(self, rows: Sequence[ProgressRow]) -> None:
        """Show the items as they are now."""
        if self._live is not None:
            self._live.update(self._render(rows), refresh=True)
            return
        for row in rows:
            before = self._shown.get(row.name)
            if before is None or (before.state, before.detail) != (row.state, row.detail):
                words(f"{row.name}: {row.state}" + (f" {clean(row.detail)}" if row.detail else ""))
            self._shown[row.name] = row

    def _render(self, rows: Sequence[ProgressRow]) -> Any:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        size = max((len(row.name) for row in rows), default=0)
        lines = []
        waiting = [row for row in rows if not row.done]
        # A long list would scroll away: items that still wait come first, the others are counted.
        for row in (waiting or list(rows))[:MAX_ROWS]:
            text = Text(f"{pad(row.name, size)}  ", no_wrap=True, overflow="ellipsis")
            text.append(pad(row.state, 9), style=STATE_STYLES.get(row.state, ""))
            text.append(f"  {clean(row.detail)}", style="dim")
            lines.append(Text("✔ ", style="green") + text if row.done else Spinner("dots", text=text))
        hidden = len(rows) - len(lines)
        if hidden:
            lines.append(Text(f"… and {hidden} more, {len(rows) - len(waiting)} of {len(rows)} done", style="dim"))
        return Group(*lines)


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Open a progress list. A live one leaves nothing on the screen when it closes."""
    display = Progress()
    if not is_lively(sys.stderr):
        yield display
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), console=console_for(sys.stderr), transient=True, refresh_per_second=8) as live:
        display._live = live  # noqa: SLF001  only this function starts a live display
        yield display


@contextlib.contextmanager
def screen() -> Iterator[Callable[[Callable[[int], Sequence[Text]]], None]]:
    """Take over the screen behind stdout. Yields a function that draws `lines(width)`."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = console_for(sys.stdout)
    with Live(Text(""), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(lines: Callable[[int], Sequence[Text]]) -> None:
            live.update(Group(*lines(console.width)), refresh=True)

        yield draw


def stdout_is_lively() -> bool:
    """Whether stdout is a terminal that can redraw."""
    return is_lively(sys.stdout)


def is_lively(stream: IO[str]) -> bool:
    """Whether a stream is a terminal that can redraw."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")

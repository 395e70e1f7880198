"""The only module that prints. Data goes to stdout, words to stderr.

Colour and live displays appear on a terminal only, and never when `NO_COLOR` is set; everything can be read without
them. Called by every command; rich is imported where it is first needed, so that completion and `--version` stay quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shoal.cli import hints
from shoal.cli.tables import GAP, Column, clean, cut, fit, pad
from shoal.core.durations import format_duration
from shoal.core.errors import InternalError, InvalidError, ShoalError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 80
MAX_REJECTIONS = 100

STATE_STYLES: Mapping[str, str] = {
    "Ready": "green",
    "Running": "green",
    "Completed": "cyan",
    "Stopped": "dim",
    "Drained": "dim",
    "Pending": "yellow",
    "Suspect": "yellow",
    "Draining": "yellow",
    "Scheduled": "yellow",
    "Updating": "yellow",
    "Stopping": "yellow",
    "Deleting": "yellow",
    "Degraded": "yellow",
    "Unknown": "magenta",
    "NotReady": "red",
    "Failed": "red",
}
"""Colours only repeat what the word says."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell with a style of its own."""

    text: str
    style: str = ""


def state(word: str) -> Cell:
    """A state in its colour."""
    return Cell(word, STATE_STYLES.get(word, ""))


# ---------------------------------------------------------------------------------------------------------
# Data, to stdout


def data(text: str) -> None:
    """One line or block of data."""
    print(text, flush=True)


def raw(chunk: bytes) -> None:
    """Bytes as they are, such as a workload's own output."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(chunk.decode(errors="replace"))
    else:
        sys.stdout.flush()
        stream.write(chunk)
    sys.stdout.flush()


def json_document(value: object) -> None:
    """One JSON document, indented."""
    data(json.dumps(to_plain(value), indent=2, ensure_ascii=False))


def json_line(value: object) -> None:
    """One JSON document on one line, for streams."""
    data(json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":")))


def to_plain(value: Any) -> Any:
    """What JSON can carry: dates in ISO 8601, durations as people write them, bytes in hexadecimal."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        plain = [to_plain(each) for each in value]
        return plain if isinstance(value, list | tuple) else sorted(plain)
    return value


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], *, empty: str = "") -> None:
    """A table that fits the terminal. Without rows, `empty` is said on stderr instead."""
    if not rows and empty:
        words(empty)
        return
    for line in _table_lines(columns, rows, width=_width(sys.stdout)):
        _emit(sys.stdout, line)


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], *, width: int) -> list[Text]:
    """The same as lines, for displays that print themselves."""
    return [_styled(line) for line in _table_lines(columns, rows, width=width)]


def _table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], *, width: int) -> list[list[Cell]]:
    cleaned = [[_cell(each) for each in row] for row in rows]
    layout = fit(columns, [[cell.text for cell in row] for row in cleaned], width)
    chosen = list(zip(layout.columns, layout.widths, strict=True))
    header = [Cell(column.title, "bold") for column in columns]
    lines = []
    for row in [header, *cleaned]:
        line = [
            Cell(pad(cut(row[index].text, size), size, right=columns[index].right) + " " * GAP, row[index].style)
            for index, size in chosen
        ]
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Cell(line[-1].text.rstrip(), line[-1].style)
        lines.append(line)
    return lines


def facts(pairs: Sequence[tuple[str, str | Cell]]) -> None:
    """Names and values, one pair a line; pairs without a value are left out."""
    shown = [(name, cell) for name, cell in ((name, _cell(value)) for name, value in pairs) if cell.text]
    size = max((len(name) for name, _ in shown), default=0)
    for name, cell in shown:
        _emit(sys.stdout, [Cell(f"{pad(name, size)}{' ' * GAP}", "bold"), cell])


# ---------------------------------------------------------------------------------------------------------
# Words, to stderr


def words(text: str, *, style: str = "") -> None:
    """Something to tell the person at the terminal."""
    _emit(sys.stderr, [Cell(text, style)])


def to_width(text: str) -> str:
    """As much of a line as fits the terminal behind stderr; all of it without one."""
    return cut(text, _width(sys.stderr)) if sys.stderr.isatty() else text


def warn(text: str) -> None:
    """Something to mind."""
    _labelled("warning", text, "bold yellow")


def fail_by_bug(error: Exception) -> int:
    """Say that something broke that should not. Returns the exit code; with SHOAL_DEBUG the error goes on its way."""
    if os.environ.get("SHOAL_DEBUG"):
        raise error
    bug = InternalError(f"a bug: {type(error).__name__}: {error}", hint="SHOAL_DEBUG=1 shows where; please report it")
    fail(bug)
    return 1


def fail(error: ShoalError) -> None:
    """An error: one line (one for each problem of bad input), a blank line, and what to do about it."""
    message, hint = hints.told(error)
    if isinstance(error, InvalidError) and error.problems:
        for problem in error.problems:
            _labelled("error", clean(str(problem)), "bold red")
    else:
        _labelled("error", clean(message), "bold red")
    if hint:
        words("")
        _labelled("hint", clean(hint), "bold cyan")


def fail_with(message: str, *, hint: str = "", output: str = "", rejections: Sequence[tuple[str, str]] = ()) -> None:
    """The same for an outcome that is no exception.

    `output` is the last that a workload printed; `rejections` are nodes, each with its reason.
    """
    _labelled("error", clean(message), "bold red")
    size = max((len(node) for node, _ in rejections), default=0)
    for node, reason in rejections[:MAX_REJECTIONS]:
        words(f"  {pad(node, size)}  {clean(reason)}")
    if len(rejections) > MAX_REJECTIONS:
        words(f"  … and {len(rejections) - MAX_REJECTIONS} more nodes; --json has them all")
    for line in output.splitlines():
        words(f"  │ {clean(line)}")
    if hint:
        words("")
        _labelled("hint", clean(hint), "bold cyan")


# ---------------------------------------------------------------------------------------------------------
# Displays that move


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """One thing that is waited for."""

    name: str
    state: str
    #: Where it is, or why it waits.
    detail: str = ""
    done: bool = False


class Progress:
    """What is waited for, on stderr: a live list on a terminal, one line for each change elsewhere."""

    def __init__(self) -> None:
        self._shown: dict[str, ProgressRow] = {}
        self._live: Any = None

    def show(self, rows: Sequence[ProgressRow]) -> None:
        """Bring the display up to date."""
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
        # A long list would scroll away: what still waits is shown first, the rest is counted.
        for row in (waiting or list(rows))[:12]:
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
    """A `Progress` for the length of a block. A live one leaves nothing behind on the screen."""
    display = Progress()
    if not _is_lively(sys.stderr):
        yield display
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), console=_console(sys.stderr), transient=True, refresh_per_second=8) as live:
        display._live = live  # noqa: SLF001  the display is made here and nowhere else
        yield display


@contextlib.contextmanager
def screen() -> Iterator[Callable[[Callable[[int], Sequence[Text]]], None]]:
    """A whole screen on stdout that is drawn again and again: yields a function that takes `lines(width)`."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = _console(sys.stdout)
    with Live(Text(""), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(lines: Callable[[int], Sequence[Text]]) -> None:
            live.update(Group(*lines(console.width)), refresh=True)

        yield draw


def stdout_is_lively() -> bool:
    """Whether stdout is a terminal that can redraw."""
    return _is_lively(sys.stdout)


# ---------------------------------------------------------------------------------------------------------


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago, in the largest unit that matters."""
    if moment is None:
        return ""
    return span((now - moment).total_seconds())


def ago_words(moment: datetime | None, now: datetime) -> str:
    """The same as a sentence."""
    return f"{ago(moment, now)} ago" if moment is not None else ""


def in_words(moment: datetime | None, now: datetime) -> str:
    """How long until then; a moment that has passed is said to have."""
    if moment is None:
        return ""
    return f"in {span((moment - now).total_seconds())}" if moment > now else ago_words(moment, now)


def local_time(moment: datetime) -> str:
    """A moment by the clock on the wall of whoever reads it."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A length of time in one or two units."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    if whole < 172_800:
        return f"{whole // 3600}h"
    return f"{whole // 86_400}d"


def _cell(value: str | Cell) -> Cell:
    return Cell(clean(value)) if isinstance(value, str) else Cell(clean(value.text), value.style)


def _labelled(label: str, text: str, style: str) -> None:
    _emit(sys.stderr, [Cell(f"{label}:", style), Cell(f" {text}")])


def _emit(stream: IO[str], line: Sequence[Cell]) -> None:
    """Print one line. Rich is loaded for terminals only: a server's log needs none of it, nor its memory."""
    try:
        if stream.isatty():
            _console(stream).print(_styled(line), soft_wrap=True, highlight=False)
        else:
            print("".join(cell.text for cell in line), file=stream, flush=True)
    except OSError:
        if stream is not sys.stderr:
            raise
        # The terminal was closed, or whoever read along has gone. Words are for people; what they are about goes on.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  it stays open until the process ends


def _styled(line: Sequence[Cell]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for cell in line:
        text.append(cell.text, style=cell.style or None)
    return text


def _is_lively(stream: IO[str]) -> bool:
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _console(stream: IO[str]) -> Console:
    from rich.console import Console

    # On a terminal rich follows its size, also when it changes; elsewhere the width must not depend on who looks.
    width = None if stream.isatty() else _width(stream)
    return Console(file=stream, width=width, force_terminal=stream.isatty(), emoji=False, markup=False)


def _width(stream: IO[str]) -> int:
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if not stream.isatty():
        return WIDTH_WITHOUT_TERMINAL
    return shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns

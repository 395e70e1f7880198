"""Prints text, tables, JSON and errors. Data goes to stdout, messages go to stderr.

Tables fit a terminal. Piped tables are never cut and always have every column, so that scripts can rely on them. Colors
appear on a terminal only, and never when `NO_COLOR` is set. Called by every command; rich is imported when it is first
needed, so that completion and `--version` stay quick.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shoal.cli.output import hints
from shoal.cli.output.tables import GAP, Column, Layout, clean, cut, fit, pad
from shoal.core.durations import format_duration
from shoal.core.errors import InternalError, InvalidError, ShoalError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

USUAL_WIDTH = 80
EMPTY = "-"
"""Stands for an empty cell of a piped table: every line has the same number of fields."""

MAX_REJECTIONS = 100

STATE_STYLES: Mapping[str, str] = {
    "Ready": "green",
    "Running": "green",
    "Completed": "cyan",
    "Stopped": "dim",
    "Drained": "dim",
    "Accepted": "yellow",
    "Pending": "yellow",
    "Starting": "yellow",
    "WaitingForSecret": "yellow",
    "Suspect": "yellow",
    "Draining": "yellow",
    "Scheduled": "yellow",
    "Updating": "yellow",
    "Stopping": "yellow",
    "Deleting": "yellow",
    "Degraded": "yellow",
    "Unknown": "magenta",
    "NotReady": "red",
    "Unplaceable": "red",
    "CrashLoop": "red",
    "Gone": "dim",
    "Failed": "red",
}
"""Colors only repeat what the word says."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell with a style of its own."""

    text: str
    style: str = ""


def state(word: str) -> Cell:
    """A state in its color."""
    return Cell(word, STATE_STYLES.get(word, ""))


# ---------------------------------------------------------------------------------------------------------
# Data, to stdout


def data(text: str) -> None:
    """One line or block of data."""
    print(text, flush=True)


def styled(text: str, style: str) -> None:
    """One line of data with a style for terminals."""
    _emit(sys.stdout, [Cell(text, style)])


def raw(chunk: bytes) -> None:
    """Bytes as they are, such as a workload's own output."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(chunk.decode(errors="replace"))
    else:
        sys.stdout.flush()
        stream.write(chunk)
    sys.stdout.flush()


def raw_error(chunk: bytes) -> None:
    """Bytes as they are, on standard error."""
    stream = getattr(sys.stderr, "buffer", None)
    if stream is None:
        sys.stderr.write(chunk.decode(errors="replace"))
    else:
        sys.stderr.flush()
        stream.write(chunk)
    sys.stderr.flush()


def json_document(value: object) -> None:
    """One JSON document, indented."""
    data(json.dumps(to_plain(value), indent=2, ensure_ascii=False))


def json_line(value: object) -> None:
    """One JSON document on one line, for streams."""
    data(json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":")))


def to_plain(value: Any) -> Any:
    """A value as JSON types: dates in ISO 8601, durations such as 10s, bytes in hexadecimal."""
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


def yaml_documents(documents: Sequence[object]) -> None:
    """YAML documents, separated by `---`."""
    data(yaml_text(documents).rstrip("\n"))


def yaml_text(documents: Sequence[object]) -> str:
    """The same as text. Every string is read back exactly as it was."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes strings with characters that YAML readers take for line breaks."""

    def represent(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value and value.replace("\n", "").isprintable() else None
        odd = not value.replace("\n", "").isprintable()
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if odd else style)

    Dumper.add_representer(str, represent)
    text: str = yaml.dump_all(
        [to_plain(each) for each in documents],
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    return text


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], *, empty: str = "", above: Layout | None = None
) -> Layout:
    """A table that fits the terminal; every column, uncut, without one. Without rows, `empty` goes to stderr.

    `above` is the layout of a table that this one continues: the columns stay where they are, and no header is printed.
    """
    layout, lines = _table_lines(columns, rows, width=_width(sys.stdout) if sys.stdout.isatty() else None, above=above)
    if not rows and empty:
        words(empty)
        return layout
    for line in lines:
        _emit(sys.stdout, line)
    return layout


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], *, width: int) -> list[Text]:
    """The same as lines, for live displays."""
    return [_styled(line) for line in _table_lines(columns, rows, width=width)[1]]


def _table_lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Cell]],
    *,
    width: int | None,
    above: Layout | None = None,
) -> tuple[Layout, list[list[Cell]]]:
    cleaned = [[_cell(each) for each in row] for row in rows]
    if width is None:
        cleaned = [[cell if cell.text else Cell(EMPTY) for cell in row] for row in cleaned]
    layout = above or fit(columns, [[cell.text for cell in row] for row in cleaned], width)
    chosen = list(zip(layout.columns, layout.widths, strict=True))
    header = [Cell(column.title, "bold") for column in columns]
    lines = []
    for row in cleaned if above is not None else [header, *cleaned]:
        line = [
            Cell(_fitted(row[index].text, size, columns[index], width) + " " * GAP, row[index].style)
            for index, size in chosen
        ]
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Cell(line[-1].text.rstrip(), line[-1].style)
        lines.append(line)
    return layout, lines


def _fitted(text: str, size: int, column: Column, width: int | None) -> str:
    # Ids are never cut, and neither is anything without a terminal: a late row may be wider than the rows above it.
    shown = cut(text, size) if width is not None and column.least else text
    return pad(shown, size, right=column.right)


def facts(pairs: Sequence[tuple[str, str | Cell]]) -> None:
    """Names and values, one pair a line; pairs without a value are left out."""
    shown = [(name, cell) for name, cell in ((name, _cell(value)) for name, value in pairs) if cell.text]
    size = max((len(name) for name, _ in shown), default=0)
    for name, cell in shown:
        _emit(sys.stdout, [Cell(f"{pad(name, size)}{' ' * GAP}", "bold"), cell])


# ---------------------------------------------------------------------------------------------------------
# Messages, to stderr


def words(text: str, *, style: str = "") -> None:
    """A message for the person at the terminal."""
    _emit(sys.stderr, [Cell(text, style)])


def to_width(text: str) -> str:
    """A line cut to the terminal behind stderr; the whole line without one."""
    return cut(text, _width(sys.stderr)) if sys.stderr.isatty() else text


def warn(text: str) -> None:
    """A warning."""
    _labelled("warning", text, "bold yellow")


def fail_by_bug(error: Exception) -> int:
    """Report a bug of this program and return the exit code. With SHOAL_DEBUG the error is raised."""
    if os.environ.get("SHOAL_DEBUG"):
        raise error
    bug = InternalError(f"a bug: {type(error).__name__}: {error}", hint="SHOAL_DEBUG=1 shows where; please report it")
    fail(bug)
    return 1


def fail(error: ShoalError) -> None:
    """Print an error: one line (one for each problem of bad input), its details, a blank line, and a hint."""
    message, hint = hints.told(error)
    if isinstance(error, InvalidError) and error.problems:
        for problem in error.problems:
            _labelled("error", clean(str(problem)), "bold red")
    else:
        _labelled("error", clean(message), "bold red")
    size = max((len(label) for label, _text in error.details), default=0)
    for label, text in error.details:
        words(f"  {pad(label, size)}  {clean(text)}")
    if hint:
        words("")
        _labelled("hint", clean(hint), "bold cyan")


def fail_with(message: str, *, hint: str = "", output: str = "", rejections: Sequence[tuple[str, str]] = ()) -> None:
    """Print a failure that is no exception.

    `output` is the end of a workload's log; `rejections` are nodes, each with its reason.
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


def _cell(value: str | Cell) -> Cell:
    return Cell(clean(value)) if isinstance(value, str) else Cell(clean(value.text), value.style)


def _labelled(label: str, text: str, style: str) -> None:
    _emit(sys.stderr, [Cell(f"{label}:", style), Cell(f" {text}")])


def _emit(stream: IO[str], line: Sequence[Cell]) -> None:
    """Print one line. Rich is loaded for terminals only: a server does not pay for its memory."""
    try:
        if stream.isatty():
            console_for(stream).print(_styled(line), soft_wrap=True, highlight=False)
        else:
            print("".join(cell.text for cell in line), file=stream, flush=True)
    except OSError:
        if stream is not sys.stderr:
            raise
        # The terminal or the reader of the pipe is gone. Messages are for people: the work goes on without them.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  it stays open until the process ends


def _styled(line: Sequence[Cell]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for cell in line:
        text.append(cell.text, style=cell.style or None)
    return text


def console_for(stream: IO[str]) -> Console:
    """A rich console on a stream. On a terminal it follows the terminal's size."""
    from rich.console import Console

    width = None if stream.isatty() else _width(stream)
    return Console(file=stream, width=width, force_terminal=stream.isatty(), emoji=False, markup=False)


def _width(stream: IO[str]) -> int:
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if not stream.isatty():
        return USUAL_WIDTH
    return shutil.get_terminal_size((USUAL_WIDTH, 24)).columns

"""`shoal migrate`: the dataflow form of a program with `@app.agent` functions, to stdout. Nothing is run or changed.

Called by people; `shoal.dataflow.api.migrate` does it. Notes go to stderr with the line that they are about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.core.errors import InvalidError, NotFoundError, problem

_STDIN = "-"
_MAX_BYTES = 10 * 1024 * 1024


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate", rich_help_panel="Other")(migrate)


def migrate(
    path: Annotated[str, typer.Argument(metavar="FILE", help="A Python file with @app.agent functions; - is stdin")],
) -> int:
    """Print the dataflow form of an `@app.agent` program.

    Functions whose results are made of columns become expressions; others stay as they are, called record by record.
    What a person should look at is said on stderr with its line. Exits with 1 when something is left to do by hand.
    """
    from shoal.dataflow.api.migrate import migrate as rewrite

    done = rewrite(_read(path), filename=path)
    output.data(done.text.removesuffix("\n"))
    for note in done.notes:
        say = output.warn if note.by_hand else output.words
        say(f"{path}:{note.line}: {note.text}")
    if not done.rewritten and not any(note.by_hand for note in done.notes):
        output.words(f"{path}: has no @app.agent function")
    return 1 if any(note.by_hand for note in done.notes) else 0


def _read(path: str) -> str:
    if path == _STDIN:
        return typer.get_text_stream("stdin").read()
    file = Path(path)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise InvalidError([problem("FILE", path, "is too large for a program")])
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError("file", path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError([problem("FILE", path, f"cannot be read: {error}")]) from error

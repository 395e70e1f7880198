"""`shoal warmup`: compile the kernels ahead of time. Called by people, by `make install` and when an image is built."""

from __future__ import annotations

import importlib.util

import typer

from shoal.cli import output
from shoal.core.errors import UnsupportedError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("warmup", rich_help_panel="Other")(warmup)


def warmup() -> None:
    """Compile the kernels of embedding tables and of parsing, so that the first program with them starts at once.

    Those of tables are kept in the user's cache (`~/.cache/shoal/kernels`, or the directory that SHOAL_KERNEL_CACHE
    names). A program that finds no kernel compiles it itself, once. A second call compiles nothing.
    """
    if importlib.util.find_spec("numba") is None:
        raise UnsupportedError("numba is not installed", hint="pip install 'shoal[train]' or 'shoal[serve]'")
    from shoal.records.parsing.engines import warm_up
    from shoal.tables.warmup import prepare

    ready = [was_compiled for _, was_compiled in prepare()]
    output.words(f"tables: {len(ready)} kernels are ready, {sum(ready)} were compiled now")
    warm_up()
    output.words("records: the kernels are ready")

"""`shoal warmup`: compile the kernels ahead of time. Called by people, by `make install` and when an image is built."""

from __future__ import annotations

import importlib
import importlib.util

import typer

from shoal.cli import output
from shoal.core.errors import UnsupportedError

#: Modules with a function `prepare`, which yields the name of each kernel and whether it was compiled.
_ROOMS = ("shoal.tables.warmup",)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("warmup", rich_help_panel="Other")(warmup)


def warmup() -> None:
    """Compile the kernels of embedding tables, so that the first program which uses them starts at once.

    They are kept in the user's cache (`~/.cache/shoal/kernels`, or the directory that SHOAL_KERNEL_CACHE names). A
    program that finds no kernel there compiles it itself, once, and says so. A second call does nothing.
    """
    if importlib.util.find_spec("numba") is None:
        raise UnsupportedError("numba is not installed", hint="pip install 'shoal[train]' or 'shoal[serve]'")
    ready = compiled = 0
    for room in _ROOMS:
        for _, was_compiled in importlib.import_module(room).prepare():
            ready += 1
            compiled += was_compiled
    output.words(f"{ready} kernels are ready, {compiled} were compiled now")

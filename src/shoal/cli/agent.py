"""placeholder until the agent's settings are there."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

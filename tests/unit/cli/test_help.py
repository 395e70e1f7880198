"""The help of every command: what it says by default is what one would write."""

from __future__ import annotations

import re
from datetime import timedelta

import click
import pytest
import typer
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.core.durations import parse_duration

CLOCK_TIME = re.compile(r"\b\d+:\d\d:\d\d\b|\bdays?,")


def commands(command: click.Command, path: tuple[str, ...] = ()):
    """Every command with the words that call it."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


TREE = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_no_help_shows_a_duration_as_a_time_of_day(path):
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert not CLOCK_TIME.search(shown.output)
    assert "<bool>" not in shown.output


def test_default_durations_are_shown_so_that_they_can_be_written():
    defaults = {
        (*path, option.name): option.default
        for path, command in TREE.items()
        for option in command.params
        if isinstance(option.default, timedelta)
    }
    assert ("workload", "wait", "timeout") in defaults
    for default in defaults.values():
        assert parse_duration(str(default)) == default


def test_one_minute_is_1m():
    shown = CliRunner().invoke(app, ["workload", "stop", "--help"], env={"COLUMNS": "200"})
    assert "default: 1m" in shown.output

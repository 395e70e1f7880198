"""The help of every command: what it says by default is what one would write."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta

import click
import pytest
import typer
from typer.testing import CliRunner

from shoal.cli import main
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


def texts_below(app, path="shoal"):
    """Every help text of the tree, with where it stands."""
    for command in app.registered_commands:
        name = f"{path} {command.name}"
        yield name, command.callback.__doc__ or ""
        for parameter in inspect.signature(command.callback).parameters.values():
            for option in getattr(parameter.annotation, "__metadata__", ()):
                yield f"{name} {parameter.name}", getattr(option, "help", "") or ""
    for group in app.registered_groups:
        yield from texts_below(group.typer_instance, f"{path} {group.typer_instance.info.name}")


def test_no_help_text_has_a_placeholder_that_is_taken_for_a_tag():
    """Help is Markdown: what stands between < and > would not be shown."""
    texts = list(texts_below(main.app))
    assert len(texts) > 100
    assert [name for name, text in texts if re.search(r"<\w", text)] == []


def test_help_says_what_the_names_of_persys_are_for(capsys):
    main.run(["--help"])
    assert "made for Persys" in " ".join(capsys.readouterr().out.split())
    main.run(["agent", "--help"])
    assert "PERSYS_NODE_ID" in capsys.readouterr().out

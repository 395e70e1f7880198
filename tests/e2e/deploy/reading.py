"""Reads what is in deploy/: command lines, Dockerfiles, units, manifests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from shoal.cli.main import app

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"


class NoCommandLineError(ValueError):
    """The program would refuse it."""


def parse_command_line(arguments: Sequence[str]) -> dict[str, Any]:
    """What our own command line makes of it, without running anything. Raises `NoCommandLineError`."""
    command: Any = typer.main.get_command(app)
    context, rest = None, list(arguments)
    try:
        while hasattr(command, "resolve_command"):
            context = command.make_context(command.name, list(rest), parent=context)
            _name, command, rest = command.resolve_command(context, rest)
        parsed: dict[str, Any] = command.make_context(command.name, rest, parent=context).params
    except Exception as error:
        if not hasattr(error, "format_message"):  # Typer brings classes of its own and does not name them
            raise
        raise NoCommandLineError(f"{' '.join(arguments)}: {error.format_message()}") from error
    return parsed


def is_a_name(arguments: Sequence[str]) -> bool:
    """Whether it is only the name of a command, such as `workload stop`, and not a line to type."""
    command: Any = typer.main.get_command(app)
    for word in arguments:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
    return True


def load_yaml(path: Path) -> list[dict[str, Any]]:
    """Every document of a file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def shell_lines(script: str) -> Iterator[list[str]]:
    """The calls of `shoal` in a shell script, as words."""
    for line in script.splitlines():
        for call in re.findall(r"(?:^|\|\|\s*|&&\s*|\$ )(shoal .*)$", line.strip()):
            yield shlex.split(call, comments=True)[1:]


def remarked_script(path: Path) -> str:
    """What the remarks of a file say to type: the lines that are set in."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   "))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile."""

    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """Its arguments: of the JSON form as they are, else by the shell's rules."""
        if self.rest.startswith("["):
            words: list[str] = json.loads(self.rest)
            return words
        return shlex.split(self.rest)

    @property
    def flags(self) -> dict[str, str]:
        return dict(word[2:].partition("=")[::2] for word in self.words if word.startswith("--"))

    @property
    def plain(self) -> list[str]:
        return [word for word in self.words if not word.startswith("--")]


INSTRUCTIONS = ("FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD")
"""Those that ours has; another one is a misspelt one, or is added here together with a check."""


def read_dockerfile(path: Path) -> list[Instruction]:
    """Its instructions in order, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            assert word in INSTRUCTIONS, line
            found.append(Instruction(word, rest.strip()))
    return found


def read_unit(path: Path) -> dict[str, dict[str, str]]:
    """A systemd unit by section; each key stands once in ours."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, separator, value = line.partition("=")
            assert separator, line
            assert key not in current, f"{key} is given twice"
            current[key] = value
    return sections

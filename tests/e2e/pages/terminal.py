"""Somebody who reads a page of docs/ and types what stands there, on real processes.

A `Reader` goes through the page block by block; whatever it passes over without a reason is a failure in the end. A
`Terminal` is a shell on one machine. What is typed is what the page says, but for the places that a table names: hosts,
ports and directories that this machine does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from shoal.testing.machines import kill_machine
from tests.e2e.fleet.drill import until
from tests.e2e.pages.blocks import CONSOLE, DOCS, SCRIPT, Block, Command, blocks, commands

#: Generous, because a busy machine is not a broken one.
PATIENCE = 60.0

#: The commands that do not come back, and the lines by which they say that they serve.
SERVERS = {
    "shoal control": ("control plane ready: …",),
    "shoal agent": ("agent … ready: …", "… in contact with the control plane at …"),
}

_COMMAND_NOT_FOUND = 127
_OWN = ("SHOAL_", "PERSYS_", "GRPC_PORT", "METRICS_PORT", "OTEL_", "LOG_", "COLUMNS", "PYTHONPATH")


class Reader:
    """Goes through a page from its beginning to its end.

    Args:
        page: its name.
        not_run: blocks that are not run here and why, by language and headings.
        folder: where the page is.
    """

    def __init__(self, page: str, *, not_run: Mapping[tuple[str, ...], str], folder: Path = DOCS) -> None:
        self._page = page
        left = list(blocks(folder / page))
        stale = [key for key in not_run if key not in {_key(each) for each in left}]
        assert not stale, f"{page} has no such block any more: {stale}"
        self._left = [each for each in left if _key(each) not in not_run]

    def next(self, *headings: str, language: str = CONSOLE) -> Block:
        """The next block, which has to be the one that the test is about."""
        assert self._left, f"{self._page} has no further block, and should have one below {headings}"
        block = self._left.pop(0)
        expected = (language, *headings)
        assert _key(block) == expected, f"{self._page}: {block} ({block.language}) comes next, and not {expected}"
        return block

    def close(self) -> None:
        """Nothing is left that was not run. Raises `AssertionError` with what is."""
        names = ", ".join(f"{each} ({each.language})" for each in self._left)
        assert not self._left, f"{self._page}: not run, and nobody says why: {names}"


def _key(block: Block) -> tuple[str, ...]:
    return (CONSOLE if block.language == SCRIPT else block.language, *block.headings)


class Stage:
    """A folder with everything that a page is about, and the processes that were started for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: dict[str, Server] = {}
        programs = folder / "bin"
        programs.mkdir()
        shoal = programs / "shoal"
        shoal.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shoal "$@"\n')
        shoal.chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
        self.environment = {**kept, "PATH": f"{programs}:{os.environ['PATH']}"}

    async def end(self) -> None:
        """Leave no process behind: neither a server nor what an agent runs."""
        for server in self.servers.values():
            await server.end(signal.SIGKILL)
        for database in self.folder.rglob("agent.db"):
            await asyncio.to_thread(kill_machine, database.parent)


class Server:
    """One that was started at a terminal and goes on there."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def address(self, kind: str) -> str:
        """Where it serves, by its own words: `grpc`, `http` or `join`."""
        found = re.search(rf" ready: .*?\b{kind} ([^\s,]+)", self.said())
        assert found is not None, self.said()
        return found[1]

    async def has_said(self, line: str) -> None:
        """Wait until it has printed this. It must not end before."""

        async def holds() -> bool:
            if any(is_as_shown([line], said) for said in self.said().splitlines()):
                return True
            assert self.process.returncode is None, self.said()[-4000:]
            return False

        await until(holds, what=f"{self.log.name} says {line!r}", patience=PATIENCE)

    async def end(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal and wait for its end."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
                os.kill(self.pid, signal.SIGCONT)  # one that was stopped could not hear the first
        await self.ended()

    async def ended(self) -> int:
        """Wait for its end. Returns its exit code."""
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


class Terminal:
    """A shell on one machine. What it exports stays.

    Args:
        stage: where everything happens.
        name: whose it is.
        folder: where it stands when the first command is typed.
        instead: what is put in the place of words of the page, in commands and in answers.
        environment: what the page leaves to defaults that this machine cannot offer, such as ports.
    """

    def __init__(
        self,
        stage: Stage,
        name: str,
        folder: Path,
        *,
        instead: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.instead = dict(instead or {})
        self.environment = {**stage.environment, **(environment or {})}
        self.used: set[str] = set()
        self._stage = stage

    @property
    def server(self) -> Server:
        """The one that was started here last."""
        return self._stage.servers[self.name]

    async def run(self, block: Block) -> list[str]:
        """Type a block. Returns what each command has printed, once that is what the page shows."""
        return [await self.call(command, block) for command in commands(block)]

    async def exit_code(self, text: str, **environment: str) -> int:
        """What comes of a command that is on no page and may fail."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", text),
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        async with asyncio.timeout(PATIENCE):
            return await process.wait()

    def close(self) -> None:
        """Every word of the table was there. Raises `AssertionError` with those that were not."""
        stale = sorted(set(self.instead) - self.used)
        assert not stale, f"{self.name}: not on the page any more: {stale}"

    async def call(self, command: Command, block: Block | str) -> str:
        """Type one command; what it answers has to be what the page shows."""
        text = self._replaced(command.text)
        shown = [self._replaced(line) for line in command.shown]
        ready = next((lines for words, lines in SERVERS.items() if text.startswith(f"{words} ")), None)
        if ready is not None:
            return await self._serve(text, shown, ready)
        said = await self._run(text, block)
        if shown:
            assert is_as_shown(shown, said), "\n".join(
                [f"{block}: {text}", "the page shows:", *shown, "it says:", said]
            )
        return said

    def _replaced(self, text: str) -> str:
        """The text with the words of the table replaced, the longest first and none of them twice."""
        if not self.instead:
            return text
        words = sorted(self.instead, key=len, reverse=True)

        def replacement(found: re.Match[str]) -> str:
            self.used.add(found[0])
            return self.instead[found[0]]

        return re.sub("|".join(map(re.escape, words)), replacement, text)

    async def _run(self, text: str, block: Block | str) -> str:
        for name in re.findall(r"\$\{?([A-Z_]+)", text):
            assert name in self.environment, f"{block}: the page does not say what {name} is"
        exported = self.folder / ".exported"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", f"{text}\nenv -0 > {exported}"),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                said = (await process.communicate())[0].decode()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise AssertionError(f"{block}: {text}: no answer within {PATIENCE:.0f} s") from None
        if process.returncode == _COMMAND_NOT_FOUND and os.environ.get("CI") != "true":
            pytest.skip(f"{said.strip()} (on Debian: apt-get install openssl)")
        assert process.returncode == 0, f"{block}: {text}\nexit code {process.returncode}\n{said}"
        pairs = [each.partition("=") for each in os.fsdecode(exported.read_bytes()).split("\0") if each]
        self.environment = {name: value for name, _, value in pairs}
        return said

    async def _serve(self, text: str, shown: Sequence[str], ready: Sequence[str]) -> str:
        if former := self._stage.servers.get(self.name):
            await former.ended()  # a page that starts one twice has to say first how the other one ends
        log = self._stage.folder / f"{self.name}.log"
        log.unlink(missing_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-c", f"exec {text}"),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        server = self._stage.servers[self.name] = Server(process, log)
        for line in (*ready, *shown):
            await server.has_said(line)
        return server.said()


def is_as_shown(shown: Sequence[str], said: str) -> bool:
    """Whether a command has printed what the page shows, and nothing else.

    An ellipsis stands for anything, and a line with nothing else for any number of lines. How far columns are apart
    depends on what is in them, so one space is as good as many.
    """
    pattern = "".join(_ANYTHING if line.strip() == "…" else f"{_pattern(line)}\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{_one_space(line)}\n" for line in said.splitlines())) is not None


_ANYTHING = r"(?:.*\n)*"


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in _one_space(line).split("…"))


def _one_space(line: str) -> str:
    return " ".join(line.split())

"""What the long-running commands share: signals, the ready file, the exit.

Called by `shoal.cli.control`, `shoal.cli.agent` and `shoal.cli.up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

import typer

from shoal.cli import session
from shoal.core.errors import InvalidError, Problem
from shoal.core.files import write_atomic

log = logging.getLogger(__name__)

T = TypeVar("T")

Config = Annotated[
    str | None, typer.Option("--config", metavar="PATH", help="A TOML file with the same names; flags win over it")
]
ReadyFile = Annotated[
    str | None,
    typer.Option("--ready-file", metavar="PATH", help="Write the addresses there as JSON once it serves"),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error [info, env: LOG_LEVEL]"),
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="FORMAT", help="text or json [text, env: LOG_FORMAT]")
]
Text = str | None
"""A flag as it was typed: settings read it by their own types, so that everything wrong is reported at once."""


def load(
    settings: type[T],
    *,
    flags: Mapping[str, object | None],
    env_names: Mapping[str, Sequence[str]],
    config: str | None,
    log_level: Callable[[T], str | None] | str | None,
    log_format: str | None,
    flag_names: Mapping[str, str] | None = None,
) -> T:
    """Read the settings of a process and set up its log lines. Raises `InvalidError` with everything that is wrong.

    A level that is one of the settings is taken out of them.
    """
    from shoal.core.config import load_settings
    from shoal.core.telemetry import setup_logging

    problems: list[Problem] = []
    loaded: T | None = None
    hint = ""
    try:
        loaded = load_settings(
            settings, flags=flags, env=os.environ, env_names=env_names, file=config, flag_names=flag_names
        )
    except InvalidError as error:
        problems.extend(error.problems)
        hint = error.hint
    try:
        level = (log_level(loaded) if loaded is not None else None) if callable(log_level) else log_level
        setup_logging(level=level, style=log_format)
    except InvalidError as error:
        problems.extend(error.problems)
    if problems or loaded is None:
        raise InvalidError(problems, hint=hint)
    return loaded


def warn_if_insecure(insecure: bool, address: str) -> None:
    """Say what `--insecure` means, each time it is used."""
    if insecure:
        log.warning("--insecure: nothing is encrypted, and whoever can connect to %s may do everything", address)


def run_until_told(work: Callable[[asyncio.Event], Awaitable[None]], *, service: str) -> None:
    """Run a server on a loop of its own. SIGTERM or SIGINT asks it to end; a second SIGINT does not ask.

    Its traces, if the environment names somebody who wants them, bear the name of the service.
    """
    from shoal.core.tracing import exporting

    async def main() -> None:
        stop = asyncio.Event()
        with stopping_on_signals(stop):
            await work(stop)

    with exporting(service):
        session.surroundings.get(session.Surroundings()).run(main())


@contextlib.contextmanager
def stopping_on_signals(stop: asyncio.Event, *, second: Callable[[], None] | None = None) -> Iterator[None]:
    """Set `stop` on SIGTERM, SIGINT or SIGHUP; what a second SIGINT does is given, or ends the process at once."""
    loop = asyncio.get_running_loop()

    def told(number: int) -> None:
        if not stop.is_set():
            stop.set()
        elif number == signal.SIGINT:
            if second is not None:
                second()
            else:
                os._exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, told, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def write_ready_file(path: str | None, facts: Mapping[str, object]) -> None:
    """Tell whoever started this process where it serves. The file appears whole or not at all."""
    if path is not None:
        write_atomic(path, json.dumps({"pid": os.getpid(), **facts}, indent=2).encode())

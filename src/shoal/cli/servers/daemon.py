"""What the long-running commands share: settings, signals and the ready file.

Called by `shoal.cli.servers.control`, `shoal.cli.servers.agent` and `shoal.cli.local.up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shoal.cli.connection import session
from shoal.core.errors import InvalidError, Problem
from shoal.core.files import write_atomic
from shoal.wire.addresses import Address, parse_address
from shoal.wire.trust.access import FILES

log = logging.getLogger(__name__)

T = TypeVar("T")

_WRITES_OF_OTHERS = 0o022

EVERY_HOST = "0.0.0.0"  # noqa: S104 - how it is shown; binds nothing


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line: text and flags, not checked yet."""

    flags: Mapping[str, object | None]
    config: str | None = None
    log_format: str | None = None
    ready_file: str | None = None


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

    The log level may be one of the settings.
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
        given = {
            name: (flags.get(name), names)
            for name, names in env_names.items()
            if name in FILES and (flags.get(name) is not None or any(os.environ.get(each) for each in names))
        }
        named, where = session.naming_certificates(error.problems, given)
        problems.extend(named)
        hint = where or error.hint
    try:
        level = (log_level(loaded) if loaded is not None else None) if callable(log_level) else log_level
        setup_logging(level=level, style=log_format)
    except InvalidError as error:
        problems.extend(error.problems)
    if problems or loaded is None:
        raise InvalidError(problems, hint=hint)
    return loaded


def bound(listening: str | None, served: str) -> str:
    """Where a server listens, as shown to people. `served` is how this machine reaches it: 127.0.0.1 for a wildcard.

    Args:
        listening: what it was told to listen at; the port may be 0.
        served: what it serves at; empty where it does not.
    """
    if not served or not listening:
        return served
    where = parse_address(listening, listening=True)
    if not where.is_wildcard:
        return served
    return str(Address(where.host or EVERY_HOST, parse_address(served).port))


def warn_if_insecure(insecure: bool, address: str) -> None:
    """Warn what `--insecure` means, once it is known where the server listens."""
    if not insecure:
        return
    if not address:
        who = "poses as the control plane"
    else:
        where = parse_address(address)
        everywhere = f" (every interface, port {where.port})" if where.is_wildcard else ""
        who = f"can connect to {address}{everywhere}"
    log.warning("--insecure: nothing is encrypted, and anyone who %s may do everything", who)


def run_until_told(work: Callable[[asyncio.Event], Awaitable[None]], *, service: str) -> None:
    """Run a server on an event loop. SIGTERM or SIGINT stops it gracefully, a second SIGINT at once.

    Traces carry the name of the service, if the environment names a collector.
    """
    from shoal.core.tracing import exporting

    if session.owns_process():
        # Files that others could write to could mislead us, and the caller may not have set a umask.
        os.umask(os.umask(_WRITES_OF_OTHERS) | _WRITES_OF_OTHERS)

    async def main() -> None:
        stop = asyncio.Event()
        with stopping_on_signals(stop):
            await work(stop)

    with exporting(service):
        session.surroundings.get(session.Surroundings()).run(main())


@contextlib.contextmanager
def stopping_on_signals(stop: asyncio.Event, *, second: Callable[[], None] | None = None) -> Iterator[None]:
    """Set `stop` on SIGTERM, SIGINT or SIGHUP. A second SIGINT calls `second`, or ends the process at once."""
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
    """Write where this process serves. The file appears whole or not at all."""
    if path is not None:
        write_atomic(path, json.dumps({"pid": os.getpid(), **facts}, indent=2).encode())

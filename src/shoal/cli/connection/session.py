"""One run of a client command: the address of the control plane, the certificates, and the event loop.

Called by `shoal.cli.connection.options.client_command` and `shoal.cli.connection.completion`; calls `shoal.client`.
"""

from __future__ import annotations

import contextvars
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.cli.connection.profile import FILE, FOLDER, find_profile
from shoal.core.errors import DeadlineError, InvalidError, Problem, ShoalError, UnsupportedError, problem
from shoal.wire.addresses import parse_address
from shoal.wire.trust.access import FILES, TOGETHER, Access, together

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.core.clock import Clock
    from shoal.discovery.store import CoordinationStore
    from shoal.wire.transport import Transport

T = TypeVar("T")

DEFAULT_CONTROL = "127.0.0.1:8085"
DEFAULT_PORT = 8085

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""

_PORT = re.compile(r":[0-9]+$")


def _grpc(access: Access) -> Transport:
    from shoal.wire.sockets.channel import GrpcTransport

    return GrpcTransport(security=access.security())


def _zookeeper(servers: str) -> CoordinationStore:
    try:
        from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore, auth_from
    except ModuleNotFoundError:
        raise UnsupportedError(
            "ZooKeeper needs the package kazoo", hint="`pip install 'shoal[zookeeper]'` installs it"
        ) from None
    return ZookeeperStore(ZookeeperSettings(servers, auth=auth_from(os.environ)))


def _system_clock() -> Clock:
    from shoal.core.clock import SystemClock

    return SystemClock()


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    return asyncio.run(work)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a command runs on. Tests replace the network by one within the process, and the event loop by their own."""

    make_transport: Callable[[Access], Transport] = _grpc
    make_clock: Callable[[], Clock] = _system_clock
    run: Callable[[Coroutine[Any, Any, Any]], Any] = _run
    #: A coordination tree, by the servers of ZooKeeper.
    make_tree: Callable[[str], CoordinationStore] = _zookeeper
    #: Whether this process does nothing else, so that a server may change its umask.
    owns_process: bool = False


surroundings: contextvars.ContextVar[Surroundings] = contextvars.ContextVar("surroundings")


def owns_process() -> bool:
    """Whether this process only runs this command line."""
    return surroundings.get(Surroundings()).owns_process


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection options as they were given; None where nothing was."""

    addresses: str | None = None
    insecure: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def resolved(self) -> tuple[tuple[str, ...], Access]:
        """The addresses and the certificates. Raises `InvalidError` with everything that is wrong.

        Without security options the profile of `shoal up` counts, from this folder or one above it.
        """
        access = Access(self.ca or "", self.cert or "", self.key or "", self.insecure)
        addresses = self.addresses
        if not access.is_given:
            profile = find_profile()
            if profile is not None:
                access = Access(profile.ca, profile.cert, profile.key)
                addresses = addresses or profile.control
        problems = [
            replace(each, field=f"--{each.field}")
            for each in access.problems(otherwise="commands need a certificate of role operator")
        ]
        for name in FILES:
            path = getattr(access, name)
            if path and not access.insecure and not Path(path).is_file():
                problems.append(problem(f"--{name}", path, "must be a file"))
        found: tuple[str, ...] = ()
        try:
            found = read_addresses(addresses or DEFAULT_CONTROL)
        except InvalidError as error:
            problems = [*error.problems, *problems]
        if problems:
            hint = "" if access.is_given else f"in the folder of `shoal up`, and below it, {FOLDER}/{FILE} has them"
            problems, where = naming_certificates(problems, _inherited(access))
            raise InvalidError(problems, hint=where or hint)
        return found, access


def _inherited(access: Access) -> dict[str, tuple[object | None, Sequence[str]]]:
    """The certificates that were given, and the variables they may come from."""
    found: dict[str, tuple[object | None, Sequence[str]]] = {}
    for name in FILES:
        path, variable = getattr(access, name), f"SHOAL_{name.upper()}"
        if path:
            found[name] = (None if os.environ.get(variable) == path else path, (variable,))
    return found


def naming_certificates(
    problems: Sequence[Problem], given: Mapping[str, tuple[object | None, Sequence[str]]]
) -> tuple[list[Problem], str]:
    """Name the flags and variables, where `insecure` and certificates contradict each other.

    Args:
        problems: what is wrong.
        given: by setting, what was typed if that is known, and the variables that may have set it.

    Returns:
        the problems, and a hint: the environment is not visible in a command.
    """
    typed, inherited = [], []
    for name, (flag, variables) in given.items():
        variable = next((each for each in variables if os.environ.get(each)), None)
        if flag is None and variable is not None:
            inherited.append(variable)
        else:
            typed.append(f"--{name}")
    if not typed and not inherited:
        return list(problems), ""
    words = [*typed, *([f"from the environment {', '.join(inherited)}"] if inherited else [])]
    contradicts = [each.rule.startswith(TOGETHER) for each in problems]
    named = [
        replace(each, rule=together(words)) if found else each
        for each, found in zip(problems, contradicts, strict=True)
    ]
    hint = f"`unset {' '.join(inherited)}`, or leave --insecure out" if any(contradicts) and inherited else ""
    return named, hint


def read_addresses(text: str) -> tuple[str, ...]:
    """Read `HOST:PORT[,…]`; a host alone gets the default port."""
    problems: list[Problem] = []
    addresses: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        full = f"{part}:{DEFAULT_PORT}" if part and not _PORT.search(part) else part
        try:
            addresses.append(str(parse_address(full, field="--control")))
        except InvalidError:
            problems.append(problem("--control", part, "must be HOST:PORT, such as 127.0.0.1:8085"))
    if problems:
        raise InvalidError(problems)
    return tuple(dict.fromkeys(addresses))


def call(connection: Connection, work: Callable[[ControlPlane], Awaitable[T]]) -> T:
    """Open a client, do the work with it on an event loop, and close it."""
    addresses, access = connection.resolved()
    around = surroundings.get(Surroundings())

    async def session() -> T:
        from shoal.client import ControlPlane

        async with ControlPlane(addresses, around.make_transport(access), clock=around.make_clock()) as control:
            return await work(control)

    result: T = around.run(session())
    return result


def clock() -> Clock:
    """The clock of commands."""
    return surroundings.get(Surroundings()).make_clock()


def exit_code_of(error: ShoalError) -> int:
    """The exit code for an error: 2 for bad input, 4 for a timeout, 1 for everything else."""
    if isinstance(error, InvalidError):
        return 2
    return 4 if isinstance(error, DeadlineError) else 1

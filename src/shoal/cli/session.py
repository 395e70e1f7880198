"""One run of a client command: where the control plane is, how it may be talked to, and the loop it all runs on.

Called by `shoal.cli.options.client_command` and `shoal.cli.completion`; calls `shoal.client`.
"""

from __future__ import annotations

import contextvars
import ipaddress
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.core.errors import DeadlineError, InvalidError, Problem, ShoalError, UnsupportedError, problem
from shoal.wire.addresses import parse_address

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.core.clock import Clock
    from shoal.wire.transport import Transport

T = TypeVar("T")

DEFAULT_CONTROL = "127.0.0.1:8085"
DEFAULT_PORT = 8085

_PORT = re.compile(r":[0-9]+$")


def _grpc() -> Transport:
    from shoal.wire.channel import GrpcTransport

    return GrpcTransport()


def _system_clock() -> Clock:
    from shoal.core.clock import SystemClock

    return SystemClock()


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    return asyncio.run(work)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a command stands on. Tests put the network within the process, and their own loop under it."""

    make_transport: Callable[[], Transport] = _grpc
    make_clock: Callable[[], Clock] = _system_clock
    run: Callable[[Coroutine[Any, Any, Any]], Any] = _run


surroundings: contextvars.ContextVar[Surroundings] = contextvars.ContextVar("surroundings")


@dataclass(frozen=True, slots=True)
class Access:
    """The connection options as they were given."""

    addresses: str = DEFAULT_CONTROL
    insecure: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def checked(self) -> tuple[str, ...]:
        """The addresses, once everything that was given makes sense. Raises `InvalidError` or `UnsupportedError`."""
        addresses = read_addresses(self.addresses)
        given = {name: path for name in ("ca", "cert", "key") if (path := getattr(self, name)) is not None}
        missing = [problem(f"--{name}", path, "must be a file") for name, path in given.items() if not _exists(path)]
        if missing:
            raise InvalidError(missing)
        if given:
            raise UnsupportedError(
                "this version cannot use certificates yet",
                hint="leave out --ca, --cert and --key, and give --insecure if the network can be trusted",
            )
        far = [address for address in addresses if not _is_loopback(address)]
        if far and not self.insecure:
            raise InvalidError(
                [problem("--control", far[0], "is not on this machine, and nothing says how to talk to it")],
                hint="give --insecure to talk without encryption; certificates are not supported by this version yet",
            )
        return addresses


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


def call(access: Access, work: Callable[[ControlPlane], Awaitable[T]]) -> T:
    """Open a client, do the work with it on a loop of its own, and close it."""
    addresses = access.checked()
    around = surroundings.get(Surroundings())

    async def session() -> T:
        from shoal.client import ControlPlane

        async with ControlPlane(addresses, around.make_transport(), clock=around.make_clock()) as control:
            return await work(control)

    result: T = around.run(session())
    return result


def clock() -> Clock:
    """The clock that commands read."""
    return surroundings.get(Surroundings()).make_clock()


def exit_code_of(error: ShoalError) -> int:
    """What a script sees of an error: 2 for bad input, 4 for lack of time, 1 for everything else."""
    if isinstance(error, InvalidError):
        return 2
    return 4 if isinstance(error, DeadlineError) else 1


def _is_loopback(address: str) -> bool:
    host = parse_address(address).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _exists(path: str) -> bool:
    return Path(path).is_file()

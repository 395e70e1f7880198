"""What makes container engines refuse something, and what each of them says then.

`Provocation`s are run on a real engine: `test_container_failures` has Podman's, tests/long Docker's.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal.model.workloads import FailureReason
from shoal.runtimes.container.engine.api import EngineApi, EngineError
from shoal.runtimes.container.failures import CAUSES, PULL, START, judge_pull, judge_start
from tests.e2e.runtimes.containers import random_layer
from tests.services.engine import IMAGE, root_file_system
from tests.services.registry import Registry

#: The engine's own defaults are refused in sandboxes.
ULIMITS = [{"Name": name, "Soft": 1024, "Hard": 1024} for name in ("nofile", "nproc")]
#: Of the disk of the engines; an image of this size does not fit.
DISK, TOO_LARGE = "48m", 64 << 20

root_layer = functools.cache(root_file_system)


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """An engine with a small disk, and a registry."""

    name: str
    api: EngineApi
    folder: Path
    registry: Registry

    @property
    def image(self) -> str:
        """An image of the registry that the engine does not have."""
        return self.registry.add("pulled", "1", root_layer(), {"Cmd": ["sh"]})

    async def pull(self, image: str) -> None:
        login = self.registry.login
        auth = {"username": "reader", "password": "wrong", "serveraddress": image.partition("/")[0]} if login else None
        async for _ in self.api.pull(image, auth=auth):
            pass

    async def start(self, **fields: Any) -> None:
        async with self.started(**fields):
            pass

    @contextlib.asynccontextmanager
    async def started(self, **fields: Any) -> AsyncIterator[None]:
        host = {"Ulimits": ULIMITS, **fields.pop("HostConfig", {})}
        body = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": host, **fields}
        container = await self.api.create("", body)
        try:
            await self.api.start(container)
            yield
        finally:
            await self.api.remove(container)


@dataclass(frozen=True, slots=True)
class Provocation:
    """One way to be refused."""

    name: str
    work: Callable[[Ground], Awaitable[None]]
    failure: FailureReason
    transient: bool = False
    is_pull: bool = False
    #: The pattern of the table that the sentence of an engine matches, by the name of the engine.
    says: Mapping[str, str] = field(default_factory=dict)
    #: Podman's cause, where it decides.
    cause: str = ""
    #: An engine tries it several times, with pauses.
    is_slow: bool = False


def _both(pattern: str) -> dict[str, str]:
    return {"podman": pattern, "docker": pattern}


def _port(number: int) -> dict[str, Any]:
    bindings = {"80/tcp": [{"HostIp": "", "HostPort": str(number)}]}
    return {"ExposedPorts": {"80/tcp": {}}, "HostConfig": {"PortBindings": bindings}}


async def _without_login(ground: Ground) -> None:
    image, ground.registry.login = ground.image, "reader:right"
    try:
        async for _ in ground.api.pull(image):
            pass
    finally:
        ground.registry.login = ""


async def _wrong_login(ground: Ground) -> None:
    image, ground.registry.login = ground.image, "reader:right"
    try:
        await ground.pull(image)
    finally:
        ground.registry.login = ""


async def _closed(ground: Ground) -> None:
    image, ground.registry.closed = ground.image, True
    try:
        await ground.pull(image)
    finally:
        ground.registry.closed = False


def _broken(status: int, below: str = "") -> Callable[[Ground], Awaitable[None]]:
    async def pull(ground: Ground) -> None:
        image, ground.registry.broken_with, ground.registry.broken_below = ground.image, status, below
        try:
            await ground.pull(image)
        finally:
            ground.registry.broken_with, ground.registry.broken_below = 0, ""

    return pull


@contextlib.contextmanager
def _serve(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does this to each of its connections and closes it, until the end of the block: its port."""

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = server.accept()
                with link, contextlib.suppress(OSError):
                    answer(link)

    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def _answering(answer: Callable[[socket.socket], None]) -> Callable[[Ground], Awaitable[None]]:
    """Pull from a server that does this to each of its connections."""

    async def pull(ground: Ground) -> None:
        with _serve(answer) as port:
            await ground.pull(f"127.0.0.1:{port}/any:1")

    return pull


def _reset(link: socket.socket) -> None:
    link.recv(1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _hang_up(link: socket.socket) -> None:
    link.recv(1 << 16)


async def _too_large(ground: Ground) -> None:
    await ground.pull(ground.registry.add("large", "1", random_layer(TOO_LARGE), {"Cmd": ["sh"]}))


async def _full(ground: Ground) -> None:
    filling = ground.folder / "filling"
    try:
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        await ground.start()
    finally:
        filling.unlink()


async def _port_of_a_process(ground: Ground) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        await ground.start(**_port(taken.getsockname()[1]))


async def _address_of_nobody(ground: Ground) -> None:
    fields = _port(8080)
    fields["HostConfig"]["PortBindings"]["80/tcp"][0]["HostIp"] = "192.0.2.1"  # of no machine: for documents
    await ground.start(**fields)


async def _port_of_a_container(ground: Ground) -> None:
    with socket.socket() as free:
        free.bind(("", 0))
        number = free.getsockname()[1]
    async with ground.started(**_port(number)):
        await ground.start(**_port(number))


_SPEC, _NETWORK, _STORAGE = FailureReason.INVALID_SPEC, FailureReason.NETWORK_ERROR, FailureReason.STORAGE_ERROR
_MISSING, _PULL = FailureReason.IMAGE_NOT_FOUND, FailureReason.IMAGE_PULL_FAILED
_ONE_MB = {"Memory": 1 << 20, "MemorySwap": 1 << 20}


def away(
    name: str, work: Callable[[Ground], Awaitable[None]], says: Mapping[str, str], *, is_slow: bool = False
) -> Provocation:
    """A registry that may be there later."""
    return Provocation(name, work, _PULL, transient=True, is_pull=True, says=says, is_slow=is_slow)


PROVOCATIONS = (
    Provocation("no name", lambda it: it.pull("NO NAME"), _SPEC, is_pull=True, says=_both(r"invalid reference format")),
    Provocation(
        "no tag",
        lambda it: it.pull(it.image.replace(":1", ":2")),
        _MISSING,
        is_pull=True,
        says=_both(r"manifest unknown"),
    ),
    Provocation(
        "no repository",
        lambda it: it.pull(it.image.replace("pulled", "other")),
        _MISSING,
        is_pull=True,
        says=_both(r"name unknown"),
    ),
    Provocation(
        "no login",
        _without_login,
        _PULL,
        is_pull=True,
        says={"podman": r"unauthorized", "docker": r"no basic auth credentials"},
    ),
    Provocation("wrong login", _wrong_login, _PULL, is_pull=True, says=_both(r"unauthorized")),
    Provocation("no access", _closed, _PULL, is_pull=True, says=_both(r"(?<!permission )denied\b")),
    away("no registry", lambda it: it.pull("127.0.0.1:1/any:1"), _both(r"connection refused")),
    # Too long for a name: no resolver asks the network for it.
    away("no such host", lambda it: it.pull(f"{'a' * 64}.invalid/any:1"), _both(r"no such host")),
    away("reset", _answering(_reset), _both(r"connection reset by peer"), is_slow=True),
    away("hung up", _answering(_hang_up), _both(r'/": EOF$'), is_slow=True),
    away(
        "broken registry",
        _broken(503),
        {
            "podman": r"invalid status code from registry 5\d\d",
            "docker": r"received unexpected HTTP status: 5\d\d",
        },
    ),
    away("broken manifest", _broken(500, "/manifests/"), _both(r"received unexpected HTTP status: 5\d\d")),
    away("busy registry", _broken(429), {"podman": r"too many requests to registry", "docker": r"toomanyrequests: "}),
    Provocation(
        "large image", _too_large, _STORAGE, transient=True, is_pull=True, says=_both(r"no space left on device")
    ),
    Provocation(
        "full disk",
        _full,
        _STORAGE,
        transient=True,
        says=_both(r"no space left on device"),
        cause="no space left on device",
    ),
    Provocation(
        "no image",
        lambda it: it.start(Image="localhost/nothing:1"),
        _MISSING,
        says={"docker": r"No such image"},
        cause="image not known",
    ),
    Provocation("no image name", lambda it: it.start(Image="NO NAME"), _SPEC, says=_both(r"invalid reference format")),
    Provocation(
        "taken port",
        _port_of_a_process,
        _NETWORK,
        transient=True,
        says=_both(r"address already in use"),
        cause="address already in use",
    ),
    Provocation(
        "port of a container",
        _port_of_a_container,
        _NETWORK,
        transient=True,
        says={"podman": r"address already in use", "docker": r"port is already allocated"},
        cause="address already in use",
    ),
    Provocation(
        "no such address",
        _address_of_nobody,
        _NETWORK,
        transient=True,
        says=_both(r"cannot assign requested address"),
        cause="cannot assign requested address",
    ),
    Provocation(
        "no program",
        lambda it: it.start(Cmd=["/nowhere/program"]),
        _SPEC,
        says=_both(r"exec: .*no such file or directory"),
        cause="OCI runtime attempted to invoke a command that was not found",
    ),
    Provocation(
        "no program in the path",
        lambda it: it.start(Cmd=["nowhere"]),
        _SPEC,
        says=_both(r"exec: .*executable file not found"),
        cause="OCI runtime attempted to invoke a command that was not found",
    ),
    Provocation(
        "not a program",
        lambda it: it.start(Cmd=["/etc/passwd"]),
        _SPEC,
        says=_both(r"exec: .*permission denied"),
        cause="OCI permission denied",
    ),
    Provocation(
        "no user",
        lambda it: it.start(User="stranger"),
        _SPEC,
        says=_both(r"unable to find (user|group) "),
        cause="no matching entries in passwd file",
    ),
    Provocation(
        "no group",
        lambda it: it.start(User="root:strangers"),
        _SPEC,
        says=_both(r"unable to find (user|group) "),
        cause="no matching entries in group file",
    ),
    Provocation(
        "little memory",
        lambda it: it.start(HostConfig=_ONE_MB),
        _SPEC,
        says={"podman": r"unable to set memory limit to", "docker": r"Minimum memory limit allowed is"},
    ),
    Provocation(
        "no command",
        lambda it: it.start(Cmd=[]),
        _SPEC,
        says={"podman": r"no command or entrypoint provided", "docker": r"No command specified"},
    ),
    Provocation(
        "two mounts in one place",
        lambda it: it.start(HostConfig={"Binds": ["/var/tmp:/a", "/var/lib:/a"]}),
        _SPEC,
        says=_both(r"[Dd]uplicate mount (destination|point)"),
    ),
    Provocation("no signal", lambda it: it.start(StopSignal="SIGNONE"), _SPEC, says=_both(r"[Ii]nvalid signal: ")),
    Provocation(
        "relative directory",
        lambda it: it.start(WorkingDir="etc"),
        _SPEC,
        says=_both(r"(needs to|must) be an absolute path"),
    ),
    Provocation(
        "no directory",
        lambda it: it.start(WorkingDir="/etc/passwd"),
        _SPEC,
        says=_both(r"/\S* is not a directory|but is not a directory"),
    ),
    Provocation(
        "file in place of a directory",
        lambda it: it.start(HostConfig={"Binds": ["/etc/hostname:/etc"]}),
        _SPEC,
        says=_both(r"error mounting .*: not a directory"),
    ),
    Provocation(
        "no limit",
        lambda it: it.start(HostConfig={"Ulimits": [{"Name": "nonsense", "Soft": 1, "Hard": 1}]}),
        _SPEC,
        says={"podman": r"ulimit option .* failed to be parsed", "docker": r"wrong rlimit value"},
    ),
)


async def silent(ground: Ground) -> None:
    """Pull from a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        await ground.pull(f"127.0.0.1:{server.getsockname()[1]}/any:1")


async def unreachable(ground: Ground) -> None:
    """Pull from a server to which no connection comes about: its queue is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        await ground.pull(f"127.0.0.1:{server.getsockname()[1]}/any:1")


class EngineFailures:
    """The tests of one engine, which a subclass names and provides as the fixture `ground`."""

    engine_name = ""
    #: What only this engine refuses.
    more: tuple[Provocation, ...] = ()

    @pytest.mark.parametrize(
        "provoked",
        [pytest.param(each, id=each.name, marks=[pytest.mark.long] if each.is_slow else []) for each in PROVOCATIONS],
    )
    async def test_a_refusal_is_known(self, ground: Ground, provoked: Provocation) -> None:
        await check_refusal(ground, provoked)

    def test_no_sentence_is_from_memory(self) -> None:
        for table, is_pull in ((PULL, True), (START, False)):
            known = {each.pattern for each in table if self.engine_name in each.engines}
            provoked = [each for each in (*PROVOCATIONS, *self.more) if each.is_pull is is_pull]
            assert known == {each.says.get(self.engine_name) for each in provoked} - {None}

    def test_no_cause_is_from_memory(self) -> None:
        assert CAUSES.keys() == {each.cause for each in PROVOCATIONS} - {""}


async def check_refusal(ground: Ground, provoked: Provocation) -> None:
    """Provoke a refusal, and check what it is taken for."""
    with pytest.raises(EngineError) as raised:
        await provoked.work(ground)
    error = raised.value
    verdict = judge_pull(error) if provoked.is_pull else judge_start(error)
    assert (verdict.failure, verdict.transient) == (provoked.failure, provoked.transient), repr(error)
    assert re.search(provoked.says.get(ground.name, ""), error.message), error.message
    if provoked.cause and ground.name == "podman":
        assert error.cause == provoked.cause

"""A container engine that runs nothing: the part of the Docker Engine API that the runtimes use, on a unix socket.

For what a real engine does only rarely: it hangs at one call, refuses to remove one container, loses an answer, pulls
without progress, is replaced by another engine at the same address. `Fault`s say which calls go wrong and how. Its
containers outlive its restarts. `tests/e2e/runtimes/test_fake_engine.py` asks it and a real Podman the same questions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_ZERO_TIME = "0001-01-01T00:00:00Z"
_SOME_TIME = "2026-01-01T00:00:00.5Z"
_REASONS = {200: "OK", 201: "Created", 204: "No Content"}


@dataclass(slots=True)
class Fault:
    """What goes wrong with calls whose `METHOD /path` matches a pattern."""

    pattern: str
    #: Answer with this status and these words, and do nothing.
    status: int = 0
    message: str = "the fake engine refuses"
    #: Never answer: before anything is done, or (`after`) when it is done.
    hangs: bool = False
    #: Close the connection without an answer, in the same way.
    hangs_up: bool = False
    after: bool = False
    #: How many times; None: always.
    times: int | None = None

    def applies(self, call: str) -> bool:
        """Whether it is this call's turn."""
        if self.times == 0 or not re.search(self.pattern, call):
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(frozen=True, slots=True)
class FakePull:
    """How the pull of an image goes: these steps, then success, an error, or nothing more."""

    steps: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    hangs: bool = False


@dataclass(slots=True)
class FakeContainer:
    """One container."""

    id: str
    name: str
    body: Mapping[str, Any]
    #: created, running or exited.
    state: str = "created"
    exit_code: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def labels(self) -> dict[str, str]:
        """As they were given."""
        return dict(self.body.get("Labels") or {})

    def end(self, code: int = 0) -> None:
        """Its process ends."""
        if self.state == "running":
            self.state, self.exit_code = "exited", code
            self.over.set()


class _NoAnswerError(Exception):
    """The connection is closed without one."""


class FakeEngine:
    """One engine with its containers."""

    def __init__(self, path: Path, *, identity: str = "fake-1", ignores: tuple[str, ...] = ()) -> None:
        """`ignores` are signals that its processes do not react to."""
        self.address = f"unix://{path}"
        self.identity = identity
        self.images = {"test:1"}
        self.pulls: dict[str, FakePull] = {}
        self.containers: dict[str, FakeContainer] = {}
        #: The process id that it tells of every container that runs.
        self.pid = 0
        self.faults: list[Fault] = []
        #: Every call, as `METHOD /path`.
        self.calls: list[str] = []
        #: Pulls that are going on now.
        self.pulling = 0
        self._path = path
        self._ignores = ignores
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._conversations: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self._changed = asyncio.Event()

    async def __aenter__(self) -> FakeEngine:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen, also again after `close`."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        """Be gone, as a killed engine is: containers go on."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._path.unlink(missing_ok=True)
            talking = [task for task in self._conversations.values() if task is not None]
            for task in talking:
                task.cancel()
            if talking:
                await asyncio.wait(talking)

    def end(self, name: str, code: int = 0) -> None:
        """The process of a container ends by itself."""
        self._find(name).end(code)
        self._tell()

    def running(self) -> list[str]:
        """The names of all containers that run."""
        return sorted(each.name for each in self.containers.values() if each.state == "running")

    # --- connections --------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._conversations[writer] = asyncio.current_task()
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode().split("\r\n")
                method, target, _ = line.split(" ")
                sizes = [each.partition(":")[2] for each in fields if each.lower().startswith("content-length:")]
                body = await reader.readexactly(int(sizes[0])) if sizes else b""
                await self._take(method, target, body, reader, writer)
        except (_NoAnswerError, asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass  # canceled by `close` alone
        finally:
            del self._conversations[writer]
            writer.transport.abort()

    async def _take(
        self, method: str, target: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parts = urlsplit(target)
        path = unquote(re.sub(r"^/v[\d.]+", "", parts.path))
        params = {name: values[0] for name, values in parse_qs(parts.query).items()}
        call = f"{method} {path}"
        self.calls.append(call)
        fault = next((each for each in self.faults if each.applies(call)), Fault(""))
        await _go_wrong(fault, is_after=False)
        if fault.status:
            _send(writer, fault.status, {"message": fault.message})
        elif path == "/events":
            await self._stream(writer, reader, self._events())
        elif path == "/images/create":
            await self._stream(writer, reader, self._pull(params.get("fromImage", "")))
        elif found := re.fullmatch(r"/containers/([^/]+)/logs", path):
            await self._stream(writer, reader, self._logs(self._find(found[1])))
        else:
            answer = self._answer(method, path, params, json.loads(body or b"null"))
            await _go_wrong(fault, is_after=True)
            _send(writer, *answer)

    async def _stream(
        self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, pieces: AsyncIterator[bytes]
    ) -> None:
        """Send pieces until they end, or the other end has gone."""
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")

        async def send() -> None:
            async for piece in pieces:
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            writer.write(b"0\r\n\r\n")

        sending = asyncio.ensure_future(send())  # noqa: TID251
        gone = asyncio.ensure_future(reader.read(1))  # noqa: TID251
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.wait({sending, gone})
        raise _NoAnswerError  # one stream per connection

    # --- what it knows ------------------------------------------------------------------------------------

    def _answer(self, method: str, path: str, params: Mapping[str, str], body: Any) -> tuple[int, Any]:
        if path == "/_ping":
            return 200, "OK"
        if path == "/info":
            return 200, {"ID": self.identity, "DockerRootDir": f"/fake/{self.identity}", "Name": "fake"}
        if found := re.fullmatch(r"/(?:libpod/)?images/(.+)/json", path):
            known = found[1] in self.images
            return (200, {"Id": found[1], "Config": {}}) if known else (404, {"message": "no such image"})
        if path == "/containers/json":
            return 200, [_summary(each) for each in self._chosen(params)]
        if path == "/containers/create":
            return self._create(params["name"], body)
        found = re.fullmatch(r"/containers/([^/]+)(?:/(json|start|kill|wait))?", path)
        container = None if found is None else self._known(found[1])
        if found is None or container is None:
            return 404, {"message": f"no such object: {path}"}
        return self._about(container, f"{method} {found[2] or ''}".strip(), params)

    def _about(self, container: FakeContainer, call: str, params: Mapping[str, str]) -> tuple[int, Any]:
        if call == "GET json":
            return 200, _details(container, self.pid)
        if call == "POST start":
            if container.state == "running":
                return 304, None
            container.state = "running"
        elif call == "POST kill":
            if container.state != "running":
                return 409, {"message": f"container {container.id} is not running"}
            if params["signal"] not in self._ignores:
                container.end(137 if params["signal"] == "SIGKILL" else 143)
        elif call == "DELETE":
            container.end(137)
            del self.containers[container.id]
        self._tell()
        return 204, None

    def _create(self, name: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if body.get("Image") not in self.images:
            return 404, {"message": f"no such image: {body.get('Image')}"}
        if name and self._known(name) is not None:
            return 409, {"message": f"the name {name} is in use"}
        made = FakeContainer(f"{next(self._numbers):064x}", name, body)
        self.containers[made.id] = made
        return 201, {"Id": made.id, "Warnings": []}

    def _chosen(self, params: Mapping[str, str]) -> list[FakeContainer]:
        wanted = json.loads(params.get("filters", "{}")).get("label", [])
        return [
            each
            for each in self.containers.values()
            if all(f"{name}={each.labels.get(name)}" == label for label in wanted for name in [label.partition("=")[0]])
        ]

    def _known(self, name: str) -> FakeContainer | None:
        return next((each for each in self.containers.values() if name in (each.id, each.name)), None)

    def _find(self, name: str) -> FakeContainer:
        found = self._known(name)
        if found is None:
            raise _NoAnswerError
        return found

    async def _events(self) -> AsyncIterator[bytes]:
        while True:
            await self._changed.wait()
            yield b'{"Type": "container", "Action": "die"}\n'

    async def _pull(self, image: str) -> AsyncIterator[bytes]:
        pull = self.pulls.get(image, FakePull(error="manifest unknown"))
        self.pulling += 1
        try:
            for step in pull.steps:
                yield json.dumps(step).encode() + b"\n"
            if pull.hangs:
                await asyncio.Event().wait()
            if pull.error:
                yield json.dumps({"error": pull.error}).encode() + b"\n"
            else:
                self.images.add(image)
        finally:
            self.pulling -= 1

    async def _logs(self, container: FakeContainer) -> AsyncIterator[bytes]:
        text = f"{_SOME_TIME} hello\n".encode()
        yield struct.pack(">BxxxL", 1, len(text)) + text
        if container.state == "running":
            await container.over.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _send(writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
    body = b"" if answer is None else json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _go_wrong(fault: Fault, *, is_after: bool) -> None:
    if fault.after is is_after:
        if fault.hangs:
            await asyncio.Event().wait()
        if fault.hangs_up:
            raise _NoAnswerError


def _summary(container: FakeContainer) -> dict[str, Any]:
    return {
        "Id": container.id,
        "Names": [f"/{container.name}"],
        "Labels": container.labels,
        "State": container.state,
        "Image": container.body.get("Image"),
    }


def _details(container: FakeContainer, pid: int) -> dict[str, Any]:
    is_running = container.state == "running"
    return {
        "Id": container.id,
        "Name": f"/{container.name}",
        "Image": container.body.get("Image"),
        "Config": {"Labels": container.labels, "Tty": False},
        "State": {
            "Status": container.state,
            "Running": is_running,
            "Paused": False,
            "Pid": pid if is_running else 0,
            "ExitCode": container.exit_code,
            "StartedAt": _ZERO_TIME if container.state == "created" else _SOME_TIME,
            "FinishedAt": _SOME_TIME if container.state == "exited" else _ZERO_TIME,
        },
    }

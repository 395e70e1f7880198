"""A client of the Docker Engine API over a unix socket or TCP. Docker and Podman both serve it.

One method per call that the container and compose runtimes need. Every failure is an `EngineError` with the status and
the engine's own words, or `UnavailableError` when the engine cannot be reached. `shoal.runtimes.container.failures`
turns an `EngineError` into a reason of the contract.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import httpcore
import httpx

from shoal.core.errors import DeadlineError, ShoalError, UnavailableError

#: The oldest version of the API that has everything used here (Docker 19.03); Podman 4 serves it too.
API_VERSION = "v1.40"
#: Of the few calls that only Podman has.
_PODMAN_API = "v4.0.0"
_CALL_SECONDS = 30.0
#: What Podman says, with 500, where Docker says 409.
_NOT_RUNNING = "container state improper"
#: An answer that is longer than this is not read to its end.
_MAX_BODY = 16 << 20
_STREAM_NAMES = {0: "stdin", 1: "stdout", 2: "stderr"}
_MAX_FRAME = 4 << 20
_TAKEN_CHUNK = 32 * 1024


class EngineError(ShoalError):
    """The engine refused a call. `cause` is Podman's short form of the reason, empty with Docker."""

    def __init__(self, message: str, *, status: int, cause: str = "") -> None:
        super().__init__(message, status=status, cause=cause)
        self.status = status
        self.cause = cause


class EngineApi:
    """Calls to one engine."""

    def __init__(self, address: str) -> None:
        """`address` is `unix:///path` or `tcp://host:port`, as in DOCKER_HOST."""
        self.address = address
        #: Known after a ping.
        self.is_podman = False
        #: Which engine it has to be, if that matters.
        self.expected = ""
        scheme, _, rest = address.partition("://")
        if scheme == "unix":
            transport = httpx.AsyncHTTPTransport(uds=rest)
            base = "http://engine"
        else:
            transport = httpx.AsyncHTTPTransport()
            base = f"http://{rest}"
        self._http = httpx.AsyncClient(
            transport=transport,
            base_url=f"{base}/{API_VERSION}",
            timeout=httpx.Timeout(_CALL_SECONDS),
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    # --- the engine ---------------------------------------------------------------------------------------

    async def ping(self) -> None:
        """Whether the engine answers. Cheap: for its version, Podman asks the package manager each time."""
        async with self._opened(self._http.build_request("GET", "/_ping")) as response:
            if response.status_code >= 300:
                raise _refusal(response.status_code, await _read(response))
            self.is_podman = "libpod-api-version" in response.headers

    async def version(self) -> dict[str, Any]:
        """What the engine says of itself."""
        return dict(await self._call("GET", "/version"))

    async def info(self) -> dict[str, Any]:
        """The engine's configuration and its host."""
        return dict(await self._call("GET", "/info"))

    async def identity(self) -> str:
        """What tells this engine from every other, also after its restart and under another address.

        Docker has an id of its own. Podman is told by where it stores containers: the id that it gives is another one
        each time. Called after a `ping`.
        """
        found = await self.info()
        if not self.is_podman:
            return f"docker {found.get('ID') or found.get('DockerRootDir')}"
        host = "" if self.address.startswith("unix://") else f"{found.get('Name')} "
        return f"podman {host}{found.get('DockerRootDir')}"

    async def check_identity(self) -> None:
        """Check that the engine is still the same: another one may listen where the first did.

        Called before something is concluded from what the engine does not have. Raises `UnavailableError`.
        """
        if self.expected:
            await self.ping()
            if await self.identity() != self.expected:
                raise UnavailableError(f"another container engine listens at {self.address} now")

    async def events(self, labels: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Every end of a container that carries all of `labels`, as it happens."""
        filters = {"type": ["container"], "event": ["die", "died"], "label": _label_filter(labels)}
        async for event in self._objects("GET", "/events", params={"filters": json.dumps(filters)}):
            yield event

    # --- images -------------------------------------------------------------------------------------------

    async def image(self, name: str) -> dict[str, Any] | None:
        """An image that the engine has, or None."""
        return await self._found("GET", f"/images/{name}/json")

    async def image_healthcheck(self, name: str) -> dict[str, Any]:
        """The HEALTHCHECK of an image; empty without one. Podman tells it in its own API only."""
        image = await self.image(name) or {}
        found = (image.get("Config") or {}).get("Healthcheck")
        if found is None:
            image = (
                await self._found("GET", str(self._http.base_url.join(f"/{_PODMAN_API}/libpod/images/{name}/json")))
                or {}
            )
            found = image.get("Healthcheck")
        return dict(found) if isinstance(found, dict) else {}

    async def pull(self, image: str, *, auth: Mapping[str, str] | None = None) -> AsyncGenerator[dict[str, Any]]:
        """Pull an image and yield its progress. A failed pull is an `EngineError` although its HTTP status is 200.

        An iterator that is closed ends the pull.
        """
        headers = (
            {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()} if auth else {}
        )
        params = {"fromImage": image}
        if "@" not in image and ":" not in image.rpartition("/")[2]:
            params["tag"] = "latest"
        answer = self._objects("POST", "/images/create", params=params, headers=headers)
        async with contextlib.aclosing(answer) as steps:
            async for step in steps:
                if "error" in step:
                    raise EngineError(str(step["error"]), status=200)
                yield step

    async def import_image(self, name: str, archive: bytes) -> None:
        """Make an image from the tar archive of a root file system."""
        # The tag is in `repo`: Podman takes no notice of `tag`.
        params = {"fromSrc": "-", "repo": name}
        headers = {"Content-Type": "application/x-tar"}
        async for step in self._objects("POST", "/images/create", params=params, headers=headers, content=archive):
            if "error" in step:
                raise EngineError(str(step["error"]), status=200)

    async def remove_image(self, name: str) -> None:
        """Remove an image. One that is gone is no error."""
        await self._call("DELETE", f"/images/{name}", params={"force": "1"}, ok=(200, 404))

    # --- containers ---------------------------------------------------------------------------------------

    async def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Every container, running or not, that carries all of `labels`."""
        filters = json.dumps({"label": _label_filter(labels)})
        found = await self._call("GET", "/containers/json", params={"all": "1", "filters": filters}) or []
        return [each for each in found if _carries(each, labels)]

    async def container(self, container: str) -> dict[str, Any] | None:
        """One container by id or name, or None."""
        return await self._found("GET", f"/containers/{container}/json")

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container and return its id."""
        created = await self._call("POST", "/containers/create", params={"name": name}, body=body)
        return str(created["Id"])

    async def start(self, container: str) -> None:
        """Start a container. One that runs is left alone."""
        await self._call("POST", f"/containers/{container}/start", ok=(204, 304))

    async def kill(self, container: str, signal: str) -> None:
        """Send a signal to the main process. A container that does not run is left alone."""
        try:
            await self._call("POST", f"/containers/{container}/kill", params={"signal": signal}, ok=(204, 404, 409))
        except EngineError as error:
            if error.cause != _NOT_RUNNING:
                raise

    async def remove(self, container: str) -> None:
        """Remove a container with its anonymous volumes, running or not. One that is gone is no error."""
        params = {"force": "1", "v": "1"}
        try:
            await self._call("DELETE", f"/containers/{container}", params=params, ok=(200, 204, 404))
        except EngineError as error:
            if error.status != 409:
                raise
            # Another call of Docker's is removing it; its name is free when that is done.
            await self._call("POST", f"/containers/{container}/wait", params={"condition": "removed"}, ok=(200, 404))

    async def rename(self, container: str, name: str) -> None:
        """Give a container another name."""
        await self._call("POST", f"/containers/{container}/rename", params={"name": name}, ok=(204,))

    async def put_archive(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive below `path` in a container."""
        await self._call("PUT", f"/containers/{container}/archive", params={"path": path}, content=archive)

    async def logs(
        self,
        container: str,
        *,
        follow: bool,
        tail_lines: int = 0,
        since: float = 0.0,
        timestamps: bool = False,
        tty: bool = False,
    ) -> AsyncIterator[tuple[str, bytes]]:
        """What a container printed, as (stream, bytes), oldest first. One with a terminal has a single stream."""
        params = {
            "stdout": "1",
            "stderr": "1",
            "follow": "1" if follow else "0",
            "tail": str(tail_lines) if tail_lines > 0 else "all",
            "timestamps": "1" if timestamps else "0",
        }
        if since > 0:
            params["since"] = f"{since:.9f}"
        async with self._stream("GET", f"/containers/{container}/logs", params=params) as pieces:
            if tty:
                async for piece in pieces:
                    yield "stdout", piece
            else:
                async for frame in split_frames(pieces):
                    yield frame

    # --- volumes and networks -----------------------------------------------------------------------------

    async def volumes(self, labels: Mapping[str, str]) -> list[str]:
        """The names of every volume that carries all of `labels`."""
        answer = await self._call("GET", "/volumes", params={"filters": json.dumps({"label": _label_filter(labels)})})
        # Podman 4 lists those that carry any of them.
        return [str(each["Name"]) for each in answer.get("Volumes") or [] if _carries(each, labels)]

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a volume. One of that name that is there stays."""
        await self._call("POST", "/volumes/create", body={"Name": name, "Labels": dict(labels)})

    async def remove_volume(self, name: str) -> None:
        """Remove a volume with its data. One that is gone is no error."""
        await self._call("DELETE", f"/volumes/{name}", ok=(204, 404))

    async def networks(self, labels: Mapping[str, str]) -> list[str]:
        """The names of every network that carries all of `labels`."""
        filters = json.dumps({"label": _label_filter(labels)})
        found = await self._call("GET", "/networks", params={"filters": filters}) or []
        return [str(each["Name"]) for each in found if _carries(each, labels)]

    async def create_network(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a network. One of that name that is there is an error."""
        await self._call("POST", "/networks/create", body={"Name": name, "Labels": dict(labels)})

    async def remove_network(self, name: str) -> None:
        """Remove a network. One that is gone is no error."""
        await self._call("DELETE", f"/networks/{name}", ok=(200, 204, 404))

    # --- exec ---------------------------------------------------------------------------------------------

    async def create_exec(
        self, container: str, command: Sequence[str], *, tty: bool, stdin: bool, env: Sequence[str] = ()
    ) -> str:
        """Prepare a command inside a running container and return its id."""
        body = {
            "Cmd": list(command),
            "Env": list(env),
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": tty,
        }
        created = await self._call("POST", f"/containers/{container}/exec", body=body)
        return str(created["Id"])

    async def start_exec(self, exec_id: str, *, tty: bool) -> TakenConnection:
        """Start a prepared command and take over its connection."""
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        patient = httpx.Timeout(_CALL_SECONDS, read=None)
        body = {"Detach": False, "Tty": tty}
        request = self._http.build_request(
            "POST", f"/exec/{exec_id}/start", json=body, headers=headers, timeout=patient
        )
        with _translated(self.address):
            response = await self._http.send(request, stream=True)
            if response.status_code != 101:
                try:
                    raise _refusal(response.status_code, await _read(response))
                finally:
                    await response.aclose()
        return TakenConnection(response, self.address)

    async def resize_exec(self, exec_id: str, rows: int, columns: int) -> None:
        """Give the terminal of a command another size."""
        await self._call("POST", f"/exec/{exec_id}/resize", params={"h": str(rows), "w": str(columns)})

    async def exec_pid(self, exec_id: str) -> int:
        """The process of a command that runs, by the engine's numbers; 0 when it does not run."""
        state = await self._call("GET", f"/exec/{exec_id}/json")
        return int(state.get("Pid") or 0) if state.get("Running") else 0

    async def exec_exit_code(self, exec_id: str) -> int | None:
        """The exit code of a command, None while it runs."""
        state = await self._call("GET", f"/exec/{exec_id}/json")
        return None if state.get("Running") else int(state.get("ExitCode") or 0)

    # --- transport ----------------------------------------------------------------------------------------

    async def _found(self, method: str, path: str) -> dict[str, Any] | None:
        try:
            return dict(await self._call(method, path))
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        ok: Sequence[int] = (200, 201, 204),
    ) -> Any:
        request = self._http.build_request(method, path, params=params, json=body, content=content)
        async with self._opened(request) as response:
            text = await _read(response)
            if response.status_code not in ok:
                raise _refusal(response.status_code, text)
        if not text or response.status_code >= 400:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineError(f"the engine's answer to {path} is not JSON", status=response.status_code) from error

    async def _objects(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> AsyncGenerator[dict[str, Any]]:
        """A stream of JSON objects, one after another."""
        rest = b""
        async with self._stream(method, path, params=params, headers=headers, content=content) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _parsed(line)
                if len(rest) > _MAX_FRAME:
                    raise EngineError("the engine sent a line without an end", status=200)
        if rest.strip():
            yield _parsed(rest)

    @contextlib.asynccontextmanager
    async def _stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | None = None,
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        # An engine may be silent for as long as a container is.
        patient = httpx.Timeout(_CALL_SECONDS, read=None)
        request = self._http.build_request(
            method, path, params=params, headers=headers, json=body, content=content, timeout=patient
        )
        async with self._opened(request) as response:
            if response.status_code >= 300:
                raise _refusal(response.status_code, await _read(response))
            yield response.aiter_raw()

    @contextlib.asynccontextmanager
    async def _opened(self, request: httpx.Request) -> AsyncGenerator[httpx.Response]:
        if self._http.is_closed:
            raise UnavailableError(f"the connection to the container engine at {self.address} was closed")
        with _translated(self.address):
            response = await self._http.send(request, stream=True)
            try:
                yield response
            finally:
                await response.aclose()


class TakenConnection:
    """A connection that an engine handed over: bytes in both directions."""

    def __init__(self, response: httpx.Response, address: str) -> None:
        self._response = response
        self._address = address
        self._stream: Any = response.extensions["network_stream"]

    async def read(self) -> AsyncIterator[bytes]:
        """What the other end sends, to its end."""
        with _translated(self._address):
            while piece := await self._stream.read(_TAKEN_CHUNK):
                yield piece

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the other end does not read. After its end they are dropped."""
        with contextlib.suppress(httpcore.WriteError, httpcore.WriteTimeout, OSError):
            await self._stream.write(data)

    def end_input(self) -> None:
        """Nothing more will be sent."""
        connection = self._stream.get_extra_info("socket")
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Close it."""
        with contextlib.suppress(httpx.TransportError, OSError):
            await self._response.aclose()


async def split_frames(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """Take the engine's multiplexed stream apart: 8 bytes of header (stream, length), then that many bytes."""
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        while len(buffer) >= 8:
            kind, length = struct.unpack_from(">BxxxL", buffer)
            if kind not in _STREAM_NAMES or length > _MAX_FRAME:
                raise EngineError(f"the engine sent a broken frame (stream {kind}, {length} bytes)", status=200)
            if len(buffer) < 8 + length:
                break
            data = bytes(buffer[8 : 8 + length])
            del buffer[: 8 + length]
            yield _STREAM_NAMES[kind], data


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _MAX_BODY:
            raise EngineError(f"the engine's answer is longer than {_MAX_BODY} bytes", status=response.status_code)
    return bytes(body)


def _refusal(status: int, body: bytes) -> EngineError:
    text = body.decode(errors="replace").strip()
    try:
        answer = json.loads(text)
    except ValueError:
        return EngineError(text[:2000] or f"HTTP {status}", status=status)
    if not isinstance(answer, dict):
        return EngineError(text[:2000], status=status)
    message = str(answer.get("message") or text)[:2000]
    return EngineError(message, status=status, cause=str(answer.get("cause") or ""))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise EngineError("the engine sent a line that is not JSON", status=200) from error
    return value if isinstance(value, dict) else {}


def _carries(thing: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a listed thing has all of these labels: an engine's filter does not decide what is removed."""
    return labels.items() <= (thing.get("Labels") or {}).items()


def _label_filter(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]


@contextlib.contextmanager
def _translated(address: str) -> Iterator[None]:
    try:
        yield
    except (httpx.TimeoutException, httpcore.TimeoutException) as error:
        raise DeadlineError(f"the container engine at {address} did not answer in time") from error
    except (httpx.TransportError, httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise UnavailableError(
            f"the container engine at {address} cannot be reached: {str(error) or type(error).__name__}"
        ) from error

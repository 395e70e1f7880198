"""How a coordinator and its task hosts talk when they are processes: plain messages over a unix socket.

Both sides show the token of the job's epoch first, so that a host of an earlier epoch is refused. Messages are pickled:
coordinator and task hosts run the same user's program under the same user, and nobody else can open the socket. Used by
`shoal.dataflow.execution.processes` (the coordinator's side) and `shoal.dataflow.execution.host_process`.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.dataflow.checkpoint.messages import Order, TaskId
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution.chain import StepCounts
from shoal.dataflow.language.settings import FlowSettings
from shoal.exchange.errors import PeerLostError
from shoal.exchange.tokens import Gate

_LENGTH = struct.Struct("<Q")
#: Bytes of a greeting at most, and seconds in which it has to come.
_MOST_GREETING = 4096
_HANDSHAKE = 30.0


# ---------------------------------------------------------------------------------------------------------
# From the coordinator to a host


@dataclass(frozen=True, slots=True)
class HostShare:
    """What a task host runs, and from where."""

    job: str
    tasks: tuple[TaskId, ...]
    settings: FlowSettings
    #: The splits of each source, by its uid, as the coordinator found them.
    splits: Mapping[str, tuple[Split, ...]]
    #: The checkpoint to go on from; None for the beginning.
    checkpoint: int | None
    #: The incarnation of the job, which its sinks' markers carry.
    incarnation: int
    epoch: int
    is_look: bool = False


@dataclass(frozen=True, slots=True)
class BuildTasks:
    """Build these from the document."""

    share: HostShare
    #: The prepared plan: its body, and its blobs.
    document: str
    blobs: Mapping[str, bytes]
    #: Where the program's modules are found, and the directory that its paths begin at.
    search_path: tuple[str, ...]
    directory: str
    #: Settings of brokers that the plan names: they may be secret, and are in no document.
    brokers: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConnectTasks:
    """Everyone listens: connect to tasks of other hosts at these addresses."""

    addresses: Mapping[TaskId, str]


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Everyone is connected: run."""


@dataclass(frozen=True, slots=True)
class SendOrder:
    """An order for a task."""

    task: TaskId
    order: Order


@dataclass(frozen=True, slots=True)
class EndTasks:
    """The run is over, or begins anew elsewhere: end, whatever is under way."""


# ---------------------------------------------------------------------------------------------------------
# From a host to the coordinator; reports of tasks are sent as they are


@dataclass(frozen=True, slots=True)
class HostListens:
    """Its inboxes are there, at this address."""

    address: str


@dataclass(frozen=True, slots=True)
class HostBuilt:
    """Its tasks are built and connected."""


@dataclass(frozen=True, slots=True)
class HostCounts:
    """A sign of life, with what its steps have put out."""

    steps: tuple[StepCounts, ...]
    waiting_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A task failed: the run cannot go on."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class HostLost:
    """A task lost a peer: the region goes back to the last checkpoint."""

    reason: str


@dataclass(frozen=True, slots=True)
class HostEnded:
    """All of its tasks have ended in good order."""

    counts: HostCounts


class ControlLink:
    """Messages in both directions. One thread receives; any thread sends."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._lock = threading.Lock()
        raw.settimeout(None)

    @classmethod
    def connect(cls, path: str, gate: Gate, host: int) -> ControlLink:
        """The host's side: show the token, and which host this is."""
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.connect(path)
        raw.sendall(f"{host} {gate.token}\n".encode())
        return cls(raw)

    @classmethod
    def accept(cls, raw: socket.socket, gate: Gate) -> tuple[ControlLink, int]:
        """The coordinator's side. Raises `ShoalError` for a host of another job or epoch, and `OSError`."""
        raw.settimeout(_HANDSHAKE)
        content = b""
        while not content.endswith(b"\n") and len(content) < _MOST_GREETING:
            part = raw.recv(1)
            if not part:
                raise PeerLostError("control", "it hung up")
            content += part
        host, _, token = content.decode(errors="replace").strip().partition(" ")
        gate.admit(token)
        return cls(raw), int(host) if host.isdecimal() else -1

    def limit_reads(self, seconds: float | None) -> None:
        """How long `receive` waits; None for ever."""
        self._raw.settimeout(seconds)

    def send(self, message: object) -> None:
        """Send a message. Raises `PeerLostError`."""
        content = _pickled(message)
        try:
            with self._lock:
                self._raw.sendall(_LENGTH.pack(len(content)) + content)
        except OSError as error:
            raise PeerLostError("control", error.strerror or str(error)) from error

    def receive(self) -> Any:
        """The next message; None when the other side is gone, or says nothing in time."""
        try:
            header = self._read(_LENGTH.size)
            content = None if header is None else self._read(_LENGTH.unpack(header)[0])
        except OSError:
            return None
        return None if content is None else pickle.loads(content)  # noqa: S301 - of the same user, see above

    def _read(self, size: int) -> bytearray | None:
        content = bytearray(size)
        view = memoryview(content)
        while view:
            got = self._raw.recv_into(view)
            if not got:
                return None
            view = view[got:]
        return content

    def close(self) -> None:
        """End every call that waits. From any thread."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Let go of it; by the thread that receives."""
        self.close()
        self._raw.close()


def _pickled(message: object) -> bytes:
    try:
        return pickle.dumps(message)
    except Exception:
        if not isinstance(message, HostFailed):
            raise
        # The error of a user's function may hold anything: its words cross in any case.
        error = message.error
        words = error.message if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
        hint = error.hint if isinstance(error, ShoalError) else ""
        return pickle.dumps(HostFailed(ShoalError(words, hint=hint)))

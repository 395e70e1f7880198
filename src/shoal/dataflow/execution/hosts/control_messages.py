"""The messages between a coordinator and its task hosts, and their bytes.

    "SM"  format(1)  type(1)  size of the fields(4)  number of blobs(4)  sizes of the blobs(8 each)  fields  blobs

The fields are JSON; bytes are blobs behind them. `COORDINATOR_MESSAGES` and `HOST_MESSAGES` are the tables of types. A
message that is cut off, unknown, of another format or of the wrong side is refused with `BadMessageError`. A change of
a message or of what it holds raises `FORMAT`; the golden bytes in the tests notice it.

Pure. `shoal.dataflow.execution.hosts.control_link` carries the bytes; coordinator and task hosts call `encode` and
`decode_from_…`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.checkpoint.messages import Command, Report, TaskId
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution.chain import StepCounts
from shoal.dataflow.execution.hosts.error_texts import ErrorText
from shoal.dataflow.execution.hosts.plain_values import BadFieldError, form_of
from shoal.dataflow.settings import FlowSettings

FORMAT = 6
_MAGIC = b"SM"
_HEADER = struct.Struct("<2sBBII")
_SIZE = struct.Struct("<Q")
#: Bytes of the JSON part, number of blobs, and bytes of both together, at most.
MOST_FIELDS = 64 << 20
MOST_BLOBS = 1 << 16
MOST_CONTENT = 2 << 30
#: Bytes of a whole message at most.
MOST_BYTES = _HEADER.size + MOST_BLOBS * _SIZE.size + MOST_CONTENT


class BadMessageError(InvalidError):
    """Bytes that are no message, or none that this side may get. The connection is closed."""

    def __init__(self, at: str, value: object, rule: str) -> None:
        super().__init__([problem(at, value, rule)], what="control message")


# ---------------------------------------------------------------------------------------------------------
# From the coordinator to a host


@dataclass(frozen=True, slots=True)
class HostShare:
    """What a task host runs, and from where."""

    job: str
    tasks: tuple[TaskId, ...]
    settings: FlowSettings
    #: The splits of each source, by its uid, and of each of its tasks.
    splits: Mapping[str, tuple[tuple[Split, ...], ...]]
    #: The checkpoint to go on from; None for the beginning.
    checkpoint: int | None
    #: The incarnation of the job, which its sinks' markers carry.
    incarnation: int
    epoch: int
    is_look: bool = False


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of a Kafka cluster. They may be secret and are in no document."""

    options: Mapping[str, str | int | float | bool]
    client: Mapping[str, str | int | float | bool] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BuildTasks:
    """Build these tasks from the document."""

    share: HostShare
    #: The prepared plan: its body as JSON, and its blobs.
    document: bytes
    blobs: Mapping[str, bytes]
    #: Where the program's modules are found, and the directory that its paths begin at. Empty: as the host has them.
    search_path: tuple[str, ...]
    directory: str
    #: By the name that the plan has for the cluster.
    brokers: Mapping[str, BrokerSettings]


@dataclass(frozen=True, slots=True)
class ConnectTasks:
    """Every host listens: connect to tasks of other hosts at these addresses."""

    addresses: Mapping[TaskId, str]


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Every host is connected: run."""


@dataclass(frozen=True, slots=True)
class CommandTask:
    """A command for one task."""

    task: TaskId
    command: Command


@dataclass(frozen=True, slots=True)
class EndTasks:
    """The run is over, or goes on in another epoch: end now."""


@dataclass(frozen=True, slots=True)
class JoinEpoch:
    """To a host that waits: what follows is of this term and epoch. The first message of an epoch on a fleet."""

    #: The term of the coordinator. A host that has seen a higher one leaves.
    term: int
    epoch: int
    #: What signs the tokens of the epoch: the key that the control plane gives for this term, where it gives one.
    key: bytes = field(repr=False)
    #: Shows which key that is.
    proof: str
    #: Whether the hosts are on several machines.
    is_spread: bool = False


@dataclass(frozen=True, slots=True)
class Ping:
    """The coordinator is there."""


# ---------------------------------------------------------------------------------------------------------
# From a host to the coordinator


@dataclass(frozen=True, slots=True)
class HostHello:
    """A host of a fleet is there, and waits. The first message on its link."""

    number: int
    #: Of its workload: a process that replaced another one has a higher one.
    generation: int
    node: str
    host_id: str
    #: Of its process: another one at the same place was started by its agent, after the one before had died.
    pid: int


@dataclass(frozen=True, slots=True)
class HostListens:
    """The inboxes of the host are served at this address."""

    address: str


@dataclass(frozen=True, slots=True)
class HostBuilt:
    """The tasks of the host are built and connected."""


@dataclass(frozen=True, slots=True)
class HostCounts:
    """A heartbeat, with the counts of the host's steps."""

    steps: tuple[StepCounts, ...]
    waiting_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A task failed: the run cannot go on."""

    error: ErrorText


@dataclass(frozen=True, slots=True)
class HostLost:
    """A task lost a peer: the tasks go back to the last checkpoint."""

    reason: str
    #: The channel to that peer, where one is known.
    channel: str


@dataclass(frozen=True, slots=True)
class HostEnded:
    """All tasks of the host have ended without an error."""

    counts: HostCounts


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A report of one task."""

    report: Report


# ---------------------------------------------------------------------------------------------------------
# Bytes

#: The types of messages by number. A number is never used for another type.
COORDINATOR_MESSAGES: Mapping[int, type] = {
    1: BuildTasks,
    2: ConnectTasks,
    3: RunTasks,
    4: CommandTask,
    5: EndTasks,
    6: JoinEpoch,
    7: Ping,
}
HOST_MESSAGES: Mapping[int, type] = {
    33: HostListens,
    34: HostBuilt,
    35: HostCounts,
    36: HostFailed,
    37: HostLost,
    38: HostEnded,
    39: TaskReport,
    40: HostHello,
}
_NUMBERS = {kind: number for number, kind in (*COORDINATOR_MESSAGES.items(), *HOST_MESSAGES.items())}


def encode(message: Any) -> bytes:
    """The bytes of a message. Raises `BadMessageError` for one that is too large."""
    blobs: list[bytes] = []
    kind: type = type(message)
    fields = json.dumps(form_of(kind).write(message, blobs), separators=(",", ":")).encode()
    name = kind.__name__
    _check_sizes(name, len(fields), [len(each) for each in blobs])
    header = _HEADER.pack(_MAGIC, FORMAT, _NUMBERS[kind], len(fields), len(blobs))
    return b"".join((header, *(_SIZE.pack(len(each)) for each in blobs), fields, *blobs))


def decode_from_coordinator(content: bytes) -> Any:
    """A message of a coordinator. Raises `BadMessageError`."""
    return _decode(content, COORDINATOR_MESSAGES)


def decode_from_host(content: bytes) -> Any:
    """A message of a task host. Raises `BadMessageError`."""
    return _decode(content, HOST_MESSAGES)


def _decode(content: bytes, known: Mapping[int, type]) -> Any:
    if len(content) < _HEADER.size:
        raise BadMessageError("message", len(content), f"must have at least {_HEADER.size} bytes")
    magic, version, number, size, count = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise BadMessageError("message", bytes(magic), f"must begin with {_MAGIC!r}")
    if version != FORMAT:
        raise BadMessageError("format", version, f"must be {FORMAT}: another version of the program sent this")
    kind = known.get(number)
    if kind is None:
        raise BadMessageError("type", number, "is not the number of a message of this peer")
    if count > MOST_BLOBS:
        raise BadMessageError("blobs", count, f"must be at most {MOST_BLOBS:,}")
    start = _HEADER.size + count * _SIZE.size
    if start > len(content):
        raise BadMessageError("message", len(content), f"is cut off before byte {start}")
    sizes = [_SIZE.unpack_from(content, _HEADER.size + index * _SIZE.size)[0] for index in range(count)]
    _check_sizes(kind.__name__, size, sizes)
    if len(content) != start + size + sum(sizes):
        raise BadMessageError("message", len(content), f"must have {start + size + sum(sizes)} bytes")
    fields = _read_json(kind.__name__, content[start : start + size])
    blobs, start = [], start + size
    for each in sizes:
        blobs.append(bytes(content[start : start + each]))
        start += each
    try:
        return form_of(kind).read(fields, blobs, kind.__name__)
    except BadFieldError as error:
        raise BadMessageError(error.at, error.value, error.rule) from error


def _read_json(name: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(name, None, f"is no JSON: {error}") from error


def _check_sizes(name: str, fields: int, blobs: list[int]) -> None:
    if fields > MOST_FIELDS:
        raise BadMessageError(f"{name}, fields", fields, f"must have at most {MOST_FIELDS:,} bytes")
    if len(blobs) > MOST_BLOBS:
        raise BadMessageError(f"{name}, blobs", len(blobs), f"must be at most {MOST_BLOBS:,}")
    if fields + sum(blobs) > MOST_CONTENT:
        raise BadMessageError(f"{name}, bytes", fields + sum(blobs), f"must be at most {MOST_CONTENT:,}")

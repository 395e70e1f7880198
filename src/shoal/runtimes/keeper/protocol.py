"""The language between agent and keeper: JSON objects, one per line.

    keeper → agent   {"hello": {"version": 1, "since": 1, "pid": 7, "limits": "cgroup v2"}}      once, first
    agent → keeper   {"id": 4, "op": "start", …}
    keeper → agent   {"id": 4, "ok": {…}}  or  {"id": 4, "error": {"kind": "run", "message": …, …}}
    keeper → agent   {"event": {"ended": {…run record…}}}                                         at any time

A keeper lives on through upgrades of the agent, so the two may differ in version. `hello`, `list`, `stop`, `forget` and
`shutdown` stay as they are for ever: they let any agent wind an older keeper down. The other operations are used only
between versions that know each other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.ids import RunId

#: What this code speaks.
VERSION = 2
#: The oldest keeper whose `start` this code can use.
OLDEST_FULL_KEEPER = 1
#: The kinds of runs, and the oldest keeper that can own each. A runtime sees the runs of its own kind only.
PROCESS, VM = "process", "vm"
KINDS = {PROCESS: OLDEST_FULL_KEEPER, VM: 2}
#: The oldest agent that a keeper of this code serves in full.
OLDEST_FULL_AGENT = 1

#: A line longer than this ends the connection. The kernel itself takes no more than 2 MiB of arguments by default.
MAX_LINE = 4 * 1024 * 1024
#: Records per answer to `list`.
PAGE = 200


class ProtocolError(Exception):
    """The other side does not speak this language."""


def encode(message: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """One message. Raises `ProtocolError`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("a message must be a JSON object")
    return message


class LineBuffer:
    """Cuts what arrives into messages, and refuses to hold more than one line's worth."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Every message that is complete now. Raises `ProtocolError`."""
        self._rest += chunk
        messages = []
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            if line.strip():
                messages.append(decode(line))
        if len(self._rest) > MAX_LINE:
            raise ProtocolError(f"a line is longer than {MAX_LINE} bytes")
        return messages


class Refusal(Exception):  # noqa: N818 - not an error of ours: an answer that says no
    """An operation that the keeper refuses, as it crosses the socket."""

    def __init__(self, kind: str, message: str, *, failure: str = "", transient: bool = False, hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.failure = failure
        self.transient = transient
        self.hint = hint

    def to_json(self) -> dict[str, Any]:
        """The body of an error answer."""
        return {
            "kind": self.kind,
            "message": self.message,
            "failure": self.failure,
            "transient": self.transient,
            "hint": self.hint,
        }


def run_refusal(failure: str, message: str, *, transient: bool = False, hint: str = "") -> Refusal:
    """A run that could not be started."""
    return Refusal("run", message, failure=failure, transient=transient, hint=hint)


@dataclass(frozen=True, slots=True)
class StartMessage:
    """The body of `start`: a run with everything decided that the agent decides."""

    run_id: RunId
    workload_id: str
    argv: tuple[str, ...]
    #: Complete, apart from the marks by which the keeper knows its processes again.
    env: Mapping[str, str]
    working_dir: str
    #: The working directory is the workload's own: it is given to the user.
    own_dir: bool
    user: str
    stop_signal: int
    grace: float
    ports: Mapping[str, int]
    cpu_millicores: int
    memory_mb: int
    #: On CLOCK_BOOTTIME, for an at-most-one run.
    deadline: float | None
    kind: str = PROCESS
    #: QEMU's monitor in the working directory, for a VM: it is asked to end by the power button and not by a signal.
    stop_socket: str = ""


def start_to_json(wanted: StartMessage) -> dict[str, Any]:
    """As a JSON object."""
    return {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted)}


def start_from_json(given: Mapping[str, Any]) -> StartMessage:
    """Read a start message and convert every field, so that no start fails half-way. Raises `Refusal`."""
    try:
        deadline = given.get("deadline")
        return StartMessage(
            run_id=RunId(_name(given["run_id"])),
            workload_id=_name(given["workload_id"]),
            argv=_words(given["argv"]),
            env={str(name): str(value) for name, value in given["env"].items()},
            working_dir=str(given["working_dir"]),
            own_dir=bool(given["own_dir"]),
            user=str(given["user"]),
            stop_signal=int(given["stop_signal"]),
            grace=float(given["grace"]),
            ports={str(name): int(port) for name, port in given["ports"].items()},
            cpu_millicores=int(given["cpu_millicores"]),
            memory_mb=int(given["memory_mb"]),
            deadline=None if deadline is None else float(deadline),
            kind=str(given.get("kind", PROCESS)),
            stop_socket=str(given.get("stop_socket", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Refusal("invalid", f"not a start request: {error!r}") from error


def _name(given: object) -> str:
    """An id that may become a file name. The agent has checked the whole rule; this is what safety needs."""
    if not isinstance(given, str) or not given or len(given) > 200 or "/" in given or "\0" in given or given[0] == ".":
        raise ValueError(f"{given!r} cannot be a file name")
    return given


def _words(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(word, str) for word in given):
        raise ValueError("a command must be a list of words")
    return tuple(given)

"""The `Runtime` protocol: what an agent asks of whatever runs its workloads.

A *run* is one life of a workload: one process from start to exit, one container. The agent names runs and decides
when to start and stop them; a runtime only carries that out, remembers each run until it is told to forget it, and
says what became of it, also when the agent was away meanwhile. Required is small; what only some runtimes can do is a
protocol of its own (`SupportsLogs`, …). Called by `shoal.agent.workloads.executor` and nobody else.

Every backend passes `shoal.testing.suites.RuntimeSuite`.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.core.ids import IDENTIFIER_RULE, RunId, WorkloadId, is_identifier
from shoal.model.execs import ExecCommand, ExecEnd
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.nodes import ConditionType
from shoal.model.resources import Resources
from shoal.model.workloads import (
    ArtifactSpec,
    ComposeSpec,
    ContainerSpec,
    EndedBy,
    Exit,
    FailureReason,
    FileSpec,
    ProcessSpec,
    Readiness,
    Usage,
    VmSpec,
    WorkloadType,
)

#: Takes words for people about how far something is.
Tell = Callable[[str], None]
S = TypeVar("S", ProcessSpec, ContainerSpec, ComposeSpec, VmSpec)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to start. Starting the same run twice is one start."""

    #: Unique per life of a workload; safe as a file name.
    run_id: RunId
    workload_id: WorkloadId
    spec: ProcessSpec | ContainerSpec | ComposeSpec | VmSpec
    #: The user's name for the version of the spec, and the ownership that it runs under.
    revision: str = ""
    generation: int = 0
    #: What was reserved, and so what it is limited to where the runtime can. 0 means no limit.
    limits: Resources = Resources()
    #: Named ports, chosen already.
    ports: Mapping[str, int] = field(default_factory=dict)
    #: Added to the spec's environment: who the workload is and where it runs.
    identity: Mapping[str, str] = field(default_factory=dict)
    #: Further variables whose values nobody but the workload may see.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: The files of the spec with their contents, secrets included.
    files: tuple[tuple[FileSpec, bytes], ...] = field(default=(), repr=False)
    #: The artifacts of the spec with the files that hold them. Those are the agent's, and must not be changed.
    artifacts: tuple[tuple[ArtifactSpec, Path], ...] = ()
    #: The directories of this machine that hold the spec's managed volumes, by name.
    volumes: Mapping[str, str] = field(default_factory=dict)
    #: End it at this moment of the clock's `monotonic()`, unless it is extended; None for one that may outlive contact.
    deadline: float | None = None


def checked_spec(request: RunRequest, kind: type[S]) -> S:
    """The spec of a request with valid ids. Raises `InvalidError`, and `RunError` for another kind."""
    problems = [
        problem(name, value, IDENTIFIER_RULE)
        for name, value in (("run_id", request.run_id), ("workload_id", request.workload_id))
        if not is_identifier(value)
    ]
    if problems:
        raise InvalidError(problems)
    return spec_of(request, kind)


def spec_of(request: RunRequest, kind: type[S]) -> S:
    """The spec of a request, which has to be of this kind. Raises `RunError`."""
    if not isinstance(request.spec, kind):
        raise RunError(
            f"workload {request.workload_id!r} is not of the kind that this runtime runs",
            failure=FailureReason.INVALID_SPEC,
        )
    return request.spec


HEALTHY = "healthy"
"""What `Runtime.health` says when nothing is wrong; else it says what is."""


class RunPhase(enum.Enum):
    """Where a run is."""

    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a runtime knows of one run."""

    run_id: RunId
    workload_id: WorkloadId
    phase: RunPhase
    started_at: datetime
    pid: int = 0
    exit: Exit | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    #: The end of what it printed, once it has ended.
    last_output: str = ""
    ended_by: str = EndedBy.ITSELF
    #: The state of each part, if it has several: the services of a compose project.
    services: Mapping[str, str] = field(default_factory=dict)
    #: When it is ready, if what it runs says so itself: the HEALTHCHECK of an image. A probe of the spec comes first.
    readiness: Readiness | None = None


def port_variable(name: str) -> str:
    """The environment variable in which a named port is handed over."""
    return f"SHOAL_PORT_{name.upper().replace('-', '_')}"


class RunError(ShoalError):
    """A run could not be started. Carries the reason by the contract's names, and whether trying again can help."""

    def __init__(self, message: str, *, failure: FailureReason, transient: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint, failure=failure.value, transient=transient)
        self.failure = failure
        self.transient = transient


class Runtime(Protocol):
    """One way to run workloads."""

    @property
    def type(self) -> WorkloadType:
        """The kind of workload it runs."""
        ...

    async def open(self) -> None:
        """Make ready, and take up again what an earlier agent left running."""
        ...

    async def start(self, request: RunRequest) -> RunInfo:
        """Start a run, or return what is known of it if it was started before. Raises `RunError`.

        It may be canceled. `stop`, called after it has ended, then ends what it had begun.
        """
        ...

    async def stop(self, run_id: RunId) -> RunInfo | None:
        """End a run by its stop policy and wait for its end. None if there is no such run.

        Raises `UnavailableError` while nobody can tell whether there is one.
        """
        ...

    async def inspect(self, run_id: RunId) -> RunInfo | None:
        """What is known of a run; None if there is no such run.

        Raises `UnavailableError` while nobody can tell whether there is one.
        """
        ...

    async def list_runs(self) -> tuple[RunInfo, ...]:
        """Every run that was started and not yet forgotten, running or ended."""
        ...

    async def forget(self, run_id: RunId) -> None:
        """Let go of an ended run. Its logs stay until the workload is forgotten."""
        ...

    async def forget_workload(self, workload_id: WorkloadId, *, delete_data: bool) -> None:
        """Let go of everything kept for a workload that is gone: logs, directories.

        Its disks and the volumes of its project go only with `delete_data`: it was deleted, and its retain policy is
        Delete. Managed volumes are the agent's and not touched here. Raises `UnavailableError` while nobody can tell
        whether a run of it goes on.
        """
        ...

    def watch(self) -> AsyncIterator[RunInfo]:
        """Each run as it ends, including those that ended before the call and are not yet forgotten."""
        ...

    async def health(self) -> str:
        """`healthy`, or `unhealthy: ` and why."""
        ...

    async def close(self) -> None:
        """Let go of everything except the runs, which go on."""
        ...


@runtime_checkable
class SupportsLogs(Protocol):
    """Runtimes whose workloads print."""

    def read_logs(self, workload_id: WorkloadId, query: LogQuery) -> AsyncIterator[LogPiece]:
        """The output of a workload, oldest first. Raises `NotFoundError` when there is none to read."""
        ...


@runtime_checkable
class SupportsUsage(Protocol):
    """Runtimes that can measure."""

    async def usage(self, run_id: RunId) -> Usage | None:
        """What a run uses now. Never blocks for a sampling interval: rates are against the call before."""
        ...


@runtime_checkable
class SupportsDiskUsage(Protocol):
    """Runtimes that give workloads a directory of their own, and can measure it."""

    async def disk_usage(self, workload_id: WorkloadId, *, at_most: int) -> int:
        """The bytes that a workload's own directory uses. Counting may end once they are more than `at_most`."""
        ...


@runtime_checkable
class SupportsWorkFiles(Protocol):
    """Runtimes that give workloads a directory of their own, in which they may leave something."""

    async def read_work_file(self, workload_id: WorkloadId, name: str, *, at_most: int) -> tuple[bytes, float] | None:
        """A file in a workload's own directory, and when it was written. None for one that is no plain file or larger.

        No link is followed. Raises `OSError`.
        """
        ...


@runtime_checkable
class SupportsDeadlines(Protocol):
    """Runtimes whose runs can outlive the agent, and so must be able to end without it."""

    async def extend_deadlines(self, run_ids: tuple[RunId, ...], until: float) -> None:
        """Let each run go on until this moment of the clock's `monotonic()`, and end it then unless extended again."""
        ...


@runtime_checkable
class SupportsConditions(Protocol):
    """Runtimes that can tell what is wrong with them beyond being healthy or not."""

    def conditions(self) -> Mapping[ConditionType, str]:
        """What was wrong when `health` was last asked, in words."""
        ...

    def lateness(self) -> float:
        """Seconds by which what owns the workloads answered late when `health` was last asked; 0 when in time."""
        ...


@runtime_checkable
class SupportsFetch(Protocol):
    """Runtimes whose runs need what may have to come over a network first: images, repositories."""

    async def fetch(self, request: RunRequest, *, tell: Tell | None = None) -> None:
        """Have everything at hand that a start needs, without touching a run.

        Called before each `start`, outside of the limit on starts. It may be canceled and called again, and fails when
        it makes no progress for some time. `tell` hears now and then how far it is. Raises `RunError`.
        """
        ...


@runtime_checkable
class SupportsPrepare(Protocol):
    """Runtimes that can do beforehand what may fail or take long."""

    async def prepare(self, request: RunRequest) -> None:
        """Make everything ready that a start needs, without touching a run: pull images, check a project, fetch disks.

        Called before the old run of an update is stopped, so that it is replaced only when the new one can be made. It
        may be cancelled and called again. Raises `RunError`.
        """
        ...


@runtime_checkable
class SupportsUpdate(Protocol):
    """Runtimes that can change a run in place."""

    async def update(self, run_id: RunId, request: RunRequest) -> RunInfo:
        """Make a run what the request says; what is the same already stays untouched. Repeating it is one update.

        Called after `prepare`, if there is one. Raises `RunError`; the run is then as it was, or partly changed.
        """
        ...


@runtime_checkable
class SupportsFiles(Protocol):
    """Runtimes that can replace the files of a run while it goes on."""

    async def replace_files(self, run_id: RunId, files: tuple[tuple[FileSpec, bytes], ...]) -> None:
        """Put new contents into the files of a run, each at once and whole. Raises `RunError`."""
        ...


@runtime_checkable
class SupportsBoot(Protocol):
    """Runtimes whose runs boot before they are of use."""

    async def has_booted(self, run_id: RunId) -> bool:
        """Whether every sign of `VmSpec.boot` was seen. Asked again and again until the deadline."""
        ...


@runtime_checkable
class SupportsProbes(Protocol):
    """Runtimes inside whose surroundings a command can be run to probe readiness."""

    async def run_probe(self, run_id: RunId, command: tuple[str, ...], *, timeout: float) -> bool:
        """Whether the command exits with 0 in time, run with the workload's user, directory and environment.

        Raises `UnavailableError` when it cannot be run: that says nothing about the workload.
        """
        ...


class ExecSession(Protocol):
    """A command that runs. One reader reads its output; its caller closes it in any case."""

    def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it prints, as (`stdout` or `stderr`, bytes), until it closes its output."""
        ...

    async def write(self, data: bytes) -> None:
        """Hand it input; waits while it does not read. Input after its end is dropped."""
        ...

    async def end_input(self) -> None:
        """No more input follows."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size."""
        ...

    async def wait(self) -> ExecEnd:
        """How it ended. Called after the end of its output."""
        ...

    async def close(self) -> None:
        """Kill what is left of it."""
        ...


@runtime_checkable
class SupportsExec(Protocol):
    """Runtimes that can run a command beside a run: with its user, directory, environment and limits."""

    async def exec(self, run_id: RunId, command: ExecCommand) -> ExecSession:
        """Start a command. Raises `PreconditionError` when the run does not run, and `RunError` when it cannot start.

        Raises `UnsupportedError` where the run has no way to do it, such as a VM without a guest agent.
        """
        ...

"""What the agent remembers of runs in an engine: one small file per run, until the run is forgotten.

The engine knows a container only while it exists. An ended run, and one whose container somebody else removed, is known
from here. A full disk keeps no run from its end: a record is overwritten where it lies, and a new one takes the place
of a spare file. Owned by the container and the compose runtime. Calls block, and raise `UnavailableError` for a disk
that does not take or give what it should.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from shoal.core.clock import from_epoch_ms
from shoal.core.disk.durable import sync_path, write_and_sync
from shoal.core.disk.private_files import make_private_directory
from shoal.core.errors import UnavailableError
from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import Exit
from shoal.runtimes.base import RunInfo, RunPhase
from shoal.runtimes.cgroups import read_memberships
from shoal.runtimes.container.health import readiness_of
from shoal.runtimes.guard.process import belongs
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.files import write_whole

log = logging.getLogger(__name__)

_RECORD, _MARK, _SPARE = ".json", ".starting", ".spare"
#: How many runs can be started on a full disk before one is forgotten.
SPARES = 8
_SPARE_BYTES = 8192
#: What the end of a run may add to its record, besides its last output.
_ROOM = 2048


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    code: int = 0
    signal: int = 0
    unknown: bool = False
    ended_at_ms: int = 0
    out_of_memory: bool = False

    @property
    def exit(self) -> Exit:
        """As the agent is told."""
        return Exit(
            code=self.code,
            signal=self.signal,
            unknown=self.unknown,
            ended_at=from_epoch_ms(self.ended_at_ms),
            out_of_memory=self.out_of_memory,
        )


def groups_of(pid: int) -> tuple[str, ...]:
    """The directories of the groups that a process is in, except the topmost."""
    return tuple(str(place.directory) for place in read_memberships(pid=pid) if pid and place.directory != place.top)


def is_process_of(pid: int, container_id: str, run_id: RunId) -> bool:
    """Whether a process of this machine is one of a container: an engine elsewhere counts in numbers of its own.

    Its groups say so, and where containers have none, the variable that it was started with.
    """
    return bool(pid) and (
        belongs(pid, (container_id,)) or f"SHOAL_RUN_ID={run_id}".encode() in procfs.read_environ(pid)
    )


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One run, as it is stored."""

    run_id: RunId
    workload_id: WorkloadId
    container_id: str
    started_at_ms: int
    pid: int
    stop_signal: str
    grace: float
    ports: Mapping[str, int] = field(default_factory=dict)
    end: RunEnd | None = None
    ended_by: str = ""
    last_output: str = ""
    at_most_one: bool = False
    #: The HEALTHCHECK of its image, as the engine tells it.
    healthcheck: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The directories of its groups, while it runs."""
        return groups_of(self.pid)

    @property
    def info(self) -> RunInfo:
        """What the agent is told of it."""
        end = self.end
        return RunInfo(
            run_id=self.run_id,
            workload_id=self.workload_id,
            phase=RunPhase.RUNNING if end is None else RunPhase.ENDED,
            started_at=from_epoch_ms(self.started_at_ms),
            pid=self.pid,
            exit=None if end is None else end.exit,
            ports=self.ports,
            last_output=self.last_output,
            ended_by=self.ended_by if end is not None else "",
            readiness=readiness_of(self.healthcheck),
        )


def is_in_use(directory: Path) -> bool:
    """Whether a directory of records has a run that was not forgotten, or that was being started. Blocks."""
    return any(path.suffix in (_RECORD, _MARK) for path in _entries(directory))


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


class StoredRun(Protocol):
    """What all records of runs have."""

    @property
    def run_id(self) -> RunId:
        """Its name."""
        ...

    @property
    def last_output(self) -> str:
        """The end of what it printed."""
        ...


class WatchedRun(Protocol):
    """What has to be known of a run to tell of its end."""

    @property
    def run_id(self) -> RunId:
        """Its name."""
        ...

    @property
    def end(self) -> RunEnd | None:
        """How it ended, if it has."""
        ...

    @property
    def info(self) -> RunInfo:
        """What the agent is told of it."""
        ...


R = TypeVar("R", bound=StoredRun)


async def watch_ended(runs: Mapping[RunId, WatchedRun], changed: asyncio.Condition) -> AsyncIterator[RunInfo]:
    """Each of these runs as it ends, those that ended before first. `changed` is notified when one was stored."""
    told: set[RunId] = set()
    while True:
        ended = [run for run in runs.values() if run.end is not None and run.run_id not in told]
        told = {run_id for run_id in told if run_id in runs}
        for run in ended:
            told.add(run.run_id)
            yield run.info
        if not ended:
            async with changed:
                await changed.wait()


class RunRecords(Generic[R]):
    """Every run that was not forgotten, in memory and on disk."""

    def __init__(self, directory: Path, parse: Callable[[bytes], R]) -> None:
        """`parse` reads a stored run; it raises ValueError for anything else."""
        self._directory = directory
        self._parse = parse
        self.runs: dict[RunId, R] = {}
        #: Marks of an earlier agent: it was killed in the middle of these starts.
        self._left: list[Path] = []

    def load(self) -> None:
        """Read what an earlier agent wrote. A damaged file is left alone: its container, if there is one, says more."""
        make_private_directory(self._directory)
        self._left = list(self._directory.glob(f"*{_MARK}"))
        for path in sorted(self._directory.glob(f"*{_RECORD}")):
            try:
                run = self._parse(path.read_bytes())
            except (OSError, ValueError) as error:
                log.warning("the record %s of a run cannot be read: %s", path.name, error)
            else:
                self.runs[run.run_id] = run
        with contextlib.suppress(OSError):
            for number in range(SPARES):
                if len(self._spares()) < SPARES:
                    write_whole(self._directory / f"{number}{_SPARE}", b" " * _SPARE_BYTES)

    def mark(self, run_id: RunId) -> None:
        """Note that a run is being started. Until it is stored, or known not to be there, `is_in_use` says so."""
        try:
            (self._directory / f"{run_id}{_MARK}").touch()
        except OSError as error:
            raise UnavailableError(f"run {run_id} cannot be written down: {error}") from error

    def unmark(self, run_id: RunId) -> None:
        """The run is stored, or there is none."""
        with contextlib.suppress(OSError):
            (self._directory / f"{run_id}{_MARK}").unlink(missing_ok=True)

    def forget_left(self) -> None:
        """What an earlier agent was starting is stored by now, or not there."""
        for path in self._left:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._left.clear()

    def put(self, run: R) -> None:
        """Store a run. On a full disk an ended one is stored without its last output, the only part that is large."""
        try:
            try:
                self._write(run)
            except OSError:
                if not run.last_output:
                    raise
                self._write(dataclasses.replace(cast("Any", run), last_output=""))
        except OSError as error:
            raise UnavailableError(f"run {run.run_id} cannot be written down: {error}") from error
        if run.run_id not in self.runs:
            self.unmark(run.run_id)
        self.runs[run.run_id] = run

    def note(self, run: R) -> None:
        """Store what nothing has to wait for. On a disk that takes nothing it is known until the agent restarts."""
        try:
            self.put(run)
        except UnavailableError as error:
            log.warning("%s", error.message)
            self.runs[run.run_id] = run

    def drop(self, run_id: RunId) -> None:
        """Forget a run. Its file becomes a spare when there are too few of them."""
        path = self._path(run_id)
        try:
            if path.exists() and len(self._spares()) < SPARES:
                path.replace(path.with_suffix(_SPARE))
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UnavailableError(f"the record of run {run_id} cannot be removed: {error}") from error
        self.runs.pop(run_id, None)

    def _write(self, run: R) -> None:
        content, path = json.dumps(dataclasses.asdict(cast("Any", run))).encode(), self._path(run.run_id)
        try:
            write_whole(path, content + b" " * _ROOM)
        except OSError:
            if path.exists():
                write_whole(path, content)
                return
            spare = next((each for each in self._spares() if each.stat().st_size >= len(content)), None)
            if spare is None:
                raise
            write_and_sync(spare, content.ljust(spare.stat().st_size))
            spare.replace(path)
            sync_path(path.parent)

    def _path(self, run_id: RunId) -> Path:
        return self._directory / f"{run_id}{_RECORD}"

    def _spares(self) -> list[Path]:
        return sorted(self._directory.glob(f"*{_SPARE}"))


def run_from_json(text: bytes) -> ContainerRun:
    """Read a stored run. Raises ValueError for anything else."""
    try:
        fields = json.loads(text)
        end = fields.pop("end", None)
        ports = {str(name): int(port) for name, port in fields.pop("ports", {}).items()}
        run = ContainerRun(**fields, ports=ports, end=RunEnd(**end) if end else None)
    except (TypeError, AttributeError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"not a container run: {error}") from error
    if not isinstance(run.run_id, str) or not isinstance(run.container_id, str):
        raise ValueError("not a container run: its ids are not text")  # noqa: TRY004 as all damage is
    return run

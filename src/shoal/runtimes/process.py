"""The process runtime: workloads as child processes of the agent's keeper.

This is the agent's half. It turns a run request into what the keeper is to start (environment, directory, limits),
reads the logs that the keeper writes, and says what became of each run. All of its processes are children of the
keeper (`shoal.runtimes.keeper`), so they survive the agent, and their exits are on disk when it returns.

What a run's end means: the whole of it has ended. When the main process ends by itself, whatever it left running is
killed, also what moved to another session. When a run is stopped, its process group gets the stop signal and
everything that is left after the grace period is killed. An at-most-one run is asked to end a little before its
deadline and killed at the deadline: by the keeper, or by its own watchdog (`keeper.watchdog`), which needs neither
agent nor keeper for that. It dies with the keeper.

What cannot be promised: without cgroups, a process that starts a session of its own and also clears its environment
escapes; and when keeper or watchdog are killed, only the main process of an at-most-one run dies at once, what that had
started dies when the next keeper comes up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.disk.private_files import let_others_pass
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.execs import ExecCommand
from shoal.model.workloads import FailureReason, FileSpec, ProcessSpec, WorkloadType
from shoal.runtimes.base import ExecSession, RunError, RunInfo, RunRequest, port_variable, spec_of
from shoal.runtimes.cgroups import Cgroups
from shoal.runtimes.exec_process import start_command
from shoal.runtimes.keeper import protocol
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.keeper.launcher import IDLE_SECONDS
from shoal.runtimes.keeper.lives.children import find_user
from shoal.runtimes.keeper.protocol import StartMessage
from shoal.runtimes.keeper.records import (
    find_run_pids,
    read_keeper_pid,
    read_run_records,
)
from shoal.runtimes.kept import HEALTH_TIMEOUT, KeptRuns, check_ids
from shoal.runtimes.usage import bytes_used
from shoal.runtimes.work_files import link_artifacts, put_files, read_file

log = logging.getLogger(__name__)

__all__ = [
    "ProcessRuntime",
    "find_run_pids",
    "read_keeper_pid",
    "read_run_records",
    "remove_stray_groups",
]

#: What a workload gets of the agent's environment; `pass_env` adds names. All else may hold the agent's own secrets.
PASSED_ENV = ("PATH", "HOME", "LANG", "TZ")
_OF_THE_USER = ("HOME", "USER", "LOGNAME", "MAIL")


class ProcessRuntime(KeptRuns):
    """Runs workloads as processes. Implements `Runtime` and all of its optional parts."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock,
        node_id: NodeId,
        pass_env: Sequence[str] = (),
        default_user: str = "",
        keeper_idle: float = IDLE_SECONDS,
    ) -> None:
        """`keeper_idle`: a keeper that this starts ends so many seconds after its last run and its last connection."""
        super().__init__(data_dir, clock=clock, kind=protocol.PROCESS, keeper_idle=keeper_idle)
        self._passed = frozenset({*PASSED_ENV, *pass_env})
        self._default_user = default_user
        self._node_id = node_id

    @property
    def type(self) -> WorkloadType:
        """Processes."""
        return WorkloadType.PROCESS

    async def open(self) -> None:
        """Find the keeper or start one. Raises `UnavailableError`, `DeadlineError`, or `InvalidError` for the user."""
        _check_user(self._default_user)
        await self._open()
        if self.limits().startswith("none"):
            log.warning("processes run without memory and CPU limits: %s", self.limits().removeprefix("none: "))

    # --- runs ---------------------------------------------------------------------------------------------

    async def start(self, request: RunRequest) -> RunInfo:
        """Start a run, or return what is known of it. Raises `RunError`; `DeadlineError` when the outcome is open."""
        check_ids(request)
        message = self._start_message(request)
        await self._make_directories(request)
        await asyncio.to_thread(_put_files, message.working_dir, message.user, request.files)
        await asyncio.to_thread(link_artifacts, Path(message.working_dir), request.artifacts)
        return await self._start(message)

    async def replace_files(self, run_id: RunId, files: tuple[tuple[FileSpec, bytes], ...]) -> None:
        """Put new contents into the files of a run."""
        record = self._link.runs.get(run_id)
        if record is not None and record.exit is None and record.working_dir:
            await asyncio.to_thread(_put_files, record.working_dir, record.user, files)

    async def run_probe(self, run_id: RunId, command: tuple[str, ...], *, timeout: float) -> bool:
        """Whether a command exits with 0 in time, in the surroundings of a run."""
        body = await self._link.call(
            "probe", timeout=timeout + HEALTH_TIMEOUT, run_id=run_id, command=list(command), seconds=timeout
        )
        return bool(body["passed"])

    async def exec(self, run_id: RunId, command: ExecCommand) -> ExecSession:
        """Run a command in the surroundings of a run."""
        record = self._link.runs.get(run_id)
        if record is None or record.exit is not None:
            raise PreconditionError(f"run {run_id!r} does not run")
        return await start_command(record, command)

    async def disk_usage(self, workload_id: WorkloadId, *, at_most: int) -> int:
        """The bytes that the work directory of a workload uses."""
        return await asyncio.to_thread(bytes_used, self._files.work(workload_id), at_most=at_most)

    async def read_work_file(self, workload_id: WorkloadId, name: str, *, at_most: int) -> tuple[bytes, float] | None:
        """A small file that a workload has left in its work directory, and when it was written."""
        return await asyncio.to_thread(read_file, self._files.work(workload_id), name, at_most=at_most)

    # --- preparing ----------------------------------------------------------------------------------------

    def _start_message(self, request: RunRequest) -> StartMessage:
        spec = spec_of(request, ProcessSpec)
        own_dir = not spec.working_dir
        working_dir = str(self._files.work(request.workload_id)) if own_dir else spec.working_dir
        return StartMessage(
            kind=self._kind,
            run_id=request.run_id,
            workload_id=request.workload_id,
            argv=(*spec.command, *spec.args),
            env=self._environment(request, working_dir),
            working_dir=working_dir,
            own_dir=own_dir,
            user=self._user_of(spec),
            stop_signal=signal.Signals[f"SIG{spec.stop.signal or 'TERM'}"],
            grace=spec.stop.grace.total_seconds(),
            ports=dict(request.ports),
            cpu_millicores=request.limits.cpu_millicores,
            memory_mb=request.limits.memory_mb,
            deadline=None if request.deadline is None else self._on_boottime(request.deadline),
        )

    def _environment(self, request: RunRequest, working_dir: str) -> dict[str, str]:
        spec = spec_of(request, ProcessSpec)
        inherited = {} if spec.clear_env else self._inherited(for_user=bool(self._user_of(spec)))
        named_ports = {port_variable(name): str(port) for name, port in request.ports.items()}
        return {
            **inherited,
            "PWD": working_dir,
            "SHOAL_NODE_ID": self._node_id,
            **spec.env,
            **request.secrets,
            **request.identity,
            **named_ports,
        }

    def _user_of(self, spec: ProcessSpec) -> str:
        return spec.user or self._default_user

    def _inherited(self, *, for_user: bool) -> dict[str, str]:
        """What a workload gets of the agent's environment. HOME of another user is set when that is taken on."""
        left_out = _OF_THE_USER if for_user else ()
        return {name: os.environ[name] for name in self._passed if name in os.environ and name not in left_out}

    async def _make_directories(self, request: RunRequest) -> None:
        try:
            await asyncio.to_thread(
                _make_workload_directories,
                self._files,
                request.workload_id,
                for_user=bool(self._user_of(spec_of(request, ProcessSpec))),
            )
        except OSError as error:
            raise RunError(
                f"the directories of workload {request.workload_id!r} cannot be made: {error}",
                failure=FailureReason.STORAGE_ERROR,
                transient=True,
            ) from error


def remove_stray_groups(data_dir: Path) -> None:
    """Remove the cgroups of a keeper that was killed with its runs and will have no successor.

    A successor does this by itself. Does nothing while a keeper runs, and leaves groups alone that are not empty.
    """
    files = KeeperFiles(data_dir)
    if files.home.exists() and read_keeper_pid(data_dir) is None:
        Cgroups.find(files.keeper_id()).close()


def _put_files(folder: str, user: str, files: tuple[tuple[FileSpec, bytes], ...]) -> None:
    if files:
        try:
            owner = find_user(user)[1:] if user else None
        except KeyError:
            owner = None  # the start says so
        put_files(Path(folder), files, owner=owner)


def _check_user(user: str) -> None:
    if not user:
        return
    try:
        uid = find_user(user)[1]
    except KeyError:
        raise InvalidError([problem("default_user", user, "must be a user of this machine")]) from None
    if os.geteuid() not in (0, uid):
        raise InvalidError([problem("default_user", user, "needs an agent that runs as root, or as that user")])


def _make_workload_directories(files: KeeperFiles, workload_id: str, *, for_user: bool) -> None:
    if for_user:  # it has to reach its own directory by its name, too
        let_others_pass(files.data_dir)
    files.workload(workload_id).mkdir(mode=0o711, parents=True, exist_ok=True)
    if for_user:
        let_others_pass(files.workload(workload_id))
    files.work(workload_id).mkdir(mode=0o755, exist_ok=True)
    files.logs(workload_id).mkdir(mode=0o750, exist_ok=True)

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
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from shoal.core.clock import Clock, from_epoch_ms
from shoal.core.errors import DeadlineError, InvalidError, PreconditionError, ShoalError, UnavailableError, problem
from shoal.core.ids import IDENTIFIER_RULE, NodeId, RunId, WorkloadId, is_identifier
from shoal.core.private_files import let_others_pass
from shoal.model.execs import ExecCommand
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.nodes import ConditionType
from shoal.model.workloads import Exit, FailureReason, ProcessSpec, Usage, WorkloadType
from shoal.runtimes.base import (
    ExecSession,
    RunError,
    RunInfo,
    RunPhase,
    RunRequest,
    port_variable,
    spec_of,
)
from shoal.runtimes.cgroups import Cgroups
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.exec_process import start_command
from shoal.runtimes.keeper import protocol
from shoal.runtimes.keeper.children import find_user
from shoal.runtimes.keeper.client import KeeperLink
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.keeper.protocol import StartMessage, start_to_json
from shoal.runtimes.keeper.records import (
    RunRecord,
    find_run_pids,
    read_keeper_pid,
    read_run_records,
    record_from_json,
)
from shoal.runtimes.log_reading import read_logs
from shoal.runtimes.usage import Meter, bytes_used

log = logging.getLogger(__name__)

__all__ = [
    "ProcessRuntime",
    "find_run_pids",
    "read_keeper_pid",
    "read_run_records",
    "remove_stray_groups",
]

#: Longer than the keeper itself gives a child to reach exec.
_START_TIMEOUT = 15.0
#: After the grace period a run is killed; this long after it, the keeper is at fault.
_STOP_MARGIN = 10.0
_HEALTH_TIMEOUT = 2.0
#: A keeper that takes this long for what takes milliseconds is late.
LATE_SECONDS = 1.0
#: What a workload gets of the agent's environment; `pass_env` adds names. All else may hold the agent's own secrets.
PASSED_ENV = ("PATH", "HOME", "LANG", "TZ")
_OF_THE_USER = ("HOME", "USER", "LOGNAME", "MAIL")


class ProcessRuntime:
    """Runs workloads as processes. Implements `Runtime` and all of its optional parts."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock,
        node_id: NodeId,
        pass_env: Sequence[str] = (),
        default_user: str = "",
    ) -> None:
        self._files = KeeperFiles(data_dir)
        self._passed = frozenset({*PASSED_ENV, *pass_env})
        self._default_user = default_user
        self._clock = clock
        self._node_id = node_id
        self._link = KeeperLink(self._files, clock=clock)
        self._meter = Meter(clock)
        self._answered_at = 0.0
        self._late = 0.0

    @property
    def type(self) -> WorkloadType:
        """Processes."""
        return WorkloadType.PROCESS

    def limits(self) -> str:
        """How runs are limited: `cgroup v1`, `cgroup v2`, or `none: ` and why."""
        return str(self._link.hello.get("limits", "none: there is no keeper"))

    async def open(self) -> None:
        """Find the keeper or start one. Raises `UnavailableError`, `DeadlineError`, or `InvalidError` for the user."""
        _check_user(self._default_user)
        try:
            self._files.make()
            await self._link.open()
        except OSError as error:
            raise UnavailableError(f"the process runtime cannot be opened: {error}") from error
        self._answered_at = self._clock.monotonic()
        if self.limits().startswith("none"):
            log.warning("processes run without memory and CPU limits: %s", self.limits().removeprefix("none: "))

    async def close(self) -> None:
        """Let go of the keeper. Runs go on; a keeper without any ends."""
        await self._link.close()

    async def health(self) -> str:
        """`healthy`, or `unhealthy: ` and why."""
        asked_at = self._clock.monotonic()
        try:
            status = await self._link.call("ping", timeout=_HEALTH_TIMEOUT)
        except ShoalError as error:
            self._late = self._clock.monotonic() - self._answered_at
            return f"unhealthy: {error}"
        self._answered_at = self._clock.monotonic()
        late = max(self._answered_at - asked_at, float(status.get("late", 0.0)))
        self._late = late if late >= LATE_SECONDS else 0.0
        if not self._link.serves_in_full:
            return "unhealthy: the keeper is of another version and can only be wound down"
        failing = status.get("log_errors", {})
        if failing:
            name, why = next(iter(failing.items()))
            return f"unhealthy: the output of {len(failing)} workloads is being lost, such as {name}: {why}"
        return "healthy"

    def lateness(self) -> float:
        """Seconds by which the keeper was late when `health` was last asked; 0 when it was in time."""
        return self._late

    def conditions(self) -> Mapping[ConditionType, str]:
        """What was wrong with the keeper when `health` was last asked."""
        conditions = {}
        if self._late:
            why = "it was stopped, its disk is slow, or the machine is overloaded"
            words = f"the keeper (pid {self._link.hello.get('pid', '?')}) is {self._late:.0f} s late: {why}"
            conditions[ConditionType.KEEPER_LATE] = words
        found = sorted(run_id for run_id, run in self._link.runs.items() if run.found and run.exit is None)
        if found:
            conditions[ConditionType.ORPHANED_PROCESSES] = (
                f"{len(found)} runs had no readable record and were found by their processes: {', '.join(found[:10])}"
            )
        return conditions

    # --- runs ---------------------------------------------------------------------------------------------

    async def start(self, request: RunRequest) -> RunInfo:
        """Start a run, or return what is known of it. Raises `RunError`; `DeadlineError` when the outcome is open."""
        _check_ids(request)
        if self._link.hello and not self._link.serves_in_full:
            raise RunError(
                "the keeper is of another version and starts nothing new",
                failure=FailureReason.RUNTIME_ERROR,
                transient=True,
                hint="it is replaced as soon as its last run has ended",
            )
        start = start_to_json(self._start_message(request))
        if len(protocol.encode(start)) > protocol.MAX_LINE - 1024:
            raise RunError("command and environment are too large", failure=FailureReason.INVALID_SPEC)
        await self._make_directories(request)
        body = await self._link.call("start", timeout=_START_TIMEOUT, run=start)
        return self._noted(body["run"])

    async def stop(self, run_id: RunId) -> RunInfo | None:
        """End a run and wait until nothing of it is left. None if there is no such run."""
        while True:
            connections = self._link.connections
            body = await self._link.call("stop", run_id=run_id)
            if body["run"] is None:
                return None
            info = self._noted(body["run"])
            if info.phase is RunPhase.ENDED:
                return info
            grace = float(body["run"]["grace"])
            ended = await self._wait_ended(run_id, connections, grace + _STOP_MARGIN)
            if ended is not None:
                return ended
            # Another keeper does not know this start: ask again.

    async def _wait_ended(self, run_id: RunId, connections: int, timeout: float) -> RunInfo | None:
        """The end of a run; None when the keeper was replaced meanwhile."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    changed = self._link.changed
                    record = self._link.runs.get(run_id)
                    if record is not None and record.exit is not None:
                        return _info_of(record)
                    if self._link.connections != connections or self._link.closed:
                        return None
                    await changed.wait()
        except TimeoutError as error:
            raise DeadlineError(f"run {run_id!r} was asked to end and has not ended", seconds=timeout) from error

    async def inspect(self, run_id: RunId) -> RunInfo | None:
        """What is known of a run."""
        body = await self._link.call("inspect", run_id=run_id)
        return None if body["run"] is None else self._noted(body["run"])

    async def list_runs(self) -> tuple[RunInfo, ...]:
        """Every run that was not forgotten."""
        records = await self._link.list_all()
        for record in records.values():
            self._link.note(record)
        return tuple(_info_of(record) for record in records.values())

    async def forget(self, run_id: RunId) -> None:
        """Let go of an ended run. Raises `PreconditionError` for one that has not ended."""
        await self._link.call("forget", run_id=run_id)
        self._link.drop_run(run_id)
        self._meter.forget(run_id)

    async def forget_workload(self, workload_id: WorkloadId, *, delete_data: bool) -> None:
        """Let go of everything kept for a workload. Raises `PreconditionError` while a run of it has not ended.

        The work directory goes too: what a process wants to keep lies elsewhere.
        """
        del delete_data
        if not is_identifier(workload_id):
            raise InvalidError([problem("workload_id", workload_id, IDENTIFIER_RULE)])
        await self._link.call("forget_workload", workload_id=workload_id)
        for run_id, record in self._link.runs.items():
            if record.workload_id == workload_id:
                self._link.drop_run(run_id)
                self._meter.forget(run_id)
        try:
            await asyncio.to_thread(shutil.rmtree, self._files.workload(workload_id))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnavailableError(f"the files of workload {workload_id!r} cannot be removed: {error}") from error

    async def watch(self) -> AsyncIterator[RunInfo]:
        """Each run as it ends, those included that ended before. Ends when the runtime is closed."""
        seen: set[str] = set()
        while not self._link.closed:
            changed = self._link.changed
            ended = {run_id: record for run_id, record in self._link.runs.items() if record.exit is not None}
            seen &= ended.keys()
            for run_id, record in ended.items():
                if run_id not in seen:
                    seen.add(run_id)
                    yield _info_of(record)
            await changed.wait()

    # --- what only some runtimes can do -------------------------------------------------------------------

    async def extend_deadlines(self, run_ids: tuple[RunId, ...], until: float) -> None:
        """Let at-most-one runs go on until then: each is killed then, unless extended again."""
        if run_ids:
            await self._link.extend(run_ids, until=self._on_boottime(until))

    async def run_probe(self, run_id: RunId, command: tuple[str, ...], *, timeout: float) -> bool:
        """Whether a command exits with 0 in time, in the surroundings of a run."""
        body = await self._link.call(
            "probe", timeout=timeout + _HEALTH_TIMEOUT, run_id=run_id, command=list(command), seconds=timeout
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

    async def usage(self, run_id: RunId) -> Usage | None:
        """What a run uses now; None when it does not run."""
        record = self._link.runs.get(run_id)
        if record is None or record.exit is not None:
            self._meter.forget(run_id)
            return None
        return await self._meter.read(record)

    def read_logs(self, workload_id: WorkloadId, query: LogQuery) -> AsyncIterator[LogPiece]:
        """The output of a workload, oldest first."""
        if not is_identifier(workload_id):
            raise InvalidError([problem("workload_id", workload_id, IDENTIFIER_RULE)])
        return read_logs(self._files.logs(workload_id), workload_id, query, self._clock)

    # --- preparing ----------------------------------------------------------------------------------------

    def _start_message(self, request: RunRequest) -> StartMessage:
        spec = spec_of(request, ProcessSpec)
        own_dir = not spec.working_dir
        working_dir = str(self._files.work(request.workload_id)) if own_dir else spec.working_dir
        return StartMessage(
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

    def _on_boottime(self, moment: float) -> float:
        """A moment of the agent's clock on the clock that keeper and watchdogs count by.

        That one is read first: a process that is stopped between the two readings must not gain what passes meanwhile.
        Moments, not durations, go to the keeper: a message that is read late, or sent again to its successor, means
        the same.
        """
        now = LinuxClock().boottime()
        return now + (moment - self._clock.monotonic())

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

    def _noted(self, body: Mapping[str, object]) -> RunInfo:
        record = record_from_json(body)
        self._link.note(record)
        return _info_of(record)


def remove_stray_groups(data_dir: Path) -> None:
    """Remove the cgroups of a keeper that was killed with its runs and will have no successor.

    A successor does this by itself. Does nothing while a keeper runs, and leaves groups alone that are not empty.
    """
    files = KeeperFiles(data_dir)
    if files.home.exists() and read_keeper_pid(data_dir) is None:
        Cgroups.find(files.keeper_id()).close()


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
    files.work(workload_id).mkdir(mode=0o755, exist_ok=True)
    files.logs(workload_id).mkdir(mode=0o750, exist_ok=True)


def _check_ids(request: RunRequest) -> None:
    problems = [
        problem(field, value, IDENTIFIER_RULE)
        for field, value in (("run_id", request.run_id), ("workload_id", request.workload_id))
        if not is_identifier(value)
    ]
    if problems:
        raise InvalidError(problems)


def _info_of(record: RunRecord) -> RunInfo:
    ending = record.exit
    return RunInfo(
        run_id=record.run_id,
        workload_id=WorkloadId(record.workload_id),
        phase=RunPhase.RUNNING if ending is None else RunPhase.ENDED,
        started_at=from_epoch_ms(record.started_at_ms),
        pid=record.pid,
        exit=None
        if ending is None
        else Exit(
            code=ending.code,
            signal=ending.signal,
            unknown=ending.unknown,
            ended_at=from_epoch_ms(ending.ended_at_ms),
            out_of_memory=ending.out_of_memory,
        ),
        ports=record.ports,
        last_output=record.last_output,
        ended_by="" if ending is None else record.ended_by,
    )

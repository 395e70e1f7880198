"""Runs that are processes of the agent's keeper: what the process runtime and the VM runtime have in common.

This is the agent's half. The keeper (`shoal.runtimes.keeper`) owns the processes, so they survive the agent, and their
exits are on disk when it returns. A runtime starts runs of its own kind and sees only those. Subclassed by
`shoal.runtimes.process` and `shoal.runtimes.vm.runtime`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from shoal.core.clock import Clock, from_epoch_ms
from shoal.core.errors import DeadlineError, InvalidError, ShoalError, UnavailableError, problem
from shoal.core.ids import IDENTIFIER_RULE, RunId, WorkloadId, is_identifier
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.nodes import ConditionType
from shoal.model.workloads import Exit, FailureReason, Usage
from shoal.runtimes.base import HEALTHY, RunError, RunInfo, RunPhase, RunRequest
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.keeper import protocol
from shoal.runtimes.keeper.client import KeeperLink
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.keeper.launcher import IDLE_SECONDS
from shoal.runtimes.keeper.protocol import StartMessage, start_to_json
from shoal.runtimes.keeper.records import RunRecord, record_from_json
from shoal.runtimes.log_reading import read_logs
from shoal.runtimes.usage import Meter

log = logging.getLogger(__name__)

#: Longer than the keeper itself gives a child to reach exec.
_START_TIMEOUT = 15.0
#: After the grace period a run is killed; this long after it, the keeper is at fault.
_STOP_MARGIN = 10.0
HEALTH_TIMEOUT = 2.0
#: A keeper that takes this long for what takes milliseconds is late.
LATE_SECONDS = 1.0


class KeptRuns:
    """The runs of one kind under the keeper of a data directory."""

    def __init__(self, data_dir: Path, *, clock: Clock, kind: str, keeper_idle: float = IDLE_SECONDS) -> None:
        self._files = KeeperFiles(data_dir)
        self._clock = clock
        self._kind = kind
        self._link = KeeperLink(self._files, clock=clock, oldest_keeper=protocol.KINDS[kind], idle=keeper_idle)
        self._meter = Meter(clock)
        self._answered_at = 0.0
        self._late = 0.0

    def limits(self) -> str:
        """How runs are limited: `cgroup v1`, `cgroup v2`, or `none: ` and why."""
        return str(self._link.hello.get("limits", "none: there is no keeper"))

    async def _open(self) -> None:
        """Find the keeper or start one. Raises `UnavailableError` or `DeadlineError`."""
        try:
            self._files.make()
            await self._link.open()
        except OSError as error:
            raise UnavailableError(f"the keeper of {self._files.data_dir} cannot be reached: {error}") from error
        self._answered_at = self._clock.monotonic()

    async def close(self) -> None:
        """Let go of the keeper. Runs go on; a keeper without any ends."""
        await self._link.close()

    async def health(self) -> str:
        """`healthy`, or `unhealthy: ` and why."""
        asked_at = self._clock.monotonic()
        try:
            status = await self._link.call("ping", timeout=HEALTH_TIMEOUT)
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
        return HEALTHY

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
        found = sorted(run_id for run_id, run in self._own_runs.items() if run.found and run.exit is None)
        if found:
            conditions[ConditionType.ORPHANED_PROCESSES] = (
                f"{len(found)} runs had no readable record and were found by their processes: {', '.join(found[:10])}"
            )
        return conditions

    # --- runs ---------------------------------------------------------------------------------------------

    async def _start(self, message: StartMessage) -> RunInfo:
        """Start a run, or return what is known of it. Raises `RunError`; `DeadlineError` when the outcome is open."""
        if self._link.hello and not self._link.serves_in_full:
            raise RunError(
                "the keeper is of another version and starts nothing new",
                failure=FailureReason.RUNTIME_ERROR,
                transient=True,
                hint="it is replaced as soon as its last run has ended",
            )
        start = start_to_json(message)
        if len(protocol.encode(start)) > protocol.MAX_LINE - 1024:
            raise RunError("command and environment are too large", failure=FailureReason.INVALID_SPEC)
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
                        return info_of(record)
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
        records = (await self._link.list_all()).values()
        for record in records:
            self._link.note(record)
        return tuple(info_of(record) for record in records if record.kind == self._kind)

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
            ended = {run_id: record for run_id, record in self._own_runs.items() if record.exit is not None}
            seen &= ended.keys()
            for run_id, record in ended.items():
                if run_id not in seen:
                    seen.add(run_id)
                    yield info_of(record)
            await changed.wait()

    # --- what only some runtimes can do -------------------------------------------------------------------

    async def extend_deadlines(self, run_ids: tuple[RunId, ...], until: float) -> None:
        """Let at-most-one runs go on until then: each is killed then, unless extended again."""
        if run_ids:
            await self._link.extend(run_ids, until=self._on_boottime(until))

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

    @property
    def _own_runs(self) -> dict[RunId, RunRecord]:
        return {run_id: record for run_id, record in self._link.runs.items() if record.kind == self._kind}

    def _on_boottime(self, moment: float) -> float:
        """A moment of the agent's clock on the clock that keeper and watchdogs count by.

        That one is read first: a process that is stopped between the two readings must not gain what passes meanwhile.
        Moments, not durations, go to the keeper: a message that is read late, or sent again to its successor, means
        the same.
        """
        now = LinuxClock().boottime()
        return now + (moment - self._clock.monotonic())

    def _noted(self, body: Mapping[str, object]) -> RunInfo:
        record = record_from_json(body)
        self._link.note(record)
        return info_of(record)


def check_ids(request: RunRequest) -> None:
    """Raise `InvalidError` for ids that cannot be names of files."""
    problems = [
        problem(field, value, IDENTIFIER_RULE)
        for field, value in (("run_id", request.run_id), ("workload_id", request.workload_id))
        if not is_identifier(value)
    ]
    if problems:
        raise InvalidError(problems)


def info_of(record: RunRecord) -> RunInfo:
    """A run as the agent sees it."""
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

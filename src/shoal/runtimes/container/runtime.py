"""The container runtime: one container per run, created, watched and removed through the Docker Engine API.

A container carries the run in its labels, so a restarted agent finds its runs in the engine. When a run ends, its exit,
its output and its last lines are stored by the agent first; then the container is removed. Containers of other agents
and other programs are never touched. While the engine is down, runs are known from the records and nothing is concluded
about them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core import faults
from shoal.core.clock import Clock, epoch_ms
from shoal.core.errors import (
    DeadlineError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    problem,
)
from shoal.core.ids import IDENTIFIER_RULE, RunId, WorkloadId, is_identifier
from shoal.core.tasks import TaskScope, to_the_end
from shoal.model.execs import ExecCommand, ExecEnd
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.workloads import ContainerSpec, EndedBy, FailureReason, FileSpec, Usage, WorkloadType
from shoal.runtimes import log_files
from shoal.runtimes.base import ExecSession, RunError, RunInfo, RunRequest, Tell, checked_spec
from shoal.runtimes.container import images
from shoal.runtimes.container.attention import Attention
from shoal.runtimes.container.creating import RUN_LABEL, TRIAL_LABEL, WORKLOAD_LABEL, Owner, RunLabels, read_labels
from shoal.runtimes.container.engine.api import EngineApi, EngineError
from shoal.runtimes.container.engine.connection import Connect, EngineConnection
from shoal.runtimes.container.exec import start_command
from shoal.runtimes.container.files import write_files
from shoal.runtimes.container.memory_kills import MemoryKills
from shoal.runtimes.container.output import OutputCopies
from shoal.runtimes.container.records import ContainerRun, RunEnd, RunRecords, is_process_of, run_from_json, watch_ended
from shoal.runtimes.container.starting import Starter
from shoal.runtimes.container.states import end_of, has_started, is_running, millis
from shoal.runtimes.guard.client import Guard
from shoal.runtimes.guard.warnings import DeadlineWarnings
from shoal.runtimes.log_reading import read_logs
from shoal.runtimes.usage import Meter

log = logging.getLogger(__name__)

#: A container that was killed and is still there after this long: the engine is at fault.
_KILL_SECONDS = 30.0
_POLL_SECONDS = 0.05
_LAST_OUTPUT_BYTES = 4096
#: How long a comparison waits for what is done about single containers. What takes longer goes on beside it.
_SETTLE_SECONDS = 5.0


class ContainerRuntime:
    """Runs workloads as containers. Implements `Runtime`."""

    #: Of its records, in the data directory.
    DIRECTORY = "containers"

    def __init__(
        self, data_dir: Path, *, clock: Clock, owner: Owner, connect: Connect, allow_privileged: bool = False
    ) -> None:
        """`connect` finds the engine; it is called again after the engine was lost."""
        self._clock = clock
        self._owner = owner
        self._workloads = data_dir / "workloads"
        self._records = RunRecords(data_dir / self.DIRECTORY, run_from_json)
        self._memory = MemoryKills()
        self._meter = Meter(clock)
        self._healthchecks = images.Healthchecks()
        self._guard = Guard(data_dir / self.DIRECTORY / "guard", clock=clock)
        self._connection = EngineConnection(connect, self._compare, clock=clock, labels=owner.labels)
        self._starter = Starter(
            self._workloads, owner=owner, guard=self._guard, clock=clock, allow_privileged=allow_privileged
        )
        self._scope = TaskScope("containers")
        self._output = OutputCopies(self._logs_of, self._scope, clock)
        self._attention = Attention(self._scope, clock)
        self._changed = asyncio.Condition()
        #: Held while a container of the workload is made.
        self._starting: dict[str, asyncio.Lock] = {}
        #: The run of each workload whose image was fetched and that has not started yet.
        self._fetched: dict[WorkloadId, RunId] = {}
        #: One writer of a run's record at a time.
        self._writing: dict[RunId, asyncio.Lock] = {}
        self._warnings = DeadlineWarnings(self._scope, clock, self._ask)

    @property
    def type(self) -> WorkloadType:
        """Containers."""
        return WorkloadType.CONTAINER

    # --- life of the runtime ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read what is stored and compare it with the engine. An engine that is down is looked for again and again."""
        await asyncio.to_thread(self._records.load)
        await self._guard.open()
        await self._connection.open(self._scope)
        self._scope.start(self._warnings.follow(), name="deadlines")

    async def close(self) -> None:
        """Let go of the engine. Containers go on."""
        await self._scope.close()
        self._memory.close()
        await self._connection.close()
        await self._guard.close()

    async def health(self) -> str:
        """`healthy`, or `unhealthy: ` and why."""
        return await self._connection.health()

    # --- runs ---------------------------------------------------------------------------------------------

    async def fetch(self, request: RunRequest, *, tell: Tell | None = None) -> None:
        """Have the image of a run at hand. Raises `RunError`."""
        spec = checked_spec(request, ContainerSpec)
        if request.run_id not in self._records.runs:
            await self._starter.make_ready(self._connection.engine(), spec, tell=tell)
            self._fetched[request.workload_id] = request.run_id

    async def start(self, request: RunRequest) -> RunInfo:
        """Start a run, or return what is known of it. Raises `RunError`; other errors leave the outcome open."""
        spec = checked_spec(request, ContainerSpec)
        async with self._lock(request.workload_id):
            known = self._records.runs.get(request.run_id)
            if known is not None:
                return known.info
            api = self._connection.engine()
            if self._fetched.pop(request.workload_id, None) != request.run_id:
                await self._starter.make_ready(api, spec)
            # A few short calls. Cut off in between, nobody could tell what the engine has done by now.
            run = await to_the_end(self._start(api, request, spec))
        return run.info

    async def _start(self, api: EngineApi, request: RunRequest, spec: ContainerSpec) -> ContainerRun:
        await asyncio.to_thread(self._records.mark, request.run_id)
        try:
            run = await self._make_room(api, request)
            if run is None:
                run = await self._make(api, request, spec)
        except RunError:
            await asyncio.to_thread(self._records.unmark, request.run_id)
            raise
        if run is None:
            raise UnavailableError(f"the container of run {request.run_id!r} lost its labels")
        if request.deadline is not None:
            self._warnings.plan(run.run_id, request.deadline, grace=run.grace)
        return run

    async def prepare(self, request: RunRequest) -> None:
        """Have the image, and see that the container can be made."""
        await self._starter.prepare(self._connection.engine(), request, checked_spec(request, ContainerSpec))

    async def stop(self, run_id: RunId) -> RunInfo | None:
        """Ask the main process to end, kill what is left after the grace period, and wait for the end."""
        run = self._records.runs.get(run_id) or await self._find_left(run_id)
        if run is None:
            await asyncio.to_thread(self._records.unmark, run_id)
            return None
        if run.end is not None:
            return run.info
        await self._note_ending(run_id, by="stop")
        api = self._connection.engine()
        await api.kill(run.container_id, run.stop_signal)
        ended = await self._wait_end(run_id, run.grace)
        if ended is None:
            await api.kill(run.container_id, "SIGKILL")
            ended = await self._wait_end(run_id, _KILL_SECONDS)
        if ended is None:
            raise DeadlineError(f"run {run_id!r} was killed and its container has not ended", seconds=_KILL_SECONDS)
        return ended

    async def inspect(self, run_id: RunId) -> RunInfo | None:
        """What is known of a run."""
        run = self._records.runs.get(run_id)
        if run is None:
            self._connection.check_compared()
        api = self._connection.current
        if run is not None and run.end is None and api is not None:
            with contextlib.suppress(UnavailableError, DeadlineError):
                await self._look_at(api, run)
        run = self._records.runs.get(run_id)
        return None if run is None else run.info

    async def list_runs(self) -> tuple[RunInfo, ...]:
        """Every run that was not forgotten."""
        return tuple(run.info for run in self._records.runs.values())

    async def forget(self, run_id: RunId) -> None:
        """Let go of an ended run. Raises `PreconditionError` for one that has not ended."""
        run = self._records.runs.get(run_id)
        if run is None:
            return
        if run.end is None:
            raise PreconditionError(f"run {run_id!r} has not ended")
        await self._drop(run_id)

    async def forget_workload(self, workload_id: WorkloadId, *, delete_data: bool) -> None:
        """Let go of everything kept for a workload. Raises `PreconditionError` while a run of it has not ended."""
        del delete_data
        if not is_identifier(workload_id):
            raise InvalidError([problem("workload_id", workload_id, IDENTIFIER_RULE)])
        self._connection.check_compared()
        runs = [run for run in self._records.runs.values() if run.workload_id == workload_id]
        if any(run.end is None for run in runs):
            raise PreconditionError(f"a run of workload {workload_id!r} has not ended")
        await self._remove_unstarted(workload_id)
        for run in runs:
            await self._drop(run.run_id)
        await asyncio.to_thread(shutil.rmtree, self._workloads / workload_id, ignore_errors=True)
        self._starting.pop(workload_id, None)
        self._fetched.pop(workload_id, None)

    def watch(self) -> AsyncIterator[RunInfo]:
        """Each run as it ends, those that ended before first."""
        return watch_ended(self._records.runs, self._changed)

    async def read_logs(self, workload_id: WorkloadId, query: LogQuery) -> AsyncIterator[LogPiece]:
        """The output of a workload, oldest first."""
        if not is_identifier(workload_id):
            raise InvalidError([problem("workload_id", workload_id, IDENTIFIER_RULE)])
        async for piece in read_logs(self._logs_of(workload_id), workload_id, query, self._clock):
            yield piece

    async def usage(self, run_id: RunId) -> Usage | None:
        """What a run uses now; None when it does not run, and for one whose processes are not on this machine."""
        run = self._records.runs.get(run_id)
        if run is None or run.end is not None or not is_process_of(run.pid, run.container_id, run_id):
            self._meter.forget(run_id)
            return None
        return await self._meter.read(run)

    async def run_probe(self, run_id: RunId, command: tuple[str, ...], *, timeout: float) -> bool:
        """Whether a command exits with 0 in time, inside the container of a run."""
        run = self._records.runs.get(run_id)
        if run is None or run.end is not None:
            return False
        session = None
        try:
            async with asyncio.timeout(timeout):
                wanted = ExecCommand(command)
                session = await start_command(self._connection.engine(), run.container_id, wanted, self._clock)
                async for _ in session.output():
                    pass
                return await session.wait() == ExecEnd(code=0)
        except (TimeoutError, EngineError, RunError):
            return False
        finally:
            if session is not None:
                await session.close()

    async def exec(self, run_id: RunId, command: ExecCommand) -> ExecSession:
        """Run a command inside the container of a run."""
        run = self._records.runs.get(run_id)
        if run is None or run.end is not None:
            raise PreconditionError(f"run {run_id!r} does not run")
        return await start_command(self._connection.engine(), run.container_id, command, self._clock)

    async def replace_files(self, run_id: RunId, files: tuple[tuple[FileSpec, bytes], ...]) -> None:
        """Put new contents into the files of a run; the container sees them at once."""
        run = self._records.runs.get(run_id)
        if run is None:
            raise NotFoundError("run", run_id)
        await asyncio.to_thread(write_files, self._starter.files_of(run.workload_id), files)

    async def extend_deadlines(self, run_ids: tuple[RunId, ...], until: float) -> None:
        """Let at-most-one runs go on until then: each is killed then, unless extended again."""
        runs = [run for run_id in run_ids if (run := self._records.runs.get(run_id)) is not None]
        self._guard.extend((run.container_id for run in runs), until)
        for run in runs:
            if run.end is None and run.at_most_one:
                self._warnings.plan(run.run_id, until, grace=run.grace)

    # --- starting -----------------------------------------------------------------------------------------

    async def _make_room(self, api: EngineApi, request: RunRequest) -> ContainerRun | None:
        """Free the name of a workload's container; the run itself when it was started already.

        An agent that was killed may have left a container that never started, the run itself, or an earlier run.
        An earlier run is stopped first: there are never two.
        """
        name = self._owner.name_of(request.workload_id)
        found = await api.container(name)
        if found is None:
            return None
        labels = (found.get("Config") or {}).get("Labels") or {}
        if any(labels.get(key) != value for key, value in self._owner.labels.items()):
            raise RunError(
                f"the name {name} is taken by a container that is not this agent's",
                failure=FailureReason.RUNTIME_ERROR,
                transient=True,
                hint=f"remove it, or give it another name: it has the id {str(found.get('Id'))[:12]}",
            )
        if not has_started(found):
            await self._remove(api, str(found["Id"]))
            return None
        run = await self._adopt(api, found)
        if run is None or run.run_id == request.run_id:
            return run
        if run.end is None:
            log.warning("run %s ends first: run %s of the same workload starts", run.run_id, request.run_id)
            await self.stop(run.run_id)
        await self._remove(api, run.container_id)
        return None

    async def _make(self, api: EngineApi, request: RunRequest, spec: ContainerSpec) -> ContainerRun | None:
        """Make and start the container of a run."""
        try:
            return await self._adopt(api, await self._starter.start(api, request, spec))
        except RunError:
            if request.deadline is None or self._clock.monotonic() < request.deadline:
                raise
        # Its guard has killed what the engine was starting.
        now = epoch_ms(self._clock.wall())
        return await self._take_in(
            ContainerRun(
                run_id=request.run_id,
                workload_id=request.workload_id,
                container_id="",
                started_at_ms=now,
                pid=0,
                stop_signal="SIGKILL",
                grace=0.0,
                ports=dict(request.ports),
                end=RunEnd(signal=signal.SIGKILL, ended_at_ms=now),
                ended_by=EndedBy.DEADLINE,
                at_most_one=True,
            )
        )

    async def _adopt(self, api: EngineApi, found: dict[str, Any]) -> ContainerRun | None:
        """Take a started container of ours into the records, with its end if it has ended."""
        labels = read_labels((found.get("Config") or {}).get("Labels") or {})
        if labels is None:
            return None
        run = self._records.runs.get(labels.run_id)
        if run is None:
            healthcheck = await self._healthchecks.of(api, str(found.get("Image") or ""))
            run = await self._take_in(_run_of(labels, found, healthcheck))
        if run.end is None:
            if is_running(found):
                await self._follow_run(api, run)
            else:
                await self._end(api, run, found)
        return self._records.runs.get(labels.run_id, run)

    async def _find_left(self, run_id: RunId) -> ContainerRun | None:
        """A run that an interrupted start left in the engine without a record. One that never ran is removed."""
        api = self._connection.engine()
        left = None
        for each in await api.containers({**self._owner.labels, RUN_LABEL: run_id}):
            found = await api.container(str(each["Id"]))
            if found is not None and has_started(found):
                left = await self._adopt(api, found)
            elif found is not None and TRIAL_LABEL not in (each.get("Labels") or {}):
                await self._remove(api, str(each["Id"]))
        return left

    async def _follow_run(self, api: EngineApi, run: ContainerRun) -> None:
        """Watch a container that runs, unless that is done already."""
        self._memory.watch(run.run_id, run.pid, run.container_id)
        await self._output.begin(api, run.run_id, run.workload_id, run.container_id)
        if run.at_most_one and self._guard.seconds_left(run.container_id) is None and not run.ended_by:
            # Its guards are gone with an earlier agent, and nobody knows its deadline.
            log.warning("run %s: its deadline is lost, and it is killed", run.run_id)
            await self._note_ending(run.run_id, by="deadline")
            self._attention.give(run.container_id, lambda: api.kill(run.container_id, "SIGKILL"))

    async def _remove_unstarted(self, workload_id: WorkloadId) -> None:
        """Remove containers of a workload that were made and never started; later, if the engine is away."""
        api = self._connection.current
        if api is None:
            return
        with contextlib.suppress(UnavailableError, DeadlineError):
            for each in await api.containers({**self._owner.labels, WORKLOAD_LABEL: workload_id}):
                if each.get("State") == "created" and RUN_LABEL in (each.get("Labels") or {}):
                    await self._remove(api, str(each["Id"]))

    async def _remove(self, api: EngineApi, container_id: str) -> None:
        await api.remove(container_id)
        self._guard.release(container_id)

    # --- following the engine -----------------------------------------------------------------------------

    async def _ask(self, run_id: RunId) -> None:
        """The deadline of a run is near."""
        run = self._records.runs.get(run_id)
        if run is not None and run.end is None:
            await self._note_ending(run_id, by="deadline")
            await self._connection.engine().kill(run.container_id, run.stop_signal)

    async def _compare(self, api: EngineApi) -> float | None:
        """Compare the records with the engine: take in what was missed, and end what is gone.

        Each container is looked at on its own. In how many seconds one of them is to be tried again, or None.
        """
        guarded = self._guard.container_ids
        # Those of compose projects carry no such label.
        listed = [each for each in await api.containers(self._owner.labels) if RUN_LABEL in (each.get("Labels") or {})]
        containers = {str(each["Id"]): each for each in listed}
        known = {run.container_id for run in self._records.runs.values()}
        if left := guarded - containers.keys() - known:  # somebody removed them while no agent knew them
            await api.check_identity()
            for container_id in left:
                self._guard.release(container_id)
        for run in list(self._records.runs.values()):
            if run.end is None and (containers.get(run.container_id) or {}).get("State") == "running":
                await self._follow_run(api, run)
            elif run.end is None:
                self._attention.give(run.container_id, partial(self._look_at, api, run))
            elif run.container_id in containers:  # stored before, and not removed yet
                self._attention.give(run.container_id, partial(self._remove, api, run.container_id))
        for container_id in containers.keys() - known:
            self._attention.give(container_id, partial(self._take_up, api, containers[container_id]))
        self._attention.forget_others(containers.keys() | known)
        again = await self._attention.settle(_SETTLE_SECONDS)
        if again is None:
            await asyncio.to_thread(self._records.forget_left)
        return again

    async def _take_up(self, api: EngineApi, listed: Mapping[str, Any]) -> None:
        """Adopt a container that is not known, or remove one that never ran: an agent that was killed left it."""
        container_id, labels = str(listed["Id"]), listed.get("Labels") or {}
        if TRIAL_LABEL in labels:
            if container_id not in self._starter.trials:
                await api.remove(container_id)
            return
        async with self._lock(WorkloadId(labels.get(WORKLOAD_LABEL, ""))):  # it may be being started now
            found = await api.container(container_id)
            if found is None:
                return
            if has_started(found):
                await self._adopt(api, found)
            else:
                await self._remove(api, container_id)

    async def _look_at(self, api: EngineApi, run: ContainerRun) -> None:
        found = await api.container(run.container_id)
        if found is None:
            await api.check_identity()
        if found is None or not is_running(found):
            await self._end(api, run, found)

    async def _end(self, api: EngineApi, run: ContainerRun, found: dict[str, Any] | None) -> None:
        """Store the end of a run, then remove its container."""
        async with self._writer_of(run.run_id):
            current = self._records.runs.get(run.run_id)
            if current is None or current.end is not None:
                return
            faults.reach("container.end.before")
            output = await self._last_output(api, run, is_there=found is not None)
            by = current.ended_by or ("deadline" if self._guard.seconds_left(run.container_id) == 0.0 else "")
            end = self._end_of(run, found)
            await self._put(dataclasses.replace(current, end=end, ended_by=by, last_output=output))
        self._warnings.drop(run.run_id)
        faults.reach("container.remove.before")
        if found is not None:
            with contextlib.suppress(EngineError):
                await self._remove(api, run.container_id)
        else:
            self._guard.release(run.container_id)

    def _end_of(self, run: ContainerRun, found: dict[str, Any] | None) -> RunEnd:
        out_of_memory = self._memory.ran_out(run.run_id)
        if found is None:
            return RunEnd(unknown=True, ended_at_ms=epoch_ms(self._clock.wall()), out_of_memory=out_of_memory)
        return end_of(found["State"], epoch_ms(self._clock.wall()), out_of_memory=out_of_memory)

    async def _last_output(self, api: EngineApi, run: ContainerRun, *, is_there: bool) -> str:
        if is_there:
            await self._output.finish(api, run.run_id, run.workload_id, run.container_id)
        output = await asyncio.to_thread(
            log_files.last_output, self._logs_of(run.workload_id), run_id=run.run_id, limit=_LAST_OUTPUT_BYTES
        )
        return output.decode(errors="replace")

    async def _wait_end(self, run_id: RunId, seconds: float) -> RunInfo | None:
        """The end of a run, or None when it has not ended in time."""
        deadline = self._clock.monotonic() + seconds
        while True:
            run = self._records.runs.get(run_id)
            if run is None or run.end is not None:
                return None if run is None else run.info
            await self._look_at(self._connection.engine(), run)
            current = self._records.runs.get(run_id)
            if current is not None and current.end is not None:
                return current.info
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return None
            await self._clock.sleep(min(_POLL_SECONDS, left))

    def _logs_of(self, workload_id: str) -> Path:
        return self._workloads / workload_id / "logs"

    # --- records ------------------------------------------------------------------------------------------

    def _lock(self, workload_id: WorkloadId) -> asyncio.Lock:
        return self._starting.setdefault(workload_id, asyncio.Lock())

    def _writer_of(self, run_id: RunId) -> asyncio.Lock:
        return self._writing.setdefault(run_id, asyncio.Lock())

    async def _take_in(self, run: ContainerRun) -> ContainerRun:
        """Write a run down, unless that was done meanwhile; the run as it is known."""
        async with self._writer_of(run.run_id):
            known = self._records.runs.get(run.run_id)
            if known is None:
                await self._put(run)
            return known or run

    async def _note_ending(self, run_id: RunId, *, by: str) -> None:
        """Write down why a run is going to end; the first reason stays."""
        async with self._writer_of(run_id):
            run = self._records.runs.get(run_id)
            if run is not None and run.end is None and not run.ended_by:
                await asyncio.to_thread(self._records.note, dataclasses.replace(run, ended_by=by))

    async def _put(self, run: ContainerRun) -> None:
        """Store a run. Called by its only writer."""
        await asyncio.to_thread(self._records.put, run)
        async with self._changed:
            self._changed.notify_all()

    async def _drop(self, run_id: RunId) -> None:
        await asyncio.to_thread(self._records.drop, run_id)
        self._writing.pop(run_id, None)


def _run_of(labels: RunLabels, found: dict[str, Any], healthcheck: Mapping[str, Any]) -> ContainerRun:
    state = found["State"]
    return ContainerRun(
        run_id=labels.run_id,
        workload_id=labels.workload_id,
        container_id=str(found["Id"]),
        started_at_ms=millis(state.get("StartedAt")),
        pid=int(state.get("Pid") or 0),
        stop_signal=labels.stop_signal,
        grace=labels.grace,
        ports=labels.ports,
        at_most_one=labels.at_most_one,
        healthcheck=healthcheck,
    )

"""The compose runtime: one compose project per run.

The compose command only creates and starts; everything else goes through the engine, by the labels that every container
of a project carries. So an agent finds its projects again, needs no secret to stop one, and never touches what is not
its own. A run has failed once one of its services has: the others are stopped, and the agent decides what follows.
Containers and networks go when a run ends. Volumes stay until the workload is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core import faults
from shoal.core.clock import Clock, epoch_ms
from shoal.core.disk.private_files import make_private_directory
from shoal.core.errors import (
    DeadlineError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnavailableError,
    problem,
)
from shoal.core.ids import IDENTIFIER_RULE, RunId, WorkloadId, is_identifier
from shoal.core.tasks import TaskScope, to_the_end
from shoal.model.execs import ExecCommand
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.workloads import ComposeSpec, EndedBy, FailureReason, FileSpec, Usage, WorkloadType
from shoal.runtimes import log_files
from shoal.runtimes.base import ExecSession, RunError, RunInfo, RunRequest, Tell, checked_spec
from shoal.runtimes.compose.command import ComposeCommand, ComposeError, find_command, locked
from shoal.runtimes.compose.files import write_files
from shoal.runtimes.compose.members import PROJECT_LABEL, Member, MemberState, judge
from shoal.runtimes.compose.output import ProjectOutput
from shoal.runtimes.compose.previous import PreviousProjects
from shoal.runtimes.compose.project import Project, project_name, render
from shoal.runtimes.compose.records import ComposeRun, ServiceMarks, run_from_json
from shoal.runtimes.compose.refusals import build_error, check_not_taken, start_error
from shoal.runtimes.compose.source import PROJECTS, Sources
from shoal.runtimes.compose.starting import (
    RUN_LABEL,
    additions_for,
    marks_for,
    member_of,
    paths_of,
    read_run,
    service_of,
    state_of,
)
from shoal.runtimes.container.attention import Attention
from shoal.runtimes.container.creating import WORKLOAD_LABEL, Owner
from shoal.runtimes.container.engine.api import EngineApi, EngineError
from shoal.runtimes.container.engine.connection import Connect, EngineConnection
from shoal.runtimes.container.exec import start_command
from shoal.runtimes.container.images import ImagePulls
from shoal.runtimes.container.memory_kills import MemoryKills
from shoal.runtimes.container.records import RunRecords, is_process_of, watch_ended
from shoal.runtimes.container.starting import check_guarded
from shoal.runtimes.guard.client import Guard
from shoal.runtimes.guard.warnings import DeadlineWarnings
from shoal.runtimes.keeper.lives.lifecycle import LONGEST_WARNING
from shoal.runtimes.log_reading import read_logs
from shoal.runtimes.usage import Meter, add_up

log = logging.getLogger(__name__)

#: Services may wait for each other, and images may be built.
_UP_SECONDS = 600.0
_NO_COMMAND = "there is no docker compose, docker-compose or podman-compose on this machine"
_CREATE = ("up", "--no-start")
_UP = ("up", "-d")
_BUILD = ("build",)
_KILL_SECONDS = 30.0
#: How long a comparison waits for what is done about single projects. What takes longer goes on beside it.
_SETTLE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LAST_OUTPUT_BYTES = 4096


class ComposeRuntime:
    """Runs workloads as compose projects. Implements `Runtime`."""

    #: Of its records, in the data directory.
    DIRECTORY = "compose"

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock,
        owner: Owner,
        connect: Connect,
        command: ComposeCommand | None = None,
        allow_privileged: bool = False,
    ) -> None:
        """`connect` finds the engine; it is called again after the engine was lost. `command` is found when None."""
        self._clock = clock
        self._owner = owner
        self._command = command
        self._workloads = data_dir / "workloads"
        self._projects = data_dir / PROJECTS
        self._sources = Sources(data_dir, allow_privileged=allow_privileged)
        self._records: RunRecords[ComposeRun] = RunRecords(data_dir / self.DIRECTORY, run_from_json)
        self._guard = Guard(data_dir / "compose-guard", clock=clock)
        self._memory = MemoryKills()
        self._meter = Meter(clock)
        self._scope = TaskScope("compose")
        self._output = ProjectOutput(self._logs_of, self._scope, clock)
        self._connection = EngineConnection(connect, self._compare, clock=clock, labels=owner.labels)
        self._attention = Attention(self._scope, clock)
        self._pulls = ImagePulls(clock)
        self._previous = PreviousProjects(data_dir / self.DIRECTORY)
        self._warnings = DeadlineWarnings(self._scope, clock, self._end_before_deadline)
        #: The project of each workload that was fetched, and for which run.
        self._fetched: dict[WorkloadId, tuple[RunId, Project, Path]] = {}
        self._changed = asyncio.Condition()
        #: Held while a project of the workload is started, changed or ended.
        self._busy: dict[WorkloadId, asyncio.Lock] = {}
        #: Runs that have failed and are being ended.
        self._failing: set[RunId] = set()

    @property
    def type(self) -> WorkloadType:
        """Compose projects."""
        return WorkloadType.COMPOSE

    # --- life of the runtime ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read what is stored and compare it with the engine. An engine that is down is looked for again and again."""
        await asyncio.to_thread(self._records.load)
        await asyncio.to_thread(make_private_directory, self._projects)
        self._command = self._command or await find_command()
        await self._guard.open()
        await self._connection.open(self._scope)
        self._scope.start(self._warnings.follow(), name="deadlines")

    async def close(self) -> None:
        """Let go of the engine. Projects go on."""
        await self._scope.close()
        self._memory.close()
        await self._guard.close()
        await self._connection.close()

    async def health(self) -> str:
        """`healthy`, or `unhealthy: ` and why."""
        self._command = self._command or await find_command()
        return f"unhealthy: {_NO_COMMAND}" if self._command is None else await self._connection.health()

    # --- runs ---------------------------------------------------------------------------------------------

    async def prepare(self, request: RunRequest) -> None:
        """Check a project, fetch its files and pull its images. Raises `RunError`; nothing that runs is touched."""
        await self._load(self._connection.engine(), request)

    async def fetch(self, request: RunRequest, *, tell: Tell | None = None) -> None:
        """The same, for the run that is started next."""
        checked_spec(request, ComposeSpec)
        if request.run_id not in self._records.runs:
            project, folder = await self._load(self._connection.engine(), request, tell)
            self._fetched[request.workload_id] = (request.run_id, project, folder)

    async def _load(self, api: EngineApi, request: RunRequest, tell: Tell | None = None) -> tuple[Project, Path]:
        spec, paths_in_use = checked_spec(request, ComposeSpec), partial(self._paths_in_use, api, request.workload_id)
        project, folder = await self._sources.load(request, spec, engine=api.address, paths_in_use=paths_in_use)
        for image, policy in project.images:
            await self._pulls.ensure(api, image, policy, tell=tell)
        if project.is_built and not request.files:  # which are written once nothing runs
            marks = marks_for(request, spec, project, self._owner, folder=folder)
            content = render(project, additions_for(request, self._owner, marks))
            await self._compose(_BUILD, content, request.workload_id, folder)
        return project, folder

    async def _paths_in_use(self, api: EngineApi, workload_id: WorkloadId) -> set[str]:
        """What a rollback, the next start and the containers of a workload need of its directories."""
        folders = {run.folder for run in self._records.runs.values() if run.workload_id == workload_id}
        if workload_id in self._fetched:
            folders.add(str(self._fetched[workload_id][2]))
        listed = await self._containers(api, workload_id)
        return folders.union(*[paths_of(await api.container(str(each["Id"]))) for each in listed])

    async def start(self, request: RunRequest) -> RunInfo:
        """Start a run, or return what is known of it. Raises `RunError`; other errors leave the outcome open."""
        spec = checked_spec(request, ComposeSpec)
        async with self._lock(request.workload_id):
            known = self._records.runs.get(request.run_id)
            if known is not None:
                return known.info
            api = self._connection.engine()
            left = await self._find_run(api, request.workload_id)
            if left is not None and left.run_id not in self._records.runs:
                await self._adopt(api, left)
                if left.run_id == request.run_id:
                    return left.info
            run_id, project, folder = self._fetched.pop(request.workload_id, (None, None, None))
            if run_id != request.run_id or project is None or folder is None:
                project, folder = await self._load(api, request)
            async with locked(self._projects / f"{request.workload_id}.lock", self._clock) as lock:
                await self._make_room(api, request, self._name(request.workload_id))
                await asyncio.to_thread(write_files, folder, request.files)
                marks = marks_for(request, spec, project, self._owner, folder=folder)
                content = render(project, additions_for(request, self._owner, marks))
                try:
                    await self._bring_up(
                        api, request.workload_id, content, folder=folder, lock=lock, deadline=request.deadline
                    )
                except ShoalError as error:
                    # Past its deadline, its guard has killed what the engine was starting: it was started, and ended.
                    is_past = request.deadline is not None and self._clock.monotonic() >= request.deadline
                    if not (is_past and isinstance(error, RunError)):
                        with contextlib.suppress(ShoalError):
                            await self._remove_containers(api, request.workload_id)
                        raise
            # Cut off from here on, the project would run without a record.
            work = self._take_in(api, request, project, folder=folder, marks=marks, content=content)
            started = await to_the_end(work)
            # A service that has ended already did so while this start was under way, and was not looked at.
            self._connection.compare_soon()
            return started.info

    async def _take_in(
        self,
        api: EngineApi,
        request: RunRequest,
        project: Project,
        *,
        folder: Path,
        marks: Mapping[str, ServiceMarks],
        content: Mapping[str, Any],
    ) -> ComposeRun:
        """Write down a run that was brought up."""
        spec = checked_spec(request, ComposeSpec)
        members = await self._members(api, request.workload_id)
        run = ComposeRun(
            run_id=request.run_id,
            workload_id=request.workload_id,
            project=self._name(request.workload_id),
            folder=str(folder),
            started_at_ms=min((each.started_at_ms for each in members), default=epoch_ms(self._clock.wall())),
            stop_signal=f"SIG{spec.stop.signal or 'TERM'}",
            grace=spec.stop.grace.total_seconds(),
            members=members,
            waves=project.stop_waves,
            marks=marks,
            ports=request.ports,
            services=dict.fromkeys(project.services, "running"),
            stop_signals=project.stop_signals,
            at_most_one=request.deadline is not None,
            previous=await self._previous.keep(request.run_id, content, request.files),
        )
        if request.deadline is not None:
            self._warnings.plan(run.run_id, request.deadline, grace=run.grace)
        return await self._adopt(api, run)

    async def update(self, run_id: RunId, request: RunRequest) -> RunInfo:
        """Change a run in place: services whose definition changed are replaced, the others go on. Raises `RunError`.

        When the new project cannot be started, the previous one is started again.
        """
        spec = checked_spec(request, ComposeSpec)
        async with self._lock(request.workload_id):
            run = self._records.runs.get(run_id)
            if run is None or run.end is not None:
                raise PreconditionError(f"run {run_id!r} does not run")
            api = self._connection.engine()
            project, folder = await self._load(api, request)
            marks = marks_for(request, spec, project, self._owner, folder=folder, previous=run.marks)
            content = render(project, additions_for(request, self._owner, marks))
            async with locked(self._projects / f"{request.workload_id}.lock", self._clock) as lock:
                run = await self._put(dataclasses.replace(run, updating=True))
                faults.reach("compose.update.begun")
                try:
                    await asyncio.to_thread(write_files, folder, request.files)
                    await self._bring_up(
                        api, request.workload_id, content, folder=folder, lock=lock, deadline=request.deadline
                    )
                except ShoalError:
                    await self._roll_back(api, run, lock, deadline=request.deadline)
                    raise
                await self._remove_containers(api, request.workload_id, keep=project.services.keys())
            previous = await self._previous.keep(run_id, content, request.files)
            faults.reach("compose.update.stored")
            changed = dataclasses.replace(
                run,
                folder=str(folder),
                stop_signal=f"SIG{spec.stop.signal or 'TERM'}",
                grace=spec.stop.grace.total_seconds(),
                waves=project.stop_waves,
                marks=marks,
                ports=request.ports,
                services=dict.fromkeys(project.services, "running"),
                stop_signals=project.stop_signals,
                at_most_one=request.deadline is not None,
                updating=False,
                previous=previous,
            )
            changed = await self._refresh(api, changed)
            faults.reach("compose.update.after")
            await self._previous.drop_others(run_id, previous)
            self._connection.compare_soon()
        return changed.info

    async def _roll_back(self, api: EngineApi, run: ComposeRun, lock: int, *, deadline: float | None) -> None:
        """Start the project again that ran before an update, also if an earlier agent had started it."""
        previous = await self._previous.find(run.run_id, run.previous)
        if previous is None or not run.folder:
            log.warning("run %s: the project before its update is no longer known", run.run_id)
        else:
            folder = Path(run.folder)
            try:
                await asyncio.to_thread(write_files, folder, previous.files)
                await self._bring_up(
                    api, run.workload_id, previous.content, folder=folder, lock=lock, deadline=deadline
                )
                await self._remove_containers(api, run.workload_id, keep=run.service_names)
            except ShoalError as error:
                log.warning("run %s: the project before its update cannot be started: %s", run.run_id, error)
        await self._refresh(api, dataclasses.replace(run, updating=False))

    async def replace_files(self, run_id: RunId, files: tuple[tuple[FileSpec, bytes], ...]) -> None:
        """Put new contents into the files of a run. A service sees them where it mounts the directory they are in."""
        known = self._records.runs.get(run_id)
        if known is None:
            raise NotFoundError("run", run_id)
        async with self._lock(known.workload_id):
            run = self._records.runs.get(run_id)
            if run is None or run.end is not None or not run.folder:
                return
            await asyncio.to_thread(write_files, Path(run.folder), files)
            # A rollback writes these files and not the ones before.
            if (stored := await self._previous.find(run_id, run.previous)) is not None:
                name = await self._previous.keep(run_id, stored.content, files)
                await self._put(dataclasses.replace(run, previous=name))
                await self._previous.drop_others(run_id, name)

    async def stop(self, run_id: RunId) -> RunInfo | None:
        """Stop the services, those that need others first, and wait for the end."""
        run = self._records.runs.get(run_id)
        if run is None:
            return await self._stop_left(run_id)
        async with self._lock(run.workload_id):
            run = self._records.runs.get(run_id)
            if run is None or run.end is not None:
                return None if run is None else run.info
            if not run.ended_by:
                run = dataclasses.replace(run, ended_by=EndedBy.STOP)
                await asyncio.to_thread(self._records.note, run)
            ended = await self._stop_and_end(self._connection.engine(), run)
        return ended.info

    async def _stop_left(self, run_id: RunId) -> RunInfo | None:
        """End what an interrupted start left in the engine without a record. None if there is nothing.

        A project that came up whole is adopted and stopped as any other; of one that did not, containers are removed.
        """
        api = self._connection.engine()
        labels = [each.get("Labels") or {} for each in await api.containers({**self._owner.labels, RUN_LABEL: run_id})]
        for workload_id in {WorkloadId(each.get(WORKLOAD_LABEL, "")) for each in labels}:
            async with (
                self._lock(workload_id),
                locked(self._projects / f"{workload_id}.lock", self._clock),  # of a command that has not ended
            ):
                found = await self._find_run(api, workload_id)
                if found is not None and found.run_id == run_id:
                    await self._adopt(api, found)
                else:
                    await self._remove_containers(api, workload_id)
        return await self.stop(run_id) if run_id in self._records.runs else None

    async def inspect(self, run_id: RunId) -> RunInfo | None:
        """What is known of a run."""
        run = self._records.runs.get(run_id)
        if run is None:
            self._connection.check_compared()
        api = self._connection.current
        if run is not None and run.end is None and api is not None and not self._lock(run.workload_id).locked():
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
        """Let go of everything kept for a workload; of its volumes only with `delete_data`.

        Raises `PreconditionError` while a run of it has not ended.
        """
        if not is_identifier(workload_id):
            raise InvalidError([problem("workload_id", workload_id, IDENTIFIER_RULE)])
        self._connection.check_compared()
        runs = [run for run in self._records.runs.values() if run.workload_id == workload_id]
        if any(run.end is None for run in runs):
            raise PreconditionError(f"a run of workload {workload_id!r} has not ended")
        async with self._lock(workload_id):
            is_there = await asyncio.to_thread((self._projects / workload_id).exists)
            if runs or is_there:
                await self._remove_project(self._connection.engine(), workload_id, delete_data=delete_data)
            for run in runs:
                await self._drop(run.run_id)
            for path in (self._workloads / workload_id, self._projects / workload_id):
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
            (self._projects / f"{workload_id}.lock").unlink(missing_ok=True)
        self._busy.pop(workload_id, None)
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

    async def extend_deadlines(self, run_ids: tuple[RunId, ...], until: float) -> None:
        """Let at-most-one runs go on until then: each is killed then, unless extended again."""
        runs = [self._records.runs[run_id] for run_id in run_ids if run_id in self._records.runs]
        self._guard.extend([member.container_id for run in runs for member in run.members], until)
        for run in runs:
            if run.end is None and run.at_most_one:
                self._warnings.plan(run.run_id, until, grace=run.grace)

    async def usage(self, run_id: RunId) -> Usage | None:
        """What the services of a run use together; None when it does not run, or not on this machine."""
        run = self._records.runs.get(run_id)
        if run is None or run.end is not None:
            return None
        seen = [member for member in run.members if is_process_of(member.pid, member.container_id, run_id)]
        readings = [await self._meter.read(member) for member in seen]
        return add_up(readings) if readings else None

    async def exec(self, run_id: RunId, command: ExecCommand) -> ExecSession:
        """Run a command inside a container of a named service."""
        run = self._records.runs.get(run_id)
        if run is None or run.end is not None:
            raise PreconditionError(f"run {run_id!r} does not run")
        names = run.service_names
        wanted = command.service or (names[0] if len(names) == 1 else "")
        member = next((each for each in run.members if each.service == wanted), None)
        if member is None:
            raise InvalidError([problem("service", command.service, f"must be one of the services {', '.join(names)}")])
        return await start_command(self._connection.engine(), member.container_id, command, self._clock)

    # --- starting -----------------------------------------------------------------------------------------

    async def _make_room(self, api: EngineApi, request: RunRequest, name: str) -> None:
        """Stop and remove what an earlier start left: there are never two runs of a workload. Raises `RunError`."""
        check_not_taken(name, await api.containers({PROJECT_LABEL: name}), self._owner.labels)
        for run in [each for each in self._records.runs.values() if each.workload_id == request.workload_id]:
            if run.end is None and not await self._end_if_over(api, run):
                log.warning("run %s ends first: run %s of the same workload starts", run.run_id, request.run_id)
                await self._stop_and_end(api, dataclasses.replace(run, ended_by=run.ended_by or EndedBy.STOP))
        await self._remove_containers(api, request.workload_id)

    async def _bring_up(
        self,
        api: EngineApi,
        workload_id: WorkloadId,
        content: dict[str, Any],
        *,
        folder: Path,
        lock: int,
        deadline: float | None,
    ) -> None:
        """Create and start containers. Those with a deadline are guarded before they start."""
        faults.reach("compose.create.before")
        # From the files that are there now: an image keeps its name, which may be that of another version by now.
        if any(each.get("build") for each in content["services"].values()):
            await self._compose(_BUILD, content, workload_id, folder, lock=lock)
        if deadline is not None:
            await self._compose(_CREATE, content, workload_id, folder, lock=lock)
            for each in await self._containers(api, workload_id):
                await self._guard.protect(str(each["Id"]), deadline)
            faults.reach("compose.create.after")
        await self._compose(_UP, content, workload_id, folder, lock=lock)
        if deadline is not None:
            for each in await self._containers(api, workload_id):
                await check_guarded(api, self._guard, str(each["Id"]), self._clock)
        faults.reach("compose.start.after")

    async def _compose(
        self, words: tuple[str, ...], content: dict[str, Any], workload_id: WorkloadId, folder: Path, *, lock: int = -1
    ) -> None:
        api, name = self._connection.engine(), self._name(workload_id)
        if self._command is None:
            raise UnavailableError(_NO_COMMAND)
        try:
            await self._command.run(
                name, content, words, folder=folder, engine=api.address, seconds=_UP_SECONDS, lock=lock
            )
        except DeadlineError as error:
            # With everything that it had started it is dead: what it has made is removed, and made again later.
            raise RunError(error.message, failure=FailureReason.RUNTIME_ERROR, transient=True) from error
        except ComposeError as error:
            if words == _BUILD:
                raise build_error(error) from error
            raise await start_error(error, api, project=name, labels=self._labels(workload_id)) from error

    async def _members(self, api: EngineApi, workload_id: WorkloadId) -> tuple[Member, ...]:
        """The containers of a workload's project, in the order of their services."""
        found = [await api.container(str(each["Id"])) for each in await self._containers(api, workload_id)]
        members = [member_of(each) for each in found if each is not None]
        return tuple(sorted(members, key=lambda each: (each.service, each.number)))

    async def _refresh(self, api: EngineApi, run: ComposeRun) -> ComposeRun:
        """Store a run with the containers that it has now."""
        members = await self._members(api, run.workload_id)
        kept = {member.container_id for member in members}
        self._let_go(member for member in run.members if member.container_id not in kept)
        return await self._adopt(api, dataclasses.replace(run, members=members))

    def _let_go(self, members: Iterable[Member]) -> None:
        """Forget what was kept for containers that are gone."""
        for member in members:
            self._guard.release(member.container_id)
            self._memory.ran_out(member.run_id)
            self._meter.forget(member.run_id)

    async def _adopt(self, api: EngineApi, run: ComposeRun) -> ComposeRun:
        await self._put(run)
        for member in run.members:
            if member.pid:
                self._memory.watch(member.run_id, member.pid, member.container_id)
        await self._output.begin(api, run)
        return run

    # --- following the engine -----------------------------------------------------------------------------

    async def _compare(self, api: EngineApi) -> float | None:
        """Compare what is stored with the engine: take in what was missed, and end what has ended.

        Each project is looked at on its own. In how many seconds one of them is to be tried again, or None.
        """
        guarded = self._guard.container_ids
        containers = await api.containers(self._owner.labels)
        await self._release_gone(api, guarded - {str(each["Id"]) for each in containers})
        listed = [each.get("Labels") or {} for each in containers]
        runs = {each[RUN_LABEL]: WorkloadId(each.get(WORKLOAD_LABEL, "")) for each in listed if each.get(RUN_LABEL)}
        for run in list(self._records.runs.values()):
            if run.end is None and not self._lock(run.workload_id).locked():
                self._attention.give(run.run_id, partial(self._follow_run, api, run))
            elif run.end is not None and run.run_id in runs:
                self._attention.give(run.run_id, partial(self._remove_left, api, run))
        for run_id in runs.keys() - self._records.runs.keys():
            if not self._lock(runs[run_id]).locked():  # else it is being started now
                self._attention.give(run_id, partial(self._take_up, api, runs[run_id]))
        self._attention.forget_others(runs.keys() | self._records.runs.keys())
        return await self._attention.settle(_SETTLE_SECONDS)

    async def _release_gone(self, api: EngineApi, container_ids: frozenset[str]) -> None:
        """Release containers that are gone and of no run: an update that was cut off had made them."""
        runs = [run for run in self._records.runs.values() if run.end is None]
        left = container_ids - {member.container_id for run in runs for member in run.members}
        if left:
            await api.check_identity()
        for container_id in left:
            self._guard.release(container_id)

    async def _follow_run(self, api: EngineApi, run: ComposeRun) -> None:
        if run.updating:
            await self._undo_update(api, run.run_id, run.workload_id)
            return
        await self._output.begin(api, run)
        await self._look_at(api, run)
        if run.at_most_one and any(self._guard.seconds_left(each.container_id) is None for each in run.members):
            await self._end_unguarded(run.run_id, run.workload_id)

    async def _undo_update(self, api: EngineApi, run_id: RunId, workload_id: WorkloadId) -> None:
        """Return to the project before an update that was cut off, because nobody can tell how far it had come."""
        async with self._lock(workload_id), locked(self._projects / f"{workload_id}.lock", self._clock) as lock:
            run = self._records.runs.get(run_id)
            if run is None or run.end is not None or not run.updating:
                return
            log.warning("run %s: an update of it was cut off and is undone", run_id)
            # What is created anew lives as long as what it is part of.
            deadline = self._clock.monotonic() + self._seconds_left(run) if run.at_most_one else None
            await self._roll_back(api, run, lock, deadline=deadline)

    async def _end_unguarded(self, run_id: RunId, workload_id: WorkloadId) -> None:
        """Kill an at-most-one run whose guards are gone with an earlier agent: nobody knows its deadline."""
        async with self._lock(workload_id):
            run = self._records.runs.get(run_id)
            if run is None or run.end is not None:
                return
            if all(self._guard.seconds_left(each.container_id) is not None for each in run.members):
                return
            log.warning("run %s: its deadline is lost, and it is killed", run_id)
            by = run.ended_by or EndedBy.DEADLINE
            await self._stop_and_end(self._connection.engine(), dataclasses.replace(run, grace=0.0, ended_by=by))

    async def _end_before_deadline(self, run_id: RunId) -> None:
        """Stop an at-most-one run whose deadline is near. What has not ended by then its guards kill."""
        if (known := self._records.runs.get(run_id)) is None:
            return
        async with self._lock(known.workload_id):
            run = self._records.runs.get(run_id)
            if run is None or run.end is not None or (left := self._seconds_left(run)) > LONGEST_WARNING:
                return  # ended, or extended, while something else was done about the workload
            ending = dataclasses.replace(run, ended_by=run.ended_by or EndedBy.DEADLINE, grace=min(run.grace, left))
            await asyncio.to_thread(self._records.note, ending)
            await self._stop_and_end(self._connection.engine(), ending)

    def _seconds_left(self, run: ComposeRun) -> float:
        """Until guards kill the first container of an at-most-one run."""
        left = (self._guard.seconds_left(each.container_id) for each in run.members)
        return min((seconds for seconds in left if seconds is not None), default=0.0)

    async def _remove_left(self, api: EngineApi, run: ComposeRun) -> None:
        """Remove the containers of a run that has ended, if no later one has begun."""
        async with self._lock(run.workload_id):
            others = [each for each in self._records.runs.values() if each.workload_id == run.workload_id]
            if all(each.end is not None for each in others):
                await self._remove_project(api, run.workload_id, delete_data=False)

    async def _take_up(self, api: EngineApi, workload_id: WorkloadId) -> None:
        """Adopt the run of a project whose record is missing."""
        async with self._lock(workload_id):
            found = await self._find_run(api, workload_id)
            if found is not None and found.run_id not in self._records.runs:
                await self._adopt(api, found)

    async def _find_run(self, api: EngineApi, workload_id: WorkloadId) -> ComposeRun | None:
        """The run of a project whose record is missing. One that is not complete is left for a start to remove."""
        labels = [each.get("Labels") or {} for each in await self._containers(api, workload_id)]
        return read_run(labels, await self._members(api, workload_id)) if labels else None

    async def _look_at(self, api: EngineApi, run: ComposeRun) -> None:
        """Store what changed in the services of a run, and end it when it has ended or failed."""
        async with self._lock(run.workload_id):
            current = self._records.runs.get(run.run_id)
            # The containers of one whose update was cut off are others than the stored ones.
            if current is not None and current.end is None and not current.updating:
                await self._end_if_over(api, current)

    async def _end_if_over(self, api: EngineApi, run: ComposeRun) -> bool:
        """End a run whose services have all ended; whether it has. What is left of a failed one is stopped later.

        The caller holds the lock of the workload: no update comes between the list of containers and the verdict.
        """
        containers = await self._containers(api, run.workload_id)
        verdict = judge(await self._states(api, run, containers), run.service_names)
        if verdict.end is not None:
            await self._stop_and_end(api, run)
            return True
        if dict(run.services) != dict(verdict.services):
            await self._put(dataclasses.replace(run, services=verdict.services))
        if verdict.has_failed and run.run_id not in self._failing:
            # Its other services may need time to end, and other runs do not wait for that.
            self._failing.add(run.run_id)
            self._scope.start(self._end_failed(run.run_id, run.workload_id), name=f"end of {run.run_id}")
        return False

    async def _end_failed(self, run_id: RunId, workload_id: WorkloadId) -> None:
        """Stop what is left of a run that has failed. A failure to do so is met again at the next comparison."""
        try:
            async with self._lock(workload_id):
                run = self._records.runs.get(run_id)
                if run is not None and run.end is None:
                    await self._stop_and_end(self._connection.engine(), run)
        except ShoalError as error:
            log.warning("run %s has failed and could not be ended: %s", run_id, error)
        finally:
            self._failing.discard(run_id)

    async def _states(self, api: EngineApi, run: ComposeRun, containers: Sequence[dict[str, Any]]) -> list[MemberState]:
        listed = {str(each["Id"]): each for each in containers}
        if any(member.container_id not in listed for member in run.members):
            await api.check_identity()
        states: list[MemberState] = []
        for member in run.members:
            seen = listed.get(member.container_id)
            if seen is not None and seen.get("State") == "running":
                states.append(MemberState(member, is_running=True))
                continue
            found = None if seen is None else await api.container(member.container_id)
            ran_out = self._memory.has_run_out(RunId(member.container_id))
            states.append(state_of(member, found, now_ms=epoch_ms(self._clock.wall()), out_of_memory=ran_out))
        return states

    async def _stop_and_end(self, api: EngineApi, run: ComposeRun) -> ComposeRun:
        """Stop what still runs, wave by wave, then store the end of the run and remove its containers."""
        if run.updating:
            run = await self._refresh(api, dataclasses.replace(run, updating=False))
        deadline = self._clock.monotonic() + run.grace
        for wave in run.waves:
            running = await self._running(api, run, wave)
            for member in running:
                await api.kill(member.container_id, run.stop_signals.get(member.service, run.stop_signal))
            while running and self._clock.monotonic() < deadline:
                await self._clock.sleep(min(_POLL_SECONDS, max(0.0, deadline - self._clock.monotonic())))
                running = await self._running(api, run, wave)
        last = self._clock.monotonic() + _KILL_SECONDS
        while left := await self._running(api, run, run.service_names):
            if self._clock.monotonic() > last:
                raise DeadlineError(
                    f"run {run.run_id!r} was killed and its containers have not ended", seconds=_KILL_SECONDS
                )
            for member in left:
                await api.kill(member.container_id, "SIGKILL")
            await self._clock.sleep(_POLL_SECONDS)
        containers = await self._containers(api, run.workload_id)
        verdict = judge(await self._states(api, run, containers), run.service_names)
        await self._output.finish(api, run)
        output = await asyncio.to_thread(
            log_files.last_output, self._logs_of(run.workload_id), run_id=run.run_id, limit=_LAST_OUTPUT_BYTES
        )
        has_expired = any(self._guard.seconds_left(member.container_id) == 0 for member in run.members)
        ended = dataclasses.replace(
            run,
            end=verdict.end,
            ended_by=EndedBy.DEADLINE if has_expired else run.ended_by,
            services=verdict.services,
            last_output=output.decode(errors="replace"),
        )
        faults.reach("compose.end.before")
        await self._put(ended)
        faults.reach("compose.remove.before")
        self._warnings.drop(run.run_id)
        self._let_go(run.members)
        with contextlib.suppress(EngineError):
            await self._remove_project(api, run.workload_id, delete_data=False)
        return ended

    async def _running(self, api: EngineApi, run: ComposeRun, services: tuple[str, ...]) -> list[Member]:
        listed = {str(each["Id"]): each.get("State") for each in await self._containers(api, run.workload_id)}
        return [
            member
            for member in run.members
            if member.service in services and listed.get(member.container_id) in ("running", "paused")
        ]

    # --- the project in the engine ------------------------------------------------------------------------

    async def _containers(self, api: EngineApi, workload_id: WorkloadId) -> list[dict[str, Any]]:
        """The containers of a workload's project. Those of a container workload carry no run of a project."""
        labels = {**self._owner.labels, PROJECT_LABEL: self._name(workload_id)}
        return await api.containers(labels)

    async def _remove_containers(self, api: EngineApi, workload_id: WorkloadId, *, keep: Container[str] = ()) -> None:
        for each in await self._containers(api, workload_id):
            if service_of(each.get("Labels") or {}) not in keep:
                await api.remove(str(each["Id"]))
                self._guard.release(str(each["Id"]))

    async def _remove_project(self, api: EngineApi, workload_id: WorkloadId, *, delete_data: bool) -> None:
        await self._remove_containers(api, workload_id)
        labels = self._labels(workload_id)
        for network in await api.networks(labels):
            await api.remove_network(network)
        if delete_data:
            faults.reach("compose.delete.volumes")
            for volume in await api.volumes(labels):
                await api.remove_volume(volume)

    def _labels(self, workload_id: WorkloadId) -> dict[str, str]:
        """Of the networks and volumes of a workload's project."""
        return {**self._owner.labels, WORKLOAD_LABEL: workload_id, PROJECT_LABEL: self._name(workload_id)}

    def _name(self, workload_id: WorkloadId) -> str:
        return project_name(self._owner.name_of(workload_id))

    def _lock(self, workload_id: WorkloadId) -> asyncio.Lock:
        return self._busy.setdefault(workload_id, asyncio.Lock())

    def _logs_of(self, workload_id: WorkloadId) -> Path:
        return self._workloads / workload_id / "logs"

    async def _drop(self, run_id: RunId) -> None:
        await asyncio.to_thread(self._records.drop, run_id)
        await self._previous.drop(run_id)

    async def _put(self, run: ComposeRun) -> ComposeRun:
        await asyncio.to_thread(self._records.put, run)
        async with self._changed:
            self._changed.notify_all()
        return run

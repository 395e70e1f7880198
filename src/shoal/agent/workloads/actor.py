"""Drives one workload: takes its events in order, stores the new state, then carries out the instructions.

Each workload has its own actor, so commands for one workload are never reordered and a slow workload delays no other.
`shoal.agent.workloads.state` decides; this module only acts. Starting, stopping and forgetting are repeated until the
runtime gives a definite answer: a run whose start is in doubt must not be followed by another.

Owned by `shoal.agent.workloads.executor`, which posts commands, ends of runs and losses of contact here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shoal.agent.facts import (
    RUNNING_STAGES,
    BecameReady,
    BecameUnready,
    ConfirmOwnership,
    Event,
    ForgetRun,
    ForgetWorkload,
    Forgotten,
    Instruction,
    IntentChanged,
    LivenessFailed,
    Moment,
    OwnershipConfirmed,
    OwnershipDenied,
    Prepared,
    PrepareRun,
    ProbeReadiness,
    Reaction,
    ReadinessTimedOut,
    ReplaceFailed,
    RunEnded,
    RunOutcome,
    RunStarted,
    RunStopped,
    RunTroubled,
    RunUpdated,
    Stage,
    StartFailed,
    StartRefused,
    StartRun,
    StopRun,
    TimerFired,
    UpdateRun,
    Wait,
    WatchLiveness,
    WatchReadiness,
    WorkloadState,
    new_run_id,
)
from shoal.agent.metrics import AgentMetrics
from shoal.agent.store import action_log, intents
from shoal.agent.store.action_log import Action
from shoal.agent.store.database import AgentDatabase
from shoal.agent.store.vault import Vault
from shoal.agent.workloads import readiness
from shoal.agent.workloads.absent import AbsentRuntime
from shoal.agent.workloads.artifacts import ArtifactCache
from shoal.agent.workloads.certificates import WorkloadCertificates
from shoal.agent.workloads.contact import Contact, Question
from shoal.agent.workloads.ports import PortBook
from shoal.agent.workloads.state import handle
from shoal.agent.workloads.views import status_of, verdict_of
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import InvalidError, NotFoundError, ShoalError, UnsupportedError
from shoal.core.faults import reach
from shoal.core.ids import RunId, WorkloadId
from shoal.core.retry import Backoff
from shoal.core.tasks import TaskScope, running
from shoal.model.actions import ActionStatus, ActionType
from shoal.model.workloads import (
    AgentSpec,
    ArtifactSpec,
    Body,
    Exit,
    FailureReason,
    Liveness,
    Readiness,
    RunState,
    RunStatus,
    WorkloadType,
)
from shoal.runtimes.base import (
    RunError,
    RunInfo,
    RunPhase,
    RunRequest,
    Runtime,
    SupportsFetch,
    SupportsFiles,
    SupportsPrepare,
    SupportsUpdate,
)
from shoal.runtimes.volumes import Volumes

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Stages whose work is canceled by a stop.
_INTERRUPTED = frozenset({Stage.STARTING, Stage.UPDATING})

#: A fetch that takes longer, in seconds, is shown.
_LONG_FETCH = 2.0

#: Seconds between two looks at a guest that boots.
BOOT_INTERVAL = 0.5

#: Errors of a disk that is full or broken.
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})

#: Between two tries to get an answer out of a runtime, a full disk or the control plane.
PATIENCE = Backoff(first=0.5, cap=15.0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every actor of an agent shares."""

    node_id: str
    runtimes: Mapping[WorkloadType, Runtime]
    database: AgentDatabase
    clock: Clock
    entropy: Entropy
    ports: PortBook
    contact: Contact
    ownership: Question
    scope: TaskScope
    #: How many runs each runtime may start at once. A runtime that hangs does not delay the others.
    starts: Mapping[WorkloadType, asyncio.Semaphore]
    vault: Vault
    #: None if this agent has no certificate itself: then it cannot get any for workloads.
    certificates: WorkloadCertificates | None
    #: None: this agent has none to give.
    volumes: Volumes | None
    #: None: this agent has no control plane to fetch any from.
    artifacts: ArtifactCache | None
    #: What each run is told about itself and its node.
    identity: Callable[[WorkloadState, RunId], Mapping[str, str]]
    #: Called when a status has changed.
    changed: Callable[[], None]
    #: Called, and awaited, when a workload is gone.
    forgotten: Callable[[WorkloadActor], Awaitable[None]]
    metrics: AgentMetrics


class WorkloadActor:
    """Drives one workload."""

    def __init__(self, surroundings: Surroundings, first: Reaction, *, actions: Iterable[Action] = ()) -> None:
        self._around = surroundings
        self.state = first.state
        self._actions = list(actions)
        self._events: deque[Event | Reaction] = deque([first])
        self._strays: list[RunInfo] = []
        self._draining = False
        self._watcher: asyncio.Task[Any] | None = None
        self._liveness: asyncio.Task[Any] | None = None
        self._preparing: asyncio.Task[Any] | None = None
        #: The start or update under way, if there is one.
        self._working: asyncio.Task[Any] | None = None
        self._writing_files = asyncio.Lock()
        self._error = ""
        self._warning = ""

    @property
    def workload_id(self) -> WorkloadId:
        """The workload."""
        return self.state.intent.workload_id

    def newest_intent(self) -> IntentChanged | None:
        """The last command that was posted and not taken in yet."""
        return next((event for event in reversed(self._events) if isinstance(event, IntentChanged)), None)

    def status(self) -> RunStatus:
        """What is reported of it."""
        status = status_of(self.state)
        if isinstance(self._runtime, AbsentRuntime) and self.state.stage in RUNNING_STAGES:
            message = f"{self._runtime.reason}: whether it runs is not known"
            status = replace(status, state=RunState.UNKNOWN, ready=False, message=message)
        words = "; ".join(each for each in (status.message, self._error, self._warning) if each)
        return replace(status, message=words) if words != status.message else status

    def warn(self, message: str) -> None:
        """Add a warning to its status until it is cleared (an empty message) or its run ends."""
        if message != self._warning:
            self._warning = message
            self._around.changed()

    def begin(self, strays: tuple[RunInfo, ...] = ()) -> None:
        """Start acting. `strays` are runs of this workload that are not its present one: they are ended first."""
        self._strays.extend(strays)
        self._wake()

    def post(self, event: Event) -> None:
        """Take in an event, after those before it."""
        self._events.append(event)
        self._wake()

    def change_intent(self, event: IntentChanged, action: Action | None) -> None:
        """Take in a stored command, with its entry in the action log."""
        if action is not None:
            self._actions = [each for each in self._actions if each.type is ActionType.DELETE]
            self._actions.append(action)
        self.post(event)

    def overtaken(self, by: str, now: datetime) -> list[Action]:
        """The log entries that end when another command is stored: earlier applies that are not done."""
        return [
            replace(each, status=ActionStatus.FAILED, error=f"replaced by the later command {by}", ended_at=now)
            for each in self._actions
            if each.type is not ActionType.DELETE
        ]

    # -----------------------------------------------------------------------------------------------------
    # Taking in

    def _wake(self) -> None:
        if not self._draining:
            self._draining = True
            self._around.scope.start(self._drain(), name=f"workload {self.workload_id}")

    async def _drain(self) -> None:
        try:
            await self._end_strays()
            while self._events:
                event = self._events.popleft()
                before = status_of(self.state)
                step = event if isinstance(event, Reaction) else handle(self.state, event, self._moment())
                last, self.state = self.state, step.state
                if status_of(self.state) != before or isinstance(event, Reaction):
                    self._around.changed()
                if self.state.stage is not last.stage:
                    self._stop_watching()
                if last.stage in _INTERRUPTED and self.state.stage is Stage.STOPPING and self._working is not None:
                    self._working.cancel()  # the stop waits for its end
                alive = self.state.stage in (Stage.READY, Stage.PROBING)
                if not alive and self._liveness is not None:
                    self._liveness.cancel()
                    self._liveness = None
                if self._preparing is not None and not (alive and self.state.replacement == last.replacement):
                    self._preparing.cancel()
                    self._preparing = None
                await self._store(stale=self.state.progress != last.progress or isinstance(event, Reaction))
                self._count_failure(last)
                for instruction in step.instructions:
                    self._carry_out(instruction)
                if self.state.stage is Stage.FORGOTTEN and not self._events:
                    await self._around.forgotten(self)
        finally:
            self._draining = False

    def _count_failure(self, last: WorkloadState) -> None:
        """Count each time that it failed for good."""
        progress = self.state.progress
        if progress.outcome is RunOutcome.FAILED and last.progress.outcome is not RunOutcome.FAILED:
            self._around.metrics.failed(self.state.intent.type, progress.failure)

    def _moment(self) -> Moment:
        entropy = self._around.entropy
        return Moment(
            now=self._around.clock.wall(),
            run_id=new_run_id(self.workload_id, entropy.token(10)),
            chance=entropy.uniform(0.0, 1.0),
        )

    async def _store(self, *, stale: bool) -> None:
        """Store the new state, however long it takes. Nothing is carried out before."""
        actions = self._advance_actions()
        if not stale and not actions:
            return
        workload_id, progress = self.workload_id, self.state.progress

        def change(connection: sqlite3.Connection) -> None:
            intents.put_progress(connection, workload_id, progress)
            action_log.put_actions(connection, actions)

        failures = 0
        while True:
            try:
                await self._around.database.write(change)
            except ShoalError as error:
                failures += 1
                self._note_error(error.message)
                await self._around.clock.sleep(PATIENCE.delay(failures, self._around.entropy))
            else:
                self._note_error("")
                self._around.metrics.finished(actions)
                return

    def _advance_actions(self) -> list[Action]:
        """Bring the open entries of the log up to date and return those that changed."""
        now = self._around.clock.wall()
        verdict = verdict_of(self.state)
        changed, still_open = [], []
        for action in self._actions:
            if action.type is ActionType.DELETE:
                # The last entry of a workload that is gone is written together with its removal.
                done = self.state.progress.born > action.generation
                ended = replace(action, status=ActionStatus.COMPLETED, ended_at=now) if done else None
            elif verdict is not None and action.generation <= self.state.intent.generation:
                status = ActionStatus.FAILED if verdict.error else ActionStatus.COMPLETED
                ended = replace(action, status=status, error=verdict.error, ended_at=now)
            else:
                ended = None
            latest = ended or action
            if latest.started_at is None:
                latest = replace(latest, started_at=now)
            if latest.status is ActionStatus.PENDING:
                latest = replace(latest, status=ActionStatus.RUNNING)
            if latest != action:
                changed.append(latest)
            if latest.is_open:
                still_open.append(latest)
        self._actions = still_open
        return changed

    @property
    def open_actions(self) -> int:
        """How many commands about it have not ended."""
        return len(self._actions)

    def finished_actions(self, now: datetime) -> list[Action]:
        """The open entries of a workload that is gone, as they are to be written."""
        return [replace(each, status=ActionStatus.COMPLETED, ended_at=now) for each in self._actions]

    def _note_error(self, message: str) -> None:
        if message != self._error:
            if message:
                log.error("workload %s: %s", self.workload_id, message)
            self._error = message
            self._around.changed()

    # -----------------------------------------------------------------------------------------------------
    # Carrying out

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case StartRun(run_id):
                self._work(self._start(run_id, self.state), "start")
            case PrepareRun(run_id, _, after):
                self._preparing = self._around.scope.start(
                    self._prepare(run_id, self.state, after), name=f"prepare {self.workload_id}"
                )
            case UpdateRun(run_id):
                self._work(self._update(run_id, self.state), "update")
            case StopRun(run_id):
                self._work(self._stop(run_id, after=self._working), "stop")
            case ForgetWorkload():
                self._work(self._forget(), "forget")
            case ForgetRun(run_id):
                self._around.scope.start(self._forget_run(run_id), name=f"forget run {run_id}")
            case ProbeReadiness(run_id, within):
                self._watch(self._probe(run_id, within), "probe")
            case WatchReadiness(run_id):
                self._watch(self._watch_readiness(run_id), "watch")
            case WatchLiveness(run_id):
                self._liveness = self._around.scope.start(
                    self._watch_liveness(run_id), name=f"liveness {self.workload_id}"
                )
            case Wait(seconds, serial):
                self._watch(self._wait(seconds, serial), "wait")
            case ConfirmOwnership(generation):
                self._watch(self._confirm(generation), "confirm")

    def _work(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start work that ends by itself. The state machine asks for one at a time."""
        self._stop_watching()
        self._working = self._around.scope.start(work, name=f"{name} {self.workload_id}")

    def _watch(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start work that the next instruction may cancel."""
        self._stop_watching()
        self._watcher = self._around.scope.start(work, name=f"{name} {self.workload_id}")

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    @property
    def _runtime(self) -> Runtime:
        return self._around.runtimes[self.state.intent.type]

    async def _start(self, run_id: RunId, decided: WorkloadState) -> None:
        """Start a run as it was decided, although the state may change meanwhile."""
        event: RunInfo | Event
        self._warning = ""
        try:
            proof = await self._prove(decided)
            event = await self._persist(lambda: self._start_once(run_id, decided, proof), run_id)
        except RunError as error:
            event = StartFailed(run_id, error.failure, error.message, transient=error.transient)
        if isinstance(event, RunInfo):
            self.post(RunStarted(run_id, event.started_at, event.pid, event.ports, event.readiness, event.services))
            if event.phase is RunPhase.ENDED:
                self.post(ended(event))
        else:
            self.post(event)

    async def _prove(self, decided: WorkloadState) -> Mapping[str, str]:
        """Get the certificate of a run, if its spec asks for one."""
        process = decided.spec.process if decided.spec is not None else None
        if process is None:
            return {}
        if self._around.certificates is not None:
            return await self._around.certificates.prepare(self.workload_id, process)
        if process.identity:
            words = "waits for its certificate: this agent has none itself, so it gets none for others"
            raise RunError(words, failure=FailureReason.RUNTIME_ERROR, transient=True)
        return {}

    async def _start_once(self, run_id: RunId, decided: WorkloadState, proof: Mapping[str, str]) -> RunInfo | Event:
        spec, runtime = decided.spec, self._runtime
        if spec is None:
            return StartFailed(run_id, FailureReason.INVALID_SPEC, "the stored spec can no longer be read")
        try:
            ports = self._around.ports.choose(self.workload_id, spec.body.named_ports, before=decided.progress.ports)
            request = replace(self._request(run_id, decided, spec, proof), ports=ports)
            # Outside of the limit on starts: what waits for a registry or an export delays no other.
            request = replace(request, volumes=await self._provide_volumes(spec.body))
            request = replace(request, artifacts=await self._provide_artifacts(run_id, spec.body))
            if isinstance(runtime, SupportsFetch):
                fetch = runtime.fetch(request, tell=lambda words: self.post(RunTroubled(run_id, f"starting: {words}")))
                await self._show_if_long(fetch, run_id, "starting: fetching its images")
            async with self._around.starts[decided.intent.type]:
                # Last: the deadline counts from now.
                if decided.rules.needs_contact:
                    deadline = self._around.contact.ends_at(decided.rules.stop_after)
                    if deadline is None or deadline <= self._around.clock.monotonic():
                        return await runtime.inspect(run_id) or StartRefused(run_id)
                    request = replace(request, deadline=deadline)
                reach("agent.start.before")
                info = await runtime.start(request)
        except (InvalidError, UnsupportedError) as error:
            return StartFailed(run_id, FailureReason.INVALID_SPEC, error.message)
        reach("agent.start.after")
        return info

    async def _provide_artifacts(self, run_id: RunId, body: Body) -> tuple[tuple[ArtifactSpec, Path], ...]:
        """The artifacts of a spec as files of this machine. Raises `RunError`."""
        if not body.artifacts:
            return ()
        cache = self._around.artifacts
        if cache is None:
            raise RunError("this agent fetches no artifacts", failure=FailureReason.INVALID_SPEC)
        return await self._show_if_long(cache.provide(body.artifacts), run_id, "starting: fetching its artifacts")

    async def _show_if_long(self, work: Coroutine[Any, Any, T], run_id: RunId, words: str) -> T:
        """Do what a start needs, and say so when that takes long."""
        async with running(work, name=f"fetch {self.workload_id}") as fetching:
            await asyncio.wait({fetching}, timeout=_LONG_FETCH)
            if not fetching.done():
                self.post(RunTroubled(run_id, words))
            return await fetching

    def _request(self, run_id: RunId, decided: WorkloadState, spec: AgentSpec, proof: Mapping[str, str]) -> RunRequest:
        """What the runtime is asked to run, with the ports of the run before. Raises `RunError` without its secrets."""
        body, values = spec.body, self._around.vault.values(self.workload_id, spec.body)
        return RunRequest(
            run_id=run_id,
            workload_id=self.workload_id,
            spec=body,
            revision=decided.intent.revision_id,
            generation=decided.intent.generation,
            limits=spec.request,
            ports=dict(decided.progress.ports),
            identity={**self._around.identity(decided, run_id), **proof},
            secrets={name: values[secret].decode() for name, secret in body.env_from_secrets.items()},
            files=tuple((file, values[file.secret] if file.secret else file.content.encode()) for file in body.files),
        )

    async def _provide_volumes(self, body: Body) -> Mapping[str, str]:
        """The directories of its managed volumes. Raises `RunError`."""
        if not body.managed_volumes or self._around.volumes is None:
            return {}
        return await self._around.volumes.provide(
            self.workload_id, body.managed_volumes, hold_disks=body.volumes_hold_disks
        )

    async def _prepare(self, run_id: RunId, decided: WorkloadState, after: float) -> None:
        """Make everything ready for another spec, while the run of the present one goes on."""
        sha256, runtime = decided.intent.spec_sha256, self._runtime
        await self._around.clock.sleep(after)
        try:
            if decided.spec is not None and isinstance(runtime, SupportsPrepare):
                request = self._request(run_id, decided, decided.spec, {})
                await runtime.prepare(replace(request, volumes=await self._provide_volumes(decided.spec.body)))
        except (ShoalError, OSError) as error:
            self.post(_replace_failed(run_id, sha256, error))
        else:
            self.post(Prepared(run_id, sha256))

    async def _update(self, run_id: RunId, decided: WorkloadState) -> None:
        """Change the run in place, to what was decided."""
        sha256, runtime = decided.intent.spec_sha256, self._runtime
        try:
            if decided.spec is None or not isinstance(runtime, SupportsUpdate):
                raise RunError("this runtime changes no run in place", failure=FailureReason.RUNTIME_ERROR)
            request = self._request(run_id, decided, decided.spec, await self._prove(decided))
            if decided.rules.needs_contact:
                if not self._around.contact.time_left(decided.rules.stop_after):
                    raise RunError("no contact", failure=FailureReason.RUNTIME_ERROR, transient=True)
                request = replace(request, deadline=self._around.contact.ends_at(decided.rules.stop_after))
            reach("agent.update.before")
            info = await runtime.update(run_id, request)
            reach("agent.update.after")
        except (ShoalError, OSError) as error:
            self.post(_replace_failed(run_id, sha256, error))
            return
        self.post(RunUpdated(run_id, sha256, info.pid, info.ports, info.readiness, info.services))
        if info.phase is RunPhase.ENDED:
            self.post(ended(info))

    async def _stop(self, run_id: RunId, *, after: asyncio.Task[Any] | None) -> None:
        """End a run, once the start or update that it interrupts is over."""
        if after is not None:
            await asyncio.wait({after})
        info = await self._persist(lambda: self._stop_once(run_id), run_id)
        if info is None:
            self.post(RunStopped(run_id))
        else:
            self.post(RunStopped(run_id, info.exit, info.last_output, info.ended_by))

    async def _stop_once(self, run_id: RunId) -> RunInfo | None:
        reach("agent.stop.before")
        return await self._runtime.stop(run_id)

    async def _forget(self) -> None:
        await self._end_strays()
        state = self.state
        deleted = state.intent.deleting and not state.intent.keeps_data
        delete_data = deleted and state.spec is not None and state.spec.body.deletes_data
        await self._persist(lambda: self._forget_once(delete_data=delete_data), None)
        if self._around.volumes is not None:
            if deleted:
                newest = state.spec.body.managed_volumes if state.spec is not None else ()
                await self._persist(partial(self._around.volumes.delete, self.workload_id, newest), None)
            await self._around.volumes.release(self.workload_id)
        if self._around.certificates is not None:
            await self._around.certificates.forget(self.workload_id)
        self._around.ports.release(self.workload_id)
        self.post(Forgotten())

    async def _forget_once(self, *, delete_data: bool) -> None:
        # A killed agent may have left a run that the runtime found only now, after its engine was away.
        for run in await self._runtime.list_runs():
            if run.workload_id == self.workload_id and run.phase is RunPhase.RUNNING:
                await self._end_stray(run)
        await self._runtime.forget_workload(self.workload_id, delete_data=delete_data)

    def replace_files(self) -> None:
        """The value of a secret may have changed: files that hold it are written again, if the run goes on."""
        spec = self.state.spec
        if self.state.stage in RUNNING_STAGES and spec is not None and any(file.secret for file in spec.body.files):
            work = self._replace_files(self.state.progress.run_id)
            self._around.scope.start(work, name=f"files {self.workload_id}")

    async def _replace_files(self, run_id: RunId) -> None:
        failures = 0
        while (state := self.state).progress.run_id == run_id and state.stage in RUNNING_STAGES:
            runtime = self._runtime
            if state.spec is None or not state.is_current or not isinstance(runtime, SupportsFiles):
                return
            try:
                # A start or an update that is not done may still write the values from before.
                if state.stage not in (Stage.STARTING, Stage.UPDATING):
                    async with self._writing_files:
                        await runtime.replace_files(run_id, self._request(run_id, state, state.spec, {}).files)
                    return
            except (ShoalError, OSError) as error:
                log.warning("workload %s: its files could not be replaced yet: %s", self.workload_id, error)
            failures += 1
            await self._around.clock.sleep(PATIENCE.delay(failures, self._around.entropy))

    async def _forget_run(self, run_id: RunId) -> None:
        """Tell the runtime that the end of a run is stored. If that fails, it is told after the next restart."""
        try:
            await self._runtime.forget(run_id)
        except (ShoalError, OSError) as error:
            log.warning("run %s could not be forgotten yet: %s", run_id, error)

    async def _end_strays(self) -> None:
        """End runs of this workload that are not its present run: there must never be two."""
        while self._strays:
            stray = self._strays[0]
            await self._persist(partial(self._end_stray, stray), None)
            self._strays.pop(0)

    async def _end_stray(self, stray: RunInfo) -> None:
        if stray.phase is RunPhase.RUNNING:
            log.warning("workload %s: ending run %s, which is not its present one", self.workload_id, stray.run_id)
            await self._runtime.stop(stray.run_id)
        await self._runtime.forget(stray.run_id)

    async def _persist(self, call: Callable[[], Awaitable[T]], run_id: RunId | None) -> T:
        """Call a runtime until it answers. `RunError` is an answer: the run was not started."""
        failures = 0
        while True:
            try:
                return await call()
            except RunError:
                raise
            except Exception as error:  # a bug in one runtime must not end the agent
                failures += 1
                unexpected = not isinstance(error, ShoalError | OSError)
                log.warning("workload %s: %s", self.workload_id, error, exc_info=error if unexpected else None)
                seconds = PATIENCE.delay(failures, self._around.entropy)
                self.post(_trouble(run_id, error, again_at=self._around.clock.wall() + timedelta(seconds=seconds)))
                await self._around.clock.sleep(seconds)

    @property
    def _body(self) -> Body:
        return self.state.spec.body if self.state.spec is not None else Body()

    @property
    def _readiness(self) -> Readiness | None:
        return self._body.readiness or self.state.own_readiness

    async def _try(self, probe: Readiness | Liveness, run_id: RunId) -> bool | None:
        ports = readiness.probed_ports(self._body, self.state.progress.ports)
        return await readiness.try_once(probe, runtime=self._runtime, run_id=run_id, ports=ports)

    async def _probe(self, run_id: RunId, within: float | None) -> None:
        clock = self._around.clock
        probe, boot = self._readiness, self._body.boot
        ends_at = math.inf if within is None else clock.monotonic() + within
        ready: bool | None
        while True:
            asked_at = clock.monotonic()
            if probe is not None:
                ready = await self._try(probe, run_id)
            else:
                ready = boot is None or await readiness.has_booted(self._runtime, run_id)
            if ready:
                self.post(BecameReady(run_id))
                return
            interval = probe.interval.total_seconds() if probe is not None else BOOT_INTERVAL
            if ready is None:
                # Time without an answer does not count.
                await clock.sleep(interval)
                ends_at += clock.monotonic() - asked_at
                continue
            left = ends_at - clock.monotonic()
            if left <= 0:
                self.post(ReadinessTimedOut(run_id))
                return
            await clock.sleep(min(interval, left))

    async def _watch_readiness(self, run_id: RunId) -> None:
        probe = self._readiness
        if probe is not None:
            await self._until_it_fails(probe, run_id, every=probe.period)
            self.post(BecameUnready(run_id))

    async def _watch_liveness(self, run_id: RunId) -> None:
        probe = self._body.liveness
        if probe is not None:
            await self._until_it_fails(probe, run_id, every=probe.interval)
            self.post(LivenessFailed(run_id))

    async def _until_it_fails(self, probe: Readiness | Liveness, run_id: RunId, *, every: timedelta) -> None:
        """Return when a probe has failed as many times in a row as its threshold says.

        A try that cannot be run counts neither as a failure nor as a success.
        """
        failures = 0
        while failures < probe.failure_threshold:
            await self._around.clock.sleep(every.total_seconds())
            passed = await self._try(probe, run_id)
            if passed is not None:
                failures = 0 if passed else failures + 1

    async def _wait(self, seconds: float, serial: int) -> None:
        await self._around.clock.sleep(seconds)
        self.post(TimerFired(serial))

    async def _confirm(self, generation: int) -> None:
        """Ask the control plane whether this node owns the generation, until it confirms it."""
        contact, failures = self._around.contact, 0
        while True:
            await contact.wait_for_lease()
            try:
                owner = await self._around.ownership(self.workload_id)
            except NotFoundError:
                message = "held: the control plane does not know it"
            except ShoalError as error:
                message = f"held: the control plane cannot be asked: {error.message}"
            else:
                # A higher generation of this node is a command on its way here: no other node may run it.
                if owner.node_id == self._around.node_id and owner.generation >= generation and owner.wanted:
                    self.post(OwnershipConfirmed(generation))
                    return
                message = f"held: the control plane says generation {owner.generation} is {_whose(owner.node_id)}"
            self.post(OwnershipDenied(generation, message))
            failures += 1
            await self._around.clock.sleep(PATIENCE.delay(failures, self._around.entropy))


def ended(info: RunInfo) -> RunEnded:
    """The event that a run's end is."""
    return RunEnded(info.run_id, info.exit or Exit(unknown=True), info.last_output, info.ended_by)


def _trouble(run_id: RunId | None, error: Exception, *, again_at: datetime) -> RunTroubled:
    """What it means that a runtime gave no answer: it is away, or the disk of the agent takes nothing."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
        return RunTroubled(run_id, f"the agent cannot write: {error}", FailureReason.STORAGE_ERROR, again_at)
    return RunTroubled(run_id, f"the runtime does not answer: {error}", FailureReason.RUNTIME_ERROR, again_at)


def _replace_failed(run_id: RunId, sha256: bytes, error: Exception) -> ReplaceFailed:
    """What it means that a run could not be prepared or changed."""
    if isinstance(error, RunError):
        return ReplaceFailed(run_id, sha256, error.failure, error.message, transient=error.transient)
    if isinstance(error, InvalidError | UnsupportedError):
        return ReplaceFailed(run_id, sha256, FailureReason.INVALID_SPEC, error.message)
    return ReplaceFailed(run_id, sha256, FailureReason.RUNTIME_ERROR, str(error), transient=True)


def _whose(node_id: str) -> str:
    return f"node {node_id}'s" if node_id else "nobody's"

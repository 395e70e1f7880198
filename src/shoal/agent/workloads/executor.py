"""Owns the workloads of the agent: opens them from disk, accepts commands, and reports statuses.

When it opens, it compares what is stored with what the runtimes have: it adopts runs, takes in ends that it missed, and
converges without a control plane. Runs of unknown workloads are left alone and reported. After that, ends of runs go to
the actors of their workloads as they happen.

Called by `shoal.agent.service` (commands, questions), and through `shoal.agent.node.health` by the registration
(reports, contact, draining).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import DecodeError

from shoal.agent.facts import (
    RUNNING_STAGES,
    ContactLost,
    FoundRun,
    Intent,
    Moment,
    Progress,
    RunRules,
    ServicesSeen,
    Stage,
    WorkloadState,
    new_run_id,
)
from shoal.agent.metrics import AgentMetrics
from shoal.agent.store import action_log, intents
from shoal.agent.store.action_log import Action, ActionQuery
from shoal.agent.store.database import AgentDatabase
from shoal.agent.store.intents import StoredWorkload
from shoal.agent.store.vault import Vault
from shoal.agent.workloads.absent import AbsentRuntime
from shoal.agent.workloads.actor import PATIENCE, Surroundings, WorkloadActor, ended
from shoal.agent.workloads.admission import ApplyCommand, DeleteCommand, rules_of
from shoal.agent.workloads.artifacts import ArtifactCache
from shoal.agent.workloads.certificates import WorkloadCertificates
from shoal.agent.workloads.contact import Contact, Question
from shoal.agent.workloads.disk_watch import DiskWatch
from shoal.agent.workloads.intake import Answer, Intake
from shoal.agent.workloads.orphans import OrphanWatch
from shoal.agent.workloads.ports import PortBook
from shoal.agent.workloads.roster import Roster
from shoal.agent.workloads.slots import slot_share
from shoal.agent.workloads.state import reopen
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import PreconditionError, ShoalError, UnsupportedError
from shoal.core.ids import RunId, WorkloadId
from shoal.core.tasks import TaskScope
from shoal.model.actions import ActionStatus
from shoal.model.execs import ExecCommand
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.nodes import ConditionType
from shoal.model.resources import Resources
from shoal.model.workloads import AgentSpec, ProcessSpec, Usage, WorkloadType
from shoal.runtimes.base import (
    ExecSession,
    RunError,
    RunInfo,
    RunPhase,
    Runtime,
    SupportsConditions,
    SupportsDeadlines,
    SupportsExec,
    SupportsLogs,
    SupportsUsage,
)
from shoal.runtimes.volumes import Volumes
from shoal.wire.convert import agent_spec_from_proto, workload_type_to_agent
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as pb

log = logging.getLogger(__name__)

MAX_STARTS = 8
#: A runtime that does not answer a health check within this time counts as unhealthy.
HEALTH_TIMEOUT = 2.0
USAGE_TIMEOUT = 1.0
#: How often an agent looks for runtimes that it does not have.
LOOK_EVERY = 5.0

_ALIVE = frozenset({Stage.PROBING, Stage.READY})


@dataclass(frozen=True, slots=True)
class NodeSelf:
    """What the agent passes on to its workloads about itself."""

    node_id: str
    capacity: Resources
    host_id: str = ""
    #: The control plane's addresses, for workloads that talk to it.
    control: tuple[str, ...] = ()
    workers_per_slot: int = 1
    #: The host at which others reach this node.
    address: str = ""


class Executor:
    """Every workload of one agent."""

    def __init__(
        self,
        *,
        node: NodeSelf,
        database: AgentDatabase,
        runtimes: Mapping[WorkloadType, Runtime],
        contact: Contact,
        ownership: Question,
        clock: Clock,
        entropy: Entropy,
        changed: Callable[[], None],
        ports: PortBook | None = None,
        metrics: AgentMetrics | None = None,
        certificates: WorkloadCertificates | None = None,
        volumes: Volumes | None = None,
        artifacts: ArtifactCache | None = None,
        find_more: Callable[[], Awaitable[Mapping[WorkloadType, Runtime]]] | None = None,
    ) -> None:
        """Without `volumes` no workload gets a managed volume, without `artifacts` no artifact.

        `find_more` finds the runtimes of further kinds, as what they need appears on the machine.
        """
        self.node = node
        #: Where this agent serves metrics; empty where it does not.
        self.metrics_address = ""
        self.roster = Roster()
        self._database = database
        #: Kinds without a runtime have a stand-in: their workloads are kept.
        self._runtimes: dict[WorkloadType, Runtime] = {
            kind: runtimes.get(kind) or AbsentRuntime(kind) for kind in WorkloadType
        }
        self._types = tuple(runtimes)
        self._find_more = find_more
        self._clock = clock
        self._entropy = entropy
        self._scope = TaskScope(f"agent {node.node_id}")
        self._ports = ports or PortBook(entropy)
        self._vault = Vault(database)
        self._certificates = certificates
        self._surroundings = Surroundings(
            node_id=node.node_id,
            runtimes=self._runtimes,
            database=database,
            clock=clock,
            entropy=entropy,
            ports=self._ports,
            contact=contact,
            ownership=ownership,
            scope=self._scope,
            starts={kind: asyncio.Semaphore(MAX_STARTS) for kind in WorkloadType},
            vault=self._vault,
            certificates=certificates,
            volumes=volumes,
            artifacts=artifacts,
            identity=self._identity,
            changed=changed,
            forgotten=self._forgotten,
            metrics=metrics or AgentMetrics(),
        )
        self._intake = Intake(self._surroundings, self.roster, node.capacity)

    # -----------------------------------------------------------------------------------------------------
    # Opening and closing

    async def open(self) -> None:
        """Take over the workloads of an earlier process. The database is open."""
        await self._vault.open()
        stored = await self._database.read(intents.load_workloads)
        if self._certificates is not None:
            await self._certificates.open(each.intent.workload_id for each in stored)
        actions = await self._database.read(action_log.open_actions)
        runs: dict[WorkloadId, list[RunInfo]] = {}
        for runtime in self._runtimes.values():
            await runtime.open()
            for info in await runtime.list_runs():
                runs.setdefault(info.workload_id, []).append(info)
        for each in stored:
            own = [action for action in actions if action.workload_id == each.intent.workload_id]
            await self._reopen(each, runs.pop(each.intent.workload_id, []), own)
        for info in (info for infos in runs.values() for info in infos):
            self.roster.add_orphan(info)
        for kind, runtime in self._runtimes.items():
            self._scope.start(self._watch(runtime), name=f"watch {kind.value}")
        disks = DiskWatch(self.roster, self._runtimes, self._clock, scope=self._scope)
        self._scope.start(disks.run(), name="disk limits")
        orphans = OrphanWatch(self.roster, self._runtimes, self._clock)
        self._scope.start(orphans.run(), name="orphans")
        if self._find_more is not None:
            self._scope.start(self._look_for_more(self._find_more), name="further runtimes")
        if self._certificates is not None:
            keeping = self._certificates.keep_fresh(self._proving, self._warn)
            self._scope.start(keeping, name="certificates of workloads")

    async def close(self) -> None:
        """Close everything. Workloads go on."""
        await self._scope.close()
        for runtime in self._runtimes.values():
            await runtime.close()

    async def stop_all(self, grace: float | None = None) -> frozenset[WorkloadId]:
        """Stop every run of a known workload, each by its own stop policy, and act no more. Returns what was stopped.

        The desired state does not change: the next agent on this data directory starts them again.
        """
        await self._scope.close()
        stopping = [
            (runtime, info)
            for runtime in self._runtimes.values()
            for info in await runtime.list_runs()
            if info.phase is RunPhase.RUNNING and info.workload_id in self.roster.actors
        ]
        stopped: set[WorkloadId] = set()

        async def stop(runtime: Runtime, info: RunInfo) -> None:
            try:
                await runtime.stop(info.run_id)
            except ShoalError as error:
                log.warning("a workload could not be stopped: %s", error)
            else:
                stopped.add(info.workload_id)

        try:
            async with asyncio.timeout(grace):
                await asyncio.gather(*(stop(runtime, info) for runtime, info in stopping))
        except TimeoutError:
            log.warning("some workloads were not stopped within %s seconds", grace)
        return frozenset(stopped)

    async def failed(self) -> None:
        """Wait until a background task fails, and raise its error."""
        await self._scope.failed()

    async def _reopen(self, stored: StoredWorkload, runs: list[RunInfo], actions: list[Action]) -> None:
        intent, progress = stored.intent, stored.progress
        spec, rules = _read_spec(intent, self._runtimes.get(intent.type))
        current = next((info for info in runs if info.run_id == progress.run_id), None)
        found = _found(current) if current is not None else None
        if not self._has(intent.type) and progress.run_id and not progress.ended:
            # Whether it still runs is not known. It counts as running until a runtime says otherwise.
            found = FoundRun(progress.run_id, progress.started_at or self._clock.wall(), ports=progress.ports)
        self._ports.adopt(intent.workload_id, (found.ports if found is not None else progress.ports).values())
        run_id = new_run_id(intent.workload_id, self._entropy.token(10))
        moment = Moment(self._clock.wall(), run_id, self._entropy.uniform(0.0, 1.0))
        is_known = found is not None or await self._is_certain(intent.type, progress)
        first = reopen(intent, rules, progress, found, moment, spec=spec, is_known=is_known)
        actor = WorkloadActor(self._surroundings, first, actions=await self._keep_newest(actions))
        self.roster.actors[intent.workload_id] = actor
        actor.begin(tuple(info for info in runs if info is not current))
        # Values are stored before files: an agent that ended in between has not written them.
        actor.replace_files()

    async def _is_certain(self, kind: WorkloadType, progress: Progress) -> bool:
        """Whether the runtime can tell that there is no such run as the stored one."""
        if not progress.run_id or progress.ended:
            return True
        try:
            return await self._runtimes[kind].inspect(progress.run_id) is None
        except (ShoalError, OSError):
            return False

    async def _keep_newest(self, actions: list[Action]) -> list[Action]:
        """The open entries of the log that still count; the others end."""
        kept = {action.type: action for action in actions}
        now = self._clock.wall()
        lost = [
            replace(action, status=ActionStatus.FAILED, error="replaced by a later command", ended_at=now)
            for action in actions
            if kept[action.type] is not action
        ]
        if lost:
            await self._database.write(lambda connection: action_log.put_actions(connection, lost))
        return list(kept.values())

    # -----------------------------------------------------------------------------------------------------
    # Commands

    async def apply(self, command: ApplyCommand) -> Answer:
        """Accept a command to run or stop a workload. Durable when this returns; raises when it is refused."""
        return await self._intake.apply(command)

    async def delete(self, command: DeleteCommand) -> Answer:
        """Accept a command to remove a workload. Removing an unknown workload succeeds."""
        return await self._intake.delete(command)

    async def _forgotten(self, actor: WorkloadActor) -> None:
        await self._intake.drop(actor)

    # -----------------------------------------------------------------------------------------------------
    # Runs

    async def _watch(self, runtime: Runtime) -> None:
        failures = 0
        while True:
            try:
                async for info in runtime.watch():
                    failures = 0
                    self._run_ended(info)
                log.warning("the %s runtime stopped telling of ends", runtime.type.value)
            except (ShoalError, OSError) as error:
                log.warning("the %s runtime cannot be watched: %s", runtime.type.value, error)
            failures += 1
            await self._clock.sleep(PATIENCE.delay(failures, self._entropy))

    async def _look_for_more(self, find: Callable[[], Awaitable[Mapping[WorkloadType, Runtime]]]) -> None:
        """Take in runtimes that were not there when the agent started. They have no runs of known workloads."""
        found: dict[WorkloadType, Runtime] = {}
        while not all(map(self._has, WorkloadType)):
            await self._clock.sleep(LOOK_EVERY)
            found |= await find()
            for kind, runtime in list(found.items()):
                try:
                    await runtime.open()
                except (ShoalError, OSError) as error:
                    log.warning("the %s runtime, which is there now, cannot be opened: %s", kind.value, error)
                    continue
                del found[kind]
                log.info("this agent has a %s runtime now", kind.value)
                self._runtimes[kind] = runtime
                self._types = (*self._types, kind)
                self._scope.start(self._watch(runtime), name=f"watch {kind.value}")

    def _run_ended(self, info: RunInfo) -> None:
        if info.run_id in self.roster.orphans:
            self.roster.orphans[info.run_id] = info
            return
        actor = self.roster.actors.get(info.workload_id)
        if actor is not None and info.phase is RunPhase.ENDED:
            actor.post(ended(info))

    def _proving(self) -> dict[WorkloadId, ProcessSpec]:
        """The workloads that run and have a certificate of their own."""
        return {
            workload_id: spec.process
            for workload_id, actor in self.roster.actors.items()
            if actor.state.stage in _ALIVE
            and (spec := actor.state.spec) is not None
            and spec.process is not None
            and spec.process.identity
        }

    def named_artifacts(self) -> frozenset[str]:
        """The artifacts that the workloads of this agent name."""
        specs = (actor.state.spec for actor in self.roster.actors.values())
        return frozenset(each.sha256 for spec in specs if spec is not None for each in spec.body.artifacts)

    def _warn(self, workload_id: WorkloadId, message: str) -> None:
        actor = self.roster.actors.get(workload_id)
        if actor is not None:
            actor.warn(message)

    def lose_contact(self, silence: float) -> None:
        """There was no contact for so long: stop the runs that depend on it."""
        for actor in self.roster.actors.values():
            if actor.state.rules.needs_contact and self._has_lapsed(actor, silence):
                actor.post(ContactLost())

    async def extend_deadlines(self, silence: float) -> None:
        """There is contact after a silence of so long: extend each deadline that has not passed."""
        due: dict[tuple[WorkloadType, float], list[str]] = {}
        for actor in self.roster.actors.values():
            state = actor.state
            if state.rules.needs_contact and state.stage in RUNNING_STAGES and not self._has_lapsed(actor, silence):
                due.setdefault((state.intent.type, state.rules.stop_after), []).append(state.progress.run_id)
        for (kind, stop_after), ids in due.items():
            runtime = self._runtimes.get(kind)
            until = self._surroundings.contact.ends_at(stop_after)
            if not isinstance(runtime, SupportsDeadlines) or until is None:
                continue
            try:
                await runtime.extend_deadlines(tuple(ids), until)
            except (ShoalError, OSError) as error:
                log.warning("deadlines of the %s runtime could not be moved on: %s", kind.value, error)

    def _has_lapsed(self, actor: WorkloadActor, silence: float) -> bool:
        return silence >= self._surroundings.contact.allowance(actor.state.rules.stop_after)

    def _identity(self, state: WorkloadState, run_id: RunId) -> Mapping[str, str]:
        node, intent = self.node, state.intent
        identity = {
            "SHOAL_NODE_ID": node.node_id,
            "SHOAL_HOST_ID": node.host_id,
            "SHOAL_NODE_ADDRESS": node.address,
            "SHOAL_CONTROL": ",".join(node.control),
            # The interpreter of the agent, for workloads that are parts of this program.
            "SHOAL_PYTHON": sys.executable,
            "SHOAL_WORKLOAD_ID": intent.workload_id,
            "SHOAL_RUN_ID": run_id,
            "SHOAL_REVISION_ID": intent.revision_id,
            "SHOAL_GENERATION": str(intent.generation),
        }
        slots = state.spec.request.slots if state.spec is not None else 0
        if self.metrics_address:
            identity["SHOAL_NODE_METRICS"] = self.metrics_address
        if slots:
            identity["SHOAL_SLOTS"] = str(slots)
            identity["SHOAL_WORKERS"] = str(slots * node.workers_per_slot)
            identity["SHOAL_MEMORY_MB"] = str(slot_share(node.capacity, slots))
        return identity

    # -----------------------------------------------------------------------------------------------------
    # Questions

    def runtime(self, kind: WorkloadType) -> Runtime:
        """The runtime of a kind, or a stand-in."""
        return self._runtimes[kind]

    @property
    def types(self) -> tuple[WorkloadType, ...]:
        """The kinds of workload that can run here."""
        return self._types

    def _has(self, kind: WorkloadType) -> bool:
        return kind in self._types

    async def usages(self) -> dict[WorkloadId, Usage]:
        """The usage of each run, as far as its runtime answers in time."""
        asked: dict[WorkloadId, Coroutine[Any, Any, Usage | None]] = {}
        for workload_id, actor in self.roster.actors.items():
            runtime = self._runtimes.get(actor.state.intent.type)
            if actor.state.stage in RUNNING_STAGES and isinstance(runtime, SupportsUsage):
                asked[workload_id] = runtime.usage(actor.state.progress.run_id)
        answers = await asyncio.gather(*(_in_time(question) for question in asked.values()))
        return {workload_id: usage for workload_id, usage in zip(asked, answers, strict=True) if usage is not None}

    async def look_at_services(self) -> None:
        """Ask again how the services of those runs are that have several."""
        for actor in list(self.roster.actors.values()):
            state = actor.state
            if not state.services or state.stage not in _ALIVE:
                continue
            with contextlib.suppress(ShoalError, OSError, TimeoutError):
                async with asyncio.timeout(USAGE_TIMEOUT):
                    info = await self._runtimes[state.intent.type].inspect(state.progress.run_id)
                if info is not None and info.services != state.services:
                    actor.post(ServicesSeen(info.run_id, info.services))

    async def list_actions(self, query: ActionQuery) -> list[Action]:
        """Part of the log of actions."""
        return await self._database.read(lambda connection: action_log.list_actions(connection, query))

    def read_logs(self, workload_id: WorkloadId, query: LogQuery) -> AsyncIterator[LogPiece]:
        """The output of a workload. Raises `NotFoundError` or `UnsupportedError`."""
        kind = self.roster.actor(workload_id).state.intent.type
        runtime = self._runtimes.get(kind)
        if not isinstance(runtime, SupportsLogs):
            raise UnsupportedError(f"the {kind.value} runtime keeps no logs")
        return runtime.read_logs(workload_id, query)

    async def exec(self, workload_id: WorkloadId, command: ExecCommand) -> ExecSession:
        """Run a command inside a workload. Raises `NotFoundError`, `UnsupportedError` and `PreconditionError`."""
        state = self.roster.actor(workload_id).state
        kind = state.intent.type
        runtime = self._runtimes.get(kind)
        if not isinstance(runtime, SupportsExec):
            raise UnsupportedError(f"the {kind.value} runtime of this agent runs no commands inside workloads")
        if state.stage not in RUNNING_STAGES:
            raise PreconditionError(f"workload {workload_id!r} does not run")
        try:
            return await runtime.exec(state.progress.run_id, command)
        except RunError as error:
            raise PreconditionError(error.message, hint=error.hint) from error

    def conditions(self) -> dict[ConditionType, str]:
        """What was wrong with the runtimes at their last health check."""
        found: dict[ConditionType, str] = {}
        for runtime in self._runtimes.values():
            if isinstance(runtime, SupportsConditions):
                found |= runtime.conditions()
        orphans = sorted(self.roster.orphans)
        if orphans:
            words = f"{len(orphans)} runs belong to no workload known here: {', '.join(orphans[:10])}"
            found[ConditionType.ORPHANED_PROCESSES] = "; ".join(
                filter(None, (found.get(ConditionType.ORPHANED_PROCESSES), words))
            )
        return found

    def lateness(self) -> float:
        """By how many seconds the slowest runtime was late at the last health check."""
        return max(
            (runtime.lateness() for runtime in self._runtimes.values() if isinstance(runtime, SupportsConditions)),
            default=0.0,
        )

    async def health(self) -> dict[str, str]:
        """The health of each runtime, by name."""
        lost = {actor.state.intent.type for actor in self.roster.actors.values()} - set(self._types)
        return {kind.value: await _health_of(self._runtimes[kind]) for kind in (*self._types, *lost)}


def _read_spec(intent: Intent, runtime: Runtime | None) -> tuple[AgentSpec | None, RunRules]:
    try:
        message = pb.WorkloadSpec.FromString(intent.spec_bytes)
        spec = agent_spec_from_proto(message, workload_type_to_agent(intent.type))
    except (ShoalError, DecodeError) as error:
        log.error("workload %s: its stored spec cannot be read: %s", intent.workload_id, error)
        return None, RunRules()
    return spec, rules_of(spec, runtime)


def _found(info: RunInfo) -> FoundRun:
    return FoundRun(
        run_id=info.run_id,
        started_at=info.started_at,
        pid=info.pid,
        ports=info.ports,
        exit=ended(info).exit if info.phase is RunPhase.ENDED else None,
        last_output=info.last_output,
        ended_by=info.ended_by,
        readiness=info.readiness,
        services=info.services,
    )


async def _in_time(question: Coroutine[Any, Any, Usage | None]) -> Usage | None:
    with contextlib.suppress(ShoalError, OSError, TimeoutError):
        async with asyncio.timeout(USAGE_TIMEOUT):
            return await question
    return None


async def _health_of(runtime: Runtime) -> str:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT):
            return await runtime.health()
    except TimeoutError:
        return f"unhealthy: no answer within {HEALTH_TIMEOUT:g}s"
    except (ShoalError, OSError) as error:
        return f"unhealthy: {error}"

"""Accepts commands: checks them, stores them, then answers. The workload's actor carries them out.

Commands are stored one at a time, because admission must see every claim. A command is stored even if its caller is
cancelled: it may be on disk already, and memory must know it.

Owned by `shoal.agent.workloads.executor`; called by `shoal.agent.service` through it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from shoal.agent.facts import Intent, IntentChanged, Moment, new_run_id
from shoal.agent.store import action_log, intents, vault
from shoal.agent.store.action_log import Action
from shoal.agent.workloads.absent import AbsentRuntime
from shoal.agent.workloads.actor import PATIENCE, Surroundings, WorkloadActor
from shoal.agent.workloads.admission import (
    ApplyCommand,
    Decision,
    DeleteCommand,
    claim_of,
    judge_apply,
    judge_delete,
    rules_of,
)
from shoal.agent.workloads.roster import Roster
from shoal.agent.workloads.slots import find_no_room, find_refusal
from shoal.agent.workloads.state import begin_life
from shoal.core.errors import ShoalError, UnavailableError, UnsupportedError
from shoal.core.faults import reach
from shoal.core.ids import WorkloadId
from shoal.model.actions import ActionStatus, ActionType
from shoal.model.resources import Resources
from shoal.model.workloads import RunState, RunStatus
from shoal.runtimes.base import RunInfo, SupportsDeadlines

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a command."""

    status: RunStatus | None
    message: str
    task_id: str = ""
    skipped: bool = False


class Intake:
    """Accepts commands."""

    def __init__(self, surroundings: Surroundings, roster: Roster, capacity: Resources) -> None:
        self._around = surroundings
        self._roster = roster
        self._capacity = capacity
        self._one_at_a_time = asyncio.Lock()

    async def apply(self, command: ApplyCommand) -> Answer:
        """Accept a command to run or stop a workload. Durable when this returns; raises when it is refused."""
        return await self._to_the_end(self._apply(command))

    async def delete(self, command: DeleteCommand) -> Answer:
        """Accept a command to remove a workload. Removing an unknown workload succeeds."""
        return await self._to_the_end(self._delete(command))

    async def drop(self, actor: WorkloadActor) -> None:
        """A workload is gone: drop its row and its actor, unless it was applied again meanwhile."""
        failures = 0
        while not await self._try_to_drop(actor):
            failures += 1
            await self._around.clock.sleep(PATIENCE.delay(failures, self._around.entropy))

    async def _try_to_drop(self, actor: WorkloadActor) -> bool:
        workload_id = actor.workload_id
        async with self._one_at_a_time:
            if actor.newest_intent() is not None or self._roster.actors.get(workload_id) is not actor:
                return True
            actions = actor.finished_actions(self._around.clock.wall())

            def change(connection: sqlite3.Connection) -> None:
                intents.remove_intent(connection, workload_id)
                vault.forget(connection, workload_id)
                action_log.put_actions(connection, actions)

            try:
                reach("agent.forget.before")
                await self._around.database.write(change)
            except ShoalError as error:
                log.error("workload %s cannot be forgotten yet: %s", workload_id, error.message)
                return False
            del self._roster.actors[workload_id]
            self._around.vault.drop(workload_id)
        self._around.metrics.finished(actions)
        self._around.metrics.removed(actor.state.intent.type)
        self._around.changed()
        return True

    # -----------------------------------------------------------------------------------------------------
    # Applying

    async def _apply(self, command: ApplyCommand) -> Answer:
        self._check_runtime(command)
        async with self._one_at_a_time:
            actor = self._roster.actors.get(command.workload_id)
            highest = await self._highest(command.workload_id)
            state = self._roster.latest(command.workload_id)
            decision = judge_apply(command, state, highest=highest, now=self._around.clock.wall())
            if decision.intent is not None and decision.intent.wanted and decision.stored and not decision.skipped:
                self._admit(command)
            if actor is None:
                self._admit_one_more(command)
            # Stored before the command: the start finds them, also after a crash in between.
            if (
                await self._around.vault.keep(command.workload_id, command.spec.body, command.secrets)
                and actor is not None
            ):
                actor.replace_files()
            if decision.intent is None or not decision.stored:
                return self._nothing_to_do(actor, decision)
            action = None if decision.skipped else self._new_action(ActionType.APPLY, decision.intent)
            rules = rules_of(command.spec, self._around.runtimes.get(command.type))
            event = IntentChanged(decision.intent, rules, command.spec)
            actor = await self._store_and_act(actor, event, action)
            if action is None:
                return self._nothing_to_do(actor, decision)
            return Answer(_accepted(decision.intent), "accepted", task_id=action.task_id)

    def _check_runtime(self, command: ApplyCommand) -> None:
        runtime, kind = self._around.runtimes.get(command.type), command.type.value
        if runtime is None or isinstance(runtime, AbsentRuntime):
            raise UnsupportedError(f"runtime not available: this agent cannot run {kind}", type=kind)
        if command.spec.body.identity and self._around.certificates is None:
            raise UnsupportedError("this agent has no certificate itself, so it gets none for its workloads", type=kind)
        if command.spec.body.artifacts and self._around.artifacts is None:
            raise UnsupportedError("this agent has no control plane to fetch artifacts from", type=kind)
        if rules_of(command.spec).needs_contact and not isinstance(runtime, SupportsDeadlines):
            raise UnsupportedError(f"a {kind} cannot be stopped by a deadline: it could outlive its agent", type=kind)

    def _admit(self, command: ApplyCommand) -> None:
        roster = self._roster
        refusal = find_refusal(
            self._capacity, roster.claims(), command.workload_id, claim_of(command.spec), draining=roster.draining
        )
        if refusal is not None:
            raise refusal.error(command.workload_id)

    def _admit_one_more(self, command: ApplyCommand) -> None:
        refusal = find_no_room(len(self._roster.actors), disk_pressure=self._roster.disk_pressure)
        if refusal is not None:
            raise refusal.error(command.workload_id)

    def _nothing_to_do(self, actor: WorkloadActor | None, decision: Decision) -> Answer:
        status = actor.status() if actor is not None else None
        if status is not None and decision.intent is not None:
            status = replace(status, generation=decision.intent.generation, revision_id=decision.intent.revision_id)
        return Answer(status, "nothing to do: it is as requested", skipped=True)

    # -----------------------------------------------------------------------------------------------------
    # Deleting

    async def _delete(self, command: DeleteCommand) -> Answer:
        async with self._one_at_a_time:
            actor = self._roster.actors.get(command.workload_id)
            state = self._roster.latest(command.workload_id)
            decision = judge_delete(command, state, now=self._around.clock.wall())
            if decision.intent is None or actor is None or state is None:
                return await self._delete_nothing(command)
            action = None if decision.skipped else self._new_action(ActionType.DELETE, decision.intent)
            if decision.stored:
                await self._store_and_act(actor, IntentChanged(decision.intent, state.rules, state.spec), action)
            if action is None:
                return Answer(actor.status(), "being removed already", skipped=True)
            return Answer(actor.status(), "being removed", task_id=action.task_id)

    async def _delete_nothing(self, command: DeleteCommand) -> Answer:
        """Delete an unknown workload: log it, and remember the generation so that older commands are refused."""
        now = self._around.clock.wall()
        action = Action(
            task_id=self._task_id(),
            workload_id=command.workload_id,
            type=ActionType.DELETE,
            status=ActionStatus.COMPLETED,
            generation=command.generation,
            created_at=now,
            started_at=now,
            ended_at=now,
        )

        def change(connection: sqlite3.Connection) -> None:
            if command.generation:
                intents.raise_highest(connection, command.workload_id, command.generation)
            action_log.put_actions(connection, [action])

        await self._around.database.write(change)
        self._around.metrics.finished([action])
        orphans = self._roster.take_orphans(command.workload_id)
        if not orphans:
            return Answer(None, "not found, nothing to delete", task_id=action.task_id, skipped=True)
        self._around.scope.start(self._end_orphans(orphans), name=f"end orphans of {command.workload_id}")
        return Answer(None, f"{len(orphans)} runs that belonged to no workload are being ended", task_id=action.task_id)

    async def _end_orphans(self, orphans: tuple[RunInfo, ...]) -> None:
        """End runs of a workload without a record. A run that cannot be ended is an orphan again."""
        for info in orphans:
            for runtime in self._around.runtimes.values():
                if isinstance(runtime, AbsentRuntime):
                    continue
                try:
                    if await runtime.stop(info.run_id) is not None:
                        await runtime.forget(info.run_id)
                except (ShoalError, OSError) as error:
                    log.error("run %s of workload %s cannot be ended: %s", info.run_id, info.workload_id, error)
                    self._roster.orphans[info.run_id] = info
        self._around.changed()

    # -----------------------------------------------------------------------------------------------------
    # Storing and acting

    async def _highest(self, workload_id: WorkloadId) -> int:
        return await self._around.database.read(lambda connection: intents.highest_generation(connection, workload_id))

    async def _store_and_act(
        self, actor: WorkloadActor | None, event: IntentChanged, action: Action | None
    ) -> WorkloadActor:
        actions = [action] if action is not None else []
        if actor is not None and action is not None:
            actions = [*actor.overtaken(action.task_id, self._around.clock.wall()), action]

        def change(connection: sqlite3.Connection) -> None:
            intents.put_intent(connection, event.intent)
            action_log.put_actions(connection, actions)

        reach("agent.intent.before")
        await self._around.database.write(change)
        self._around.metrics.finished(actions)
        actor = self._act_on(actor, event, action)
        reach("agent.intent.after")  # the actor was woken and has not moved yet
        return actor

    def _act_on(self, actor: WorkloadActor | None, event: IntentChanged, action: Action | None) -> WorkloadActor:
        if actor is not None:
            actor.change_intent(event, action)
            return actor
        intent, entropy = event.intent, self._around.entropy
        run_id = new_run_id(intent.workload_id, entropy.token(10))
        moment = Moment(self._around.clock.wall(), run_id, entropy.uniform(0.0, 1.0))
        first = begin_life(intent, event.rules, moment, spec=event.spec)
        actor = WorkloadActor(self._around, first, actions=[action] if action is not None else [])
        self._roster.actors[intent.workload_id] = actor
        self._around.metrics.began(intent.type)
        # Orphaned runs of this workload were left alone. Beside the new run they would be a second copy.
        actor.begin(self._roster.take_orphans(intent.workload_id))
        return actor

    def _new_action(self, kind: ActionType, intent: Intent) -> Action:
        return Action(
            task_id=self._task_id(),
            workload_id=intent.workload_id,
            type=kind,
            status=ActionStatus.PENDING,
            generation=intent.generation,
            created_at=self._around.clock.wall(),
        )

    def _task_id(self) -> str:
        return f"task_{self._around.entropy.token(16)}"

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def carry() -> None:
            try:
                result = await work
            except asyncio.CancelledError:
                if not outcome.done():
                    outcome.set_exception(UnavailableError("the agent is stopping; the command may have been accepted"))
                raise
            except Exception as error:  # noqa: BLE001 - every error is the caller's
                if outcome.cancelled():
                    log.warning("a command whose caller is gone failed: %s", error)
                else:
                    outcome.set_exception(error)
            else:
                if not outcome.cancelled():
                    outcome.set_result(result)

        try:
            self._around.scope.start(carry(), name="command")
        except RuntimeError:
            work.close()
            raise UnavailableError("the agent is stopping and accepts no commands") from None
        return await outcome


def _accepted(intent: Intent) -> RunStatus:
    """The status in the answer to an apply: it is stored, and nothing else is known yet."""
    return RunStatus(
        workload_id=intent.workload_id,
        state=RunState.PENDING,
        message="accepted",
        last_transition=intent.updated_at,
        generation=intent.generation,
        revision_id=intent.revision_id,
        spec_sha256=intent.spec_sha256,
    )

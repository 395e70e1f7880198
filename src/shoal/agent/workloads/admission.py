"""Decides whether a command is accepted, and the intent that follows from it. Pure.

    generation       workload here               apply                      delete
    0                any                         as highest + 1             removes it
    below highest    any                         refused as stale           refused as stale, if it is here
    the highest      same content                skipped                    removes it
    the highest      other content, or removed   refused                    nothing to remove
    above highest    same content                noted, skipped             removes it
    above highest    other content, or none      accepted                   removes it; noted if it is not here

Called by `shoal.agent.workloads.intake` for each command, before anything is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.agent.facts import Intent, RunOutcome, RunRules, Stage, WorkloadState
from shoal.agent.workloads.slots import Claim
from shoal.core.errors import InvalidError, PreconditionError, StaleGenerationError, problem
from shoal.core.ids import WorkloadId
from shoal.model.workloads import AgentSpec, DesiredState, FailureReason, Liveness, Readiness, WorkloadType
from shoal.runtimes.base import Runtime, SupportsPrepare, SupportsUpdate


@dataclass(frozen=True, slots=True)
class ApplyCommand:
    """A valid apply."""

    workload_id: WorkloadId
    type: WorkloadType
    revision_id: str
    desired: DesiredState
    spec_bytes: bytes
    spec_sha256: bytes
    #: What the bytes say.
    spec: AgentSpec
    #: 0 from a scheduler that knows none.
    generation: int = 0
    attempt: int = 0
    #: The values of the secrets that the spec names.
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class DeleteCommand:
    """A valid delete."""

    workload_id: WorkloadId
    generation: int = 0
    #: The workload only leaves this node.
    keep_data: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The intent that follows from a command."""

    #: None: there is nothing to remove.
    intent: Intent | None
    #: Nothing is to be done about it.
    skipped: bool = False
    #: There is something new to remember, if only a generation.
    stored: bool = True


def judge_apply(command: ApplyCommand, state: WorkloadState | None, *, highest: int, now: datetime) -> Decision:
    """Accept or refuse an apply. `highest` is the highest generation ever accepted for the workload."""
    generation = command.generation or highest + 1
    if generation < highest:
        raise StaleGenerationError(command.workload_id, offered=generation, highest=highest)
    current = state.intent if state is not None else None
    if state is None or current is None or current.deleting:
        if generation <= highest:
            raise _removed(command.workload_id, generation)
        return Decision(_new_life(command, generation, now))
    if command.type is not current.type:
        rule = f"must stay {current.type.value}; delete the workload to give its id to another kind"
        raise InvalidError([problem("type", command.type.value, rule)])
    same = (
        command.revision_id == current.revision_id
        and command.desired is current.desired
        and command.spec_sha256 == current.spec_sha256
    )
    if generation == current.generation:
        if same and command.attempt == current.attempt:
            return Decision(current, skipped=True, stored=False)
        raise PreconditionError(
            f"workload {command.workload_id!r}: generation {generation} was accepted already, with another content",
            hint="every change of a workload needs a higher generation",
            workload_id=command.workload_id,
            generation=generation,
        )
    intent = replace(
        current,
        revision_id=command.revision_id,
        desired=command.desired,
        spec_bytes=command.spec_bytes,
        spec_sha256=command.spec_sha256,
        generation=generation,
        attempt=max(command.attempt, current.attempt),
        updated_at=now,
    )
    return Decision(intent, skipped=same and not _has_to_act(state, intent))


def judge_delete(command: DeleteCommand, state: WorkloadState | None, *, now: datetime) -> Decision:
    """Accept or refuse a delete."""
    if state is None:
        return Decision(None, skipped=True, stored=command.generation > 0)
    current = state.intent
    if command.generation and command.generation < current.generation:
        raise StaleGenerationError(command.workload_id, offered=command.generation, highest=current.generation)
    generation = max(command.generation, current.generation)
    if current.deleting:
        intent = replace(current, generation=generation, keeps_data=current.keeps_data and command.keep_data)
        return Decision(intent, skipped=True, stored=intent != current)
    intent = replace(current, deleting=True, keeps_data=command.keep_data, generation=generation, updated_at=now)
    return Decision(intent)


def _new_life(command: ApplyCommand, generation: int, now: datetime) -> Intent:
    return Intent(
        workload_id=command.workload_id,
        type=command.type,
        revision_id=command.revision_id,
        desired=command.desired,
        spec_bytes=command.spec_bytes,
        spec_sha256=command.spec_sha256,
        generation=generation,
        born=generation,
        attempt=command.attempt,
        created_at=now,
        updated_at=now,
    )


def _has_to_act(state: WorkloadState, intent: Intent) -> bool:
    """Whether a command with the same content asks for another try of a run that has ended."""
    progress = state.progress
    if not intent.wanted:
        return False
    if progress.outcome is RunOutcome.FAILED:
        return True
    over = progress.outcome is RunOutcome.COMPLETED or state.stage is Stage.WAITING
    return over and intent.attempt > progress.attempt


def _removed(workload_id: WorkloadId, generation: int) -> StaleGenerationError:
    error = StaleGenerationError(workload_id, offered=generation, highest=generation)
    error.message = f"workload {workload_id!r}: it was removed at generation {generation}; only a newer one is taken"
    error.args = (error.message,)
    return error


# ---------------------------------------------------------------------------------------------------------
# What a spec means for the other parts of the agent


def rules_of(spec: AgentSpec, runtime: Runtime | None = None) -> RunRules:
    """The part of a spec that decides about restarts and readiness, on this runtime."""
    body = spec.body
    rules = RunRules(
        restart=body.restart_rules,
        liveness=probe_words(body.liveness) if body.liveness is not None else "",
        at_most_one=spec.at_most_one,
        stop_after=spec.stop_after.total_seconds(),
        prepares=isinstance(runtime, SupportsPrepare),
        updates=isinstance(runtime, SupportsUpdate),
    )
    if body.readiness is not None:
        deadline = body.readiness.deadline.total_seconds()
        return replace(rules, ready_within=deadline, probe=probe_words(body.readiness))
    if body.boot is not None:
        return replace(
            rules,
            ready_within=body.boot.deadline.total_seconds(),
            probe="the guest to boot",
            late_failure=FailureReason.VM_BOOT_FAILED,
            stays_watched=False,
        )
    return rules


def claim_of(spec: AgentSpec) -> Claim:
    """What a workload takes of its node."""
    return Claim(request=spec.request, ports=spec.body.host_ports)


def probe_words(probe: Readiness | Liveness) -> str:
    """What a probe looks at, for people."""
    if probe.tcp_port is not None:
        return f"port {probe.tcp_port}"
    if probe.http is not None:
        return f"GET {probe.http.path} on port {probe.http.port}"
    if probe.command is not None:
        return f"command {probe.command.command[0]!r}"
    return "nothing"

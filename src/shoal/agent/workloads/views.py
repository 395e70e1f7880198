"""Makes the status that is reported of a workload, and the verdict on the last command. Pure. Called by the actor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.agent.facts import RunOutcome, Stage, WorkloadState
from shoal.model.workloads import FailureReason, RunState, RunStatus

#: The most bytes that the texts of all workloads may have in one heartbeat, so that the message keeps its limit.
TEXT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the last command."""

    #: Empty when it was carried out.
    error: str = ""


def verdict_of(state: WorkloadState) -> Verdict | None:
    """Whether the last command is carried out, or has failed for good; None while neither is true.

    An apply is carried out once the workload runs and is ready, has completed, or is stopped as asked. A workload that
    waits to be restarted, or to be confirmed by the control plane, is not.
    """
    if state.intent.deleting:
        return Verdict() if state.stage is Stage.FORGOTTEN else None
    if state.replacement is not None and not state.replacement.transient:
        return Verdict(error=state.replacement.message)
    if state.stage is Stage.READY:
        return Verdict() if state.is_current else None
    if state.stage is not Stage.RESTING:
        return None
    if state.progress.outcome is RunOutcome.FAILED:
        return Verdict(error=state.progress.message or "failed")
    return Verdict()


def status_of(state: WorkloadState) -> RunStatus:
    """What is reported of a workload."""
    intent, progress = state.intent, state.progress
    report, message = _report(state)
    failing = report is RunState.FAILED or state.stage is Stage.WAITING
    ended = progress.ended
    failure = progress.failure if failing else FailureReason.NONE
    next_at = progress.next_start_at if state.stage is Stage.WAITING else None
    if state.trouble is not None and report is RunState.PENDING:
        failure, next_at = state.trouble.failure, state.trouble.again_at
    if state.replacement is not None:
        failure, next_at = state.replacement.failure, state.replacement.next_at
    return RunStatus(
        workload_id=intent.workload_id,
        state=report,
        failure=failure,
        message=message,
        last_transition=state.since,
        generation=intent.generation,
        revision_id=intent.revision_id,
        exit=progress.exit if ended else None,
        ports=progress.ports if not ended else {},
        restarts=progress.restarts,
        ready=state.stage is Stage.READY,
        completed=progress.outcome is RunOutcome.COMPLETED and not intent.deleting,
        deleting=intent.deleting,
        last_output=progress.last_output if ended and progress.outcome is not RunOutcome.COMPLETED else "",
        pid=state.pid,
        started_at=progress.started_at,
        next_restart_at=next_at,
        spec_sha256=intent.spec_sha256,
        services=state.services,
    )


def text_room(count: int) -> int:
    """How many bytes of text each of so many statuses may have: a power of two, so that it seldom changes."""
    return 1 << max(1, TEXT_BYTES // max(1, count)).bit_length() - 1


def brief(status: RunStatus, room: int) -> RunStatus:
    """The same status with texts of at most `room` bytes: half of it for the end of what was printed.

    The message has a quarter, because a heartbeat has it twice.
    """
    message, last_output = _beginning(status.message, room // 4), _end(status.last_output, room // 2)
    if message == status.message and last_output == status.last_output:
        return status
    return replace(status, message=message, last_output=last_output)


def _beginning(text: str, most: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= most else f"{data[: most - 3].decode(errors='ignore')}…"


def _end(text: str, most: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= most else data[len(data) - most :].decode(errors="ignore")


_REPORTED: Mapping[Stage, RunState] = {
    Stage.HELD: RunState.PENDING,
    Stage.WAITING: RunState.PENDING,
    Stage.STARTING: RunState.PENDING,
    Stage.PROBING: RunState.PENDING,
    Stage.READY: RunState.RUNNING,
    Stage.UPDATING: RunState.PENDING,
    Stage.STOPPING: RunState.PENDING,
    Stage.FORGETTING: RunState.STOPPED,
    Stage.FORGOTTEN: RunState.STOPPED,
}


def _report(state: WorkloadState) -> tuple[RunState, str]:
    progress = state.progress
    if state.stage is Stage.RESTING:
        if progress.outcome is RunOutcome.COMPLETED:
            return RunState.STOPPED, f"completed: {progress.message}"
        if progress.outcome is RunOutcome.FAILED:
            return RunState.FAILED, progress.message
        return RunState.STOPPED, state.note or "stopped"
    if state.replacement is not None and state.stage in (Stage.READY, Stage.PROBING):
        if not state.replacement.message:
            return RunState.PENDING, "preparing the new revision; the previous one goes on running"
        words = f"{state.replacement.message}; the previous revision goes on running"
        return RunState.PENDING, f"the new revision cannot be started: {words}"
    if state.stage is Stage.READY:
        return RunState.RUNNING, "running"
    if state.stage is Stage.WAITING and progress.next_start_at is not None:
        after = progress.failures or progress.start_failures
        return RunState.PENDING, f"{state.note}; waiting to be started again (failure {after} in a row)"
    return _REPORTED[state.stage], state.note

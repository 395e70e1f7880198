"""Decides what happens next to one workload on this node: events in, new state and instructions out. Pure.

The time, an unused run id and a number for jitter are arguments of each event (`Moment`). `shoal.agent.workloads.actor`
stores the durable part of a new state (`Progress`) before it carries out any instruction, so the disk always knows at
least as much as the runtime. After a restart `reopen` rebuilds the state from the intent, the progress and what the
runtime says of the run.

    stage        what is true                                           left by
    RESTING      nothing runs and nothing is to be done                 IntentChanged
    HELD         waits until the control plane confirms it              OwnershipConfirmed, IntentChanged
    WAITING      a start is due later                                   TimerFired, IntentChanged
    STARTING     the runtime was told to start; no answer yet           RunStarted, StartFailed, RunEnded, IntentChanged
    PROBING      it runs and is not ready, yet or any longer            BecameReady, ReadinessTimedOut, RunEnded, …
    READY        it runs and is ready                                   BecameUnready, RunEnded, IntentChanged, …
    UPDATING     the runtime was told to change the run; no answer yet  RunUpdated, ReplaceFailed, IntentChanged
    STOPPING     the runtime was told to stop; no answer yet            RunStopped
    FORGETTING   no run; what is kept for it is being removed           Forgotten
    FORGOTTEN    nothing is left                                        IntentChanged (a new life)

A run starts in one place only (`_begin`), which is reached only from stages without a run. So there is one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from shoal.agent.facts import (
    MOVES,
    BecameReady,
    BecameUnready,
    ConfirmOwnership,
    ContactLost,
    DiskExceeded,
    Event,
    ForgetRun,
    ForgetWorkload,
    Forgotten,
    FoundRun,
    Intent,
    IntentChanged,
    LivenessFailed,
    Moment,
    OwnershipConfirmed,
    OwnershipDenied,
    Prepared,
    PrepareRun,
    ProbeReadiness,
    Progress,
    Reaction,
    ReadinessTimedOut,
    ReplaceFailed,
    Replacement,
    RunEnded,
    RunOutcome,
    RunRules,
    RunStarted,
    RunStopped,
    RunTroubled,
    RunUpdated,
    ServicesSeen,
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
    describe_exit,
)
from shoal.core.durations import format_duration
from shoal.core.errors import InternalError
from shoal.core.ids import RunId
from shoal.model.workloads import AgentSpec, DesiredState, EndedBy, Exit, FailureReason, Restart, RestartPolicy

#: The random share of a restart delay, so that many workloads do not restart at once.
JITTER = 0.25

#: The end of what a failed run printed, as far as it is remembered and reported.
MAX_LAST_OUTPUT = 4096


def begin_life(intent: Intent, rules: RunRules, moment: Moment, *, spec: AgentSpec | None = None) -> Reaction:
    """The first step of a workload that was not here before."""
    progress = Progress(born=intent.born)
    state = WorkloadState(intent=intent, rules=rules, progress=progress, spec=spec, since=moment.now)
    return _converge(Reaction(state), moment)


def reopen(
    intent: Intent,
    rules: RunRules,
    progress: Progress,
    found: FoundRun | None,
    moment: Moment,
    *,
    spec: AgentSpec | None = None,
    is_known: bool = True,
) -> Reaction:
    """The state after a restart of the agent, and what to do about it. `found` is the run `progress.run_id`.

    `is_known` is whether the runtime could tell that there is no such run, when `found` is None.
    """
    ended_at = progress.exit.ended_at if progress.ended and progress.exit is not None else None
    since = ended_at or progress.started_at or moment.now
    state = WorkloadState(intent=intent, rules=rules, progress=progress, spec=spec, since=since)
    if found is None and progress.run_id and not progress.ended and not is_known:
        return _reopen_in_doubt(state, moment)
    if found is None or not progress.run_id:
        return _reopen_without_run(state, moment)
    if progress.ended:
        return _reopen_without_run(state, moment).then(ForgetRun(found.run_id))
    state = replace(state, own_readiness=found.readiness, services=found.services)
    ready = progress.ready or state.ready_within is None
    stage = Stage.READY if ready else Stage.PROBING
    progress = replace(progress, started_at=found.started_at, ports=dict(found.ports), ready=ready, held=False)
    note = "" if ready else _waiting(state)
    state = replace(state, stage=stage, progress=progress, pid=found.pid, note=note)
    if found.exit is not None:
        return handle(state, RunEnded(found.run_id, found.exit, found.last_output, found.ended_by), moment)
    step = _watched(_converge(Reaction(state), moment), alive=True)
    if step.state.stage is Stage.PROBING:
        alive = max(0.0, (moment.now - found.started_at).total_seconds())
        # A run that was adopted late still gets one try.
        step = step.then(ProbeReadiness(found.run_id, within=max(0.0, (state.ready_within or 0.0) - alive)))
    return step


def _reopen_in_doubt(state: WorkloadState, moment: Moment) -> Reaction:
    """Whether there is a run is asked until the runtime can tell: nothing starts or is called stopped before."""
    if _still_asked_for(state) and not state.rules.needs_contact:
        note = "starting: whether it runs already is not known yet"
        return Reaction(replace(state, stage=Stage.STARTING, note=note)).then(StartRun(state.progress.run_id))
    note = "stopping: whether it runs is not known yet"
    step = Reaction(replace(state, stage=Stage.STOPPING, note=note, since=moment.now))
    return step.then(StopRun(state.progress.run_id))


def _reopen_without_run(state: WorkloadState, moment: Moment) -> Reaction:
    progress = state.progress
    if progress.run_id and not progress.ended:
        # It was about to be started and never was: a runtime remembers every run until it is told to forget it,
        # and it is told so only after the end was recorded here.
        state = replace(state, progress=replace(progress, run_id=RunId(""), run_sha256=b""))
        return _converge(Reaction(state), moment)
    if progress.next_start_at is not None and _still_asked_for(state) and not _asks_again(state):
        longest = state.rules.restart.max_delay.total_seconds()
        # The clock may have been set meanwhile: never wait longer than a delay can be.
        seconds = min(max(0.0, (progress.next_start_at - moment.now).total_seconds()), longest)
        return _wait(Reaction(state), seconds, note=progress.message, moment=moment)
    return _converge(Reaction(state), moment)


def handle(state: WorkloadState, event: Event, moment: Moment) -> Reaction:
    """Take in one event. Events that come too late, or about an earlier run, change nothing."""
    run_id = getattr(event, "run_id", None)
    if run_id is not None and run_id != state.progress.run_id:
        return Reaction(state)
    stages, react = _REACTIONS[type(event)]
    if stages is not None and state.stage not in stages:
        return Reaction(state)
    return react(state, event, moment)


def _on_intent(state: WorkloadState, event: IntentChanged, moment: Moment) -> Reaction:
    before = state.intent
    if event.intent.generation < before.generation:
        return Reaction(state)
    changed = event.intent.spec_sha256 != before.spec_sha256 or event.intent.wanted != before.wanted
    failing, hanging = ("", "") if changed else (state.failing, state.hanging)
    state = replace(state, intent=event.intent, rules=event.rules, spec=event.spec, failing=failing, hanging=hanging)
    if state.stage in _ALIVE or state.stage is Stage.STARTING:
        # Another attempt was requested for a run that has ended; a live one goes on.
        state = replace(state, progress=replace(state.progress, attempt=event.intent.attempt))
    if event.intent.attempt > before.attempt:
        state = replace(state, replacement=None)
    if state.stage is Stage.FORGOTTEN:
        if event.intent.deleting:
            return Reaction(state)
        state = replace(state, progress=Progress(born=event.intent.born), pid=0)
        return _converge(_move(Reaction(state), Stage.RESTING, moment), moment)
    if state.stage is Stage.HELD and event.intent.wanted and event.intent.generation > before.generation:
        return _converge(_move(Reaction(state), Stage.RESTING, moment), moment)
    return _converge(Reaction(state), moment)


def _on_started(state: WorkloadState, event: RunStarted, moment: Moment) -> Reaction:
    state = replace(state, own_readiness=event.readiness, services=event.services)
    ready = state.ready_within is None
    progress = replace(
        state.progress, started_at=event.started_at, ports=dict(event.ports), ready=ready, start_failures=0
    )
    step = Reaction(replace(state, progress=progress, pid=event.pid))
    if ready:
        return _watched(_converge(_move(step, Stage.READY, moment), moment), alive=True)
    return _probed(_converge(_move(step, Stage.PROBING, moment, note=_waiting(state)), moment))


def _probed(step: Reaction) -> Reaction:
    """Probe a run that is not ready yet."""
    state = step.state
    if state.stage is not Stage.PROBING:
        return step
    return step.then(ProbeReadiness(state.progress.run_id, within=state.ready_within or 0.0))


def _waiting(state: WorkloadState) -> str:
    return f"waiting for {_awaited(state)}"


def _awaited(state: WorkloadState) -> str:
    return state.rules.probe or "the health check of its image"


def _on_start_failed(state: WorkloadState, event: StartFailed, moment: Moment) -> Reaction:
    progress = replace(
        state.progress,
        ended=True,
        started_at=None,
        failure=event.failure,
        message=event.message,
        start_failures=state.progress.start_failures + 1,
    )
    step = _move(Reaction(replace(state, progress=progress, pid=0)), Stage.RESTING, moment, note=event.message)
    if not _still_asked_for(step.state):
        return _converge(step, moment)
    if not event.transient:
        return _fail(step, event.failure, event.message)
    seconds = _delay(state.rules.restart, progress.start_failures, moment.chance)
    return _wait(step, seconds, note=f"could not be started: {event.message}", moment=moment)


def _on_trouble(state: WorkloadState, event: RunTroubled, moment: Moment) -> Reaction:
    del moment
    return Reaction(replace(state, note=event.message, trouble=None if event.failure is FailureReason.NONE else event))


def _on_start_refused(state: WorkloadState, event: StartRefused, moment: Moment) -> Reaction:
    del event
    progress = replace(state.progress, ended=True, held=True)
    step = _move(Reaction(replace(state, progress=progress)), Stage.RESTING, moment)
    return _converge(step, moment)


def _on_ready(state: WorkloadState, event: BecameReady, moment: Moment) -> Reaction:
    del event
    step = Reaction(replace(state, progress=replace(state.progress, ready=True)))
    return _watched(_converge(_move(step, Stage.READY, moment), moment), alive=not state.progress.ready)


def _watched(step: Reaction, *, alive: bool) -> Reaction:
    """Watch a run that is ready: whether it stays so and, from the first time on, whether it hangs."""
    state, run_id = step.state, step.state.progress.run_id
    if state.stage is not Stage.READY:
        return step
    if state.ready_within is not None and state.rules.stays_watched:
        step = step.then(WatchReadiness(run_id))
    return step.then(WatchLiveness(run_id)) if alive and state.rules.liveness else step


def _on_unready(state: WorkloadState, event: BecameUnready, moment: Moment) -> Reaction:
    step = _move(Reaction(state), Stage.PROBING, moment, note=f"not ready any longer: {_waiting(state)}")
    return step.then(ProbeReadiness(event.run_id, within=None))


def _on_liveness_failed(state: WorkloadState, event: LivenessFailed, moment: Moment) -> Reaction:
    why = f"its liveness probe failed ({state.rules.liveness})"
    step = _move(Reaction(replace(state, hanging=why)), Stage.STOPPING, moment, note=f"restarting: {why}")
    return step.then(StopRun(event.run_id))


def _on_disk_exceeded(state: WorkloadState, event: DiskExceeded, moment: Moment) -> Reaction:
    failing = replace(state, failing=event.message, failing_reason=FailureReason.STORAGE_ERROR)
    return _move(Reaction(failing), Stage.STOPPING, moment, note=event.message).then(StopRun(event.run_id))


def _on_readiness_timeout(state: WorkloadState, event: ReadinessTimedOut, moment: Moment) -> Reaction:
    allowed = format_duration(state.ready_within or 0.0)
    why = f"not ready within {allowed} (waited for {_awaited(state)})"
    failing = replace(state, failing=why, failing_reason=state.rules.late_failure)
    return _move(Reaction(failing), Stage.STOPPING, moment, note=why).then(StopRun(event.run_id))


def _on_prepared(state: WorkloadState, event: Prepared, moment: Moment) -> Reaction:
    if event.spec_sha256 != state.intent.spec_sha256 or not _is_replaced(state):
        return Reaction(state)
    if state.rules.updates:
        return _move(Reaction(state), Stage.UPDATING, moment, note="being updated in place").then(
            UpdateRun(event.run_id, event.spec_sha256)
        )
    return _move(Reaction(state), Stage.STOPPING, moment, note="stopping, to be replaced").then(StopRun(event.run_id))


def _on_updated(state: WorkloadState, event: RunUpdated, moment: Moment) -> Reaction:
    state = replace(state, own_readiness=event.readiness, services=event.services, replacement=None)
    ready = state.ready_within is None
    progress = replace(state.progress, run_sha256=event.spec_sha256, ports=dict(event.ports), ready=ready)
    return _back(replace(state, progress=progress, pid=event.pid), moment)


def _on_services(state: WorkloadState, event: ServicesSeen, moment: Moment) -> Reaction:
    del moment
    return Reaction(replace(state, services=event.services) if event.services != state.services else state)


def _on_replace_failed(state: WorkloadState, event: ReplaceFailed, moment: Moment) -> Reaction:
    before = state.replacement
    if before is None or event.spec_sha256 != before.spec_sha256:
        return _back(state, moment) if state.stage is Stage.UPDATING else Reaction(state)
    seconds = _delay(state.rules.restart, before.failures + 1, moment.chance)
    failed = Replacement(
        event.spec_sha256,
        failures=before.failures + 1,
        failure=event.failure,
        message=event.message,
        transient=event.transient,
        next_at=moment.now + timedelta(seconds=seconds),
    )
    state = replace(state, replacement=failed)
    step = _back(state, moment) if state.stage is Stage.UPDATING else Reaction(state)
    if step.state.stage not in _ALIVE or not _is_replaced(step.state) or step.state.replacement is not failed:
        return step
    return step.then(PrepareRun(event.run_id, event.spec_sha256, after=seconds))


def _back(state: WorkloadState, moment: Moment) -> Reaction:
    """What follows the attempt to change a run in place: it is watched again, and its end is taken in if it came."""
    early, state = state.early_end, replace(state, early_end=None)
    if state.progress.ready:
        step = _watched(_converge(_move(Reaction(state), Stage.READY, moment), moment), alive=True)
    else:
        step = _probed(_converge(_move(Reaction(state), Stage.PROBING, moment, note=_waiting(state)), moment))
    if early is None or step.state.stage not in _ALIVE:
        return step
    return handle(step.state, early, moment)


def _on_ended(state: WorkloadState, event: RunEnded, moment: Moment) -> Reaction:
    if state.stage is Stage.UPDATING:
        return Reaction(replace(state, early_end=event))
    step = _record_end(state, event.exit, event.last_output, event.ended_by, moment)
    if not _still_asked_for(step.state):
        # Seldom: it was told to stop, ended by itself, and the agent died before it was told of the end.
        if _reached_its_end(state, event.exit, event.ended_by):
            step = _complete(step, event.exit)
        return _converge(step, moment)
    return _after_own_end(step, event.exit, event.ended_by, moment)


def _on_stopped(state: WorkloadState, event: RunStopped, moment: Moment) -> Reaction:
    step = _record_end(state, event.exit, event.last_output, event.ended_by, moment)
    if event.exit is not None and _reached_its_end(state, event.exit, event.ended_by):
        return _converge(_complete(step, event.exit), moment)
    if state.failing and _still_asked_for(step.state):
        return _fail(step, state.failing_reason, state.failing)
    if state.hanging and _still_asked_for(step.state):
        return _after_failed_run(step, event.exit, state.hanging, moment)
    return _converge(step, moment)


def _on_timer(state: WorkloadState, event: TimerFired, moment: Moment) -> Reaction:
    if event.serial != state.waits:
        return Reaction(state)
    progress = replace(state.progress, next_start_at=None, restarts=state.progress.restarts + 1)
    return _begin(Reaction(replace(state, progress=progress)), moment)


def _on_confirmed(state: WorkloadState, event: OwnershipConfirmed, moment: Moment) -> Reaction:
    return _start(Reaction(state), moment) if event.generation == state.intent.generation else Reaction(state)


def _on_denied(state: WorkloadState, event: OwnershipDenied, moment: Moment) -> Reaction:
    del moment
    return Reaction(replace(state, note=event.message) if event.generation == state.intent.generation else state)


def _on_contact_lost(state: WorkloadState, event: ContactLost, moment: Moment) -> Reaction:
    del event
    if not state.rules.needs_contact:
        return Reaction(state)
    held = replace(state, progress=replace(state.progress, held=True))
    step = _move(Reaction(held), Stage.STOPPING, moment, note="no contact with the control plane")
    return step.then(StopRun(state.progress.run_id))


def _on_forgotten(state: WorkloadState, event: Forgotten, moment: Moment) -> Reaction:
    del event
    step = _move(Reaction(state), Stage.FORGOTTEN, moment)
    if state.intent.deleting:
        return step
    # It was applied again while its former self was being removed.
    fresh = replace(step.state, progress=Progress(born=state.intent.born), pid=0)
    return _converge(_move(replace(step, state=fresh), Stage.RESTING, moment), moment)


_Reaction = Callable[[WorkloadState, Any, Moment], Reaction]

_ALIVE = frozenset({Stage.PROBING, Stage.READY})
_REACTIONS: Mapping[type, tuple[frozenset[Stage] | None, _Reaction]] = {
    IntentChanged: (None, _on_intent),
    RunStarted: (frozenset({Stage.STARTING}), _on_started),
    StartFailed: (frozenset({Stage.STARTING}), _on_start_failed),
    StartRefused: (frozenset({Stage.STARTING}), _on_start_refused),
    RunTroubled: (frozenset({Stage.STARTING, Stage.STOPPING, Stage.FORGETTING}), _on_trouble),
    BecameReady: (frozenset({Stage.PROBING}), _on_ready),
    ReadinessTimedOut: (frozenset({Stage.PROBING}), _on_readiness_timeout),
    DiskExceeded: (_ALIVE, _on_disk_exceeded),
    BecameUnready: (frozenset({Stage.READY}), _on_unready),
    LivenessFailed: (_ALIVE, _on_liveness_failed),
    Prepared: (_ALIVE, _on_prepared),
    RunUpdated: (frozenset({Stage.UPDATING}), _on_updated),
    ServicesSeen: (_ALIVE, _on_services),
    ReplaceFailed: (_ALIVE | {Stage.UPDATING}, _on_replace_failed),
    RunEnded: (_ALIVE | {Stage.STARTING, Stage.UPDATING}, _on_ended),
    RunStopped: (frozenset({Stage.STOPPING}), _on_stopped),
    TimerFired: (frozenset({Stage.WAITING}), _on_timer),
    OwnershipConfirmed: (frozenset({Stage.HELD}), _on_confirmed),
    OwnershipDenied: (frozenset({Stage.HELD}), _on_denied),
    ContactLost: (_ALIVE, _on_contact_lost),
    Forgotten: (frozenset({Stage.FORGETTING}), _on_forgotten),
}
"""For each event the stages in which it means something (None: all) and what it does."""


def _converge(step: Reaction, moment: Moment) -> Reaction:
    """Take the next step towards the intent, if the present stage allows one."""
    state = step.state
    if state.stage in _ALIVE:
        if _is_replaced(state) and (state.rules.prepares or state.rules.updates):
            return _prepare(step)
        why = _reason_to_stop(state)
        if not why:
            return step if state.replacement is None else replace(step, state=replace(state, replacement=None))
        return _move(step, Stage.STOPPING, moment, note=why).then(StopRun(state.progress.run_id))
    if why := _reason_to_interrupt(state):
        step = replace(step, state=replace(state, early_end=None))
        return _move(step, Stage.STOPPING, moment, note=why).then(StopRun(state.progress.run_id))
    if state.stage not in (Stage.RESTING, Stage.HELD, Stage.WAITING):
        return step  # an answer is awaited, and its arrival leads here again
    intent, progress = state.intent, state.progress
    if intent.deleting or progress.born != intent.born:
        return _move(step, Stage.FORGETTING, moment, note="being removed").then(ForgetWorkload())
    if intent.desired is not DesiredState.RUNNING:
        return _rest(step, moment)
    return _converge_wanted(step, moment)


def _prepare(step: Reaction) -> Reaction:
    """Have everything made ready for the new spec while the present run goes on."""
    state = step.state
    wanted = state.intent.spec_sha256
    if state.replacement is not None and state.replacement.spec_sha256 == wanted:
        return step
    step = replace(step, state=replace(state, replacement=Replacement(wanted)))
    return step.then(PrepareRun(state.progress.run_id, wanted))


def _is_replaced(state: WorkloadState) -> bool:
    """Whether the present run is to be followed by one of another spec."""
    intent, progress = state.intent, state.progress
    return intent.wanted and progress.born == intent.born and progress.run_sha256 != intent.spec_sha256


def _converge_wanted(step: Reaction, moment: Moment) -> Reaction:
    """Start, or wait to start, a workload that should run and has no run."""
    state, intent, progress = step.state, step.state.intent, step.state.progress
    if progress.run_sha256 and progress.run_sha256 != intent.spec_sha256:
        # A new spec starts without the failures of the previous one; only the ports are kept.
        fresh = replace(state, progress=Progress(born=intent.born, ports=progress.ports))
        return _begin(replace(step, state=fresh), moment)
    if _asks_again(state):
        # Another try was requested: failures no longer count.
        again = Progress(
            born=progress.born,
            run_sha256=progress.run_sha256,
            attempt=intent.attempt,
            ports=progress.ports,
            ended=True,
            exit=progress.exit,
            restarts=progress.restarts + 1,
        )
        return _begin(replace(step, state=replace(state, progress=again)), moment)
    if state.stage is not Stage.RESTING or progress.outcome is not RunOutcome.NONE:
        return step
    return _begin(step, moment)


def _asks_again(state: WorkloadState) -> bool:
    """Whether the intent is to try once more what has ended, has failed or waits for its next try."""
    intent, progress = state.intent, state.progress
    if state.stage is Stage.HELD:
        return False
    if progress.outcome is RunOutcome.FAILED and intent.generation > progress.failed_generation:
        return True
    return bool(progress.run_sha256) and intent.attempt > progress.attempt


def _rest(step: Reaction, moment: Moment) -> Reaction:
    """Nothing is to run. A failure is over with that, a completion is not."""
    state, progress = step.state, step.state.progress
    note = "stopped"
    if progress.outcome is RunOutcome.FAILED:
        note = f"stopped; before that it failed: {progress.message}"
    if progress.outcome is not RunOutcome.COMPLETED:
        progress = replace(
            progress,
            outcome=RunOutcome.NONE,
            failure=FailureReason.NONE,
            failures=0,
            start_failures=0,
            next_start_at=None,
        )
    step = replace(step, state=replace(state, progress=replace(progress, held=False)))
    if state.stage is Stage.RESTING:
        return replace(step, state=replace(step.state, note=note))
    return _move(step, Stage.RESTING, moment, note=note)


def _begin(step: Reaction, moment: Moment) -> Reaction:
    """Start a run. An at-most-one run starts after the control plane has confirmed that this node owns it.

    So does a run that was stopped without contact: another node may own it by now.
    """
    state = step.state
    if not state.rules.at_most_one and not (state.rules.needs_contact and state.progress.held):
        return _start(step, moment)
    held = "stopped: no contact with the control plane" if state.progress.held else "asking the control plane"
    step = _move(step, Stage.HELD, moment, note=held)
    return step.then(ConfirmOwnership(state.intent.generation))


def _start(step: Reaction, moment: Moment) -> Reaction:
    before = step.state.progress
    # A started run that we ended because contact was lost: users see a restart.
    again = before.held and before.started_at is not None
    progress = replace(
        before,
        run_id=moment.run_id,
        run_sha256=step.state.intent.spec_sha256,
        attempt=step.state.intent.attempt,
        started_at=None,
        ready=False,
        ended=False,
        held=False,
        restarts=before.restarts + again,
        next_start_at=None,
    )
    fresh = replace(
        step.state, progress=progress, pid=0, failing="", hanging="", own_readiness=None, services={}, replacement=None
    )
    step = replace(step, state=fresh)
    return _move(step, Stage.STARTING, moment, note="starting").then(StartRun(moment.run_id))


def _record_end(state: WorkloadState, exit_: Exit | None, last_output: str, ended_by: str, moment: Moment) -> Reaction:
    progress = replace(
        state.progress,
        ended=True,
        ready=False,
        exit=exit_,
        last_output=last_output[-MAX_LAST_OUTPUT:],
        held=state.progress.held or ended_by == EndedBy.DEADLINE,
    )
    step = _move(Reaction(replace(state, progress=progress, pid=0)), Stage.RESTING, moment)
    return step.then(ForgetRun(progress.run_id))


def _after_own_end(step: Reaction, exit_: Exit, ended_by: str, moment: Moment) -> Reaction:
    """What follows the end of a run that should go on: the restart policy decides."""
    state = step.state
    if ended_by:
        # Ended because contact was lost, or together with its agent: not a failure of the workload.
        if not state.progress.held:
            restarts = state.progress.restarts + 1
            step = replace(step, state=replace(state, progress=replace(state.progress, restarts=restarts)))
        return _begin(step, moment)
    if _completes(state, exit_):
        return _complete(step, exit_)
    return _after_failed_run(step, exit_, describe_exit(exit_), moment)


def _after_failed_run(step: Reaction, exit_: Exit | None, message: str, moment: Moment) -> Reaction:
    """What follows the failure of a run that should go on."""
    state = step.state
    restart, progress = state.rules.restart, state.progress
    ended_at = (exit_.ended_at if exit_ is not None else None) or moment.now
    healthy = _lifetime(progress.started_at, ended_at) >= restart.healthy_after
    failures = 1 if healthy else progress.failures + 1
    step = replace(step, state=replace(state, progress=replace(progress, failures=failures)))
    if restart.policy == Restart.NO:
        return _fail(step, FailureReason.RUNTIME_ERROR, message)
    if restart.policy == Restart.ON_FAILURE and restart.max_retries and failures > restart.max_retries:
        return _fail(step, FailureReason.RUNTIME_ERROR, f"{message}; gave up after {restart.max_retries} restarts")
    failed = replace(step.state.progress, failure=FailureReason.RUNTIME_ERROR)
    return _wait(
        replace(step, state=replace(step.state, progress=failed)),
        _delay(restart, failures, moment.chance),
        note=message,
        moment=moment,
    )


def _wait(step: Reaction, seconds: float, *, note: str, moment: Moment) -> Reaction:
    at = moment.now + timedelta(seconds=seconds)
    state = step.state
    progress = replace(state.progress, next_start_at=at, message=note)
    step = replace(step, state=replace(state, progress=progress, waits=state.waits + 1))
    return _move(step, Stage.WAITING, moment, note=note).then(Wait(seconds, serial=state.waits + 1))


def _complete(step: Reaction, exit_: Exit) -> Reaction:
    message = describe_exit(exit_)
    progress = replace(
        step.state.progress,
        outcome=RunOutcome.COMPLETED,
        failure=FailureReason.NONE,
        message=message,
        failures=0,
        next_start_at=None,
    )
    return replace(step, state=replace(step.state, progress=progress, note=message))


def _fail(step: Reaction, failure: FailureReason, message: str) -> Reaction:
    progress = replace(
        step.state.progress,
        outcome=RunOutcome.FAILED,
        failure=failure,
        message=message,
        next_start_at=None,
        failed_generation=step.state.intent.generation,
    )
    return replace(step, state=replace(step.state, progress=progress, note=message, failing=""))


def _move(step: Reaction, stage: Stage, moment: Moment, *, note: str = "") -> Reaction:
    before = step.state.stage
    if stage not in MOVES[before]:
        raise InternalError(
            f"workload {step.state.intent.workload_id!r}: no move from {before.value} to {stage.value}",
            workload_id=step.state.intent.workload_id,
            state=step.state,
        )
    return replace(step, state=replace(step.state, stage=stage, since=moment.now, note=note, trouble=None))


def _still_asked_for(state: WorkloadState) -> bool:
    """Whether the run that is over was one of the present spec, and should be running."""
    progress, intent = state.progress, state.intent
    return intent.wanted and progress.born == intent.born and progress.run_sha256 == intent.spec_sha256


def _reason_to_stop(state: WorkloadState) -> str:
    intent, progress = state.intent, state.progress
    if intent.deleting or progress.born != intent.born:
        return "stopping, to be removed"
    if intent.desired is not DesiredState.RUNNING:
        return "stopping"
    return "stopping, to be replaced" if _is_replaced(state) else ""


def _reason_to_interrupt(state: WorkloadState) -> str:
    """Why a start or an update is not waited for: what it makes is no longer wanted. Empty when it is."""
    is_interrupted = state.stage is Stage.STARTING or (state.stage is Stage.UPDATING and not _is_replaced(state))
    return _reason_to_stop(state) if is_interrupted else ""


def _reached_its_end(state: WorkloadState, exit_: Exit, ended_by: str) -> bool:
    """Whether the desired run completed by itself, just before it was to be stopped."""
    return state.is_current and ended_by == EndedBy.ITSELF and _completes(state, exit_)


def _completes(state: WorkloadState, exit_: Exit) -> bool:
    return state.rules.restart.completes and exit_.code == 0 and exit_.signal == 0 and not exit_.unknown


def _delay(restart: RestartPolicy, failures: int, chance: float) -> float:
    plain = restart.delay.total_seconds() * 2.0 ** min(max(failures - 1, 0), 64)
    return min(plain, restart.max_delay.total_seconds()) * (1.0 - JITTER * chance)


def _lifetime(started_at: datetime | None, ended_at: datetime) -> timedelta:
    return ended_at - started_at if started_at is not None else timedelta(0)

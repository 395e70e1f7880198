"""The states of a job and every transition between them, as one table. Pure.

A transition that the table does not list is a bug of an engine: the control plane refuses it (`check`) and the job
stays as it is. Called by `shoal.control.jobs` before a transition begins, and by engines to know what they may do.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from shoal.core.errors import InternalError, PreconditionError
from shoal.model.jobs import JobAction, JobDesired, JobState

S = JobState


class Transition(enum.StrEnum):
    """What changes the state of a job. Each one is a durable workflow."""

    PLACE = "place"  # its workloads are stored and wait for nodes
    DEPLOY = "deploy"  # every workload has a node
    RUN = "run"  # every workload is ready
    RECOVER = "recover"  # a workload was lost
    RESCALE = "rescale"
    UPGRADE = "upgrade"  # to another revision, or one more part of the way there
    REVERT = "revert"  # back to the previous revision
    PAUSE = "pause"  # an upgrade waits for a person
    STOP = "stop"  # its workloads are to be removed
    END = "end"  # its workloads are gone, or have run to their end
    FAIL = "fail"
    RESUME = "resume"  # begins again


ACTIVE = frozenset(
    {
        S.PENDING,
        S.DEPLOYING,
        S.RUNNING,
        S.RECOVERING,
        S.RESCALING,
        S.UPGRADING,
        S.REVERTING,
        S.PAUSED,
    }
)
"""The states in which a job has workloads and is to have them."""

ENDED = frozenset({S.STOPPED, S.CANCELED, S.FINISHED, S.FAILED})
"""The states in which nothing happens until a person asks for it."""

_STARTING = frozenset({S.PENDING, S.DEPLOYING})
_CHANGING = frozenset({S.RECOVERING, S.RESCALING, S.UPGRADING, S.REVERTING})

TABLE: Mapping[Transition, Mapping[JobState, frozenset[JobState]]] = {
    Transition.PLACE: dict.fromkeys((S.SUBMITTED, *_STARTING), frozenset({S.PENDING})),
    Transition.DEPLOY: dict.fromkeys((S.SUBMITTED, *_STARTING), frozenset({S.DEPLOYING})),
    Transition.RUN: dict.fromkeys((*_STARTING, *_CHANGING, S.PAUSED, S.RUNNING), frozenset({S.RUNNING})),
    Transition.RECOVER: dict.fromkeys(ACTIVE, frozenset({S.RECOVERING})),
    Transition.RESCALE: dict.fromkeys(ACTIVE, frozenset({S.RESCALING})),
    Transition.UPGRADE: dict.fromkeys(ACTIVE, frozenset({S.UPGRADING})),
    Transition.REVERT: dict.fromkeys((S.UPGRADING, S.PAUSED, S.REVERTING), frozenset({S.REVERTING})),
    Transition.PAUSE: dict.fromkeys((S.UPGRADING, S.REVERTING, S.PAUSED), frozenset({S.PAUSED})),
    # Twice where there is something to save first: then its workloads stay until that is done.
    Transition.STOP: dict.fromkeys((S.SUBMITTED, *ACTIVE, S.STOPPING, S.FAILED), frozenset({S.STOPPING})),
    Transition.END: {
        S.STOPPING: frozenset({S.STOPPED, S.CANCELED}),
        S.RUNNING: frozenset({S.FINISHED}),
        S.SUBMITTED: frozenset({S.STOPPED, S.CANCELED}),
        S.STOPPED: frozenset({S.CANCELED}),
        S.FAILED: frozenset({S.CANCELED, S.STOPPED}),
    },
    Transition.FAIL: dict.fromkeys((S.SUBMITTED, *ACTIVE, S.STOPPING), frozenset({S.FAILED})),
    Transition.RESUME: dict.fromkeys(ENDED, frozenset({S.SUBMITTED})),
}
"""From a transition and the state before it to the states after it."""


def check(transition: Transition, before: JobState, after: JobState) -> None:
    """Raise `InternalError` unless the table lists this transition."""
    if after not in TABLE[transition].get(before, frozenset()):
        raise InternalError(
            f"a job cannot go from {before} to {after} by {transition}",
            transition=transition,
            before=before,
            after=after,
        )


_REFUSED: Mapping[JobAction, Mapping[JobState, str]] = {
    JobAction.RESCALE: dict.fromkeys((*ENDED, S.STOPPING), "resume it first, or submit it again"),
    JobAction.UPGRADE: dict.fromkeys((S.STOPPING, S.CANCELED, S.FINISHED), "submit it again"),
    JobAction.SAVEPOINT: dict.fromkeys((*ENDED, S.STOPPING, S.SUBMITTED), "a savepoint needs a running job"),
    JobAction.RESUME: dict.fromkeys(
        (*(ACTIVE - {S.PAUSED}), S.SUBMITTED, S.STOPPING), "only a job that was stopped, has failed or is paused can be"
    ),
    JobAction.CANCEL: {S.FINISHED: "it has ended by itself"},
    JobAction.SUBMIT: dict.fromkeys((S.SUBMITTED, S.STOPPING, *ACTIVE), "cancel it first, or choose another id"),
}
"""The states in which an action is refused, with what to do instead."""


def check_action(job_id: str, action: JobAction, state: JobState) -> None:
    """Raise `PreconditionError` if a job in this state cannot take this request."""
    hint = _REFUSED[action].get(state)
    if hint is not None:
        raise PreconditionError(
            f"job {job_id!r} is {state}; it cannot take the request {action}", hint=hint, job_id=job_id, state=state
        )


def desired_after(action: JobAction, before: JobDesired, *, stop: bool = False) -> JobDesired:
    """What a person wants of a job after this request."""
    if action is JobAction.CANCEL:
        return JobDesired.CANCELED
    if action is JobAction.SAVEPOINT:
        return JobDesired.STOPPED if stop else before
    return JobDesired.RUNNING

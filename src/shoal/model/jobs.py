"""Jobs: a named set of workloads that one engine owns, its state, and what a person last asked of it.

The control plane keeps a job as one row. It knows the engine's name and passes the engine's own bytes on without
reading them. The states and the transitions between them are in `shoal.jobs.states`. Stored by
`shoal.control.store`, shown by `shoal job`, and listed in docs/reference/states.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from shoal.core.ids import JobId, WorkloadId
from shoal.model.described import Described

MAX_SPEC_BYTES = 1024 * 1024
"""The largest spec of a job. User code travels as artifacts, which a spec names."""
MAX_PROGRESS_BYTES = 2 * 1024 * 1024
"""The largest record that an engine keeps in the row of a job."""
MAX_JOB_WORKLOADS = 4096
"""The most workloads that one job may have."""
MAX_JOB_ID = 100
"""The longest id of a job: the ids of its workloads begin with it."""
MAX_KEY = 128
"""The longest client key."""
MAX_MESSAGE = 2000
"""The longest message in the row of a job."""
NO_SAVEPOINT = "no savepoint: "
"""What the message of a job begins with after a request for a savepoint that could not be made."""
JOB_LABEL = "shoal.job"
"""The label of every workload of a job, with the id of the job. Specs of people may not set it."""


class JobState(Described):
    """The state of a job."""

    SUBMITTED = "Submitted", "It is stored; nothing of it was placed."
    PENDING = "Pending", "Its workloads are stored, and at least one has no node yet."
    DEPLOYING = "Deploying", "Every workload has a node, and not all of them are ready."
    RUNNING = "Running", "Every workload is ready."
    RECOVERING = "Recovering", "A workload was lost or is not ready, and it is being replaced."
    RESCALING = "Rescaling", "It gets another width."
    UPGRADING = "Upgrading", "It gets another revision."
    REVERTING = "Reverting", "Its newest revision failed, and the previous one is being restored."
    PAUSED = "Paused", "Its newest revision failed, and the upgrade waits for a person."
    STOPPING = "Stopping", "Its workloads are being removed."
    STOPPED = "Stopped", "It was stopped and can be resumed."
    CANCELED = "Canceled", "It was canceled; its workloads are gone."
    FINISHED = "Finished", "It has run to its end."
    FAILED = "Failed", "It cannot go on by itself; its message says why."


def job_state(name: str) -> JobState:
    """A state by its name. Raises ValueError for a name that is none."""
    for each in JobState:
        if each.value == name:
            return each
    raise ValueError(f"{name!r} is not a state of a job")


class JobDesired(enum.StrEnum):
    """What a person wants of a job."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    CANCELED = "Canceled"


class JobAction(enum.StrEnum):
    """What a person can ask of a job."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    SAVEPOINT = "savepoint"
    RESUME = "resume"
    RESCALE = "rescale"
    UPGRADE = "upgrade"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a person last asked of a job."""

    action: JobAction = JobAction.SUBMIT
    #: Counts the requests to this job.
    number: int = 1
    #: Of a rescale: the new width, and the operator it is for; empty is all of them.
    width: int = 0
    operator: str = ""
    #: Of a savepoint: stop the job after it.
    stop: bool = False
    #: Who asked, by which call.
    cause: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the control plane keeps it."""

    job_id: JobId
    #: The name of its engine.
    engine: str
    #: The number of the form in which the engine wrote `spec` and `progress`.
    format: int
    #: What a person wants, in the engine's own form.
    spec: bytes
    desired: JobDesired
    request: JobRequest
    created_at: datetime
    updated_at: datetime
    state: JobState = JobState.SUBMITTED
    #: How many transitions it has made. Each is one durable workflow, `<job>/<number>`.
    transition: int = 0
    #: What the engine remembers between transitions, in its own form.
    progress: bytes = b""
    #: Its workloads as of the last transition.
    workloads: tuple[WorkloadId, ...] = ()
    message: str = ""
    #: The key of the client that submitted it: a submit with the same key is the same submit.
    client_key: str = ""
    state_at: datetime | None = None
    #: The number of the last request that a transition took in.
    taken: int = 0
    #: Compare-and-set: 0 before it was first stored.
    version: int = 0


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as people see it."""

    job_id: JobId
    engine: str
    format: int
    state: JobState
    desired: JobDesired
    message: str
    transition: int
    request: JobRequest
    workloads: tuple[WorkloadId, ...]
    spec: bytes
    progress: bytes
    created_at: datetime | None = None
    updated_at: datetime | None = None
    state_at: datetime | None = None
    taken: int = 0

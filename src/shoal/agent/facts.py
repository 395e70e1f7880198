"""The values that describe one workload on this node: what is known, what can happen, what can be done. Pure.

`shoal.agent.workloads.state` decides with them, `shoal.agent.workloads.views` makes reports of them,
`shoal.agent.store.intents` stores the durable ones (`Intent`, `Progress`), and `shoal.agent.workloads.actor` carries
the instructions out.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import (
    AgentSpec,
    DesiredState,
    EndedBy,
    Exit,
    FailureReason,
    Readiness,
    RestartPolicy,
    RunStatus,
    WorkloadType,
)


@dataclass(frozen=True, slots=True)
class Intent:
    """What the agent was told, exactly. It is on disk before the command is answered."""

    workload_id: WorkloadId
    type: WorkloadType
    revision_id: str
    #: RUNNING or STOPPED.
    desired: DesiredState
    spec_bytes: bytes
    spec_sha256: bytes
    generation: int
    #: The generation that created the workload here. An apply after a delete creates it anew.
    born: int
    created_at: datetime
    updated_at: datetime
    #: Raised when the same spec is to be run again although it has completed or failed.
    attempt: int = 0
    #: It is to be removed.
    deleting: bool = False
    #: It only leaves this node: its disks and volumes stay, whatever their retain policy.
    keeps_data: bool = False

    @property
    def wanted(self) -> bool:
        """Whether it should run."""
        return self.desired is DesiredState.RUNNING and not self.deleting


@dataclass(frozen=True, slots=True)
class RunRules:
    """The part of a spec that decides about restarts and readiness."""

    restart: RestartPolicy = RestartPolicy()
    #: Seconds within which a started run must be ready; None when it is ready as soon as it runs.
    ready_within: float | None = None
    #: What readiness waits for, in words, and what it is when that does not come in time.
    probe: str = ""
    late_failure: FailureReason = FailureReason.RUNTIME_ERROR
    #: Whether a run that is ready can stop being so. One that has booted stays booted.
    stays_watched: bool = True
    #: What shows that it is alive, in words; empty without a liveness probe.
    liveness: str = ""
    at_most_one: bool = False
    #: Seconds without contact after which it is stopped, or a lease if that is longer; 0: contact does not matter.
    stop_after: float = 0.0
    #: Whether the runtime prepares a run before the old one of an update is stopped.
    prepares: bool = False
    #: Whether the runtime changes a run in place.
    updates: bool = False

    @property
    def needs_contact(self) -> bool:
        """Whether it is stopped when there is no contact with the control plane."""
        return self.at_most_one or self.stop_after > 0


class RunOutcome(enum.Enum):
    """How a workload ended for good, if it did."""

    NONE = "none"
    COMPLETED = "completed"  # it ran to its end, and is run again only on request
    FAILED = "failed"  # it is tried again only on request


@dataclass(frozen=True, slots=True)
class Progress:
    """What is stored of a workload besides its intent."""

    #: The `Intent.born` that all of this is about.
    born: int
    #: The present run, or the last; empty before the first.
    run_id: RunId = RunId("")
    run_sha256: bytes = b""
    #: The attempt of the intent that the run belongs to.
    attempt: int = 0
    started_at: datetime | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    ready: bool = False
    #: The run has ended, and the fields below say how.
    ended: bool = False
    exit: Exit | None = None
    last_output: str = ""
    #: It ended because the control plane could not be reached.
    held: bool = False
    outcome: RunOutcome = RunOutcome.NONE
    failure: FailureReason = FailureReason.NONE
    message: str = ""
    #: Ends in a row of runs that were not healthy. Decides the delay, and with on-failure the end of restarts.
    failures: int = 0
    #: Starts in a row that failed for a temporary reason. They do not count as restarts.
    start_failures: int = 0
    restarts: int = 0
    next_start_at: datetime | None = None
    #: The generation whose failure is final. A higher one is tried again.
    failed_generation: int = 0


class Stage(enum.Enum):
    """Where a workload is on this node; the table in the header says what each means."""

    RESTING = "resting"
    HELD = "held"
    WAITING = "waiting"
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    UPDATING = "updating"
    STOPPING = "stopping"
    FORGETTING = "forgetting"
    FORGOTTEN = "forgotten"


RUNNING_STAGES = frozenset({Stage.STARTING, Stage.PROBING, Stage.READY, Stage.UPDATING, Stage.STOPPING})

MOVES: Mapping[Stage, frozenset[Stage]] = {
    Stage.RESTING: frozenset({Stage.STARTING, Stage.HELD, Stage.WAITING, Stage.FORGETTING}),
    Stage.HELD: frozenset({Stage.STARTING, Stage.RESTING, Stage.FORGETTING}),
    Stage.WAITING: frozenset({Stage.STARTING, Stage.HELD, Stage.RESTING, Stage.FORGETTING}),
    Stage.STARTING: frozenset({Stage.PROBING, Stage.READY, Stage.STOPPING, Stage.RESTING}),
    Stage.PROBING: frozenset({Stage.READY, Stage.UPDATING, Stage.STOPPING, Stage.RESTING}),
    Stage.READY: frozenset({Stage.PROBING, Stage.UPDATING, Stage.STOPPING, Stage.RESTING}),
    Stage.UPDATING: frozenset({Stage.PROBING, Stage.READY, Stage.STOPPING}),
    Stage.STOPPING: frozenset({Stage.RESTING}),
    Stage.FORGETTING: frozenset({Stage.FORGOTTEN}),
    Stage.FORGOTTEN: frozenset({Stage.RESTING}),
}
"""Every move there is. A run that ended passes through RESTING on its way to WAITING, HELD or another start."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The spec that is to replace that of the present run, which goes on until the runtime has prepared the new one."""

    spec_sha256: bytes
    #: Tries in a row that did not succeed, and what is known of the last.
    failures: int = 0
    failure: FailureReason = FailureReason.NONE
    message: str = ""
    transient: bool = True
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """The whole state of one workload on this node. Changed only by `handle`."""

    intent: Intent
    rules: RunRules
    progress: Progress
    #: What the intent's bytes say; None when they can no longer be read.
    spec: AgentSpec | None = None
    stage: Stage = Stage.RESTING
    #: When the stage was last changed.
    since: datetime | None = None
    pid: int = 0
    #: Why it is in this stage, for people.
    note: str = ""
    #: Set while its runtime is asked the same again: why, and when next.
    trouble: RunTroubled | None = None
    #: Counts waits, so that the timer of an earlier wait is ignored.
    waits: int = 0
    #: Set while a run is stopped because it failed: why.
    failing: str = ""
    failing_reason: FailureReason = FailureReason.RUNTIME_ERROR
    #: Set while a run is stopped because it hangs: why. Its restart policy decides what follows.
    hanging: str = ""
    #: When the present run is ready by its own account; counts if the spec says nothing.
    own_readiness: Readiness | None = None
    #: The states of its services, as of the last look.
    services: Mapping[str, str] = field(default_factory=dict)
    #: Set while the present run is to be replaced, or changed in place.
    replacement: Replacement | None = None
    #: The end of the present run, if it came while it was being changed.
    early_end: RunEnded | None = None

    @property
    def ready_within(self) -> float | None:
        """Seconds within which a started run must be ready; None when it is ready as soon as it runs."""
        if self.rules.ready_within is None and self.own_readiness is not None:
            return self.own_readiness.deadline.total_seconds()
        return self.rules.ready_within

    @property
    def is_current(self) -> bool:
        """Whether the present run, or the last, is one of the intent's spec."""
        return self.progress.born == self.intent.born and self.progress.run_sha256 == self.intent.spec_sha256


@dataclass(frozen=True, slots=True)
class Moment:
    """The arguments of a decision besides the event."""

    now: datetime
    #: An unused id, for a run that starts.
    run_id: RunId
    #: From 0 to 1, for jitter.
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class FoundRun:
    """What a runtime says of the run that the previous agent process had."""

    run_id: RunId
    started_at: datetime
    pid: int = 0
    ports: Mapping[str, int] = field(default_factory=dict)
    #: None while it runs.
    exit: Exit | None = None
    last_output: str = ""
    ended_by: str = EndedBy.ITSELF
    readiness: Readiness | None = None
    services: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------
# Events: what happened


@dataclass(frozen=True, slots=True)
class IntentChanged:
    """A command was accepted and stored."""

    intent: Intent
    rules: RunRules
    spec: AgentSpec | None = None


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The runtime has started the run."""

    run_id: RunId
    started_at: datetime
    pid: int = 0
    ports: Mapping[str, int] = field(default_factory=dict)
    readiness: Readiness | None = None
    services: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything is ready for a run of another spec."""

    run_id: RunId
    spec_sha256: bytes


@dataclass(frozen=True, slots=True)
class RunUpdated:
    """The runtime has changed the run in place."""

    run_id: RunId
    spec_sha256: bytes
    pid: int = 0
    ports: Mapping[str, int] = field(default_factory=dict)
    readiness: Readiness | None = None
    services: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServicesSeen:
    """The states of the services of a run were looked at again."""

    run_id: RunId
    services: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReplaceFailed:
    """Another spec could not be prepared, or the run not be changed. The present run goes on."""

    run_id: RunId
    spec_sha256: bytes
    failure: FailureReason
    message: str
    transient: bool = False


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The runtime could not start the run."""

    run_id: RunId
    failure: FailureReason
    message: str
    transient: bool = False


@dataclass(frozen=True, slots=True)
class StartRefused:
    """The run was not started because contact with the control plane was lost at the last moment."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class RunTroubled:
    """The runtime does not answer: whether the run was started or stopped is not known yet, and is asked again."""

    #: None when it is about the workload and not about a run.
    run_id: RunId | None
    message: str
    #: NONE: it only takes long.
    failure: FailureReason = FailureReason.NONE
    again_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The readiness probe succeeded."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class ReadinessTimedOut:
    """The run was not ready in time."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class DiskExceeded:
    """The run uses more disk than it may."""

    run_id: RunId
    message: str


@dataclass(frozen=True, slots=True)
class BecameUnready:
    """The readiness probe of a run that was ready has failed several times in a row."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class LivenessFailed:
    """The liveness probe has failed several times in a row: the run hangs."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run ended, and this agent did not stop it."""

    run_id: RunId
    exit: Exit
    last_output: str = ""
    #: As in `shoal.runtimes.base.RunInfo`.
    ended_by: str = EndedBy.ITSELF


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The runtime has stopped the run; or found that it had ended by itself (`ended_by` is empty then)."""

    run_id: RunId
    exit: Exit | None = None
    last_output: str = ""
    ended_by: str = EndedBy.STOP


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A wait is over."""

    serial: int


@dataclass(frozen=True, slots=True)
class OwnershipConfirmed:
    """The control plane confirms that this node owns the generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class OwnershipDenied:
    """The control plane says that another node owns it, or cannot be asked."""

    generation: int
    message: str


@dataclass(frozen=True, slots=True)
class ContactLost:
    """The lease has run out by the agent's own count."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Everything that was kept for the workload is removed."""


Event = (
    IntentChanged
    | RunStarted
    | Prepared
    | RunUpdated
    | ServicesSeen
    | ReplaceFailed
    | StartFailed
    | StartRefused
    | RunTroubled
    | BecameReady
    | ReadinessTimedOut
    | DiskExceeded
    | BecameUnready
    | LivenessFailed
    | RunEnded
    | RunStopped
    | TimerFired
    | OwnershipConfirmed
    | OwnershipDenied
    | ContactLost
    | Forgotten
)


# ---------------------------------------------------------------------------------------------------------
# Instructions: what to do, in order, once the new state is stored


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start it; answer with RunStarted, StartFailed or StartRefused."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class PrepareRun:
    """After so many seconds prepare a run of the intent's spec; answer with Prepared or ReplaceFailed."""

    run_id: RunId
    spec_sha256: bytes
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateRun:
    """Change the run in place to the intent's spec; answer with RunUpdated or ReplaceFailed."""

    run_id: RunId
    spec_sha256: bytes


@dataclass(frozen=True, slots=True)
class StopRun:
    """Stop it; answer with RunStopped, however long it takes."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class ProbeReadiness:
    """Probe until ready; answer with BecameReady, or with ReadinessTimedOut after so many seconds (None: never)."""

    run_id: RunId
    within: float | None


@dataclass(frozen=True, slots=True)
class WatchReadiness:
    """Go on probing a ready run; answer with BecameUnready when the probe fails."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class WatchLiveness:
    """Probe until the run is over; answer with LivenessFailed when it hangs."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class Wait:
    """Answer with TimerFired after so many seconds."""

    seconds: float
    serial: int


@dataclass(frozen=True, slots=True)
class ConfirmOwnership:
    """Ask the control plane, as soon and as often as needed; answer with OwnershipConfirmed or OwnershipDenied."""

    generation: int


@dataclass(frozen=True, slots=True)
class ForgetRun:
    """Let the runtime forget a run whose end is recorded."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class ForgetWorkload:
    """Remove everything kept for it; answer with Forgotten."""


Instruction = (
    StartRun
    | PrepareRun
    | UpdateRun
    | StopRun
    | ProbeReadiness
    | WatchReadiness
    | WatchLiveness
    | Wait
    | ConfirmOwnership
    | ForgetRun
    | ForgetWorkload
)


@dataclass(frozen=True, slots=True)
class Reaction:
    """What follows from an event: the new state, and what to do."""

    state: WorkloadState
    instructions: tuple[Instruction, ...] = ()

    def then(self, *instructions: Instruction) -> Reaction:
        """The same reaction with more instructions."""
        return replace(self, instructions=(*self.instructions, *instructions))


def new_run_id(workload_id: str, token: str) -> RunId:
    """An id for a run: readable, never used before, and safe as a file name also for the longest workload id."""
    return RunId(f"{workload_id[:100]}-{token}")


def describe_exit(exit_: Exit) -> str:
    """How a run ended, for people."""
    if exit_.unknown:
        return "ended, and how is not known"
    if exit_.out_of_memory:
        return "killed: out of memory"
    if exit_.signal:
        try:
            return f"killed by signal {exit_.signal} ({signal.Signals(exit_.signal).name})"
        except ValueError:
            return f"killed by signal {exit_.signal}"
    return f"exited with code {exit_.code}"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The health of the agent."""

    healthy: bool
    #: The health of each runtime by name, and of other unhealthy parts.
    parts: Mapping[str, str] = field(default_factory=dict)
    cpu_percent: float = 0.0
    memory_percent: float = 0.0
    disk_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """A workload as it is reported."""

    status: RunStatus
    type: WorkloadType
    desired: DesiredState
    #: When it was first applied, and when it was last changed by a command.
    created_at: datetime
    updated_at: datetime

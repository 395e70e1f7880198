"""The engine protocol: what turns a person's intent into workloads. `shoal.services` is the smallest engine.

An engine is found by the entry-point group `shoal.engines` (`find_engines`, called in `shoal.cli`), and given to the
control plane, which imports none. Its four methods are pure: they take facts and `now`, read no clock, do no I/O, and
never run or unpickle what a user wrote. What an engine keeps (`spec`, `progress`) is bytes to everybody else.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from shoal.core.errors import InternalError, InvalidError, problem
from shoal.core.ids import GroupId, JobId, NodeId, WorkloadId
from shoal.jobs.states import Transition
from shoal.model.jobs import JobDesired, JobRecord, JobRequest, JobState
from shoal.model.phases import WorkloadPhase
from shoal.model.resources import Resources
from shoal.model.workloads import WorkloadSpec

log = logging.getLogger(__name__)

ENTRY_POINTS = "shoal.engines"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its engine sees it."""

    job_id: JobId
    spec: bytes
    progress: bytes
    state: JobState
    desired: JobDesired
    request: JobRequest
    #: The number of the last request that a transition took in; below `request.number`, there is a new one.
    taken: int = 0

    @property
    def has_new_request(self) -> bool:
        """Whether a person asked for something that no transition has taken in."""
        return self.request.number > self.taken


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What is known about one workload of a job."""

    workload_id: WorkloadId
    #: The revision that is stored for it; not the one that runs, while the phase is Updating.
    revision: str
    phase: WorkloadPhase
    node_id: NodeId | None = None
    #: Whether its node is in contact with the control plane.
    node_answers: bool = True
    #: For how many seconds its newest generation has been ready without a restart; None while it is not.
    ready_for: float | None = None
    #: For how many seconds its newest generation has not been ready; 0 while it is.
    unready_for: float = 0.0
    #: How often the newest generation was restarted by its agent.
    restarts: int = 0
    message: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """What a workload of a job last said, in its engine's own form. A workload that was replaced is not heard."""

    content: bytes
    #: Seconds ago.
    age: float


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node offers, for engines that lay out their workloads."""

    node_id: NodeId
    host_id: str
    capacity: Resources
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision is made from."""

    #: The workloads of the job that exist, by id. One that is being deleted is here until it is gone.
    workloads: Mapping[WorkloadId, WorkloadFacts]
    #: What they last said. A new leader has heard nothing yet.
    reports: Mapping[WorkloadId, WorkloadReport] = field(default_factory=dict)
    #: Why the plan of the last transition found no room, so that nothing of it was stored; empty when it did.
    waits: str = ""


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """A workload that a job is to have."""

    workload_id: WorkloadId
    spec: WorkloadSpec
    #: Another spec has another revision: of a revision that is stored, the stored spec counts.
    revision: str
    #: Its group; workloads of one group are placed all or none.
    group_id: GroupId | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Every workload that a job is to have now, in the order in which they are requested.

    The control plane requests what differs from what is stored, and removes workloads of the job that are not here.
    """

    workloads: tuple[PlannedWorkload, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """One transition of a job: the state after it and what the engine remembers. The plan is made from that."""

    transition: Transition
    state: JobState
    progress: bytes
    message: str = ""
    #: Whether it takes in what a person last asked for. Those who wait for a request wait for this.
    takes_request: bool = True
    #: Whether it is another way, taken because the plan before found no room. It need not wait as a repetition does.
    instead: bool = False


@dataclass(frozen=True, slots=True)
class Next:
    """What to do about a job now."""

    decision: Decision | None = None
    #: In how many seconds to look again although nothing is reported; None: not before a report.
    look_in: float | None = None


class Engine(Protocol):
    """Turns the intent of a person into workloads."""

    @property
    def name(self) -> str:
        """The name that jobs refer to."""
        ...

    @property
    def format(self) -> int:
        """The number of the form in which it writes `spec` and `progress`."""
        ...

    def validate(self, spec: bytes, *, job: Job | None = None, request: JobRequest | None = None) -> bytes:
        """Check what a person asks for and return the spec to store.

        Without `job`, `spec` is that of a submit. With one, `request` is what is asked of it: of an upgrade, `spec` is
        the new one; of the others it is the stored one. Raises `InvalidError` with every problem, `PreconditionError`
        when the job cannot do it now, or `UnsupportedError` when it never can.
        """
        ...

    def plan(self, job: Job, fleet: Mapping[NodeId, NodeCapacity]) -> Plan:
        """The workloads that follow from a job's spec and progress."""
        ...

    def decide(self, job: Job, facts: Facts, now: datetime) -> Next:
        """The next transition of a job, if there is one. `now` is for stamps; durations are among the facts."""
        ...

    def migrate(self, spec: bytes, progress: bytes, version: int) -> tuple[bytes, bytes]:
        """Spec and progress in the present form, from those that format `version` wrote."""
        ...


def job_of(record: JobRecord) -> Job:
    """The part of a record that an engine sees."""
    return Job(record.job_id, record.spec, record.progress, record.state, record.desired, record.request, record.taken)


class Engines:
    """The engines of one control plane, by name."""

    def __init__(self, engines: Mapping[str, Engine] | None = None) -> None:
        self._engines = dict(engines or {})

    def __contains__(self, name: str) -> bool:
        return name in self._engines

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them."""
        return tuple(sorted(self._engines))

    def get(self, name: str) -> Engine:
        """An engine. Raises `InvalidError` with the names that there are."""
        found = self._engines.get(name)
        if found is None:
            known = ", ".join(self.names) or "none is installed"
            raise InvalidError([problem("engine", name, f"must be an engine of this control plane: {known}")])
        return found


def find_engines() -> Engines:
    """Every engine that is installed. Called by the composition root; imports the engines' control-plane halves.

    One that cannot be imported is left out: its jobs wait, and say so, and everything else goes on.
    """
    found: dict[str, Engine] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            engine: Engine = point.load()()
        except Exception:
            log.exception("engine %r (%s) cannot be loaded; its jobs wait", point.name, point.value)
            continue
        if engine.name != point.name or point.name in found:
            raise InternalError(f"engine {point.name!r} is installed twice or under another name: {point.value}")
        found[point.name] = engine
    return Engines(found)

"""The engine `dataflow`: turns a dataflow job into a group of a coordinator and task hosts. Pure.

Found by the entry-point group `shoal.engines`. `decisions` has the transitions, `workloads` the specs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from shoal.core.errors import InternalError, PreconditionError
from shoal.core.ids import NodeId
from shoal.dataflow.fleet import decisions
from shoal.dataflow.fleet import progress as progresses
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.fleet.spec import ENGINE, DataflowSpec
from shoal.dataflow.fleet.workloads import plan_workloads
from shoal.jobs.engine import Facts, Job, Next, NodeCapacity, Plan
from shoal.jobs.states import ENDED
from shoal.model.jobs import JobAction, JobRequest, JobState

FORMAT = 1
_CHANGING = frozenset({JobState.RESCALING, JobState.UPGRADING})
_CHANGES = frozenset({JobAction.RESCALE, JobAction.UPGRADE})


class DataflowEngine:
    """Dataflow jobs."""

    name = ENGINE
    format = FORMAT

    def validate(self, spec: bytes, *, job: Job | None = None, request: JobRequest | None = None) -> bytes:
        """Check what a person asks for, and return the spec to store."""
        checked = specs.decode(spec)
        if job is None or request is None:
            return specs.encode(checked)
        stored = specs.decode(job.spec)
        if request.action is JobAction.SAVEPOINT:
            _check_checkpoints(stored, "a savepoint")
            if not request.stop:  # its coordinator would hear of the newest request alone
                _check_quiet(job)
        if request.action is JobAction.RESCALE:
            if request.operator:
                checked = specs.with_step_width(stored, request.operator, request.width)
            else:
                checked = specs.with_width(stored, request.width)
            _check_quiet(job)
            _check_checkpoints(stored, "another width")
        if request.action is JobAction.UPGRADE:
            _check_quiet(job)
            specs.check_fit(stored, checked)
            checked = specs.with_widths_of(checked, stored)
            if job.state not in ENDED:
                _check_checkpoints(stored, "an upgrade")
        return specs.encode(checked)

    def plan(self, job: Job, fleet: Mapping[NodeId, NodeCapacity]) -> Plan:
        """The coordinator and the task hosts, of what is deployed."""
        return Plan(plan_workloads(job, progresses.decode(job.progress)))

    def decide(self, job: Job, facts: Facts, now: datetime) -> Next:
        """The next transition."""
        return decisions.decide(job, progresses.decode(job.progress), facts, now)

    def migrate(self, spec: bytes, progress: bytes, version: int) -> tuple[bytes, bytes]:
        """There is one format so far."""
        raise InternalError(f"no format {version} of dataflow jobs is known")


def _check_checkpoints(spec: DataflowSpec, what: str) -> None:
    if spec.checkpoint is None:
        raise PreconditionError(
            f"{what} needs checkpoints, and job {spec.name!r} has none",
            hint="submit it with checkpoints: App(checkpoint_interval=…)",
        )


def _check_quiet(job: Job) -> None:
    """Two changes of the layout at once: the second is refused, and the first goes on."""
    is_waiting = job.request.number > progresses.decode(job.progress).request
    if job.state in _CHANGING or (is_waiting and job.request.action in _CHANGES):
        raise PreconditionError(
            f"job {job.job_id!r} has another change under way: {job.request.action.value}",
            hint="wait until it runs again, then ask once more",
            job_id=job.job_id,
        )

"""The engine `service`: the smallest on the job API. Its replicas are single workloads of the control plane.

Found by the entry-point group `shoal.engines`. Everything here is pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime

from shoal.core.errors import InternalError, InvalidError, UnsupportedError, problem
from shoal.core.ids import NodeId
from shoal.jobs.engine import Facts, Job, Next, NodeCapacity, Plan, PlannedWorkload
from shoal.model.jobs import JOB_LABEL, JobAction, JobRequest
from shoal.model.workloads import Affinity, AffinityDirection, WorkloadSpec
from shoal.services import decisions
from shoal.services import progress as progresses
from shoal.services import spec as specs
from shoal.services.progress import replica_id
from shoal.services.spec import ENGINE, NO_SPREAD

FORMAT = 1
SPREAD_WEIGHT = 100


class ServiceEngine:
    """Replicas of one workload."""

    name = ENGINE
    format = FORMAT

    def validate(self, spec: bytes, *, job: Job | None = None, request: JobRequest | None = None) -> bytes:
        """Check what a person asks for, and return the spec to store."""
        action = request.action if request is not None else JobAction.SUBMIT
        if request is not None and action is JobAction.SAVEPOINT and not request.stop:
            raise UnsupportedError("a service has no state to save", hint="with `--stop` it is stopped")
        checked = specs.decode(spec)
        if action is JobAction.RESCALE and request is not None:
            if request.operator:
                raise InvalidError([problem("operator", request.operator, "must not be given: a service has replicas")])
            checked = specs.with_count(checked, request.width)
        return specs.encode(checked)

    def plan(self, job: Job, fleet: Mapping[NodeId, NodeCapacity]) -> Plan:
        """The replicas, each with the revision that it is to have."""
        progress = progresses.decode(job.progress)
        made: dict[int, WorkloadSpec] = {}
        planned = []
        for index, number in enumerate(progress.replicas):
            revision = progress.revision(number)
            if number not in made:
                made[number] = _spread(
                    job, specs.read_workload(revision.template["workload"]), revision.template["spread"]
                )
            planned.append(PlannedWorkload(replica_id(job.job_id, index), made[number], revision.name))
        return Plan(tuple(planned))

    def decide(self, job: Job, facts: Facts, now: datetime) -> Next:
        """The next transition."""
        return decisions.decide(job, specs.decode(job.spec), progresses.decode(job.progress), facts, now)

    def migrate(self, spec: bytes, progress: bytes, version: int) -> tuple[bytes, bytes]:
        """There is one format so far."""
        raise InternalError(f"no format {version} of services is known")


def _spread(job: Job, workload: WorkloadSpec, spread: str) -> WorkloadSpec:
    """Ask the scheduler to place replicas apart."""
    if spread == NO_SPREAD:
        return workload
    apart = Affinity({JOB_LABEL: job.job_id}, spread, AffinityDirection.APART, required=False, weight=SPREAD_WEIGHT)
    placement = dataclasses.replace(workload.placement, affinities=(*workload.placement.affinities, apart))
    return dataclasses.replace(workload, placement=placement)

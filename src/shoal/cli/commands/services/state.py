"""A service as people see it: its job, its revisions and its replicas put together. Pure, but for `fetch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.cli.commands.common import selecting
from shoal.core.errors import PreconditionError
from shoal.model.jobs import JOB_LABEL, JobState, JobView
from shoal.model.phases import ContractStatus
from shoal.model.views import WorkloadView
from shoal.services import progress as progresses
from shoal.services import spec as specs
from shoal.services.progress import Progress, Revision, RevisionState
from shoal.services.spec import ServiceSpec, UpdatePolicy

if TYPE_CHECKING:
    from shoal.client import ControlPlane


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica."""

    workload_id: str
    status: str
    state: str
    node_id: str
    revision: str
    restarts: int
    reason: str
    created_at: datetime | None

    @property
    def is_ready(self) -> bool:
        """Whether it runs and its probe, if it has one, says that it is ready."""
        return self.status == ContractStatus.RUNNING


@dataclass(frozen=True, slots=True)
class PastRevision:
    """One revision in the history of a service."""

    name: str
    state: str
    at: datetime
    cause: str
    message: str
    #: How many replicas are to have it now.
    replicas: int


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Everything about one service."""

    service_id: str
    state: JobState
    message: str
    desired: str
    count: int
    ready: int
    #: The revision that every replica is to have.
    revision: str
    spread: str
    update: UpdatePolicy
    replicas: tuple[Replica, ...]
    created_at: datetime | None
    state_at: datetime | None


def check_engine(job: JobView) -> JobView:
    """The same job. Raises `PreconditionError` when it is not a service."""
    if job.engine != specs.ENGINE:
        raise PreconditionError(
            f"job {job.job_id!r} is of engine {job.engine!r}; it is not a service",
            hint=f"`shoal job get {job.job_id}` shows it",
        )
    return job


async def fetch(control: ControlPlane, service_id: str) -> tuple[JobView, list[WorkloadView]]:
    """The job of a service, and its replicas."""
    job = check_engine(await control.get_job(service_id))
    return job, await replicas_of(control, service_id)


async def replicas_of(control: ControlPlane, service_id: str) -> list[WorkloadView]:
    """The workloads of a service, in the order of their numbers."""
    found = await selecting.select(control, selector=f"{JOB_LABEL}={service_id}")
    return sorted(found, key=lambda view: (len(view.workload_id), view.workload_id))


def spec_of(job: JobView) -> ServiceSpec:
    """What a service is to be."""
    return specs.decode(job.spec)


def progress_of(job: JobView) -> Progress:
    """Where a service is."""
    return progresses.decode(job.progress)


def assemble(job: JobView, workloads: Sequence[WorkloadView]) -> ServiceState:
    """The parts put together."""
    spec, progress = spec_of(job), progress_of(job)
    replicas = tuple(_replica(each) for each in workloads)
    return ServiceState(
        service_id=job.job_id,
        state=job.state,
        message=job.message,
        desired=job.desired.value,
        count=spec.outline.count,
        ready=sum(each.is_ready for each in replicas),
        revision=f"r{progress.target}" if progress.target else "",
        spread=spec.outline.spread,
        update=spec.outline.update,
        replicas=replicas,
        created_at=job.created_at,
        state_at=job.state_at,
    )


def history(job: JobView) -> tuple[PastRevision, ...]:
    """The revisions that are kept, oldest first."""
    progress = progress_of(job)
    return tuple(
        PastRevision(
            each.name, each.state.value, each.at, each.cause, each.message, progress.replicas.count(each.number)
        )
        for each in progress.revisions
    )


def revision_to_go_back_to(progress: Progress) -> Revision | None:
    """The newest healthy revision before the present one; None when there is none."""
    healthy = [
        each for each in progress.revisions if each.state is RevisionState.HEALTHY and each.number < progress.target
    ]
    return healthy[-1] if healthy else None


def revision_of(job: JobView, spec: ServiceSpec) -> Revision | None:
    """The newest revision with the template of a spec."""
    return next((each for each in reversed(progress_of(job).revisions) if each.template == spec.template), None)


def _replica(view: WorkloadView) -> Replica:
    reason = view.reason.message if view.reason is not None else view.failure_reason
    return Replica(
        workload_id=view.workload_id,
        status=view.status,
        state=view.state,
        node_id=view.assigned_node_id,
        revision=view.revision_id,
        restarts=view.run.restarts if view.run is not None else 0,
        reason="" if view.status == ContractStatus.RUNNING else reason,
        created_at=view.created_at,
    )

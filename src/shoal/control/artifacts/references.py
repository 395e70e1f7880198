"""Which blobs are needed, and who may read which. Pure: reads the working set only.

A workload names its blobs in its spec. The spec of a job belongs to its engine and is not understood here: each text in
it that looks like a SHA-256 counts as a reference. That keeps a blob too long at worst, never too short. Called by
`shoal.control.artifacts.service`.
"""

from __future__ import annotations

import re

from shoal.control.state.fleet import Fleet
from shoal.core.errors import DeniedError
from shoal.core.ids import GroupId, JobId, NodeId
from shoal.model.identity import Identity, Role
from shoal.model.jobs import JOB_LABEL, JobDesired, JobRecord, JobState
from shoal.model.workloads import WorkloadRecord

_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_OVER = frozenset({JobState.CANCELED, JobState.FINISHED})


class References:
    """The references from workloads and jobs to blobs."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: What the spec and progress of each job name, with the version that was read.
        self._of_jobs: dict[JobId, tuple[int, frozenset[str]]] = {}

    def needed(self) -> frozenset[str]:
        """Every blob that a workload or a job needs. A job that was canceled or has finished needs none."""
        jobs = self._fleet.jobs
        self._of_jobs = {job_id: known for job_id, known in self._of_jobs.items() if job_id in jobs}
        found = {digest for record in self._fleet.workloads.values() for digest in _of_workload(record)}
        for job in jobs.values():
            if job.state not in _OVER or job.desired is JobDesired.RUNNING:
                found |= self._of_job(job)
        return frozenset(found)

    def check_reader(self, identity: Identity | None, digest: str) -> None:
        """Raise `DeniedError` unless a caller may read a blob.

        An operator reads every blob. An agent reads what the workloads of its node name, and a workload what its own
        job names. Where nobody is known, everybody reads.
        """
        if identity is None or identity.role is Role.OPERATOR:
            return
        if identity.role is Role.AGENT and self._is_named_on(NodeId(identity.name), digest):
            return
        if identity.role is Role.WORKLOAD and self._is_named_by_job(identity.job, digest):
            return
        whose = "a workload of its node" if identity.role is Role.AGENT else "its own job"
        raise DeniedError(
            f"{identity} reads only artifacts that {whose} names; {digest} is none of them",
            role=identity.role,
            sha256=digest,
        )

    def _is_named_on(self, node_id: NodeId, digest: str) -> bool:
        workloads = self._fleet.workloads
        return any(digest in _of_workload(workloads[each]) for each in self._fleet.owned_by(node_id))

    def _is_named_by_job(self, job_id: str, digest: str) -> bool:
        """Whether the group or job of that id names it: a certificate is for one of them."""
        job = self._fleet.jobs.get(JobId(job_id))
        if job is not None and digest in self._of_job(job):
            return True
        group = GroupId(job_id)
        return any(
            digest in _of_workload(record)
            for record in self._fleet.workloads.values()
            if record.group_id == group or record.spec.labels.get(JOB_LABEL) == job_id
        )

    def _of_job(self, job: JobRecord) -> frozenset[str]:
        version, found = self._of_jobs.get(job.job_id, (-1, frozenset[str]()))
        if version != job.version:
            found = frozenset(each.decode() for text in (job.spec, job.progress) for each in _DIGEST.findall(text))
            self._of_jobs[job.job_id] = (job.version, found)
        return found


def _of_workload(record: WorkloadRecord) -> frozenset[str]:
    return frozenset(each.sha256 for each in record.spec.body.artifacts)

"""What a transition is to do, as the document that its durable workflow carries. Pure.

Made by `shoal.control.jobs.loop`, carried out by `shoal.control.jobs.steps`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.ids import GroupId, JobId, WorkloadId
from shoal.jobs.engine import Decision
from shoal.jobs.states import Transition
from shoal.model.jobs import JobRecord, JobState, job_state


@dataclass(frozen=True, slots=True)
class JobChange:
    """One transition of a job."""

    job_id: JobId
    number: int
    transition: Transition
    before: JobState
    after: JobState
    progress: bytes
    message: str
    #: The number of the last request that is taken in after it.
    request: int

    @classmethod
    def of(cls, record: JobRecord, decision: Decision) -> JobChange:
        """The next transition of a job."""
        return cls(
            job_id=record.job_id,
            number=record.transition + 1,
            transition=decision.transition,
            before=record.state,
            after=decision.state,
            progress=decision.progress,
            message=decision.message,
            request=record.request.number if decision.takes_request else record.taken,
        )

    def to_document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "job": self.job_id,
            "number": self.number,
            "transition": self.transition.value,
            "before": self.before.value,
            "after": self.after.value,
            "progress": _text(self.progress),
            "message": self.message,
            "request": self.request,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> JobChange:
        """The inverse of `to_document`."""
        return cls(
            job_id=JobId(document["job"]),
            number=document["number"],
            transition=Transition(document["transition"]),
            before=job_state(document["before"]),
            after=job_state(document["after"]),
            progress=base64.b64decode(document["progress"]),
            message=document["message"],
            request=document["request"],
        )


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """A workload of a plan, with the exact bytes of its spec."""

    workload_id: WorkloadId
    spec: bytes
    revision: str
    group_id: GroupId | None

    def to_document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"id": self.workload_id, "spec": _text(self.spec), "revision": self.revision, "group": self.group_id}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> StoredWorkload:
        """The inverse of `to_document`."""
        group = document["group"]
        return cls(
            WorkloadId(document["id"]),
            base64.b64decode(document["spec"]),
            document["revision"],
            None if group is None else GroupId(group),
        )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

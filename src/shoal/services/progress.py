"""What the engine of services remembers in the row of a job: revisions, and which replica has which. Pure."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal.core.errors import InternalError
from shoal.core.ids import JobId, WorkloadId

KEPT_REVISIONS = 10
"""How many revisions the history has, beside those in use."""


class RevisionState(enum.StrEnum):
    """What became of a revision."""

    ROLLING = "rolling"  # it is being rolled out
    HEALTHY = "healthy"  # every replica has run it and was ready
    FAILED = "failed"
    REPLACED = "replaced"  # another one was rolled out before it was everywhere


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of the workload of a service."""

    number: int
    template: Mapping[str, Any]
    state: RevisionState
    at: datetime
    cause: str = ""
    #: Why it failed.
    message: str = ""

    @property
    def name(self) -> str:
        """The revision of the workloads that run it."""
        return f"r{self.number}"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a service is."""

    #: The revision of each replica, by index.
    replicas: tuple[int, ...] = ()
    revisions: tuple[Revision, ...] = ()
    #: The revision that every replica is to have; 0 before the first.
    target: int = 0
    #: The newest revision that was healthy everywhere; 0 before the first.
    good: int = 0
    #: The replicas that were last reported as failing.
    failing: tuple[int, ...] = ()

    def revision(self, number: int) -> Revision:
        """A revision by its number."""
        return next(each for each in self.revisions if each.number == number)

    def with_revision(self, number: int, **changes: Any) -> Progress:
        """The same with one revision changed."""
        changed = tuple(
            dataclasses.replace(each, **changes) if each.number == number else each for each in self.revisions
        )
        return dataclasses.replace(self, revisions=changed)

    def trimmed(self) -> Progress:
        """The same without old revisions that nothing uses."""
        used = {*self.replicas, self.target, self.good}
        newest = {each.number for each in self.revisions[-KEPT_REVISIONS:]}
        kept = tuple(each for each in self.revisions if each.number in used or each.number in newest)
        return dataclasses.replace(self, revisions=kept)


def replica_id(job_id: JobId, index: int) -> WorkloadId:
    """The workload of a replica."""
    return WorkloadId(f"{job_id}-{index}")


def encode(progress: Progress) -> bytes:
    """As it is stored."""
    plain = {
        "replicas": list(progress.replicas),
        "revisions": [
            {
                "number": each.number,
                "template": each.template,
                "state": each.state.value,
                "at": each.at.isoformat(),
                "cause": each.cause,
                "message": each.message,
            }
            for each in progress.revisions
        ],
        "target": progress.target,
        "good": progress.good,
        "failing": list(progress.failing),
    }
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> Progress:
    """The inverse of `encode`. Nothing is an empty progress. Raises `InternalError` when it is broken."""
    if not data:
        return Progress()
    try:
        return _read(json.loads(data))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InternalError(f"the stored progress of a service cannot be read: {error!r}") from error


def _read(plain: Mapping[str, Any]) -> Progress:
    return Progress(
        replicas=tuple(plain["replicas"]),
        revisions=tuple(
            Revision(
                number=each["number"],
                template=each["template"],
                state=RevisionState(each["state"]),
                at=datetime.fromisoformat(each["at"]),
                cause=each["cause"],
                message=each["message"],
            )
            for each in plain["revisions"]
        ),
        target=plain["target"],
        good=plain["good"],
        failing=tuple(plain["failing"]),
    )

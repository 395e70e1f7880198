"""Whether and when a workload that failed on its agent is tried again by the control plane. Pure.

An agent restarts a workload by its restart policy; once it no longer does, the workload is Failed. Then the control
plane tries it again, a few times with growing delays. The count starts anew once it has been Running for ten minutes.
Failures of the infrastructure do not count.

Called by `reconciler` (whether) and `shoal.control.workloads.dispatch` (what is stored).
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from shoal.model.workloads import FailureReason, RetryState, WorkloadRecord, WorkloadSpec

FIRST_DELAY = 5.0
LONGEST_DELAY = 300.0
#: Share of a delay that is drawn at random, so that a crowd does not come back in step.
JITTER = 0.25
#: Running for so long is healthy: the budget is full again.
HEALTHY_SECONDS = 600.0

#: The fault of a node or of what lies between: tried again without end, and elsewhere if there is room.
INFRASTRUCTURE = frozenset(
    {FailureReason.INSUFFICIENT_RESOURCES, FailureReason.NETWORK_ERROR, FailureReason.STORAGE_ERROR}
)
#: Trying again cannot help.
TERMINAL = frozenset({FailureReason.INVALID_SPEC})


def may_retry(spec: WorkloadSpec, failure: FailureReason) -> bool:
    """Whether a failure of this kind is followed by another try at all."""
    return spec.restarts and failure not in TERMINAL


def is_charged(failure: FailureReason) -> bool:
    """Whether a failure counts against the workload."""
    return failure not in INFRASTRUCTURE


def is_final(record: WorkloadRecord, failure: FailureReason) -> bool:
    """Whether the failure of the newest generation is the end of it, unless somebody asks again."""
    if not may_retry(record.spec, failure):
        return True
    return record.retry.failed_generation == record.generation and record.retry.next_at is None


def delay(failures: int, chance: float) -> float:
    """Seconds before the next try, after so many failures; `chance` is between 0 and 1."""
    plain = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(max(failures - 1, 0), 32))
    return plain * (1.0 - JITTER * chance)


def after_failure(record: WorkloadRecord, failure: FailureReason, *, at: datetime, chance: float) -> RetryState:
    """What is remembered of the failure of the newest generation: without `next_at`, it was the last."""
    retry = record.retry
    attempts = retry.attempts + 1 if is_charged(failure) else retry.attempts
    failures = retry.failures + 1
    # The budget is of tries again: the first failure has used none.
    spent = attempts > retry.max_attempts
    next_at = None if spent else at + timedelta(seconds=delay(failures, chance))
    return dataclasses.replace(
        retry,
        attempts=min(attempts, retry.max_attempts),
        failures=failures,
        next_at=next_at,
        failed_generation=record.generation,
    )


def seconds_until_healthy(record: WorkloadRecord, running_since: datetime, *, now: datetime) -> float | None:
    """In how many seconds its budget is full again, if it goes on running; None when it is full."""
    if record.retry == RetryState(max_attempts=record.retry.max_attempts):
        return None
    return max(0.0, HEALTHY_SECONDS - (now - running_since).total_seconds())

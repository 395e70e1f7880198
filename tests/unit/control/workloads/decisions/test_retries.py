"""What follows a failure: when it is tried again, and when no longer."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.workloads.decisions import retries
from shoal.core.ids import WorkloadId
from shoal.model.workloads import (
    ContainerSpec,
    DesiredState,
    FailureReason,
    ProcessSpec,
    RestartPolicy,
    RetryState,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadType,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)


def process(policy="always"):
    return WorkloadSpec(
        type=WorkloadType.PROCESS, process=ProcessSpec(command=("true",), restart=RestartPolicy(policy))
    )


def record(spec=None, retry=None, generation=1):
    return WorkloadRecord(
        WorkloadId("w"),
        spec or process(),
        b"",
        b"",
        "r1",
        DesiredState.RUNNING,
        generation,
        AT,
        AT,
        retry=retry or RetryState(),
    )


@pytest.mark.parametrize(
    ("spec", "failure", "again"),
    [
        (process(), FailureReason.RUNTIME_ERROR, True),
        (process("on-failure"), FailureReason.RUNTIME_ERROR, True),
        (process("no"), FailureReason.RUNTIME_ERROR, False),
        (process(), FailureReason.INVALID_SPEC, False),
        (process(), FailureReason.STORAGE_ERROR, True),
        (process(), FailureReason.NONE, True),
        (
            WorkloadSpec(type=WorkloadType.CONTAINER, container=ContainerSpec("i", restart_policy="no")),
            FailureReason.IMAGE_PULL_FAILED,
            False,
        ),
        (
            WorkloadSpec(type=WorkloadType.CONTAINER, container=ContainerSpec("i")),
            FailureReason.IMAGE_PULL_FAILED,
            True,
        ),
    ],
)
def test_which_failures_are_followed_by_another_try(spec, failure, again):
    assert retries.may_retry(spec, failure) == again
    assert retries.is_final(record(spec), failure) != again


def test_five_tries_ever_more_slowly_and_then_no_more():
    current, delays = record(), []
    for generation in range(1, 7):
        current = dataclasses.replace(current, generation=generation)
        retry = retries.after_failure(current, FailureReason.RUNTIME_ERROR, at=AT, chance=0.0)
        current = dataclasses.replace(current, retry=retry)
        delays.append(None if retry.next_at is None else (retry.next_at - AT).total_seconds())
    assert delays == [5.0, 10.0, 20.0, 40.0, 80.0, None]
    assert current.retry.attempts == 5
    assert retries.is_final(current, FailureReason.RUNTIME_ERROR)


def test_what_is_not_its_fault_is_not_charged_and_never_the_last():
    current = record()
    for generation in range(1, 100):
        current = dataclasses.replace(current, generation=generation)
        retry = retries.after_failure(current, FailureReason.STORAGE_ERROR, at=AT, chance=0.0)
        assert retry.next_at is not None
        assert retry.attempts == 0
        current = dataclasses.replace(current, retry=retry)
    assert (current.retry.next_at - AT).total_seconds() == retries.LONGEST_DELAY


@given(st.integers(-5, 10_000), st.floats(0, 1))
def test_a_delay_is_within_its_bounds(failures, chance):
    found = retries.delay(failures, chance)
    assert retries.FIRST_DELAY * (1 - retries.JITTER) <= found <= retries.LONGEST_DELAY


def test_the_budget_is_full_again_after_a_while():
    spent = record(retry=RetryState(attempts=3, failures=4, failed_generation=1))
    assert retries.seconds_until_healthy(record(), AT, now=AT) is None
    assert retries.seconds_until_healthy(spent, AT, now=AT + timedelta(minutes=9)) == 60.0
    assert retries.seconds_until_healthy(spent, AT, now=AT + timedelta(minutes=10)) == 0.0

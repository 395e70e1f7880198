"""What the report of a foreign agent adds to what is known: a function of both."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from shoal.control.workloads.decisions.reports import ReportVerdict, judge_report
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.workloads import (
    DesiredState,
    FailureReason,
    Observation,
    ProcessSpec,
    RunState,
    RunStatus,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadType,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
NODE = NodeId("n1")
RECORD = WorkloadRecord(
    workload_id=WorkloadId("w"),
    spec=WorkloadSpec(type=WorkloadType.PROCESS, process=ProcessSpec(command=("x",))),
    spec_bytes=b"",
    spec_sha256=b"",
    revision_id="r1",
    desired=DesiredState.RUNNING,
    generation=1,
    created_at=AT,
    updated_at=AT,
    node_id=NODE,
)
#: The answer to a status poll: with a revision, and a failure that says something.
KNOWN = RunStatus(
    WorkloadId("w"),
    RunState.FAILED,
    failure=FailureReason.STORAGE_ERROR,
    message="full",
    last_transition=AT,
    revision_id="r1",
)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, ReportVerdict.KNOWN),
        ({"revision_id": ""}, ReportVerdict.KNOWN),
        ({"failure": FailureReason.RUNTIME_ERROR, "revision_id": ""}, ReportVerdict.KNOWN),
        ({"last_transition": AT + timedelta(seconds=1)}, ReportVerdict.KNOWN),
        ({"failure": FailureReason.NETWORK_ERROR}, ReportVerdict.NEWS),
        ({"message": "fuller"}, ReportVerdict.NEWS),
        ({"revision_id": "r2"}, ReportVerdict.NEWS),
        ({"state": RunState.RUNNING, "failure": FailureReason.NONE}, ReportVerdict.NEWS),
    ],
)
def test_a_heartbeat_that_says_less_than_is_known_is_no_news(changes, verdict):
    status = dataclasses.replace(KNOWN, **changes)
    assert judge_report(RECORD, Observation(NODE, KNOWN, AT), NODE, status) is verdict


def test_times_of_our_own_agents_are_news():
    known = dataclasses.replace(KNOWN, generation=1)
    status = dataclasses.replace(known, last_transition=AT + timedelta(seconds=1))
    assert judge_report(RECORD, Observation(NODE, known, AT), NODE, status) is ReportVerdict.NEWS

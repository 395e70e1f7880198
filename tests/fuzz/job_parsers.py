"""The parsers of jobs and services. Joined with the others in `parsers.py`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import strategies as st

from shoal.core.errors import InternalError
from shoal.dataflow.fleet import progress as dataflow_progress
from shoal.dataflow.fleet import reports
from shoal.dataflow.fleet import spec as dataflow_spec
from shoal.dataflow.fleet.progress import Move
from shoal.services import progress, spec
from shoal.services.progress import Progress, Revision, RevisionState
from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_bytes, changed_values
from tests.fuzz.inputs import blobs

WORKLOAD = {"type": "process", "process": {"command": ["sleep", "9"]}, "labels": {"app": "shop"}}
SERVICE = {"count": 3, "spread": "node", "update": {"parallel": 1, "settle": "5s"}, "workload": WORKLOAD}
SERVICE_BYTES = json.dumps(SERVICE).encode()
PROGRESS = progress.encode(
    Progress((1, 2), (Revision(1, SERVICE, RevisionState.HEALTHY, datetime(2026, 1, 1, tzinfo=UTC)),), 1, 1)
)
DATAFLOW = {
    "name": "a.b",
    "plan": "a" * 64,
    "bundle": "b" * 64,
    "checkpoint": {"directory": "/c", "interval": 1.0},
    "settings": {"key_groups": 64},
    "steps": {"sum-1": {"kind": "Aggregate", "text": "sum", "stateful": True}},
}
DATAFLOW_BYTES = json.dumps(DATAFLOW).encode()
DATAFLOW_PROGRESS = dataflow_progress.encode(
    dataflow_progress.Progress("{}", 1, 2, 3, {"1": Move(1, ("n1",))}, {"n1": datetime(2026, 1, 1, tzinfo=UTC)}, "/s")
)
COORDINATOR = reports.encode(
    reports.CoordinatorReport(
        reports.Phase.RUNNING, 3, "h:1", "n1", missing={"0": 1.5}, steps=(reports.StepReport("sum-1", "sum", 5),)
    )
)
HOST = reports.encode(reports.HostReport(1, 3, "n1", 3.5))

JOB_PARSERS: dict[str, ParserCase] = {
    "shoal.dataflow.fleet.spec.decode": ParserCase(
        dataflow_spec.decode, st.one_of(blobs, changed_bytes(DATAFLOW_BYTES)), good=(DATAFLOW_BYTES,)
    ),
    "shoal.dataflow.fleet.spec.read_spec": ParserCase(
        dataflow_spec.read_spec, JSON_VALUES | changed_values(DATAFLOW), good=(DATAFLOW,)
    ),
    "shoal.dataflow.fleet.reports.decode_coordinator": ParserCase(
        reports.decode_coordinator, st.one_of(blobs, changed_bytes(COORDINATOR)), good=(COORDINATOR,)
    ),
    "shoal.dataflow.fleet.reports.decode_host": ParserCase(
        reports.decode_host, st.one_of(blobs, changed_bytes(HOST)), good=(HOST,)
    ),
    "shoal.dataflow.fleet.progress.decode": ParserCase(
        dataflow_progress.decode,
        st.one_of(blobs, changed_bytes(DATAFLOW_PROGRESS)),
        (InternalError,),
        (DATAFLOW_PROGRESS, b""),
    ),
    "shoal.services.spec.decode": ParserCase(
        spec.decode, st.one_of(blobs, changed_bytes(SERVICE_BYTES)), good=(SERVICE_BYTES,)
    ),
    "shoal.services.spec.read_service": ParserCase(
        spec.read_service, JSON_VALUES | changed_values(SERVICE), good=(SERVICE,)
    ),
    "shoal.services.spec.read_service_document": ParserCase(
        spec.read_service_document,
        JSON_VALUES | changed_values({"kind": "service", "id": "shop", **SERVICE}),
        good=({"kind": "service", "id": "shop", **SERVICE},),
    ),
    "shoal.services.spec.read_workload": ParserCase(
        spec.read_workload, JSON_VALUES | changed_values(WORKLOAD), good=(WORKLOAD,)
    ),
    # Written by this program alone: what it cannot read is a bug, and is told as one.
    "shoal.services.progress.decode": ParserCase(
        progress.decode, st.one_of(blobs, changed_bytes(PROGRESS)), (InternalError,), (PROGRESS, b"")
    ),
}

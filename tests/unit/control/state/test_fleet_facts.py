"""What the scheduler sees of a node is kept up with each change: it is what counting anew would give."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from shoal.control.state.fleet import Fleet
from shoal.control.store.base import Batch, Snapshot
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import NodeRecord, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import (
    DesiredState,
    Move,
    MoveKind,
    Observation,
    ProcessSpec,
    ResourceRequest,
    RunState,
    RunStatus,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadType,
)

AT = datetime(2030, 1, 1, tzinfo=UTC)
NODES = tuple(NodeId(name) for name in ("n1", "n2", "n3"))
WORKLOADS = tuple(WorkloadId(name) for name in ("w1", "w2", "w3", "w4"))


def _node(node_id: NodeId) -> NodeRecord:
    spec = NodeSpec(node_id=node_id, endpoint="", capacity=Resources(4000, 8192, 100, 8), workload_types=("process",))
    return NodeRecord(
        spec=spec,
        session="s",
        state=NodeState.READY,
        state_reason="",
        state_by="register",
        state_at=AT,
        registered_at=AT,
        last_heartbeat=AT,
        lease_seconds=30.0,
    )


@st.composite
def _records(draw: st.DrawFn) -> WorkloadRecord:
    node_id = draw(st.sampled_from((*NODES, None)))
    away = draw(st.sampled_from((*NODES, None)))
    held = draw(st.sampled_from((None, Resources(100), Resources(700))))
    move = Move(MoveKind.BEFORE, away, 1, AT, held) if away is not None and draw(st.booleans()) else None
    spec = WorkloadSpec(
        type=WorkloadType.PROCESS,
        resources=ResourceRequest(cpu_millicores=draw(st.integers(1, 3)) * 100),
        process=ProcessSpec(command=("true",)),
        labels={"app": draw(st.sampled_from(("a", "b")))},
    )
    return WorkloadRecord(
        workload_id=draw(st.sampled_from(WORKLOADS)),
        spec=spec,
        spec_bytes=b"",
        spec_sha256=b"",
        revision_id="1",
        desired=draw(st.sampled_from((DesiredState.RUNNING, DesiredState.STOPPED))),
        generation=2,
        placed_generation=draw(st.integers(1, 2)),
        created_at=AT,
        updated_at=AT,
        node_id=node_id,
        reserved=spec.request if node_id is not None else Resources(),
        reserved_ports=draw(st.sampled_from(((), ("8080/tcp",), ("9090/tcp",)))) if node_id is not None else (),
        left_on=(away,) if away is not None and away != node_id else (),
        move=move,
    )


@st.composite
def _observations(draw: st.DrawFn) -> Observation:
    status = RunStatus(
        draw(st.sampled_from(WORKLOADS)),
        draw(st.sampled_from((RunState.RUNNING, RunState.STOPPED, RunState.FAILED))),
        generation=draw(st.integers(1, 2)),
        completed=draw(st.booleans()),
    )
    return Observation(draw(st.sampled_from(NODES)), status, AT)


def _changes() -> st.SearchStrategy[Batch]:
    return st.one_of(
        _records().map(lambda record: Batch(workloads=(record,))),
        _records().map(lambda record: Batch(workloads=(record,))),
        _observations().map(lambda seen: Batch(observations=(seen,))),
        st.sampled_from(WORKLOADS).map(lambda workload_id: Batch(removed_workloads={workload_id: 1})),
        st.sampled_from(WORKLOADS).map(lambda workload_id: Batch(forgotten_observations=(workload_id,))),
    )


@given(st.lists(_changes(), max_size=12))
def test_facts_that_are_kept_equal_facts_that_are_counted_anew(changes: list[Batch]) -> None:
    fleet = Fleet()
    fleet.load(Snapshot(nodes=tuple(_node(node_id) for node_id in NODES)))
    for change in changes:
        fleet.facts()
        fleet.take(change)
        anew = Fleet()
        anew.load(
            Snapshot(
                nodes=tuple(fleet.nodes.values()),
                workloads=tuple(fleet.workloads.values()),
                observations=tuple(fleet.observations.values()),
            )
        )
        assert fleet.facts() == anew.facts()

"""Off a node that is alive: who goes next, and what a move makes of a record."""

import dataclasses
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.placement.placer import placed_on
from shoal.control.state import moves
from shoal.control.workloads.decisions.reports import is_superseded
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import (
    DesiredState,
    MoveKind,
    ProcessSpec,
    ResourceRequest,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadType,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW, THIRD = NodeId("old"), NodeId("new"), NodeId("third")
SPEC = WorkloadSpec(type=WorkloadType.PROCESS, process=ProcessSpec(command=("true",)))


def record(**changes):
    values = {
        "workload_id": WorkloadId("w"),
        "spec": SPEC,
        "spec_bytes": b"",
        "spec_sha256": b"",
        "revision_id": "r",
        "desired": DesiredState.RUNNING,
        "generation": 3,
        "created_at": AT,
        "updated_at": AT,
        "node_id": OLD,
        "placed_generation": 3,
    }
    return WorkloadRecord(**{**values, **changes})


def _needs(**resources):
    return dataclasses.replace(SPEC, resources=ResourceRequest(**resources))


def begun_first(**changes):
    before = record(**changes)
    return moves.begun_first(before, placed_on(before, NEW, at=AT), at=AT)


class TestReplacementFirst:
    def test_the_new_node_owns_it_and_the_old_copy_is_left_alone(self):
        moved = begun_first()
        assert (moved.node_id, moved.generation, moved.left_on) == (NEW, 4, (OLD,))
        assert moves.is_held(moved, OLD)
        assert not is_superseded(moved, OLD, 3)
        assert is_superseded(moved, THIRD, 2)

    def test_once_it_has_arrived_the_old_copy_goes(self):
        moved = moves.finished(begun_first())
        assert is_superseded(moved, OLD, 3)

    def test_it_can_be_taken_back_under_a_newer_generation(self):
        moved = begun_first()
        assert moves.can_return(moved)
        back = moves.returned(moved, at=AT)
        assert (back.node_id, back.generation, back.placed_generation, back.move) == (OLD, 5, 5, None)
        assert back.left_on == (NEW,)
        assert is_superseded(back, NEW, 4)

    def test_not_after_an_update_nor_when_the_copy_is_gone(self):
        moved = begun_first()
        assert not moves.can_return(_with(moved, generation=5))
        assert not moves.can_return(_with(moved, left_on=()))

    def test_the_old_copy_keeps_what_it_holds_whatever_its_replacement_is_given(self):
        held = (Resources(cpu_millicores=400), ("8080/tcp",))
        moved = begun_first(reserved=held[0], reserved_ports=held[1])
        assert moves.held_reservation(moved) == held
        updated = placed_on(_with(moved, generation=5, spec=_needs(cpu_millicores=100)), NEW, at=AT)
        assert updated.reserved.cpu_millicores == 100
        assert moves.is_held(updated, OLD)
        assert moves.held_reservation(updated) == held

    def test_it_is_not_taken_back_by_a_node_that_kept_less_for_it(self):
        smaller = _needs(cpu_millicores=100).request
        assert not moves.can_return(begun_first(spec=_needs(cpu_millicores=400), reserved=smaller))
        assert moves.can_return(begun_first(spec=_needs(cpu_millicores=100), reserved=smaller))

    @pytest.mark.parametrize("desired", [DesiredState.STOPPED, DesiredState.DELETED])
    def test_a_stop_or_delete_stops_both_copies(self, desired):
        assert is_superseded(_with(begun_first(), desired=desired), OLD, 3)

    def test_a_third_node_may_take_over(self):
        moved = begun_first()
        again = placed_on(moved, THIRD, at=AT)
        assert again.left_on == (NEW, OLD)
        assert moves.is_held(again, OLD)
        assert is_superseded(again, NEW, 4)
        home = placed_on(moved, OLD, at=AT)
        assert home.move is None


class TestReplacementAfter:
    def test_the_owner_stays_until_it_confirms(self):
        leaving = moves.begun_after(record(), at=AT)
        assert (leaving.node_id, leaving.generation, leaving.placed_generation) == (OLD, 4, 4)
        assert moves.is_leaving(leaving)
        gone = moves.left(leaving, at=AT)
        assert (gone.node_id, gone.generation, gone.placed_generation) == (None, 5, 0)
        assert not moves.is_leaving(gone)
        arrived = placed_on(gone, NEW, at=AT)
        assert (arrived.node_id, arrived.generation) == (NEW, 5)
        assert arrived.move is not None
        assert moves.finished(arrived).move is None


leavers = st.lists(
    st.builds(
        moves.Leaver,
        st.integers(0, 50).map(lambda index: WorkloadId(f"w{index}")),
        st.sampled_from(MoveKind),
        moving=st.booleans(),
        ends=st.booleans(),
        not_before=st.floats(0, 20),
    ),
    unique_by=lambda leaver: leaver.workload_id,
)


@given(leavers, st.integers(0, 5), st.integers(1, 4), st.booleans())
def test_never_more_at_a_time_than_allowed_until_it_is_forced(given_leavers, on_the_way, parallel, forced):
    step = moves.next_moves(given_leavers, on_the_way=on_the_way, parallel=parallel, forced=forced, now=10.0)
    if forced:
        assert {each.workload_id for each in step.force} == {each.workload_id for each in given_leavers}
        assert not step.begin
        return
    assert not step.force
    assert len(step.begin) <= max(0, parallel - on_the_way)
    for each in step.begin:
        assert not each.moving
        assert not each.ends
        assert each.not_before <= 10.0


def _with(record_, **changes):
    return dataclasses.replace(record_, **changes)

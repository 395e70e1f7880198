"""Admission by requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.workloads.slots import Claim, find_refusal, reserved, slot_share
from shoal.core.errors import ExhaustedError, PreconditionError
from shoal.core.ids import WorkloadId
from shoal.model.nodes import RefusalCode
from shoal.model.resources import Resources

NODE = Resources(cpu_millicores=4000, memory_mb=4096, disk_gb=100, slots=4)
W = WorkloadId("w")


def test_what_fits_is_taken():
    assert find_refusal(NODE, {}, W, Claim(NODE)) is None
    assert find_refusal(NODE, {}, W, Claim()) is None


def test_what_does_not_fit_is_refused_with_every_shortage():
    refusal = find_refusal(NODE, {}, W, Claim(Resources(cpu_millicores=5000, memory_mb=5000)))
    assert refusal.code is RefusalCode.RESOURCES
    assert "cpu need 5000m have 4000m, memory need 5000 MB have 4096 MB" in refusal.message
    error = refusal.error(W)
    assert isinstance(error, ExhaustedError)
    assert error.facts["failure"] == "INSUFFICIENT_RESOURCES"
    assert (error.facts["need"], error.facts["have"]) == ("cpu=5000, memory=5000", "cpu=4000, memory=4096")


def test_what_the_workload_holds_already_counts_as_free():
    claims = {W: Claim(Resources(memory_mb=4000)), WorkloadId("x"): Claim(Resources(memory_mb=50))}
    assert find_refusal(NODE, claims, W, Claim(Resources(memory_mb=4046))) is None
    assert find_refusal(NODE, claims, W, Claim(Resources(memory_mb=4047))) is not None


def test_a_request_for_nothing_fits_on_a_node_that_is_too_full():
    claims = {WorkloadId("x"): Claim(Resources(cpu_millicores=9999, slots=9))}
    assert find_refusal(NODE, claims, W, Claim(Resources(memory_mb=10))) is None


def test_a_slot_stands_for_its_share_of_the_memory():
    assert slot_share(NODE, 1) == 1024
    assert find_refusal(NODE, {}, W, Claim(Resources(memory_mb=1024, slots=1))) is None
    refusal = find_refusal(NODE, {}, W, Claim(Resources(memory_mb=1025, slots=1)))
    assert refusal.code is RefusalCode.SLOT_MEMORY
    assert "1025 MB in 1 of 4 slots, which have 1024 MB of the node's 4096 MB" in refusal.message
    assert (refusal.need, refusal.have) == ("memory=1025", "memory=1024")
    assert find_refusal(NODE, {}, W, Claim(Resources(memory_mb=2048, slots=2))) is None


def test_more_slots_than_there_are():
    refusal = find_refusal(NODE, {}, W, Claim(Resources(slots=5)))
    assert refusal.message == "not enough is left: slots need 5 have 4"
    assert find_refusal(Resources(1, 1), {}, W, Claim(Resources(slots=1))).code is RefusalCode.RESOURCES
    assert slot_share(Resources(1, 1), 1) == 0


def test_a_port_is_given_once():
    claims = {WorkloadId("x"): Claim(ports=frozenset({(80, "tcp"), (81, "tcp")}))}
    refusal = find_refusal(NODE, claims, W, Claim(ports=frozenset({(81, "tcp")})))
    assert (refusal.code, refusal.message) == (RefusalCode.PORT, "port 81/tcp is promised to workload 'x'")
    assert find_refusal(NODE, claims, WorkloadId("x"), Claim(ports=frozenset({(81, "tcp")}))) is None
    assert find_refusal(NODE, claims, W, Claim(ports=frozenset({(81, "udp")}))) is None


def test_a_draining_node_keeps_what_it_has():
    refusal = find_refusal(NODE, {}, W, Claim(), draining=True)
    assert isinstance(refusal.error(W), PreconditionError)
    assert refusal.error(W).facts["reason"] == "draining"
    assert find_refusal(NODE, {W: Claim()}, W, Claim(), draining=True) is None


amounts = st.builds(
    Resources,
    cpu_millicores=st.integers(0, 5000),
    memory_mb=st.integers(0, 5000),
    disk_gb=st.integers(0, 120),
    slots=st.integers(0, 5),
)


@given(st.lists(st.builds(Claim, request=amounts), max_size=30))
def test_whatever_is_asked_no_more_is_taken_than_there_is(asked):
    claims: dict[WorkloadId, Claim] = {}
    for number, claim in enumerate(asked):
        workload_id = WorkloadId(f"w{number}")
        if find_refusal(NODE, claims, workload_id, claim) is None:
            claims[workload_id] = claim
    assert NODE.covers(reserved(claims))


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_full_slots_share_the_whole_memory(slots):
    claims = {
        WorkloadId(f"w{number}"): Claim(Resources(memory_mb=slot_share(NODE, 1), slots=1))
        for number in range(slots - 1)
    }
    assert find_refusal(NODE, claims, W, Claim(Resources(memory_mb=slot_share(NODE, 1), slots=1))) is None

"""Named ports."""

from __future__ import annotations

import pytest

from shoal.agent.workloads.ports import HIGHEST, LOWEST, PortBook
from shoal.core.entropy import SeededEntropy
from shoal.core.ids import WorkloadId
from shoal.model.workloads import FailureReason, NamedPort
from shoal.runtimes.base import RunError

A, B = WorkloadId("a"), WorkloadId("b")
ANY = (NamedPort("http"),)


def book(*busy: int) -> PortBook:
    return PortBook(SeededEntropy(3), free=lambda port: port not in busy)


def test_fixed_ports_are_taken_as_given():
    assert book().choose(A, (NamedPort("http", 80), NamedPort("admin", 81)), before={}) == {"http": 80, "admin": 81}


def test_others_are_chosen_below_the_range_of_outgoing_connections():
    chosen = book().choose(A, tuple(NamedPort(f"p{number}") for number in range(50)), before={})
    assert len(set(chosen.values())) == 50
    assert all(LOWEST <= port <= HIGHEST for port in chosen.values())


def test_a_workload_keeps_its_port_while_it_is_free():
    ports = book()
    first = ports.choose(A, ANY, before={})
    assert ports.choose(A, ANY, before=first) == first
    assert book(first["http"]).choose(A, ANY, before=first) != first


def test_what_is_promised_to_one_is_not_given_to_another():
    ports = book()
    first = ports.choose(A, ANY, before={})
    assert ports.choose(B, ANY, before=first) != first
    ports.release(A)
    assert ports.choose(B, ANY, before=first) == first


def test_what_an_adopted_run_has_is_promised_to_it():
    ports = book()
    ports.adopt(A, [25_000])
    assert ports.choose(B, ANY, before={"http": 25_000})["http"] != 25_000
    assert ports.choose(A, ANY, before={"http": 25_000}) == {"http": 25_000}


def test_a_fixed_port_comes_before_a_chosen_one():
    chosen = book().choose(A, (NamedPort("any"), NamedPort("fixed", 25_000)), before={"any": 25_000})
    assert chosen["fixed"] == 25_000
    assert chosen["any"] != 25_000


@pytest.mark.parametrize(
    ("ports", "words"), [(book(80), "'http' 80 is in use on this machine"), (book(), "is in use by workload 'b'")]
)
def test_a_fixed_port_that_is_taken_may_become_free(ports, words):
    ports.adopt(B, [80] if "workload" in words else [])
    with pytest.raises(RunError, match=words) as caught:
        ports.choose(A, (NamedPort("other"), NamedPort("http", 80)), before={})
    assert (caught.value.failure, caught.value.transient) == (FailureReason.NETWORK_ERROR, True)


def test_a_choice_that_fails_promises_nothing():
    ports = book(80)
    with pytest.raises(RunError):
        ports.choose(A, (NamedPort("x", 90), NamedPort("http", 80)), before={})
    assert ports.choose(B, (NamedPort("x", 90),), before={}) == {"x": 90}


def test_a_machine_without_free_ports():
    with pytest.raises(RunError, match="no free port was found"):
        PortBook(SeededEntropy(1), free=lambda _port: False).choose(A, ANY, before={})

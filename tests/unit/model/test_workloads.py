from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from shoal.core.errors import InvalidError
from shoal.core.shape import build, find_problems, to_mapping
from shoal.model.nodes import NodeSpec
from shoal.model.resources import Resources
from shoal.model.workloads import (
    ComposeSpec,
    ContainerSpec,
    ManagedVolume,
    NamedPort,
    PortMapping,
    ProcessSpec,
    Readiness,
    RestartPolicy,
    VmSpec,
    WorkloadSpec,
    WorkloadType,
)
from tests.strategies import values_of, workload_specs


def spec(**process: Any) -> dict[str, Any]:
    return {"type": "process", "process": {"command": ["true"], **process}}


def rules(given_value: object) -> dict[str, str]:
    with pytest.raises(InvalidError) as raised:
        build(WorkloadSpec, given_value)
    return {each.field: each.rule for each in raised.value.problems}


@given(workload_specs())
def test_a_spec_is_read_back_as_it_was_written(value: WorkloadSpec) -> None:
    assert build(WorkloadSpec, to_mapping(value)) == value
    assert find_problems(value) == []


@given(values_of(NodeSpec))
def test_so_is_a_node(value: NodeSpec) -> None:
    assert build(NodeSpec, to_mapping(value)) == value


def test_the_smallest_spec() -> None:
    value = build(WorkloadSpec, spec())
    assert value == WorkloadSpec(type=WorkloadType.PROCESS, process=ProcessSpec(command=("true",)))
    assert value.request == Resources()
    assert value.host_ports == frozenset()
    assert not value.completes


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({}, "type"),
        ({"type": "process"}, "process"),
        ({"type": "pod", "process": {"command": ["x"]}}, "type"),
        ({**spec(), "vm": {}}, "vm"),
        ({"type": "vm", "process": {"command": ["x"]}}, "vm"),
        ({**spec(), "slots": -1}, "slots"),
        ({**spec(), "resources": {"memory_mb": -5}}, "resources.memory_mb"),
        ({**spec(), "resources": {"cpu_millicores": 10**12}}, "resources.cpu_millicores"),
        ({**spec(), "resources": {"memory_mb": 1.5}}, "resources.memory_mb"),
        ({**spec(), "labels": {"a b": "c"}}, "labels.a b"),
        (spec(command=[]), "process.command"),
        (spec(command=[" "]), "process.command[0]"),
        (spec(command=["a\x00b"]), "process.command[0]"),
        (spec(command="true"), "process.command"),
        (spec(env={"A=B": "x"}), "process.env.A=B"),
        (spec(env={"A": "x\x00"}), "process.env.A"),
        (spec(working_dir="relative"), "process.working_dir"),
        (spec(user="root; rm"), "process.user"),
        (spec(restart={"policy": "sometimes"}), "process.restart.policy"),
        (spec(restart={"delay": "2 weeks"}), "process.restart.delay"),
        (spec(stop={"signal": "SIGTERM"}), "process.stop.signal"),
        (spec(stop={"grace": "9000h"}), "process.stop.grace"),
        (spec(ports=[{"name": "Web"}]), "process.ports[0].name"),
        (spec(ports=[{"name": "web", "port": 70000}]), "process.ports[0].port"),
        (spec(ports=[{"name": "a"}, {"name": "a"}]), "process.ports[1]"),
        (spec(ports=[{"name": "a", "port": 80}, {"name": "b"}, {"name": "c", "port": 80}]), "process.ports[2]"),
        (spec(readiness={}), "process.readiness"),
        (spec(readiness={"tcp_port": "80", "command": {"command": ["x"]}}), "process.readiness"),
        (spec(readiness={"tcp_port": "web"}), "process.readiness"),
        (spec(readiness={"tcp_port": 0}), "process.readiness.tcp_port"),
        (spec(readiness={"tcp_port": "9" * 5000}), "process.readiness.tcp_port"),
        (spec(readiness={"tcp_port": "²"}), "process.readiness"),
        (spec(readiness={"http": {"port": "-1"}}), "process.readiness"),
        ({"type": "container", "container": {"image": ""}}, "container.image"),
        (
            {
                "type": "container",
                "container": {
                    "image": "x",
                    "ports": [
                        {"container_port": 1, "host_port": 80},
                        {"container_port": 2, "host_port": 80, "protocol": ""},
                    ],
                },
            },
            "container.ports[1]",
        ),
        ({"type": "compose", "compose": {"source_type": "git"}}, "compose.git_repo"),
        ({"type": "compose", "compose": {}}, "compose.inline_yaml"),
        ({"type": "vm", "vm": {"vcpus": 0}}, "vm.vcpus"),
        ({**spec(), "placement": {"constraints": [{"key": "a"}]}}, "placement.constraints[0].values"),
        (
            {**spec(), "placement": {"constraints": [{"key": "a", "operator": "exists", "values": ["b"]}]}},
            "placement.constraints[0].values",
        ),
        ({**spec(), "placement": {"affinities": [{"workloads": {}}]}}, "placement.affinities[0].workloads"),
        ({**spec(), "metadata": {"": "x"}}, "metadata.''"),
    ],
)
def test_every_rule_names_its_field(wrong: object, field: str) -> None:
    assert field in rules(wrong)


def test_a_type_and_a_member_that_contradict_each_other() -> None:
    assert rules({"type": "vm", "process": {"command": ["x"]}}) == {
        "vm": "is required when type is vm",
        "process": "must not be given when type is vm",
    }


def test_the_same_host_port_for_two_protocols_is_two_ports() -> None:
    ports = (PortMapping(53, 53, "tcp"), PortMapping(53, 53, "udp"))
    value = WorkloadSpec(type=WorkloadType.CONTAINER, container=ContainerSpec(image="dns", ports=ports))
    assert find_problems(value) == []
    assert value.host_ports == frozenset({(53, "tcp"), (53, "udp")})


def test_readiness_may_name_a_port_or_give_a_number() -> None:
    for port in ("web", "8080"):
        process = ProcessSpec(command=("x",), ports=(NamedPort("web"),), readiness=Readiness(tcp_port=port))
        assert find_problems(process) == []
    assert build(ProcessSpec, {"command": ["x"], "readiness": {"tcp_port": 8080}}).readiness == Readiness(
        tcp_port="8080"
    )


@pytest.mark.parametrize(
    ("policy", "completes"),
    [("always", False), ("", False), ("unless-stopped", False), ("no", True), ("on-failure", True)],
)
def test_which_workloads_complete(policy: str, completes: bool) -> None:
    process = ProcessSpec(command=("x",), restart=RestartPolicy(policy=policy, delay=timedelta(0)))
    assert WorkloadSpec(type=WorkloadType.PROCESS, process=process).completes is completes
    container = ContainerSpec(image="x", restart_policy=policy)
    assert WorkloadSpec(type=WorkloadType.CONTAINER, container=container).completes is completes


def test_what_a_workload_needs_of_its_node() -> None:
    container = ContainerSpec(image="x", managed_volumes=(ManagedVolume("a"), ManagedVolume("b", driver="nfs")))
    value = build(
        WorkloadSpec,
        {
            "type": "container",
            "container": to_mapping(container),
            "placement": {"storage_drivers": ["ceph"]},
            "resources": {"cpu_millicores": 5, "memory_mb": 6, "disk_gb": 7},
            "slots": 8,
        },
    )
    assert value.storage_drivers == {"local", "nfs", "ceph"}
    assert value.request == Resources(5, 6, 7, 8)


@pytest.mark.parametrize("body", [ComposeSpec(inline_yaml="services: {}"), VmSpec()], ids=["compose", "vm"])
@pytest.mark.parametrize(("policy", "deletes"), [("", False), ("Retain", False), ("Delete", True)])
def test_data_is_retained_unless_the_policy_is_delete(body: ComposeSpec | VmSpec, policy: str, deletes: bool) -> None:
    assert dataclasses.replace(body, retain_policy=policy).deletes_data is deletes

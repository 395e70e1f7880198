"""A run request as the body of a create call, and back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import ContainerSpec, ManagedVolume, PortMapping, StopPolicy, Ulimit, VolumeMount
from shoal.runtimes.base import RunRequest
from shoal.runtimes.container.creating import FILES_PATH, Owner, create_body, read_labels

OWNER = Owner("c1", NodeId("n1"))


def body_of(files: str = "", request: dict[str, object] | None = None, **fields: object) -> dict[str, object]:
    spec = ContainerSpec(**{"image": "a", **fields})
    wanted = RunRequest(run_id=RunId("web-1"), workload_id=WorkloadId("web"), spec=spec, **(request or {}))
    return create_body(wanted, spec, OWNER, ulimit_ceiling=2048, files=files)


def test_a_bare_spec_leaves_everything_to_the_image() -> None:
    body = body_of()
    assert not {"Cmd", "User", "WorkingDir"} & body.keys()
    host = body["HostConfig"]
    assert not {"NanoCpus", "Memory", "CpuShares"} & host.keys()
    assert host["RestartPolicy"] == {"Name": "no"}
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert {each["Name"]: each["Hard"] for each in host["Ulimits"]} == {"nofile": 2048, "nproc": 2048}


def test_limits_are_hard_and_shares_are_a_weight() -> None:
    host = body_of(cpu_shares=512, request={"limits": Resources(cpu_millicores=250, memory_mb=64)})["HostConfig"]
    assert host["NanoCpus"] == 250_000_000
    assert host["Memory"] == host["MemorySwap"] == 64 << 20
    assert host["CpuShares"] == 512
    assert "NanoCpus" not in body_of(cpu_shares=512)["HostConfig"]
    assert body_of(cpu_shares=1)["HostConfig"]["CpuShares"] == 2, "less is refused"


def test_ports_volumes_files_and_ulimits() -> None:
    body = body_of(
        files="/agent/files",
        ports=(
            PortMapping(container_port=80, host_port=8080),
            PortMapping(container_port=53, protocol="udp"),
            PortMapping(container_port=81, name="web"),
        ),
        volumes=(VolumeMount(host_path="/a", container_path="/b"),),
        managed_volumes=(
            ManagedVolume(name="data", mount_path="/data"),
            ManagedVolume(name="shared", mount_path="/shared", read_only=True),
            ManagedVolume(name="elsewhere"),
        ),
        ulimits=(Ulimit(name="nofile", soft=10, hard=20),),
        request={"ports": {"web": 9000}, "volumes": {"data": "/v/data", "shared": "/v/shared", "elsewhere": "/v/e"}},
    )
    assert body["HostConfig"]["PortBindings"] == {
        "80/tcp": [{"HostPort": "8080"}],
        "53/udp": [{"HostPort": ""}],
        "81/tcp": [{"HostPort": "9000"}],
    }
    assert body["HostConfig"]["Binds"] == [
        "/a:/b",
        "/v/data:/data",
        "/v/shared:/shared:ro",
        f"/agent/files:{FILES_PATH}:ro",
    ]
    assert {"Name": "nofile", "Soft": 10, "Hard": 20} in body["HostConfig"]["Ulimits"]
    assert "SHOAL_PORT_WEB=9000" in body["Env"]


@pytest.mark.parametrize("deadline", [None, 5.0])
def test_labels_say_what_a_container_is(deadline: float | None) -> None:
    labels = body_of(
        labels={"shoal.node": "of somebody else", "team": "blue"},
        stop=StopPolicy(signal="INT", grace=timedelta(seconds=3)),
        request={"ports": {"http": 80}, "deadline": deadline, "revision": "r1", "generation": 4},
    )["Labels"]
    assert labels["shoal.node"] == "n1"
    assert labels["team"] == "blue"
    assert (labels["shoal.revision"], labels["shoal.generation"]) == ("r1", "4")
    found = read_labels(labels)
    assert found is not None
    assert (found.run_id, found.workload_id, found.ports) == ("web-1", "web", {"http": 80})
    assert (found.stop_signal, found.grace, found.at_most_one) == ("SIGINT", 3.0, deadline is not None)


def test_what_is_no_run_of_ours_has_no_labels() -> None:
    assert read_labels({}) is None
    assert read_labels({"shoal.run": "a", "shoal.workload": "b", "shoal.ports": "["}) is None

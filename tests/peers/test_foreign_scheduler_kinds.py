"""An agent process of ours runs what a foreign scheduler sends: containers, compose projects and VMs on real engines.

Each spec has the fields that a Persys scheduler fills, in the form it fills them: labels made from its own notes, an
empty restart policy, a YAML file in base64 or not, and a VM with a disk file and no kernel.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess

import pytest
import pytest_asyncio

from shoal.core.clock import SystemClock
from shoal.runtimes.container.engine.finding import PodmanService
from shoal.wire.methods import AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.sockets.channel import GrpcTransport
from tests.peers.agents import FAILED, RUNNING, STOPPED, delete, expect_not_found, scheduled_agent, wait_state
from tests.peers.contract import agent
from tests.peers.foreign import until
from tests.services.engine import IMAGE, private_engine
from tests.services.guests import boot_disk, find_guests

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

#: Serves a greeting, and ends when it is asked to, which a first process does not do by itself.
ANSWERS = "trap 'exit 0' TERM; echo $GREETING > /tmp/index.html; httpd -p 8080 -h /tmp; while :; do sleep 0.1; done"
#: What a scheduler makes labels of when a workload has none: every text among its notes.
NOTES = {"last_action": "Apply Workload: assigned to n1", "reconciledAt": "2026-06-01T10:00:00.123Z", "owner": "e2e"}


@pytest.fixture(scope="module")
def engine():
    with private_engine() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scheduler(tmp_path_factory, engine):
    """A foreign scheduler of an agent that has every published runtime, for all tests of this module."""
    service = PodmanService(engine.folder / "peers", clock=SystemClock(), arguments=engine.arguments)
    await (await service.open()).close()
    try:
        env = {"DOCKER_HOST": f"unix://{engine.folder}/peers/podman.sock"}
        async with scheduled_agent(
            tmp_path_factory.mktemp("peers"), "--runtimes", "container,compose,vm", env=env
        ) as made:
            yield made
    finally:
        await service.close()


async def apply(scheduler, spec, revision="r1", *, desired=agent.DESIRED_STATE_RUNNING):
    kind = spec.WhichOneof("spec")
    return await scheduler.call(
        "ApplyWorkload",
        id="web",
        type=getattr(agent, f"WORKLOAD_TYPE_{kind.upper()}"),
        revision_id=revision,
        desired_state=desired,
        spec=spec,
    )


def container(port, greeting, **fields):
    given = {
        "image": IMAGE,
        "command": ["sh", "-c", ANSWERS],
        "env": {"GREETING": greeting},
        "ports": [agent.PortMapping(host_port=port, container_port=8080, protocol="tcp")],
        "resources": agent.ResourceLimits(cpu_shares=500, memory_bytes=64 << 20),
        "restart_policy": agent.RestartPolicy(policy=""),
        "labels": NOTES,
    }
    return agent.WorkloadSpec(container=agent.ContainerSpec(**{**given, **fields}))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def answer(port):
    """What the server at a port says, once it does."""

    def ask():
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
                link.sendall(b"GET / HTTP/1.0\r\n\r\n")
                with link.makefile("rb") as whole:
                    return whole.read().decode()
        except OSError:
            return ""

    return (await until(ask, f"an answer at port {port}")).splitlines()[-1]


async def until_it_prints(scheduler, text):
    """Wait for the output of the workload, which the published contract has no call for."""
    channel = GrpcTransport().connect(scheduler.address)

    async def printed():
        request = agent_pb2.ReadLogsRequest(workload_id="web")
        pieces = [piece.data async for piece in channel.stream(AgentService.READ_LOGS, request)]
        return text in b"".join(pieces)

    try:
        await until(printed, f"the output {text}")
    finally:
        await channel.close()


async def test_it_offers_the_published_types(scheduler):
    health = await scheduler.call("HealthCheck")
    assert dict(health.runtime_status) == dict.fromkeys(("container", "compose", "vm"), "healthy")


async def test_a_container_lives_through_updates_stops_and_starts(scheduler, engine, tmp_path):
    port = free_port()
    shared = tmp_path / "shared"
    shared.mkdir()
    mount = agent.VolumeMount(host_path=str(shared), container_path="/shared", read_only=True)
    kept = agent.ManagedVolumeSpec(name="data", driver="local", mount_path="/data", retain_policy="Retain")
    fields = {"volumes": [mount], "managed_volumes": [kept]}
    await expect_not_found(scheduler)
    first = await apply(scheduler, container(port, "one", **fields))
    assert (first.applied, first.skipped) == (True, False)
    status = await wait_state(scheduler, RUNNING)
    assert status.type == agent.WORKLOAD_TYPE_CONTAINER
    assert await answer(port) == "one"
    (found,) = json.loads(engine.podman("inspect", "shoal-n1-web"))
    assert NOTES.items() < found["Config"]["Labels"].items()
    host = found["HostConfig"]
    assert (host["CpuShares"], host["NanoCpus"], host["Memory"]) == (500, 0, 64 << 20)
    assert host["RestartPolicy"]["Name"] in ("", "no")
    assert host["Privileged"] is False
    mounts = {each["Destination"]: each["RW"] for each in found["Mounts"]}
    assert mounts == {"/shared": False, "/data": True}
    assert (await apply(scheduler, container(port, "one", **fields))).skipped
    await apply(scheduler, container(port, "two", **fields), "r2")
    await wait_state(scheduler, RUNNING, "r2")
    assert await answer(port) == "two"
    await apply(scheduler, container(port, "two", **fields), "r2", desired=agent.DESIRED_STATE_STOPPED)
    await wait_state(scheduler, STOPPED, "r2")
    await delete(scheduler)
    assert engine.containers() == []


async def test_a_container_that_cannot_be_is_failed_with_words_a_scheduler_knows(scheduler):
    """By `retry_terminal` it knows that the same spec fails again."""
    await apply(scheduler, container(free_port(), "one", command=["/no/such/program"]))
    status = await wait_state(scheduler, FAILED)
    assert dict(status.metadata) == {"failure_reason": "INVALID_SPEC", "retry_terminal": "true"}
    assert "/no/such/program" in status.message
    await delete(scheduler)


@pytest.mark.parametrize("code", [str, lambda text: base64.b64encode(text.encode()).decode()], ids=["raw", "base64"])
async def test_a_compose_project_is_taken_as_yaml_and_in_base64(scheduler, engine, code):
    port = free_port()
    project = f"""
services:
  db: {{image: {IMAGE}, command: [sleep, "1000"], init: true}}
  web:
    image: {IMAGE}
    command: [sh, -c, "{ANSWERS.replace("$", "$$")}"]
    environment: {{GREETING: "${{GREETING}}"}}
    ports: ["127.0.0.1:{port}:8080"]
"""
    spec = agent.ComposeSpec(project_name="any", compose_yaml=code(project), env={"GREETING": "composed"})
    await apply(scheduler, agent.WorkloadSpec(compose=spec))
    status = await wait_state(scheduler, RUNNING)
    assert status.type == agent.WORKLOAD_TYPE_COMPOSE
    assert await answer(port) == "composed"
    assert len(engine.containers()) == 2
    await delete(scheduler)
    assert engine.containers() == []


async def test_a_vm_boots_from_the_disk_file_that_it_names(scheduler, tmp_path):
    """Its files are the node's own: they are used as they are, made if they are not there, and never removed."""
    find_guests()
    root, blank = tmp_path / "web-vda.qcow2", tmp_path / "web-vdb.qcow2"
    (tmp_path / "raw").write_bytes(boot_disk("booted from its disk\r\n"))
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", tmp_path / "raw", root], check=True, timeout=60)
    disk = {"format": "qcow2", "size_gb": 1, "type": "disk"}
    vm = agent.VMSpec(
        name="web",
        vcpus=1,
        memory_mb=128,
        disks=[
            agent.DiskConfig(path=str(blank), device="vdb", **disk),
            agent.DiskConfig(path=str(root), device="vda", boot=True, **disk),
        ],
        networks=[agent.NetworkConfig(network="default", mac_address="52:54:00:AB:CD:EF", ip_address="10.0.2.20")],
        cloud_init="#cloud-config\nhostname: web\n",
        metadata=NOTES,
    )
    await apply(scheduler, agent.WorkloadSpec(vm=vm))
    status = await wait_state(scheduler, RUNNING)
    assert status.type == agent.WORKLOAD_TYPE_VM
    await until_it_prints(scheduler, b"booted from its disk")
    await apply(scheduler, agent.WorkloadSpec(vm=vm), desired=agent.DESIRED_STATE_STOPPED)
    await wait_state(scheduler, STOPPED)
    await delete(scheduler)
    for path in (root, blank):
        told = subprocess.run(["qemu-img", "info", "--output=json", path], capture_output=True, check=True, timeout=60)
        assert json.loads(told.stdout)["virtual-size"] == 1 << 30

"""What a container's spec says is what the container is, on a real Podman."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import urllib.request
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import RunId
from shoal.model.resources import Resources
from shoal.model.workloads import FailureReason, FileSpec, ManagedVolume, PortMapping, Ulimit, VolumeMount
from shoal.runtimes.base import RunError, RunPhase
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.finding import EngineFinder
from shoal.runtimes.container.runtime import ContainerRuntime
from shoal.testing.suites.runtime import read_all, wait_ended, wait_output
from tests.e2e.runtimes.containers import (
    OpenContainers,
    engine,
    free_port,
    open_containers,
    owner,
    registry,
    request,
    service,
)
from tests.services.engine import IMAGE, Engine, engine_service, root_file_system
from tests.services.registry import Registry

__all__ = ["engine", "open_containers", "owner", "registry", "service"]

pytestmark = pytest.mark.e2e


ANSWERS = """
import socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("", 53))
while True:
    link.sendto(b"there", link.recvfrom(100)[1])
"""


def lent_directories() -> list[str]:
    """What a Python of this machine needs."""
    found = [sys.base_prefix]
    for path in ("/lib", "/lib64", "/usr/lib"):
        if Path(path).exists() and not path.startswith(f"{sys.base_prefix}/"):
            found.append(path)
    return found


def inspect(engine: Engine, name: str) -> dict[str, object]:
    (found,) = json.loads(engine.podman("inspect", name))
    return found


async def test_ports_lead_into_the_container_and_its_traffic_is_counted(open_containers: OpenContainers) -> None:
    runtime = await open_containers()
    tcp, named, udp = free_port(), free_port(), free_port(socket.SOCK_DGRAM)
    python = f"{sys.base_prefix}/bin/python3"
    script = (
        f"echo hello > /index.html; {python} -c '{ANSWERS}' & httpd -p 8080 -h /; "
        "dd if=/dev/zero of=/much bs=1M count=4 conv=fsync 2>/dev/null; echo up; exec httpd -f -p 80 -h /"
    )
    # The image has no program that answers over UDP: it is lent the Python of this machine.
    lent = [VolumeMount(host_path=path, container_path=path, read_only=True) for path in lent_directories()]
    ports = (
        PortMapping(container_port=80, host_port=tcp),
        PortMapping(container_port=8080, name="web"),
        PortMapping(container_port=53, host_port=udp, protocol="udp"),
    )
    info = await runtime.start(request(script, ports=ports, volumes=tuple(lent), given={"ports": {"web": named}}))
    assert dict(info.ports) == {"web": named}
    await wait_output(runtime, b"up\n")

    def fetch(port: int) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=10) as answer:
            return answer.read()

    def ask() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(0.5)
            link.connect(("127.0.0.1", udp))
            for _ in range(60):
                with suppress(OSError):
                    link.send(b"x")
                    return link.recv(100)
        raise AssertionError("no answer over UDP")

    for port in (tcp, named):
        async with asyncio.timeout(30):
            while True:
                with suppress(OSError):
                    assert await asyncio.to_thread(fetch, port) == b"hello\n"
                    break
                await asyncio.sleep(0.1)
    assert await asyncio.to_thread(ask) == b"there"
    usage = await runtime.usage(RunId("web-1"))
    assert usage is not None
    assert usage.net_rx_bytes > 0
    assert usage.net_tx_bytes > 0
    assert usage.disk_write_bytes >= 4 << 20


async def test_the_container_is_what_the_spec_says(
    open_containers: OpenContainers, engine: Engine, owner: Owner, tmp_path: Path
) -> None:
    runtime = await open_containers()
    shared, volume = tmp_path / "shared", tmp_path / "volume"
    for folder in (shared, volume):
        folder.mkdir()
        folder.chmod(0o777)
    (shared / "word").write_text("from the host\n")
    script = (
        'echo "$0 $1"; id -u; pwd; ulimit -n; cat /in/word; touch /in/x 2>/dev/null || echo read-only; '
        "echo kept > /data/word; echo up; exec sleep 1000"
    )
    await runtime.start(
        request(
            command=("sh", "-c", script),
            args=("a b", "c"),
            user="65534",
            working_dir="/tmp",
            ulimits=(Ulimit(name="nofile", soft=100, hard=200),),
            labels={"team": "blue"},
            cpu_shares=512,
            volumes=(VolumeMount(host_path=str(shared), container_path="/in", read_only=True),),
            managed_volumes=(ManagedVolume(name="data", mount_path="/data"),),
            given={
                "limits": Resources(cpu_millicores=500, memory_mb=64),
                "volumes": {"data": str(volume)},
                "revision": "r7",
                "generation": 3,
            },
        )
    )
    said = (await wait_output(runtime, b"up\n")).decode().splitlines()
    assert said == ["a b c", "65534", "/tmp", "100", "from the host", "read-only", "up"]
    assert (volume / "word").read_text() == "kept\n"
    found = inspect(engine, f"shoal-{owner.node_id}-web")
    labels = found["Config"]["Labels"]
    assert labels["team"] == "blue"
    assert [labels[f"shoal.{name}"] for name in ("cluster", "node", "workload", "run", "revision", "generation")] == [
        "test",
        owner.node_id,
        "web",
        "web-1",
        "r7",
        "3",
    ]
    host = found["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["CpuShares"]) == (500_000_000, 64 << 20, 512)
    assert host["RestartPolicy"]["Name"] in ("", "no")
    assert not host["Privileged"]


@pytest.mark.parametrize("allowed", [False, True])
async def test_privileged_containers_run_only_where_they_are_allowed(
    open_containers: OpenContainers, allowed: bool
) -> None:
    runtime = await open_containers(allow_privileged=allowed)
    # A container without privileges has no right to mount.
    wanted = request("mount -t tmpfs none /tmp && echo mounted", privileged=True)
    if allowed:
        await runtime.start(wanted)
        assert (await wait_ended(runtime, "web-1")).last_output == "mounted\n"
    else:
        with pytest.raises(RunError, match="privileged") as raised:
            await runtime.start(wanted)
        assert raised.value.failure is FailureReason.INVALID_SPEC
        with pytest.raises(RunError, match="privileged"):
            await runtime.prepare(wanted)


async def test_files_are_read_only_and_replaced_at_once(open_containers: OpenContainers) -> None:
    runtime = await open_containers()
    files = (FileSpec(path="/etc/app/conf", content="one"), FileSpec(path="/etc/passwd", content="x", mode=0o400))
    script = (
        "cat /etc/app/conf; echo; (echo more >> /etc/app/conf) 2>/dev/null || echo read-only; echo up; "
        "while ! grep -q two /etc/app/conf; do sleep 0.05; done; cat /etc/app/conf /etc/passwd"
    )
    contents = ((files[0], b"one"), (files[1], b"users\n"))
    await runtime.start(request(script, files=files, given={"files": contents}))
    assert await wait_output(runtime, b"up\n") == b"one\nread-only\nup\n"
    await runtime.replace_files(RunId("web-1"), ((files[0], b"two\n"), contents[1]))
    await wait_ended(runtime, "web-1")
    assert await read_all(runtime) == b"one\nread-only\nup\ntwo\nusers\n"


async def test_the_healthcheck_of_an_image_is_run_by_the_agent(
    open_containers: OpenContainers, engine: Engine, owner: Owner, registry: Registry
) -> None:
    second = 1_000_000_000
    check = {"Test": ["CMD-SHELL", "test -e /tmp/well"], "Interval": 2 * second, "Timeout": 5 * second, "Retries": 4}
    image = registry.add("checked", "1", root_file_system(), {"Cmd": ["sh"], "Healthcheck": check})
    runtime = await open_containers()
    info = await runtime.start(request("echo up; exec sleep 1000", image=image))
    readiness = info.readiness
    assert readiness is not None
    assert readiness.command is not None
    assert readiness.command.command == ("/bin/sh", "-c", "test -e /tmp/well")
    assert (readiness.period, readiness.timeout) == (timedelta(seconds=2), timedelta(seconds=5))
    assert readiness.failure_threshold == 4
    assert not await runtime.run_probe(RunId("web-1"), readiness.command.command, timeout=10.0)
    assert await runtime.run_probe(RunId("web-1"), ("touch", "/tmp/well"), timeout=10.0)
    assert await runtime.run_probe(RunId("web-1"), readiness.command.command, timeout=10.0)
    # The engine itself runs none.
    found = inspect(engine, f"shoal-{owner.node_id}-web")
    assert found["Config"].get("Healthcheck", {}).get("Test", ["NONE"]) == ["NONE"]
    # The next agent knows it too.
    following = await open_containers()
    known = await following.inspect(RunId("web-1"))
    assert known is not None
    assert known.readiness == readiness


async def test_an_engine_is_found_by_docker_host_over_tcp(engine: Engine, owner: Owner, tmp_path: Path) -> None:
    with engine_service(engine, port=free_port()) as address:
        finder = EngineFinder(tmp_path / "p", {"DOCKER_HOST": address}, clock=SystemClock())
        runtime = ContainerRuntime(tmp_path / "agent", clock=SystemClock(), owner=owner, connect=finder.connect)
        try:
            await runtime.open()
            await runtime.start(request("echo up; exec sleep 1000"))
            assert await wait_output(runtime, b"up\n") == b"up\n"
            assert await runtime.run_probe(RunId("web-1"), ("test", "-e", "/bin/sh"), timeout=20.0)
            assert (await runtime.stop(RunId("web-1"))).ended_by == "stop"
        finally:
            await runtime.close()
            await finder.close()
    assert not (tmp_path / "p").exists(), "no Podman service of its own was started"


async def test_an_agent_sees_only_what_is_its_own(
    open_containers: OpenContainers, engine: Engine, owner: Owner, tmp_path: Path
) -> None:
    runtime = await open_containers()
    await runtime.start(request())
    other = await open_containers(owner=Owner("elsewhere", owner.node_id), data_dir=tmp_path / "other")
    assert await other.list_runs() == ()
    # The name is the same, and so taken: nothing is removed for it.
    with pytest.raises(RunError, match="not this agent's") as raised:
        await other.start(request())
    assert (raised.value.failure, raised.value.transient) == (FailureReason.RUNTIME_ERROR, True)
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert info.phase is RunPhase.RUNNING
    name = f"shoal-{owner.node_id}-db"
    limits = ("--ulimit", "nofile=100", "--ulimit", "nproc=100")
    engine.podman("create", "--name", name, *limits, IMAGE, "sleep", "1000")
    with pytest.raises(RunError, match="not this agent's"):
        await runtime.start(request(run_id="db-1"))
    assert name in engine.containers()
    engine.podman("rm", name)


async def test_a_new_revision_is_tried_before_the_old_one_is_stopped(
    open_containers: OpenContainers, engine: Engine, owner: Owner
) -> None:
    runtime = await open_containers()
    port = free_port()
    ports = (PortMapping(container_port=80, host_port=port),)
    await runtime.start(request(ports=ports))
    for wrong, reason in (
        ({"image": "localhost/nothing:1", "pull_policy": "never"}, FailureReason.IMAGE_NOT_FOUND),
        ({"ulimits": (Ulimit(name="nonsense", soft=1, hard=1),)}, FailureReason.INVALID_SPEC),
    ):
        with pytest.raises(RunError) as raised:
            await runtime.prepare(request(run_id="web-2", ports=ports, **wrong))
        assert raised.value.failure is reason
    for kind, protocol in ((socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")):
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", 0))
            if protocol == "tcp":
                taken.listen()
            more = PortMapping(container_port=81, host_port=taken.getsockname()[1], protocol=protocol)
            with pytest.raises(RunError, match=f"port {more.host_port}/{protocol} of this node is in use") as raised:
                await runtime.prepare(request(run_id="web-2", ports=(*ports, more)))
            assert (raised.value.failure, raised.value.transient) == (FailureReason.NETWORK_ERROR, True)
    # Its own ports are no obstacle.
    await runtime.prepare(request(run_id="web-2", ports=ports))
    assert [name for name in engine.containers() if owner.node_id in name] == [f"shoal-{owner.node_id}-web"]
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert info.phase is RunPhase.RUNNING
    await runtime.stop(RunId("web-1"))
    assert (await runtime.start(request(run_id="web-2", ports=ports))).phase is RunPhase.RUNNING

"""The VM runtime when something is missing, wrong, full or taken, and when agents are killed, on real QEMUs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli.local.children import free_port
from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.workloads import CloudInit, FailureReason, PortMapping, VmBoot, VmDisk, VmNetwork, VmSpec
from shoal.runtimes.base import RunError, RunPhase
from shoal.runtimes.keeper import procfs
from shoal.runtimes.process import ProcessRuntime, find_run_pids, read_run_records
from shoal.runtimes.vm.command_line import tap_name
from shoal.runtimes.vm.runtime import VmRuntime
from shoal.testing.machines import kill_machine
from shoal.testing.suites.runtime import read_all, wait_ended, wait_output
from tests.e2e.runtimes.processes import is_alive, keeper_of, wait_until
from tests.e2e.runtimes.vms import MORE, READS, request, small_guest
from tests.services.disks import fill, small_disk

pytestmark = pytest.mark.e2e

OpenVms = Callable[..., Awaitable[VmRuntime]]


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "agent"
    yield directory
    kill_machine(directory)


@pytest.fixture
async def open_vms(data_dir: Path) -> AsyncIterator[OpenVms]:
    """Opens runtimes on the data directory, one after another."""
    opened: list[VmRuntime] = []

    async def open_one(**options: object) -> VmRuntime:
        runtime = VmRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"), **options)
        await runtime.open()
        opened.append(runtime)
        return runtime

    yield open_one
    for runtime in opened:
        await runtime.close()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A base image with something to recognize in its first block."""
    path = tmp_path / "base.raw"
    path.write_bytes(b"from the base image\n".ljust(1 << 20, b"\0"))
    return path


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def refused(runtime: VmRuntime, spec: VmSpec, **fields: object) -> RunError:
    with pytest.raises(RunError) as raised:
        await runtime.start(request(spec, **fields))
    assert await runtime.list_runs() == ()
    return raised.value


# ---------------------------------------------------------------------------------------------------------
# What cannot start


WRONG = {
    "there is no image": (VmSpec(os_image="/nowhere/a.qcow2"), FailureReason.IMAGE_NOT_FOUND),
    "No such file": (VmSpec(os_image="file:///no.img", os_image_sha256="0" * 64), FailureReason.IMAGE_NOT_FOUND),
    "not 0000": (VmSpec(os_image="file:///etc/passwd", os_image_sha256="0" * 64), FailureReason.IMAGE_PULL_FAILED),
    "cannot be fetched": (
        VmSpec(os_image="https://127.0.0.1:1/a", os_image_sha256="0" * 64),
        FailureReason.IMAGE_PULL_FAILED,
    ),
    "there is no file": (VmSpec(kernel="/nowhere/vmlinuz"), FailureReason.IMAGE_NOT_FOUND),
    "no storage pool": (VmSpec(disks=(VmDisk(pool_name="slow"),)), FailureReason.INVALID_SPEC),
    "no bridge": (VmSpec(networks=(VmNetwork(bridge="nobridge0"),)), FailureReason.NETWORK_ERROR),
    "no tap device": (VmSpec(networks=(VmNetwork(tap="notap0"),)), FailureReason.NETWORK_ERROR),
    "static_ip": (VmSpec(networks=(VmNetwork(static_ip="here"),)), FailureReason.INVALID_SPEC),
    "user-data is not YAML": (
        VmSpec(cloud_init=CloudInit(user_data="#cloud-config\na: [")),
        FailureReason.INVALID_SPEC,
    ),
    "not be larger": (
        VmSpec(cloud_init=CloudInit("x" * 200_000, vendor_data="y" * 100_000)),
        FailureReason.INVALID_SPEC,
    ),
}


@pytest.mark.parametrize("words", WRONG)
async def test_each_wrong_spec_has_its_reason(open_vms: OpenVms, words: str) -> None:
    spec, failure = WRONG[words]
    error = await refused(await open_vms(), replace(spec, acceleration="tcg"))
    assert words in error.message
    assert error.failure is failure


async def test_an_image_that_refers_to_another_file_is_refused(open_vms: OpenVms, image: Path, tmp_path: Path) -> None:
    """It could name any file of the node."""
    path = tmp_path / "refers.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", image, "-F", "raw", path], check=True)
    error = await refused(await open_vms(), VmSpec(os_image=str(path), acceleration="tcg"))
    assert "is no base image" in error.message
    assert error.failure is FailureReason.INVALID_SPEC


async def test_a_port_that_is_taken_is_a_network_error(open_vms: OpenVms) -> None:
    runtime = await open_vms()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = PortMapping(container_port=22, host_port=taken.getsockname()[1])
        error = await refused(runtime, small_guest(networks=(VmNetwork(ports=(port,)),)))
    assert (error.failure, error.transient) == (FailureReason.NETWORK_ERROR, True)
    assert "Could not set up host forwarding rule" in error.message


async def test_without_qemu_nothing_starts_and_the_runtime_says_so(open_vms: OpenVms) -> None:
    runtime = await open_vms(binary="qemu-system-none")
    error = await refused(runtime, VmSpec(acceleration="tcg"))
    assert (error.failure, "not installed" in error.message) == (FailureReason.RUNTIME_ERROR, True)
    assert await runtime.health() == "unhealthy: qemu-system-none is not installed"


async def test_kvm_is_not_used_where_nothing_boots_with_it(open_vms: OpenVms, tmp_path: Path) -> None:
    """A QEMU that hangs, as it does with a KVM that opens and does not run. The result is known after a restart."""
    stub = tmp_path / "qemu-hangs"
    stub.write_text(f"#!/bin/sh\necho started >>{tmp_path}/tests\nexec sleep 1000\n")
    stub.chmod(0o755)
    for _ in range(2):
        runtime = await open_vms(binary=str(stub))
        assert not await runtime._acceleration.works()
    assert await runtime._acceleration.choose("auto") == "tcg"
    with pytest.raises(RunError, match="KVM does not work"):
        await runtime._acceleration.choose("kvm")
    expected = ["started"] if os.access("/dev/kvm", os.R_OK | os.W_OK) else []
    assert ((tmp_path / "tests").read_text().split() if expected else []) == expected


async def test_a_full_disk_is_a_storage_error(data_dir: Path, open_vms: OpenVms, tmp_path: Path) -> None:
    with small_disk(tmp_path / "pool", megabytes=1) as pool:
        runtime = await open_vms(pools={"small": pool})
        fill(pool / "filling")
        spec = small_guest(disks=(VmDisk(pool_name="small", size_gb=1),))
        error = await refused(runtime, spec)
        assert (error.failure, error.transient) == (FailureReason.STORAGE_ERROR, True)
        assert list(pool.rglob("*.part")) == []


# ---------------------------------------------------------------------------------------------------------
# Disks

WRITE = (
    "dd if=/dev/vda bs=20 count=1 2>/dev/null; echo written by {0} | dd of=/dev/vda conv=fsync 2>/dev/null; "
    "echo done; cat /sys/block/vd*/size; cat /sys/block/vd*/ro"
)


async def test_disks_survive_retries_and_updates_and_go_with_their_workload(
    open_vms: OpenVms, image: Path, tmp_path: Path
) -> None:
    pool = tmp_path / "pool"
    runtime = await open_vms(pools={"fast": pool})
    root = VmDisk(image=f"file://{image}", sha256=sha256_of(image), size_gb=1)
    data, plain = VmDisk(pool_name="fast", size_gb=1), VmDisk(size_gb=1, format="raw")
    cd = VmDisk(image=str(image), format="iso")

    async def run(name: str, **fields: object) -> bytes:
        spec = small_guest(WRITE.format(name), **fields)
        await runtime.start(request(spec, run_id=f"web-{name}"))
        ended = await wait_ended(runtime, f"web-{name}")
        await runtime.forget(RunId(f"web-{name}"))
        return ended.last_output.encode()

    gb = "2097152"
    first = (await run("first", disks=(root, data, plain, cd))).decode().split("\n")
    assert first[0] == "from the base image"
    assert first[1] == "done"
    assert first[2:5] == [gb, gb, gb]
    assert first[7:11] == ["0", "0", "0", "1"]
    # The base is as it was; the cache may drop it; the disk grows with an update.
    assert image.read_bytes().startswith(b"from the base image")
    for cached in (runtime._files.data_dir / "vm/images").iterdir():
        cached.unlink()
    grown = (await run("second", disks=(replace(root, size_gb=2), data, plain, cd))).decode().split("\n")
    assert grown[0] == "written by first"
    assert grown[3] == str(2 * int(gb))
    with pytest.raises(RunError, match="cannot shrink"):
        await runtime.start(request(small_guest(disks=(replace(root, size_gb=1), data)), run_id="web-third"))
    # Deleted with the policy Retain they stay, deleted with Delete they go.
    await runtime.forget_workload(WorkloadId("web"), delete_data=False)
    assert {path.name for path in pool.rglob("*.qcow2")} == {"disk1.qcow2"}
    await runtime.forget_workload(WorkloadId("web"), delete_data=True)
    assert [*pool.rglob("*.qcow2"), *(runtime._files.data_dir / "vm/disks").iterdir()] == []


#: Says what is on each disk, by its serial number, and writes the number onto a blank one.
LOOK = (
    "for disk in vda vdb vdc vdd; do test -e /sys/block/$disk/serial || continue; "
    "serial=$(cat /sys/block/$disk/serial); "
    'test "$serial" = cidata && continue; '
    'found=$(head -c 20 /dev/$disk | tr -d "\\000"); echo "$serial has $found"; '
    'test -n "$found" || { echo "$serial" | dd of=/dev/$disk conv=fsync 2>/dev/null; }; done'
)


async def test_disks_keep_their_data_in_every_order(open_vms: OpenVms, tmp_path: Path) -> None:
    pools = {name: tmp_path / name for name in ("data", "logs", "fast")}
    runtime = await open_vms(pools=pools)
    data, logs = VmDisk(size_gb=1, pool_name="data"), VmDisk(size_gb=1, pool_name="logs", format="raw")
    fast, named = VmDisk(size_gb=1, pool_name="fast"), VmDisk(size_gb=1, name="scratch")
    numbers = iter(range(1, 100))

    async def found(*disks: VmDisk) -> list[str]:
        run_id = f"web-{next(numbers)}"
        await runtime.prepare(request(small_guest(LOOK, disks=disks), run_id=run_id))
        await runtime.start(request(small_guest(LOOK, disks=disks), run_id=run_id))
        ended = await wait_ended(runtime, run_id)
        await runtime.forget(RunId(run_id))
        return [line for line in ended.last_output.splitlines() if " has" in line]

    assert await found(data, logs) == ["disk0 has ", "disk1 has "]
    # Another order, a new one in between, another format: each has its own data.
    after = (fast, replace(logs, format=""), named, data)
    expected = ["disk2 has ", "disk1 has disk1", "scratch has ", "disk0 has disk0"]
    assert await found(*after) == expected
    runtime = await open_vms(pools=pools)
    # What cannot be told is refused before the guest that runs is stopped.
    with pytest.raises(RunError, match="cannot be told") as raised:
        await runtime.prepare(request(small_guest(disks=(named, fast, replace(data, pool_name="")))))
    assert raised.value.failure is FailureReason.INVALID_SPEC
    third = (named, fast, replace(data, name="disk0"), logs)
    assert await found(*third) == [f"{each} has {each}" for each in ("scratch", "disk2", "disk0", "disk1")]


@pytest.mark.long
async def test_disks_of_an_earlier_version_keep_their_names(open_vms: OpenVms, tmp_path: Path) -> None:
    """They went by their position, and nothing was written down about them."""
    runtime = await open_vms(pools={"data": tmp_path / "data"})
    data, logs = VmDisk(size_gb=1, pool_name="data"), VmDisk(size_gb=1)
    for number, disks in enumerate(((data, logs), (data, logs), (logs, data)), 1):
        await runtime.start(request(small_guest(LOOK, disks=disks), run_id=f"web-{number}"))
        ended = await wait_ended(runtime, f"web-{number}")
        await runtime.forget(RunId(f"web-{number}"))
        if number == 1:
            written = list(tmp_path.rglob("disk?.json"))
            assert len(written) == 2
            for path in written:
                path.unlink()
    assert "disk1 has disk1\ndisk0 has disk0" in ended.last_output.replace("\r", "")


async def test_a_guest_whose_disk_is_full_waits_for_room(open_vms: OpenVms, tmp_path: Path) -> None:
    with small_disk(tmp_path / "pool", megabytes=4) as pool:
        runtime = await open_vms(pools={"small": pool})
        script = "echo up; dd if=/dev/zero of=/dev/vda bs=1M count=8 conv=fsync 2>/dev/null; echo written"
        spec = small_guest(script, disks=(VmDisk(pool_name="small", size_gb=1),))
        await runtime.start(request(spec))
        async with asyncio.timeout(60):
            while not runtime.conditions():
                await runtime.usage(RunId("web-1"))
                await asyncio.sleep(0.1)
        assert "web" in next(iter(runtime.conditions().values()))
        subprocess.run(["mount", "-o", "remount,size=32m", str(pool)], check=True)
        async with asyncio.timeout(60):
            while (await runtime.inspect(RunId("web-1"))).phase is RunPhase.RUNNING:
                await runtime.usage(RunId("web-1"))
                await asyncio.sleep(0.1)
        assert b"written" in await read_all(runtime)
        assert runtime.conditions() == {}


# ---------------------------------------------------------------------------------------------------------
# Booting and networks


async def test_a_guest_has_booted_when_every_sign_was_seen(open_vms: OpenVms) -> None:
    port = free_port()
    runtime = await open_vms()
    spec = small_guest(
        "# needs: network\necho the console is up; nc -ll -p 80 -e echo hello & exec sleep 1000",
        networks=(VmNetwork(ports=(PortMapping(container_port=80, name="http"),)),),
        boot=VmBoot(console=r"console is \w+$", tcp_port=80),
    )
    await runtime.start(request(spec, ports={"http": port}))
    # QEMU accepts at once what the guest does not: that is no sign.
    assert not await runtime.has_booted(RunId("web-1"))
    assert (await runtime.has_booted(RunId("nobody"))) is False
    again = await open_vms()
    async with asyncio.timeout(60):
        while not await again.has_booted(RunId("web-1")):
            await asyncio.sleep(0.1)
    assert b"the console is up" in await read_all(runtime)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.readline() == b"hello\n"
    writer.close()


#: Asks for an address on each interface, and says which one it got.
LEASES = (
    "# needs: network\nfor card in $(ls /sys/class/net); do test $card = lo && continue; ip link set $card up; "
    "lease=$(udhcpc -n -q -f -i $card 2>&1 | sed -n 's/.*lease of \\([0-9.]*\\) .*/\\1/p'); "
    'echo "$(cat /sys/class/net/$card/address) has $lease"; done'
)


async def test_interfaces_keep_their_addresses_in_every_order(open_vms: OpenVms) -> None:
    runtime = await open_vms()
    plain, fixed = VmNetwork(), VmNetwork(static_ip="10.7.0.9/24")
    named = VmNetwork(name="data", static_ip="10.8.0.9/24")
    numbers = iter(range(1, 100))

    async def leases(*networks: VmNetwork) -> dict[str, str]:
        """The address that the guest was given on each interface, by its MAC address."""
        run_id = f"web-{next(numbers)}"
        await runtime.start(request(small_guest(LEASES, networks=networks), run_id=run_id))
        ended = await wait_ended(runtime, run_id)
        await runtime.forget(RunId(run_id))
        lines = [line.split() for line in ended.last_output.splitlines() if " has " in line]
        return {words[0]: words[2] for words in lines}

    # Persys clients name a network where we expect a bridge: this is their default one.
    before = await leases(replace(plain, bridge="default"), fixed)
    assert list(before.values()) == ["10.0.2.15", "10.7.0.9"]
    runtime = await open_vms()
    after = await leases(named, fixed, plain)
    assert before.items() < after.items()
    assert "10.8.0.9" in after.values()


#: Sends something through each interface.
SPEAKS = (
    "# needs: network\nfor card in eth0 eth1; do ip link set $card up; udhcpc -n -q -f -t 1 -T 1 -i $card; done; "
    "echo spoken; exec sleep 1000"
)


async def test_a_guest_on_a_bridge_and_on_a_tap_device_speaks_through_both(open_vms: OpenVms) -> None:
    """QEMU makes the tap device of the bridge, and removes it. The other one was there before, and stays."""
    bridge, tap = (f"shoal{kind}{os.getpid() % 100000}" for kind in ("b", "t"))
    interfaces = Path("/sys/class/net")
    made = subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no bridge can be made here: {made.stderr.decode()}")
    try:
        subprocess.run(["ip", "tuntap", "add", "dev", tap, "mode", "tap"], check=True)
        subprocess.run(["ip", "link", "set", tap, "up"], check=True)
        runtime = await open_vms()
        mac = "52:54:00:aa:bb:01"
        networks = (VmNetwork(bridge=bridge, mac=mac), VmNetwork(tap=tap))
        await runtime.start(request(small_guest(SPEAKS, networks=networks)))
        ports = interfaces / bridge / "brif"
        assert [each.name for each in ports.iterdir()] == [tap_name(mac)]
        await wait_output(runtime, b"spoken\n")
        received = [int((interfaces / name / "statistics/rx_bytes").read_text()) for name in (tap_name(mac), tap)]
        assert all(received)
        usage = await runtime.usage(RunId("web-1"))
        assert usage is not None
        assert usage.net_tx_bytes >= sum(received)
        assert usage.memory_bytes > 0
        await runtime.stop(RunId("web-1"))
        assert list(ports.iterdir()) == []
        assert (interfaces / tap).exists()
    finally:
        for name in (bridge, tap):
            subprocess.run(["ip", "link", "del", name], check=False)


# ---------------------------------------------------------------------------------------------------------
# Agents and keepers die


def start_agent(
    data_dir: Path,
    *,
    run_id: str = "web-1",
    seconds: float = 0,
    image: Path | None = None,
    successor: str = "",
    **env: str,
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.e2e.runtimes.vm_agent", data_dir, run_id, str(seconds)]
    command += [f"file://{image}", sha256_of(image)] if image is not None else ["", ""]
    command += [successor] if successor else []
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})


def guests_of(data_dir: Path) -> list[int]:
    """The pids of the QEMUs of a data directory."""
    return [pid for pid in find_run_pids(data_dir) if b"qemu" in (procfs.PROC / str(pid) / "cmdline").read_bytes()]


@pytest.mark.parametrize("point", ["vm.image.found", "vm.disk.made", "vm.start.before", "vm.start.after"])
async def test_an_agent_that_is_killed_while_it_starts_a_guest_leaves_one_or_none(
    data_dir: Path, open_vms: OpenVms, image: Path, point: str
) -> None:
    agent = start_agent(data_dir, image=image, SHOAL_FAULTS=f"{point}=kill")
    assert agent.stdout is not None
    assert (agent.stdout.read(), agent.wait()) == ("", -signal.SIGKILL)
    agent.stdout.close()
    runtime = await open_vms()
    before = guests_of(data_dir)
    assert len(before) == (point == "vm.start.after")
    spec = small_guest(disks=(VmDisk(image=f"file://{image}", sha256=sha256_of(image)),))
    info = await runtime.start(request(spec))
    assert info.phase is RunPhase.RUNNING
    assert guests_of(data_dir) == (before or [info.pid]) == [info.pid]
    if point in ("vm.disk.made", "vm.start.after"):  # with what the killed agent had made
        await wait_output(runtime, b"up\n")
    # Another run of the workload is refused while this one goes on.
    with pytest.raises(RunError, match="has not ended"):
        await runtime.start(request(spec, run_id="web-2"))


#: Where an agent is killed while one guest replaces another, and the run that is left then.
REPLACE_POINTS = [
    pytest.param("vm.disk.made=kill@2", None, marks=pytest.mark.long),
    pytest.param("vm.start.before=kill@2", None, marks=pytest.mark.long),
    pytest.param("vm.start.after=kill@2", "web-2"),
]


@pytest.mark.parametrize(("fault", "left"), REPLACE_POINTS)
async def test_an_agent_that_is_killed_while_it_replaces_a_guest_leaves_one_or_none(
    data_dir: Path, open_vms: OpenVms, image: Path, *, fault: str, left: str | None
) -> None:
    agent = start_agent(data_dir, image=image, successor="web-2", SHOAL_FAULTS=fault)
    assert agent.stdout is not None
    assert (agent.stdout.read(), agent.wait()) == ("", -signal.SIGKILL)
    agent.stdout.close()
    runtime = await open_vms()
    running = [run.run_id for run in await runtime.list_runs() if run.phase is RunPhase.RUNNING]
    assert running == ([left] if left else [])
    # The agent goes on with what it has not done yet.
    ended = await runtime.stop(RunId("web-1"))
    assert ended is not None
    assert ended.ended_by == "stop"
    root = VmDisk(image=f"file://{image}", sha256=sha256_of(image))
    info = await runtime.start(request(small_guest(READS, disks=(root, MORE)), run_id="web-2"))
    assert guests_of(data_dir) == [info.pid]
    await wait_output(runtime, b"from the first run\n")


async def test_a_guest_outlives_agent_and_keeper_and_is_one_of_its_kind(data_dir: Path, open_vms: OpenVms) -> None:
    agent = start_agent(data_dir)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "ready\n"
    agent.kill()
    agent.wait()
    agent.stdout.close()
    (record,) = read_run_records(data_dir)
    os.kill(keeper_of(data_dir), signal.SIGKILL)
    runtime = await open_vms()
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert (info.pid, info.phase) == (record.pid, RunPhase.RUNNING)
    await wait_output(runtime, b"up\n")
    processes = ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"))
    await processes.open()
    assert await processes.list_runs() == ()
    assert len(await runtime.list_runs()) == 1
    await processes.close()  # the keeper stays: the other runtime is connected
    assert await runtime.health() == "healthy"
    assert is_alive(record.pid)


@pytest.mark.parametrize("frozen", [pytest.param("agent", marks=pytest.mark.long), "agent+keeper"])
async def test_an_at_most_one_guest_ends_at_its_deadline_whatever_is_stopped(data_dir: Path, frozen: str) -> None:
    agent = start_agent(data_dir, seconds=4.0)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "ready\n"
    (record,) = read_run_records(data_dir)
    pids = [agent.pid, keeper_of(data_dir)] if "keeper" in frozen else [agent.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        await wait_until(lambda: not is_alive(record.pid))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        agent.kill()
        agent.wait()
        agent.stdout.close()

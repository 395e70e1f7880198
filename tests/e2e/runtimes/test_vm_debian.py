"""A Debian guest with cloud-init, sshd and the guest agent shows what a VM spec does inside a guest. It boots once."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.cli.local.children import free_port
from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId, RunId
from shoal.model.execs import ExecEnd
from shoal.model.workloads import (
    CloudInit,
    ManagedVolume,
    PortMapping,
    StopPolicy,
    VmBoot,
    VmDisk,
    VmNetwork,
    VmSpec,
)
from shoal.runtimes.vm.runtime import VmRuntime
from shoal.testing.machines import kill_machine
from shoal.testing.suites.runtime import read_all, run_command
from tests.e2e.runtimes.vms import request
from tests.services.absence import do_without
from tests.services.guests import DEBIAN_ARGS, find_guests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(800)]

#: A cold machine with other tests beside it takes minutes for what takes one.
BOOT_SECONDS = 600
USER_DATA = """\
#cloud-config
disable_root: false
ssh_genkeytypes: [ed25519]
ssh_authorized_keys: [{key}]
mounts:
- [tmpfs, /scratch, tmpfs, "size=1m"]
runcmd:
- [sh, -c, "echo configured by $(hostname) >/run/configured"]
"""
VENDOR_DATA = """\
#cloud-config
write_files: [{path: /etc/vendor-word, content: from the vendor}]
"""


def make_key(folder: Path) -> str:
    """A key in `folder`, and its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    return (folder / "key.pub").read_text().strip()


async def run_in_guest(folder: Path, port: int, command: str) -> str:
    """What a command prints inside the guest, through ssh and a forwarded port."""
    options = [
        *("-i", str(folder / "key"), "-p", str(port), "-o", "BatchMode=yes", "-o", "ConnectTimeout=60"),
        *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
    ]
    process = await asyncio.create_subprocess_exec(
        *("ssh", *options, "root@127.0.0.1", command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await process.communicate()
    assert process.returncode == 0, (command, printed, errors)
    return printed.decode()


def debian(key: str) -> VmSpec:
    guests = find_guests()
    return VmSpec(
        vcpus=2,
        memory_mb=768,
        os_image=str(guests.debian_image),
        kernel=guests.kernel,
        initrd=guests.initrd,
        kernel_args=DEBIAN_ARGS,
        disks=(VmDisk(size_gb=2), VmDisk(size_gb=1, mount_point="/data", pool_name="fast")),
        managed_volumes=(
            ManagedVolume(name="kept", size_gb=1, mount_path="/kept"),
            ManagedVolume(name="papers", mount_path="/papers", read_only=True),
        ),
        networks=(
            VmNetwork(static_ip="10.0.2.77/24", ports=(PortMapping(container_port=22, name="ssh"),)),
            VmNetwork(dhcp=True, mac="52:54:00:00:00:02"),
        ),
        cloud_init=CloudInit(
            user_data=USER_DATA.format(key=key), meta_data="local-hostname: harbor", vendor_data=VENDOR_DATA
        ),
        boot=VmBoot(console="Cloud-init .* finished", tcp_port=22, guest_agent=True),
        stop=StopPolicy(grace=timedelta(seconds=120)),
    )


def make_volume(directory: Path, word: str) -> None:
    """What an earlier revision has left in a volume: a file in a file system."""
    content, raw = directory / "content", directory / "raw"
    content.mkdir()
    (content / "word").write_text(word)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", content, raw, "16M"], check=True)
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", raw, directory / "disk.qcow2"], check=True)


async def test_a_debian_guest_is_what_its_spec_says(tmp_path: Path) -> None:
    if shutil.which("ssh") is None:
        do_without("not installed: openssh-client")
    spec = debian(make_key(tmp_path))
    port = free_port()
    volumes = {name: str(tmp_path / name) for name in ("kept", "papers")}
    for path in volumes.values():
        Path(path).mkdir()
    make_volume(Path(volumes["papers"]), "written before\n")
    pool = tmp_path / "pool"
    runtime = VmRuntime(tmp_path / "agent", clock=SystemClock(), node_id=NodeId("n1"), pools={"fast": pool})
    await runtime.open()
    try:
        await runtime.start(request(spec, ports={"ssh": port}, volumes=volumes))
        await wait_booted(runtime)
        await check_inside(tmp_path, port)
        assert [path.name for path in pool.rglob("*.qcow2")] == ["disk1.qcow2"]
        await check_guest_agent(runtime)
        await check_usage(runtime)
        await check_power_down(runtime)
    finally:
        await runtime.close()
        kill_machine(tmp_path / "agent")


async def wait_booted(runtime: VmRuntime) -> None:
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            while not await runtime.has_booted(RunId("web-1")):
                assert (await runtime.inspect(RunId("web-1"))).exit is None
                await asyncio.sleep(0.5)
    except TimeoutError:
        pytest.fail((await read_all(runtime, tail_lines=40)).decode(errors="replace"))


async def check_inside(folder: Path, port: int) -> None:
    """Processors, memory, user-data, vendor-data, meta-data, the static address, the second interface, the disks."""
    command = (
        "cat /run/configured; cat /etc/vendor-word; echo; nproc; sed -n 's/MemTotal: *//p' /proc/meminfo; "
        "cat /papers/word; touch /papers/word 2>&1 | grep -o 'Read-only file system'; "
        "ip -4 -o addr show eth0; ip -4 -o addr show eth1; cat /sys/class/net/eth1/address; "
        "findmnt -n -o TARGET,FSTYPE /data; findmnt -n -o TARGET,FSTYPE /kept; findmnt -n -o TARGET,FSTYPE /scratch; "
        "cat /sys/block/vda/size; cat /run/cloud-init/instance-data.json"
    )
    printed = await run_in_guest(folder, port, command)
    first, vendor, processors, memory, *papers = printed.splitlines()[:6]
    assert (first, vendor, processors) == ("configured by harbor", "from the vendor", "2")
    assert 600 << 10 < int(memory.removesuffix(" kB")) < 768 << 10
    assert papers == ["written before", "Read-only file system"]
    lines = printed.splitlines()[6:]
    assert "10.0.2.77/24" in lines[0]
    assert "10.0.3.15/24" in lines[1]
    assert lines[2] == "52:54:00:00:00:02"
    assert [line.split() for line in lines[3:6]] == [["/data", "ext4"], ["/kept", "ext4"], ["/scratch", "tmpfs"]]
    assert lines[6] == str(2 * 2097152)
    data = json.loads("\n".join(lines[7:]))
    assert data["ds"]["meta_data"]["shoal"]["SHOAL_WORKLOAD_ID"] == "web"


async def check_guest_agent(runtime: VmRuntime) -> None:
    agent = runtime.guest_agent(RunId("web-1"))
    assert await agent.call("guest-get-host-name") == {"host-name": "harbor"}
    assert await run_command(runtime, "sh", "-c", "hostname; echo oops >&2; exit 7") == (
        b"harbor\n",
        b"oops\n",
        ExecEnd(code=7),
    )
    assert await run_command(runtime, "cat", given=b"typed") == (b"typed", b"", ExecEnd())


async def check_usage(runtime: VmRuntime) -> None:
    usage = await runtime.usage(RunId("web-1"))
    assert usage is not None
    assert usage.disk_read_bytes > 1 << 20
    assert usage.disk_write_bytes > 1 << 20
    assert usage.memory_bytes > 100 << 20


async def check_power_down(runtime: VmRuntime) -> None:
    ended = await runtime.stop(RunId("web-1"))
    assert ended is not None
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.signal, ended.ended_by) == (0, 0, "stop")
    assert "reboot: Power down" in ended.last_output


NETWORK_CONFIG = """\
version: 1
config:
- {type: physical, name: wire0, mac_address: "52:54:00:00:00:07", subnets: [{type: static, address: 10.0.2.99/24}]}
"""


@pytest.mark.long
async def test_a_network_config_of_the_user_replaces_ours(tmp_path: Path) -> None:
    """Nothing is forwarded to the address that it sets, so the guest agent is asked."""
    guests = find_guests()
    spec = VmSpec(
        vcpus=2,
        memory_mb=768,
        os_image=str(guests.debian_image),
        kernel=guests.kernel,
        initrd=guests.initrd,
        kernel_args=DEBIAN_ARGS,
        networks=(VmNetwork(mac="52:54:00:00:00:07", dhcp=True),),
        cloud_init=CloudInit(user_data="#cloud-config\n", network_config=NETWORK_CONFIG),
        boot=VmBoot(console="Cloud-init .* finished", guest_agent=True),
    )
    runtime = VmRuntime(tmp_path / "agent", clock=SystemClock(), node_id=NodeId("n1"))
    await runtime.open()
    try:
        await runtime.start(request(spec))
        await wait_booted(runtime)
        printed, _, end = await run_command(runtime, "ip", "-4", "-o", "addr", "show", "scope", "global")
        assert end == ExecEnd()
        assert [line.split()[1:4] for line in printed.decode().splitlines()] == [["wire0", "inet", "10.0.2.99/24"]]
    finally:
        await runtime.close()
        kill_machine(tmp_path / "agent")

"""VMs on a whole fleet: one that never boots, one that boots, is updated and removed, and one with a fetched image."""

import functools
import hashlib
from datetime import timedelta

import pytest
import pytest_asyncio

from shoal.cli.local.fleet import LocalFleet
from shoal.model.documents import read_document
from tests.e2e.fleet import drill
from tests.e2e.fleet.drill import start_doomed
from tests.services.downloads import serve_downloads
from tests.services.guests import KERNEL_ARGS, boot_disk, find_guests

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

#: A guest without KVM boots in seconds, and in a minute beside many others.
until_status, until_dead, until_gone = (
    functools.partial(wait, patience=100.0) for wait in (drill.until_status, drill.until_dead, drill.until_gone)
)

#: A disk of which a guest boots.
IMAGE = boot_disk("fetched\r\n")


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    with serve_downloads(tmp_path_factory.mktemp("certificates"), {"image": IMAGE}) as serving:
        yield serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory, downloads):
    """A fleet with one agent, which trusts the CAs of its machine: SSL_CERT_FILE names them here."""
    find_guests()
    fleet = LocalFleet(
        tmp_path_factory.mktemp("vms"),
        agents=1,
        cpu="4",
        memory="4096MB",
        lease=timedelta(seconds=20),
        heartbeat_interval=timedelta(milliseconds=300),
        secure=False,
        extra_env={"SSL_CERT_FILE": str(downloads.ca)},
        stop_workloads_on_exit=False,
        agent_args=["--runtimes", "vm"],
    )
    async with fleet:
        yield fleet


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control(fleet):
    async with fleet.client() as client:
        yield client


def vm(name, script, *, revision="", **fields):
    """A workload document for a small guest that runs a script."""
    guests = find_guests()
    return read_document(
        {
            "id": name,
            "revision": revision,
            "type": "vm",
            "resources": {"cpu_millicores": 1000, "memory_mb": 256},
            "vm": {
                "memory_mb": 128,
                "kernel": guests.kernel,
                "initrd": guests.initrd,
                "kernel_args": KERNEL_ARGS,
                "cloud_init": {"user_data": f"#!/bin/sh\n{script}\n"},
                "acceleration": "tcg",
                "stop": {"grace": "1s"},
                **fields,
            },
        }
    )


async def test_a_guest_that_never_boots_has_failed_as_such_with_its_console(control):
    boot = {"console": "never printed", "deadline": "6s"}
    # The kernel speaks from its first moment on.
    await control.apply(vm("stuck", "exec sleep 1000", boot=boot, kernel_args="console=ttyS0"))
    view = await until_status(control, "stuck", "Failed")
    assert view.failure_reason == "VM_BOOT_FAILED"
    assert "] " in view.run.last_output


async def test_a_guest_boots_is_updated_with_its_disks_and_removed_with_them_although_its_agent_is_killed(
    control, fleet
):
    boot = {"console": "^up$"}
    keeps = {
        "boot": boot,
        "disks": [{"size_gb": 1}],
        # The file system is the guest's: its directory on the node may be on any other.
        "managed_volumes": [{"name": "data", "size_gb": 1, "fs_type": "ext2", "retain_policy": "Delete"}],
        "retain_policy": "Delete",
    }
    look = "dd if=/dev/vda bs=6 count=1 2>/dev/null; echo; dd if=/dev/vdb bs=6 count=1 2>/dev/null; echo"
    write = "for disk in vda vdb; do echo $disk-1 | dd of=/dev/$disk conv=fsync 2>/dev/null; done"
    await control.apply(vm("web", f"{write}; echo up; exec sleep 1000", revision="1", **keeps))
    await until_status(control, "web", "Running", revision="1")
    await control.apply(vm("web", f"{look}; echo up; exec sleep 1000", revision="2", **keeps))
    await until_status(control, "web", "Running", revision="2")
    printed = b"".join([piece.data async for piece in control.logs("web")])
    assert b"vda-1\n\nvdb-1\n\nup\n" in printed
    (node,) = fleet.names
    kept = [*fleet.base_dir.glob("**/vm/disks/web/*.qcow2"), *fleet.base_dir.glob("**/volumes/local/web/data/*")]
    assert len(kept) == 2
    await fleet.kill_agent(node)
    await fleet.start_agent(node, env={"SHOAL_FAULTS": "vm.disks.removed=kill"})
    await control.delete("web")
    await until_dead(fleet, node)
    assert [path.exists() for path in kept] == [False, True]
    await start_doomed(fleet, node, "volume.removed=kill")
    await until_dead(fleet, node)
    assert [path.exists() for path in kept] == [False, False]
    await fleet.start_agent(node)
    await until_gone(control, "web")
    assert not list(fleet.base_dir.glob("**/volumes/records/web"))


def fetched_vm(name, url, sha256):
    """A workload document for a guest that boots from an image elsewhere."""
    return read_document(
        {
            "id": name,
            "type": "vm",
            "resources": {"cpu_millicores": 500, "memory_mb": 128},
            "vm": {
                "memory_mb": 64,
                "os_image": url,
                "os_image_sha256": sha256,
                "acceleration": "tcg",
                "boot": {"console": "^fetched"},
                "stop": {"grace": "5s"},
            },
        }
    )


async def test_an_image_is_fetched_over_https_and_checked(control, downloads):
    url, right, wrong = f"{downloads.url}/image", hashlib.sha256(IMAGE).hexdigest(), "0" * 64
    await control.apply(fetched_vm("right", url, right))
    await control.apply(fetched_vm("wrong", url, wrong))
    await control.apply(fetched_vm("missing", f"{url}-of-nobody", "1" * 64))
    await until_status(control, "right", "Running")
    failed = await until_status(control, "wrong", "Failed")
    assert failed.failure_reason == "IMAGE_PULL_FAILED"
    assert right in failed.reason.message
    assert wrong in failed.reason.message
    missing = await until_status(control, "missing", "Failed")
    assert missing.failure_reason == "IMAGE_NOT_FOUND"

"""VMs on a whole fleet: one that never boots, and one that boots, is updated and removed, on real QEMUs."""

import pytest

from shoal.model.documents import read_document
from tests.e2e.fleet.drill import until_gone, until_status
from tests.services.guests import KERNEL_ARGS, find_guests

pytestmark = pytest.mark.e2e


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


async def test_a_guest_that_never_boots_has_failed_as_such_with_its_console(fleet, control):
    boot = {"console": "never printed", "deadline": "10s"}
    # The kernel speaks from its first moment on.
    await control.apply(vm("stuck", "exec sleep 1000", boot=boot, kernel_args="console=ttyS0"))
    view = await until_status(control, "stuck", "Failed")
    assert view.failure_reason == "VM_BOOT_FAILED"
    assert "] " in view.run.last_output


async def test_a_guest_boots_is_updated_with_its_disk_and_removed(fleet, control):
    boot = {"console": "^up$"}
    disks = [{"size_gb": 1}]
    script = (
        "dd if=/dev/vda bs=6 count=1 2>/dev/null; echo; echo first | dd of=/dev/vda conv=fsync 2>/dev/null; echo up"
    )
    await control.apply(vm("web", f"{script}; exec sleep 1000", boot=boot, disks=disks, revision="1"))
    await until_status(control, "web", "Running", revision="1")
    again = vm("web", f"{script}; echo second; exec sleep 1000", boot=boot, disks=disks, revision="2")
    await control.apply(again)
    await until_status(control, "web", "Running", revision="2")
    printed = b"".join([piece.data async for piece in control.logs("web")])
    assert b"first\n\nup\nsecond\n" in printed
    await control.delete("web")
    await until_gone(control, "web")

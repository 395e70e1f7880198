"""Whether KVM works here. It is trusted only after something has booted with it: the device may open and then hang.

The test boots nothing but a boot sector of a few bytes that asks QEMU to exit. Its verdict is kept for the life of the
agent. Called by `shoal.runtimes.vm.runtime` before the first guest with the acceleration `auto`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

_TEST_SECONDS = 2.0
#: mov dx, 0x501 ; mov al, 0 ; out dx, al ; hlt, and the mark of a boot sector.
_BOOT_SECTOR = bytes.fromhex("ba0105b000eef4").ljust(510, b"\0") + b"\x55\xaa"
#: `isa-debug-exit` leaves with (value << 1) | 1.
_EXIT_STATUS = 1


async def find_accelerator(*, binary: str = "qemu-system-x86_64", device: Path = Path("/dev/kvm")) -> str:
    """`kvm` when a guest boots with it in a few seconds, else `tcg`."""
    if not os.access(device, os.R_OK | os.W_OK):
        return "tcg"
    return "kvm" if await boots("kvm", binary=binary) else "tcg"


async def boots(accelerator: str, *, binary: str, seconds: float = _TEST_SECONDS) -> bool:
    """Whether the test guest boots with an accelerator in time."""
    with tempfile.TemporaryDirectory(prefix="shoal-kvm-") as folder:
        sector = Path(folder) / "boot"
        await asyncio.to_thread(sector.write_bytes, _BOOT_SECTOR)
        process = await asyncio.create_subprocess_exec(
            binary,
            *("-accel", accelerator, "-m", "16", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-drive", f"file={sector},format=raw,if=ide"),
            *("-device", "isa-debug-exit,iobase=0x501,iosize=0x01"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(seconds):
                return await process.wait() == _EXIT_STATUS
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

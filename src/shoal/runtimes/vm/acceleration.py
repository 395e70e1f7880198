"""Whether KVM works here. It is trusted only after something has booted with it: the device may open and then hang.

The test boots nothing but a boot sector of a few bytes that asks QEMU to exit, with the processor that guests get: QEMU
may also abort with it. Its result is stored and holds until the machine boots again. Called by
`shoal.runtimes.vm.runtime` before the first guest with the acceleration `auto`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from shoal.core.disk.durable import replace_file
from shoal.core.host import boot_id
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.programs import QEMU

_TEST_SECONDS = 3.0
#: mov dx, 0x501 ; mov al, 0 ; out dx, al ; hlt, and the mark of a boot sector.
_BOOT_SECTOR = bytes.fromhex("ba0105b000eef4").ljust(510, b"\0") + b"\x55\xaa"
#: `isa-debug-exit` leaves with (value << 1) | 1.
_EXIT_STATUS = 1


class Acceleration:
    """Decides how guests are run, and remembers it in a file."""

    def __init__(self, path: Path, *, binary: str = QEMU, device: Path = Path("/dev/kvm")) -> None:
        self._path = path
        self._binary = binary
        self._device = device
        self._testing = asyncio.Lock()
        self._works: bool | None = None

    async def choose(self, wanted: str) -> str:
        """`kvm` or `tcg`, for `auto`, `kvm` or `tcg`. Raises `RunError` when KVM is required and does not work."""
        if wanted == "tcg" or (wanted != "kvm" and not await self.works()):
            return "tcg"
        if not await self.works():
            raise RunError(
                "KVM does not work on this node: a test guest did not boot with it",
                failure=FailureReason.RUNTIME_ERROR,
                hint="use the acceleration auto or tcg",
            )
        return "kvm"

    async def works(self) -> bool:
        """Whether a guest boots with KVM: tested once, known after a restart of the agent."""
        async with self._testing:
            if self._works is None:
                self._works = await asyncio.to_thread(self._read)
            if self._works is None:
                self._works = os.access(self._device, os.R_OK | os.W_OK) and await boots("kvm", binary=self._binary)
                await asyncio.to_thread(self._write, self._works)
            return self._works

    def _read(self) -> bool | None:
        try:
            found = json.loads(self._path.read_bytes())
            return bool(found["kvm"]) if found["boot_id"] == boot_id() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, works: bool) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"boot_id": boot_id(), "kvm": works}).encode())
        except OSError:
            return  # a full disk: it is tested again after the next restart


def processor(accelerator: str) -> str:
    """The processor of a guest: all that the accelerator can do."""
    return "host" if accelerator == "kvm" else "max"


async def boots(accelerator: str, *, binary: str = QEMU, seconds: float = _TEST_SECONDS) -> bool:
    """Whether the test guest boots with an accelerator in time."""
    with tempfile.TemporaryDirectory(prefix="shoal-kvm-") as folder:
        sector = Path(folder) / "boot"
        await asyncio.to_thread(sector.write_bytes, _BOOT_SECTOR)
        process = await asyncio.create_subprocess_exec(
            binary,
            *("-cpu", processor(accelerator)),
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

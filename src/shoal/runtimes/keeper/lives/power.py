"""The power button of a VM: asks QEMU, over a monitor socket of the keeper's own, to shut the guest down.

QEMU serves one client per monitor, so the agent has another socket. Called by `runs` when a VM is to end. A guest that
does not listen is killed after the grace period, as any run is.
"""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

from shoal.runtimes.keeper.files import connect

#: A guest that was still booting missed the first press.
PRESS_AGAIN = 1.0
_GREET, _PRESS = (json.dumps({"execute": name}).encode() + b"\n" for name in ("qmp_capabilities", "system_powerdown"))


class PowerButton:
    """The monitor of one VM."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._monitor: socket.socket | None = None

    def press(self) -> None:
        """Press it. Never waits for QEMU, which may be stopped; what it answers is not read."""
        with contextlib.suppress(OSError):  # it has ended, or is starting: there is another press, and then a kill
            if self._monitor is None:
                self._monitor = connect(self._path)
                self._monitor.send(_GREET)
            self._monitor.send(_PRESS)

    def release(self) -> None:
        """Let go of the monitor."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

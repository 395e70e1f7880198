"""The signs by which a guest has booted: a line of the console, an open port, the guest agent.

What to look for is stored beside the guest when it starts, so that a restarted agent goes on looking. Called by
`shoal.runtimes.vm.runtime`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shoal.core.errors import UnavailableError
from shoal.runtimes import log_files
from shoal.runtimes.log_files import LogPosition
from shoal.runtimes.vm import monitor
from shoal.runtimes.vm.guest_agent import GuestAgent

log = logging.getLogger(__name__)

#: An expression of a user may take very long on a long line. It runs in a process of its own, which can be ended.
_MATCH_SECONDS = 5.0
_MATCHER = (
    "import re, sys\n"
    "pattern = re.compile(sys.argv[1])\n"
    "lines = sys.stdin.buffer.read().decode(errors='replace').splitlines()\n"
    "sys.exit(0 if any(pattern.search(line[:4096]) for line in lines) else 1)\n"
)
_LONGEST_LINE = 4096


@dataclass(frozen=True, slots=True)
class BootSigns:
    """What shows that a guest has booted. Each sign that is given has to be seen."""

    console: str = ""
    #: The port of this machine that leads to the guest's.
    host_port: int = 0
    guest_agent: bool = False

    def to_json(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> BootSigns:
        """What was stored; no signs when nothing was, or nothing that can be read."""
        try:
            found = json.loads(path.read_bytes())
            return cls(str(found["console"]), int(found["host_port"]), bool(found["guest_agent"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()


@dataclass(slots=True)
class BootWatch:
    """What was seen so far of the boot of one run. A sign that was seen once counts."""

    signs: BootSigns
    #: Where the console is read on, and the unfinished line before that.
    position: LogPosition | None = None
    rest: bytes = b""
    seen: set[str] = field(default_factory=set)

    async def look(self, *, logs: Path, since_ms: int, monitor_socket: Path, agent: GuestAgent) -> bool:
        """Look for the signs that were not seen yet; whether all were seen."""
        if self.signs.console and "console" not in self.seen and await self._look_at_console(logs, since_ms):
            self.seen.add("console")
        if self.signs.host_port and "port" not in self.seen:
            try:
                if await monitor.accepts(monitor_socket, self.signs.host_port):
                    self.seen.add("port")
            except UnavailableError as error:
                log.debug("boot: %s", error)
        if self.signs.guest_agent and "agent" not in self.seen and await agent.answers():
            self.seen.add("agent")
        wanted = (("console", self.signs.console), ("port", self.signs.host_port), ("agent", self.signs.guest_agent))
        return all(name in self.seen for name, given in wanted if given)

    async def _look_at_console(self, logs: Path, since_ms: int) -> bool:
        fresh = await asyncio.to_thread(self._read, logs, since_ms)
        if not fresh:
            return False
        text = self.rest + fresh
        self.rest = text.rpartition(b"\n")[2][-_LONGEST_LINE:]
        return await matches(self.signs.console, text)

    def _read(self, logs: Path, since_ms: int) -> bytes:
        if self.position is None:
            self.position = log_files.find_since(logs, since_ms)
        texts: list[bytes] = []
        at_end = False
        while not at_end:
            entries, self.position, at_end = log_files.read_entries(logs, self.position)
            texts += [entry.text + (b"\n" if entry.ends_line else b"") for entry in entries if entry.stream == "stdout"]
        return b"".join(texts)


async def matches(pattern: str, text: bytes) -> bool:
    """Whether a line of a text has what a regular expression describes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _MATCHER, pattern),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_MATCH_SECONDS):
            await process.communicate(text)
    except TimeoutError:
        log.warning("the expression %r for the console takes too long", pattern)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode == 0

"""Kills an agent's keeper and everything it has started, all at once, as if the machine had died.

For tests of how the rest of a fleet reacts. The agent's own process is not included: the test that started it knows its
pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups


def machine_pids(data_dir: Path) -> list[int]:
    """The pids of an agent's keeper, first, and of every living process of its runs."""
    keeper = read_keeper_pid(data_dir)
    return ([] if keeper is None else [keeper]) + list(find_run_pids(data_dir))


def kill_machine(data_dir: Path) -> None:
    """Kill the keeper of a data directory and all that it runs. The keeper goes first, so that it notices nothing."""
    while pids := machine_pids(data_dir):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    remove_stray_groups(data_dir)

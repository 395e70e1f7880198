"""Programs of ours that are measured in processes of their own, some of them on one core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shoal.core.errors import UnavailableError

_TAIL = 1500


@contextmanager
def on_one_core() -> Iterator[None]:
    """What this thread starts meanwhile runs on one core, the last of those that there are."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def run_module(module: str, arguments: Sequence[Any] = (), *, within: float) -> Any:
    """Run one of our modules and return what it prints, which is one line of JSON."""
    command = [sys.executable, "-m", f"bench.dataflow.{module}", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=within)
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"{module} ended with {error.returncode}: {error.stderr[-_TAIL:]}") from None
    return json.loads(done.stdout)

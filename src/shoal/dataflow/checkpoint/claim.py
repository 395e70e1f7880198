"""Claims: a job runs once at a time. Two processes on one job's checkpoints would each commit what the other read.

The claim is a lock on a file beside the checkpoints. The kernel lets go of it when the process dies, however it dies,
so the next one never waits for a dead one. It holds on one host: checkpoints on an object store are not claimed, and
whoever starts a job there twice is stopped by its sinks' fencing only. Called by `shoal.dataflow.execution.engine`.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shoal.core import files
from shoal.core.errors import PreconditionError

_NAME = "running.lock"
_LONGEST_NAME = 32


def _is_suspended(process: str) -> bool:
    """Whether a process was stopped by a signal, as Ctrl-Z does; no where the system does not tell."""
    if not process.isdigit():
        return False
    try:
        said = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    # Its name is in brackets and may hold anything; the state is the first word behind it.
    return said.rpartition(")")[2].split()[:1] in (["T"], ["t"])


class JobClaim:
    """That this process runs a job, until it is let go."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let go. The file stays: whoever waits for its lock must find the same one."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def claim_job(directory: str, job: str) -> JobClaim | None:
    """Claim a job whose checkpoints are in a directory; None where that is not on this host.

    Raises `PreconditionError` when it is running already, here or in another process.
    """
    folder = files.join(directory, job)
    if "://" in folder:
        return None
    files.make_directory(folder)
    descriptor = os.open(Path(folder) / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(descriptor, _LONGEST_NAME, 0).decode(errors="replace")
        os.close(descriptor)
        text = f"job {job!r} runs already, in process {owner or 'unknown'}"
        hint = f"stop that one first, or start this one under another name or in another folder than {directory}"
        if _is_suspended(owner):
            text += ", which is suspended"
            hint = f"let it go on with `kill -CONT {owner}` (or `fg` in its shell), or end it with `kill -KILL {owner}`"
        raise PreconditionError(text, hint=hint) from None
    except BaseException:
        os.close(descriptor)
        raise
    return JobClaim(descriptor)

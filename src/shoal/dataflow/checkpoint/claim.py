"""Claims: a job runs once at a time. Two processes on one job's checkpoints would each commit what the other read.

The claim is a lock on a file beside the checkpoints. The kernel lets go of it when the process dies, however it dies,
so the next one never waits for a dead one. It holds on one host: checkpoints on an object store are not claimed, and
whoever starts a job there twice is stopped by its sinks' fencing only. Called by `shoal.dataflow.execution.engine`.
"""

from __future__ import annotations

from pathlib import Path

from shoal.core import files
from shoal.core.disk.locks import FileLock
from shoal.core.errors import PreconditionError

_NAME = "running.lock"


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


def claim_job(directory: str, job: str) -> FileLock | None:
    """Claim a job whose checkpoints are in a directory; None where that is not on this host.

    Raises `PreconditionError` when it is running already, here or in another process.
    """
    folder = files.join(directory, job)
    if "://" in folder:
        return None
    files.make_directory(folder)
    lock = FileLock(Path(folder) / _NAME)
    if lock.try_acquire():
        return lock
    owner = lock.read_note()
    text = f"job {job!r} runs already, in process {owner or 'unknown'}"
    hint = f"stop that one first, or start this one under another name or in another folder than {directory}"
    if _is_suspended(owner):
        text += ", which is suspended"
        hint = f"let it go on with `kill -CONT {owner}` (or `fg` in its shell), or end it with `kill -KILL {owner}`"
    raise PreconditionError(text, hint=hint)

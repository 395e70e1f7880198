"""Claims: a job runs once at a time, under an epoch that grows with every start and every recovery.

The epoch is the one number that fences: it is in the tokens of the exchange and the control link, in the names of state
files, and in the markers of sinks that the coordinator commits. On disk it is stored as `term`.

The claim is a lock on a file beside the checkpoints. The kernel lets go of it when the process dies, however it dies,
so the next one never waits for a dead one. An object store has no such lock: there the last coordinator to write its
token into the job's record owns the job, and every commit of another one is refused (`Claim.check`).

The record is `commits.json`: the incarnation of the job, the epoch, the checkpoint through which all sinks have
committed, and where the job was last rolled back to. Called by `shoal.dataflow.checkpoint.start`, `savepoints` and the
coordinator.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.core import files
from shoal.core.disk.locks import FileLock
from shoal.core.entropy import Entropy
from shoal.core.errors import ExhaustedError, NotFoundError, PreconditionError
from shoal.dataflow.checkpoint.records import Branch, check_seal, seal
from shoal.dataflow.errors import CheckpointError

log = logging.getLogger(__name__)

_LOCK = "running.lock"
_RECORD = "commits.json"
_FORMAT = 1
#: Incarnations are numbers from 1 to this, drawn by chance; 0 is that of jobs from before there were any.
MOST_INCARNATIONS = 2**23 - 1


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What a job's coordinator has written down of it."""

    incarnation: int
    epoch: int
    #: Every sink has committed every checkpoint up to this. None: no coordinator has written that down yet.
    through: int | None
    #: Which coordinator claimed it.
    token: str = ""
    #: What the job was last rolled back to, and the highest number of a checkpoint until then.
    base: int | None = None
    highest: int = 0

    @property
    def branch(self) -> Branch:
        """The checkpoints that count."""
        return Branch(self.incarnation, self.base, self.highest)


@dataclass(slots=True)
class Claimant:
    """One coordinator, which claims its job anew each time it starts or recovers it."""

    token: str
    #: Of its last claim; 0 before the first.
    epoch: int = 0


class JobRunsError(PreconditionError):
    """Another process runs the job."""


class Claim:
    """The right to run a job."""

    def __init__(self, path: str, job: str, record: JobRecord, lock: FileLock | None) -> None:
        self._path = path
        self._job = job
        self._record = record
        self._lock = lock

    @property
    def record(self) -> JobRecord:
        """The job's record, as this claim has written it."""
        return self._record

    def check(self) -> None:
        """Raise `PreconditionError` when another coordinator has claimed the job since. A lock cannot be lost.

        An older one that stood still may have written its record over this one when it woke: that is put right.
        """
        if self._lock is not None:
            return
        found = _read(self._path, self._job)
        if found is not None and found.epoch < self._record.epoch:
            log.warning(
                "job %s: a coordinator of epoch %d wrote over epoch %d", self._job, found.epoch, self.record.epoch
            )
            self._write(self._record)
        elif found is None or (found.epoch, found.token) != (self._record.epoch, self._record.token):
            raise _claimed_since(self._job, found, self._record.epoch)

    def roll_back(self, base: int, highest: int, *, incarnation: int | None = None) -> None:
        """The job goes back to a checkpoint, and those up to `highest` no longer count. Durable when this returns.

        With an incarnation it begins a new life, in which nothing was committed.
        """
        self.check()
        record = replace(self._record, base=base, highest=highest)
        self._write(record if incarnation is None else replace(record, incarnation=incarnation, through=0))

    def note_committed(self, checkpoint: int) -> None:
        """Every sink has committed this checkpoint and those before it. Durable when this returns."""
        if self._record.through is None or checkpoint > self._record.through:
            self.check()
            self._write(replace(self._record, through=checkpoint))

    def release(self) -> None:
        """Let go of the job."""
        if self._lock is not None:
            self._lock.release()

    def _write(self, record: JobRecord) -> None:
        content = {
            "format": _FORMAT,
            "job": self._job,
            "incarnation": record.incarnation,
            "term": record.epoch,
            "through": record.through,
            "token": record.token,
            "base": record.base,
            "highest": record.highest,
        }
        files.write_atomic(self._path, seal(content))
        self._record = record

    def take(self, *, is_known: bool) -> None:
        """Write the claim down. Called once, by `claim_job`. A job that has a record starts on a full disk, too.

        The lock keeps others out then; without one the record is all there is.
        """
        try:
            self._write(self._record)
        except ExhaustedError as error:
            if not is_known or self._lock is None:
                raise
            log.warning("job %s: epoch %d is not recorded: %s", self._job, self._record.epoch, error)


def claim_job(directory: str, job: str, entropy: Entropy, *, is_new: bool, claimant: Claimant | None = None) -> Claim:
    """Claim a job whose checkpoints are in a directory. `is_new` says that there are none.

    Raises `PreconditionError` when it is running already, here or in another process. A claimant that has claimed it
    before, and stood still perhaps, does not take it from one that has claimed it since.
    """
    claimant = claimant or Claimant(entropy.token())
    folder = files.join(directory, job)
    lock = None if "://" in folder else _lock(folder, directory, job)
    path = files.join(folder, _RECORD)
    try:
        found = record = _read(path, job)
        if record is None:
            record = JobRecord(draw_incarnation(entropy) if is_new else 0, 0, 0 if is_new else None)
        if claimant.epoch and lock is None and record.token != claimant.token:
            raise _claimed_since(job, found, claimant.epoch)
        claim = Claim(path, job, replace(record, epoch=record.epoch + 1, token=claimant.token), lock)
        claim.take(is_known=found is not None)
        claimant.epoch = claim.record.epoch
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    return claim


def _claimed_since(job: str, found: JobRecord | None, epoch: int) -> PreconditionError:
    newer = "no epoch" if found is None else f"a newer epoch, {found.epoch}"
    return PreconditionError(
        f"job {job!r} was claimed under {newer}; this coordinator has epoch {epoch}",
        hint="stop this one: another coordinator runs the job",
        job=job,
    )


def read_record(directory: str, job: str) -> JobRecord | None:
    """The record of a job, without a claim; None when no coordinator has written one."""
    return _read(files.join(directory, job, _RECORD), job)


def draw_incarnation(entropy: Entropy) -> int:
    """The number of a new life of a job."""
    return int(entropy.token(), 36) % MOST_INCARNATIONS + 1


def _lock(folder: str, directory: str, job: str) -> FileLock:
    files.make_directory(folder)
    lock = FileLock(Path(folder) / _LOCK)
    if lock.try_acquire():
        return lock
    owner = lock.read_note()
    text = f"job {job!r} runs already, in process {owner or 'unknown'}"
    hint = f"stop that one first, or start this one under another name or in another folder than {directory}"
    if _is_suspended(owner):
        text += ", which is suspended"
        hint = f"let it go on with `kill -CONT {owner}` (or `fg` in its shell), or end it with `kill -KILL {owner}`"
    raise JobRunsError(text, hint=hint)


def _is_suspended(process: str) -> bool:
    """Whether a process was stopped by a signal, as Ctrl-Z does; no where the system does not tell."""
    if not process.isdigit():
        return False
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    # Its name is in brackets and may hold anything; the state is the first word behind it.
    return status.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _read(path: str, job: str) -> JobRecord | None:
    try:
        content: Any = json.loads(files.read_bytes(path))
        found = (content["format"], content["job"])
        check_seal(content)
        record = JobRecord(content["incarnation"], content["term"], content["through"], content["token"])
        record = replace(record, base=content.get("base"), highest=content.get("highest", 0))
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", hint=_hint(path)) from error
    counts = (record.incarnation, record.epoch, record.through or 0, record.base or 0, record.highest)
    if found != (_FORMAT, job) or not all(_is_count(each) for each in counts) or not isinstance(record.token, str):
        raise CheckpointError(f"{path} is not the record of job {job!r} in format {_FORMAT}", hint=_hint(path))
    return record


def _hint(path: str) -> str:
    return f"remove {path}, and start the job with --from-checkpoint N --accept-duplicates"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

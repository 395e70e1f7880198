"""Savepoints: complete checkpoints that stay until a person removes them, most of them with a name.

They need no running job: everything is in the folder of the job's checkpoints. Called by `shoal savepoint` and
`shoal run`; by `shoal.dataflow.checkpoint.start`, which goes on from a name; and by the coordinator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.core import files
from shoal.core.entropy import Entropy
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, problem
from shoal.dataflow.checkpoint.claim import claim_job, read_record
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.errors import near

_NAME = re.compile(r"(?!\d+\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A checkpoint that is kept."""

    checkpoint: int
    #: Empty for one that was kept without a name.
    name: str
    place: str


class Savepoints:
    """The savepoints of one job."""

    def __init__(self, directory: str, job: str) -> None:
        self._directory = directory
        self._job = job
        self._storage = CheckpointStorage(directory, job)
        record = read_record(directory, job)
        if record is not None:
            self._storage.follow(record.branch)

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._job

    @property
    def has_job(self) -> bool:
        """Whether the job has ever run with checkpoints here."""
        return not self._storage.is_empty()

    def list(self) -> tuple[Savepoint, ...]:
        """All of them, oldest first."""
        base = files.join(self._directory, self._job)
        return tuple(
            Savepoint(number, name, files.join(base, f"{number:012d}"))
            for number, name in self._storage.savepoints().items()
        )

    def check(self, name: str) -> None:
        """Raise `InvalidError` for a name that is none, or is taken."""
        check_name(self._storage, name)

    def take(self, name: str) -> Savepoint:
        """Keep the newest complete checkpoint under this name; the job may run or not."""
        self.check(name)
        newest = self._storage.newest()
        if not newest:
            raise PreconditionError(
                f"job {self._job!r} has no complete checkpoint in {self._directory}",
                hint="jobs that end have checkpoints only with checkpoint_interval or exactly_once",
            )
        known = self._storage.savepoints().get(newest)
        if known:
            raise PreconditionError(f"checkpoint {newest} of job {self._job!r} is savepoint {known!r} already")
        return Savepoint(newest, name, self._storage.keep(newest, name))

    def delete(self, which: int | str) -> int:
        """Let a savepoint go, by its name or number: the job removes it with its next checkpoint. Returns its number.

        It stays as long as it is one of the newest checkpoints.
        """
        number = number_of_savepoint(self._storage, which) or 0
        if number not in self._storage.savepoints():
            raise InvalidError([problem("savepoint", which, f"is none of job {self._job!r}")])
        self._storage.release(number)
        return number

    def restore(self, which: int | str, entropy: Entropy) -> int:
        """Let the next start of a job that does not run go on from there, as a local run or on a fleet.

        What sinks have committed since then comes again. Raises `PreconditionError` for a job that runs.
        """
        number = number_of_savepoint(self._storage, which) or 0
        claim = claim_job(self._directory, self._job, entropy, is_new=False)
        try:
            self._storage.read(number)
            record = claim.record
            claim.roll_back(number, max(self._storage.highest(), record.highest, record.through or 0))
        except NotFoundError as error:
            raise InvalidError([problem("checkpoint", which, f"is none of job {self._job!r}")]) from error
        finally:
            claim.release()
        return number


def check_name(storage: CheckpointStorage, name: str) -> None:
    """Raise `InvalidError` for the name of a new savepoint that is none, or is taken."""
    if not _NAME.fullmatch(name):
        rule = "must begin with a letter or a digit, have letters, digits, '.', '_' and '-', and be no number"
        raise InvalidError([problem("savepoint", name, rule)])
    for number, taken in storage.savepoints().items():
        if taken == name:
            rule = f"is the name of checkpoint {number} of job {storage.job!r} already"
            raise InvalidError([problem("savepoint", name, rule)], hint="delete that one, or take another name")


def number_of_savepoint(storage: CheckpointStorage, which: int | str | None) -> int | None:
    """The number of a checkpoint that was asked for by number or by name. Raises `InvalidError` with what there is."""
    if not isinstance(which, str):
        return which
    named = {name: number for number, name in storage.savepoints().items() if name}
    if which not in named:
        rule = f"is no savepoint of job {storage.job!r}; {near(which, named, 'savepoints')}"
        raise InvalidError([problem("savepoint", which, rule)])
    return named[which]

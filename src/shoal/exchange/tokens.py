"""Tokens: who may connect to a job's channels. One token per job and epoch, signed with the job's key.

On a fleet the control plane gives the key to the coordinator for one term, and to its task hosts; elsewhere the
coordinator makes it and hands it to them. A `Gate` stands before each listener: it refuses tokens that the key did not
sign, such as one of an earlier term, of another job, and of another epoch. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from shoal.core.errors import DeniedError, InvalidError, UnauthenticatedError, problem
from shoal.exchange.errors import StaleEpochError

_MOST_JOB = 200
_LEAST_KEY = 16


@dataclass(frozen=True, slots=True)
class JobKey:
    """What signs the tokens of a job. Never shown."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < _LEAST_KEY:
            raise InvalidError([problem("key", None, f"must have at least {_LEAST_KEY} bytes")], what="exchange")

    def issue(self, job: str, epoch: int) -> str:
        """The token of a job's epoch, as text."""
        return f"{epoch}.{self._sign(job, epoch)}.{job}"

    def proof(self, job: str, epoch: int) -> str:
        """Shows that two sides have the same key, and is no token."""
        return hmac.new(self.secret, f"shoal-same-key\0{job}\0{epoch}".encode(), hashlib.sha256).hexdigest()

    def _sign(self, job: str, epoch: int) -> str:
        return hmac.new(self.secret, f"shoal-exchange\0{job}\0{epoch}".encode(), hashlib.sha256).hexdigest()

    def check(self, token: str) -> tuple[str, int]:
        """The job and the epoch of a token that this key signed. Raises `UnauthenticatedError` for any other."""
        epoch, _, rest = token.partition(".")
        signature, _, job = rest.partition(".")
        is_shaped = epoch.isascii() and epoch.isdecimal() and len(epoch) < 20 and 0 < len(job) <= _MOST_JOB
        if not is_shaped or not hmac.compare_digest(signature.encode(), self._sign(job, int(epoch)).encode()):
            raise UnauthenticatedError("the token of this peer was not signed with the job's key")
        return job, int(epoch)


@dataclass(frozen=True, slots=True)
class Gate:
    """Admits the peers of one job and epoch."""

    job: str
    epoch: int
    key: JobKey

    @property
    def token(self) -> str:
        """What this side shows when it connects."""
        return self.key.issue(self.job, self.epoch)

    def admit(self, token: str) -> None:
        """Raise unless the token is of this job and this epoch."""
        job, epoch = self.key.check(token)
        if job != self.job:
            raise DeniedError(f"this is job {self.job!r}, and the token is of job {job!r}")
        if epoch != self.epoch:
            raise StaleEpochError(job, offered=epoch, current=self.epoch)

"""Which `FailureReason` an engine error is, and whether trying again can help.

Decided by the HTTP status and Podman's `cause` where they say it. A failed pull is HTTP 200 with a sentence, and Docker
has no `cause`, so the rest is a table of sentences, each recorded from a real engine. A text that is not in the table
is RUNTIME_ERROR: a wrong guess would stop retries of what may work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.core.errors import DeadlineError, ShoalError, UnavailableError
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.container.api import EngineError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure is called, and whether trying again can help."""

    failure: FailureReason
    transient: bool


_UNKNOWN = Verdict(FailureReason.RUNTIME_ERROR, transient=True)
_SPEC = Verdict(FailureReason.INVALID_SPEC, transient=False)

#: By Podman's `cause`.
_CAUSES: dict[str, Verdict] = {
    "image not known": Verdict(FailureReason.IMAGE_NOT_FOUND, transient=False),
    "address already in use": Verdict(FailureReason.NETWORK_ERROR, transient=True),
    "no space left on device": Verdict(FailureReason.STORAGE_ERROR, transient=True),
    "no matching entries in passwd file": _SPEC,
    "no matching entries in group file": _SPEC,
    "OCI runtime attempted to invoke a command that was not found": _SPEC,
    "OCI permission denied": _SPEC,
    "normalizing name for compat API: invalid reference format": _SPEC,
}

#: Sentences of a pull, in this order: what names the registry comes before what names the image.
_PULL: tuple[tuple[re.Pattern[str], Verdict], ...] = tuple(
    (re.compile(pattern), verdict)
    for pattern, verdict in (
        (r"no space left on device", Verdict(FailureReason.STORAGE_ERROR, transient=True)),
        (r"invalid reference format", _SPEC),
        (r"manifest unknown|name unknown", Verdict(FailureReason.IMAGE_NOT_FOUND, transient=False)),
        (
            r"unauthorized|authentication required|no basic auth credentials|access.* denied",
            Verdict(FailureReason.IMAGE_PULL_FAILED, transient=False),
        ),
        (r"too many requests|toomanyrequests", Verdict(FailureReason.IMAGE_PULL_FAILED, transient=True)),
    )
)

#: Sentences of a create or a start.
_START: tuple[tuple[re.Pattern[str], Verdict], ...] = tuple(
    (re.compile(pattern), verdict)
    for pattern, verdict in (
        (r"no space left on device", Verdict(FailureReason.STORAGE_ERROR, transient=True)),
        (r"address already in use|port is already allocated", Verdict(FailureReason.NETWORK_ERROR, transient=True)),
        (r"unable to set memory limit to|Minimum memory limit", _SPEC),
        (r"unable to find user|unable to find group", _SPEC),
        (r"invalid reference format", _SPEC),
        (r"ulimit option .* failed to be parsed", _SPEC),
        (r"exec: .*(no such file or directory|executable file not found|permission denied)", _SPEC),
    )
)


def judge_pull(error: EngineError) -> Verdict:
    """What a failed pull is. One that nothing is known of failed on its way: it may work later."""
    return _match(error, _PULL) or Verdict(FailureReason.IMAGE_PULL_FAILED, transient=True)


def judge_start(error: EngineError) -> Verdict:
    """What a failed create or start is."""
    if error.status == 404 and "image" in error.message.lower():
        return Verdict(FailureReason.IMAGE_NOT_FOUND, transient=False)
    if error.status == 400:
        return _SPEC
    return _match(error, _START) or _UNKNOWN


def run_error(error: ShoalError, verdict: Verdict, *, what: str) -> RunError:
    """An engine error as the agent reports it."""
    return RunError(f"{what}: {error.message}", failure=verdict.failure, transient=verdict.transient)


def is_outage(error: ShoalError) -> bool:
    """Whether the engine could not be asked, so that the outcome of the call is not known."""
    return isinstance(error, UnavailableError | DeadlineError)


def _match(error: EngineError, table: tuple[tuple[re.Pattern[str], Verdict], ...]) -> Verdict | None:
    if error.cause in _CAUSES:
        return _CAUSES[error.cause]
    return next((verdict for pattern, verdict in table if pattern.search(error.message)), None)

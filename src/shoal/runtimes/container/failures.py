"""Which `FailureReason` an engine error is, and whether trying again can help.

Decided by Podman's `cause` where it says it. A failed pull is HTTP 200 with a sentence, and Docker has no `cause`, so
the rest is a table of sentences. Tests provoke each of them on the engines that it names (Podman 4.3 and Docker 20.10
so far). A text that is not in the table is RUNTIME_ERROR, whatever its HTTP status: a wrong guess would stop retries
of what may work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.core.errors import ShoalError
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.container.engine.api import EngineError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure is called, and whether trying again can help."""

    failure: FailureReason
    transient: bool


_UNKNOWN = Verdict(FailureReason.RUNTIME_ERROR, transient=True)
_SPEC = Verdict(FailureReason.INVALID_SPEC, transient=False)

_FULL = Verdict(FailureReason.STORAGE_ERROR, transient=True)
_NOT_FOUND = Verdict(FailureReason.IMAGE_NOT_FOUND, transient=False)
_LOGIN = Verdict(FailureReason.IMAGE_PULL_FAILED, transient=False)
#: The registry is away, overloaded, or cannot be trusted at the moment.
_REGISTRY = Verdict(FailureReason.IMAGE_PULL_FAILED, transient=True)
#: Of this node.
_TOO_LARGE = Verdict(FailureReason.INSUFFICIENT_RESOURCES, transient=False)
#: The address or port of this node.
_TAKEN = Verdict(FailureReason.NETWORK_ERROR, transient=True)


@dataclass(frozen=True, slots=True)
class Sentence:
    """Part of what engines say, and what it means."""

    pattern: str
    verdict: Verdict
    #: The engines that say it.
    engines: tuple[str, ...] = ("podman", "docker")


#: By Podman's `cause`.
CAUSES: dict[str, Verdict] = {
    "image not known": _NOT_FOUND,
    "address already in use": _TAKEN,
    "cannot assign requested address": _TAKEN,
    "no space left on device": _FULL,
    "no matching entries in passwd file": _SPEC,
    "no matching entries in group file": _SPEC,
    "OCI runtime attempted to invoke a command that was not found": _SPEC,
    "OCI permission denied": _SPEC,
}

#: Sentences of a pull.
PULL: tuple[Sentence, ...] = (
    Sentence(r"no space left on device", _FULL),
    Sentence(r"invalid reference format", _SPEC),
    Sentence(r"manifest unknown", _NOT_FOUND),
    Sentence(r"name unknown", _NOT_FOUND),
    Sentence(r"unauthorized", _LOGIN),
    Sentence(r"no basic auth credentials", _LOGIN, ("docker",)),
    Sentence(r"(?<!permission )denied\b", _LOGIN),
    Sentence(r"connection refused", _REGISTRY),
    Sentence(r"connection reset by peer", _REGISTRY),
    Sentence(r'/": EOF$', _REGISTRY),
    Sentence(r"no such host", _REGISTRY),
    Sentence(r"invalid status code from registry 5\d\d", _REGISTRY, ("podman",)),
    Sentence(r"received unexpected HTTP status: 5\d\d", _REGISTRY),
    Sentence(r"too many requests to registry", _REGISTRY, ("podman",)),
    Sentence(r"toomanyrequests: ", _REGISTRY, ("docker",)),
    Sentence(r"context deadline exceeded|Client\.Timeout exceeded", _REGISTRY, ("docker",)),
    Sentence(r"TLS handshake timeout", _REGISTRY, ("podman",)),
    Sentence(r"i/o timeout", _REGISTRY, ("podman",)),
    Sentence(r"tls: first record does not look like a TLS handshake", _REGISTRY, ("podman",)),
    Sentence(r"x509: ", _REGISTRY, ("podman",)),
)

#: Sentences of a create or a start.
START: tuple[Sentence, ...] = (
    Sentence(r"no space left on device", _FULL),
    Sentence(r"address already in use", _TAKEN),
    Sentence(r"port is already allocated", _TAKEN, ("docker",)),
    Sentence(r"cannot assign requested address", _TAKEN),
    Sentence(r"No such image", _NOT_FOUND, ("docker",)),
    Sentence(r"unable to set memory limit to", _SPEC, ("podman",)),
    Sentence(r"Minimum memory limit allowed is", _SPEC, ("docker",)),
    Sentence(r"Range of CPUs is from", _TOO_LARGE, ("docker",)),
    Sentence(r"no command or entrypoint provided", _SPEC, ("podman",)),
    Sentence(r"No command specified", _SPEC, ("docker",)),
    Sentence(r"[Dd]uplicate mount (destination|point)", _SPEC),
    Sentence(r"[Ii]nvalid signal: ", _SPEC),
    Sentence(r"(needs to|must) be an absolute path", _SPEC),
    Sentence(r"unable to find (user|group) ", _SPEC),
    Sentence(r"invalid reference format", _SPEC),
    Sentence(r"ulimit option .* failed to be parsed", _SPEC, ("podman",)),
    Sentence(r"wrong rlimit value", _SPEC, ("docker",)),
    Sentence(r"/\S* is not a directory|but is not a directory", _SPEC),
    Sentence(r"error mounting .*: not a directory", _SPEC),
    Sentence(r"exec: .*no such file or directory", _SPEC),
    Sentence(r"exec: .*executable file not found", _SPEC),
    Sentence(r"exec: .*permission denied", _SPEC),
)


def judge_pull(error: EngineError) -> Verdict:
    """What a failed pull is."""
    return _match(error, PULL)


def judge_start(error: EngineError) -> Verdict:
    """What a failed create or start is."""
    return _match(error, START)


def run_error(error: ShoalError, verdict: Verdict, *, what: str) -> RunError:
    """An engine error as the agent reports it."""
    return RunError(f"{what}: {error.message}", failure=verdict.failure, transient=verdict.transient)


def _match(error: EngineError, table: tuple[Sentence, ...]) -> Verdict:
    if error.cause in CAUSES:
        return CAUSES[error.cause]
    return next((each.verdict for each in table if re.search(each.pattern, error.message)), _UNKNOWN)

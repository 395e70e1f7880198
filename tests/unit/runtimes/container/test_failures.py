"""Which reason a sentence of an engine means. The sentences themselves are proven on real engines, in tests/e2e."""

from __future__ import annotations

import pytest

from shoal.model.workloads import FailureReason
from shoal.runtimes.container.engine.api import EngineError
from shoal.runtimes.container.failures import judge_pull, judge_start


@pytest.mark.parametrize(
    ("said", "reason", "transient"),
    [
        ("reading manifest 2 in a: manifest unknown", FailureReason.IMAGE_NOT_FOUND, False),
        ("unable to retrieve auth token: unauthorized", FailureReason.IMAGE_PULL_FAILED, False),
        ("no basic auth credentials", FailureReason.IMAGE_PULL_FAILED, False),
        ("dial tcp 127.0.0.1:1: connect: connection refused", FailureReason.IMAGE_PULL_FAILED, True),
        ("writing blob: write /filling: no space left on device", FailureReason.STORAGE_ERROR, True),
        ("a sentence that is in no table", FailureReason.RUNTIME_ERROR, True),
    ],
)
def test_a_failed_pull(said: str, reason: FailureReason, transient: bool) -> None:
    found = judge_pull(EngineError(said, status=200))
    assert (found.failure, found.transient) == (reason, transient)


@pytest.mark.parametrize(
    ("error", "reason", "transient"),
    [
        (EngineError("bind: address already in use", status=500), FailureReason.NETWORK_ERROR, True),
        (EngineError("port is already allocated", status=500), FailureReason.NETWORK_ERROR, True),
        (EngineError("x", status=500, cause="no matching entries in passwd file"), FailureReason.INVALID_SPEC, False),
        (EngineError("a: image not known", status=404, cause="image not known"), FailureReason.IMAGE_NOT_FOUND, False),
        (EngineError("a sentence that is in no table", status=400), FailureReason.RUNTIME_ERROR, True),
        (EngineError("no such network for the image", status=404), FailureReason.RUNTIME_ERROR, True),
        (EngineError("a sentence that is in no table", status=500, cause="other"), FailureReason.RUNTIME_ERROR, True),
    ],
)
def test_a_failed_start(error: EngineError, reason: FailureReason, transient: bool) -> None:
    found = judge_start(error)
    assert (found.failure, found.transient) == (reason, transient)

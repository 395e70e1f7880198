"""What the end of a compose command's output is taken for. The lines are those of real commands."""

from __future__ import annotations

import pytest

from shoal.model.workloads import FailureReason
from shoal.runtimes.compose.command import ComposeError
from shoal.runtimes.compose.refusals import build_error, start_error
from shoal.runtimes.container.engine.api import EngineApi

PORT = "cannot listen on the TCP port: listen tcp4 :34837: bind: address already in use"


@pytest.mark.parametrize(
    ("output", "failure"),
    [
        (f'0729b4c4\nError: unable to start container "0729b4c4": {PORT}', FailureReason.NETWORK_ERROR),
        (
            "Error response from daemon: Bind for 0.0.0.0:1 failed: port is already allocated",
            FailureReason.NETWORK_ERROR,
        ),
        ("ERROR: for web  Cannot start service web: port is already allocated", FailureReason.NETWORK_ERROR),
        ('exec: "tool": permission denied\nError: it ended', FailureReason.RUNTIME_ERROR),
    ],
)
async def test_only_errors_of_the_engine_are_judged(output: str, failure: FailureReason) -> None:
    api = EngineApi("unix:///nowhere")
    found = await start_error(ComposeError(output), api, project="p", labels={})
    await api.close()
    assert (found.failure, found.transient) == (failure, True)
    assert output in found.message


@pytest.mark.parametrize(
    ("output", "failure"),
    [
        (
            "STEP 2/2: RUN run-it\n/bin/sh: exec: run-it: permission denied\n"
            'Error: building at STEP "RUN exec: x permission denied": while running runtime: exit status 126',
            FailureReason.RUNTIME_ERROR,
        ),
        ("cp: no space left on device, they say\nError: exit status 1", FailureReason.RUNTIME_ERROR),
        ("Error: committing container: write /layer.tar: no space left on device", FailureReason.STORAGE_ERROR),
    ],
)
def test_what_a_build_prints_is_no_error_of_the_spec(output: str, failure: FailureReason) -> None:
    found = build_error(ComposeError(output))
    assert (found.failure, found.transient) == (failure, True)

"""What QEMU printed, as a reason."""

from __future__ import annotations

import pytest

from shoal.model.workloads import FailureReason
from shoal.runtimes.vm.failures import start_failure

Q = "qemu-system-x86_64: "


@pytest.mark.parametrize(
    ("printed", "failure", "transient"),
    [
        (
            f"{Q}-netdev user,id=n,hostfwd=tcp::1-:1: Could not set up host forwarding rule 'tcp::1-:1'",
            FailureReason.NETWORK_ERROR,
            True,
        ),
        (f'{Q}-drive file=a: Failed to get "write" lock\nIs another process using', FailureReason.STORAGE_ERROR, True),
        (f"{Q}cannot set up guest memory 'pc.ram': Cannot allocate memory", FailureReason.INSUFFICIENT_RESOURCES, True),
        ("qemu: could not open kernel file '/k': No such file or directory", FailureReason.IMAGE_NOT_FOUND, False),
        (f"{Q}-drive file=/a: Could not open '/a': No such file or directory", FailureReason.STORAGE_ERROR, False),
        (f"{Q}Invalid SMP CPUs 300. The max CPUs supported", FailureReason.INVALID_SPEC, False),
        ("something else", FailureReason.RUNTIME_ERROR, True),
        ("", FailureReason.RUNTIME_ERROR, True),
    ],
)
def test_a_sentence_has_its_reason(printed: str, failure: FailureReason, transient: bool) -> None:
    error = start_failure(printed)
    assert (error.failure, error.transient) == (failure, transient)
    assert error.message

"""Why QEMU did not start, from what it printed.

QEMU gives nothing but text and the exit status 1. A test provokes each sentence on a real QEMU (7.2 so far). Unknown
text is RUNTIME_ERROR, and tried again. Called by `shoal.runtimes.vm.runtime`.
"""

from __future__ import annotations

import re

from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError

#: An expression, the reason, and whether another try may help.
SENTENCES: tuple[tuple[str, FailureReason, bool], ...] = (
    (r"Could not set up host forwarding rule", FailureReason.NETWORK_ERROR, True),
    (r"could not configure /dev/net/tun", FailureReason.NETWORK_ERROR, True),
    (r"network script .* failed with status", FailureReason.NETWORK_ERROR, True),
    (r"Failed to get \"write\" lock", FailureReason.STORAGE_ERROR, True),
    (r"Failed to get shared \"write\" lock", FailureReason.STORAGE_ERROR, True),
    (r"cannot set up guest memory", FailureReason.INSUFFICIENT_RESOURCES, True),
    (r"could not open kernel file", FailureReason.IMAGE_NOT_FOUND, False),
    (r"could not load kernel", FailureReason.IMAGE_NOT_FOUND, False),
    (r"error reading initrd", FailureReason.IMAGE_NOT_FOUND, False),
    (r"initrd is too large", FailureReason.INVALID_SPEC, False),
    (r"Could not open '", FailureReason.STORAGE_ERROR, False),
    (r"Image is not in qcow2 format", FailureReason.STORAGE_ERROR, False),
    (r"Image is corrupt", FailureReason.STORAGE_ERROR, False),
    (r"Invalid SMP CPUs", FailureReason.INVALID_SPEC, False),
)
_LONGEST = 500


def start_failure(printed: str) -> RunError:
    """The error of a QEMU that ended before the guest ran."""
    words = printed.strip()[-_LONGEST:] or "QEMU ended without a word"
    for sentence, failure, transient in SENTENCES:
        if re.search(sentence, printed):
            return RunError(words, failure=failure, transient=transient)
    return RunError(words, failure=FailureReason.RUNTIME_ERROR, transient=True)

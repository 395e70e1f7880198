"""Why QEMU did not start, from what it printed. Each sentence was recorded from QEMU 7.2.

QEMU gives nothing but text and the exit status 1. Unknown text is RUNTIME_ERROR. Called by `shoal.runtimes.vm.runtime`.
"""

from __future__ import annotations

import re

from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError

#: An expression, the reason, and whether another try may help.
SENTENCES: tuple[tuple[str, FailureReason, bool], ...] = (
    (r"Could not set up host forwarding rule", FailureReason.NETWORK_ERROR, True),
    (r"could not configure /dev/net/tun|network script .* failed", FailureReason.NETWORK_ERROR, True),
    (r"Failed to get \"(write|shared \"write\"|consistent read)\" lock", FailureReason.STORAGE_ERROR, True),
    (r"No space left on device", FailureReason.STORAGE_ERROR, True),
    (r"cannot set up guest memory|Cannot allocate memory", FailureReason.INSUFFICIENT_RESOURCES, True),
    (r"could not (load|open) (kernel|initrd)|error reading initrd", FailureReason.IMAGE_NOT_FOUND, False),
    (r"Could not open|Image is not in|Image is corrupt", FailureReason.STORAGE_ERROR, False),
    (r"Invalid SMP CPUs|Number of SMP CPUs|Invalid RAM size", FailureReason.INVALID_SPEC, False),
)
_LONGEST = 500


def start_failure(printed: str) -> RunError:
    """The error of a QEMU that ended before the guest ran."""
    words = printed.strip()[-_LONGEST:] or "QEMU ended without a word"
    for sentence, failure, transient in SENTENCES:
        if re.search(sentence, printed):
            return RunError(words, failure=failure, transient=transient)
    return RunError(words, failure=FailureReason.RUNTIME_ERROR)

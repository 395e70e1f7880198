"""The key of a job's exchange for one term, as its processes keep it: given by the control plane, in a file of its own.

The control plane may be away when a process begins again in its place, so the key is kept beside the certificate of the
process, for it alone. Called by `coordinator` and `task_host`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.disk.private_files import read_private, write_private
from shoal.core.errors import ShoalError

log = logging.getLogger(__name__)

_FILE = "job.key"


@dataclass(frozen=True, slots=True)
class TermKey:
    """A key and its term; the term is 0 where the control plane gives none."""

    term: int = 0
    secret: bytes = field(default=b"", repr=False)


def read_key(folder: Path) -> TermKey | None:
    """What was kept; None when nothing was."""
    try:
        plain = json.loads(read_private(folder / _FILE))
        return TermKey(int(plain["term"]), bytes.fromhex(plain["key"]))
    except (ShoalError, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def keep_key(folder: Path, key: TermKey) -> None:
    """Keep it. A full disk costs a question to the control plane."""
    try:
        write_private(folder / _FILE, json.dumps({"term": key.term, "key": key.secret.hex()}).encode())
    except (ShoalError, OSError) as error:
        log.warning("the job's key is not kept: %s", error)

"""Opens a bundle where users' code runs: checks it, and puts its modules first in the search path of this process.

Called by task hosts and coordinators of jobs, never by the control plane or an agent: an import contract holds them to
it. Nothing of the bundle is imported here; that happens when a function of the plan is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from shoal.artifacts.bundles import MOST_BYTES, Bundle, check_versions, unpack_bundle
from shoal.artifacts.collecting import current_versions
from shoal.core.errors import ExhaustedError, NotFoundError

_PREFIX = "bundle-"


def open_bundle(path: Path, into: Path) -> Bundle:
    """Check the bundle in a file, write its modules below `into`, and let this process find them first.

    The same bundle is written once, whole or not at all, also when several open it. Raises `CorruptError` for what is
    no bundle, `PreconditionError` when Python or a key library is of another version here, with both of them,
    `NotFoundError` and `ExhaustedError`.
    """
    content = _read(path)
    bundle = unpack_bundle(content)
    check_versions(bundle.versions, current_versions())
    folder = into.absolute() / f"{_PREFIX}{hashlib.sha256(content).hexdigest()[:32]}"
    if not folder.is_dir():
        try:
            _write(bundle, folder)
        except OSError as error:
            raise ExhaustedError(f"the bundle cannot be unpacked to {into}: {error.strerror}") from error
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return bundle


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ExhaustedError(f"{path} is too large for a bundle", limit=MOST_BYTES)
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError("file", str(path)) from None


def _write(bundle: Bundle, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=folder.parent))
    try:
        for name, content in bundle.files.items():
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        partial.chmod(0o755)
        with contextlib.suppress(FileExistsError):
            partial.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise
    finally:
        if os.path.lexists(partial):
            shutil.rmtree(partial, ignore_errors=True)

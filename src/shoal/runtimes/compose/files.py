"""The files of a spec in the directory of a project. Called by `shoal.runtimes.compose.runtime`. Calls block."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shoal.core.disk.durable import replace_file
from shoal.model.workloads import FailureReason, FileSpec
from shoal.runtimes.base import RunError


def write_files(folder: Path, files: Iterable[tuple[FileSpec, bytes]]) -> None:
    """Write each file whole, below the project's directory. Raises `RunError`."""
    for file, content in files:
        path = folder / file.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RunError(
                f"the file {file.path!r} is not below the project's directory",
                failure=FailureReason.INVALID_SPEC,
                hint="use a relative path, and mount it where a service needs it",
            )
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(path, content, mode=file.mode)
        except OSError as error:
            raise RunError(
                f"the file {file.path!r} cannot be written: {error.strerror}",
                failure=FailureReason.STORAGE_ERROR,
                transient=True,
            ) from error

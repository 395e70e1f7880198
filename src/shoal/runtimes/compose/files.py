"""What is in the directory of a project besides its repository: the files of the spec, and data of its services.

Called by `shoal.runtimes.compose.runtime` and `source`. Calls block.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.core.disk.durable import replace_file
from shoal.model.workloads import FailureReason, FileSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.compose.project import Project


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


def with_kept_data(project: Project, folder: Path, files: Iterable[FileSpec]) -> Project:
    """A project whose services find again what they have written beside an earlier commit of its repository.

    Each commit has a directory of its own. A path that a service mounts, and that neither the repository nor the spec
    has, is data: it stays where it was first, and its mount has that place.
    """
    paths = [posixpath.normpath(file.path) for file in files]

    def place_of(source: str) -> str:
        path = posixpath.normpath(source)
        if source.startswith(("/", "~")) or path == "." or path in project.tracked:
            return source
        if any(each == path or each.startswith(f"{path}/") for each in paths):
            return source
        return str(_newest(folder, path) or folder / path)

    services = {
        name: {**service, "volumes": [_placed(mount, place_of) for mount in service["volumes"]]}
        if service.get("volumes")
        else service
        for name, service in project.content["services"].items()
    }
    return dataclasses.replace(project, content={**project.content, "services": services})


def _placed(mount: Any, place_of: Any) -> Any:
    if isinstance(mount, Mapping):
        is_bind = mount.get("type") == "bind" and mount.get("source")
        return {**mount, "source": place_of(str(mount["source"]))} if is_bind else mount
    source, found, rest = str(mount).partition(":")
    return f"{place_of(source)}:{rest}" if found and source.startswith(".") else mount


def _newest(folder: Path, path: str) -> Path | None:
    """Where a path is beside any commit; the last one to change of several. A link out of there is none."""
    found = []
    for each in folder.parent.iterdir() if folder.parent.is_dir() else ():
        real = os.path.realpath(each / path)
        if os.path.commonpath((real, os.path.realpath(each))) == os.path.realpath(each) and os.path.exists(real):  # noqa: PTH110
            found.append((os.stat(real).st_mtime_ns, each / path))  # noqa: PTH116
    return max(found)[1] if found else None

"""What is in the directory of a project besides its repository: the files of the spec, and data of its services.

Called by `shoal.runtimes.compose.runtime` and `source`. Calls block.
"""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.core.disk.durable import replace_file
from shoal.model.workloads import FailureReason, FileSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.compose.commits import add_file, without_listing
from shoal.runtimes.compose.project import Project

#: Beside the directories of the commits: what services have written, and a list of the paths that they mounted there.
DATA, _KNOWN = "data", "data.paths"


def write_files(folder: Path, files: Iterable[tuple[FileSpec, bytes]]) -> None:
    """Write each file whole, below the project's directory. Raises `RunError`."""
    for file, content in files:
        path = folder / file.path
        if not _is_below(path, folder):
            raise RunError(
                f"the file {file.path!r} is not below the project's directory",
                failure=FailureReason.INVALID_SPEC,
                hint="use a relative path, and mount it where a service needs it",
            )
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(path, content, mode=file.mode)
            add_file(folder, file.path)
        except OSError as error:
            raise RunError(
                f"the file {file.path!r} cannot be written: {error.strerror}",
                failure=FailureReason.STORAGE_ERROR,
                transient=True,
            ) from error


def with_kept_data(project: Project, folder: Path, files: Iterable[FileSpec]) -> Project:
    """A project whose services find again what they have written while an earlier commit of its repository ran.

    A path that a service mounts, and that neither the repository nor the spec has, is data. It lies beside the
    directories of the commits, in `data`. Raises `RunError` when the project has become the owner of a path with data.
    """
    names = project.tracked | {posixpath.normpath(file.path) for file in files}
    known = _read_known(folder.parent)
    mounted: set[str] = set()

    def place_of(source: str) -> str:
        path = posixpath.normpath(source)
        if source.startswith(("/", "~")) or path == "." or path.split("/")[0] == "..":
            return source
        if any(each == path or each.startswith(f"{path}/") for each in names):
            if path in known and _has_files(folder.parent / DATA / path):
                raise RunError(
                    f"services have written data to {source!r}, which is now a path of the repository or of files",
                    failure=FailureReason.INVALID_SPEC,
                    hint="give one of them another path",
                )
            return source
        mounted.add(path)
        return str(_place(folder, path))

    services = {
        name: {**service, "volumes": [_placed(mount, place_of) for mount in service["volumes"]]}
        if service.get("volumes")
        else service
        for name, service in project.content["services"].items()
    }
    if not mounted <= known:
        _write_known(folder.parent, known | mounted)
    return dataclasses.replace(project, content={**project.content, "services": services})


def _placed(mount: Any, place_of: Any) -> Any:
    if isinstance(mount, Mapping):
        is_bind = mount.get("type") == "bind" and mount.get("source")
        return {**mount, "source": place_of(str(mount["source"]))} if is_bind else mount
    source, found, rest = str(mount).partition(":")
    return f"{place_of(source)}:{rest}" if found and source.startswith(".") else mount


def _place(folder: Path, path: str) -> Path:
    """Where data is. Earlier versions kept it beside the commit that ran first, and it stays there."""
    earlier = [
        each / path
        for each in without_listing(folder.parent)
        if _is_below(each / path, each) and (each / path).exists()
    ]
    if earlier:
        return max(earlier, key=lambda each: each.stat().st_mtime_ns)
    place = folder.parent / DATA / path
    if not _is_below(place, folder.parent / DATA):
        raise RunError(
            f"the path {path!r} is a link out of the data of the project", failure=FailureReason.INVALID_SPEC
        )
    return place


def _is_below(path: Path, folder: Path) -> bool:
    """Whether links that a service has made do not lead out of there."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _has_files(place: Path) -> bool:
    return place.is_file() or any(files for _, _, files in os.walk(place))


def _read_known(base: Path) -> frozenset[str]:
    """The paths that have been data of this project."""
    try:
        return frozenset(str(each) for each in json.loads((base / _KNOWN).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return frozenset()


def _write_known(base: Path, paths: Iterable[str]) -> None:
    try:
        replace_file(base / _KNOWN, json.dumps(sorted(paths)).encode())
    except OSError as error:
        raise RunError(
            f"the paths with data cannot be written down: {error.strerror}",
            failure=FailureReason.STORAGE_ERROR,
            transient=True,
        ) from error

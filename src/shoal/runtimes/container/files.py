"""The files of a container's spec. Called by `shoal.runtimes.container.starting`.

They lie in a directory of the agent that is mounted read-only into the container; the paths of the spec are links to
them. So a file is replaced by one rename, at once and whole, while the container runs.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from shoal.core.disk.durable import replace_file
from shoal.model.workloads import FailureReason, FileSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.container.creating import FILES_PATH


def write_files(folder: Path, files: Sequence[tuple[FileSpec, bytes]]) -> None:
    """Write each file whole into the directory that is mounted. Blocks. Raises `RunError`."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.parent.chmod(0o700)  # other users of the node do not pass
        folder.chmod(0o755)  # it is mounted, and the user in the container may be anyone
        for index, (spec, content) in enumerate(files):
            replace_file(folder / str(index), content, mode=spec.mode)
    except OSError as error:
        raise RunError(
            f"the files of the container cannot be written: {error}",
            failure=FailureReason.STORAGE_ERROR,
            transient=True,
        ) from error


def links_archive(files: Sequence[tuple[FileSpec, bytes]]) -> bytes:
    """A tar archive of the links to the files, to be unpacked at the root of the container. Pure.

    It ends with its two empty blocks, without padding: Podman stops reading there, and calls a rest a broken pipe.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for index, (spec, _) in enumerate(files):
            link = tarfile.TarInfo(spec.path.lstrip("/"))
            link.type = tarfile.SYMTYPE
            link.linkname = f"{FILES_PATH}/{index}"
            link.mode = 0o777
            tar.addfile(link)
        end = archive.tell() + 2 * tarfile.BLOCKSIZE
    return archive.getvalue()[:end]

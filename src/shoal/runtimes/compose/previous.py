"""What each compose project was started with last, so that a failed update can return to it after an agent restart.

It has the values of secrets in it, so it is encrypted with a key of the agent. Each stored project has a name, which is
in the record of its run: an agent that is killed between the two finds the project that belongs to the record. Owned by
`shoal.runtimes.compose.runtime`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.disk.durable import replace_file
from shoal.core.errors import ShoalError
from shoal.core.ids import RunId
from shoal.model.workloads import FileSpec

if TYPE_CHECKING:
    # Loaded with the first project: most agents have none.
    from shoal.wire.trust.sealing import Sealer

log = logging.getLogger(__name__)

Files = tuple[tuple[FileSpec, bytes], ...]
_SUFFIX = ".project"
#: The name of a project that could not be stored.
_NOT_STORED = "none"


@dataclass(frozen=True, slots=True)
class PreviousProject:
    """A project as it went to the compose command, and the files of its spec."""

    content: dict[str, Any] = field(repr=False)
    files: Files = field(default=(), repr=False)


class PreviousProjects:
    """Stored projects by run. A failure to store one costs its rollback, never its start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sealer: Sealer | None = None

    async def keep(self, run_id: RunId, content: Mapping[str, Any], files: Files) -> str:
        """Store what a run was started with, beside what was stored before; its name for the record of the run."""
        try:
            return await asyncio.to_thread(self._keep, run_id, content, files)
        except (ShoalError, OSError) as error:
            log.warning("run %s: its project cannot be stored for a rollback: %s", run_id, error)
            return _NOT_STORED

    async def find(self, run_id: RunId, name: str) -> PreviousProject | None:
        """What a run was started with; None when that is not known."""
        try:
            return await asyncio.to_thread(self._find, run_id, name)
        except FileNotFoundError:
            return None
        except (ShoalError, OSError, ValueError, TypeError, KeyError) as error:
            log.warning("run %s: its stored project cannot be read: %s", run_id, error)
            return None

    async def drop_others(self, run_id: RunId, name: str) -> None:
        """Forget what was stored for a run before, once its record names this one."""
        await asyncio.to_thread(self._drop, run_id, self._path(run_id, name))

    async def drop(self, run_id: RunId) -> None:
        """Forget everything of a run."""
        await asyncio.to_thread(self._drop, run_id, None)

    def _drop(self, run_id: RunId, kept: Path | None) -> None:
        # No run id has the letter in front of the name.
        for path in (self._path(run_id, ""), *self._directory.glob(f"{run_id}@*{_SUFFIX}")):
            if path != kept:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _keep(self, run_id: RunId, content: Mapping[str, Any], files: Files) -> str:
        text = json.dumps(
            {
                "content": content,
                # Content of a file that the spec has in clear is in the bytes already.
                "files": [
                    [dataclasses.asdict(dataclasses.replace(file, content="")), base64.b64encode(data).decode("ascii")]
                    for file, data in files
                ],
            }
        )
        sealed = self._open_sealer().seal(text.encode(), purpose=_purpose(run_id))
        # Of the encrypted text: the hash of a secret could be guessed.
        name = hashlib.sha256(sealed).hexdigest()[:16]
        replace_file(self._path(run_id, name), sealed, mode=0o600)
        return name

    def _find(self, run_id: RunId, name: str) -> PreviousProject:
        text = self._open_sealer().open(self._path(run_id, name).read_bytes(), purpose=_purpose(run_id))
        stored = json.loads(text)
        files = tuple((FileSpec(**file), base64.b64decode(data)) for file, data in stored["files"])
        return PreviousProject(stored["content"], files)

    def _path(self, run_id: RunId, name: str) -> Path:
        # Records of earlier versions have no name.
        return self._directory / (f"{run_id}@{name}{_SUFFIX}" if name else f"{run_id}{_SUFFIX}")

    def _open_sealer(self) -> Sealer:
        if self._sealer is None:
            from shoal.wire.trust.sealing import Sealer, load_or_make_key

            self._sealer = Sealer(load_or_make_key(self._directory / "project.key"))
        return self._sealer


def _purpose(run_id: RunId) -> str:
    return f"the project of run {run_id!r}"

"""Model files: copies versions of a model from where a file distribution puts them to where a model server reads them.

The source has `{model}@{version}/{model}/{sub_model}/{version}/…`, complete once `{model}@{version}.write.done` is
there. While a version is read it has a `{model}@{version}.read.lock` beside it, so that the distribution keeps it. The
copy goes to `{receive}/{model}/{sub_model}/{version}` and appears there whole: it is made beside that directory
and renamed. Versions are numbers and compared as such.

`plan_copy` and `versions_to_remove` decide, `ModelFiles` acts. Calls block; the agent calls them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.disk.durable import sync_path
from shoal.core.errors import ExhaustedError, UnavailableError
from shoal.serving.models.configs import is_version

log = logging.getLogger(__name__)

WRITE_DONE = ".write.done"
READ_LOCK = ".read.lock"
#: The name of a copy that is being made.
TEMPORARY = "-temp"
KEPT_VERSIONS = 5

_MARKED = re.compile(r"(?P<model>.+)@(?P<version>[0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class ReceivedVersion:
    """A version that was copied."""

    version: int
    #: The directories that the model server reads.
    paths: tuple[Path, ...]


def find_versions(names: Iterable[str], model: str) -> list[int]:
    """The complete versions of a model among the files of the source, the lowest first."""
    found = set()
    for name in names:
        match = _MARKED.fullmatch(name.removesuffix(WRITE_DONE)) if name.endswith(WRITE_DONE) else None
        if match is not None and match["model"] == model:
            found.add(int(match["version"]))
    return sorted(found)


def plan_copy(complete: Sequence[int], present: int | None) -> int | None:
    """The version to copy: the newest, if it is newer than what is there; None when there is nothing to do."""
    newest = max(complete, default=None)
    if newest is None or (present is not None and newest <= present):
        return None
    return newest


def versions_to_remove(present: Iterable[int], keep: int = KEPT_VERSIONS) -> list[int]:
    """The versions beyond the newest `keep`, the oldest first."""
    ordered = sorted(set(present))
    return ordered[:-keep] if keep else ordered


class ModelFiles:
    """The files of one model.

    Args:
        model: its name.
        source: where versions appear.
        receive: where they are copied to.
        keep: how many versions stay.
    """

    def __init__(self, model: str, source: Path, receive: Path, *, keep: int = KEPT_VERSIONS) -> None:
        self.model = model
        self._source = source
        self._target = receive / model
        self._keep = keep

    def clear(self) -> None:
        """Remove what an earlier agent received, and the locks that it left. The versions may be of another model."""
        shutil.rmtree(self._target, ignore_errors=True)
        for name in self._source_names():
            match = _MARKED.fullmatch(name.removesuffix(READ_LOCK)) if name.endswith(READ_LOCK) else None
            if match is not None and match["model"] == self.model:
                with contextlib.suppress(OSError):
                    (self._source / name).unlink()

    def present(self) -> list[int]:
        """The versions that every sub model has, the lowest first."""
        versions = [self._versions_of(folder) for folder in self._sub_models()]
        return sorted(set.intersection(*versions)) if versions else []

    def copy_newest(self) -> ReceivedVersion | None:
        """Copy the newest version, if it is newer than what is there.

        Raises:
            UnavailableError: it cannot be read or written now.
            ExhaustedError: the disk is full.
        """
        version = plan_copy(find_versions(self._source_names(), self.model), max(self.present(), default=None))
        if version is None:
            return None
        with self._locked(version):
            return self._copy(version)

    def remove_old(self) -> list[int]:
        """Remove the versions beyond those that are kept; returns them."""
        present = set().union(*(self._versions_of(folder) for folder in self._sub_models()), set())
        old = versions_to_remove(present, self._keep)
        for folder in self._sub_models():
            for version in old:
                shutil.rmtree(folder / str(version), ignore_errors=True)
        return old

    def _copy(self, version: int) -> ReceivedVersion:
        origin = self._source / f"{self.model}@{version}" / self.model
        done = self._source / f"{self.model}@{version}{WRITE_DONE}"
        if not done.exists():  # it was removed before the lock was there
            raise UnavailableError(f"version {version} of model {self.model} was removed from {self._source}")
        copies: list[tuple[Path, Path]] = []
        try:
            for folder in sorted(each for each in origin.iterdir() if each.is_dir()):
                if (folder / str(version)).is_dir():
                    # One by one: those that were made are removed when a later one fails.
                    copies.append(self._make_copy(folder.name, folder / str(version), version))  # noqa: PERF401
            if not copies:
                raise UnavailableError(f"version {version} of model {self.model} in {self._source} has no files")
            # An entry that finds one sub model of a version finds them all: nothing is renamed before all are copied.
            for temporary, final in copies:
                if temporary != final:
                    temporary.rename(final)
                    sync_path(final.parent)
        except OSError as error:
            for temporary, final in copies:
                if temporary != final:
                    shutil.rmtree(temporary, ignore_errors=True)
            kind = ExhaustedError if error.errno in {errno.ENOSPC, errno.EDQUOT} else UnavailableError
            raise kind(f"version {version} of model {self.model} cannot be copied: {error}") from error
        return ReceivedVersion(version, tuple(final for _, final in copies))

    def _make_copy(self, sub_model: str, origin: Path, version: int) -> tuple[Path, Path]:
        """(the copy, where it belongs); both the same when it is there already."""
        final = self._target / sub_model / str(version)
        if final.exists():
            return final, final
        temporary = final.with_name(f"{final.name}{TEMPORARY}")
        shutil.rmtree(temporary, ignore_errors=True)  # of an agent that was killed
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copytree(origin, temporary)
        except shutil.Error as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise _first_cause(error) from error
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return temporary, final

    @contextlib.contextmanager
    def _locked(self, version: int) -> Iterator[None]:
        lock = self._source / f"{self.model}@{version}{READ_LOCK}"
        try:
            lock.touch()
        except OSError as error:
            raise UnavailableError(f"{lock} cannot be made: {error}") from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()

    def _source_names(self) -> list[str]:
        try:
            return [path.name for path in self._source.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnavailableError(f"{self._source} cannot be read: {error}") from error

    def _sub_models(self) -> list[Path]:
        try:
            return sorted(each for each in self._target.iterdir() if each.is_dir())
        except OSError:
            return []

    def _versions_of(self, folder: Path) -> set[int]:
        try:
            return {int(each.name) for each in folder.iterdir() if is_version(each.name)}
        except OSError:
            return set()


def _first_cause(error: shutil.Error) -> OSError:
    """The reason of a failed copy. The library keeps texts only, so a full disk is found by asking for its space."""
    first = error.args[0][0] if error.args and error.args[0] else ("", "", str(error))
    text = str(first[2])
    full = os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text
    return OSError(errno.ENOSPC if full else errno.EIO, text)

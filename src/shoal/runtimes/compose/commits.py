"""The directories of a repository's commits: `<workload>/<commit>`, each with a listing `<commit>.files` beside it.

The listing says what git and Shoal have put into the directory, so everything else was written by a service. A
directory that nothing uses is removed; one that a service has written into is kept for a while. Directories of earlier
versions have no listing and stay: data of services may be in them, mounted from there. Called by `source` and `files`.
Calls block.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import posixpath
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core import faults
from shoal.core.disk.durable import replace_file

log = logging.getLogger(__name__)

#: How many directories are kept that nothing uses: the last one as git made it, and the last ones with data.
KEPT, KEPT_WITH_DATA = 1, 4
_NAME = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_LISTING = ".files"
_DOOMED = ".doomed-"

#: Size and time of change of each file.
Listing = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Unused:
    """A directory that nothing uses."""

    commit: str
    used_at: int
    #: Whether a service has written into it.
    has_data: bool


def superfluous(unused: Iterable[Unused]) -> list[Unused]:
    """Those that go. Pure."""
    newest = sorted(unused, key=lambda each: each.used_at, reverse=True)
    clean = [each for each in newest if not each.has_data]
    return clean[KEPT:] + [each for each in newest if each.has_data][KEPT_WITH_DATA:]


def list_files(folder: Path, listed_in: Path) -> None:
    """Write the listing of a directory as it is now, before the directory gets its name."""
    _write(listed_in, dict(_files(folder)))


def listing_of(folder: Path) -> Path:
    """Where the listing of a commit's directory is."""
    return folder.with_name(folder.name + _LISTING)


def add_file(folder: Path, path: str) -> None:
    """Add a file to the listing of a directory. One without a listing stays so."""
    listing = listing_of(folder)
    if listing.exists():
        _write(listing, {**_read(listing), posixpath.normpath(path): _facts(folder / path)})


def note_use(folder: Path) -> None:
    """A commit is used now, again."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(listing_of(folder))


def without_listing(base: Path) -> Iterator[Path]:
    """The directories of earlier versions."""
    for each in base.iterdir() if base.is_dir() else ():
        if _NAME.fullmatch(each.name) and not listing_of(each).exists():
            yield each


def has_several(base: Path) -> bool:
    """Whether there are directories of several commits below `base`."""
    return len(list(base.glob(f"*{_LISTING}"))) > 1


def remove_superfluous(base: Path, paths_in_use: Collection[str]) -> None:
    """Remove directories of commits below `base` that hold none of these paths, until few enough are left.

    What was cut off is finished the next time: a directory loses its name first.
    """
    _remove_doomed(base)
    unused = []
    for listing in base.glob(f"*{_LISTING}"):
        folder = listing.with_name(listing.name.removesuffix(_LISTING))
        if not folder.is_dir():
            listing.unlink(missing_ok=True)
        elif not any(path == str(folder) or path.startswith(f"{folder}/") for path in paths_in_use):
            unused.append(Unused(folder.name, listing.stat().st_mtime_ns, _has_more(folder, _read(listing))))
    for each in superfluous(unused):
        if each.has_data:
            log.warning("%s: what services have written beside commit %s is removed", base.name, each.commit)
        folder = base / each.commit
        folder.rename(base / f"{_DOOMED}{each.commit}")
        faults.reach("compose.commit.doomed")
        listing_of(folder).unlink()
    _remove_doomed(base)


def _remove_doomed(base: Path) -> None:
    for each in base.glob(f"{_DOOMED}*"):
        shutil.rmtree(each)


def _has_more(folder: Path, listing: Listing) -> bool:
    return any(listing.get(path) != facts for path, facts in _files(folder))


def _files(folder: Path) -> Iterator[tuple[str, list[int]]]:
    directories = [""]
    while directories:
        below = directories.pop()
        with os.scandir(folder / below) as entries:
            found = list(entries)
        for each in found:
            path = f"{below}{each.name}"
            if each.is_dir(follow_symlinks=False):
                directories.append(f"{path}/")
            else:
                yield path, _facts(each)


def _facts(file: os.DirEntry[str] | Path) -> list[int]:
    stat = file.stat(follow_symlinks=False)
    return [stat.st_size, stat.st_mtime_ns]


def _read(listing: Path) -> Listing:
    """A listing; of a damaged one nothing, so that its directory counts as one with data."""
    try:
        content = json.loads(listing.read_bytes())
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _write(listing: Path, files: Listing) -> None:
    replace_file(listing, json.dumps(files).encode())

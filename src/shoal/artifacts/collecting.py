"""Makes a bundle from what a user named: finds the files of a module or a package without importing it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoal.artifacts.bundles import MOST_BYTES, MOST_ENTRIES, Bundle
from shoal.core.errors import ExhaustedError, InvalidError, NotFoundError, problem

#: Libraries whose version decides whether blobs can be read.
KEY_LIBRARIES = ("shoal", "pyarrow", "cloudpickle", "numpy")
_SKIPPED = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".pytest_cache"})


def current_versions() -> dict[str, str]:
    """The versions of Python and of the key libraries that are installed here."""
    found = {"python": platform.python_version()}
    for name in KEY_LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def collect_bundle(entry: str, search_path: Sequence[str], blobs: Mapping[str, bytes]) -> Bundle:
    """A bundle of the module or package of `entry`, such as `my_app:flow`, as found in the search path.

    Raises `InvalidError` for a name that is none and for links in a package, `NotFoundError` when it is not there.
    """
    module = entry.partition(":")[0]
    top = module.partition(".")[0]
    if not all(part.isidentifier() for part in module.split(".")):
        raise InvalidError([problem("entry", entry, "must be module:name")], what="bundle")
    for base in search_path:
        package, single = Path(base, top), Path(base, f"{top}.py")
        if package.is_dir():
            return Bundle(entry, dict(_files(Path(base), package)), blobs, current_versions())
        if single.is_file():
            return Bundle(entry, {single.name: _read(single)}, blobs, current_versions())
    raise NotFoundError("module", module)


def _files(base: Path, package: Path) -> Iterator[tuple[str, bytes]]:
    count = total = 0
    for directory, names, files in os.walk(package):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in sorted((*files, *names)):
            path = Path(directory, name)
            if path.is_symlink():
                raise InvalidError([problem("files", str(path), "must not be a link")], what="bundle")
            if name in names or name.endswith(".pyc"):
                continue
            content = _read(path)
            count, total = count + 1, total + len(content)
            if count > MOST_ENTRIES or total > MOST_BYTES:
                raise ExhaustedError(f"{package} is too large for a bundle", files=count, bytes=total)
            yield path.relative_to(base).as_posix(), content


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise InvalidError([problem("files", str(path), "must be a file")], what="bundle")
    if path.stat().st_size > MOST_BYTES:
        raise ExhaustedError(f"{path} is too large for a bundle", limit=MOST_BYTES)
    return path.read_bytes()

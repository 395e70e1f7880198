"""What each service of a project is made from, as one digest: an update replaces the services whose digest changed.

A definition alone does not tell: it names files of the project's directory, and configs and secrets of the project. A
commit of a repository has a directory of its own, so every service that takes something of the repository is replaced
with the next commit. What is in that directory and not in the repository, such as data that a service has written
there, is no reason. A file of the spec counts for a service that took it when it started; one that a service sees
through a mounted directory is replaced while the service runs. Pure; called by `shoal.runtimes.compose.starting`.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.model.workloads import FileSpec
from shoal.runtimes.compose.project import Project

Files = Sequence[tuple[FileSpec, bytes]]


@dataclass(frozen=True, slots=True)
class _Path:
    """A path of the project's directory that a service names."""

    text: str
    #: Whether everything below it is taken, too, when the service is made.
    is_whole: bool = False

    def takes(self, file: str) -> bool:
        """Whether a file is taken once, and so is not seen anew."""
        return file == self.text or (self.is_whole and (self.text == "." or file.startswith(f"{self.text}/")))

    def is_in(self, names: Collection[str]) -> bool:
        """Whether it is one of these files, or a directory with one of them."""
        return self.text == "." or self.text in names or any(each.startswith(f"{self.text}/") for each in names)


def service_digests(project: Project, files: Files = ()) -> dict[str, str]:
    """A digest for each service. Values of secrets are in it, so it is never shown."""
    return {name: _digest(project, name, files) for name in project.services}


def _digest(project: Project, name: str, files: Files) -> str:
    services = project.content["services"]
    definition, *inherited = lineage = [services[each] for each in _lineage(services, name)]
    parts = [part for service in lineage for part in _named_parts(project.content, service)]
    paths = [*(path for service in lineage for path in _paths(service)), *_part_paths(parts)]
    given = {posixpath.normpath(file.path): content for file, content in files}
    contents = {
        path: hashlib.sha256(content).hexdigest()
        for path, content in given.items()
        if any(each.takes(path) for each in paths)
    }
    is_of_commit = any(each.is_in(project.tracked | given.keys()) for each in paths)
    more = [inherited, parts, project.commit if is_of_commit else "", contents]
    # Without more it is what earlier versions have stored.
    return hashlib.sha256(_text([definition, *more] if any(more) else definition)).hexdigest()


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def _lineage(services: Mapping[str, Mapping[str, Any]], name: str) -> Iterator[str]:
    """A service and those that it extends."""
    seen: set[str] = set()
    while name in services and name not in seen:
        seen.add(name)
        yield name
        extends = services[name].get("extends")
        name = str(extends.get("service", "")) if isinstance(extends, Mapping) else ""


def _named_parts(content: Mapping[str, Any], service: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configs and secrets of the project that a service names."""
    for kind in ("configs", "secrets"):
        known = content.get(kind) or {}
        for each in service.get(kind) or ():
            part = known.get(str(each.get("source") if isinstance(each, Mapping) else each))
            if isinstance(part, Mapping):
                yield part


def _part_paths(parts: Iterable[Mapping[str, Any]]) -> Iterator[_Path]:
    for part in parts:
        yield from _relative(part.get("file"))


def _paths(service: Mapping[str, Any]) -> Iterator[_Path]:
    build = service.get("build")
    if build:
        context = build.get("context") or "." if isinstance(build, Mapping) else build
        yield from _relative(context, is_whole=True)
    given = service.get("env_file") or ()
    for each in given if isinstance(given, list) else (given,):
        yield from _relative(each.get("path") if isinstance(each, Mapping) else each)
    for mount in service.get("volumes") or ():
        if isinstance(mount, Mapping):
            yield from _relative(mount.get("source") if mount.get("type") == "bind" else None)
        else:
            source, found, _ = str(mount).partition(":")
            yield from _relative(source if found and source.startswith(".") else None)


def _relative(path: object, *, is_whole: bool = False) -> Iterator[_Path]:
    """A path, if it is one below the project's directory."""
    if path and not str(path).startswith(("/", "~")):
        yield _Path(posixpath.normpath(str(path)), is_whole)

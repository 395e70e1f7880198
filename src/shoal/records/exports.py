"""Writes and reads exported models. A version is complete, or it is not there.

    with write_export(base, manifest) as export:
        export.put(DENSE_FILE, stablehlo)
        with export.open("assets/t-00000-of-00001") as file: …
    version = open_export(f"{base}/entry/1600000000")         # checks every hash

A version is written under a hidden name, with its document last, and renamed when everything is on disk. On object
stores, where a rename is no single step, it is written in place: there the document, which comes last, makes it a
version, and a hidden file says until then that the directory is ours and unfinished. What a killed writer leaves, the
next writer of that sub-graph removes. The dense part and tables are bytes here; what they mean is known to the learner
and to the model server, which call this.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import re
from collections.abc import Collection, Iterator
from typing import Any

from google.protobuf import text_format

from shoal.core import faults, files
from shoal.core.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnsupportedError,
    problem,
)
from shoal.core.filesystems import locate
from shoal.core.shape import build, check, to_mapping
from shoal.model.artifacts import (
    EXPORT_FILE,
    EXPORT_FORMAT,
    FEATURE_FILE,
    MAX_EXPORT_BYTES,
    SIGNATURE_FILE,
    STATE_FILE,
    ExportedFile,
    ExportManifest,
    Signature,
    check_file_path,
)
from shoal.wire.pb.idl.matrix.proto.example_pb2 import FeatureConfigs
from shoal.wire.pb.monolith.native_training.model_export.export_pb2 import ServingModelState

_PIECE = 1 << 20
_MAX_STATE_BYTES = 16 << 20
#: `.<version>.part` is being written, `.<version>.gone` is being removed.
_HIDDEN = re.compile(r"\.([0-9]{1,19})\.(part|gone)")
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
#: In a version on an object store while it is written or removed.
_UNFINISHED = ".unfinished"

logger = logging.getLogger(__name__)


# ---------------------------------------------------------------------------------------------------------
# Writing


class ExportWriter:
    """Takes the files of a version. Made by `write_export`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[str, ExportedFile] = {}

    @property
    def files(self) -> tuple[ExportedFile, ...]:
        """What was written, by path."""
        return tuple(self._files[path] for path in sorted(self._files))

    def put(self, path: str, content: bytes) -> None:
        """Add a file. Raises `InvalidError` for a path that leads out of the version, or was there already."""
        with self.open(path) as file:
            file.write(content)

    def put_signatures(self, signatures: dict[str, Signature]) -> None:
        """Add the signature file."""
        document = {name: to_mapping(each) for name, each in sorted(signatures.items())}
        self.put(SIGNATURE_FILE, _json(document))

    def put_features(self, features: FeatureConfigs) -> None:
        """Add the configuration of features."""
        self.put(FEATURE_FILE, text_format.MessageToString(features).encode())

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[io.BufferedIOBase]:
        """Add a file piece by piece. It belongs to the version when the block ends well."""
        check_file_path(path)
        if path in self._files:
            raise InvalidError([problem("path", path, "was written already")])
        with files.open_file(files.join(self._folder, path), "wb") as file:
            hashing = _Hashing(file)
            yield hashing
        self._files[path] = ExportedFile(path, hashing.count, hashing.digest.hexdigest())
        faults.reach("export.file.after")


class _Hashing(io.BufferedIOBase):
    """Passes bytes on, and counts and hashes them."""

    def __init__(self, file: files.File) -> None:
        super().__init__()
        self._file = file
        self.count = 0
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, content: Any, /) -> int:
        """Append bytes."""
        data = memoryview(content).cast("B")
        self._file.write(data)
        self.digest.update(data)
        self.count += len(data)
        return len(data)


@contextlib.contextmanager
def write_export(base: str, manifest: ExportManifest) -> Iterator[ExportWriter]:
    """Write a version of a sub-graph below `base`. It appears when the block ends well, and not at all otherwise.

    The state file of the sub-graph names it afterwards. Raises `PreconditionError` when the version is there already.

    Args:
        base: the directory above the sub-graphs.
        manifest: everything about the version but its files, which are noted while they are written.
    """
    check(manifest)
    parent = files.join(base, manifest.sub_graph)
    target = files.join(parent, str(manifest.version))
    if _is_version(target):
        raise PreconditionError(f"{target} exists already", hint="export under a new version", path=target)
    in_place = locate(target).is_object_store
    _remove_leftovers(parent, manifest.version)
    if files.list_files(target):
        raise PreconditionError(f"{target} exists and is no version of ours", hint="export under a new version")
    folder = target if in_place else files.join(parent, f".{manifest.version}.part")
    writer = ExportWriter(folder)
    try:
        if in_place:
            files.write_atomic(files.join(folder, _UNFINISHED), b"")
        yield writer
        paths = {each.path for each in writer.files}
        missing = [each.path for each in manifest.tables if each.path not in paths]
        if missing:
            raise InvalidError([problem("tables", path, "was not written") for path in missing])
        whole = dataclasses.replace(manifest, files=writer.files)
        faults.reach("export.manifest.before")
        files.write_atomic(files.join(folder, EXPORT_FILE), _json(to_mapping(whole)))
        faults.reach("export.manifest.after")
        if in_place:
            files.remove(files.join(folder, _UNFINISHED))
        else:
            files.rename(folder, target)
    except BaseException:
        with contextlib.suppress(Exception):  # what stopped us may stop this, too; the next writer removes it
            _remove_folder(folder)
        raise
    faults.reach("export.rename.after")
    write_state(base, manifest.sub_graph)


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _remove_leftovers(parent: str, version: int) -> None:
    """What writers of this version and older ones left behind, and removals: they were killed, or have lost."""
    for entry in files.list_files(parent):
        name = files.name(entry.path)
        hidden = _HIDDEN.fullmatch(name)
        if not entry.is_directory:
            continue
        if hidden is not None and (hidden[2] == "gone" or int(hidden[1]) <= version):
            files.remove(entry.path, recursive=True)
        elif _VERSION.fullmatch(name) and int(name) <= version and files.exists(files.join(entry.path, _UNFINISHED)):
            if _is_version(entry.path):
                files.remove(files.join(entry.path, _UNFINISHED))
            else:
                _remove_folder(entry.path)


def _remove_folder(path: str) -> None:
    """Remove a directory.

    On an object store its objects go one by one: first the document, without which it is no version, and last the one
    that calls it ours.
    """
    if not locate(path).is_object_store:
        files.remove(path, recursive=True)
        return
    document, marker = (files.join(path, name) for name in (EXPORT_FILE, _UNFINISHED))
    found = [entry.path for entry in files.list_files(path, recursive=True)]
    for each in sorted(found, key=lambda each: each != document):
        if files.name(each) != _UNFINISHED:
            files.remove(each)
            faults.reach("export.gone.after")
    files.remove(marker)


# ---------------------------------------------------------------------------------------------------------
# Versions


def list_versions(base: str, sub_graph: str) -> tuple[int, ...]:
    """The complete versions of a sub-graph, oldest first."""
    parent = files.join(base, sub_graph)
    found = [entry for entry in files.list_files(parent) if entry.is_directory]
    return tuple(
        sorted(
            int(files.name(entry.path))
            for entry in found
            if _VERSION.fullmatch(files.name(entry.path)) and _is_version(entry.path)
        )
    )


def _is_version(path: str) -> bool:
    return files.exists(files.join(path, EXPORT_FILE))


def remove_versions(base: str, sub_graph: str, *, keep_steps: Collection[int]) -> tuple[int, ...]:
    """Remove the versions whose step is not kept, the newest one excepted, and return them.

    A version goes as it came: at once. The state file follows. One whose document cannot be read stays.
    """
    versions = list_versions(base, sub_graph)
    removed = []
    for version in versions[:-1]:
        path = files.join(base, sub_graph, str(version))
        step = _step_of(path)
        if step is not None and step not in keep_steps:
            _remove_version(path)
            removed.append(version)
    if removed:
        write_state(base, sub_graph)
    return tuple(removed)


def _remove_version(path: str) -> None:
    if locate(path).is_object_store:
        files.write_atomic(files.join(path, _UNFINISHED), b"")
        _remove_folder(path)
        return
    hidden = files.join(files.parent(path), f".{files.name(path)}.gone")
    files.rename(path, hidden)
    faults.reach("export.gone.after")
    files.remove(hidden, recursive=True)


# ---------------------------------------------------------------------------------------------------------
# The state file


def read_state(base: str, sub_graph: str) -> ServingModelState:
    """What the state file of a sub-graph says; empty without one. Raises `InvalidError`."""
    path = files.join(base, sub_graph, STATE_FILE)
    state = ServingModelState()
    if not files.exists(path):
        return state
    try:
        text_format.Parse(files.read_bytes(path, limit=_MAX_STATE_BYTES).decode(), state)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        first = (str(error) or "cannot be read").splitlines()[0][:200]
        raise InvalidError([problem(path, None, f"must be a ServingModelState as text: {first}")]) from error
    return state


def write_state(base: str, sub_graph: str) -> ServingModelState:
    """Make the state file say which versions there are. What a killed writer left out is in it again.

    A version whose document cannot be read is left out: nobody can open it, and others must be.
    """
    state = ServingModelState()
    for version in list_versions(base, sub_graph):
        path = files.join(base, sub_graph, str(version))
        step = _step_of(path)
        if step is not None:
            state.entries.add(export_dir=path, global_step=step)
    content = text_format.MessageToString(state).encode()
    files.write_atomic(files.join(base, sub_graph, STATE_FILE), content)
    faults.reach("export.state.after")
    return state


def _step_of(path: str) -> int | None:
    """The step of a version; None when its document cannot be read."""
    try:
        return read_manifest(path).global_step
    except (InvalidError, UnsupportedError, NotFoundError) as error:
        logger.warning("version %s of an export is left out: %s", path, error)
        return None


# ---------------------------------------------------------------------------------------------------------
# Reading


@dataclasses.dataclass(frozen=True, slots=True)
class ExportedVersion:
    """A complete version whose files are what its document says. Made by `open_export`."""

    path: str
    manifest: ExportManifest

    def file_path(self, name: str) -> str:
        """The path of one of its files. Raises `InvalidError` for one that the document does not name."""
        if self.manifest.file(name) is None:
            raise InvalidError([problem("path", name, f"must be a file of {self.path}")])
        return files.join(self.path, name)

    def read(self, name: str) -> bytes:
        """The content of one of its files."""
        return files.read_bytes(self.file_path(name))

    def signatures(self) -> dict[str, Signature]:
        """Its signature file; empty when it has none."""
        if self.manifest.file(SIGNATURE_FILE) is None:
            return {}
        document = _parse_object(self.read(SIGNATURE_FILE), at=files.join(self.path, SIGNATURE_FILE))
        return {name: build(Signature, each, at=name) for name, each in document.items()}

    def features(self) -> FeatureConfigs:
        """Its configuration of features; empty when it has none."""
        if self.manifest.file(FEATURE_FILE) is None:
            return FeatureConfigs()
        try:
            return text_format.Parse(self.read(FEATURE_FILE).decode(), FeatureConfigs())
        except (text_format.ParseError, ValueError, RecursionError) as error:
            raise InvalidError([problem(files.join(self.path, FEATURE_FILE), None, str(error)[:200])]) from error


def open_export(path: str, *, verify: bool = True) -> ExportedVersion:
    """Open a version, and check its files.

    Raises `NotFoundError` for a directory without its document, and `CorruptError` for a file that is missing, or not
    what the document says.

    Args:
        path: the directory of the version.
        verify: whether every byte is hashed; sizes are always compared.
    """
    manifest = read_manifest(path)
    for each in manifest.files:
        place = files.join(path, each.path)
        size = files.size(place) if files.exists(place) else -1
        if size != each.size:
            found = "is missing" if size < 0 else f"has {size}"
            raise CorruptError(place, max(size, 0), f"must have {each.size} bytes, and {found}")
        if verify and _sha256(place) != each.sha256:
            raise CorruptError(place, 0, f"must have the SHA-256 {each.sha256}")
    return ExportedVersion(path, manifest)


def read_manifest(path: str) -> ExportManifest:
    """Read the document of a version. Raises `NotFoundError` without one, `InvalidError` and `UnsupportedError`."""
    place = files.join(path, EXPORT_FILE)
    document = _parse_object(files.read_bytes(place, limit=MAX_EXPORT_BYTES), at=place)
    form = document.get("format", EXPORT_FORMAT)
    if isinstance(form, int) and form > EXPORT_FORMAT:
        raise UnsupportedError(f"{place} is of format {form}; this program reads up to {EXPORT_FORMAT}", path=place)
    known = {each.name for each in dataclasses.fields(ExportManifest)}
    manifest = build(ExportManifest, {key: each for key, each in document.items() if key in known}, at=place)
    own = (files.name(files.parent(path)), files.name(path))
    if own != (manifest.sub_graph, str(manifest.version)):
        found = f"{manifest.sub_graph}/{manifest.version}"
        raise CorruptError(place, 0, f"must be of {'/'.join(own)}, as its directory says, and is of {found}")
    for number, each in enumerate(manifest.files):
        check_file_path(each.path, field=f"{place}.files[{number}].path")
    for number, table in enumerate(manifest.tables):
        if manifest.file(table.path) is None:
            raise InvalidError([problem(f"{place}.tables[{number}].path", table.path, "must be one of its files")])
    return manifest


def _parse_object(data: bytes, *, at: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidError([problem(at, None, "must be a JSON object")])
    return document


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with files.open_file(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()

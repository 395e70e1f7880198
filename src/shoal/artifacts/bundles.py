"""The format of a bundle: the files of a user's module or package, the blobs of a plan, and the versions that made it.

    magic (13 bytes)  size of the manifest (8 bytes)  manifest (JSON)  contents, one right behind the other

The manifest has the sizes and hashes of all contents, in order. Nothing is compressed, so nothing expands; there are no
links; the same input is the same bytes. Pure. Packed by clients, unpacked where tasks run, never opened by the control
plane.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import CorruptError, ExhaustedError, InvalidError, PreconditionError, Problem, problem

FORMAT = 1
MAGIC = b"SHOALBUNDLE1\n"
MOST_ENTRIES = 10_000
MOST_BYTES = 256 << 20
_MOST_MANIFEST = 8 << 20
_MOST_PATH = 512
_SIZE = struct.Struct("<Q")
_PATH_RULE = f"must be a relative path of at most {_MOST_PATH} characters, with / between plain names"


@dataclass(frozen=True, slots=True)
class Bundle:
    """User code on its way. Two functions with the same text and different captures are blobs with different hashes."""

    #: What to run, such as `my_app:flow`.
    entry: str
    #: Modules, by their paths below a directory of the search path.
    files: Mapping[str, bytes] = field(default_factory=dict)
    #: What the plan names, by the names that it uses.
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    #: Of Python and of libraries that its blobs depend on.
    versions: Mapping[str, str] = field(default_factory=dict)


def pack_bundle(bundle: Bundle, *, most: int = MOST_BYTES) -> bytes:
    """A bundle as bytes; the same bundle is the same bytes. Raises `InvalidError` and `ExhaustedError`."""
    problems = list(_path_problems(bundle.files))
    if len(bundle.files) + len(bundle.blobs) > MOST_ENTRIES:
        problems.append(problem("files", len(bundle.files), f"must be at most {MOST_ENTRIES:,} with the blobs"))
    if problems:
        raise InvalidError(problems, what="bundle")
    contents: list[bytes] = []
    listed: dict[str, list[list[Any]]] = {}
    for kind, entries in (("files", bundle.files), ("blobs", bundle.blobs)):
        listed[kind] = []
        for name in sorted(entries):
            content = bytes(entries[name])
            listed[kind].append([name, len(content), hashlib.sha256(content).hexdigest()])
            contents.append(content)
    body = {"format": FORMAT, "entry": bundle.entry, "versions": dict(bundle.versions), **listed}
    manifest = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    packed = b"".join([MAGIC, _SIZE.pack(len(manifest)), manifest, *contents])
    if len(packed) > most or len(manifest) > _MOST_MANIFEST:
        raise ExhaustedError(f"the bundle has {len(packed):,} bytes; {most:,} are allowed", limit=most)
    return packed


def unpack_bundle(content: bytes, *, most: int = MOST_BYTES) -> Bundle:
    """The inverse. Raises `CorruptError` for what is no bundle, `ExhaustedError` for one that is too large."""
    if len(content) > most:
        raise ExhaustedError(f"the bundle has {len(content):,} bytes; {most:,} are allowed", limit=most)
    start = len(MAGIC) + _SIZE.size
    if not content.startswith(MAGIC) or len(content) < start:
        raise _corrupt(0, f"must begin with {MAGIC!r}")
    size = _SIZE.unpack_from(content, len(MAGIC))[0]
    if size > min(_MOST_MANIFEST, len(content) - start):
        raise _corrupt(len(MAGIC), "the manifest must lie within the bundle", size)
    body = _manifest(content[start : start + size], start)
    place = start + size
    found: dict[str, dict[str, bytes]] = {}
    for kind in ("files", "blobs"):
        found[kind] = {}
        for name, length, digest in body[kind]:
            part = content[place : place + length]
            if len(part) != length or hashlib.sha256(part).hexdigest() != digest:
                raise _corrupt(place, f"the content of {name!r} must be what its hash says")
            found[kind][name] = part
            place += length
    if place != len(content):
        raise _corrupt(place, "nothing must follow the last content")
    problems = list(_path_problems(found["files"]))
    if problems:
        raise InvalidError(problems, what="bundle")
    return Bundle(body["entry"], found["files"], found["blobs"], body["versions"])


def check_versions(made: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise `PreconditionError` unless what made a bundle is what runs here, by the first two numbers of a version."""
    for name, version in sorted(made.items()):
        ours = here.get(name, "")
        if _minor(version) != _minor(ours):
            raise PreconditionError(
                f"the bundle was made with {name} {version}, and this is {name} {ours or 'not installed'}",
                hint="use the same version on both sides",
                library=name,
                made=version,
                here=ours,
            )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _corrupt(offset: int, rule: str, value: object = None) -> CorruptError:
    return CorruptError("bundle", offset, rule, value=value)


def _manifest(content: bytes, offset: int) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise _corrupt(offset, "the manifest must be JSON") from None
    if not isinstance(body, dict) or set(body) != {"format", "entry", "versions", "files", "blobs"}:
        raise _corrupt(offset, "the manifest must have its five fields")
    if body["format"] != FORMAT:
        raise _corrupt(offset, f"the format must be {FORMAT}: a newer program made this", body["format"])
    versions = body["versions"]
    is_plain = isinstance(body["entry"], str) and isinstance(versions, dict)
    if not is_plain or not all(isinstance(each, str) for each in versions.values()):
        raise _corrupt(offset, "entry and versions must be texts")
    for kind in ("files", "blobs"):
        entries = body[kind]
        if not isinstance(entries, list) or len(entries) > MOST_ENTRIES or not all(map(_is_entry, entries)):
            raise _corrupt(offset, f"{kind} must be lists of name, size and hash")
        if len({each[0] for each in entries}) != len(entries):
            raise _corrupt(offset, f"{kind} must have different names")
    return body


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    name, size, digest = entry
    is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= 1 << 62
    return isinstance(name, str) and is_size and isinstance(digest, str)


def _path_problems(files: Mapping[str, bytes]) -> Iterator[Problem]:
    for path in files:
        parts = path.split("/")
        is_plain = path.isprintable() and "\\" not in path and len(path) <= _MOST_PATH
        if not is_plain or any(part in ("", ".", "..") or part != part.strip() for part in parts):
            yield problem("files", path, _PATH_RULE)
        elif any("/".join(parts[:count]) in files for count in range(1, len(parts))):
            yield problem("files", path, "must not lie below another file")

"""Checkpoints on disk, through `shoal.core.files`: one file for each task, and a manifest that comes last.

    <directory>/<job>/job.json                        what the job ever was: key groups, most tasks of each step
    <directory>/<job>/000000000012/1.0.state          the state of one task
    <directory>/<job>/000000000012/manifest.json      every file with its size and checksum; without it there is nothing

A checkpoint is complete when its manifest is there. One that cannot be read is skipped with a warning, and the one
before it is used. Called by the coordinator, and by the engine when a run starts.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core import files
from shoal.core.errors import NotFoundError, PreconditionError, ShoalError
from shoal.core.faults import reach
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.language.failures import CheckpointError
from shoal.dataflow.operators.base import OperatorState

log = logging.getLogger(__name__)

FORMAT = 1
_MAGIC = b"SHOALCP1"
_LENGTH = struct.Struct("<I")
_MANIFEST = "manifest.json"
_JOB = "job.json"
_STATE_FILE = re.compile(r"[0-9]{1,10}\.[0-9]{1,10}\.state")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a plan looks like to its checkpoints."""

    key_groups: int
    #: The kind of each step by its uid, and how many tasks it has.
    kinds: Mapping[str, str]
    widths: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of a checkpoint, as its manifest lists it."""

    name: str
    size: int
    checksum: int
    subtask: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read. For each uid: the subtask and its state, for every task that the step had."""

    number: int
    key_groups: int
    kinds: Mapping[str, str]
    states: Mapping[str, Sequence[tuple[int, OperatorState]]]


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a job from before."""

    #: The highest number that was ever given to a checkpoint, also to one that failed.
    highest: int
    #: The most tasks that each step ever had.
    widths: Mapping[str, int]


class CheckpointStorage:
    """The checkpoints of one job."""

    def __init__(self, directory: str, job: str, *, keep: int = 3) -> None:
        self._base = files.join(directory, job)
        self._job = job
        self._keep = keep

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._job

    # -- writing ----------------------------------------------------------------------------------------------

    def write_task(self, checkpoint: int, task: TaskId, state: Mapping[str, OperatorState]) -> TaskFile:
        """Write the state of one task. Nobody looks at it before the manifest names it."""
        content = encode_state(state)
        name = f"{task}.state"
        files.write_atomic(files.join(self._directory(checkpoint), name), content)
        return TaskFile(name, len(content), zlib.crc32(content), task.subtask)

    def complete(self, checkpoint: int, layout: Layout, tasks: Sequence[TaskFile]) -> None:
        """Write the manifest: from here on the checkpoint is there."""
        manifest = {
            "format": FORMAT,
            "job": self._job,
            "checkpoint": checkpoint,
            "key_groups": layout.key_groups,
            "operators": dict(layout.kinds),
            "tasks": [
                {"file": each.name, "size": each.size, "crc32": each.checksum, "subtask": each.subtask}
                for each in tasks
            ],
        }
        reach("dataflow.manifest.before")
        files.write_atomic(files.join(self._directory(checkpoint), _MANIFEST), json.dumps(manifest).encode())
        reach("dataflow.manifest.after")

    def discard(self, checkpoint: int) -> None:
        """Remove what was written of one that failed, as far as that goes."""
        self._remove(self._directory(checkpoint))

    def prune(self, newest: int) -> None:
        """Remove all but the last ones up to `newest`, and what is left of those that were never complete.

        What cannot be listed or removed now is removed after a later checkpoint.
        """
        try:
            numbers = [number for number in self._numbers() if number <= newest]
            complete = [number for number in numbers if files.exists(files.join(self._directory(number), _MANIFEST))]
        except ShoalError as error:
            log.warning("old checkpoints of job %s cannot be listed, and stay for now: %s", self._job, error)
            return
        kept = set(complete[-self._keep :])
        for number in numbers:
            if number not in kept:
                self._remove(self._directory(number))

    def _remove(self, directory: str) -> None:
        try:
            # The manifest first: without it a directory that is half removed is no checkpoint.
            manifest = files.join(directory, _MANIFEST)
            if files.exists(manifest):
                files.remove(manifest)
            files.remove(directory, recursive=True)
        except NotFoundError:
            pass
        except ShoalError as error:
            log.warning("an old checkpoint could not be removed from %s: %s", directory, error)

    # -- reading ----------------------------------------------------------------------------------------------

    def latest(self) -> Checkpoint | None:
        """The newest that is whole; None when there is none at all."""
        unreadable: list[str] = []
        for number in reversed(self._numbers()):
            try:
                return self._read(number)
            except NotFoundError:
                continue  # it was never complete
            except CheckpointError as error:
                log.warning("checkpoint %d of job %s cannot be used: %s", number, self._job, error)
                unreadable.append(str(error))
        if unreadable:
            raise CheckpointError(
                f"none of the checkpoints of job {self._job!r} can be read, the newest: {unreadable[0]}",
                hint="start from the beginning with restore=False, or give the job another name",
            )
        return None

    def begin(self, layout: Layout) -> History:
        """What is known from before. Notes down the new widths before anything of them runs."""
        known = self._read_job()
        if known is not None and known["key_groups"] != layout.key_groups:
            raise PreconditionError(
                f"job {self._job!r} has {known['key_groups']} key groups, and cannot go on with {layout.key_groups}",
                hint="the number of key groups is fixed for the life of a job",
            )
        before: dict[str, int] = {} if known is None else known["widths"]
        widths = {uid: max(before.get(uid, 0), layout.widths.get(uid, 0)) for uid in before | dict(layout.widths)}
        if widths != before:
            content = {"format": FORMAT, "job": self._job, "key_groups": layout.key_groups, "widths": widths}
            files.write_atomic(files.join(self._base, _JOB), json.dumps(content).encode())
        return History(max(self._numbers(), default=0), before)

    def _read_job(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(files.read_bytes(files.join(self._base, _JOB)))
        except NotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"the notes of job {self._job!r} in {self._base} cannot be read: {error}") from error
        path = files.join(self._base, _JOB)
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("job") != self._job:
            raise CheckpointError(f"{path} is not of job {self._job!r} in format {FORMAT}")
        if not _is_count(content.get("key_groups")) or not _maps(content.get("widths"), _is_count):
            raise CheckpointError(f"{path} does not say the key groups and widths of job {self._job!r}")
        return content

    def _read(self, number: int) -> Checkpoint:
        directory = self._directory(number)
        manifest = self._read_manifest(directory, number)
        states: dict[str, list[tuple[int, OperatorState]]] = {}
        for entry in manifest["tasks"]:
            content = self._read_file(directory, entry)
            for uid, state in decode_state(content).items():
                states.setdefault(uid, []).append((entry["subtask"], state))
        return Checkpoint(number, manifest["key_groups"], manifest["operators"], states)

    def _read_manifest(self, directory: str, number: int) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = json.loads(files.read_bytes(files.join(directory, _MANIFEST)))
            found = (manifest["format"], manifest["job"], manifest["checkpoint"])
            complete = (
                _is_count(manifest["key_groups"])
                and _maps(manifest["operators"], lambda kind: isinstance(kind, str))
                and all(_is_task(entry) for entry in manifest["tasks"])
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"its manifest cannot be read: {error}") from error
        if found != (FORMAT, self._job, number):
            raise CheckpointError(
                f"its manifest says format, job and number {found}, not {(FORMAT, self._job, number)}"
            )
        if not complete:
            raise CheckpointError("its manifest has key groups, operators or tasks that are none")
        return manifest

    def _read_file(self, directory: str, entry: Mapping[str, Any]) -> bytes:
        path = files.join(directory, str(entry["file"]))
        try:
            content = files.read_bytes(path)
        except NotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        if len(content) != entry["size"] or zlib.crc32(content) != entry["crc32"]:
            raise CheckpointError(f"{path} is torn: {len(content)} bytes of {entry['size']}, or other ones")
        return content

    def _numbers(self) -> list[int]:
        names = (files.name(entry.path) for entry in files.list_files(self._base) if entry.is_directory)
        return sorted(int(name) for name in names if name.isdecimal())

    def _directory(self, checkpoint: int) -> str:
        return files.join(self._base, f"{checkpoint:012d}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _maps(value: object, rule: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(rule(each) for each in value.values())


def _is_task(entry: object) -> bool:
    """Whether it describes a file, as `CheckpointStorage.complete` does."""
    if not isinstance(entry, dict) or not _STATE_FILE.fullmatch(str(entry.get("file"))):
        return False
    return all(_is_count(entry.get(name)) for name in ("size", "crc32", "subtask"))


# ---------------------------------------------------------------------------------------------------------
# The file of a task: a header that says where everything lies, and the bytes one after the other


def encode_state(state: Mapping[str, OperatorState]) -> bytes:
    """The state of a task's steps as bytes."""
    blobs: list[bytes] = []
    place = 0

    def put(blob: bytes) -> list[int]:
        nonlocal place
        blobs.append(blob)
        place += len(blob)
        return [place - len(blob), len(blob)]

    steps = {
        uid: {
            "shared": put(each.shared),
            "keyed": {str(group): put(blob) for group, blob in sorted(each.keyed.items())},
        }
        for uid, each in state.items()
    }
    header = json.dumps({"steps": steps}).encode()
    return b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *blobs])


def decode_state(content: bytes) -> dict[str, OperatorState]:
    """The inverse of `encode_state`. Raises `CheckpointError` for bytes that are none."""
    start = len(_MAGIC) + _LENGTH.size
    if content[: len(_MAGIC)] != _MAGIC or len(content) < start:
        raise CheckpointError("a file of the checkpoint does not begin as one")
    body = start + _LENGTH.unpack_from(content, len(_MAGIC))[0]
    try:
        steps: dict[str, Any] = json.loads(content[start:body])["steps"]
        return {uid: _decode_step(content, body, each) for uid, each in steps.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"a file of the checkpoint has no readable header: {error}") from error


def _decode_step(content: bytes, body: int, entry: Mapping[str, Any]) -> OperatorState:
    def cut(place: Sequence[int]) -> bytes:
        offset, size = place
        if offset < 0 or size < 0 or body + offset + size > len(content):
            raise CheckpointError(f"a file of the checkpoint has {len(content)} bytes, and something beyond them")
        return content[body + offset : body + offset + size]

    keyed = {int(group): cut(place) for group, place in entry["keyed"].items()}
    return OperatorState(keyed=keyed, shared=cut(entry["shared"]))

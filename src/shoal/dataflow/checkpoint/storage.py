"""Checkpoints on disk, through `shoal.core.files`: a manifest for each, over state files that they share.

    <directory>/<job>/job.json                        what the job ever was: key groups, most tasks of each step
    <directory>/<job>/commits.json                    what its sinks have committed; see `claim`
    <directory>/<job>/state/                          state files, which tasks write; see `statestore`
    <directory>/<job>/000000000012/manifest.json      every file that the checkpoint needs; without it there is nothing

A checkpoint is complete when its manifest is there. A state file is removed when no checkpoint that is kept needs it
and none to come can. Called by the coordinator, and by `shoal.dataflow.checkpoint.start` when a run starts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.core import files
from shoal.core.errors import NotFoundError, PreconditionError, ShoalError
from shoal.core.faults import reach
from shoal.dataflow.checkpoint.copies import LocalCopies
from shoal.dataflow.checkpoint.handles import FileHandle, Link, StepState, TaskPart
from shoal.dataflow.checkpoint.records import Branch, Checkpoint, History, Layout, Search, check_seal, seal
from shoal.dataflow.checkpoint.statestore import StateStore, is_file_name, number_of
from shoal.dataflow.errors import CheckpointError

log = logging.getLogger(__name__)

#: Of manifests; and of the notes of a job.
FORMAT = 2
_JOB_FORMAT = 1
_MANIFEST = "manifest.json"
#: Beside the manifest of a checkpoint that is kept until a person removes it. Holds its name, or nothing.
_SAVEPOINT = "savepoint"
_JOB = "job.json"


class CheckpointStorage:
    """The checkpoints of one job."""

    def __init__(self, directory: str, job: str, *, keep: int = 3, copies: LocalCopies | None = None) -> None:
        self._base = files.join(directory, job)
        self._job = job
        self._keep = keep
        self._store = StateStore(self._base)
        self._copies = copies
        #: The files that each complete checkpoint needs, as far as it was read or written here.
        self._needed: dict[int, frozenset[str]] = {}
        self._branch = Branch()

    def follow(self, branch: Branch) -> None:
        """Find and keep the checkpoints of this branch only, and write new ones for it."""
        self._branch = branch

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._job

    def open_store(self) -> StateStore:
        """The state files of the job, for one task."""
        store = StateStore(self._base, self._copies)
        if self._copies is not None:
            self._copies.join(store)
        return store

    # -- writing ----------------------------------------------------------------------------------------------

    def complete(self, checkpoint: int, layout: Layout, tasks: Sequence[TaskPart]) -> None:
        """Write the manifest: from here on the checkpoint is there."""
        needed = {file.name: [file.size, file.checksum] for each in tasks for file in each.files}
        manifest = {
            "format": FORMAT,
            "job": self._job,
            "checkpoint": checkpoint,
            "incarnation": self._branch.incarnation,
            "key_groups": layout.key_groups,
            "operators": dict(layout.kinds),
            "files": needed,
            "tasks": [
                {
                    "subtask": each.subtask,
                    "file": each.file,
                    "chains": {
                        uid: [[link.file, link.first, link.end] for link in chain] for uid, chain in each.chains.items()
                    },
                }
                for each in tasks
            ],
        }
        reach("dataflow.manifest.before")
        files.write_atomic(files.join(self._directory(checkpoint), _MANIFEST), seal(manifest))
        self._needed[checkpoint] = frozenset(needed)
        reach("dataflow.manifest.after")

    def discard(self, checkpoint: int) -> None:
        """Remove what was written of one that failed, as far as that goes. Its state files may be used by the next."""
        self._remove(self._directory(checkpoint))

    def prune(self, newest: int) -> None:
        """Remove all but the last ones up to `newest`, and the state files that none of those needs.

        Files of later checkpoints stay: tasks may have written them already. What cannot be listed or removed now is
        removed after a later checkpoint.
        """
        try:
            numbers = [number for number in self._numbers() if number <= newest]
            complete = [number for number in numbers if files.exists(files.join(self._directory(number), _MANIFEST))]
        except ShoalError as error:
            log.warning("old checkpoints of job %s cannot be listed, and stay for now: %s", self._job, error)
            return
        # Those of a branch that was left stay until there are enough of the new one.
        counted = [number for number in complete if self._branch.has(number)]
        kept = set(counted[-self._keep :] if len(counted) >= self._keep else complete)
        kept |= {number for number in complete if number not in kept and self._is_savepoint(number)}
        for number in numbers:
            if number not in kept:
                self._needed.pop(number, None)
                self._remove(self._directory(number))
        self._prune_files(newest, kept)

    def keep(self, checkpoint: int, name: str = "") -> str:
        """Make a complete checkpoint a savepoint: it stays until a person removes it. Returns where it is."""
        directory = self._directory(checkpoint)
        self._read_manifest(directory, checkpoint)
        files.write_atomic(files.join(directory, _SAVEPOINT), name.encode())
        return directory

    def release(self, checkpoint: int) -> None:
        """A savepoint is an ordinary checkpoint again, which is removed when it is old."""
        files.remove(files.join(self._directory(checkpoint), _SAVEPOINT))

    def savepoints(self) -> dict[int, str]:
        """The names of the savepoints, by number. Some have none."""
        found = [number for number in self._numbers() if self._is_savepoint(number)]
        return {
            number: files.read_bytes(files.join(self._directory(number), _SAVEPOINT)).decode(errors="replace")
            for number in found
        }

    def newest(self) -> int:
        """The newest complete checkpoint of the branch that the job follows; 0 when there is none."""
        for number in reversed(self._numbers()):
            if self._branch.has(number) and files.exists(files.join(self._directory(number), _MANIFEST)):
                return number
        return 0

    def highest(self) -> int:
        """The highest number that was ever used, as far as its files are there."""
        return max([*self._numbers(), *map(number_of, self._store.list_names())], default=0)

    def _is_savepoint(self, checkpoint: int) -> bool:
        return files.exists(files.join(self._directory(checkpoint), _SAVEPOINT))

    def _prune_files(self, newest: int, kept: set[int]) -> None:
        try:
            needed = {name for number in kept for name in self._files_of(number)}
            names = self._store.list_names()
            self._store.remove(name for name in names if number_of(name) <= newest and name not in needed)
        except ShoalError as error:
            log.warning("old checkpoints of job %s: their files stay for now: %s", self._job, error)

    def _files_of(self, number: int) -> frozenset[str]:
        """The files that a complete checkpoint needs. Raises when its manifest cannot be read: then all files stay."""
        if number not in self._needed:
            self._needed[number] = frozenset(self._read_manifest(self._directory(number), number)["files"])
        return self._needed[number]

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

    def search(self, number: int | None = None) -> Search:
        """The newest that is whole, and those passed over on the way to it; or the one with this number alone.

        Without a number only those of the branch that the job follows are looked at.
        """
        damaged: dict[int, str] = {}
        for each in reversed(self._numbers()):
            if not self._branch.has(each) if number is None else each != number:
                continue
            try:
                # Elsewhere that would be a download of everything: tasks look at what they read themselves.
                found = self._read(each, verify="://" not in self._base)
                if number is None and self._branch.is_foreign(each, found.incarnation):
                    continue
                return Search(found, damaged)
            except NotFoundError:
                continue  # it was never complete
            except _WrongFormatError:
                raise
            except CheckpointError as error:
                damaged[each] = str(error)
        if number is None and self._branch.base and self._branch.base not in damaged:
            damaged[self._branch.base] = "it is gone"
        return Search(None, damaged)

    def is_empty(self) -> bool:
        """Whether nothing is known of the job."""
        return not self._numbers() and self._read_job() is None

    def read(self, number: int) -> Checkpoint:
        """One that is complete and was verified by `search`: its manifest and what belongs to no key.

        Raises `NotFoundError` and `CheckpointError`.
        """
        return self._read(number, verify=False)

    def begin(self, layout: Layout) -> History:
        """What is known from before. Writes the new widths down before anything of them runs.

        A job that starts again with the same widths starts on a full disk, too.
        """
        known = self._read_job()
        if known is not None and known["key_groups"] != layout.key_groups:
            raise PreconditionError(
                f"job {self._job!r} has {known['key_groups']} key groups, and cannot go on with {layout.key_groups}",
                hint="the number of key groups is fixed for the life of a job",
            )
        before: dict[str, int] = self._widths_of_manifests() if known is None else known["widths"]
        widths = {uid: max(before.get(uid, 0), layout.widths.get(uid, 0)) for uid in before | dict(layout.widths)}
        if known is None or widths != before:
            content = {"format": _JOB_FORMAT, "job": self._job, "key_groups": layout.key_groups, "widths": widths}
            files.write_atomic(files.join(self._base, _JOB), seal(content))
        return History(self.highest(), before)

    def _widths_of_manifests(self) -> dict[str, int]:
        """How many tasks each step had at most, by the checkpoints alone: the notes of the job are gone.

        Else the output of tasks that there are no more would be forgotten.
        """
        widths: dict[str, int] = {}
        for number in self._numbers():
            try:
                manifest = self._read_manifest(self._directory(number), number)
            except (NotFoundError, CheckpointError):
                continue  # the search says which cannot be read, if it is needed
            widest = max((task["subtask"] + 1 for task in manifest["tasks"]), default=0)
            widths |= {uid: max(widths.get(uid, 0), widest) for uid in manifest["operators"]}
        return widths

    def _read_job(self) -> dict[str, Any] | None:
        path = files.join(self._base, _JOB)
        try:
            content: dict[str, Any] = json.loads(files.read_bytes(path))
            if isinstance(content, dict):
                check_seal(content)
        except NotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            hint = f"remove {path}: the checkpoints say what is in it"
            raise CheckpointError(f"{path} cannot be read: {error}", hint=hint) from error
        if not isinstance(content, dict) or content.get("format") != _JOB_FORMAT or content.get("job") != self._job:
            raise CheckpointError(f"{path} is not of job {self._job!r} in format {_JOB_FORMAT}")
        if not _is_count(content.get("key_groups")) or not _maps(content.get("widths"), _is_count):
            raise CheckpointError(f"{path} does not say the key groups and widths of job {self._job!r}")
        return content

    def _read(self, number: int, *, verify: bool) -> Checkpoint:
        directory = self._directory(number)
        manifest = self._read_manifest(directory, number)
        handles = {name: FileHandle(name, *entry) for name, entry in manifest["files"].items()}
        states: dict[str, list[tuple[int, StepState]]] = {}
        for handle in handles.values():
            self._store.verify(handle) if verify else self._store.index(handle)
        for task in manifest["tasks"]:
            chains = {uid: tuple(Link(*link) for link in chain) for uid, chain in task["chains"].items()}
            shared = self._store.read_shared(handles[task["file"]])
            for uid in shared | chains:
                state = StepState(shared.get(uid, b""), chains.get(uid, ()))
                states.setdefault(uid, []).append((task["subtask"], state))
        incarnation = manifest.get("incarnation")
        return Checkpoint(number, manifest["key_groups"], manifest["operators"], states, handles, incarnation)

    def _read_manifest(self, directory: str, number: int) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = json.loads(files.read_bytes(files.join(directory, _MANIFEST)))
            found = (manifest["format"], manifest["job"], manifest["checkpoint"])
            if isinstance(found[0], int) and found[0] != FORMAT:
                raise _WrongFormatError(found[0], number, self._job)
            check_seal(manifest)
            complete = (
                _is_count(manifest["key_groups"])
                and _is_count(manifest.get("incarnation", 0))
                and _maps(manifest["operators"], lambda kind: isinstance(kind, str))
                and _maps(manifest["files"], _is_file)
                and all(map(is_file_name, manifest["files"]))
                and all(_is_task(entry, manifest["files"]) for entry in manifest["tasks"])
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

    def _numbers(self) -> list[int]:
        names = (files.name(entry.path) for entry in files.list_files(self._base) if entry.is_directory)
        return sorted(int(name) for name in names if name.isdecimal())

    def _directory(self, checkpoint: int) -> str:
        return files.join(self._base, f"{checkpoint:012d}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _maps(value: object, rule: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(rule(each) for each in value.values())


def _is_file(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(map(_is_count, entry))


def _is_task(entry: object, known: Mapping[str, Any]) -> bool:
    """Whether it describes a task's part, as `CheckpointStorage.complete` does."""
    if not isinstance(entry, dict) or not _is_count(entry.get("subtask")) or entry.get("file") not in known:
        return False
    return _maps(
        entry.get("chains"), lambda chain: isinstance(chain, list) and all(_is_link(each, known) for each in chain)
    )


def _is_link(entry: object, known: Mapping[str, Any]) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    return isinstance(entry[0], str) and entry[0] in known and _is_count(entry[1]) and _is_count(entry[2])


class _WrongFormatError(CheckpointError):
    """A checkpoint of another version. There is nothing wrong with it, so none before it is taken in its place."""

    def __init__(self, found: int, number: int, job: str) -> None:
        super().__init__(
            f"checkpoint {number} of job {job!r} has format {found}, and this version reads and writes format {FORMAT}",
            hint="let the version that wrote it finish the job, with stop(finish=True); or start the job anew, with "
            "from_checkpoint=0 and accept_duplicates, or under another name",
        )

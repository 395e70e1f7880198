"""Commits of file sinks: the coordinator moves what tasks have prepared out of `.pending`.

Beside the pending files lies the sink's marker, `<job>.<sink>.commits.json`: the incarnation, the epoch and the last
checkpoint whose files were moved. It is written before the first of them is moved, so a marker never says less than
what is visible. A start writes it with its epoch before all else: a coordinator of an older epoch moves nothing from
then on. Opened by the sinks of `shoal.dataflow.connectors.files.sinks`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core import files
from shoal.core.errors import NotFoundError, PreconditionError
from shoal.core.filesystems import PART, locate
from shoal.dataflow.connectors.base import CommitContext, Recovery
from shoal.dataflow.connectors.markers import ALL_TASKS, Marker
from shoal.dataflow.errors import CheckpointError

PENDING = ".pending"
_MARKER = "commits.json"


@dataclass(frozen=True, slots=True)
class Move:
    """A file that waits for its checkpoint: where it lies, and what it will be called."""

    checkpoint: int
    pending: str
    final: str


def encode_moves(moves: list[Move]) -> bytes:
    """Moves as the bytes of a checkpoint."""
    return json.dumps([[each.checkpoint, each.pending, each.final] for each in moves]).encode() if moves else b""


def decode_moves(prepared: bytes) -> list[Move]:
    """The inverse of `encode_moves`. Raises `CheckpointError`."""
    try:
        return [Move(int(number), str(pending), str(final)) for number, pending, final in json.loads(prepared or b"[]")]
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the files that a sink has prepared cannot be read: {error}") from error


class FilesCommitter:
    """Moves the files of one sink, of all of its tasks."""

    commits_in_tasks = False
    #: A file that was moved is there under its name, and is not moved again.
    is_repeatable = True

    def __init__(self, path: str, context: CommitContext) -> None:
        self._context = context
        self._folder = files.join(path, PENDING)
        self._marker_path = files.join(self._folder, f"{context.job}.{context.sink}.{_MARKER}")
        self._incarnation = 0

    def fence(self) -> Mapping[int, Marker | None]:
        """Put this epoch into the marker: under another one nothing is moved."""
        found = self._read()
        marker = None if found is None else found[0]
        self._write(marker or Marker(0, 0))
        return {ALL_TASKS: marker}

    def recover(self, recovery: Recovery) -> None:
        """Move what was prepared and not moved; remove what attempts that died left behind.

        Files of commits that the job has recorded may be gone by now: readers take them away.
        """
        self._incarnation = recovery.incarnation
        moves = [move for content in recovery.prepared.values() for move in decode_moves(content)]
        self._check_epoch()
        self._write(Marker(self._incarnation, max(recovery.checkpoint, recovery.committed[ALL_TASKS])))
        _carry_out(moves, through=recovery.through)
        remove_leftovers(self._folder, self._context.job, self._context.sink, has_checkpoints=True)

    def commit(self, checkpoint: int, prepared: Mapping[int, bytes]) -> None:
        """Move the files of the checkpoint to their names. Under another coordinator's marker nothing is moved."""
        moves = [move for _task, content in sorted(prepared.items()) for move in decode_moves(content)]
        if not moves:
            return
        self._check_epoch()
        self._write(Marker(self._incarnation, checkpoint))
        _carry_out(moves)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _check_epoch(self) -> None:
        found = self._read()
        if found is None or found[1] != self._context.epoch:
            epoch = "is gone" if found is None else f"has epoch {found[1]}"
            raise PreconditionError(
                f"{self._marker_path} {epoch}, this coordinator has epoch {self._context.epoch}",
                hint="stop this one: another coordinator has taken the job over",
            )

    def _read(self) -> tuple[Marker, int] | None:
        try:
            content: Any = json.loads(files.read_bytes(self._marker_path))
            return Marker(int(content["incarnation"]), int(content["checkpoint"])), int(content["term"])
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self._marker_path} cannot be read: {error}",
                hint="remove it: what is committed is also in the record of the job",
            ) from error

    def _write(self, marker: Marker) -> None:
        content = {"incarnation": marker.incarnation, "checkpoint": marker.checkpoint, "term": self._context.epoch}
        files.write_atomic(self._marker_path, json.dumps(content).encode())


def _carry_out(moves: list[Move], *, through: int = 0) -> None:
    for move in moves:
        try:
            files.rename(move.pending, move.final)
        except NotFoundError as error:
            if move.checkpoint > through and not files.exists(move.final):  # else it was moved before the crash
                raise CheckpointError(
                    f"{move.pending}, which checkpoint {move.checkpoint} has prepared, is gone",
                    hint="files below .pending were removed",
                ) from error


def remove_leftovers(folder: str, job: str, sink: str, *, has_checkpoints: bool) -> None:
    """Remove the pending files of a sink that no checkpoint will move: those of attempts that died."""
    prefix = f"{job}.{sink}."

    def is_own(name: str) -> bool:
        return name.startswith(prefix) and name.removeprefix(prefix).partition(".")[0].isdecimal()

    if has_checkpoints:
        for entry in files.list_files(folder):
            if is_own(files.name(entry.path)):
                files.remove(entry.path)
    for name in sorted(filter(is_own, _unfinished(folder))):
        # To open it is to take up what its dead writer left. One that is alive has it locked, and keeps it.
        files.open_file(files.join(folder, name), "wb").discard()


def _unfinished(folder: str) -> set[str]:
    """The files that writers of a local folder began and did not close, by the names that they would have had.

    A listing leaves them out, and elsewhere nobody can tell a writer that lives from one that died.
    """
    place = locate(folder)
    if not place.is_local or not os.path.isdir(place.path):  # noqa: PTH112 - a place is text
        return set()
    return {name[1:].rsplit(".", 2)[0] for name in os.listdir(place.path) if PART.fullmatch(name)}  # noqa: PTH208

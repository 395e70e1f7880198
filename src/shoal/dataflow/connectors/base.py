"""The seams to the outside: sources that can be read again from a place, and sinks that commit with a checkpoint.

A connector is a frozen description that can be written down. `open_…` is called in a task, never while a plan is made.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from shoal.core.clock import Clock
from shoal.dataflow.connectors.markers import Marker
from shoal.dataflow.language.elements import Batch, Schema

#: An Arrow array.
Array: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source that is read in order by one task: a file, a partition."""

    name: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows of one split, and the place right after them."""

    split: Split
    batch: Batch
    #: What `seek` takes: JSON values only, so that it can lie in a checkpoint.
    position: Any
    #: Records that could not be read: their place and why. None when all could.
    poison: Batch | None = None
    #: The records' own timestamps, int64 microseconds, where the source has such.
    times: Array | None = None
    #: The traces that the records belong to, binary, where the source has such.
    traces: Array | None = None
    #: What the rows were read from, with the columns offset, key and value, where the source has such.
    records: Batch | None = None
    #: For each row the number of its record in `records`.
    record_of: Array | None = None
    #: For the numbers of some rows: the line that each begins on, from 1, and its text, where the source has lines.
    lines: Callable[[Sequence[int]], Sequence[tuple[int, bytes]]] | None = None


class SplitReader(Protocol):
    """Reads the splits of one task. Called by one thread."""

    def seek(self, split: Split, position: Any) -> None:
        """Go on after a place that an earlier `Fetched` named. A split that was never sought begins at its start."""
        ...

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The next rows of any split; None when there were none in time, or there is nothing more."""
        ...

    def ended(self) -> frozenset[Split]:
        """The splits that have come to their end for good. An endless source has none."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@runtime_checkable
class WakeableReader(Protocol):
    """A reader whose `fetch` can be interrupted. Without it, commands to the task wait until `fetch` returns."""

    def wake(self) -> None:
        """End a `fetch` that waits, or the next one that would. The only method that another thread may call."""
        ...


@runtime_checkable
class PlacedReader(Protocol):
    """A reader that begins somewhere else at another time: where it began has to lie in the checkpoint."""

    def places(self) -> Mapping[str, Any]:
        """Where each split stands before anything was fetched, by its name. Called once, after every `seek`."""
        ...


@runtime_checkable
class SupportsOffsets(Protocol):
    """A reader that can say outside how far a job has read, as a consumer group does."""

    def commit_offsets(self, positions: Mapping[str, Any]) -> None:
        """A complete checkpoint has these positions, by split. Nobody reads them back; returns at once."""
        ...


@runtime_checkable
class FrugalReader(Protocol):
    """A reader that can leave out of `Fetched` what no step needs."""

    def need(self, *, times: bool, traces: bool) -> None:
        """Whether the times of records are read, and whether their traces are. Called once, before all else."""
        ...


@runtime_checkable
class GrowingReader(Protocol):
    """A reader of an endless source whose splits may become more while it is read."""

    def add(self, splits: Sequence[Split]) -> None:
        """Read these too, from their start."""
        ...


@runtime_checkable
class TailingReader(Protocol):
    """A reader that can tell a split that is empty from one that is slow. Of others silence is all that is known."""

    def at_end(self) -> Collection[str]:
        """The names of the splits that are read to the end the reader knows of. Makes no request."""
        ...

    def confirm_end(self, splits: Collection[str]) -> Collection[str]:
        """Those of these that are read to their end now, as their leaders confirm; may take a moment."""
        ...


@runtime_checkable
class SupportsHold(Protocol):
    """A reader that can leave some splits unread for a while."""

    def hold(self, splits: Collection[str]) -> None:
        """Return no rows of the splits with these names until it is called again."""
        ...


class SourceConnector(Protocol):
    """Where rows come from. Its optional abilities are in `connectors.abilities`."""

    @property
    def is_bounded(self) -> bool:
        """Whether it has an end."""
        ...

    @property
    def label(self) -> str:
        """What explain() calls it."""
        ...

    def find_schema(self) -> Schema:
        """Its columns; may look at the data. Called once, when a program starts and none was declared."""
        ...

    def find_splits(self) -> Sequence[Split]:
        """Its parts, in a stable order. Asked again from time to time on endless sources: there may be more."""
        ...

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> SplitReader:
        """Begin to read these."""
        ...


class SinkMode(enum.Enum):
    """What a sink can hold."""

    APPEND = "append"  # rows that stay
    UPSERT = "upsert"  # rows that replace the one with the same key, and deletions


def _ignore(waiting_bytes: int) -> None:
    """There are no checkpoints."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Who writes: names that stay the same over every attempt of a job."""

    job: str
    sink: str
    subtask: int
    parallelism: int
    clock: Clock
    #: Whether rows become visible with checkpoints only, each once.
    exactly_once: bool = False
    #: Whether there are checkpoints at all: then `prepare` and `commit` are called, else `flush` at the end.
    has_checkpoints: bool = False
    #: The incarnation of the job, which markers carry.
    incarnation: int = 0
    #: Bytes of output that may wait in memory for a checkpoint, over all sinks of the job.
    write_ahead_bytes: int = 64 * 1024 * 1024
    #: Tells the coordinator how many wait here: it makes a checkpoint soon, or pauses the sources.
    report_waiting: Callable[[int], None] = _ignore


class SinkWriter(Protocol):
    """Writes for one task, in three steps around a checkpoint. Called by one thread.

    A checkpoint may fail after `prepare`: then no `commit` comes for it, and the next `prepare` has what both hold.
    """

    def write(self, batch: Batch) -> None:
        """Rows to be put out with the next checkpoint, or at once where exactly once was not asked for."""
        ...

    def prepare(self, checkpoint: int) -> bytes:
        """The write-ahead: everything that is not committed, as bytes that lie in the checkpoint until it is."""
        ...

    def commit(self, checkpoint: int) -> None:
        """The checkpoint is complete. A sink that commits in its tasks makes its output visible now.

        Where the coordinator commits (`SinkCommitter.commits_in_tasks` is False) the output is visible already, and
        the writer forgets it.
        """
        ...

    def flush(self) -> None:
        """Without checkpoints: everything written so far is out when this returns."""
        ...

    def close(self) -> None:
        """Let go of it; what was not committed is thrown away."""
        ...


class SinkConnector(Protocol):
    """Where rows go. Its optional abilities are in `connectors.abilities`."""

    @property
    def modes(self) -> frozenset[SinkMode]:
        """What it can hold."""
        ...

    @property
    def label(self) -> str:
        """What explain() calls it."""
        ...

    def open_writer(self, schema: Schema | None, context: SinkContext) -> SinkWriter:
        """Begin to write. Without a schema the first batch says what the columns are."""
        ...


# ---------------------------------------------------------------------------------------------------------
# Commits: what the coordinator of a job does with its sinks


@dataclass(frozen=True, slots=True)
class CommitContext:
    """Who commits: a coordinator, under its epoch."""

    job: str
    sink: str
    #: Grows with every start and every recovery of the job. What an older epoch wants to commit is refused.
    epoch: int
    parallelism: int
    #: The most tasks that this sink ever had under this job's name: they may have left things open.
    former_parallelism: int
    clock: Clock
    exactly_once: bool


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a sink goes on from."""

    #: A life of the job: it begins when the job starts from the beginning. Markers carry it.
    incarnation: int
    #: 0 is the beginning.
    checkpoint: int
    #: What each subtask of that time had prepared.
    prepared: Mapping[int, bytes]
    #: Through which checkpoint was committed, by the keys of the markers.
    committed: Mapping[int, int]
    #: Through which checkpoint the job's own record says that every sink has committed: nothing of that is left to do.
    through: int = 0


class SinkCommitter(Protocol):
    """The coordinator's end of a sink whose output becomes visible with checkpoints. Called by one thread at a time.

    A start calls `fence`, then `recover`; then each complete checkpoint `commit`.
    """

    @property
    def commits_in_tasks(self) -> bool:
        """Whether writers commit themselves, in transactions that `fence` has fenced. Then `commit` does nothing."""
        ...

    @property
    def is_repeatable(self) -> bool:
        """Whether output that was committed can be committed again without a trace. Then a lost marker is harmless."""
        ...

    def fence(self) -> Mapping[int, Marker | None]:
        """From now on nothing of an earlier epoch becomes visible. Returns what was committed, by subtask.

        None is a marker that is not there. `ALL_TASKS` is the key of a marker for all of them.
        """
        ...

    def recover(self, recovery: Recovery) -> None:
        """Go on from a checkpoint: make its output visible that is not, write the markers of this incarnation.

        What earlier attempts left is removed.
        """
        ...

    def commit(self, checkpoint: int, prepared: Mapping[int, bytes]) -> None:
        """Make visible what each subtask prepared; once, however often it is called."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@runtime_checkable
class SupportsCommit(Protocol):
    """A sink whose output becomes visible with checkpoints. The rows of others are out as they are written."""

    def open_committer(self, context: CommitContext) -> SinkCommitter | None:
        """The coordinator's end; None where rows are out as they are written."""
        ...

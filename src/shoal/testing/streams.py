"""What tests of streams need: a sink that records commits, and a source that follows a script.

    recording = Recording()
    stream.to_sink(RecordingSink(recording))

A `Recording` outlives the runs that write into it, as a database does: a test stops a flow, or lets it crash, starts it
again with the same recording, and looks at the rows. Users' tests use these; so do the tests of the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from shoal.core.clock import Clock
from shoal.core.threads import threads_of
from shoal.dataflow.connectors.base import CommitContext, Fetched, Recovery, SinkContext, SinkMode, Split
from shoal.dataflow.connectors.markers import ALL_TASKS, Marker
from shoal.dataflow.connectors.write_ahead import WriteAhead, decode_segments, from_stream
from shoal.dataflow.language.elements import Batch, Schema
from shoal.topics.errors import FencedError

# ---------------------------------------------------------------------------------------------------------
# A sink that records commits


@dataclass(frozen=True, slots=True)
class RecordedCommit:
    """Rows that became visible together."""

    checkpoint: int
    subtask: int
    rows: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class Recording:
    """What a `RecordingSink` has made visible, in order; and its markers, as a database would hold them."""

    commits: list[RecordedCommit] = field(default_factory=list)
    markers: dict[int, Marker] = field(default_factory=dict)
    #: What a commit raises from now on; None for nothing.
    failure: BaseException | None = None
    #: Grows with every start: writers and committers of an earlier one are refused.
    epoch: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Every visible row, in the order in which they became so."""
        with self.lock:
            return [row for commit in self.commits for row in commit.rows]

    def lose_markers(self) -> None:
        """Forget what was committed, as Kafka does with the offsets of a group that has no members for a week."""
        with self.lock:
            self.markers.clear()

    def put(self, epoch: int, task: int, marker: Marker | None, commits: Sequence[RecordedCommit]) -> None:
        """Make rows visible, with their marker, in one step."""
        with self.lock:
            if self.failure is not None:
                raise self.failure
            if epoch != self.epoch:
                raise FencedError("recording", epoch=epoch, reason=f"epoch {self.epoch} has taken over")
            self.commits += [each for each in commits if each.rows]
            if marker is not None:
                self.markers[task] = marker


@dataclass(frozen=True, slots=True)
class RecordingSink:
    """Rows become visible with their checkpoint, or at once where there are none.

    With `commits_in_tasks` it commits as topics do, in the tasks; else the coordinator commits it, as files and SQL.
    """

    recording: Recording
    commits_in_tasks: bool = False
    label: str = "recording"
    modes: frozenset[SinkMode] = frozenset(SinkMode)

    def open_writer(self, schema: Schema | None, context: SinkContext) -> RecordingWriter:
        """Begin to write."""
        return RecordingWriter(self, context)

    def open_committer(self, context: CommitContext) -> RecordingCommitter | None:
        """The coordinator's end, for exactly once."""
        return RecordingCommitter(self, context) if context.exactly_once else None


class RecordingWriter:
    """Records the rows of one task."""

    def __init__(self, sink: RecordingSink, context: SinkContext) -> None:
        self._recording = sink.recording
        self._commits_in_tasks = sink.commits_in_tasks
        self._context = context
        self._write_ahead = WriteAhead(context)
        self._epoch = sink.recording.epoch

    def write(self, batch: Batch) -> None:
        """Keep rows for their checkpoint; without exactly once they are visible now."""
        if self._context.exactly_once:
            self._write_ahead.add(batch)
        else:
            commit = RecordedCommit(0, self._context.subtask, tuple(batch.to_pylist()))
            self._recording.put(self._epoch, self._context.subtask, None, [commit])

    def prepare(self, checkpoint: int) -> bytes:
        """The write-ahead of a checkpoint."""
        return self._write_ahead.seal(checkpoint)

    def commit(self, checkpoint: int) -> None:
        """Make rows visible, unless the coordinator has."""
        segments = [each for each in self._write_ahead.sealed if each.checkpoint <= checkpoint]
        if self._commits_in_tasks and segments:
            subtask = self._context.subtask
            commits = [_commit(each.checkpoint, subtask, each.content) for each in segments]
            marker = Marker(self._context.incarnation, segments[-1].checkpoint)
            self._recording.put(self._epoch, subtask, marker, commits)
        self._write_ahead.forget(checkpoint)

    def flush(self) -> None:
        """Everything is visible."""

    def close(self) -> None:
        """There is nothing to let go of."""


class RecordingCommitter:
    """The coordinator's end."""

    is_repeatable = False

    def __init__(self, sink: RecordingSink, context: CommitContext) -> None:
        self._recording = sink.recording
        self.commits_in_tasks = sink.commits_in_tasks
        self._context = context
        self._incarnation = 0
        self._epoch = 0
        self._committed: dict[int, int] = {}

    def _keys(self) -> Sequence[int]:
        width = max(self._context.parallelism, self._context.former_parallelism)
        return range(width) if self.commits_in_tasks else (ALL_TASKS,)

    def fence(self) -> Mapping[int, Marker | None]:
        """Refuse every earlier writer and committer."""
        with self._recording.lock:
            self._recording.epoch += 1
            self._epoch = self._recording.epoch
            return {key: self._recording.markers.get(key) for key in self._keys()}

    def recover(self, recovery: Recovery) -> None:
        """Make visible what is missing, and write every marker."""
        self._incarnation = recovery.incarnation
        self._committed = dict(recovery.committed)
        for key in self._keys():
            prepared = recovery.prepared if key == ALL_TASKS else {key: recovery.prepared.get(key, b"")}
            self._put(key, recovery.checkpoint, prepared)

    def commit(self, checkpoint: int, prepared: Mapping[int, bytes]) -> None:
        """Make visible what the tasks have prepared."""
        if any(prepared.values()):
            self._put(ALL_TASKS, checkpoint, prepared)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _put(self, key: int, checkpoint: int, prepared: Mapping[int, bytes]) -> None:
        done = self._committed.get(key, 0)
        commits = [
            _commit(number, task, content)
            for task, segments in sorted(prepared.items())
            for number, content in decode_segments(segments)
            if number > done
        ]
        newest = max(checkpoint, done)
        self._recording.put(self._epoch, key, Marker(self._incarnation, newest), commits)
        self._committed[key] = newest


def _commit(checkpoint: int, subtask: int, content: bytes) -> RecordedCommit:
    rows = tuple(row for batch in from_stream(content) for row in batch.to_pylist())
    return RecordedCommit(checkpoint, subtask, rows)


# ---------------------------------------------------------------------------------------------------------
# A source that follows a script


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing comes for so many seconds. A pause that is longer than `idle_after` makes a split idle."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """The source fails, once: a flow that is started again reads on behind it."""

    error: Exception


Step: TypeAlias = Batch | Pause | Fail


class Script:
    """What a `ScriptedSource` does: the steps of each split, in order."""

    def __init__(self, *splits: Sequence[Step]) -> None:
        self.splits = {str(number): tuple(steps) for number, steps in enumerate(splits)}
        #: The failures that have happened: split and step.
        self.failed: set[tuple[str, int]] = set()

    def find_schema(self) -> Schema:
        """The columns of the first rows."""
        steps = (step for steps in self.splits.values() for step in steps)
        return next(step.schema for step in steps if not isinstance(step, Pause | Fail))


@dataclass(frozen=True, slots=True)
class ScriptedSource:
    """Rows, pauses and failures by a script. With `is_bounded` it ends with the script; else it is idle then."""

    script: Script
    is_bounded: bool = True
    label: str = "script"

    @property
    def most_splits(self) -> int:
        """So many splits as the script has."""
        return len(self.script.splits)

    def find_schema(self) -> Schema:
        """The columns of the first rows."""
        return self.script.find_schema()

    def find_splits(self) -> Sequence[Split]:
        """The splits of the script."""
        return [Split(name) for name in self.script.splits]

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> ScriptedReader:
        """Begin to read."""
        return ScriptedReader(self.script, splits, schema, clock)


class ScriptedReader:
    """Follows the script of some splits. The position of one is the number of its next step."""

    def __init__(self, script: Script, splits: Sequence[Split], schema: Schema, clock: Clock) -> None:
        self._script = script
        self._schema = schema
        self._clock = clock
        self._at = {split.name: 0 for split in splits}
        #: Until when each split pauses.
        self._until: dict[str, float] = {}
        self._turn = 0
        self._woken = threads_of(clock).event()

    def seek(self, split: Split, position: Any) -> None:
        """Go on with a step."""
        self._at[split.name] = int(position)

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The rows of the next step of a split whose turn it is; each step is one batch."""
        names = list(self._at)
        for offset in range(len(names)):
            name = names[(self._turn + offset) % len(names)]
            batch = self._follow(name)
            if batch is not None:
                self._turn += offset + 1
                return Fetched(Split(name), batch.select(self._schema.names), self._at[name])
        now = self._clock.monotonic()
        waits = [until - now for until in self._until.values() if until > now]
        if not self.ended() or len(self.ended()) < len(names):
            self._woken.wait(max(0.0, min([timeout, *waits])))
            self._woken.clear()
        return None

    def _follow(self, name: str) -> Batch | None:
        """The next rows of a split; None when it pauses or has come to its end."""
        steps = self._script.splits[name]
        while self._at[name] < len(steps):
            at = self._at[name]
            step = steps[at]
            if isinstance(step, Pause):
                until = self._until.setdefault(name, self._clock.monotonic() + step.seconds)
                if self._clock.monotonic() < until:
                    return None
                del self._until[name]
            elif isinstance(step, Fail) and (name, at) not in self._script.failed:
                self._script.failed.add((name, at))
                raise step.error
            self._at[name] += 1
            if not isinstance(step, Pause | Fail):
                return step
        return None

    def ended(self) -> frozenset[Split]:
        """The splits that have come to the end of their script."""
        return frozenset(Split(name) for name, at in self._at.items() if at >= len(self._script.splits[name]))

    def wake(self) -> None:
        """End a `fetch` that waits."""
        self._woken.set()

    def close(self) -> None:
        """There is nothing to let go of."""

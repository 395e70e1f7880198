"""How a source task reads: its splits, event times and watermarks per split, batches of the right size.

The coordinator assigns splits (`shoal.dataflow.execution.coordinator.splits`); no task looks for any.
`SourceDriver` is driven by `shoal.dataflow.execution.task` in one thread and drives a connector's `SplitReader`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.dataflow.connectors.abilities import error_policy, topic_of
from shoal.dataflow.connectors.base import (
    Fetched,
    FrugalReader,
    GrowingReader,
    PlacedReader,
    Split,
    SplitReader,
    SupportsHold,
    SupportsOffsets,
    TailingReader,
    WakeableReader,
)
from shoal.dataflow.errors import PoisonError
from shoal.dataflow.execution.event_time import NO_TIME, Silence, Watermarks, to_micros, why_unfit
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, TIME, TRACE, Batch, Schema
from shoal.dataflow.language.logical import EventTime, OnError, Source
from shoal.dataflow.operators.base import OperatorState, Output
from shoal.dataflow.settings import FlowSettings

#: A source that reads looks at the clock more often than this, in seconds; or twice as often as it waits for rows.
_LONGEST_STEP = 0.25
_HINT = "let them be skipped or put out on the side: on_error='skip' or on_error='side'"
#: So many bytes of a record that cannot be read are shown.
_MAX_SHOWN = 200
#: What a source puts out on the side, `errors`: where a record that cannot be read is, what it was, and why.
ERRORS = pa.schema(
    [("split", pa.utf8()), ("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("error", pa.utf8())]
)


# ---------------------------------------------------------------------------------------------------------
# Sizes


class BatchSize:
    """How many rows to ask a source for: as many as make a batch of the wanted bytes, from what came before."""

    _EVERY = 16  # counting the bytes of a batch costs more than reading its number of rows

    def __init__(self, settings: FlowSettings) -> None:
        self._most = settings.batch_rows
        self._bytes = settings.batch_bytes
        self._seen = 0
        self._width = 1.0
        #: Bytes of all batches, by the widths of those that were counted.
        self.total_bytes = 0
        self.rows = settings.batch_rows

    def saw(self, batch: Batch) -> None:
        """A batch came."""
        self._seen += 1
        if batch.num_rows and (self._seen == 1 or self._seen % self._EVERY == 0):
            self._width = max(1.0, batch.nbytes / batch.num_rows)
            self.rows = max(1, min(self._most, int(self._bytes / self._width)))
        self.total_bytes += int(batch.num_rows * self._width)


# ---------------------------------------------------------------------------------------------------------
# The driver


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What one task of a source reads."""

    node: Source
    #: The columns, without the engine's own.
    schema: Schema
    #: The splits that the coordinator assigned to this task at the start.
    splits: tuple[Split, ...]
    #: Whether something behind it needs event time.
    needs_time: bool
    #: Whether a sink behind it writes the traces and event times of records down.
    carries_headers: bool = False


class SourceDriver:
    """Reads the splits of one task. Opened, called and closed by the task's thread."""

    def __init__(self, share: SourceShare, settings: FlowSettings, clock: Clock) -> None:
        self._share = share
        self._connector: Any = share.node.connector
        self._policy = error_policy(self._connector) or OnError.FAIL
        self._settings = settings
        self._clock = clock
        self._time = share.node.time if share.needs_time else None
        self._splits = {each.name: each for each in share.splits}
        self._positions: dict[str, Any] = {}
        #: The split that was read last, and its position before that.
        self._last: tuple[str, Any] | None = None
        #: The positions of checkpoints that are not known to be complete.
        self._noted: dict[int, dict[str, Any]] = {}
        self._ended: set[str] = set()
        self._restored: dict[str, dict[str, Any]] = {}
        self._watermarks: Watermarks | None = None
        self._silence = Silence(clock, max(_LONGEST_STEP, 2 * settings.poll))
        self._reader: SplitReader | None = None
        #: The reader, if it can tell which splits are at their end.
        self._tail: TailingReader | None = None
        #: The reader, if it can leave splits unread; those that it does; and how far one may be ahead, in microseconds.
        self._holding: SupportsHold | None = None
        self.held: frozenset[str] = frozenset()
        self._drift = int(settings.split_drift * 1_000_000)
        #: The time of the slowest split of this task, and of all tasks of the source as the coordinator told it.
        self.slowest: int | None = None
        self._slowest_of_all: int | None = None
        self._waking = threading.Lock()
        self._is_woken = False
        self.size = BatchSize(settings)
        self.skipped = 0
        self.put_aside = 0

    @property
    def is_bounded(self) -> bool:
        """Whether it has an end."""
        return bool(self._connector.is_bounded)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Go on from the places that all tasks of this source had reached."""
        for state in states:
            if state.shared:
                found = json.loads(state.shared)
                self._check_origin(found["topic"], found["splits"])
                self._restored |= found["splits"]

    def _check_origin(self, source: str, splits: Mapping[str, Any]) -> None:
        """Places in one topic mean nothing in another, though both have a partition 0."""
        mine = topic_of(self._connector)
        if source != mine and not self._splits.keys().isdisjoint(splits):
            raise PreconditionError(
                f"the checkpoint has the places that were reached in topic {source!r}, and the program reads {mine!r}",
                hint="a source of something else is another source: give it a uid of its own, .uid(…), and start with "
                "allow_missing_state and allow_unknown_state",
                topic=source,
            )

    def open(self) -> None:
        """Begin to read."""
        silent = self._silence.seconds()
        self._ended = {name for name in self._splits if self._restored.get(name, {}).get("ended")}
        reading = [split for name, split in self._splits.items() if name not in self._ended]
        self._open_reader(reading)
        if self._time is not None:
            # A split that has an end is not at it before it has ended, however long it brings nothing.
            time = replace(self._time, idle_after=0) if self.is_bounded else self._time
            self._watermarks = Watermarks(time, reading, silent, confirms=self._tail is not None)
        if isinstance(self._reader, FrugalReader):
            reads_times = self._time is not None and not self._time.column
            self._reader.need(times=reads_times, traces=self._share.carries_headers)
        for split in reading:
            self._resume(split, silent)
        if reading and isinstance(self._reader, PlacedReader):
            self._positions |= self._reader.places()

    def _open_reader(self, reading: Sequence[Split]) -> None:
        """Begin to read. Splits that appeared while the job was down are read from their start, whatever `start` is."""
        known = [split for split in reading if not self._restored or split.name in self._restored]
        new = [split for split in reading if split not in known]
        reader = self._connector.open_reader(known, self._share.schema, clock=self._clock)
        if new and isinstance(reader, GrowingReader):
            reader.add(new)
        elif new:
            reader.close()
            reader = self._connector.open_reader(reading, self._share.schema, clock=self._clock)
        self._reader = reader
        self._tail = reader if isinstance(reader, TailingReader) else None
        self._holding = reader if isinstance(reader, SupportsHold) else None

    def _resume(self, split: Split, now: float) -> None:
        known = self._restored.get(split.name)
        if known is None or self._reader is None:
            return
        self._positions[split.name] = known["position"]
        if known["position"] is not None:
            self._reader.seek(split, known["position"])
        if self._watermarks is not None and known["greatest"] is not None:
            self._watermarks.add(split, now, greatest=known["greatest"])

    def fetch(self, out: Output, *, timeout: float) -> Batch | None:
        """The next rows, with the engine's columns; None when there were none. What cannot be read goes by `out`."""
        if self._reader is None:
            return None
        fetched = self._reader.fetch(max_rows=self.size.rows, timeout=timeout)
        self._take_ended()
        if fetched is None:
            return None
        self._last = (fetched.split.name, self._positions.get(fetched.split.name))
        self._positions[fetched.split.name] = fetched.position
        if fetched.poison is not None and fetched.poison.num_rows:
            self._refuse(fetched.poison, out, fetched.split)
        if not fetched.batch.num_rows:
            return None
        self.size.saw(fetched.batch)
        return self._with_columns(fetched, out)

    def watermark(self) -> tuple[int, bool]:
        """The task's watermark, and whether it is idle: one that knows no event time holds nobody back."""
        if self._watermarks is not None and not self.is_done():
            now = self._silence.seconds()
            self._align(self._watermarks, now)
            if self._tail is not None and not self.is_bounded:
                asked = self._watermarks.see_ends(self._tail.at_end(), now)
                if asked:
                    self._watermarks.confirm(asked, self._tail.confirm_end(asked), now)
            return self._watermarks.current(now)
        return (END_OF_TIME, False) if self.is_done() else (START_OF_TIME, True)

    def _align(self, marks: Watermarks, now: float) -> None:
        """Leave splits unread that are too far ahead in event time: windows stay open for the slowest one."""
        if not self._drift:
            return
        self.slowest = marks.slowest(() if self._tail is None else self._tail.at_end(), now)
        known = [each for each in (self.slowest, self._slowest_of_all) if each is not None]
        held = marks.beyond(min(known) + self._drift) if known else frozenset()
        if held != self.held and self._holding is not None:
            self.held = held
            self._holding.hold(held)

    def is_done(self) -> bool:
        """Whether every split has come to its end, and no more can turn up."""
        return self.is_bounded and len(self._ended) == len(self._splits)

    def is_quiet(self) -> bool:
        """Whether everything that is known to be there was read; of readers that cannot tell, and of none, yes."""
        if self.is_bounded:
            return self.is_done()
        return self._tail is None or len(self._tail.at_end()) == len(self._splits)

    def has_nothing(self) -> bool:
        """Whether there is no split to read for now."""
        return len(self._ended) == len(self._splits)

    def add_splits(self, splits: Iterable[Split]) -> None:
        """Read these, too. A reader that cannot take more reads them after the next start."""
        if self.is_bounded or not isinstance(self._reader, GrowingReader):
            return
        new = [split for split in splits if split.name not in self._splits]
        for split in new:
            self._splits[split.name] = split
            if self._watermarks is not None:
                self._watermarks.add(split, self._silence.seconds())
        if new:
            self._reader.add(new)
            self.held = frozenset()  # the reader resumes every split

    def align_time(self, slowest: int | None) -> None:
        """The time of the slowest split of all tasks of this source; None: no split holds the others back."""
        self._slowest_of_all = slowest

    def wake(self) -> None:
        """End a `fetch` that waits, if the reader can. Called by other threads."""
        with self._waking:
            self._is_woken = True
            if isinstance(self._reader, WakeableReader):
                self._reader.wake()

    def was_woken(self) -> bool:
        """Whether `wake` was called since this was last asked: then a `fetch` may have ended before its time."""
        with self._waking:
            was_woken, self._is_woken = self._is_woken, False
        return was_woken

    def snapshot(self) -> OperatorState:
        """The places that its splits have reached."""
        splits = {name: self._entry(split) for name, split in self._splits.items()}
        return OperatorState(shared=json.dumps({"topic": topic_of(self._connector), "splits": splits}).encode())

    def note_positions(self, checkpoint: int) -> None:
        """Remember the positions of a checkpoint until it is complete."""
        if isinstance(self._reader, SupportsOffsets):
            self._noted[checkpoint] = dict(self._positions)

    def commit_offsets(self, checkpoint: int) -> None:
        """A checkpoint is complete: let the reader say how far it was read. Earlier ones are no longer needed."""
        positions = self._noted.get(checkpoint)
        self._noted = {number: each for number, each in self._noted.items() if number > checkpoint}
        if positions and isinstance(self._reader, SupportsOffsets):
            self._reader.commit_offsets(positions)

    def last_read(self) -> str:
        """What was read last, in words: the split and its offsets."""
        if self._last is None:
            return ""
        split, before = self._last
        place = f"{self._connector.label}, split {split}"
        after = self._positions.get(split)
        if not isinstance(after, int) or not isinstance(before, int | None):
            return f"{place}, behind position {json.dumps(before)}, up to {json.dumps(after)}"
        return f"{place}, offsets {before or 0} to {after - 1}"

    def _entry(self, split: Split) -> dict[str, Any]:
        greatest = START_OF_TIME if self._watermarks is None else self._watermarks.greatest(split)
        return {
            "position": self._positions.get(split.name),
            "greatest": None if greatest == START_OF_TIME else greatest,
            "ended": split.name in self._ended,
        }

    def close(self) -> None:
        """Let go of it."""
        with self._waking:  # a reader that is closed must not be woken: its descriptors may be others' by then
            reader, self._reader, self._tail, self._holding = self._reader, None, None, None
        if reader is not None:
            reader.close()

    # -- rows -------------------------------------------------------------------------------------------------

    def _take_ended(self) -> None:
        if self._reader is None:
            return
        for split in self._reader.ended():
            if split.name not in self._ended:
                self._ended.add(split.name)
                if self._watermarks is not None:
                    self._watermarks.end(split)

    def _with_columns(self, fetched: Fetched, out: Output) -> Batch | None:
        batch = fetched.batch
        carried = self._share.carries_headers
        if carried:  # also without any: rows of several sources that meet have the same columns
            traces = pa.nulls(batch.num_rows, pa.binary()) if fetched.traces is None else fetched.traces
            batch = batch.append_column(TRACE, traces)
        if self._time is None:
            return batch.append_column(TIME, fetched.times) if carried and fetched.times is not None else batch
        times = self._times(fetched)
        if times.null_count:
            self._refuse_times(fetched, times, out)
            fits = pc.is_valid(times)
            batch, times = batch.filter(fits), times.filter(fits)
            if not batch.num_rows:
                return None
        if self._watermarks is not None:
            self._watermarks.saw(fetched.split, pc.max(times).as_py(), self._silence.seconds())
        return batch.append_column(TIME, times)

    def _times(self, fetched: Fetched) -> Any:
        time = self._share.node.time
        if time is not None and time.column:
            return to_micros(fetched.batch.column(time.column), time.unit)
        if fetched.times is None:
            rule = "the source has no timestamps of its own: name the column that holds event time"
            raise InvalidError([problem("event time", self._connector.label, rule)])
        return to_micros(fetched.times)

    def _refuse_times(self, fetched: Fetched, times: Any, out: Output) -> None:
        """Rows that have no event time that fits cannot be put into any window: they are poison."""
        rows = pc.indices_nonzero(pc.is_null(times)).to_pylist()
        time = self._time
        if time is not None and time.column:
            column, unit = fetched.batch.column(time.column), time.unit
            reasons = why_unfit(column, unit, rows, f"event time column {time.column!r}")
        else:
            reasons = why_unfit(fetched.times, "us", rows, "the record's own time")
        hint = _HINT
        if fetched.records is None and time is not None and time.column:
            hint = _hint_without_records(time, is_missing=reasons[0] == NO_TIME)
        self._refuse(_as_poison(fetched, rows, reasons), out, fetched.split, rows=len(rows), hint=hint)

    def _refuse(self, poison: Batch, out: Output, split: Split, *, rows: int = 0, hint: str = "") -> None:
        """Do what the policy says with records that cannot be read, or with so many rows of theirs."""
        rows = rows or poison.num_rows
        if self._policy is OnError.FAIL:
            raise PoisonError(
                f"{self._connector.label}, split {split.name}: {rows} rows cannot be read, such as {_first_of(poison)}",
                hint=hint or _HINT,
                split=split.name,
            )
        if self._policy is OnError.SKIP:
            self.skipped += rows
        else:
            self.put_aside += rows
            out.emit_side("errors", as_errors(poison, split))


def _hint_without_records(time: EventTime, *, is_missing: bool) -> str:
    """How to leave rows without event time out, for sources of which some take no `on_error`."""
    unit = f", unit={time.unit!r}" if time.unit else ""
    which = f'col("{time.column}").is_valid()' if is_missing else "…"
    return (
        "leave them out, and name event time behind that instead of at the source: "
        f".filter({which}).event_time({time.column!r}{unit}); "
        "or with from_csv, from_json and from_iterable on_error='skip' or on_error='side'"
    )


def _first_of(poison: Batch) -> str:
    """The first of some records that cannot be read, in words."""
    first = as_errors(poison.slice(0, 1), Split("")).to_pylist()[0]
    offset = "" if first["offset"] is None else f"offset {first['offset']}, "
    key = "" if first["key"] is None else f"key {_cut(first['key'])}, "
    return f"{offset}{key}value {_cut(first['value'])}: {first['error']}"


def _cut(content: bytes | None) -> str:
    return f"{content[:_MAX_SHOWN]!r}…" if content is not None and len(content) > _MAX_SHOWN else repr(content)


def _as_poison(fetched: Fetched, rows: Sequence[int], reasons: Sequence[str]) -> Batch:
    """Rows that were read and cannot be used, as the records that they came from: each of these once."""
    if fetched.lines is not None:
        lines = fetched.lines(rows)
        why = [f"line {line}: {reason}" for (line, _text), reason in zip(lines, reasons, strict=True)]
        offsets, values = [line for line, _text in lines], [text for _line, text in lines]
        return pa.RecordBatch.from_pydict({"offset": offsets, "value": values, "error": why})
    if fetched.records is None or fetched.record_of is None:
        return pa.RecordBatch.from_pydict({"value": _as_texts(fetched.batch.take(rows)), "error": list(reasons)})
    numbers = np.asarray(fetched.record_of)[np.asarray(rows)]
    which, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    why = [
        reasons[at] if count == 1 else f"{reasons[at]}, and {count - 1} more rows of this record"
        for at, count in zip(first.tolist(), counts.tolist(), strict=True)
    ]
    taken = fetched.records.select(["offset", "key", "value"]).take(pa.array(which))
    return taken.append_column("error", pa.array(why, pa.utf8()))


def _as_texts(rows: Batch) -> list[bytes]:
    """Rows as JSON, for people."""
    columns = {name: _as_values(column) for name, column in zip(rows.schema.names, rows.columns, strict=True)}
    found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [json.dumps(row, default=str, ensure_ascii=False).encode(errors="replace") for row in found]


def _as_values(column: Any) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # a time that Python has no room for
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return list(column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64()).to_pylist())
        return ["?"] * len(column)


def as_errors(poison: Batch, split: Split) -> Batch:
    """What a reader could not read, with the columns of `ERRORS`."""
    names = poison.schema.names

    def column(name: str, *, other: str = "") -> Any:
        kind = ERRORS.field(name).type
        found = name if name in names else other
        return poison.column(found).cast(kind) if found in names else pa.nulls(poison.num_rows, kind)

    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(split.name, pa.utf8()), poison.num_rows),
            column("offset"),
            column("key"),
            column("value"),
            column("error", other="reason"),
        ],
        schema=ERRORS,
    )

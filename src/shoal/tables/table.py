"""A table from 64-bit ids to rows: lookups, gradients, assignments, expiry, copies for dumps.

One writer at a time changes a table; its calls take a lock and follow one another. Lookups take no lock, in any thread.
With more than one thread, a batch is split: each thread works on its own shards, so that the result does not depend on
the number of threads. Called by the learner, the model server and `shoal.tables.dumps`.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import InvalidError, PreconditionError, UnsupportedError, problem
from shoal.tables.jobs import Job, JobMaker
from shoal.tables.kernels import filters, index, lookups, places, sweeps, updates
from shoal.tables.kernels.compiling import for_kernel
from shoal.tables.layout import Floats, Words, make_layout
from shoal.tables.memory import HeapMemory, Memory, SharedMemory
from shoal.tables.settings.table import NotFinite, TableKind, TableSettings
from shoal.tables.shards import Directory, Shards
from shoal.tables.turns import TurnLock
from shoal.tables.workers import Workers

Flags = npt.NDArray[np.bool_]
SETTINGS_FILE = "settings"
_LATEST = 2**32 - 1
#: Seconds by which events may be ahead of the clock. Those of a later time do not make others expire.
MOST_AHEAD = 86_400
#: Kinds of arrays that must not become floats: complex ones, objects, texts, times.
_NO_NUMBERS = frozenset("cOUSMm")
_NO_STATES = np.zeros((0, 0), np.float32)


class TimeBasis(enum.StrEnum):
    """Which times the rows of a table have."""

    UNKNOWN = "unknown"
    """Nothing was written yet."""
    EVENT = "event_time"
    """Those of the events, as the caller gave them; "now" is the newest of them, and a day after the clock at most."""
    ARRIVAL = "arrival"
    """Those of the calls; "now" is the clock of this process."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Rows of a table: ids, times of their last updates in seconds since 1970, weights, and states of optimizers."""

    ids: Words
    times: Words
    weights: Floats
    states: Floats

    def take(self, mask: Flags | Words | slice) -> Entries:
        """Those where the mask is true, those at some places, or those of a slice."""
        return Entries(self.ids[mask], self.times[mask], self.weights[mask], self.states[mask])


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """How a table is. Counts begin with the table."""

    ids: int
    bytes: int
    lookups: int
    hits: int
    inserted: int
    removed: int
    not_admitted: int
    no_room: int
    not_finite: int
    time_basis: TimeBasis
    #: The newest time of an update, in seconds since 1970.
    newest: int


class EmbeddingTable:
    """One table.

    Args:
        settings: what it is made of.
        memory: where its memory comes from; the heap if not given. A table in shared memory has readers elsewhere. It
            is closed with the table, and when the table cannot be made.
        threads: how many work on one batch.
        clock: for arrival times.
    """

    def __init__(
        self,
        settings: TableSettings,
        *,
        memory: Memory | None = None,
        threads: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self._memory = memory or HeapMemory()
        try:
            settings.check()
            if not 1 <= threads <= settings.shards:
                rule = f"must be between 1 and the number of shards, which is {settings.shards}"
                raise InvalidError([problem("threads", threads, rule)])
            self.settings = settings
            self.layout = make_layout(settings)
            self._shards = Shards(self.layout, self._memory)
            if isinstance(self._memory, SharedMemory):
                self._memory.write(SETTINGS_FILE, settings.to_json().encode())
        except BaseException:
            self._memory.close()
            raise
        self._clock = clock or SystemClock()
        self._workers = Workers(threads - 1)
        self._jobs = JobMaker(self.layout, settings.shards, threads)
        self._lock = TurnLock()
        self._lookups = self._hits = self._not_finite = 0
        self._basis = TimeBasis.UNKNOWN
        self._newest = 0
        self._filled = np.zeros(1, np.int64)
        self._closed = False
        #: The shard and the place where `expire_some` goes on.
        self._sweep = (0, 0)

    # -----------------------------------------------------------------------------------------------------
    # Reading

    def lookup(self, ids: npt.ArrayLike, out: Floats | None = None) -> Floats:
        """The weights of ids, a line each; zeros for an id that is not there. Nothing is inserted."""
        self._open()
        keys = as_ids(ids)
        values = np.empty((keys.size, self.layout.width), np.float32) if out is None else self._check_out(out, keys)
        self._hits += self._lookup(keys, values)
        self._lookups += keys.size
        return values

    def _lookup(self, keys: Words, values: Floats) -> int:
        layout = self.layout
        while True:
            # Held until the end of the call: a writer may replace it meanwhile, and it keeps the memory alive.
            directory = self._open()
            with self._workers.lead(keys.size) as parts:
                if parts == 1:
                    plan, parameters = layout.plan, layout.parameters
                    found: int = lookups.lookup(directory.shards, layout.geometry, plan, parameters, keys, values)
                else:
                    job = self._jobs.lookup(keys, values, parts)
                    job.see(directory)
                    self._workers.run(job.words)
                    found = job.found
            if found >= 0:
                return found

    # -----------------------------------------------------------------------------------------------------
    # Writing

    def apply(
        self,
        ids: npt.ArrayLike,
        gradients: npt.ArrayLike,
        *,
        step: int = 0,
        event_times: npt.ArrayLike | int | None = None,
    ) -> int:
        """Update ids with gradients, a line each. Gradients of the same id are added up first.

        An id that is not there is inserted if it is admitted: it gets its first weights, then the update.

        Args:
            ids: 64-bit ids.
            gradients: with respect to the weights; float32, a line per id.
            step: the global step, for learning rates and optimizers that count steps.
            event_times: when each event happened, or all of them, in whole seconds since 1970. Without it, now.

        Returns:
            How many different ids there were.

        Raises:
            InvalidError: shapes, types or times are wrong, or gradients are not finite, or larger than 1e15. The
                table is unchanged.
            ExhaustedError: there is no memory for new ids. Some of the ids may have been updated.
        """
        if self.settings.kind is not TableKind.TRAINING:
            raise UnsupportedError(f"table {self.settings.name!r} is for serving: it takes values and no gradients")
        keys = as_ids(ids)
        values = self._as_rows("gradients", gradients, keys.size, self.layout.width)
        if not isinstance(step, numbers.Integral) or not 0 <= step < 2**63:
            raise InvalidError([problem("step", step, "must be from 0 to 2^63 - 1")])
        with self._lock:
            self._open()
            basis, times = self._times(event_times, keys.size)
            rates = np.array([each.rate_at(step) for each in self.settings.slices], np.float32)
            with self._workers.lead(keys.size) as parts:
                job = self._jobs.add_up(keys, times, values, parts)
                self._workers.run(job.words)
                if job.broken and self.settings.not_finite is NotFinite.FAIL:
                    rule = f"must be from -1e15 to 1e15; {job.broken} of the ids have gradients that are not"
                    raise InvalidError([problem("gradients", None, rule)])
                self.layout.admission[filters.A_BATCH] += 1
                self._jobs.apply(job, rates, step)
                self._write(job)
            self._not_finite += job.broken
            self._set_times(basis, times)
        return job.found

    def assign(
        self,
        ids: npt.ArrayLike,
        weights: npt.ArrayLike,
        *,
        states: npt.ArrayLike | None = None,
        event_times: npt.ArrayLike | int | None = None,
    ) -> None:
        """Store weights as they are, whether the ids are there or not; admission is not asked. The last of an id wins.

        Args:
            ids: 64-bit ids.
            weights: float32, a line per id.
            states: of the optimizers, a line per id as `entries` gives them. Without it, a new id gets a first state.
            event_times: as in `apply`.
        """
        keys = as_ids(ids)
        values = self._as_rows("weights", weights, keys.size, self.layout.width)
        given = _NO_STATES if states is None else self._as_states(states, keys.size)
        if not np.isfinite(values).all():
            raise InvalidError([problem("weights", None, "must be finite")])
        with self._lock:
            self._open()
            basis, times = self._times(event_times, keys.size)
            self._set_times(basis, times)
            with self._workers.lead(keys.size) as parts:
                self._write(self._jobs.assign(keys, times, values, given, parts))

    def restore(self, entries: Entries, basis: TimeBasis, *, newest: int) -> None:
        """Store rows of a dump with their times, which are of this kind. States are taken by a training table only.

        `newest` is that of the whole dump: expiry counts from it.
        """
        keys = as_ids(entries.ids)
        values = self._as_rows("weights", entries.weights, keys.size, self.layout.width)
        states = _NO_STATES
        if self.layout.state and entries.states.shape[1]:
            states = self._as_states(entries.states, keys.size)
        if not np.isfinite(values).all():
            raise InvalidError([problem("weights", None, "must be finite")])
        times = for_kernel(np.ascontiguousarray(entries.times, np.int64))
        if times.shape != keys.shape or (times.size and (times.min() < 0 or times.max() > _LATEST)):
            raise InvalidError([problem("times", times.shape, "must be seconds since 1970, one per id")])
        with self._lock:
            self._open()
            if basis is not TimeBasis.UNKNOWN and self._basis not in (TimeBasis.UNKNOWN, basis):
                rule = f"must be of kind {self._basis}, as those of this table are"
                raise InvalidError([problem("times", basis, rule)])
            if basis is not TimeBasis.UNKNOWN:
                self._basis = basis
            self._see(newest)
            with self._workers.lead(keys.size) as parts:
                self._write(self._jobs.assign(keys, times, values, states, parts))

    def first_states(self, count: int) -> Floats:
        """The state that a new id has, so many times."""
        if not self.layout.state:
            return np.zeros((count, 0), np.float32)
        with EmbeddingTable(dataclasses.replace(self.settings, shards=1, expected_ids=0)) as one:
            one.assign([0], np.zeros((1, self.layout.width), np.float32))
            return np.repeat(next(one.entries()).states, count, axis=0)

    def remove(self, ids: npt.ArrayLike) -> int:
        """Take ids out. Returns how many were there."""
        keys = as_ids(ids)
        with self._lock:
            shards = self._open().shards
            found: int = updates.remove_ids(shards, self.layout.geometry, keys)
        return found

    # -----------------------------------------------------------------------------------------------------
    # Expiry

    def expire(self, *, places_at_once: int = 1 << 16) -> int:
        """Take out every id whose lifetime is over. Returns how many.

        The writer's lock is given up after each `places_at_once` places of the index.
        """
        _check_places(places_at_once)
        if not self.settings.expiry.enabled:
            return 0
        total = 0
        for shard in range(self.settings.shards):
            start, capacity = 0, 0
            while start == 0 or start < capacity:
                with self._lock:
                    start, capacity, removed = self._expire_at(shard, start, places_at_once)
                total += removed
        return total

    def expire_some(self, places_at_once: int = 1 << 14) -> int:
        """Look at some places, where the last call ended. Returns how many ids were taken out."""
        _check_places(places_at_once)
        if not self.settings.expiry.enabled:
            return 0
        with self._lock:
            shard, start = self._sweep
            start, capacity, removed = self._expire_at(shard, start, places_at_once)
            self._sweep = (shard, start) if start < capacity else ((shard + 1) % self.settings.shards, 0)
        return removed

    def _expire_at(self, shard: int, start: int, count: int) -> tuple[int, int, int]:
        """Look at some places of a shard, with the lock.

        Returns where to go on, how many places there are, and the removed ids.
        """
        line = self._open().shards[shard]
        floor = -(-self.settings.expiry.keep_at_least // self.settings.shards)
        end, removed = sweeps.expire(
            line, self.layout.geometry, self.layout.lifetimes, self._now(), start, count, floor
        )
        return int(end), int(line[places.D_CAPACITY]), int(removed)

    # -----------------------------------------------------------------------------------------------------
    # The whole table

    def entries(self) -> Iterator[Entries]:
        """A copy of every row, one shard at a time. The writer's lock is held for one shard, then given up.

        What is written between two shards may be in one and not in the other; stop the writer for one moment in time.
        """
        for shard in range(self.settings.shards):
            with self._lock:
                line = self._open().shards[shard]
                count = int(self._shards.headers[shard, places.COUNT])
                found = Entries(
                    np.empty(count, np.int64),
                    np.empty(count, np.int64),
                    np.empty((count, self.layout.width), np.float32),
                    np.empty((count, self.layout.state), np.float32),
                )
                copied = sweeps.copy_shard(
                    line,
                    self.layout.geometry,
                    self.layout.plan,
                    self.layout.parameters,
                    found.ids,
                    found.times,
                    found.weights,
                    found.states,
                )
            if copied:
                yield found

    def live_entries(self) -> Iterator[Entries]:
        """As `entries`, without those whose lifetime is over."""
        for each in self.entries():
            lifetimes = self.layout.lifetimes[(each.ids >> 48) & 0x7FFF]
            expired = (lifetimes > 0) & (self._now() - each.times >= lifetimes)
            yield each.take(~expired) if expired.any() else each

    def __len__(self) -> int:
        return int(self._shards.headers[:, places.COUNT].sum())

    def statistics(self) -> TableStatistics:
        """How the table is now."""
        totals = self._shards.headers[:, : places.FIELDS].sum(axis=0)
        return TableStatistics(
            ids=int(totals[places.COUNT]),
            bytes=self._shards.bytes,
            lookups=self._lookups,
            hits=self._hits,
            inserted=int(totals[places.INSERTED]),
            removed=int(totals[places.REMOVED]),
            not_admitted=int(totals[places.NOT_ADMITTED]),
            no_room=int(totals[places.NO_ROOM]),
            not_finite=self._not_finite,
            time_basis=self._basis,
            newest=self._newest,
        )

    def probe_lengths(self) -> tuple[int, float]:
        """The longest way from where an id belongs to where it is, and the mean of all of them."""
        with self._lock:
            lines = self._open().shards
            found = [index.measure_probes(line[places.D_INDEX], line[places.D_CAPACITY]) for line in lines]
        return max(each[0] for each in found), sum(each[1] for each in found) / max(1, len(self))

    def close(self) -> None:
        """Give the memory back. Readers in other processes see the last state until they close."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._workers.close()
            self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -----------------------------------------------------------------------------------------------------
    # Parts of the above

    def _open(self) -> Directory:
        if self._closed:
            raise PreconditionError(f"table {self.settings.name!r} is closed")
        return self._shards.directory

    def _write(self, job: Job) -> None:
        """Do a job that writes, and make room where it stops."""
        while True:
            job.see(self._open())
            self._workers.run(job.words)
            if not job.stopped:
                break
            for shard in job.stopped:
                self._shards.make_room(shard)
        self._shards.grow_one()

    def _times(self, given: npt.ArrayLike | int | None, count: int) -> tuple[TimeBasis, Words]:
        """The times of a batch. A table has times of one kind only, because its "now" is of that kind."""
        basis = TimeBasis.ARRIVAL if given is None else TimeBasis.EVENT
        if self._basis not in (TimeBasis.UNKNOWN, basis):
            rule = f"must be given always or never; the times of this table are of kind {self._basis}"
            raise InvalidError([problem("event_times", None, rule)])
        if given is None:
            return basis, self._same_time(int(self._clock.wall().timestamp()), count)
        times = np.asarray(given)
        if times.dtype.kind not in "iu" or (times.ndim > 0 and times.shape != (count,)):
            rule = f"must be one whole number, or {count} of them"
            raise InvalidError([problem("event_times", times.shape or times.dtype, rule)])
        if times.size and (times.min() < 0 or times.max() > _LATEST):
            raise InvalidError([problem("event_times", int(times.max()), "must be seconds since 1970, below 2^32")])
        if times.ndim == 0:
            return basis, self._same_time(int(times), count)
        return basis, for_kernel(np.ascontiguousarray(times, np.int64))

    def _same_time(self, time: int, count: int) -> Words:
        """One time for all ids of a batch. Batches follow each other with the same one; memory for it is taken once."""
        if self._filled.size < count or self._filled[0] != time:
            self._filled = np.full(max(count, self._filled.size), time, np.int64)
        return self._filled[:count]

    def _set_times(self, basis: TimeBasis, times: Words) -> None:
        if times.size:
            self._basis = basis
            self._see(int(times.max()))

    def _see(self, newest: int) -> None:
        """Note the newest time. One event with a made-up time must not let every other id expire."""
        latest = int(self._clock.wall().timestamp()) + MOST_AHEAD
        self._newest = max(self._newest, min(newest, latest))

    def _now(self) -> int:
        if self._basis is TimeBasis.ARRIVAL:
            return max(self._newest, int(self._clock.wall().timestamp()))
        return self._newest

    def _as_rows(self, name: str, given: npt.ArrayLike, count: int, width: int) -> Floats:
        try:
            found = np.asarray(given)
            with np.errstate(over="ignore"):  # what is too large is infinite, and refused as such
                rows = np.ascontiguousarray(found, None if found.dtype.kind in _NO_NUMBERS else np.float32)
        except (TypeError, ValueError):
            rows = np.zeros(0, object)
        if rows.dtype != np.float32:
            raise InvalidError([problem(name, type(given).__name__, "must be an array of float32")])
        if rows.shape != (count, width):
            raise InvalidError([problem(name, rows.shape, f"must have the shape {(count, width)}")])
        return for_kernel(rows)

    def _as_states(self, given: npt.ArrayLike, count: int) -> Floats:
        states = self._as_rows("states", given, count, self.layout.state)
        floats = self.layout.state_floats
        if np.isnan(states if floats.all() else states[:, floats]).any():
            raise InvalidError([problem("states", None, "must be numbers")])
        return states

    def _check_out(self, out: Floats, keys: Words) -> Floats:
        wanted = (keys.size, self.layout.width)
        if out.shape != wanted or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
            raise InvalidError([problem("out", out.shape, f"must be a contiguous float32 array of shape {wanted}")])
        return out


def _check_places(count: int) -> None:
    if count < 1:
        raise InvalidError([problem("places_at_once", count, "must be 1 or more")])


def as_ids(given: npt.ArrayLike) -> Words:
    """Ids as int64. Unsigned ones keep their bits."""
    try:
        ids = np.asarray(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidError([problem("ids", type(given).__name__, "must be an array of 64-bit whole numbers")]) from None
    if ids.size == 0:
        return np.zeros(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        shown = f"{ids.dtype} {ids.shape}"
        raise InvalidError([problem("ids", shown, "must be an array of 64-bit whole numbers with one dimension")])
    return for_kernel(np.ascontiguousarray(ids.view(np.int64) if ids.dtype == np.uint64 else ids, np.int64))

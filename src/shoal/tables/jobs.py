"""Writes the jobs that kernels do: a batch, its table, and what each thread needs of its own. Called by `table`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.tables.kernels import jobs, lookups
from shoal.tables.layout import Floats, Layout, Words
from shoal.tables.shards import Directory


@dataclass(slots=True)
class Job:
    """One batch in so many parts. Holds every array whose address is in its words."""

    words: Words
    results: Words
    _held: list[object] = field(default_factory=list)

    def put(self, word: int, array: npt.NDArray[np.generic]) -> None:
        """Write the address of an array."""
        self.words[word] = array.ctypes.data
        self._held.append(array)

    def see(self, directory: Directory) -> None:
        """Write where the shards are."""
        self.put(jobs.J_DIRECTORY, directory.shards)
        self._held.append(directory)

    @property
    def stopped(self) -> set[int]:
        """The shards that lack room for the rest of the batch."""
        at, found = self.results[:, jobs.R_AT], self.results[:, jobs.R_FOUND]
        return set(self.results[at < found, jobs.R_STOPPED].tolist())

    @property
    def broken(self) -> int:
        """How many ids have gradients that are not finite."""
        return int(self.results[:, jobs.R_BROKEN].sum())

    @property
    def found(self) -> int:
        """How many different ids there were; of a lookup, how many were found. Negative when it has to be repeated."""
        each = self.results[:, jobs.R_FOUND]
        return int(each.sum()) if each.min() >= 0 else lookups.STALE


@dataclass(slots=True)
class _Buffers:
    """What one thread needs to add up the gradients of a batch; kept from batch to batch."""

    order: Words
    positions: Words
    scratch: Words
    ids: Words
    counts: Words
    times: Words
    sums: Floats

    @classmethod
    def make(cls, size: int, width: int) -> _Buffers:
        positions, ids, counts, times = (np.zeros(size, np.int64) for _ in range(4))
        scratch, sums = np.zeros(size * 2 + 1, np.int64), np.zeros((size, width), np.float32)
        return cls(np.arange(size), positions, scratch, ids, counts, times, sums)

    def addresses(self) -> list[int]:
        """As kernels read them."""
        arrays = (self.order, self.positions, self.scratch, self.ids, self.counts, self.times, self.sums)
        return [*(each.ctypes.data for each in arrays), self.ids.size]


class JobMaker:
    """Makes the jobs of one table for so many threads."""

    def __init__(self, layout: Layout, shards: int, threads: int) -> None:
        self._layout = layout
        self._buffers = [_Buffers.make(1 << 6, layout.width) for _ in range(threads)]
        #: For each thread, which shards are its own.
        self._flags = np.array([np.arange(shards) % threads == part for part in range(threads)])
        same = Job(np.zeros(jobs.JOB_WORDS, np.int64), np.zeros((0, jobs.RESULT_WORDS), np.int64))
        same.put(jobs.J_GEOMETRY, layout.geometry)
        same.put(jobs.J_PLAN, layout.plan)
        same.put(jobs.J_PARAMETERS, layout.parameters)
        same.put(jobs.J_THRESHOLDS, layout.thresholds)
        same.put(jobs.J_ADMISSION, layout.admission)
        same.put(jobs.J_FLAGS, self._flags)
        same.words[jobs.J_SLICES], same.words[jobs.J_SHARDS] = layout.plan.shape[0], shards
        same.words[jobs.J_SLOTS], same.words[jobs.J_ADMISSION_WORDS] = layout.thresholds.size, layout.admission.size
        same.words[jobs.J_WIDTH] = layout.width
        self._same = same.words

    def lookup(self, ids: Words, values: Floats, parts: int) -> Job:
        """Read the weights of ids. `see` follows, as with the others."""
        return self._make(jobs.LOOKUP, ids, values, parts)

    def assign(self, ids: Words, times: Words, values: Floats, states: Floats, parts: int) -> Job:
        """Store weights, and states where there are any."""
        made = self._make(jobs.ASSIGN, ids, values, parts)
        made.put(jobs.J_TIMES, times)
        made.put(jobs.J_STATES, states)
        made.words[jobs.J_STATE_ROWS], made.words[jobs.J_STATE_WIDTH] = states.shape
        return made

    def add_up(self, ids: Words, times: Words, gradients: Floats, parts: int) -> Job:
        """Add up the gradients of each id. `apply` follows."""
        made = self._make(jobs.SUM, ids, gradients, parts)
        made.put(jobs.J_TIMES, times)
        made.put(jobs.J_BUFFERS, np.array([self._buffer(part, ids.size).addresses() for part in range(parts)]))
        return made

    def apply(self, summed: Job, rates: Floats, step: int) -> None:
        """Make a job that has added gradients up one that applies them."""
        summed.words[jobs.J_KIND], summed.words[jobs.J_STEP] = jobs.APPLY, step
        summed.put(jobs.J_RATES, rates)

    def _make(self, kind: int, ids: Words, values: Floats, parts: int) -> Job:
        made = Job(self._same.copy(), np.zeros((parts, jobs.RESULT_WORDS), np.int64))
        made.words[jobs.J_KIND], made.words[jobs.J_PARTS], made.words[jobs.J_COUNT] = kind, parts, ids.size
        made.put(jobs.J_RESULTS, made.results)
        made.put(jobs.J_IDS, ids)
        made.put(jobs.J_VALUES, values)
        return made

    def _buffer(self, part: int, size: int) -> _Buffers:
        if self._buffers[part].ids.size < size:
            self._buffers[part] = _Buffers.make(1 << (size - 1).bit_length(), self._layout.width)
        return self._buffers[part]

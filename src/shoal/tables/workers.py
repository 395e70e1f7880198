"""Threads that do the parts of one batch beside the caller's.

While they work they need no interpreter's lock, and between two batches that follow closely they do not sleep: handing
a part over costs less than a microsecond then. The caller does the part of a thread that does not begin, because it has
no processor. Called by `table`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from shoal.tables.kernels import jobs
from shoal.tables.layout import Words

#: Smaller batches are not worth a second thread.
SPLIT_FROM = 1024
_NO_JOB = np.zeros(jobs.JOB_WORDS, np.int64)


class Workers:
    """A number of threads beside the caller's. They end with `close`, and never keep a process from ending."""

    def __init__(self, count: int) -> None:
        self._mailbox = np.zeros(jobs.M_PARTS + (count + 1) * jobs.LINE_WORDS, np.int64)
        #: The number of the job that the threads have to be awake for.
        self._promised = 0
        self._closed = False
        self._leading = threading.Lock()
        self._asleep = [False] * count
        self._wakes = [threading.Semaphore(0) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._serve, args=(each,), name="shoal-table", daemon=True) for each in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def lead(self, ids: int) -> Iterator[int]:
        """Reserve the threads for a batch of so many ids. Gives the parts to split it into: 1 when they are busy."""
        if ids < SPLIT_FROM or not self._threads or not self._leading.acquire(blocking=False):
            yield 1
            return
        try:
            # A process that was forked has no threads but the one that forked it; a closed one has none at all.
            alive = all(each.is_alive() for each in self._threads)
            yield len(self._threads) + 1 if alive else 1
        finally:
            self._leading.release()

    def run(self, job: Words) -> None:
        """Do a job. The caller leads, unless the job has one part."""
        if job[jobs.J_PARTS] == 1:
            jobs.take_part(self._mailbox, job, 0, 0)
            return
        number = int(self._mailbox[jobs.M_POSTED]) + 1
        self._promised = number
        try:
            for each in range(len(self._threads)):
                if self._asleep[each]:
                    self._wake(each)
            jobs.take_part(self._mailbox, job, number, 0)
        finally:
            # An interrupt before the job was posted takes the promise back.
            self._promised = int(self._mailbox[jobs.M_POSTED])

    def close(self) -> None:
        """End the threads and wait for them. A batch that they work on is done first."""
        with self._leading:
            self._closed = True
            for each in range(len(self._threads)):
                self._wake(each)
            for thread in self._threads:
                thread.join()
            self._threads = []

    def _wake(self, each: int) -> None:
        self._asleep[each] = False
        self._wakes[each].release()

    def _serve(self, each: int) -> None:
        seen = 0
        while not self._closed:
            seen = jobs.take_part(self._mailbox, _NO_JOB, seen, each + 1)
            # In this order: the leader promises first and looks for sleepers then, so that one of both sees the other.
            # Both may; then the thread wakes once for nothing.
            self._asleep[each] = True
            if self._promised == seen and not self._closed:
                self._wakes[each].acquire()
            self._asleep[each] = False

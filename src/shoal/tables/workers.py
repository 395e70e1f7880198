"""Threads that do the parts of one batch. Cheaper than an executor: a part takes a fraction of a millisecond.

Called by `table`, with its writer's lock or for lookups of several threads at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

_Answer = tuple[int, Any, BaseException | None]
_Job = tuple[Callable[[int], Any], int, "queue.SimpleQueue[_Answer]"]


class Workers:
    """A number of threads beside the caller's. They end with `close`, and never keep a process from ending."""

    def __init__(self, count: int) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name="shoal-table", daemon=True) for _ in range(count)]
        for each in self._threads:
            each.start()

    def run(self, work: Callable[[int], Any], parts: int) -> Sequence[Any]:
        """Call `work` with every number below `parts`, 0 in this thread. Returns once all are done.

        The first error, by number, is raised; the other parts are done nevertheless.
        """
        if parts == 1 or not self._threads:
            return [work(part) for part in range(parts)]
        answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        for part in range(1, parts):
            self._jobs.put((work, part, answers))
        found = sorted([_do(work, 0), *(answers.get() for _ in range(1, parts))], key=lambda each: each[0])
        for _, _, error in found:
            if error is not None:
                raise error
        return [result for _, result, _ in found]

    def close(self) -> None:
        """End the threads and wait for them."""
        for _ in self._threads:
            self._jobs.put(None)
        for each in self._threads:
            each.join()
        self._threads = []

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, part, answers = job
            answers.put(_do(work, part))
            del job, work, answers  # an idle thread holds no table alive


def _do(work: Callable[[int], Any], part: int) -> _Answer:
    try:
        return part, work(part), None
    except BaseException as error:  # noqa: BLE001  it is raised again in the thread that waits
        return part, None, error

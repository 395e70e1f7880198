"""Waking a reader that is being closed: its descriptor may be somebody else's by then."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from shoal.topics.local.history.watch import Watch


def test_a_wake_ends_a_wait(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.wake()
    watch.wait(60)
    assert watch.woken()
    assert not watch.woken()
    watch.close()
    watch.close()


def test_who_wakes_it_after_its_end_touches_nobody_elses_descriptor(tmp_path: Path) -> None:
    """Whatever the threads do, a descriptor that was opened behind its end counts no wake."""
    for _round in range(50):
        watch = Watch(tmp_path)
        begin = threading.Barrier(3)

        def wake(watch: Watch = watch, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for _turn in range(20):
                watch.wake()

        threads = [threading.Thread(target=wake) for _ in range(2)]
        for thread in threads:
            thread.start()
        begin.wait()
        watch.close()
        others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]  # the numbers that were given back, and one more
        for thread in threads:
            thread.join()
        for other in others:
            try:
                assert os.eventfd_read(other) == 0
            except BlockingIOError:
                pass
            finally:
                os.close(other)

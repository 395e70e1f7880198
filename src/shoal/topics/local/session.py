"""One life of a process in the log: an entry that begins it, a lease that keeps it, an entry that ends it.

Threads renew the lease and watch those of other sessions. A process that finds an expired lease writes so into the
journal. From that entry on everything of the dead session is void: its appends, its transactions, its commits. A
session that was taken for dead and was only stopped finds that entry; the process then begins a new one when it next
needs one.

Called by `shoal.topics.local.topics`; calls `view` and `leases`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from shoal.core.errors import ShoalError
from shoal.topics.local.history.entries import EndSession, OpenSession
from shoal.topics.local.history.view import View
from shoal.topics.local.leases import HeldLease, HostClock, is_over, read_lease
from shoal.topics.local.places import typed_errors

log = logging.getLogger(__name__)


class Session:
    """A session of this process, with the two threads that keep it.

    One does nothing but renew the lease, so that a slow disk under the journal does not cost it.
    """

    def __init__(self, view: View, clock: HostClock, *, name: str, boot: str) -> None:
        self.name = name
        self.boot = boot
        self._view = view
        self._clock = clock
        self._lease_seconds = view.settings.lease.total_seconds()
        self._interval = view.settings.check_interval.total_seconds()
        self._stop = threading.Event()
        self._rounds: list[Callable[[], None]] = []
        # The lease is written before the entry: no session may be seen without one.
        with typed_errors(view.places.leases):
            self._lease = HeldLease(view.places.leases / name, boot, self._until())
        try:
            view.submit(OpenSession(name))
        except BaseException:
            self._lease.close()
            raise
        self._threads = [
            threading.Thread(target=work, name=f"topics-{what}-{name}", daemon=True)
            for what, work in (("lease", self._keep), ("judge", self._judge))
        ]
        for thread in self._threads:
            thread.start()

    def is_alive(self) -> bool:
        """Whether the others still believe in it, as far as the journal was read."""
        with self._view.lock:
            return self.name in self._view.state.sessions

    def each_round(self, work: Callable[[], None]) -> None:
        """Do something quick every half second."""
        self._rounds.append(work)

    def end_dead_sessions(self, *, patient: bool = False) -> None:
        """Say in the journal of every session whose lease is over that it has ended."""
        with self._view.lock:
            others = [name for name in self._view.refresh().sessions if name != self.name]
        for name in others:
            path = self._view.places.leases / name
            if is_over(read_lease(path), boot=self.boot, now=self._clock.since_boot(), patient=patient):
                log.info("session %s of the local log %s is dead", name, self._view.places.root)
                self._view.submit(EndSession(name))
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """End it: its partitions and transactional ids are free at once."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        try:
            if self.is_alive():
                self._view.submit(EndSession(self.name))
        finally:
            self._lease.close()

    def _until(self) -> float:
        return self._clock.since_boot() + self._lease_seconds

    def _keep(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._lease.renew(self._until())
            except OSError as error:
                log.warning("the lease of the local log %s was not renewed: %s", self._view.places.root, error)

    def _judge(self) -> None:
        last = self._clock.since_boot()
        patient_until = 0.0
        while not self._stop.wait(self._interval):
            now = self._clock.since_boot()
            if now - last > self._lease_seconds / 2:
                # We were stopped, or the machine slept: everybody else gets the time to renew once more.
                patient_until = now + self._lease_seconds
            last = now
            try:
                self.end_dead_sessions(patient=now < patient_until)
                for work in list(self._rounds):
                    work()
            except (ShoalError, OSError) as error:
                log.warning("the local log %s: %s; trying again", self._view.places.root, error)

"""The program of a task host on a fleet: `python -m shoal.dataflow.execution.remote.task_host`.

It finds its coordinator, by what the control plane knows or by the address that it wrote down before, says hello, and
is given an epoch's work. When an epoch ends, or the coordinator is gone, it replaces its own process image: nothing of
an epoch is left for the next one. While it misses its coordinator it says so to the control plane, before it tries to
reach it again: a process that stands still takes connections and says nothing.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from shoal.core import faults
from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import InvalidError, ShoalError
from shoal.dataflow.execution.hosts.control_link import ControlLink
from shoal.dataflow.execution.hosts.control_messages import (
    BadMessageError,
    HostCounts,
    HostHello,
    HostShare,
    JoinEpoch,
    Ping,
    decode_from_coordinator,
    encode,
)
from shoal.dataflow.execution.hosts.host_process import run_host
from shoal.dataflow.execution.remote.board import Board
from shoal.dataflow.execution.remote.code import open_code
from shoal.dataflow.execution.remote.connections import dial
from shoal.dataflow.execution.remote.delegated import TermKey, keep_key, read_key
from shoal.dataflow.execution.remote.series import HostSeries
from shoal.dataflow.execution.remote.surroundings import Surroundings, surroundings_of, take_arguments
from shoal.dataflow.execution.scratch import make_short_scratch
from shoal.dataflow.fleet.reports import HostReport, decode_coordinator
from shoal.dataflow.fleet.reports import encode as encode_report
from shoal.exchange.hosts import HOST_VARIABLE
from shoal.exchange.tokens import Gate, JobKey

log = logging.getLogger(__name__)

#: Seconds without a sign of life of the coordinator after which it is missed.
SILENCE = 3.0
#: Seconds between two looks for the coordinator.
_LOOK = 0.2
#: Seconds for which an image had not heard the coordinator when it ended, after which the next one asks the control
#: plane first.
_AWAY = 1.5
_MEMORY = "coordinator.json"
_MOST_FOLDER = 60


@dataclass(frozen=True, slots=True)
class Known:
    """What a task host remembers of its coordinator, in its working directory."""

    address: str = ""
    term: int = 0
    node: str = ""
    #: When it was last heard, by the clock of the machine, and by which process.
    heard_at: float = 0.0
    pid: int = 0
    #: When this was written down.
    noted_at: float = 0.0

    @property
    def was_away(self) -> bool:
        """Whether it was away when this was written down. How long an image takes to begin says nothing about it."""
        return self.noted_at - self.heard_at >= _AWAY


class Search:
    """Finds the coordinator, and remembers it."""

    def __init__(
        self,
        around: Surroundings,
        board: Board,
        coordinator: str,
        number: int,
        folder: Path,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._around = around
        self._board = board
        self._coordinator = coordinator
        self._number = number
        self._folder = folder
        self._path = folder / _MEMORY
        self._key = read_key(folder) or TermKey()
        self._clock: Clock = clock or SystemClock()
        self.known = self._read()

    def _read(self) -> Known:
        try:
            known = Known(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return Known()
        # Another process, which was killed, may have heard it after this was written. An image of this one has not.
        return known if known.pid == os.getpid() else replace(known, heard_at=self._clock.monotonic())

    @property
    def misses(self) -> float:
        """For how many seconds the coordinator was not heard; 0 before there is one."""
        known = self.known
        return max(0.0, self._clock.monotonic() - known.heard_at) if known.term else 0.0

    def remember(self, known: Known) -> None:
        """Write down where the coordinator is. A full disk costs a search."""
        self.known = known = replace(known, pid=os.getpid(), noted_at=self._clock.monotonic())
        try:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(known)))
            fresh.replace(self._path)
        except OSError as error:
            log.warning("the coordinator's address is not written down: %s", error)

    def heard(self, known: Known | None = None) -> None:
        """A coordinator gave a sign of life: this one, or the one that is known."""
        self.known = replace(known or self.known, heard_at=self._clock.monotonic())

    def candidates(self) -> Iterator[Known]:
        """Where the coordinator may be: where it was, or what the control plane says; again and again."""
        if self.known.address and not self.known.was_away:
            yield self.known  # between two epochs it is where it was
        while True:
            asked = self.ask()
            if asked is not None and asked.address:
                yield asked
            elif self.known.address:
                yield self.known
            threading.Event().wait(_LOOK)

    def ask(self) -> Known | None:
        """Ask the control plane, and say for how long the coordinator is missed."""
        known, misses = self.known, self.misses
        report = HostReport(self._number, known.term, known.node, misses if misses >= SILENCE else 0.0)
        try:
            answer = self._board.report(encode_report(report), [self._coordinator], key_of=self._coordinator)
            if answer.key.term and answer.key != self._key:
                self._key = answer.key
                keep_key(self._folder, answer.key)
            said = answer.reports.get(self._coordinator)
            found = None if said is None else decode_coordinator(said)
        except (ShoalError, InvalidError) as error:
            log.info("the control plane does not say where the coordinator is: %s", error)
            return None
        return None if found is None else Known(found.address, found.term, found.node, known.heard_at)

    def key_for(self, job: str, joined: JoinEpoch) -> JobKey | None:
        """The key of an epoch; None for a coordinator of a term for which the control plane gives none any more."""
        if self._key.term > joined.term:
            return None  # the coordinator was replaced
        for is_asked in (False, True):
            # A host that a rescale left in its place is not heard by the control plane: it takes what it is handed.
            if joined.key and JobKey(joined.key).proof(job, joined.epoch) == joined.proof:
                return JobKey(joined.key)
            if is_asked:
                self.ask()
            if self._key.term == joined.term:
                key = JobKey(self._key.secret)
                if hmac.compare_digest(key.proof(job, joined.epoch), joined.proof):
                    return key
        return None


def connect(around: Surroundings, search: Search, number: int) -> tuple[ControlLink, JoinEpoch, JobKey, str]:
    """Wait until a coordinator gives this host work, and the key for it. Also returns the address of this end."""
    hello = encode(HostHello(number, around.generation, around.node_id, around.host_id, os.getpid()))
    for known in search.candidates():
        if known.term < search.known.term:
            continue  # it was replaced
        try:
            connection, own = dial(known.address, around.certificate, around.job_id)
        except (OSError, ShoalError, ValueError) as error:
            log.info("the coordinator is not at %s: %s", known.address, error)
            continue
        link = ControlLink(connection, heard=partial(_note, search, known))
        link.limit_reads(SILENCE)
        try:
            link.send(hello)
            joined = _wait_for_work(link)
        except ShoalError as error:
            log.info("the coordinator at %s: %s", known.address, error)
            joined = None
        if joined is not None and joined.term >= search.known.term:
            key = search.key_for(around.job_id, joined)
            if key is not None:
                search.remember(replace(search.known, term=joined.term))
                return link, joined, key, own
            log.warning("no key is known for term %d of the coordinator at %s", joined.term, known.address)
        link.release()
    raise AssertionError("the search does not end")


def _note(search: Search, known: Known) -> None:
    """A message came from this coordinator."""
    search.heard(replace(known, term=max(known.term, search.known.term)))


def _wait_for_work(link: ControlLink) -> JoinEpoch | None:
    while (content := link.receive()) is not None:
        message = decode_from_coordinator(content)
        if isinstance(message, JoinEpoch):
            return message
        if not isinstance(message, Ping):
            raise BadMessageError("type", type(message).__name__, "must be work for a host that waits")
    return None


#: In the working directory, which a process keeps that is started again on its node.
_COPIES = "state-copies"


def begin_again(arguments: list[str]) -> NoReturn:
    """Replace this process image: the next epoch begins with nothing of this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", __spec__.name if __spec__ else __name__, *arguments])  # noqa: S606


def main(arguments: list[str]) -> NoReturn:
    """The entry point."""
    given = take_arguments("task_host", arguments, {"job": str, "revision": str, "number": int, "coordinator": str})
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faults.arm_from_environment()
    folder = Path.cwd()
    environment = dict(os.environ)
    around = surroundings_of(given.job, environment)
    open_code(folder)
    board = Board(around)
    search = Search(around, board, given.coordinator, given.number, folder)
    link, joined, key, own = connect(around, search, given.number)
    if joined.is_spread:
        os.environ[HOST_VARIABLE] = around.address or own
    gate = Gate(given.job, joined.epoch, key)
    sockets = make_short_scratch(_MOST_FOLDER)

    def leave(_code: int) -> NoReturn:
        search.remember(search.known)  # with the time when it was last heard
        if search.misses >= SILENCE:
            search.ask()  # this process image is the first that knows
        begin_again(arguments)

    series: list[HostSeries] = []

    def tell(share: HostShare, counts: HostCounts) -> None:
        if not series:
            series.append(HostSeries(folder, given.job, share.job, SystemClock()))
        series[0].write(counts, share.settings.queue_bytes)

    run_host(link, gate, sockets.path, given.number, leave=leave, tell=tell, copies=str(folder / _COPIES))
    leave(0)


if __name__ == "__main__":
    main(sys.argv[1:])

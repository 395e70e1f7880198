"""The agent's side of the keeper's socket: a connection that mends itself.

`KeeperLink` sees to it that a keeper is there and that we are connected to it; when the connection breaks, because
the keeper was killed, it starts another one, which recovers from the run records. It keeps a view of all runs, in
which an end once seen is never lost. Called by `shoal.runtimes.kept`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.clock import Clock
from shoal.core.errors import (
    DeadlineError,
    ExhaustedError,
    InternalError,
    InvalidError,
    PreconditionError,
    Problem,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.core.ids import RunId
from shoal.core.retry import Backoff
from shoal.core.tasks import TaskScope
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.keeper import protocol
from shoal.runtimes.keeper.deadlines import NO_SLOT, DeadlineTable
from shoal.runtimes.keeper.files import KeeperFiles, connect
from shoal.runtimes.keeper.launcher import IDLE_SECONDS, launch_keeper
from shoal.runtimes.keeper.records import RunRecord, read_keeper_pid, record_from_json

log = logging.getLogger(__name__)

#: A keeper that works answers in milliseconds; one that is stopped, or whose disk hangs, does not.
CALL_TIMEOUT = 5.0
_HELLO_TIMEOUT = 5.0
_RECONNECT = Backoff(first=0.1, cap=5.0)
_LAUNCH_TRIES = 50


class ConnectionLostError(UnavailableError):
    """The keeper hung up before it answered."""


class KeeperConnection:
    """One connection, from hello to its end."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hello: dict[str, Any],
        on_ended: Callable[[RunRecord], None],
    ) -> None:
        self.hello = hello
        self._reader = reader
        self._writer = writer
        self._on_ended = on_ended
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last = 0
        self._ended = asyncio.Event()

    @classmethod
    async def open(cls, files: KeeperFiles, on_ended: Callable[[RunRecord], None]) -> KeeperConnection:
        """Connect and hear the hello. Raises OSError when nobody listens, `DeadlineError` when it does not speak."""
        link = connect(files.socket)
        reader, writer = await asyncio.open_unix_connection(sock=link, limit=protocol.MAX_LINE * 8)
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT):
                message = protocol.decode(await reader.readline())
            hello = message["hello"]
            int(hello["version"]), int(hello["since"])
        except TimeoutError as error:
            writer.close()
            raise DeadlineError("the keeper took the connection and does not answer") from error
        except (KeyError, TypeError, ValueError, OSError, protocol.ProtocolError) as error:
            writer.close()
            raise ConnectionLostError(f"the keeper did not greet: {error!r}") from error
        return cls(reader, writer, hello, on_ended)

    async def read(self) -> None:
        """Take in answers and events until the connection ends."""
        try:
            while line := await self._reader.readline():
                self._take(protocol.decode(line))
        except (OSError, ValueError, protocol.ProtocolError) as error:
            log.warning("the connection to the keeper broke: %r", error)
        finally:
            self.close()
            self._ended.set()

    async def wait_closed(self, timeout: float) -> None:
        """Wait until the keeper has hung up, which it does when its process ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._ended.wait()

    async def call(self, op: str, *, timeout: float, **fields: Any) -> dict[str, Any]:
        """Ask and wait for the answer. Raises what the keeper refused with, or `DeadlineError`."""
        self._last += 1
        number = self._last
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            if self._writer.is_closing():
                raise ConnectionLostError("the keeper is gone")
            self._writer.write(protocol.encode({"id": number, "op": op, **fields}))
            async with asyncio.timeout(timeout):
                message = await answer
        except TimeoutError as error:
            raise DeadlineError(
                f"the keeper (pid {self.hello.get('pid')}) did not answer {op} within {timeout:g} s",
                hint="it may be stopped (SIGSTOP) or its disk may hang",
                op=op,
            ) from error
        finally:
            self._waiting.pop(number, None)
        if "error" in message:
            raise _error_of(message["error"])
        body: dict[str, Any] = message["ok"]
        return body

    def close(self) -> None:
        """Close the connection; pending calls fail."""
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLostError("the keeper hung up before it answered"))

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            ended = message["event"].get("ended")
            if ended is not None:
                self._on_ended(record_from_json(ended))
            return
        answer = self._waiting.get(message.get("id", 0))
        if answer is not None and not answer.done():
            answer.set_result(message)


def _error_of(body: dict[str, Any]) -> ShoalError:
    message, hint = str(body.get("message", "")), str(body.get("hint", ""))
    match body.get("kind"):
        case "run":
            return RunError(
                message,
                failure=FailureReason(body.get("failure", "RUNTIME_ERROR")),
                transient=bool(body.get("transient")),
                hint=hint,
            )
        case "invalid":
            return InvalidError([Problem(field="request", value="", rule=message)], hint=hint)
        case "precondition":
            return PreconditionError(message, hint=hint)
        case "exhausted":
            return ExhaustedError(message, hint=hint)
        case "unsupported":
            return UnsupportedError(message, hint=hint)
        case "unavailable":
            return UnavailableError(message, hint=hint)
    return InternalError(message, hint=hint)


class KeeperLink:
    """A keeper that is always there, as far as that can be."""

    def __init__(
        self,
        files: KeeperFiles,
        *,
        clock: Clock,
        oldest_keeper: int = protocol.OLDEST_FULL_KEEPER,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self._files = files
        self._clock = clock
        self._oldest_keeper = oldest_keeper
        self._idle = idle
        self._scope = TaskScope("keeper-link")
        self._connection: KeeperConnection | None = None
        self._changed = asyncio.Event()
        self._runs: dict[RunId, RunRecord] = {}
        #: Grows with every connection: what was asked of an earlier keeper may have been forgotten with it.
        self.connections = 0
        self._keeper_pid: object = None
        self._table: DeadlineTable | None = None
        #: Why there is no connection.
        self.trouble = "not opened"
        self.closed = False

    @property
    def runs(self) -> dict[RunId, RunRecord]:
        """A copy of what is known of every run that was not forgotten."""
        return dict(self._runs)

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change of the runs or of the connection. Take it before looking, then wait on it."""
        return self._changed

    @property
    def hello(self) -> dict[str, Any]:
        """What the keeper said of itself; empty without a connection."""
        return self._connection.hello if self._connection is not None else {}

    @property
    def serves_in_full(self) -> bool:
        """Whether the keeper is of a version with which everything works, not only winding it down."""
        hello = self.hello
        return int(hello.get("version", 0)) >= self._oldest_keeper and int(hello.get("since", 0)) <= protocol.VERSION

    async def open(self) -> None:
        """Connect, starting a keeper if there is none. Raises when neither can be done."""
        await self._establish()
        self._scope.start(self._supervise(), name="supervise")

    async def close(self) -> None:
        """Let go of the keeper; it is told to go if nothing runs."""
        if self.closed:
            return
        self.closed = True
        if self._connection is not None and not self._alive():
            with contextlib.suppress(ShoalError):
                await self._connection.call("shutdown", timeout=CALL_TIMEOUT, unless_shared=True)
                await self._connection.wait_closed(CALL_TIMEOUT)
                await self._wait_gone()
        await self._scope.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._close_table()
        self._notify()

    async def call(self, op: str, *, timeout: float = CALL_TIMEOUT, **fields: Any) -> dict[str, Any]:
        """Ask the keeper, and its successor if it dies meanwhile: every operation may be repeated."""
        ends_at = self._clock.monotonic() + timeout
        while True:
            connection = await self._wait_connected(ends_at)
            try:
                return await connection.call(op, timeout=max(0.0, ends_at - self._clock.monotonic()), **fields)
            except ConnectionLostError:
                if self._connection is connection:
                    self._drop("the keeper hung up")

    async def list_all(self) -> dict[str, RunRecord]:
        """Every run the keeper knows."""
        after, found, more = "", dict[str, RunRecord](), True
        while more:
            body = await self.call("list", after=after)
            found |= _page(body)
            more = bool(body["more"])
            after = max(found, default="")
        return found

    def note(self, record: RunRecord) -> None:
        """Take a record into the view. A run that has ended does not come to life again by an older message."""
        before = self._runs.get(record.run_id)
        if before is not None and before.exit is not None and record.exit is None:
            return
        self._runs[record.run_id] = record
        self._notify()

    async def extend(self, run_ids: tuple[RunId, ...], *, until: float) -> None:
        """Move the deadlines of runs to a moment on CLOCK_BOOTTIME.

        In the shared table, so that a keeper that is stopped or waits for its disk does not delay it. The keeper is
        told when a deadline becomes earlier, which is rare; one of an earlier version has no table and is always told.
        """
        now = LinuxClock().boottime()
        asked = []
        for run_id in run_ids:
            record = self._runs.get(run_id)
            if self._table is None or record is None or record.slot == NO_SLOT:
                asked.append(run_id)
                continue
            if until < self._table.read(record.slot):
                asked.append(run_id)
            self._table.extend(record.slot, until, now=now)
        if asked:
            await self.call("extend", run_ids=asked, until=until)

    def drop_run(self, run_id: RunId) -> None:
        """Leave a forgotten run out of the view."""
        self._runs.pop(run_id, None)

    # --- the connection -----------------------------------------------------------------------------------

    async def _wait_connected(self, ends_at: float) -> KeeperConnection:
        while self._connection is None:
            changed = self._changed
            if self.closed or not self.connections:
                raise UnavailableError(f"the runtime is {'closed' if self.closed else 'not open'}")
            try:
                async with asyncio.timeout(max(0.0, ends_at - self._clock.monotonic())):
                    await changed.wait()
            except TimeoutError as error:
                raise UnavailableError(f"there is no keeper: {self.trouble}") from error
        return self._connection

    async def _supervise(self) -> None:
        failures = 0
        while not self.closed:
            if self._connection is not None:
                failures = 0
                if not self.serves_in_full and not self._alive():
                    await self._replace_keeper(self._connection)
                changed = self._changed
                if self._connection is not None:
                    await changed.wait()
                continue
            try:
                await self._establish()
            except (OSError, KeyError, TypeError, ValueError, ShoalError) as error:
                failures += 1
                self.trouble = str(error)
                log.warning("no connection to the keeper of %s: %s", self._files.data_dir, error)
                self._notify()
                await self._clock.sleep(_RECONNECT.plain_delay(failures))

    async def _establish(self) -> None:
        """Get a connection and the runs behind it."""
        connection = await self._connect_or_launch()
        reading = self._scope.start(self._read(connection), name="read")
        try:
            listed: dict[str, RunRecord] = {}
            after, more = "", True
            while more:
                body = await connection.call("list", timeout=CALL_TIMEOUT, after=after)
                listed |= _page(body)
                more = bool(body["more"])
                after = max(listed, default="")
        except ShoalError:
            reading.cancel()
            connection.close()
            raise
        self._tell_of_another_keeper(connection.hello.get("pid"), listed)
        self._open_table(connection.hello)
        for run_id in self._runs.keys() - listed.keys():
            del self._runs[run_id]
        for record in listed.values():
            self.note(record)
        self._connection = connection
        self.connections += 1
        self.trouble = ""
        if not self.serves_in_full:
            log.warning("the keeper speaks version %s; it can only be wound down", connection.hello["version"])
        self._notify()

    def _open_table(self, hello: Mapping[str, Any]) -> None:
        self._close_table()
        if "deadlines" in hello:
            try:
                self._table = DeadlineTable.attach(int(hello["pid"]), int(hello["deadlines"]))
            except OSError as error:
                log.warning(
                    "the keeper's table of deadlines cannot be opened, so they go through the keeper: %s", error
                )

    def _close_table(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None

    def _tell_of_another_keeper(self, pid: object, listed: Mapping[str, RunRecord]) -> None:
        """Nobody else says so: a keeper that was killed is replaced at once, and only what it kept shows it."""
        before, self._keeper_pid = self._keeper_pid, pid
        if before is None or before == pid:
            return
        lost = sum(
            known.exit is None and (after := listed.get(run_id)) is not None and after.exit is not None
            for run_id, known in self._runs.items()
        )
        log.warning(
            "the keeper (pid %s) is gone, another one (pid %s) took over; %d runs ended with it", before, pid, lost
        )

    async def _connect_or_launch(self) -> KeeperConnection:
        trouble: Exception = UnavailableError("no keeper answers")
        for attempt in range(_LAUNCH_TRIES):
            try:
                return await KeeperConnection.open(self._files, self.note)
            except (FileNotFoundError, ConnectionRefusedError, ConnectionLostError) as error:
                trouble = error
            # The first time nobody is there. After that, another keeper may be coming up, or one may be going.
            if attempt % 10 == 0:
                await launch_keeper(self._files, idle=self._idle)
            else:
                await self._clock.sleep(0.1)
        raise UnavailableError(f"no keeper answers at {self._files.socket}: {trouble}") from trouble

    async def _read(self, connection: KeeperConnection) -> None:
        await connection.read()
        if self._connection is connection:
            self._drop("the keeper hung up")

    async def _replace_keeper(self, connection: KeeperConnection) -> None:
        with contextlib.suppress(ShoalError):
            await connection.call("shutdown", timeout=CALL_TIMEOUT)
            self._keeper_pid = None
            self._drop("a keeper of another version is being replaced")

    def _drop(self, trouble: str) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self.trouble = trouble
        self._notify()

    async def _wait_gone(self) -> None:
        """Wait for the exit of the keeper: it closes its connection a moment before it ends."""
        for _ in range(100):
            if read_keeper_pid(self._files.data_dir) is None:
                return
            await self._clock.sleep(0.01)

    def _alive(self) -> bool:
        return any(record.exit is None for record in self._runs.values())

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _page(body: dict[str, Any]) -> dict[str, RunRecord]:
    records = (record_from_json(each) for each in body["runs"])
    return {record.run_id: record for record in records}

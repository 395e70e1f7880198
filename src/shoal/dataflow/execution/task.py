"""A task: one thread that reads its input, calls its chain, and keeps time, watermarks and checkpoints.

`SourceTask` reads a source, `InboxTask` the channels from other tasks. Both are plain synchronous loops. Made by
`shoal.dataflow.execution.building`, started by
`shoal.dataflow.execution.hosts.task_host`. Commands come in by the mailbox, reports go out by `report`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.core.clock import Clock
from shoal.core.faults import reach
from shoal.core.threads import SYSTEM, Threads, threads_of
from shoal.dataflow.checkpoint.handles import FileHandle, StepState
from shoal.dataflow.checkpoint.messages import (
    AddSplits,
    AlignTime,
    Command,
    Commit,
    Committed,
    Drained,
    Finish,
    Pause,
    Report,
    Resume,
    SourceTime,
    StopReading,
    TaskId,
    Trigger,
)
from shoal.dataflow.checkpoint.uploads import StateUploads
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.errors import OperatorFailedError
from shoal.dataflow.execution.alignment import AlignedInbox, Idle
from shoal.dataflow.execution.chain import Chain, Receiver, StepCounts
from shoal.dataflow.execution.sources import SourceDriver
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Barrier, End, Watermark
from shoal.dataflow.settings import FlowSettings
from shoal.exchange.errors import Cancelled

#: A batch with less than this part of the rows that were asked for is small.
_SMALL = 16
#: Batches that follow each other within so many paces are a stream; what comes after a longer rest is not kept waiting.
_STEADY = 10
#: Seconds between two looks whether a step that makes event time has become idle.
_IDLE_LOOK = 0.5
#: Seconds between two reports of the time of the slowest split.
_REPORT_EVERY = 0.1


class Mailbox:
    """Commands for a task from other threads."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        self._commands: deque[Command] = deque()
        self._condition = threads.condition()
        self._cancelled = False
        self._failure: BaseException | None = None
        #: Ends whatever else the task waits for.
        self.interrupt: Callable[[], None] = _nothing

    def put(self, command: Command) -> None:
        """Queue a command and wake the task."""
        with self._condition:
            self._commands.append(command)
            self._condition.notify()
        self.interrupt()

    def take(self) -> Command | None:
        """The next command, without waiting. Raises what `fail` was called with."""
        if self._failure is not None:
            raise self._failure
        if self._cancelled:
            raise Cancelled
        return self._commands.popleft() if self._commands else None

    def wait(self, timeout: float | None) -> None:
        """Until there is a command, or time runs out."""
        with self._condition:
            if not self._commands and not self._cancelled and self._failure is None:
                self._condition.wait(timeout)

    def fail(self, error: BaseException) -> None:
        """Something that works for the task has failed: so has the task."""
        with self._condition:
            self._failure = error
            self._condition.notify()
        self.interrupt()

    def cancel(self) -> None:
        """The run is over."""
        with self._condition:
            self._cancelled = True
            self._condition.notify()
        self.interrupt()


def _nothing() -> None:
    """There is nothing else to wait for."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """How a task says what it did."""

    report: Callable[[Report], None]
    #: Where it writes its state; None without checkpoints. With them a task that has come to its end waits for the last
    #: one.
    uploads: StateUploads | None


class Task:
    """What both kinds have: a chain, a mailbox, and the time of day."""

    def __init__(
        self, task: TaskId, name: str, chain: Chain, *, clock: Clock, settings: FlowSettings, reporting: Reporting
    ) -> None:
        self.task = task
        self.name = name
        self.mailbox = Mailbox(threads_of(clock))
        self._chain = chain
        self._clock = clock
        self._settings = settings
        self._reporting = reporting
        self._uploads = reporting.uploads
        if self._uploads is not None:
            self._uploads.on_failure = self.mailbox.fail
        self._states: Mapping[str, Sequence[tuple[int, int, StepState]]] = {}
        self._handles: Mapping[str, FileHandle] = {}
        self._snapshotted = 0
        self._finished = False
        self._is_paused = False
        #: When it began and ended to run, and how long it had nothing to do.
        self._began: float | None = None
        self._ended: float | None = None
        self._idle_seconds = 0.0

    @property
    def has_sinks(self) -> bool:
        """Whether there is something to commit."""
        return self._chain.has_sinks

    def restore_from(
        self, states: Mapping[str, Sequence[tuple[int, int, StepState]]], handles: Mapping[str, FileHandle]
    ) -> None:
        """What to go on from, and the files that it lies in, before it is started. The task reads them itself."""
        self._states, self._handles = states, handles

    def run(self) -> None:
        """The body of its thread. Raises what stopped it; `Cancelled` when that was somebody else's failure."""
        self._began = self._clock.monotonic()
        try:
            self._run()
        finally:
            self._ended = self._clock.monotonic()

    def _run(self) -> None:
        try:
            self._chain.open()
            self._chain.restore({} if self._uploads is None else self._uploads.restore(self._states, self._handles))
            self._states, self._handles = {}, {}
            self._loop()
            self._chain.end()
            self._wind_up()
        except BaseException:
            self._close()
            raise
        errors = self._close()
        if errors:
            raise errors[0]

    def cancel(self) -> None:
        """End soon, whatever it does. From any thread."""
        self.mailbox.cancel()

    def counts(self) -> tuple[StepCounts, ...]:
        """What its steps have put out."""
        first, *others = self._chain.counts()
        blocked = self._chain.blocked_seconds
        busy = max(0.0, self._elapsed() - self.idle_seconds - blocked)
        mine = replace(
            first,
            waiting_bytes=self.waiting_bytes,
            received_bytes=self.received_bytes,
            busy_seconds=busy,
            backpressured_seconds=blocked,
        )
        if self._uploads is None:
            return (mine, *others)
        sizes = self._uploads.state_bytes
        return tuple(replace(each, state_bytes=sizes.get(each.uid, 0)) for each in (mine, *others))

    @property
    def idle_seconds(self) -> float:
        """How long it had nothing to do."""
        return self._idle_seconds

    def _elapsed(self) -> float:
        """Seconds in which it has run."""
        if self._began is None:
            return 0.0
        return (self._clock.monotonic() if self._ended is None else self._ended) - self._began

    @property
    def received_bytes(self) -> int:
        """Bytes of rows that came in so far."""
        return 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes in its queues."""
        return 0

    def _loop(self) -> None:
        raise NotImplementedError

    def _close(self) -> list[Exception]:
        if self._uploads is not None:
            self._uploads.close()
        return self._chain.close()

    def _wind_up(self) -> None:
        """Everything has left the chain. With checkpoints the last one is still to come."""
        if self._uploads is None:
            self._chain.flush()
            return
        self._reporting.report(Drained(self.task))
        while not self._finished:
            self._rest(None)
            self._obey()

    def _rest(self, timeout: float | None) -> None:
        """Wait for a command: there is nothing else to do."""
        began = self._clock.monotonic()
        self.mailbox.wait(timeout)
        self._idle_seconds += self._clock.monotonic() - began

    # -- commands ---------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        while (command := self.mailbox.take()) is not None:
            match command:
                case Trigger(checkpoint):
                    self._snapshot(checkpoint)
                case Commit(checkpoint):
                    self._commit(checkpoint)
                case StopReading(finish):
                    self._stop_reading(finish=finish)
                case Finish():
                    self._finished = True
                case Pause() | Resume():
                    self._is_paused = isinstance(command, Pause)
                case AddSplits(names):
                    self._add_splits([Split(name) for name in names])
                case AlignTime(slowest):
                    self._align_time(slowest)

    def _stop_reading(self, *, finish: bool) -> None:
        """Only sources read."""

    def _add_splits(self, splits: Sequence[Split]) -> None:
        """Only sources read."""

    def _align_time(self, slowest: int | None) -> None:
        """Only sources read."""

    def _snapshot(self, checkpoint: int) -> None:
        if checkpoint <= self._snapshotted or self._uploads is None:
            return  # asked twice: by the barrier, and because it had come to its end
        self._snapshotted = checkpoint
        reach("dataflow.snapshot.before")
        began = self._clock.monotonic()
        state = self._chain.snapshot(checkpoint)
        self._chain.pass_barrier(checkpoint)
        reach("dataflow.snapshot.after")
        outputs = {uid: state[uid].shared for uid in self._chain.sink_uids}
        self._uploads.submit(checkpoint, state, outputs=outputs, pause=self._clock.monotonic() - began)

    def _commit(self, checkpoint: int) -> None:
        self._chain.commit(checkpoint)
        self._reporting.report(Committed(self.task, checkpoint))

    # -- time -------------------------------------------------------------------------------------------------

    def _tick(self) -> float | None:
        """Call the steps whose time has come; seconds until the next wants to be called."""
        due = self._chain.next_tick()
        if due is None:
            return None
        now = self._now()
        if due <= now:
            self._chain.tick(now)
            due = self._chain.next_tick()
        return None if due is None else max(0.0, (due - now) / 1_000_000)

    def _now(self) -> int:
        return int(self._clock.wall().timestamp() * 1_000_000)


class SourceTask(Task):
    """Reads a source."""

    def __init__(
        self,
        task: TaskId,
        name: str,
        chain: Chain,
        driver: SourceDriver,
        *,
        clock: Clock,
        settings: FlowSettings,
        reporting: Reporting,
    ) -> None:
        super().__init__(task, name, chain, clock=clock, settings=settings, reporting=reporting)
        self._driver = driver
        self._stopping = False
        self._fetched_at = 0.0
        #: The time of the slowest split as it was last reported, and when it may be reported again.
        self._reported: int | None = None
        self._report_at = 0.0
        self.mailbox.interrupt = driver.wake

    def _loop(self) -> None:
        step = self._chain.first
        step.call(self._driver.open)
        emit = step.output.emit
        self._advance()  # as far as the checkpoint had come, also when it is stopped before it reads
        self._obey()
        while not self._stopping and not self._driver.is_done():
            timeout = self._patience()
            if self._is_paused:
                self._rest(timeout)
                self._obey()
                continue
            began = self._clock.monotonic()
            try:
                batch = step.guard(self._fetch, timeout)
                if batch is not None:
                    step.seconds += self._clock.monotonic() - began
                    emit(batch)
            except OperatorFailedError as error:
                error.set_input(replace(error.input, read=self._driver.last_read()))
                raise
            if batch is None:
                self._idle_seconds += self._clock.monotonic() - began
            self._advance()
            self._pause(0 if batch is None else batch.num_rows, began, timeout)
            self._obey()
        self._report_time(None)
        if not self._stopping:
            self._chain.advance(END_OF_TIME)

    def _add_splits(self, splits: Sequence[Split]) -> None:
        self._chain.first.call(self._driver.add_splits, splits)

    def _align_time(self, slowest: int | None) -> None:
        self._driver.align_time(slowest)

    def _report_time(self, slowest: int | None) -> None:
        """Report the time of the slowest split, when it changed, and not more often than the coordinator looks."""
        now = self._clock.monotonic()
        if slowest != self._reported and (slowest is None or now >= self._report_at):
            self._reported, self._report_at = slowest, now + _REPORT_EVERY
            self._reporting.report(SourceTime(self.task, slowest))

    @property
    def received_bytes(self) -> int:
        """Bytes that it has read, from samples."""
        return self._driver.size.total_bytes

    def _fetch(self, timeout: float) -> object:
        return self._driver.fetch(self._chain.first.output, timeout=timeout)

    def _snapshot(self, checkpoint: int) -> None:
        if checkpoint > self._snapshotted:
            self._driver.note_positions(checkpoint)
        super()._snapshot(checkpoint)

    def _commit(self, checkpoint: int) -> None:
        super()._commit(checkpoint)
        self._driver.commit_offsets(checkpoint)

    def _stop_reading(self, *, finish: bool) -> None:
        self._stopping = True
        if finish:
            self._chain.advance(END_OF_TIME)

    def _patience(self) -> float:
        until_tick = self._tick()
        return self._settings.poll if until_tick is None else min(self._settings.poll, until_tick)

    def _advance(self) -> None:
        watermark, is_idle = self._driver.watermark()
        self._report_time(self._driver.slowest)
        if watermark > START_OF_TIME:
            self._chain.advance(watermark)
        self._chain.settle()
        if is_idle:
            self._chain.rest(is_empty=self._driver.has_nothing(), is_quiet=self._driver.is_quiet())
        elif self._chain.makes_time and self._driver.is_quiet():
            self._chain.look_idle()

    def _pause(self, rows: int, began: float, timeout: float) -> None:
        """Do not go round in circles: when there is nothing, and when rows trickle in faster than they are worth."""
        if self._driver.is_bounded:
            if not rows and not self._driver.is_done() and self._clock.monotonic() - began < timeout / 2:
                self._rest(self._settings.pace)
            return
        now = self._clock.monotonic()
        if not rows:
            # A task that was woken looks again at once: the command may have been carried out, and rows may have come.
            if not self._driver.was_woken() and now - began < timeout / 2:
                self._rest(timeout - (now - began))
            return
        steady = now - self._fetched_at < self._settings.pace * _STEADY
        self._fetched_at = now
        if steady and rows * _SMALL < self._driver.size.rows:
            self._rest(self._settings.pace)

    def _close(self) -> list[Exception]:
        errors: list[Exception] = []
        try:
            self._driver.close()
        except Exception as error:  # noqa: BLE001 - the chain is to be closed all the same; it is handed on
            errors.append(self._chain.first.failed(error))
        return errors + super()._close()


@dataclass(slots=True)
class _Input:
    """What is known of one channel."""

    receive: Receiver
    watermark: int = START_OF_TIME
    is_idle: bool = False


class InboxTask(Task):
    """Reads what other tasks send."""

    def __init__(
        self,
        task: TaskId,
        name: str,
        chain: Chain,
        inbox: AlignedInbox,
        *,
        clock: Clock,
        settings: FlowSettings,
        reporting: Reporting,
        channels: int,
    ) -> None:
        super().__init__(task, name, chain, clock=clock, settings=settings, reporting=reporting)
        self._inbox = inbox
        receivers = {port: chain.first.receiver(port) for port in {inbox.port(each) for each in range(channels)}}
        self._inputs = [_Input(receivers[inbox.port(each)]) for each in range(channels)]
        self._ports = {inbox.port(each) for each in range(channels)}
        self._ended_ports: set[int] = set()
        self.mailbox.interrupt = inbox.wake

    @property
    def waiting_bytes(self) -> int:
        """Bytes in its queues."""
        return self._inbox.waiting_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes of rows that came in so far."""
        return self._inbox.received_bytes

    @property
    def idle_seconds(self) -> float:
        """How long it had nothing to do."""
        return super().idle_seconds + self._inbox.idle_seconds

    def cancel(self) -> None:
        """End soon, whatever it does, and end the calls that wait to send to it."""
        super().cancel()
        self._inbox.cancel()

    def _loop(self) -> None:
        left = len(self._inputs)
        while left:
            self._obey()
            timeout = self._patience()
            preferred = self._chain.preferred_ports() if self._chain.has_preferences else frozenset()
            received = self._inbox.receive(timeout, preferred=preferred)
            if received is None:
                continue
            element = received.element
            if isinstance(element, Watermark):
                self._hear(received.channel, element.time)
            elif isinstance(element, Barrier):
                self._snapshot(element.checkpoint)
            elif isinstance(element, End):
                left -= 1
            elif isinstance(element, Idle):
                self._inputs[received.channel].is_idle = True
                self._advance()
            else:
                source = self._inputs[received.channel]
                source.is_idle = False
                source.receive(element)
                self._chain.settle()

    def _patience(self) -> float | None:
        until_tick = self._tick()
        if not self._chain.makes_time:
            return until_tick
        self._chain.look_idle()
        return _IDLE_LOOK if until_tick is None else min(_IDLE_LOOK, until_tick)

    def _hear(self, channel: int, watermark: int) -> None:
        source = self._inputs[channel]
        source.is_idle = False
        source.watermark = max(source.watermark, watermark)
        if len(self._ports) > 1:
            port = self._inbox.port(channel)
            peers = [each for index, each in enumerate(self._inputs) if self._inbox.port(index) == port]
            least = min(each.watermark for each in peers)
            self._chain.advance_port(port, least)
            # An input that ends before the end of time does not end here: the job is stopped, and it goes on later.
            if least == END_OF_TIME and port not in self._ended_ports:
                self._ended_ports.add(port)
                self._chain.end_port(port)
        self._advance()

    def _advance(self) -> None:
        """The least watermark of the inputs that count. When all that are left are idle it stands still.

        An input that ended without coming to the end of time still counts: the job was stopped, and what is left of
        that input comes after the restart.
        """
        going = [each for each in self._inputs if each.watermark != END_OF_TIME]
        if not going:
            self._chain.advance(END_OF_TIME)
            return
        active = [each.watermark for each in going if not each.is_idle]
        if not active:
            self._chain.rest()
        elif (least := min(active)) > START_OF_TIME:
            self._chain.advance(least)

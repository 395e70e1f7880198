"""Task hosts behind control links: what their coordinator does with them, wherever they run.

Builds their tasks from the document, connects and starts them, listens to each in a thread, notices silent ones, and
ends them. `shoal.dataflow.execution.hosts.processes` (child processes) and `shoal.dataflow.execution.remote.hosts`
(workloads of a fleet) say where the hosts come from and how they are stopped.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.core.clock import Clock
from shoal.core.errors import UnavailableError
from shoal.dataflow.checkpoint.messages import Command, TaskId
from shoal.dataflow.connectors.topics.brokers import named_settings
from shoal.dataflow.execution.hosts.base import HostLostError
from shoal.dataflow.execution.hosts.control_link import ControlLink
from shoal.dataflow.execution.hosts.control_messages import (
    BadMessageError,
    BrokerSettings,
    BuildTasks,
    CommandTask,
    ConnectTasks,
    EndTasks,
    HostBuilt,
    HostCounts,
    HostEnded,
    HostFailed,
    HostListens,
    HostLost,
    HostShare,
    RunTasks,
    TaskReport,
    decode_from_host,
    encode,
)
from shoal.dataflow.execution.hosts.error_texts import rebuild_error
from shoal.dataflow.execution.hosts.task_host import HostListener
from shoal.dataflow.execution.routing import assign_tasks
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.prepared import PreparedPlan
from shoal.exchange.errors import PeerLostError

if TYPE_CHECKING:
    from shoal.topics.kafka import KafkaSettings

T = TypeVar("T")

#: Seconds without a sign of life after which a host is lost; also while it builds, when it may hold the interpreter.
SILENCE = 5.0
BUILD_SILENCE = 10.0
#: Seconds in which all have to be built.
START = 120.0
#: Seconds in which the others may say why one was lost while tasks were built.
_REASON = 1.0
_LAST_SECONDS = 5.0
#: Processes of one machine that may be lost within a minute.
MOST_LOSSES = 10
#: Seconds between two looks at who is silent.
_LOOK = 0.5


@dataclass(slots=True)
class Linked:
    """One task host of an epoch."""

    number: int
    link: ControlLink
    heard_at: float
    counts: HostCounts = field(default_factory=lambda: HostCounts((), {}))
    thread: threading.Thread | None = None
    has_ended: bool = False

    def send(self, message: object) -> None:
        """Send a message. Raises `PeerLostError`."""
        self.link.send(encode(message))

    def receive(self) -> Any:
        """The next message; None when the host is gone or sends nothing in time. Raises `BadMessageError`."""
        content = self.link.receive()
        return None if content is None else decode_from_host(content)


class LinkedHosts(abc.ABC):
    """The task hosts of a job, each behind a link."""

    def __init__(self, plan: PreparedPlan, document: PlanDocument, *, hosts: int, clock: Clock) -> None:
        self._document = document
        self._hosts = hosts
        self._host_of: Mapping[TaskId, int] = assign_tasks(plan.physical, hosts)
        self._clock = clock
        self._lock = threading.Lock()
        self._children: dict[int, Linked] = {}
        self._listener: HostListener | None = None
        self._is_over = True
        self._epochs = 0

    @property
    def most_losses(self) -> int | None:
        """Processes of one machine that die again and again die of something that no new one mends."""
        return MOST_LOSSES

    @abc.abstractmethod
    def _describe(self, number: int) -> str:
        """How a host ended, for people; empty when that is not known."""

    @abc.abstractmethod
    def _stop_all(self, patience: float) -> None:
        """End what is left of this epoch's hosts; those that do not end by themselves in time are made to."""

    def _build(self, share: HostShare, *, search_path: tuple[str, ...], directory: str) -> None:
        """Let the hosts build their tasks. Raises what one failed with, and `HostLostError`."""
        try:
            self._build_tasks(share, search_path=search_path, directory=directory)
        except PeerLostError as error:
            raise HostLostError(f"a task host was lost while tasks were built: {error.message}") from error

    def _build_tasks(self, share: HostShare, *, search_path: tuple[str, ...], directory: str) -> None:
        document = self._document.to_json().encode()
        brokers = {name: _as_plain(settings) for name, settings in named_settings().items()}
        addresses: dict[TaskId, str] = {}
        for number, child in self._children.items():
            tasks = tuple(task for task in share.tasks if self._host_of[task] == number)
            blobs = dict(self._document.blobs)
            child.send(BuildTasks(replace(share, tasks=tasks), document, blobs, search_path, directory, brokers))
        for number, listens in self._answers(HostListens).items():
            addresses |= {task: listens.address for task, host in self._host_of.items() if host == number}
        for child in self._children.values():
            child.send(ConnectTasks(addresses))
        self._answers(HostBuilt)

    def _answers(self, kind: type[T]) -> dict[int, T]:
        """What every host answers while it is built. Raises what the first one failed with, and waits for nobody."""
        children = list(self._children.values())
        with ThreadPoolExecutor(len(children), "answers") as pool:
            try:
                answers = {child.number: pool.submit(self._answer, child, kind) for child in children}
                done, others = wait(answers.values(), return_when=FIRST_EXCEPTION)
                if others:  # one that lost its peer may be told of before the peer says what it failed with
                    done |= wait(others, _REASON).done
                errors = [error for each in done if (error := each.exception()) is not None]
                if errors:
                    raise next((each for each in errors if not isinstance(each, UnavailableError)), errors[0])
                return {number: each.result() for number, each in answers.items()}
            except BaseException:
                for child in children:
                    child.link.close()  # those that still wait
                raise

    def _answer(self, child: Linked, kind: type[T]) -> T:
        """What a host answers while it is built. Raises what it failed with, and `HostLostError`."""
        ends_at = self._clock.monotonic() + START
        child.link.limit_reads(BUILD_SILENCE)
        while isinstance(answer := child.receive(), HostCounts) and self._clock.monotonic() < ends_at:
            pass  # it lives, and builds
        child.link.limit_reads(None)
        if isinstance(answer, HostFailed):
            error = rebuild_error(answer.error)
            if isinstance(error, PeerLostError):
                self._unreached(str(error.facts.get("channel", "")))
            raise error
        if not isinstance(answer, kind):
            raise HostLostError(f"task host {child.number} ended, or said nothing, while its tasks were built")
        return answer

    def _unreached(self, channel: str) -> None:
        """A task could not reach a peer by this channel, or lost it."""
        del channel  # processes of one machine always reach each other

    def run(self) -> None:
        """Start the tasks."""
        for child in list(self._children.values()):
            child.heard_at = self._clock.monotonic()
            child.thread = threading.Thread(target=self._listen, args=(child,), name="task host", daemon=True)
            with contextlib.suppress(PeerLostError):  # its thread notices
                child.send(RunTasks())
        for child in list(self._children.values()):
            if child.thread is not None:
                child.thread.start()
        threading.Thread(target=self._watch, args=(self._epochs,), name="heartbeats", daemon=True).start()

    # -- while they run ---------------------------------------------------------------------------------------

    def _listen(self, child: Linked) -> None:
        try:
            self._hear(child)
        finally:
            child.link.release()

    def _hear(self, child: Linked) -> None:
        listener = self._listener
        while listener is not None:
            try:
                message = child.receive()
            except BadMessageError as error:
                listener.lost(f"process {child.number} sent no valid message: {error.message}")
                return
            if message is None:
                if not child.has_ended and not self._is_over:
                    listener.lost(f"process {child.number} is gone{self._describe(child.number)}")
                return
            child.heard_at = self._clock.monotonic()
            if isinstance(message, HostCounts):
                child.counts = message
            elif isinstance(message, HostEnded):
                child.counts = message.counts
                child.has_ended = True
                self._end_if_all()
            elif isinstance(message, HostFailed):
                listener.failed(rebuild_error(message.error))
            elif isinstance(message, HostLost):
                self._unreached(message.channel)
                # The peer's own death is the better reason, and mostly there already.
                listener.lost(message.reason)
            elif isinstance(message, TaskReport):
                listener.reported(message.report)

    def _end_if_all(self) -> None:
        if all(child.has_ended for child in self._children.values()):
            self._finish()

    def _watch(self, epoch: int) -> None:
        """Notice hosts that are silent."""
        waiter = threading.Event()
        while not waiter.wait(_LOOK) and not self._is_over and epoch == self._epochs:
            now = self._clock.monotonic()
            for child in list(self._children.values()):
                if not child.has_ended and now - child.heard_at > SILENCE and self._listener is not None:
                    self._listener.lost(f"process {child.number} was silent for {now - child.heard_at:.0f} s")
                    return

    def send(self, task: TaskId, command: Command) -> None:
        """Send a command to a task. A host that is gone is noticed elsewhere."""
        child = self._children.get(self._host_of[task])
        if child is not None:
            with contextlib.suppress(PeerLostError):
                child.send(CommandTask(task, command))

    def counts(self) -> HostCounts:
        """What the tasks have done so far, as their hosts last reported."""
        found = [child.counts for child in list(self._children.values())]
        waiting = {name: size for each in found for name, size in each.waiting_bytes.items()}
        return HostCounts(tuple(step for each in found for step in each.steps), waiting)

    # -- ending -----------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End every task soon."""
        threading.Thread(target=self._finish, name="task hosts", daemon=True).start()

    def _finish(self) -> None:
        """End this epoch in good order, and say so once."""
        listener = self._end_links()
        if listener is not None:
            at = self._clock.monotonic()  # ending the hosts themselves is no part of the run
            self._stop_all(_LAST_SECONDS)
            listener.ended(at)

    def end(self) -> None:
        """End what is left of this epoch at once, and wait for it."""
        self._end_links()
        self._stop_all(0)
        for child in self._children.values():
            child.link.close()
            if child.thread is None:
                child.link.release()
            elif child.thread is not threading.current_thread():
                child.thread.join()

    def _end_links(self) -> HostListener | None:
        """Tell every host to end; the listener, for the first who asks."""
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        if not is_first:
            return None
        for child in self._children.values():
            with contextlib.suppress(PeerLostError):
                child.send(EndTasks())
        return self._listener

    def join(self) -> None:
        """Wait for the threads that listen to the hosts."""
        for child in self._children.values():
            if child.thread is not None and child.thread is not threading.current_thread():
                child.thread.join()


def _as_plain(settings: KafkaSettings) -> BrokerSettings:
    options = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name != "client"}
    return BrokerSettings(options, dict(settings.client))

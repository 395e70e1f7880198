"""The program of a task host that is a process of its own: `python -m shoal.dataflow.execution.hosts.host_process`.

Started by `shoal.dataflow.execution.hosts.processes` with the folder of the job's sockets, the name of the job,
the epoch and the number of this host. It builds its tasks from the document that the coordinator sends, and ends when
told, when its tasks have ended, or when the coordinator is gone.
"""

from __future__ import annotations

import ctypes
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from shoal.core import faults, files
from shoal.core.clock import SystemClock
from shoal.dataflow.checkpoint.messages import Report, TaskId
from shoal.dataflow.connectors.topics.brokers import add_settings
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
    Ping,
    RunTasks,
    TaskReport,
    decode_from_coordinator,
    encode,
)
from shoal.dataflow.execution.hosts.error_texts import describe_error
from shoal.dataflow.execution.hosts.task_host import TaskHost
from shoal.dataflow.language.functions import TASK_HOST_VARIABLE, add_blobs
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.prepared import read_prepared
from shoal.exchange.base import Sender
from shoal.exchange.errors import PeerLostError
from shoal.exchange.hosts import open_endpoint
from shoal.exchange.tokens import Gate, JobKey

if TYPE_CHECKING:
    from shoal.topics.kafka import KafkaSettings

log = logging.getLogger(__name__)

#: The variable that has the job's key. Removed at start, so that no child of this process sees it.
KEY_VARIABLE = "SHOAL_EXCHANGE_KEY"
#: What glibc itself arrives at when a process frees an array of 32 MB: parameters of `mallopt` and their values.
_KEPT_MEMORY = ((-3, 32 * 1024 * 1024), (-1, 64 * 1024 * 1024))
#: Seconds between two heartbeats.
HEARTBEAT = 0.5
#: Heartbeats between two calls of `tell`.
_TELL = 2


class _Coordinator:
    """The coordinator, as this host sees it. Implements `HostListener`. When it is gone this process ends."""

    def __init__(self, link: ControlLink, leave: Callable[[int], NoReturn]) -> None:
        self._link = link
        self.leave = leave
        self.done = threading.Event()
        self.is_good = True

    def reported(self, report: Report) -> None:
        self.send(TaskReport(report))

    def failed(self, error: BaseException) -> None:
        self.is_good = False
        self.send(HostFailed(describe_error(error)))

    def lost(self, reason: str, channel: str = "") -> None:
        self.is_good = False
        self.send(HostLost(reason, channel))

    def ended(self, at: float) -> None:
        del at  # the coordinator goes by its own clock
        self.done.set()

    def send(self, message: object) -> None:
        """Send a message; one to a coordinator that is gone is lost."""
        try:
            self._link.send(encode(message))
        except PeerLostError:
            self.done.set()

    def receive(self) -> Any:
        """The next message; None when the coordinator is gone, or sent something that is no message."""
        try:
            while (content := self._link.receive()) is not None:
                message = decode_from_coordinator(content)
                if not isinstance(message, Ping):
                    return message
            return None
        except BadMessageError as error:
            log.error("the coordinator sent no valid message: %s", error.message)
            return None


def run_host(
    link: ControlLink,
    gate: Gate,
    folder: str,
    number: int,
    *,
    leave: Callable[[int], NoReturn] = os._exit,
    tell: Callable[[HostShare, HostCounts], None] = lambda _share, _counts: None,
    copies: str = "",
) -> int:
    """Build, run, and end. Returns the exit code.

    `leave` ends the process when the coordinator is gone. `tell` is called about each second while tasks run.
    `copies` is a folder that outlives this process, for copies of state that is stored elsewhere.
    """
    keep_freed_memory()
    coordinator = _Coordinator(link, leave)
    build = coordinator.receive()
    if not isinstance(build, BuildTasks):
        return 1
    os.environ[TASK_HOST_VARIABLE] = "1"
    is_built = threading.Event()
    threading.Thread(target=_live, args=(coordinator, is_built), name="signs of life", daemon=True).start()
    if build.directory:
        os.chdir(build.directory)
    if build.search_path:
        sys.path[:] = list(build.search_path)
    add_settings({name: _as_settings(each) for name, each in build.brokers.items()})
    add_blobs(build.blobs)
    endpoint = open_endpoint(f"{folder}/h{number}.{gate.epoch}.sock", gate, os.environ)
    try:
        plan = read_prepared(PlanDocument(json.loads(build.document), build.blobs))
        host = TaskHost(plan, build.share, coordinator, clock=SystemClock(), copies=copies)
        host.listen(endpoint)
        coordinator.send(HostListens(endpoint.address))
        prepare_libraries(folder)
        connect = coordinator.receive()
        if not isinstance(connect, ConnectTasks):
            return 1

        def reach(task: TaskId, name: str) -> Sender:
            return endpoint.connect(connect.addresses[task], name)

        faults.reach("taskhost.build.before")
        host.build(reach)
        faults.reach("taskhost.build.after")
    except BaseException as error:  # noqa: BLE001 - the coordinator raises it where the run is waited for
        coordinator.failed(error)
        return 1
    finally:
        is_built.set()
    coordinator.send(HostBuilt())
    while not isinstance(message := coordinator.receive(), RunTasks):
        if not isinstance(message, CommandTask):
            return 1
        host.send(message.task, message.command)  # tasks find it when they start
    host.run()
    threading.Thread(target=_obey, args=(coordinator, host), name="commands", daemon=True).start()
    beats = 0
    while not coordinator.done.wait(HEARTBEAT):
        counts = host.counts()
        coordinator.send(counts)
        beats += 1
        if beats % _TELL == 0:
            tell(build.share, counts)
    # What was sent may still be on its way to others: they read it to its end before this process may go.
    if coordinator.is_good:
        coordinator.send(HostEnded(host.counts()))
        _wait_for_end.wait(60)
    return 0


def keep_freed_memory() -> None:
    """Let glibc keep what a batch's arrays took for those of the next one.

    By default it gives most of it back to the system, and each array is new pages, which cost more than the arithmetic.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do without
    if mallopt is not None:
        for parameter, value in _KEPT_MEMORY:
            mallopt(parameter, value)


def prepare_libraries(folder: str) -> None:
    """Load what the first file and the first array would load: while other hosts build, not while rows wait."""
    files.exists(folder)
    pa.array(np.zeros(1))


def _live(coordinator: _Coordinator, is_built: threading.Event) -> None:
    """Say that this process lives while it builds, which may take long."""
    while not is_built.wait(HEARTBEAT):
        coordinator.send(HostCounts((), {}))


_wait_for_end = threading.Event()


def _as_settings(settings: BrokerSettings) -> KafkaSettings:
    from shoal.topics.kafka import KafkaSettings

    options: Any = settings.options
    return KafkaSettings(**options, client=settings.client)


def _obey(coordinator: _Coordinator, host: TaskHost) -> None:
    while True:
        message = coordinator.receive()
        if message is None:
            # The coordinator is gone: the next one starts a new epoch, and this process must not go on.
            coordinator.leave(1)
        if isinstance(message, CommandTask):
            host.send(message.task, message.command)
        elif isinstance(message, EndTasks):
            host.cancel()
            coordinator.done.wait(10)
            _wait_for_end.set()


def main(arguments: list[str]) -> int:
    """The entry point."""
    folder, job, epoch, number = arguments
    logging.basicConfig(level=logging.WARNING)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the parent shows lines when they are printed
    faults.arm_from_environment()
    gate = Gate(job, int(epoch), JobKey(os.environ.pop(KEY_VARIABLE).encode()))
    link = ControlLink.connect(f"{folder}/c.{epoch}.sock", gate, int(number))
    return run_host(link, gate, folder, int(number))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by the interpreter's own end: threads of libraries and of users' code may still be in the middle of something.
    os._exit(code)

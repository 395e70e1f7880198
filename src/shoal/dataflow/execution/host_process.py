"""The program of a task host that is a process of its own: `python -m shoal.dataflow.execution.host_process`.

Started by `shoal.dataflow.execution.processes` with the folder of the job's sockets, the name of the job, the epoch and
the number of this host. It builds its tasks from the document that the coordinator sends, and ends when told, when its
tasks have ended, or when the coordinator is gone.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.dataflow.checkpoint.messages import Report, TaskId
from shoal.dataflow.connectors.brokers import add_settings
from shoal.dataflow.execution.control_link import (
    BuildTasks,
    ConnectTasks,
    ControlLink,
    EndTasks,
    HostBuilt,
    HostEnded,
    HostFailed,
    HostListens,
    HostLost,
    SendOrder,
)
from shoal.dataflow.execution.host import TaskHost
from shoal.dataflow.language.functions import TASK_HOST_VARIABLE, add_blobs
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.prepared import read_prepared
from shoal.exchange.base import Sender
from shoal.exchange.errors import PeerLostError
from shoal.exchange.tokens import Gate, JobKey
from shoal.exchange.unix import UnixEndpoint

#: The variable that has the job's key. Nobody but this process sees it, and no child of it.
KEY_VARIABLE = "SHOAL_EXCHANGE_KEY"
#: Seconds between two signs of life.
BEAT = 0.5


class _Listener:
    """Says everything to the coordinator. One that is gone need not hear it: this process ends with it."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self.done = threading.Event()
        self.is_good = True

    def reported(self, report: Report) -> None:
        self.say(report)

    def failed(self, error: BaseException) -> None:
        self.is_good = False
        self.say(HostFailed(error))

    def lost(self, reason: str) -> None:
        self.is_good = False
        self.say(HostLost(reason))

    def ended(self) -> None:
        self.done.set()

    def say(self, message: object) -> None:
        try:
            self._link.send(message)
        except PeerLostError:
            self.done.set()


def run_host(link: ControlLink, gate: Gate, folder: str, number: int) -> int:
    """Build, run, and end. Returns the exit code."""
    order = link.receive()
    if not isinstance(order, BuildTasks):
        return 1
    os.environ[TASK_HOST_VARIABLE] = "1"
    os.chdir(order.directory)
    sys.path[:] = list(order.search_path)
    add_settings(order.brokers)
    add_blobs(order.blobs)
    listener = _Listener(link)
    endpoint = UnixEndpoint(f"{folder}/h{number}.{gate.epoch}.sock", gate)
    try:
        plan = read_prepared(PlanDocument(json.loads(order.document), order.blobs))
        host = TaskHost(plan, order.share, listener, clock=SystemClock())
        host.listen(endpoint)
        link.send(HostListens(endpoint.address))
        connect = link.receive()
        if not isinstance(connect, ConnectTasks):
            return 1

        def reach(task: TaskId, name: str) -> Sender:
            return endpoint.connect(connect.addresses[task], name)

        faults.reach("taskhost.build.before")
        host.build(reach)
        faults.reach("taskhost.build.after")
    except BaseException as error:  # noqa: BLE001 - the coordinator raises it to whoever waits for the run
        listener.failed(error)
        return 1
    link.send(HostBuilt())
    if link.receive() is None:
        return 1
    host.run()
    threading.Thread(target=_obey, args=(link, host, listener), name="orders", daemon=True).start()
    while not listener.done.wait(BEAT):
        listener.say(host.counts())
    # What was sent may still be on its way to others: they read it to its end before this process may go.
    if listener.is_good:
        listener.say(HostEnded(host.counts()))
        _wait_for_end.wait(60)
    return 0


_wait_for_end = threading.Event()


def _obey(link: ControlLink, host: TaskHost, listener: _Listener) -> None:
    while True:
        order = link.receive()
        if order is None:
            os._exit(1)  # the coordinator is gone: whoever comes next begins anew, and this one must not go on
        if isinstance(order, SendOrder):
            host.send(order.task, order.order)
        elif isinstance(order, EndTasks):
            host.cancel()
            listener.done.wait(10)
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

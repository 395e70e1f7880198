"""Task hosts of a job on a fleet, as its coordinator sees them: they connect, wait, and are given an epoch's work.

A task host has a number, which its workload keeps wherever it is placed; of two processes with one number the one with
the higher generation counts. A host that ended an epoch, good or bad, comes back as a new process image, so every epoch
begins with hosts that have nothing of the one before. The coordinator says that it is there each second, and hears from
each host twice a second. Made by `shoal.dataflow.execution.remote.coordinator`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.clock import Clock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import PreconditionError, ShoalError, UnavailableError
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.connectors.abilities import TopicConnector
from shoal.dataflow.connectors.topics.brokers import is_kafka
from shoal.dataflow.execution.hosts.base import HostLostError
from shoal.dataflow.execution.hosts.control_link import ControlLink
from shoal.dataflow.execution.hosts.control_messages import (
    HostHello,
    HostShare,
    JoinEpoch,
    Ping,
    decode_from_host,
    encode,
)
from shoal.dataflow.execution.hosts.linked import Linked, LinkedHosts
from shoal.dataflow.execution.hosts.task_host import HostListener
from shoal.dataflow.execution.remote.connections import receive_peer
from shoal.dataflow.execution.remote.crashes import Crashes
from shoal.dataflow.execution.remote.surroundings import Surroundings
from shoal.dataflow.language.logical import Sink, Source
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.prepared import PreparedPlan
from shoal.exchange.errors import PeerLostError
from shoal.exchange.hosts import listening_address
from shoal.exchange.tokens import JobKey

log = logging.getLogger(__name__)

#: Seconds between two signs of life to each host.
PING = 1.0
#: Seconds in which a host has to say hello.
_HELLO = 10.0
_BACKLOG = 128
#: Connections at most that have not said hello yet: each has a thread.
MOST_GREETINGS = 256
#: A pair of hosts that lost each other so often, with no longer time between, do not reach each other.
_CUTS = 2
_CUT_SECONDS = 60.0
#: The name of a channel, as `shoal.dataflow.execution.routing` makes it: the edge, the task that writes, that reads.
_CHANNEL = re.compile(r"\d+:(\d+)\.(\d+)>(\d+)\.(\d+)")


@dataclass(slots=True)
class _Peer:
    """A host that is connected."""

    hello: HostHello
    link: ControlLink
    #: Whether it was given an epoch's work.
    is_used: bool = False

    def hang_up(self) -> None:
        """End it. One that is used has a thread that receives, which lets go of it."""
        if self.is_used:
            self.link.close()
        else:
            self.link.release()


class RemoteHosts(LinkedHosts):
    """The task hosts of a job, as workloads."""

    def __init__(
        self,
        plan: PreparedPlan,
        document: PlanDocument,
        *,
        hosts: int,
        around: Surroundings,
        port: int,
        clock: Clock,
        most_crashes: int = 3,
    ) -> None:
        super().__init__(plan, document, hosts=hosts, clock=clock)
        self._plan = plan
        self._around = around
        self._present = threading.Condition()
        self._peers: dict[int, _Peer] = {}
        now = clock.monotonic()
        #: What signs the tokens of this term; None before that is known.
        self._key: bytes | None = None if around.certificate is not None else b""
        self._crashes = Crashes(most_crashes)
        #: The hosts that were given work of the present epoch and did not come back since.
        self._working: set[int] = set()
        #: The generation and the process of each host that was here last.
        self._processes: dict[int, tuple[int, int]] = {}
        #: Pairs of hosts that lost each other while both lived: how often, and when last.
        self._cuts: dict[tuple[int, int], tuple[int, float]] = {}
        #: Since when each host that is not connected is away.
        self._away = dict.fromkeys(range(hosts), now)
        self._is_closed = threading.Event()
        self._server = _listen(around.address, port)
        #: Connections that have not said hello yet, and since when they are there.
        self._greetings: dict[socket.socket, float] = {}
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="task hosts", daemon=True).start()
        threading.Thread(target=self._ping, name="signs of life", daemon=True).start()

    @property
    def most_losses(self) -> None:
        """Nodes and networks come back. A host that dies without a new checkpoint between is another matter."""
        return

    # -- who is there ---------------------------------------------------------------------------------------------

    @property
    def missing(self) -> Mapping[int, float]:
        """The hosts that are not connected, and for how many seconds."""
        now = self._clock.monotonic()
        with self._present:
            return {number: now - since for number, since in self._away.items()}

    @property
    def unreachable(self) -> tuple[tuple[int, int], ...]:
        """Pairs of hosts that reach this process and not each other."""
        now = self._clock.monotonic()
        with self._present:
            found = [pair for pair, (count, at) in self._cuts.items() if count >= _CUTS and now - at < _CUT_SECONDS]
        return tuple(sorted(found))

    def _unreached(self, channel: str) -> None:
        """Count it. A host that has died is a new process when it comes back, and what was counted of it is dropped."""
        ends = _CHANNEL.fullmatch(channel)
        if ends is None:
            return
        source, writer, target, reader = map(int, ends.groups())
        pair = sorted(self._host_of.get(TaskId(*each), -1) for each in ((source, writer), (target, reader)))
        if pair[0] < 0 or pair[0] == pair[1]:
            return
        now = self._clock.monotonic()
        with self._present:
            count, at = self._cuts.get((pair[0], pair[1]), (0, now))
            self._cuts[pair[0], pair[1]] = (count + 1 if now - at < _CUT_SECONDS else 1, now)

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                raw, _address = self._server.accept()
            except OSError:
                if self._is_closed.wait(0.1):
                    return
                continue
            with self._present:
                is_taken = len(self._greetings) < MOST_GREETINGS
                if is_taken:
                    self._greetings[raw] = self._clock.monotonic()
            if is_taken:
                threading.Thread(target=self._greet_one, args=(raw,), name="hello", daemon=True).start()
            else:
                log.warning("a connection was refused: %d others have not said hello yet", MOST_GREETINGS)
                raw.close()

    def _greet_one(self, raw: socket.socket) -> None:
        try:
            self._greet(raw)
        finally:
            with self._present:
                del self._greetings[raw]

    def _end_slow_greetings(self) -> None:
        """Also of peers that say a byte at a time."""
        now = self._clock.monotonic()
        with self._present:
            for raw, since in self._greetings.items():
                if now - since > _HELLO:
                    with contextlib.suppress(OSError):
                        raw.shutdown(socket.SHUT_RDWR)

    def _greet(self, raw: socket.socket) -> None:
        try:
            link = ControlLink(receive_peer(raw, self._around.certificate, self._around.job_id))
            link.limit_reads(_HELLO)
            content = link.receive()
            hello = None if content is None else decode_from_host(content)
        except (ShoalError, OSError) as error:
            log.warning("a connection was refused: %s", error)
            raw.close()
            return
        link.limit_reads(None)
        if not isinstance(hello, HostHello) or not 0 <= hello.number < self._hosts or not self._admit(hello, link):
            link.release()

    def _admit(self, hello: HostHello, link: ControlLink) -> bool:
        """Take a host in. One that it replaces is lost."""
        with self._present:
            before = self._peers.get(hello.number)
            if before is not None and before.hello.generation > hello.generation:
                log.warning("task host %d of an older generation was refused", hello.number)
                return False
            generation, pid = self._processes.get(hello.number, (0, 0))
            if hello.number in self._working:
                self._working.discard(hello.number)
                if generation == hello.generation and pid != hello.pid:
                    self._crashes.died(hello.number)
            if (generation, pid) != (hello.generation, hello.pid):
                self._processes[hello.number] = (hello.generation, hello.pid)
                self._cuts = {pair: each for pair, each in self._cuts.items() if hello.number not in pair}
            self._peers[hello.number] = _Peer(hello, link)
            self._away.pop(hello.number, None)
            self._present.notify_all()
        if before is not None:
            before.hang_up()
        return True

    def _leave(self, number: int, link: ControlLink) -> None:
        """A host is gone, or has to come back as a new one."""
        with self._present:
            peer = self._peers.get(number)
            if peer is not None and peer.link is link:
                del self._peers[number]
                self._away[number] = self._clock.monotonic()
                peer.hang_up()
        link.close()

    def _ping(self) -> None:
        content = encode(Ping())
        while not self._is_closed.wait(PING):
            self._end_slow_greetings()
            with self._present:
                peers = list(self._peers.items())
            for number, peer in peers:
                try:
                    peer.link.try_send(content)
                except PeerLostError:
                    self._leave(number, peer.link)

    # -- epochs ---------------------------------------------------------------------------------------------------

    def begin(self, share: HostShare, found: Checkpoint | None, listener: HostListener) -> None:
        """Wait for every host, and let them build their tasks."""
        self._epochs += 1
        peers = self._gather()
        number = self._crashes.begin(share.checkpoint)
        if number is not None:
            tasks = [task for task, host in self._host_of.items() if host == number]
            node = peers[number].hello.node
            raise self._crashes.error(number, node, self._plan.physical, share, tasks=tasks, found=found)
        key = self._key_of_term() or SystemEntropy().token(40).encode()
        proof = JobKey(key).proof(self._around.job_id, share.epoch)
        is_spread = len({(each.hello.host_id or each.hello.node) for each in peers.values()}) > 1
        if is_spread:
            _check_brokers(self._plan)
        with self._lock:
            self._listener, self._is_over = listener, False
            now = self._clock.monotonic()
            self._children = {number: Linked(number, each.link, now) for number, each in peers.items()}
        try:
            for child in self._children.values():
                child.send(JoinEpoch(self._around.generation, share.epoch, key, proof, is_spread))
            self._build(share, search_path=(), directory="")
        except BaseException as error:
            self.end()
            if isinstance(error, PeerLostError):
                raise HostLostError(f"a task host was lost while tasks were built: {error.message}") from error
            raise

    def _gather(self) -> dict[int, _Peer]:
        """Wait until every host is there and waits for work."""
        with self._present:
            while True:
                fresh = {number: peer for number, peer in self._peers.items() if not peer.is_used}
                if len(fresh) == self._hosts:
                    break
                if self._is_closed.is_set():
                    raise UnavailableError("the coordinator ends")
                self._present.wait(1.0)
            for peer in fresh.values():
                peer.is_used = True
            self._working = set(fresh)
            return fresh

    def set_key(self, secret: bytes) -> None:
        """What signs the tokens of this term, from the next epoch on. Empty: the fleet gives no keys."""
        with self._present:
            self._key = secret
            self._present.notify_all()

    def _key_of_term(self) -> bytes:
        """The key of this term. The control plane has placed this process, so it says one as soon as it is there."""
        with self._present:
            while self._key is None:
                if self._is_closed.is_set():
                    raise UnavailableError("the coordinator ends")
                self._present.wait(1.0)
            return self._key

    def _describe(self, number: int) -> str:
        return ""

    def _stop_all(self, patience: float) -> None:
        """Hosts were told to end; each comes back as a new process image when its link closes."""
        for number, child in list(self._children.items()):
            self._leave(number, child.link)

    def _hear(self, child: Linked) -> None:
        try:
            super()._hear(child)
        finally:
            self._leave(child.number, child.link)

    def close(self) -> None:
        """The job is over. Hosts that are connected stay so: they are removed with the job."""

    def shut(self) -> None:
        """This process ends."""
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._server.close()
        with self._present:
            self._present.notify_all()
            peers = list(self._peers.values())
        for peer in peers:
            peer.hang_up()


def _listen(address: str, port: int) -> socket.socket:
    """Where others reach this node; on loopback alone when that is its address."""
    host = listening_address(address).strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _check_brokers(plan: PreparedPlan) -> None:
    """A local log serves one machine: a job that spans several on it is refused."""
    steps = [step.node for stage in plan.physical.stages for step in stage.steps]
    connectors = [node.connector for node in steps if isinstance(node, Source | Sink)]
    brokers = sorted({each.broker for each in connectors if isinstance(each, TopicConnector)})
    local = [each for each in brokers if each and not is_kafka(each)]
    if local:
        raise PreconditionError(
            f"the task hosts are on several machines, and the local log {local[0]} serves one",
            hint="use Kafka, or constrain the job to one machine: constraints with the key host_id",
            broker=local[0],
        )

"""A coordinator of the fleet and scripted task hosts, over real connections: who is lost, cut off, or refused."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import PreconditionError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution.hosts import linked
from shoal.dataflow.execution.hosts.base import HostLostError
from shoal.dataflow.execution.hosts.control_link import ControlLink
from shoal.dataflow.execution.hosts.control_messages import (
    HostBuilt,
    HostCounts,
    HostFailed,
    HostHello,
    HostListens,
    HostLost,
    HostShare,
    JoinEpoch,
    Ping,
    decode_from_coordinator,
    encode,
)
from shoal.dataflow.execution.hosts.error_texts import describe_error
from shoal.dataflow.execution.remote import hosts as remote_hosts
from shoal.dataflow.execution.remote.hosts import MOST_GREETINGS, RemoteHosts
from shoal.dataflow.execution.routing import all_tasks
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.physical import plan as plan_physically
from shoal.dataflow.plan.prepare import prepare
from shoal.dataflow.plan.prepared import read_prepared, write_prepared
from shoal.dataflow.settings import FlowSettings
from shoal.exchange.errors import PeerLostError
from tests.services.absence import need_ipv6

CUT = "0:0.0>1.1"
"""A channel from a task of host 0 to one of host 1."""
LARGE = 32 << 20
"""More bytes than sockets take from a sender whose peer reads nothing."""


class Listener:
    """What an attempt hears."""

    def __init__(self) -> None:
        self.losses: queue.Queue[str] = queue.Queue()

    def lost(self, reason: str, channel: str = "") -> None:
        self.losses.put(reason)

    def reported(self, _report: Any) -> None: ...
    def failed(self, _error: BaseException) -> None: ...
    def ended(self, _at: float) -> None: ...


class Host:
    """The other end: a task host that does what a test says."""

    opened: ClassVar[list[Host]] = []

    def __init__(self, port: int, number: int, *, generation: int = 1, pid: int = 100) -> None:
        self.opened.append(self)
        raw = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.link = ControlLink(raw)
        self.link.limit_reads(20)
        self.send(HostHello(number, generation, f"n{number}", "h", pid))

    def send(self, message: object) -> None:
        self.link.send(encode(message))

    def next(self) -> Any:
        while (content := self.link.receive()) is not None:
            message = decode_from_coordinator(content)
            if not isinstance(message, Ping):
                return message
        return None

    def join(self) -> JoinEpoch:
        """Wait for an epoch's work."""
        joined = self.next()
        self.next()
        return joined

    def build(self) -> None:
        """Build, as a good one does."""
        self.send(HostListens("here"))
        self.next()
        self.send(HostBuilt())
        self.next()


@pytest.fixture
def made(request, tmp_path):
    address = getattr(request, "param", "127.0.0.1")
    if address == "::1":
        need_ipv6()
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
    broker = str(tmp_path)
    rows = Stream.from_source(TopicSource("in", broker, schema=schema), schema=schema)
    prepared = prepare([rows.group_by("key").sum("value").to_sink(TopicSink("out", broker, key="key")).node])
    physical = plan_physically(prepared.sinks, parallelism=2)
    document = write_prepared(prepared, physical)
    around = SimpleNamespace(certificate=None, job_id="j", generation=4, address=address)
    hosts = RemoteHosts(read_prepared(document), document, hosts=2, around=around, port=0, clock=SystemClock())
    source = physical.stages[0].steps[0].uid
    splits = {source: ((Split("0"),), (Split("1"),))}
    hosts.share = HostShare("j", tuple(all_tasks(physical)), FlowSettings(), splits, None, 0, 1)
    yield hosts
    hosts.shut()
    hosts.end()
    while Host.opened:
        Host.opened.pop().link.release()


def begin(hosts: RemoteHosts, listener: Listener | None = None) -> queue.Queue[Any]:
    """Begin an epoch in a thread. The queue gets None, or what it raised."""
    outcome: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            hosts.begin(hosts.share, None, listener or Listener())
            outcome.put(None)
        except BaseException as error:
            outcome.put(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def both(port: int, **more: Any) -> tuple[Host, Host]:
    return Host(port, 0, **more), Host(port, 1, **more)


def test_a_host_that_says_nothing_while_tasks_are_built_is_lost_although_another_waits_for_it(made, monkeypatch):
    monkeypatch.setattr(linked, "BUILD_SILENCE", 0.3)
    outcome = begin(made)
    first, second = both(made.port)
    first.join()
    second.join()
    is_over = threading.Event()

    def live() -> None:  # it cannot build without the other one, and lives
        with contextlib.suppress(PeerLostError):
            while not is_over.wait(0.05):
                first.send(HostCounts((), {}))

    threading.Thread(target=live, daemon=True).start()
    error = outcome.get(timeout=30)
    is_over.set()
    assert isinstance(error, HostLostError)
    assert "task host 1" in str(error)


def test_a_host_that_builds_for_long_and_lives_is_waited_for(made, monkeypatch):
    monkeypatch.setattr(linked, "BUILD_SILENCE", 0.3)
    outcome = begin(made)
    first, second = both(made.port)
    first.join()
    second.join()
    for _ in range(8):
        first.send(HostCounts((), {}))
        second.send(HostCounts((), {}))
        threading.Event().wait(0.1)
    for each in (first, second):
        threading.Thread(target=each.build, daemon=True).start()
    assert outcome.get(timeout=30) is None
    made.end()


def test_what_a_host_failed_with_is_told_before_that_another_one_lost_it(made):
    outcome = begin(made)
    first, second = both(made.port)
    first.join()
    second.join()
    first.send(HostFailed(describe_error(PeerLostError(CUT, "it hung up"))))
    second.send(HostFailed(describe_error(ValueError("boom"))))
    assert "boom" in str(outcome.get(timeout=30))


def lose(made: RemoteHosts, *, pid: int = 100) -> None:
    """An epoch in which host 0 loses host 1, and both live."""
    listener = Listener()
    outcome = begin(made, listener)
    first, second = both(made.port, pid=pid)
    first.join()
    second.join()
    for each in (first, second):
        threading.Thread(target=each.build, daemon=True).start()
    assert outcome.get(timeout=30) is None
    made.run()
    first.send(HostLost("channel lost its peer", CUT))
    listener.losses.get(timeout=30)
    made.end()


def test_two_hosts_that_lose_each_other_again_and_again_are_told(made):
    lose(made)
    assert made.unreachable == ()
    lose(made)
    assert made.unreachable == ((0, 1),)


def test_a_host_that_died_is_no_host_that_was_cut_off(made):
    lose(made)
    lose(made, pid=101)
    assert made.unreachable == ()


def die(made: RemoteHosts, pid: int, *, generation: int = 1) -> Any:
    """An epoch in which host 1 dies while it works. Returns what the epoch began with."""
    outcome = begin(made)
    first, second = Host(made.port, 0), Host(made.port, 1, pid=pid, generation=generation)
    with contextlib.suppress(queue.Empty):
        return outcome.get(timeout=0.3)
    first.join()
    second.join()
    first.link.close()
    second.link.close()
    assert isinstance(outcome.get(timeout=30), HostLostError)
    return None


def test_a_host_that_dies_again_and_again_without_a_new_checkpoint_fails_the_job(made):
    assert [die(made, pid) for pid in (1, 2, 3)] == [None] * 3
    error = die(made, 4)
    assert isinstance(error, PreconditionError)
    assert "task host 1 on node n1 died 3 times since the beginning" in str(error)
    assert "topic in split 1" in str(error)  # the split that it reads


def test_deaths_with_a_checkpoint_between_them_and_moves_do_not_count(made):
    for number in range(6):
        made.share = dataclasses.replace(made.share, checkpoint=number)
        assert die(made, number) is None
    for number in range(6):
        assert die(made, 100 + number, generation=2 + number) is None


def test_a_connection_that_cannot_be_made_counts_as_well(made):
    for _ in range(2):
        outcome = begin(made)
        first, second = both(made.port)
        first.join()
        second.join()
        first.send(HostFailed(describe_error(PeerLostError(CUT, "no route"))))
        assert isinstance(outcome.get(timeout=30), HostLostError)
    assert made.unreachable == ((0, 1),)


def test_an_older_generation_of_a_host_is_refused(made):
    outcome = begin(made)
    newer = Host(made.port, 1, generation=3)
    older = Host(made.port, 1, generation=2)
    assert older.next() is None  # it is hung up on
    first = Host(made.port, 0)
    assert first.join().term == 4
    assert newer.join().term == 4
    first.link.close()
    newer.link.close()
    assert isinstance(outcome.get(timeout=30), HostLostError)


@pytest.mark.parametrize("hello", [HostHello(2, 1, "n", "h", 1), HostHello(-1, 1, "n", "h", 1), HostBuilt()], ids=repr)
def test_what_is_no_host_of_the_job_is_refused(made, hello):
    raw = socket.create_connection(("127.0.0.1", made.port), timeout=20)
    link = ControlLink(raw)
    link.limit_reads(20)
    link.send(encode(hello))
    assert link.receive() is None
    link.release()
    assert set(made.missing) == {0, 1}


def test_a_host_hears_its_coordinator_while_a_slow_one_is_sent_a_large_plan(made, monkeypatch):
    monkeypatch.setattr(remote_hosts, "PING", 0.05)
    made._document = PlanDocument(made._document.body, {**made._document.blobs, "large": bytes(LARGE)})
    begin(made)
    slow, other = both(made.port)
    assert isinstance(other.next(), JoinEpoch)
    other.link.limit_reads(5)
    messages = [decode_from_coordinator(other.link.receive() or b"") for _ in range(10)]
    assert messages == [Ping()] * 10
    slow.link.close()


@pytest.mark.parametrize("made", ["127.0.0.1", "::1"], indirect=True)
def test_only_those_who_reach_the_address_of_its_node_reach_a_coordinator(made):
    family, address = made._server.family, made._server.getsockname()[0]
    assert (family, address) in [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    socket.create_connection((address, made.port), timeout=20).close()


def test_strangers_who_say_nothing_do_not_pile_up(made):
    strangers = [socket.create_connection(("127.0.0.1", made.port), timeout=5) for _ in range(MOST_GREETINGS + 1)]
    assert strangers[-1].recv(1) == b""
    for each in strangers:
        each.close()


def test_a_stranger_who_says_a_byte_at_a_time_is_hung_up_on(made, monkeypatch):
    monkeypatch.setattr(remote_hosts, "_HELLO", 0.5)
    monkeypatch.setattr(remote_hosts, "PING", 0.05)
    with socket.create_connection(("127.0.0.1", made.port), timeout=20) as stranger:
        stranger.sendall(struct.pack("<Q", 1 << 20))
        stranger.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            for _ in range(400):
                stranger.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    assert stranger.recv(1) == b""
                    break
            else:
                raise AssertionError("it was listened to for ever")

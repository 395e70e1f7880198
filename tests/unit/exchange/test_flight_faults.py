"""A Flight endpoint among peers that are killed, stopped, cut off and renewed, and among strangers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.clock import SystemClock
from shoal.core.errors import NotFoundError, ShoalError
from shoal.exchange.base import Control, End
from shoal.exchange.errors import BadFrameError, PeerLostError, StaleEpochError
from shoal.exchange.flight.calls import as_body, as_raised, messages, read_message
from shoal.exchange.flight.endpoint import FlightEndpoint, FlightSettings
from shoal.exchange.flight.servers import COMMAND, TOKEN_HEADER
from shoal.exchange.frames import HEADER, Kind
from shoal.exchange.inbox import Inbox
from shoal.exchange.tokens import Gate
from shoal.model.identity import workload_identity
from shoal.testing.certificates import Certificates
from shoal.testing.suites.exchange import GATE, KEY, LONG, MARK, ExchangeSuite, closing_all, read, rows
from shoal.wire.trust.credentials import CredentialPaths, CredentialWatch
from shoal.wire.trust.security import MutualTls
from tests.services.network import Network, require_network
from tests.unit.exchange.test_hostile import WRONG, drain, frame

wait_until = ExchangeSuite.wait_until
ROOT = Path(__file__).parents[3]
QUICK = FlightSettings(handshake=3, stall=2, most_peers=4)
Make: TypeAlias = Callable[..., FlightEndpoint]


def look(files: MutualTls) -> Any:
    return CredentialWatch(CredentialPaths(files.ca, files.cert, files.key), now=SystemClock().wall).look


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def make(certificates: Certificates) -> Iterator[Make]:
    files = certificates.workload("orders", "n1")
    with closing_all() as keep:

        def made(gate: Gate = GATE, credentials: Any = None, **options: Any) -> FlightEndpoint:
            options.setdefault("settings", QUICK)
            endpoint = FlightEndpoint("127.0.0.1", gate, credentials or look(files), **options)
            keep(endpoint)
            return endpoint

        yield made


def serve(endpoint: FlightEndpoint, capacity: int = 1000, name: str = "c") -> Inbox:
    inbox = Inbox(1, capacity=capacity)
    endpoint.serve([name], inbox)
    return inbox


def is_alive(endpoint: FlightEndpoint) -> None:
    """Whether it still serves others."""
    inbox = serve(endpoint, name="still")
    endpoint.connect(endpoint.address, "still").send(rows(1))
    assert read(inbox).num_rows == 1


# ---------------------------------------------------------------------------------------------------------
# Processes and networks


@contextlib.contextmanager
def process(role: str, host: str, files: MutualTls, peer: str = "", prefix: tuple[str, ...] = ()) -> Iterator[Any]:
    command = [*prefix, sys.executable, "-m", "tests.unit.exchange.flight_peer", role, host]
    command += [str(files.cert.parent), *([peer] if peer else [])]
    pipes: Any = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen(command, **pipes) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_sender_is_lost_behind_what_it_sent(
    make: Make, certificates: Certificates, number: signal.Signals
) -> None:
    endpoint = make()
    inbox = serve(endpoint, 100_000)
    with process("send", "127.0.0.1", certificates.workload("orders", "n2"), endpoint.address) as child:
        child.stdout.readline()
        assert child.stdout.readline() == "sent\n"
        child.send_signal(number)
    assert [read(inbox).num_rows, read(inbox).num_rows] == [3, 3000]
    with pytest.raises(PeerLostError):
        drain(inbox)
    is_alive(endpoint)


def test_a_stopped_sender_is_lost_and_what_it_says_later_goes_nowhere(make: Make, certificates: Certificates) -> None:
    endpoint = make()
    inbox = serve(endpoint, 100_000)
    with process("flood", "127.0.0.1", certificates.workload("orders", "n2"), endpoint.address) as child:
        child.stdout.readline()
        assert child.stdout.readline() == "sent\n"
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(PeerLostError, match="said nothing for 2 s"):
            drain(inbox)
        child.send_signal(signal.SIGCONT)
        assert child.stdout.readline() == "PeerLostError\n"
    assert inbox.get(0.05) is None
    is_alive(endpoint)


def test_a_stopped_receiver_is_lost_and_a_killed_one_at_once(make: Make, certificates: Certificates) -> None:
    endpoint = make()
    with process("receive", "127.0.0.1", certificates.workload("orders", "n2")) as child:
        address = child.stdout.readline().strip()
        sender = endpoint.connect(address, "c")
        sender.send(rows(10))
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(PeerLostError):
            _send_always(sender)
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait(LONG)
        with pytest.raises(PeerLostError):
            endpoint.connect(address, "c")


def _send_always(sender: Any) -> None:
    while True:
        sender.send(rows(3000))


class Pipe:
    """A relay of one port that can be paused: connections stay, and nothing passes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop, self._wake = os.pipe()
        self.is_paused = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pairs: dict[socket.socket, socket.socket] = {}
        while True:
            sources = [self._stop, self._listener, *([] if self.is_paused else pairs)]
            ready, _, _ = select.select(sources, [], [], 0.05)
            if self._stop in ready:
                break
            for each in ready:
                if each is self._listener:
                    near, _ = self._listener.accept()
                    far = socket.create_connection(self._target)
                    pairs |= {near: far, far: near}
                elif not self.is_paused and each in pairs:
                    self._pass(each, pairs)
        for each in pairs:
            each.close()

    def _pass(self, source: socket.socket, pairs: dict[socket.socket, socket.socket]) -> None:
        try:
            content = source.recv(65_536)
            if content:
                pairs[source].sendall(content)
                return
        except OSError:
            pass
        other = pairs.pop(source)
        pairs.pop(other, None)
        source.close()
        other.close()

    def close(self) -> None:
        os.write(self._wake, b".")
        self._thread.join()
        self._listener.close()
        os.close(self._stop)
        os.close(self._wake)


def test_on_a_paused_connection_both_sides_lose_each_other(make: Make) -> None:
    receiver, sending = make(), make()
    inbox = serve(receiver)
    pipe = Pipe(receiver.address)
    try:
        sender = sending.connect(pipe.address, "c")
        sender.send(rows(10))
        assert read(inbox).num_rows == 10
        pipe.is_paused = True
        with pytest.raises(PeerLostError, match="said nothing"):
            inbox.get(LONG)
        with pytest.raises(PeerLostError):
            _send_always(sender)
        with pytest.raises(PeerLostError):
            sending.connect(pipe.address, "c")  # the time of the handshake is limited, too
    finally:
        pipe.close()
    is_alive(receiver)


def test_idle_channels_live_on(make: Make) -> None:
    receiver, sending = make(), make()
    inbox = serve(receiver)
    sender = sending.connect(receiver.address, "c")
    assert inbox.get(2.5 * QUICK.stall) is None
    sender.send(rows(2))
    assert read(inbox).num_rows == 2


def test_between_two_hosts_a_partition_is_a_lost_peer(certificates: Certificates) -> None:
    require_network()
    files = [certificates.workload("orders", name) for name in ("n1", "n2")]
    with Network("one", "two") as network:
        there = network.address("one")
        with process("receive", there, files[0], prefix=tuple(network.command("one"))) as receiver:
            address = receiver.stdout.readline().strip()
            host = network.address("two")
            with process("flood", host, files[1], address, prefix=tuple(network.command("two"))) as sender:
                sender.stdout.readline()
                assert sender.stdout.readline() == "sent\n"
                network.cut("one", "two")
                assert sender.stdout.readline() == "PeerLostError\n"
                network.heal()
            with process("send", host, files[1], address, prefix=tuple(network.command("two"))) as sender:
                sender.stdout.readline()
                # The receiver's channel had a sender, which was lost: a new epoch would have a new one.
                assert sender.stdout.readline() == "PreconditionError\n"
                sender.stdin.close()
                assert sender.wait(LONG) == 0


# ---------------------------------------------------------------------------------------------------------
# Certificates


def test_renewed_in_the_middle_of_a_stream_senders_move_and_nothing_is_lost(
    make: Make, certificates: Certificates
) -> None:
    identity = workload_identity("default", job="orders", node="n9")
    receiver = make(credentials=look(certificates.issue(identity)), settings=FlightSettings(stall=2, handshake=2))
    sending = make()
    inboxes = [serve(receiver, 3000, name) for name in ("a", "b")]
    senders = [sending.connect(receiver.address, name) for name in ("a", "b")]
    first = receiver._server
    sent = 0

    def step() -> None:
        nonlocal sent
        for inbox, sender in zip(inboxes, senders, strict=True):
            sender.send(rows(100, sent))
            sender.send(rows(100, sent + 1))
            sender.control(Control(MARK, sent))
            got = [read(inbox) for _ in range(3)]
            assert [each.column(0)[0].as_py() for each in got[:2]] + [got[2].value] == [sent, sent + 1, sent]
        sent += 1

    step()
    for _ in range(3):
        certificates.issue(identity)
        before = receiver._server

        def is_renewed(before: Any = before) -> bool:
            step()
            moved = {each._sender.outlet for each in senders}  # type: ignore[attr-defined]
            return receiver._server is not before and before.wait_closed(0) and len(moved) == 1

        wait_until(is_renewed)
    assert first.wait_closed(LONG)
    for sender, inbox in zip(senders, inboxes, strict=True):
        sender.end()
        assert read(inbox) == End()
    assert len(receiver._taken) == 1


def test_what_waits_unread_counts_when_a_sender_moves(make: Make, certificates: Certificates) -> None:
    identity = workload_identity("default", job="orders", node="n9")
    receiver = make(credentials=look(certificates.issue(identity)))
    sending = make()
    inbox = serve(receiver, 10_000)
    sender: Any = sending.connect(receiver.address, "c")
    sender.send(rows(1000))
    certificates.issue(identity)
    wait_until(lambda: sender._sender.outlet.is_moving)
    sender.control(Control(MARK, 1))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (sender.send(rows(1000)), done.set()), daemon=True)
    thread.start()
    assert not done.wait(0.3), "it has no credit for it"
    assert read(inbox).num_rows == 1000
    assert read(inbox) == Control(MARK, 1)
    assert done.wait(LONG)
    assert read(inbox).num_rows == 1000
    assert inbox.waiting_bytes == 0


def test_a_stream_outlives_its_certificate_and_no_new_one_begins_with_it(
    make: Make, certificates: Certificates
) -> None:
    identity = workload_identity("default", job="orders", node="n9")
    brief = certificates.issue(identity, lifetime=timedelta(seconds=4))
    receiver, sending = make(credentials=look(brief)), make()
    inbox = serve(receiver)
    sender = sending.connect(receiver.address, "c")

    def is_accepted(name: str) -> bool:
        """Whether somebody who connects now gets to the token."""
        with closing_all() as keep:
            other = FlightEndpoint("127.0.0.1", GATE, look(certificates.workload("orders", "n2")), settings=QUICK)
            keep(other)
            try:
                other.connect(receiver.address, name).close()
            except NotFoundError:
                return True
            except PeerLostError:
                return False
            return True

    wait_until(lambda: not is_accepted("nothing"))
    sender.send(rows(5))
    assert read(inbox).num_rows == 5
    certificates.issue(identity)
    wait_until(lambda: is_accepted("nothing"))
    sender.send(rows(5))
    assert read(inbox).num_rows == 5


def test_certificates_of_others_are_refused(make: Make, tmp_path: Path, certificates: Certificates) -> None:
    receiver = make()
    serve(receiver)
    strangers = {
        "another authority": make(credentials=look(Certificates(tmp_path / "other").workload("orders", "n1"))),
        "another job": make(credentials=look(certificates.workload("others", "n1"))),
    }
    for stranger in strangers.values():
        with pytest.raises(PeerLostError):
            stranger.connect(receiver.address, "c")
    with closing_all() as keep:
        plain = FlightEndpoint("127.0.0.1", GATE, settings=QUICK)
        keep(plain)
        with pytest.raises(PeerLostError):
            plain.connect(receiver.address, "c")
    no_certificate = fl.FlightClient(
        f"grpc+tls://{receiver.address}",
        tls_root_certs=certificates.trusted,
        override_hostname="orders.job.default.shoal",
    )
    with pytest.raises(fl.FlightError):
        list(no_certificate.list_flights())
    is_alive(receiver)


# ---------------------------------------------------------------------------------------------------------
# Strangers and liars


@contextlib.contextmanager
def caller(endpoint: FlightEndpoint, files: MutualTls, token: str = GATE.token) -> Iterator[tuple[Any, Any, Any]]:
    found = look(files)()
    client = fl.FlightClient(
        f"grpc+tls://{endpoint.address}",
        tls_root_certs=found.ca,
        cert_chain=found.cert,
        private_key=found.key,
        override_hostname="orders.job.default.shoal",
    )
    options = fl.FlightCallOptions(headers=[(TOKEN_HEADER.encode(), token.encode())], timeout=LONG)
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(COMMAND), options)
    try:
        yield client, writer, reader
    finally:
        with contextlib.suppress(Exception):
            writer.close()
        client.close()


def answers(reader: Any) -> list[tuple[int, bytes]]:
    """What the endpoint said until the call was over."""
    content = b""
    with contextlib.suppress(Exception):
        while True:
            content += bytes(reader.read_chunk().app_metadata)
    found = []
    while content:
        _magic, _version, kind, _channel, size = HEADER.unpack_from(content)
        found.append((kind, content[HEADER.size : HEADER.size + size]))
        content = content[HEADER.size + size :]
    return found


def write(writer: Any, content: bytes) -> None:
    with contextlib.suppress(Exception):  # it may be cut off before all is out
        writer.write_metadata(content)


GREETING = frame(Kind.HELLO, 0, GATE.token.encode()) + frame(Kind.OPEN, 1, b"c")
WRONG_HERE = WRONG | {
    "a channel that nobody leaves": frame(Kind.FOLLOW, 2, b"c") + frame(Kind.END, 2),
    "leaving for nowhere": frame(Kind.LEAVE, 1),
}


@pytest.mark.parametrize("wrong", WRONG_HERE.values(), ids=WRONG_HERE)
def test_a_peer_that_breaks_the_protocol_is_told_and_cut_off(
    make: Make, certificates: Certificates, wrong: bytes
) -> None:
    endpoint = make()
    inbox = serve(endpoint)
    with caller(endpoint, certificates.workload("orders", "n3")) as (_client, writer, reader):
        writer.begin(as_body(b"").schema)
        write(writer, GREETING + wrong)
        assert Kind.BROKEN in [kind for kind, _ in answers(reader)]
    if wrong != WRONG["a frame behind the end"]:
        with pytest.raises(BadFrameError):
            drain(inbox)
    is_alive(endpoint)


BODIES = {
    "another type": pa.record_batch({"x": ["a", "b"]}),
    "two columns": pa.record_batch({"a": pa.array([1], pa.uint8()), "b": pa.array([1], pa.uint8())}),
    "nulls": pa.record_batch({"bytes": pa.array([1, None], pa.uint8())}),
    "no column": pa.record_batch([], names=[]),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_none_of_ours_is_refused(make: Make, certificates: Certificates, body: Any) -> None:
    endpoint = make()
    inbox = serve(endpoint)
    with caller(endpoint, certificates.workload("orders", "n3")) as (_client, writer, reader):
        writer.begin(body.schema)
        write(writer, GREETING)
        with contextlib.suppress(Exception):
            writer.write_batch(body)
        assert Kind.BROKEN in [kind for kind, _ in answers(reader)]
    with pytest.raises(ShoalError):
        drain(inbox)
    is_alive(endpoint)


def _greet(endpoint: FlightEndpoint, files: MutualTls, token: str) -> None:
    with caller(endpoint, files, token) as (_client, writer, reader):
        writer.begin(as_body(b"").schema)
        writer.write_metadata(GREETING)
        reader.read_chunk()


def test_nothing_is_asked_without_the_token(make: Make, certificates: Certificates) -> None:
    endpoint = make()
    files = certificates.workload("orders", "n3")
    for token in ("", "rubbish", Gate("orders", 6, KEY).token):
        # It is refused when the call begins or with the first answer, whichever comes first.
        with pytest.raises(fl.FlightUnauthenticatedError) as raised:
            _greet(endpoint, files, token)
        assert isinstance(as_raised(raised.value), ShoalError)
        assert KEY.secret.decode() not in str(raised.value)
    assert isinstance(as_raised(raised.value), StaleEpochError)


def test_a_peer_that_says_nothing_and_too_many_peers(make: Make, certificates: Certificates) -> None:
    endpoint = make(settings=FlightSettings(handshake=1, stall=5, most_peers=2))
    files = certificates.workload("orders", "n3")
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(caller(endpoint, files)) for _ in range(3)]
        for _client, writer, _reader in calls:
            with contextlib.suppress(fl.FlightUnavailableError):  # the third
                writer.begin(as_body(b"").schema)
        wait_until(lambda: len(endpoint._taken) == 2)
        # Told that it is over; a caller that does not hang up keeps its thread, and there are not more than allowed.
        for _client, _writer, reader in calls:
            with contextlib.suppress(fl.FlightError):
                assert bytes(reader.read_chunk().app_metadata)[3] == Kind.CLOSE
    wait_until(lambda: not endpoint._taken)
    is_alive(endpoint)


@given(st.lists(st.binary(max_size=600_000), max_size=6))
@settings(deadline=None, max_examples=30)
def test_messages_carry_all_bytes_in_order(parts: list[bytes]) -> None:
    found = list(messages([memoryview(each) for each in parts]))
    assert b"".join(found) == b"".join(parts)
    for each in found:
        chunk = _Chunk(as_body(each))
        assert b"".join(read_message(chunk)) == bytes(each)


class _Chunk:
    app_metadata = None

    def __init__(self, data: Any) -> None:
        self.data = data


def test_a_large_buffer_is_split_and_not_copied() -> None:
    large = memoryview(bytes(20 << 20))
    found = list(messages([memoryview(b"header"), large, memoryview(b"tail")]))
    assert [len(each) for each in found] == [6, 8 << 20, 8 << 20, 4 << 20, 4]
    assert all(isinstance(each, memoryview) and each.obj is large.obj for each in found[1:4])


def test_a_port_that_is_taken_is_refused(make: Make) -> None:
    port = int(make().address.rpartition(":")[2])
    with pytest.raises(ShoalError, match="cannot listen"):
        make(port=port)

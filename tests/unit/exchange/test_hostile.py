"""A unix endpoint among peers that are killed, lie, stall and stop in the middle of a frame."""

from __future__ import annotations

import contextlib
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, ShoalError
from shoal.exchange.base import Control, Sender
from shoal.exchange.errors import BadFrameError, PeerFailedError, PeerLostError, read_error, write_error
from shoal.exchange.frames import (
    HEADER,
    BatchReader,
    BatchWriter,
    Kind,
    pack_control,
    pack_header,
    read_control,
    read_count,
    read_header,
)
from shoal.exchange.inbox import MOST_WAITING, Inbox
from shoal.exchange.tokens import Gate, JobKey
from shoal.exchange.unix import UnixEndpoint, UnixSettings
from shoal.testing.suites.exchange import GATE, LONG, ExchangeSuite, closing_all, read, rows


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sx") as path:
        yield path


@pytest.fixture
def served(folder: str) -> Iterator[tuple[UnixEndpoint, Inbox]]:
    """An endpoint that serves a channel of 1,000 bytes."""
    with closing_all() as keep:
        endpoint = UnixEndpoint(f"{folder}/r.sock", GATE, UnixSettings(most_peers=4))
        keep(endpoint)
        inbox = Inbox(1, capacity=1000)
        endpoint.serve(["c"], inbox)
        yield endpoint, inbox


def frame(kind: Kind, channel: int, content: bytes = b"") -> bytes:
    return pack_header(kind, channel, len(content)) + content


def batch_frames(batch: Any, channel: int) -> bytes:
    return b"".join(
        frame(kind, channel, b"".join(bytes(memoryview(part).cast("B")) for part in parts))
        for kind, parts in BatchWriter().write(batch)
    )


def dial(endpoint: UnixEndpoint, *, token: str = GATE.token) -> socket.socket:
    """A peer that has shown its token and has a channel."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(LONG)
    peer.connect(endpoint.address)
    peer.sendall(frame(Kind.HELLO, 0, token.encode()) + frame(Kind.OPEN, 1, b"c"))
    return peer


def drain(inbox: Inbox) -> list[Any]:
    """Read until it raises."""
    found: list[Any] = []
    while True:
        try:
            found.append(read(inbox))
        except ShoalError as error:
            error.add_note(f"behind {len(found)} items")
            raise


def last_words(peer: socket.socket) -> ShoalError | None:
    """What the endpoint said before it hung up."""
    content = b""
    with contextlib.suppress(ConnectionResetError):  # it did not read all that was sent
        while part := peer.recv(65_536):
            content += part
    found = None
    while content:
        _magic, _version, kind, _channel, size = HEADER.unpack_from(content)
        body, content = content[HEADER.size : HEADER.size + size], content[HEADER.size + size :]
        if kind in (Kind.BROKEN, Kind.REFUSED):
            found = read_error(body)
    return found


WRONG = {
    "not a frame": b"GET / HTTP/1.1\r\n\r\n",
    "another version": b"SX\x09\x04" + bytes(12),
    "an unknown kind": b"SX\x02\x63" + bytes(12),
    "an answer": frame(Kind.CREDIT, 1, bytes(8)),
    "a second greeting": frame(Kind.HELLO, 0, GATE.token.encode()),
    "a channel that is not open": frame(Kind.END, 2),
    "a channel opened twice": frame(Kind.OPEN, 1, b"c"),
    "a batch without a schema": frame(Kind.BATCH, 1, bytes(100)),
    "a schema that is none": frame(Kind.SCHEMA, 1, b"rubbish" * 10),
    "a stream that is none": frame(Kind.STREAM, 1, b"rubbish" * 10),
    "more than the credit": batch_frames(rows(5), 1) + batch_frames(rows(200), 1),
    "a size beyond all bounds": pack_header(Kind.BATCH, 1, 1 << 60),
    "a long control frame": pack_header(Kind.CONTROL, 1, 1 << 20),
    "a short control frame": frame(Kind.CONTROL, 1, b"x"),
    "a control frame without a kind": frame(Kind.CONTROL, 1, bytes(13)),
    "a frame behind the end": frame(Kind.END, 1) + frame(Kind.CONTROL, 1, pack_control(Control(1))),
    "control frames without end": frame(Kind.CONTROL, 1, pack_control(Control(1))) * (MOST_WAITING + 1),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_peer_that_breaks_the_protocol_is_told_and_cut_off(served: tuple[UnixEndpoint, Inbox], wrong: bytes) -> None:
    endpoint, inbox = served
    with dial(endpoint) as peer:
        with contextlib.suppress(BrokenPipeError):  # it may be cut off before all is out
            peer.sendall(wrong)
        assert isinstance(last_words(peer), InvalidError)
    if wrong != WRONG["a frame behind the end"]:
        with pytest.raises(BadFrameError):
            drain(inbox)
    _is_alive(endpoint)


def _is_alive(endpoint: UnixEndpoint) -> None:
    """Whether it still serves others."""
    inbox = Inbox(1, capacity=1000)
    endpoint.serve(["still"], inbox)
    sender = endpoint.connect(endpoint.address, "still")
    sender.send(rows(1))
    assert read(inbox).num_rows == 1


@pytest.mark.parametrize("size", [3, HEADER.size, HEADER.size + 5, -1])
def test_half_a_frame_and_a_hang_up_is_a_lost_peer(served: tuple[UnixEndpoint, Inbox], size: int) -> None:
    endpoint, inbox = served
    with dial(endpoint) as peer:
        answers = b""
        while len(answers) < HEADER.size + HEADER.size + 8:  # it is welcome, and its channel is open
            answers += peer.recv(100)
        peer.sendall(batch_frames(rows(10), 1)[:size])
    with pytest.raises(PeerLostError):
        inbox.get(LONG)
    _is_alive(endpoint)


def test_who_says_nothing_is_cut_off(folder: str) -> None:
    endpoint = UnixEndpoint(f"{folder}/r.sock", GATE, UnixSettings(handshake=0.2))
    with closing_all() as keep, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        keep(endpoint)
        peer.settimeout(LONG)
        peer.connect(endpoint.address)
        assert peer.recv(1) == b""


def test_credit_comes_back_in_shares_and_at_once_when_it_is_asked_for(folder: str) -> None:
    inbox, sent = Inbox(1, capacity=100_000), 0
    with closing_all() as keep:
        endpoint = UnixEndpoint(f"{folder}/r.sock", GATE)
        keep(endpoint)
        endpoint.serve(["c"], inbox)
        with dial(endpoint) as peer:
            assert [answer(peer)[0], answer(peer)[0]] == [Kind.WELCOME, Kind.OPENED]
            for _ in range(3):  # far less than a share of the credit
                part = batch_frames(rows(1), 1)
                peer.sendall(part)
                sent += 1 + len(part) - part.index(b"SX", 1) - HEADER.size
                assert read(inbox).num_rows == 1
            peer.sendall(frame(Kind.ASK, 1))
            kind, content = answer(peer)
            assert (kind, read_count(content)) == (Kind.CREDIT, sent)


def answer(peer: socket.socket) -> tuple[Kind, bytes]:
    header = peer.recv(HEADER.size, socket.MSG_WAITALL)
    _magic, _version, kind, _channel, size = HEADER.unpack(header)
    return Kind(kind), peer.recv(size, socket.MSG_WAITALL) if size else b""


def test_there_are_not_more_peers_than_allowed(served: tuple[UnixEndpoint, Inbox]) -> None:
    endpoint, inbox = served
    first = dial(endpoint)
    assert [answer(first)[0], answer(first)[0]] == [Kind.WELCOME, Kind.OPENED]  # before others ask for the channel
    others = [dial(endpoint) for _ in range(3)]
    ExchangeSuite.wait_until(lambda: len(endpoint._intakes) == 4)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as refused:
        refused.connect(endpoint.address)
        assert refused.recv(1) == b""
    for each in others:
        each.close()
    first.sendall(batch_frames(rows(3), 1))
    assert read(inbox).num_rows == 3
    first.close()


def test_a_peer_that_reads_no_credit_is_cut_off_in_the_end(folder: str) -> None:
    with closing_all() as keep:
        endpoint = UnixEndpoint(f"{folder}/r.sock", GATE, UnixSettings(stall=1))
        keep(endpoint)
        inbox = Inbox(1, capacity=1)
        endpoint.serve(["c"], inbox)
        with dial(endpoint) as peer, pytest.raises((PeerLostError, BadFrameError)):
            _send_and_read(peer, inbox)
        _is_alive(endpoint)


def _send_and_read(peer: socket.socket, inbox: Inbox) -> None:
    one = batch_frames(rows(1), 1)
    while True:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(one)
        read(inbox)


def test_a_path_that_is_too_long_is_refused(folder: str) -> None:
    with pytest.raises(InvalidError, match="at most 99 bytes"):
        UnixEndpoint(f"{folder}/{'x' * 100}.sock", GATE)
    assert list(Path(folder).iterdir()) == []


def test_nobody_else_can_use_the_socket_and_it_is_removed(folder: str) -> None:
    endpoint = UnixEndpoint(f"{folder}/r.sock", GATE)
    assert stat.S_IMODE(Path(endpoint.address).stat().st_mode) == 0o600
    endpoint.close()
    endpoint.close()
    assert not Path(endpoint.address).exists()


def test_a_key_is_never_shown() -> None:
    assert "kkk" not in repr(GATE)
    with pytest.raises(InvalidError):
        JobKey(b"short")


@given(st.text(max_size=300))
def test_no_text_is_a_token(text: str) -> None:
    with pytest.raises(ShoalError):
        Gate("orders", 7, JobKey(b"z" * 32)).admit(text)


@given(st.binary(max_size=200))
def test_no_bytes_end_the_process(content: bytes) -> None:
    reader = BatchReader()
    reader.read_schema(rows(1).schema.serialize())
    for kind in (Kind.BATCH, Kind.STREAM):
        with pytest.raises(BadFrameError):
            reader.read(kind, pa.py_buffer(content))
    assert isinstance(read_error(content), PeerFailedError)
    if len(content) < 13 or not 1 <= content[0] <= 31:
        with pytest.raises(InvalidError):
            read_control(content)
    if len(content) >= HEADER.size:
        with pytest.raises(BadFrameError):
            read_header(content[: HEADER.size], frozenset(Kind))


@given(st.data())
def test_a_batch_with_flipped_bytes_is_read_or_refused(data: st.DataObject) -> None:
    batch = pa.record_batch({"s": ["a", "bb", None], "n": [1, 2, 3]})
    frames = BatchWriter().write(batch)
    content = bytearray(b"".join(bytes(memoryview(part).cast("B")) for part in frames[-1][1]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    reader = BatchReader()
    reader.read_schema(frames[0][1][0])
    try:
        reader.read(Kind.BATCH, pa.py_buffer(bytes(content)))
    except BadFrameError:
        return


def test_every_error_crosses() -> None:
    for error in (PeerLostError("c", "gone"), BadFrameError("f", 1, "r"), KeyError("x")):
        assert isinstance(read_error(write_error(error)), ShoalError)


_CHILD = """
import sys
from shoal.exchange.unix import UnixEndpoint
from shoal.testing.suites.exchange import GATE, rows
endpoint = UnixEndpoint(sys.argv[1] + "/s.sock", GATE)
sender = endpoint.connect(sys.argv[1] + "/r.sock", "c")
sender.send(rows(3))
sender.send(rows(3000))
print("sent", flush=True)
sender.send(rows(3000))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_sender_is_lost_behind_what_it_sent(
    folder: str, served: tuple[UnixEndpoint, Inbox], number: signal.Signals
) -> None:
    _endpoint, inbox = served
    inbox.capacity = 100_000
    with subprocess.Popen([sys.executable, "-c", _CHILD, folder], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"sent\n"
        child.send_signal(number)
        child.wait(LONG)
    assert [read(inbox).num_rows, read(inbox).num_rows] == [3, 3000]
    with pytest.raises(PeerLostError):
        drain(inbox)


_RECEIVER = """
import sys, time
from shoal.exchange.unix import UnixEndpoint
from shoal.exchange.inbox import Inbox
from shoal.testing.suites.exchange import GATE, rows
endpoint = UnixEndpoint(sys.argv[1] + "/s.sock", GATE)
inbox = Inbox(1, capacity=1 << 30)
endpoint.serve(["c"], inbox)
print("ready", flush=True)
sys.stdin.read()
"""


def _send_always(sender: Sender) -> None:
    while True:
        sender.send(rows(100_000))


def test_a_stopped_receiver_is_lost_in_the_end_and_a_killed_one_at_once(folder: str) -> None:
    command = [sys.executable, "-c", _RECEIVER, folder]
    with closing_all() as keep, subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            endpoint = UnixEndpoint(f"{folder}/r.sock", GATE, UnixSettings(stall=1))
            keep(endpoint)
            sender = endpoint.connect(f"{folder}/s.sock", "c")
            sender.send(rows(10))
            child.send_signal(signal.SIGSTOP)
            with pytest.raises(PeerLostError):
                _send_always(sender)
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait(LONG)
            with pytest.raises(PeerLostError):
                endpoint.connect(f"{folder}/s.sock", "c")
        finally:
            child.kill()

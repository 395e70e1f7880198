"""How fast partitioned batches go from one process to another by a unix socket, beside the socket alone. A program.

    python -m bench.dataflow.transport ROWS ROUNDS

Batches are shared out by key as an edge of a job does, and the part of one task goes to another process: by a channel
of `shoal.exchange`, and in turn as bytes by a bare socket, which were serialized before and are not looked at.
Prints MB/s of both, round by round. Called by `bench.dataflow.measures`.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from bench.dataflow.rows import make_batches
from shoal.dataflow.language.keys import key_groups, partition, tasks_of
from shoal.exchange.base import Control, End
from shoal.exchange.inbox import Inbox
from shoal.exchange.tokens import Gate, JobKey
from shoal.exchange.unix import UnixEndpoint

MB = 1e6
GATE = Gate("bench", 1, JobKey(b"b" * 32))
_GROUPS = 128
_KEYS = 1000
_DENSITY = 1000
#: Bytes that may wait on the channel: half of what a task allows that two others send to.
_CAPACITY = 8 << 20
#: What the kernel may hold of a connection, as the exchange asks for.
_KERNEL_BYTES = 1 << 20


def make_parts(rows: int) -> list[Any]:
    """The batches that go to the first of two tasks."""
    found = []
    for batch in make_batches(rows, keys=_KEYS, rows_per_second=_DENSITY):
        tasks = tasks_of(key_groups(batch, ["key"], _GROUPS), 2, _GROUPS)
        found += [part for index, part in partition(batch, tasks, 2) if index == 0]
    return found


def _receive(path: str, pipe: Connection) -> None:
    """The other process: reads all of a round, and says when it has."""
    endpoint = UnixEndpoint(f"{path}/there", GATE)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{path}/bare")
    listener.listen()
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        name, sizes = asked
        if name:
            inbox = Inbox(1, capacity=_CAPACITY)
            endpoint.serve([name], inbox)
            pipe.send("served")
            pipe.send(_read_channel(inbox))
        else:
            pipe.send(_read_bare(listener, sizes))
    endpoint.close()


def _read_channel(inbox: Inbox) -> int:
    rows = 0
    while (received := inbox.get(60)) is not None and not isinstance(received.item, End | Control):
        rows += received.item.num_rows
    return rows


def _read_bare(listener: socket.socket, sizes: Sequence[int]) -> int:
    connection, _address = listener.accept()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
    buffer = memoryview(bytearray(max(sizes)))
    found = 0
    with connection:
        for size in sizes:
            left = size
            while left and (got := connection.recv_into(buffer[:left], 0, socket.MSG_WAITALL)):
                left -= got
            found += size - left
    return found


def take_turns(rows: int, rounds: int) -> dict[str, list[float]]:
    """MB per second of the channel and of the bare socket, round by round. The first of each is not counted."""
    parts = make_parts(rows)
    contents = [memoryview(part.serialize()) for part in parts]
    total = sum(map(len, contents))
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(prefix="shoal-") as path:
        other = multiprocessing.get_context("spawn").Process(target=_receive, args=(path, theirs), daemon=True)
        other.start()
        ours.recv()
        endpoint = UnixEndpoint(f"{path}/here", GATE)
        for turn in range(rounds + 1):
            took = _send_channel(endpoint, f"{path}/there", f"c{turn}", parts, ours)
            bare = _send_bare(f"{path}/bare", contents, ours)
            if turn:
                rates["ours"].append(total / took / MB)
                rates["bare"].append(total / bare / MB)
        ours.send(None)
        other.join(20)
        endpoint.close()
    return rates


def _send_channel(endpoint: UnixEndpoint, address: str, name: str, parts: Sequence[Any], pipe: Connection) -> float:
    pipe.send((name, ()))
    pipe.recv()
    sender = endpoint.connect(address, name)
    began = time.perf_counter()
    for part in parts:
        sender.send(part)
    sender.end()
    if pipe.recv() != sum(part.num_rows for part in parts):
        raise SystemExit("not all rows arrived")
    return time.perf_counter() - began


def _send_bare(address: str, contents: Sequence[memoryview], pipe: Connection) -> float:
    sizes = [len(content) for content in contents]
    pipe.send(("", sizes))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        connection.connect(address)
        began = time.perf_counter()
        for content in contents:
            connection.sendall(content)
        if pipe.recv() != sum(sizes):
            raise SystemExit("not all bytes arrived")
        return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(take_turns(int(sys.argv[1]), int(sys.argv[2]))))

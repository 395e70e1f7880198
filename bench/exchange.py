"""The exchange between hosts: how fast batches go through Arrow Flight with TLS, beside bare Flight.

Two processes, one of which sends. In turn: a channel of `shoal.exchange` with its credits, and a plain `do_put` of
Flight. Both have the same certificates and send the same batches.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.areas import Area, Note
from bench.flight_figures import FIGURES
from shoal.core.clock import SystemClock
from shoal.exchange.base import Control, End
from shoal.exchange.inbox import Inbox
from shoal.exchange.tokens import Gate, JobKey
from shoal.testing.certificates import Certificates
from shoal.wire.trust.credentials import CredentialPaths, Credentials, read_credentials

MB = 1e6
GATE = Gate("bench", 1, JobKey(b"b" * 32))
_NAME = "bench.job.default.shoal"
#: Bytes that may wait on the channel, as the engine allows.
_CAPACITY = 16 << 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is sent. A test of the measuring itself sends less."""

    rows: int = 20_000
    batches: int = 3000


FULL = Scale()


def _credentials(folder: str) -> Credentials:
    return read_credentials(CredentialPaths.within(Path(folder)), now=SystemClock().wall())


def _receive(folder: str, pipe: Connection) -> None:
    """The other process: tells where it listens, and when it has read all of a round."""
    import pyarrow.flight as fl

    from shoal.exchange.flight.endpoint import FlightEndpoint

    own = _credentials(folder)

    class Bare(fl.FlightServerBase):  # type: ignore[misc]
        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            del context, descriptor
            found = 0
            with contextlib.suppress(StopIteration):
                while True:
                    found += reader.read_chunk().data.num_rows
            writer.write(str(found).encode())

    bare = Bare(
        "grpc+tls://127.0.0.1:0",
        tls_certificates=[(own.cert, own.key)],
        verify_client=True,
        root_certificates=own.ca,
    )
    endpoint = FlightEndpoint("127.0.0.1", GATE, lambda: own)
    pipe.send((endpoint.address, f"127.0.0.1:{bare.port}"))
    while name := pipe.recv():
        inbox = Inbox(1, capacity=_CAPACITY)
        endpoint.serve([name], inbox)
        pipe.send("served")
        rows = 0
        while (received := inbox.get(60)) is not None and not isinstance(received.item, End | Control):
            rows += received.item.num_rows
        pipe.send(rows)
    endpoint.close()
    bare.shutdown()


@contextlib.contextmanager
def _receiver(folder: str) -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(folder, theirs), daemon=True)
    process.start()
    try:
        yield ours
        ours.send("")
        process.join(20)
    finally:
        process.kill()


def measure(run: int, note: Note, scale: Scale = FULL) -> Mapping[str, float]:
    """Both, in turn."""
    del run, note
    import numpy as np
    import pyarrow as pa

    from shoal.exchange.flight.endpoint import FlightEndpoint

    numbers = np.arange(scale.rows)
    batch = pa.record_batch({"key": numbers, "value": numbers.astype(np.float64), "time": numbers})
    total = batch.nbytes * scale.batches
    best: dict[str, float] = {"flight": 0.0, "flight_bare": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        files = Certificates(Path(folder)).workload("bench", "n1")
        own = _credentials(str(files.cert.parent))
        with _receiver(str(files.cert.parent)) as pipe:
            address, bare = pipe.recv()
            endpoint = FlightEndpoint("127.0.0.1", GATE, lambda: own)
            for turn in range(3):
                pipe.send(f"c{turn}")
                pipe.recv()
                sender = endpoint.connect(address, f"c{turn}")
                began = time.perf_counter()
                for _ in range(scale.batches):
                    sender.send(batch)
                sender.end()
                _check(pipe.recv(), scale)
                best["flight"] = max(best["flight"], total / (time.perf_counter() - began) / MB)
                best["flight_bare"] = max(best["flight_bare"], _bare(bare, own, batch, scale))
            endpoint.close()
    return best


def _bare(address: str, own: Credentials, batch: Any, scale: Scale) -> float:
    import pyarrow.flight as fl

    client = fl.FlightClient(
        f"grpc+tls://{address}",
        tls_root_certs=own.ca,
        cert_chain=own.cert,
        private_key=own.key,
        override_hostname=_NAME,
    )
    began = time.perf_counter()
    writer, answers = client.do_put(fl.FlightDescriptor.for_command(b""), batch.schema)
    for _ in range(scale.batches):
        writer.write_batch(batch)
    writer.done_writing()
    _check(int(answers.read().to_pybytes()), scale)
    took = time.perf_counter() - began
    writer.close()
    client.close()
    return float(batch.nbytes) * scale.batches / took / MB


def _check(rows: int, scale: Scale) -> None:
    if rows != scale.rows * scale.batches:
        raise RuntimeError(f"{rows} rows arrived, and {scale.rows * scale.batches} were sent")


AREA = Area(
    name="exchange",
    title="The exchange between hosts",
    about=(
        "Two processes on one machine with Arrow Flight and TLS on both sides between them. Batches have 20,000 rows "
        "of three columns of 8 bytes. Of three turns in a run the best of each counts."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("pyarrow",),
)

"""Links between processes of a job on several nodes: both sides are of the job, or there is no link."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import DeniedError, ShoalError
from shoal.dataflow.execution.remote import connections
from shoal.dataflow.execution.remote.connections import dial, receive_peer
from shoal.dataflow.execution.remote.surroundings import Certificate
from shoal.testing.certificates import Certificates
from shoal.wire.trust.security import MutualTls

Holder = Callable[[Certificates], MutualTls]
GOOD: Holder = lambda made: made.workload("j", "n2")  # noqa: E731
BAD: dict[str, Holder] = {
    "another job": lambda made: made.workload("other", "n2"),
    "an agent": lambda made: made.agent("n2"),
    "an operator": lambda made: made.operator(),
    "a control plane": lambda made: made.control(),
    "another cluster": lambda made: Certificates(made.directory / "other", cluster="other").workload("j", "n2"),
    "another authority": lambda made: Certificates(made.directory / "fake").workload("j", "n2"),
}


@pytest.fixture
def made(tmp_path) -> Certificates:
    return Certificates(tmp_path)


def files_of(tls: MutualTls) -> Certificate:
    return Certificate(str(tls.ca), str(tls.cert), str(tls.key))


@contextlib.contextmanager
def coordinator(certificate: Certificate | None) -> Iterator[tuple[str, queue.Queue[Any]]]:
    """Takes one connection. The queue has the first bytes that it brought, or why it was refused."""
    server = socket.create_server(("127.0.0.1", 0))
    found: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        raw, _address = server.accept()
        try:
            link = receive_peer(raw, certificate, "j")
            found.put(link.recv(100))
        except (ShoalError, OSError) as error:
            found.put(error)
        finally:
            raw.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}", found
    thread.join(20)
    server.close()


def test_two_processes_of_a_job_are_linked(made):
    with coordinator(files_of(made.workload("j", "n1"))) as (address, found):
        connection, own = dial(address, files_of(GOOD(made)), "j")
        connection.sendall(b"hello")
        assert found.get(timeout=20) == b"hello"
        assert own == "127.0.0.1"
        connection.close()


def leave_half_replaced(old: Certificate, new: Certificate) -> None:
    """As an agent leaves the files of a process when it dies while it renews them."""
    Path(f"{old.key}.next").write_bytes(Path(new.key).read_bytes())
    Path(old.cert).write_bytes(Path(new.cert).read_bytes())


def test_certificates_that_were_half_replaced_are_good_on_both_sides(made):
    one, other = files_of(made.workload("j", "n1")), files_of(GOOD(made))
    for held, node in ((one, "n1"), (other, "n2")):
        renewed = made.workload("j", f"{node}-renewed")
        leave_half_replaced(held, files_of(renewed))
    with coordinator(one) as (address, found):
        connection, _own = dial(address, other, "j")
        connection.sendall(b"hello")
        assert found.get(timeout=20) == b"hello"
        connection.close()


@pytest.mark.parametrize("holder", BAD.values(), ids=BAD)
def test_a_coordinator_takes_only_processes_of_its_job(made, holder):
    with coordinator(files_of(made.workload("j", "n1"))) as (address, found):
        raw = socket.create_connection(address.rsplit(":", 1), timeout=20)
        try:
            context = connections.ssl.SSLContext(connections.ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, connections.ssl.CERT_NONE
            context.load_cert_chain(holder(made).cert, holder(made).key)
            with contextlib.suppress(OSError), context.wrap_socket(raw) as link:
                link.sendall(b"hello")
        finally:
            raw.close()
        refused = found.get(timeout=20)
        assert isinstance(refused, DeniedError | OSError), refused


@pytest.mark.parametrize("holder", BAD.values(), ids=BAD)
def test_a_task_host_connects_only_to_a_process_of_its_job(made, holder):
    own = files_of(made.workload("j", "n1"))
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        raw, _address = server.accept()
        context = connections.ssl.SSLContext(connections.ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(holder(made).cert, holder(made).key)
        with raw, contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as link:
            link.recv(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with pytest.raises((DeniedError, OSError)):
        dial(f"127.0.0.1:{server.getsockname()[1]}", own, "j")
    thread.join(20)
    server.close()


def test_a_process_needs_a_certificate_of_a_workload(made):
    with coordinator(None) as (address, found):
        with pytest.raises(DeniedError, match="not that of a workload"):
            dial(address, files_of(made.operator()), "j")
        assert found.get(timeout=20) == b""

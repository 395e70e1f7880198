"""A private Kafka broker for the areas that need one: on 127.0.0.1 and free ports, its data in a temporary directory.

Its jars come from the cache of `scripts/fetch_kafka.sh`, which is called where they are missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from shoal.cli.local.children import free_port
from shoal.core.errors import UnavailableError

_FETCH = Path(__file__).resolve().parent.parent / "scripts" / "fetch_kafka.sh"
_FETCHED_WITHIN = 600.0
_STARTS_WITHIN = 90.0
_STOPS_WITHIN = 30.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.segment.delete.delay.ms=0
"""


def find_jars() -> Path:
    """The folder with the broker's jars. Raises `UnavailableError` where there are none to be had."""
    if shutil.which("java") is None:
        raise UnavailableError("there is no Java to run Kafka with")
    try:
        done = subprocess.run([_FETCH], check=True, capture_output=True, text=True, timeout=_FETCHED_WITHIN)
    except (subprocess.SubprocessError, OSError) as error:
        raise UnavailableError(f"Kafka could not be fetched: {error}") from error
    return Path(done.stdout.strip()) / "libs"


@contextlib.contextmanager
def running(jars: Path) -> Iterator[str]:
    """A broker for the length of a block; its address as host:port."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-kafka-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        broker = free_port()
        properties = home / "server.properties"
        properties.write_text(_PROPERTIES.format(broker=broker, controller=free_port(), data=home / "data"))
        java = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
        tool = [*java, "kafka.tools.StorageTool"]
        cluster = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True).stdout.split()[-1]
        subprocess.run([*tool, "format", "-t", cluster, "-c", properties], check=True, capture_output=True)
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [*java, "kafka.Kafka", properties], stdout=log, stderr=log, cwd=home, env={**os.environ}
            )
        try:
            wait_until_it_answers(process, broker, home / "log", "Kafka")
            yield f"127.0.0.1:{broker}"
        finally:
            process.kill()  # its data is thrown away
            process.wait(_STOPS_WITHIN)


def wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path, name: str) -> None:
    """Wait until a server takes connections. Raises `UnavailableError` when it ends before, or takes too long."""
    deadline = time.monotonic() + _STARTS_WITHIN
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise UnavailableError(f"{name} did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.1)

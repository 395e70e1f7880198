"""A private Kafka broker for the tests, on 127.0.0.1 and free ports, with its data in a temporary directory.

One broker serves all workers of a test run: the first test that needs it starts it, and the end of the run stops it.
`SHOAL_TEST_KAFKA` names a broker to use instead, as host:port. Where neither that nor the jars in the cache are to be
had, the tests that need one are skipped with the way to get them; with CI=true they fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from tests.services import absence, jvm

ENVIRONMENT = "SHOAL_TEST_KAFKA"

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker},SASL://127.0.0.1:{sasl}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


#: Who may use the address that asks for a password.
USER, PASSWORD = "shoal", "open-sesame-57"


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    """A broker that answers. `pid` is None when it is not ours; then there is no address that asks for a password."""

    address: str
    pid: int | None = None
    sasl_address: str | None = None


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> KafkaBroker:
    """The broker of this test run."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        return KafkaBroker(given)
    jars = jvm.find_jars()
    if jars is None:
        do_without()
    shared = jvm.shared_directory(tmp_path_factory.getbasetemp())
    with (shared / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = shared / "kafka.json"
        if not state.exists():
            _start(jars, state)
        told = json.loads(state.read_text())
    return KafkaBroker(told["address"], told["pid"], told["sasl_address"])


def stop_broker(base: Path) -> None:
    """Stop what this test run started. Called once, by the process that leads the run, when all workers are done."""
    state = base / "kafka.json"
    if not state.exists():
        return
    told = json.loads(state.read_text())
    state.unlink()
    jvm.send(told["pid"], signal.SIGKILL)  # its data is thrown away
    shutil.rmtree(told["home"], ignore_errors=True)


def do_without() -> NoReturn:
    """Skip the test, or fail it in CI, with the way to get what is missing."""
    words = (
        "there is no Kafka: run scripts/fetch_kafka.sh (it needs Java and Maven), "
        f"or set {ENVIRONMENT} to the host:port of a broker"
    )
    absence.do_without(words)


def _start(jars: Path, state: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="shoal-kafka-"))
    broker, controller, sasl = jvm.free_ports(3)
    properties = home / "server.properties"
    properties.write_text(
        PROPERTIES.format(
            broker=broker, controller=controller, sasl=sasl, data=home / "data", users=f'user_{USER}="{PASSWORD}"'
        )
    )
    java = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
    tool = [*java, "kafka.tools.StorageTool"]
    cluster = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True).stdout.split()[-1]
    subprocess.run([*tool, "format", "-t", cluster, "-c", properties], check=True, capture_output=True)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", properties], stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=home
        )
    jvm.end_with_the_run(process.pid, home)
    jvm.wait_until_it_answers(process, broker, home / "log")
    process.returncode = 0  # disowned: it is stopped by its id, perhaps by another process, and nobody waits here
    told = {"address": f"127.0.0.1:{broker}", "sasl_address": f"127.0.0.1:{sasl}", "pid": process.pid}
    state.write_text(json.dumps(told | {"home": str(home)}))

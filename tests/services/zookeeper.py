"""Private ZooKeeper servers for the tests, on 127.0.0.1 and free ports, with their data in a temporary directory.

The fixture `zookeeper` is one server for all workers of a test run: the first test that needs it starts it, and the end
of the run stops it. A test that kills or freezes a server starts its own with `ZookeeperServer.start`. The jars are
those of Kafka. `SHOAL_TEST_ZOOKEEPER` names a server to use instead, as host:port.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.services import absence, jvm

ENVIRONMENT = "SHOAL_TEST_ZOOKEEPER"
#: How long a server may take until it serves, in seconds.
PATIENCE = 120.0

#: What is written need not reach the disk: a server is killed here, never the machine. So a busy disk delays no test.
CONFIGURATION = """\
forceSync=no
tickTime=200
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
4lw.commands.whitelist=mntr
"""


class ZookeeperServer:
    """A server of our own. It keeps its port and its data when it is killed and started again."""

    def __init__(self, home: Path, port: int, jars: Path) -> None:
        self.home = home
        self.port = port
        self.pid = 0
        self._jars = jars
        (home / "zoo.cfg").write_text(CONFIGURATION.format(data=home / "data", port=port))

    @property
    def hosts(self) -> str:
        """The address, as clients take it."""
        return f"127.0.0.1:{self.port}"

    @classmethod
    def create(cls) -> ZookeeperServer:
        """Start a server with an empty tree."""
        jars = jvm.find_jars()
        if jars is None:
            absence.do_without(
                "there is no ZooKeeper: run scripts/fetch_kafka.sh (it needs Java and Maven), "
                f"or set {ENVIRONMENT} to the host:port of a server"
            )
        server = cls(Path(tempfile.mkdtemp(prefix="shoal-zookeeper-")), jvm.free_ports(1)[0], jars)
        server.start()
        return server

    def start(self) -> None:
        """Start it, with what it stored before."""
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self._jars}/*"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.home / "zoo.cfg")]
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.home
            )
        self.pid = process.pid
        jvm.end_with_the_run(process.pid, self.home)
        jvm.wait_until_it_answers(process, self.port, self.home / "log")
        deadline = time.monotonic() + PATIENCE
        while b"zk_server_state" not in self._ask(b"mntr"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"ZooKeeper does not serve: {(self.home / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        process.returncode = 0  # disowned: it is stopped by its id, perhaps by another process, and nobody waits here

    def kill(self) -> None:
        """End it at once. What it acknowledged is in its files."""
        jvm.send(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        """It stays connected and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on where it was."""
        os.kill(self.pid, signal.SIGCONT)

    def _ask(self, command: bytes) -> bytes:
        """What it says; nothing without an answer: a connection that comes too soon is never answered."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(command)
                return connection.makefile("rb").read()
        except OSError:
            return b""

    def destroy(self) -> None:
        """End it and remove its data."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The host:port of the server of this test run."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        return given
    shared = jvm.shared_directory(tmp_path_factory.getbasetemp())
    with (shared / "zookeeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = shared / "zookeeper.json"
        if not state.exists():
            server = ZookeeperServer.create()
            state.write_text(json.dumps({"hosts": server.hosts, "pid": server.pid, "home": str(server.home)}))
        return str(json.loads(state.read_text())["hosts"])


def stop_zookeeper(base: Path) -> None:
    """Stop what this test run started. Called once, by the process that leads the run, when all workers are done."""
    state = base / "zookeeper.json"
    if not state.exists():
        return
    told = json.loads(state.read_text())
    state.unlink()
    jvm.send(told["pid"], signal.SIGKILL)  # its data is thrown away
    shutil.rmtree(told["home"], ignore_errors=True)

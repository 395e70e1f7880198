"""A private ZooKeeper for the areas that need one: on 127.0.0.1 and a free port, its data in a temporary directory.

Its jars are those of Kafka, which brings it.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.kafka import wait_until_it_answers
from shoal.cli.local.children import free_port

_STOPS_WITHIN = 30.0

_CONFIGURATION = """\
tickTime=2000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
"""


@contextlib.contextmanager
def running(jars: Path) -> Iterator[str]:
    """A server for the length of a block; its address as host:port."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-zookeeper-", ignore_cleanup_errors=True) as folder:
        home, port = Path(folder), free_port()
        configuration = home / "zoo.cfg"
        configuration.write_text(_CONFIGURATION.format(data=home / "data", port=port))
        java = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
        command = [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]
        with (home / "log").open("wb") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
        try:
            wait_until_it_answers(process, port, home / "log", "ZooKeeper")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()  # its data is thrown away
            process.wait(_STOPS_WITHIN)

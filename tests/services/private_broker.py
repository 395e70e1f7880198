"""A broker of one test alone, to be killed and started again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

from tests.services import jvm, kafka


class PrivateBroker:
    """A broker that dies and comes back when told."""

    def __init__(self, directory: Path) -> None:
        jars = jvm.find_jars()
        if jars is None:
            kafka.do_without()
        self._jars = jars
        kafka._start(jars, directory / "kafka.json")
        told = json.loads((directory / "kafka.json").read_text())
        self.address: str = told["address"]
        self._home, self._pid = Path(told["home"]), int(told["pid"])

    def kill(self) -> None:
        """As the machine would: without a word."""
        jvm.send(self._pid, signal.SIGKILL)

    def restart(self) -> None:
        """With the data and the ports that it had."""
        command = ["java", "-Xmx512m", "-cp", f"{self._jars}/*", "kafka.Kafka", self._home / "server.properties"]
        with (self._home / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        jvm.wait_until_it_answers(process, int(self.address.rpartition(":")[2]), self._home / "log")
        process.returncode = 0
        self._pid = process.pid

    def remove(self) -> None:
        """Throw it away."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

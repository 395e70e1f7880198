"""A network of machines that a test can cut: a namespace for each, joined by a bridge that lies in one of its own.

    with Network("db", "one", "two") as network:
        network.command("db", "postgres", …)          how to run something there
        network.cut("one", "db")                      nothing passes between the two, in either direction
        network.drop("one", "two")                    what `one` sends to `two` is lost; the other direction works
        network.heal()

The test itself is on that network, too. Needs root, and the Debian packages iproute2 and iptables. Where they are
missing the tests that need it are skipped with their names; with CI=true they fail. Nothing is left of it in the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.services.absence import do_without
from tests.services.leftovers import run_id

PROGRAMS = {"ip": "iproute2", "iptables": "iptables", "nsenter": "util-linux"}

#: 198.18.0.0/15 is set aside for tests of networks (RFC 2544): nobody's real network is hidden by it.
_SUBNETS = 256
_OURS = 254


class Network:
    """Machines by name, each with an address of its own."""

    def __init__(self, *machines: str) -> None:
        self.machines = machines
        # Interface names have fifteen letters at most; two networks of a run never share a process id.
        self._mark = f"s{run_id()}{os.getpid() % 65_536:x}"
        self._subnet = ""
        self._made: list[str] = []

    def address(self, machine: str) -> str:
        """The address of a machine."""
        return f"{self._subnet}.{self.machines.index(machine) + 1}"

    def command(self, machine: str, *command: str, user: tuple[int, int] | None = None) -> list[str]:
        """How to run something on a machine: the process that is started becomes it."""
        identity = ["--setuid", str(user[0]), "--setgid", str(user[1])] if user is not None else []
        return ["nsenter", f"--net=/run/netns/{self._namespace(machine)}", *identity, "--", *command]

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two machines."""
        self._refuse(one, f"-A INPUT -s {self.address(other)} -j DROP", f"-A OUTPUT -d {self.address(other)} -j DROP")

    def drop(self, sender: str, receiver: str) -> None:
        """Lose what one machine sends to another, and not the other way round."""
        self._refuse(receiver, f"-A INPUT -s {self.address(sender)} -j DROP")

    def heal(self) -> None:
        """Let everything pass again."""
        for machine in self.machines:
            self._refuse(machine, "-F")

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._remove()

    def _refuse(self, machine: str, *rules: str) -> None:
        for rule in rules:
            _run(self.command(machine, "iptables", "-w", "5", *rule.split()))

    @property
    def _own_end(self) -> str:
        return f"{self._mark}.0"

    def _namespace(self, machine: str) -> str:
        return f"{self._mark}-{machine}"

    def _make(self) -> None:
        hub = self._namespace("hub")
        self._subnet = _free_subnet()
        self._add_namespace(hub)
        _run(["ip", "-n", hub, "link", "add", "bridge", "type", "bridge"])
        _run(["ip", "-n", hub, "link", "set", "bridge", "up"])
        for index, machine in enumerate(self.machines, start=1):
            name = self._namespace(machine)
            self._add_namespace(name)
            _run(["ip", "-n", name, "link", "set", "lo", "up"])
            self._plug(hub, f"port{index}", "eth0", namespace=name, address=f"{self._subnet}.{index}")
        self._plug(hub, "port0", self._own_end, namespace=None, address=f"{self._subnet}.{_OURS}")

    def _add_namespace(self, name: str) -> None:
        _run(["ip", "netns", "add", name])
        self._made.append(name)

    def _plug(self, hub: str, port: str, end: str, *, namespace: str | None, address: str) -> None:
        at = ["-n", namespace] if namespace is not None else []
        peer = ["netns", namespace] if namespace is not None else ["netns", str(os.getpid())]
        _run(["ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", end, *peer])
        _run(["ip", "-n", hub, "link", "set", port, "master", "bridge", "up"])
        _run(["ip", *at, "address", "add", f"{address}/24", "dev", end])
        _run(["ip", *at, "link", "set", end, "up"])

    def _remove(self) -> None:
        # The other interfaces go with their namespaces.
        for command in (["ip", "link", "del", self._own_end], *(["ip", "netns", "del", name] for name in self._made)):
            with contextlib.suppress(RuntimeError):
                _run(command)
        self._made.clear()


def require_network() -> None:
    """Skip the test, or fail it in CI, where no such network can be made."""
    missing = sorted(package for program, package in PROGRAMS.items() if shutil.which(program) is None)
    if missing:
        do_without(f"a network that can be cut needs the Debian packages {', '.join(missing)}: apt-get install them")
    if os.geteuid() != 0:
        do_without("a network that can be cut needs root, to make namespaces with iproute2 and iptables")
    try:
        with Network("probe") as network:
            network.heal()
    except RuntimeError as error:
        do_without(f"a network that can be cut cannot be made here, although root asks for it: {error}")


def _free_subnet() -> str:
    """One that no network of another test has at this moment."""
    taken = _run(["ip", "-4", "-o", "address"])
    for index in range(_SUBNETS):
        subnet = f"198.18.{(os.getpid() + index) % _SUBNETS}"
        if f" {subnet}." not in taken:
            return subnet
    raise RuntimeError("every subnet for tests is taken")


def _run(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{' '.join(command)}: {error.stderr.strip()}") from error

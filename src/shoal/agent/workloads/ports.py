"""Chooses the number of each named port of a workload on this node.

A port with a number in the spec gets it. Any other gets the number it had before if that is free, else a free one that
no other workload here has. Numbers are chosen below the range of the kernel's source ports, so that no outgoing
connection takes one while its workload restarts.

Called by `shoal.agent.workloads.actor` before each start.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping

from shoal.core.entropy import Entropy
from shoal.core.ids import WorkloadId
from shoal.model.workloads import FailureReason, NamedPort
from shoal.runtimes.base import RunError

LOWEST, HIGHEST = 20_000, 32_767
TRIES = 200

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - a workload may listen there, so the port must be free there; nothing listens


def is_free(port: int) -> bool:
    """Whether a server could listen on the port, on this machine's every address and on loopback."""
    return all(_can_bind(host, port) for host in (_EVERYWHERE, _LOOPBACK))


def _can_bind(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: lingering connections of a predecessor do not count, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((host, port))
            return True
    return False


class PortBook:
    """Which port belongs to which workload on this node."""

    def __init__(self, entropy: Entropy, *, free: Callable[[int], bool] = is_free) -> None:
        self._entropy = entropy
        self._free = free
        self._promised: dict[int, WorkloadId] = {}

    def adopt(self, workload_id: WorkloadId, ports: Iterable[int]) -> None:
        """Note the ports that a running workload has. They are not tested: the workload itself uses them."""
        for port in ports:
            self._promised.setdefault(port, workload_id)

    def choose(
        self, workload_id: WorkloadId, wanted: Iterable[NamedPort], *, before: Mapping[str, int]
    ) -> dict[str, int]:
        """A number for each name. Raises `RunError` that names the port which is not free; it may be later."""
        self.release(workload_id)
        chosen: dict[str, int] = {}
        try:
            for port in sorted(wanted, key=lambda each: each.port == 0):  # fixed ones first: they cannot move
                number = self._fixed(workload_id, port) if port.port else self._any(port, before, chosen)
                chosen[port.name] = number
                self._promised[number] = workload_id
        except RunError:
            self.release(workload_id)
            raise
        return chosen

    def release(self, workload_id: WorkloadId) -> None:
        """Free every port of a workload."""
        self._promised = {port: owner for port, owner in self._promised.items() if owner != workload_id}

    def _fixed(self, workload_id: WorkloadId, port: NamedPort) -> int:
        owner = self._promised.get(port.port, workload_id)
        if owner != workload_id:
            raise _not_free(port, f"is in use by workload {owner!r}")
        if not self._free(port.port):
            raise _not_free(port, "is in use on this machine")
        return port.port

    def _any(self, port: NamedPort, before: Mapping[str, int], chosen: Mapping[str, int]) -> int:
        last = before.get(port.name)
        if last is not None and self._is_open(last, chosen):
            return last
        for _ in range(TRIES):
            number = int(self._entropy.uniform(LOWEST, HIGHEST + 1))
            if number <= HIGHEST and self._is_open(number, chosen):
                return number
        raise _not_free(port, f"could not be chosen: no free port was found from {LOWEST:,} to {HIGHEST:,}")

    def _is_open(self, number: int, chosen: Mapping[str, int]) -> bool:
        return number not in self._promised and number not in chosen.values() and self._free(number)


def _not_free(port: NamedPort, words: str) -> RunError:
    number = f" {port.port}" if port.port else ""
    return RunError(f"port {port.name!r}{number} {words}", failure=FailureReason.NETWORK_ERROR, transient=True)

"""A process with a Flight endpoint, for tests: `python -m tests.unit.exchange.flight_peer ROLE HOST FILES [PEER]`.

ROLE is `send` (to the channel `c` of PEER), `flood` (without end) or `receive`. FILES is the directory of its
certificate. It prints its address, and what it did, and ends with its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.core.clock import SystemClock
from shoal.core.errors import ShoalError
from shoal.exchange.flight.endpoint import FlightEndpoint, FlightSettings
from shoal.exchange.inbox import Inbox
from shoal.testing.suites.exchange import GATE, rows
from shoal.wire.trust.credentials import CredentialPaths, CredentialWatch

QUICK = FlightSettings(handshake=3, stall=2)


def main(role: str, host: str, files: str, peer: str = "") -> None:
    watch = CredentialWatch(CredentialPaths.within(Path(files)), now=SystemClock().wall)
    endpoint = FlightEndpoint(host, GATE, watch.look, settings=QUICK)
    inbox = Inbox(1, capacity=100_000)
    endpoint.serve(["c"], inbox)
    print(endpoint.address, flush=True)
    if role != "receive":
        try:
            sender = endpoint.connect(peer, "c")
            sender.send(rows(3))
            sender.send(rows(3000))
            print("sent", flush=True)
            while role == "flood":
                sender.send(rows(3000))
        except ShoalError as error:
            print(type(error).__name__, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The one place where a connection gets its credentials.

`Security` says how a transport proves who it is and whom it trusts; nothing outside this file looks into it. Today
there is only `Insecure`, which every program must be told to use.

Called by `channel.py` and `server.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.wire.grpcio import aio


@dataclass(frozen=True, slots=True)
class Insecure:
    """No encryption and no identity: for bring-up and tests."""


Security = Insecure
INSECURE = Insecure()


def open_channel(security: Security, target: str, options: Sequence[tuple[str, Any]]) -> aio.Channel:
    """A channel to `target` with the credentials of `security`."""
    match security:
        case Insecure():
            return aio.insecure_channel(target, options=options)


def add_port(security: Security, server: aio.Server, target: str) -> int:
    """Let `server` listen at `target`; returns the port. Raises RuntimeError when it cannot."""
    match security:
        case Insecure():
            return server.add_insecure_port(target)

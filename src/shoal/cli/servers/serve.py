"""A server's process, once its command line was read: `python -m shoal.cli.servers.serve`, which people never type.

See `shoal.cli.servers.daemon` for why there is one. Called by the commands of the servers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.output import hints
from shoal.cli.servers import daemon
from shoal.core.errors import ShoalError


def _agent(given: daemon.CommandLine) -> None:
    from shoal.cli.servers import agent_process

    agent_process.serve(given)


SERVERS: Mapping[str, Callable[[daemon.CommandLine], None]] = {"agent": _agent}


def go_on(given: daemon.CommandLine) -> None:
    """Run a server: in a life of its own where the process is ours, else here."""
    if session.owns_process():
        daemon.become(replace(given, typed=sys.argv[1:]))
    SERVERS[given.role](given)


def main() -> int:
    """Run the server that was handed on. Returns the exit code."""
    session.surroundings.set(session.Surroundings(owns_process=True))
    try:
        given = daemon.received(int(sys.argv[1]))
        hints.command.set(f"shoal {given.role}")
        SERVERS[given.role](given)
    except ShoalError as error:
        output.fail(error)
        return session.exit_code_of(error)
    except KeyboardInterrupt:
        return session.INTERRUPTED
    except Exception as error:  # noqa: BLE001  whatever else it is, the person gets one line
        return output.fail_by_bug(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

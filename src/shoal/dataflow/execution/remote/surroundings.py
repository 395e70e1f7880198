"""What a process of a job knows about itself: from the environment that its agent gives it.

Read once at the start by `coordinator` and `task_host`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import PreconditionError

_NEEDED = ("SHOAL_WORKLOAD_ID", "SHOAL_NODE_ID", "SHOAL_REVISION_ID", "SHOAL_GENERATION", "SHOAL_CONTROL")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A process of a job, as its agent started it."""

    job_id: str
    workload_id: str
    node_id: str
    revision_id: str
    #: Of its workload: a process that replaces this one has a higher one.
    generation: int
    #: Equal for processes of one machine.
    host_id: str
    #: Where others reach this node.
    address: str
    #: Where this node serves metrics; empty where it does not.
    metrics: str
    #: Its certificate; None in a fleet without certificates.
    certificate: Certificate | None
    #: For the client of the control plane.
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a process's certificate. The agent replaces their contents before it expires."""

    ca: str
    cert: str
    key: str


def surroundings_of(job_id: str, environment: Mapping[str, str]) -> Surroundings:
    """From the environment. Raises `PreconditionError` where no agent started the process."""
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise PreconditionError(
            f"this program is started by an agent; {', '.join(missing)} is not set",
            hint="submit a job with `shoal job submit`",
        )
    files = [environment.get(name, "") for name in ("SHOAL_CA", "SHOAL_CERT", "SHOAL_KEY")]
    return Surroundings(
        job_id=job_id,
        workload_id=environment["SHOAL_WORKLOAD_ID"],
        node_id=environment["SHOAL_NODE_ID"],
        revision_id=environment["SHOAL_REVISION_ID"],
        generation=int(environment["SHOAL_GENERATION"]),
        host_id=environment.get("SHOAL_HOST_ID", ""),
        address=environment.get("SHOAL_NODE_ADDRESS", "") or "127.0.0.1",
        metrics=environment.get("SHOAL_NODE_METRICS", ""),
        certificate=Certificate(*files) if all(files) else None,
        environment=environment,
    )


def take_arguments(program: str, arguments: list[str], names: Mapping[str, type]) -> argparse.Namespace:
    """The arguments of a program: all of them are required."""
    parser = argparse.ArgumentParser(prog=program)
    for name, kind in names.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    return parser.parse_args(arguments)

"""What serving agents are made of. Joined by `shoal.serving.server`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import UnavailableError
from shoal.discovery.store import CoordinationStore
from shoal.serving.config.deployment import Deployment
from shoal.serving.metrics import ServingMetrics
from shoal.serving.processes.commands import Program
from shoal.serving.processes.runner import ProcessRunner
from shoal.wire.transport import Transport

log = logging.getLogger(__name__)

#: Between two attempts to reach the tree, beside the time that an attempt takes.
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What an agent is made of."""

    deployment: Deployment
    store: CoordinationStore
    transport: Transport
    runner: ProcessRunner
    clock: Clock
    data_dir: Path
    program: Program
    #: The environment of the model servers.
    child_env: dict[str, str] = field(repr=False)
    #: Where `AgentService` listens.
    agent_host: str = "127.0.0.1"
    #: How long peers that still have an address may call it after it was withdrawn.
    drain: timedelta = timedelta(seconds=1)
    metrics: ServingMetrics = field(default_factory=lambda: ServingMetrics(SystemClock()))
    #: The directory of `agent.conf`, where `proxy.conf` may be, too.
    conf_dir: Path = Path()

    async def open_tree(self, *, patient: bool) -> None:
        """Open the store. Raises `ShoalError`; a patient caller waits for a tree that cannot be reached.

        An agent is patient when it has adopted model servers: its end would be theirs, and they serve on meanwhile.
        """
        while True:
            try:
                return await self.store.open()
            except UnavailableError as error:
                self.runner.raise_if_failed()
                if not patient:
                    raise
                log.warning("the tree cannot be reached; adopted model servers serve on: %s", error)
            await self.clock.sleep(RETRY_SECONDS)

"""What serving agents are made of. Joined by `shoal.serving.server`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from shoal.core.clock import Clock, SystemClock
from shoal.discovery.store import CoordinationStore
from shoal.serving.config.deployment import Deployment
from shoal.serving.metrics import ServingMetrics
from shoal.serving.processes.commands import Program
from shoal.serving.processes.runner import ProcessRunner
from shoal.wire.transport import Transport


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

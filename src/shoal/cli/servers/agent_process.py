"""The node agent as a process: joins settings, transport and server. Called by `shoal.cli.servers.agent`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.cli.servers import daemon

if TYPE_CHECKING:
    from shoal.agent.server import Agent, AgentSettings


def serve(given: daemon.CommandLine) -> None:
    """Run the agent until a signal stops it."""
    from shoal.agent.settings import CONFIG_ENV, ENV_NAMES, AgentSettings

    settings = daemon.load(
        AgentSettings,
        flags=given.flags,
        env_names=ENV_NAMES,
        flag_names={"labels": "--label", "storage_pools": "--storage-pool"},
        config=given.config or os.environ.get(CONFIG_ENV) or None,
        log_level=lambda loaded: loaded.log_level or None,
        log_format=given.log_format,
    )
    if settings.join:
        joined = False

        async def get_certificate(stop: asyncio.Event) -> None:
            nonlocal joined
            joined = await _join(settings, stop)

        daemon.run_until_told(get_certificate, service="shoal-agent")
        if not joined:
            return
    daemon.run_until_told(lambda stop: _serve(settings, stop, given.ready_file), service="shoal-agent")


async def _serve(settings: AgentSettings, stop: asyncio.Event, ready_file: str | None) -> None:
    from shoal.agent.metrics import AgentMetrics
    from shoal.agent.server import run_agent
    from shoal.core.faults import arm_from_environment
    from shoal.core.telemetry import MetricRegistry
    from shoal.wire.sockets.channel import GrpcTransport

    def ready(node: Agent) -> None:
        grpc_at = daemon.bound(settings.grpc_address, node.address)
        http_at = daemon.bound(settings.http_address, node.http_address)
        daemon.warn_if_insecure(settings.insecure, grpc_at)
        http = f", http {http_at}" if http_at else ""
        grpc = f"grpc {grpc_at}" if grpc_at else "listens nowhere"
        output.words(f"agent {node.node_id} ready: {grpc}{http}")
        # Last: a program that waits for the file finds everything done.
        daemon.write_ready_file(
            ready_file, {"role": "agent", "node_id": node.node_id, "grpc": node.address, "http": node.http_address}
        )

    arm_from_environment()
    metrics = AgentMetrics(MetricRegistry() if settings.http_address is not None else None)
    transport = GrpcTransport(security=settings.access.security(), observer=metrics)
    await run_agent(settings, transport=transport, stop=stop, metrics=metrics, on_ready=ready)


async def _join(settings: AgentSettings, stop: asyncio.Event) -> bool:
    """Get a certificate. Returns False when the process is to end instead."""
    import socket

    from shoal.agent.contact.joining import join
    from shoal.agent.node.probes import default_node_id
    from shoal.core.tasks import running

    work = join(settings, node_id=lambda: default_node_id(socket.gethostname()))
    async with running(work, name="join") as joining, running(stop.wait(), name="stop") as stopping:
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
        return joining.done()

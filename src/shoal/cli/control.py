"""`shoal control`: the control plane as a process. Joins settings, transport and server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import daemon, output
from shoal.cli.daemon import Config, LogFormat, LogLevel, ReadyFile, Text
from shoal.cli.options import SERVERS

if TYPE_CHECKING:
    from shoal.control.server import ControlPlane
    from shoal.control.settings import ControlSettings

ENV_NAMES = {
    "data_dir": ("SHOAL_DATA_DIR",),
    "grpc_host": ("SHOAL_GRPC_HOST",),
    "grpc_port": ("SHOAL_GRPC_PORT", "GRPC_PORT"),
    "http_host": ("SHOAL_HTTP_HOST",),
    "http_port": ("SHOAL_HTTP_PORT", "METRICS_PORT"),
    "database": ("SHOAL_DATABASE",),
    "insecure": ("SHOAL_INSECURE",),
    "cluster_id": ("SHOAL_CLUSTER_ID",),
    "heartbeat_interval": ("SHOAL_HEARTBEAT_INTERVAL",),
    "lease": ("SHOAL_LEASE",),
    "strategy": ("SHOAL_STRATEGY",),
    "max_events": ("SHOAL_MAX_EVENTS",),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("control", rich_help_panel=SERVERS)(control)


def control(
    *,
    data_dir: Annotated[
        Text, typer.Option(metavar="PATH", help="Where its state is kept [env: SHOAL_DATA_DIR]")
    ] = None,
    grpc_host: Annotated[Text, typer.Option(metavar="HOST", help="Address for agents and clients [127.0.0.1]")] = None,
    grpc_port: Annotated[Text, typer.Option(metavar="PORT", help="Its port; 0 is any [8085, env: GRPC_PORT]")] = None,
    http_host: Annotated[Text, typer.Option(metavar="HOST", help="Address for metrics and health [127.0.0.1]")] = None,
    http_port: Annotated[
        Text, typer.Option(metavar="PORT", help="Its port; 0 is any [8084, env: METRICS_PORT]")
    ] = None,
    database: Annotated[
        Text, typer.Option(metavar="URL", help="A PostgreSQL URL instead of SQLite in the data directory")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", metavar="", help="Serve without certificates; required for now")
    ] = None,
    cluster_id: Annotated[
        Text, typer.Option(metavar="ID", help="Agents of another cluster are refused [default]")
    ] = None,
    heartbeat_interval: Annotated[Text, typer.Option(metavar="DURATION", help="How often agents beat [10s]")] = None,
    lease: Annotated[
        Text, typer.Option(metavar="DURATION", help="How long a node counts as alive after a beat [30s]")
    ] = None,
    strategy: Annotated[Text, typer.Option(metavar="WORD", help="spread or binpack [spread]")] = None,
    max_events: Annotated[Text, typer.Option(metavar="N", help="How many events are kept [10000]")] = None,
    config: Config = None,
    ready_file: ReadyFile = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the control plane.

    Settings come from flags, else from the environment (SHOAL_ and the flag's name), else from --config, else from
    the defaults shown in brackets. SIGTERM ends it gracefully; workloads are never touched by its end.
    """
    from shoal.control.settings import ControlSettings

    settings = daemon.load(
        ControlSettings,
        flags={
            "data_dir": data_dir,
            "grpc_host": grpc_host,
            "grpc_port": grpc_port,
            "http_host": http_host,
            "http_port": http_port,
            "database": database,
            "insecure": insecure,
            "cluster_id": cluster_id,
            "heartbeat_interval": heartbeat_interval,
            "lease": lease,
            "strategy": strategy,
            "max_events": max_events,
        },
        env_names=ENV_NAMES,
        config=config,
        log_level=log_level,
        log_format=log_format,
    )
    daemon.run_until_told(lambda stop: _serve(settings, stop, ready_file))


async def _serve(settings: ControlSettings, stop: asyncio.Event, ready_file: str | None) -> None:
    from shoal.control.server import run_control
    from shoal.core.faults import arm_from_environment
    from shoal.wire.channel import GrpcTransport

    def ready(plane: ControlPlane) -> None:
        daemon.write_ready_file(ready_file, {"role": "control", "grpc": plane.address, "http": plane.http_address})
        output.words(f"control plane ready: grpc {plane.address}, http {plane.http_address}")

    arm_from_environment()
    await run_control(settings, transport=GrpcTransport(), stop=stop, on_ready=ready)

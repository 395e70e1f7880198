"""`shoal control`: the control plane as a process. Joins settings, transport and server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection.options import SERVERS, Config, LogFormat, LogLevel, ReadyFile, Text
from shoal.cli.servers import daemon

if TYPE_CHECKING:
    from shoal.control.server import ControlPlaneServer
    from shoal.control.settings import ControlSettings

ENV_NAMES = {
    "data_dir": ("SHOAL_DATA_DIR",),
    "grpc_host": ("SHOAL_GRPC_HOST",),
    "grpc_port": ("SHOAL_GRPC_PORT", "GRPC_PORT"),
    "http_host": ("SHOAL_HTTP_HOST",),
    "http_port": ("SHOAL_HTTP_PORT", "METRICS_PORT"),
    "database": ("SHOAL_DATABASE",),
    "ca": ("SHOAL_CA",),
    "cert": ("SHOAL_CERT",),
    "key": ("SHOAL_KEY",),
    "ca_key": ("SHOAL_CA_KEY",),
    "secret_key": ("SHOAL_SECRET_KEY",),
    "join_port": ("SHOAL_JOIN_PORT",),
    "insecure": ("SHOAL_INSECURE",),
    "cluster_id": ("SHOAL_CLUSTER_ID",),
    "heartbeat_interval": ("SHOAL_HEARTBEAT_INTERVAL",),
    "lease": ("SHOAL_LEASE",),
    "strategy": ("SHOAL_STRATEGY",),
    "advertise": ("SHOAL_ADVERTISE",),
    "failover_burst": ("SHOAL_FAILOVER_BURST",),
    "failover_rate": ("SHOAL_FAILOVER_RATE",),
    "brake_share": ("SHOAL_BRAKE_SHARE",),
    "brake_least": ("SHOAL_BRAKE_LEAST",),
    "drain_parallel": ("SHOAL_DRAIN_PARALLEL",),
    "artifacts": ("SHOAL_ARTIFACTS",),
    "artifacts_gb": ("SHOAL_ARTIFACTS_GB",),
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
    grpc_host: Annotated[
        Text, typer.Option(metavar="HOST", help="Address for agents and clients [every one; loopback if --insecure]")
    ] = None,
    grpc_port: Annotated[Text, typer.Option(metavar="PORT", help="Its port; 0 is any [8085, env: GRPC_PORT]")] = None,
    http_host: Annotated[Text, typer.Option(metavar="HOST", help="Address for metrics and health [127.0.0.1]")] = None,
    http_port: Annotated[
        Text, typer.Option(metavar="PORT", help="Its port; 0 is any [8084, env: METRICS_PORT]")
    ] = None,
    database: Annotated[
        Text, typer.Option(metavar="URL", help="A PostgreSQL URL instead of SQLite in the data directory")
    ] = None,
    ca: Annotated[Text, typer.Option(metavar="PATH", help="Certificates of the authorities that are trusted")] = None,
    cert: Annotated[Text, typer.Option(metavar="PATH", help="Its own certificate, of role control")] = None,
    key: Annotated[Text, typer.Option(metavar="PATH", help="The key of that")] = None,
    ca_key: Annotated[
        Text, typer.Option(metavar="PATH", help="The authority's key, to make join tokens and issue certificates with")
    ] = None,
    join_port: Annotated[
        Text, typer.Option(metavar="PORT", help="Where agents join, if there is that key; 0 is any [8086]")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", metavar="", help="Serve without certificates, anyone who can connect")
    ] = None,
    cluster_id: Annotated[
        Text, typer.Option(metavar="ID", help="Agents of another cluster are refused [the certificate's, or default]")
    ] = None,
    advertise: Annotated[
        Text, typer.Option(metavar="HOST:PORT", help="What followers tell clients to dial when this one leads")
    ] = None,
    heartbeat_interval: Annotated[
        Text, typer.Option(metavar="DURATION", help="How often agents send heartbeats [10s]")
    ] = None,
    lease: Annotated[
        Text, typer.Option(metavar="DURATION", help="How long a node counts as alive after a heartbeat [30s]")
    ] = None,
    strategy: Annotated[Text, typer.Option(metavar="WORD", help="spread or binpack [spread]")] = None,
    artifacts: Annotated[
        Text, typer.Option(metavar="PATH|URL", help="Where artifacts are kept [artifacts in the data directory]")
    ] = None,
    artifacts_gb: Annotated[Text, typer.Option(metavar="N", help="How much room they may take [10]")] = None,
    max_events: Annotated[Text, typer.Option(metavar="N", help="How many events are kept [10000]")] = None,
    config: Config = None,
    ready_file: ReadyFile = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the control plane.

    Settings come from flags, else from the environment (SHOAL_ and the flag's name), else from --config, else from
    the defaults shown in brackets. SIGTERM ends it gracefully; workloads keep running without it.
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
            "ca": ca,
            "cert": cert,
            "key": key,
            "ca_key": ca_key,
            "join_port": join_port,
            "insecure": insecure,
            "cluster_id": cluster_id,
            "heartbeat_interval": heartbeat_interval,
            "lease": lease,
            "strategy": strategy,
            "advertise": advertise,
            "artifacts": artifacts,
            "artifacts_gb": artifacts_gb,
            "max_events": max_events,
        },
        env_names=ENV_NAMES,
        config=config,
        log_level=log_level,
        log_format=log_format,
    )
    daemon.run_until_told(lambda stop: _serve(settings, stop, ready_file), service="shoal-control")


async def _serve(settings: ControlSettings, stop: asyncio.Event, ready_file: str | None) -> None:
    from shoal.control.metrics import ControlMetrics
    from shoal.control.server import run_control
    from shoal.core.clock import SystemClock
    from shoal.core.faults import arm_from_environment
    from shoal.core.garbage import Collections
    from shoal.core.tasks import running
    from shoal.jobs.engine import find_engines
    from shoal.wire.sockets.channel import GrpcTransport

    def ready(plane: ControlPlaneServer) -> None:
        grpc = daemon.bound(settings.grpc_address, plane.address)
        http = daemon.bound(settings.http_address, plane.http_address)
        join = daemon.bound(settings.join_address, plane.join_address)
        daemon.warn_if_insecure(settings.insecure, grpc)
        facts = {"role": "control", "grpc": plane.address, "http": plane.http_address, "join": plane.join_address}
        joining = f", join {join}" if join else ""
        output.words(f"control plane ready: grpc {grpc}, http {http}{joining}")
        collections.collect_all()
        daemon.write_ready_file(ready_file, facts)  # last: a program that waits for the file finds everything done

    arm_from_environment()
    metrics = ControlMetrics()
    door = GrpcTransport(security=settings.access.server_security(), observer=metrics) if settings.ca_key else None
    collections = Collections()
    # What stays is the whole fleet: to look through it again and again makes every heartbeat wait.
    with collections.instead_of_pythons():
        async with running(collections.run(SystemClock()), name="garbage"):
            await run_control(
                settings,
                transport=GrpcTransport(security=settings.access.security(), observer=metrics),
                join_transport=door,
                metrics=metrics,
                stop=stop,
                on_ready=ready,
                engines=find_engines(),
            )

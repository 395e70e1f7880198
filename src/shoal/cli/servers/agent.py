"""`shoal agent`: the command line of the node agent. What it does is in `shoal.cli.servers.agent_process`."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.connection.options import SERVERS, LogFormat, LogLevel, ReadyFile, Text
from shoal.cli.servers import daemon


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("agent", rich_help_panel=SERVERS)(agent)


def agent(
    *,
    control: Annotated[
        Text, typer.Option(metavar="HOST:PORT[,…]", help="Where the control plane is [env: SHOAL_CONTROL]")
    ] = None,
    node_id: Annotated[
        Text, typer.Option(metavar="ID", help="The id of this node [the certificate's, or the host name]")
    ] = None,
    data_dir: Annotated[Text, typer.Option(metavar="PATH", help="Where its state and its workloads' files are")] = None,
    grpc_host: Annotated[
        Text, typer.Option(metavar="HOST", help="Address for the control plane [every one; loopback if --insecure]")
    ] = None,
    grpc_port: Annotated[Text, typer.Option(metavar="PORT", help="Its port; 0 is any [50051]")] = None,
    no_listen: Annotated[
        bool | None,
        typer.Option("--no-listen", metavar="", help="Do not listen: commands come through the agent's own stream"),
    ] = None,
    advertise: Annotated[
        Text, typer.Option(metavar="HOST[:PORT]", help="The address to register, if it is reached by another one")
    ] = None,
    http_host: Annotated[Text, typer.Option(metavar="HOST", help="Address for metrics and health [127.0.0.1]")] = None,
    http_port: Annotated[
        Text, typer.Option(metavar="PORT", help="Its port; 0 is any; not served when not given")
    ] = None,
    slots: Annotated[
        Text, typer.Option(metavar="K", help="How many task processes run side by side [one per core]")
    ] = None,
    cpu: Annotated[Text, typer.Option(metavar="CORES", help="Cores it offers [those of its cgroup or machine]")] = None,
    memory: Annotated[Text, typer.Option(metavar="SIZE", help="Memory it offers, such as 512MB or 4GB")] = None,
    disk_gb: Annotated[Text, typer.Option(metavar="GB", help="Disk it offers")] = None,
    workers_per_slot: Annotated[Text, typer.Option(metavar="W", help="Threads a task may use per slot [1]")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label; repeatable")] = None,
    region: Annotated[Text, typer.Option(metavar="NAME", help="The label region")] = None,
    environment: Annotated[Text, typer.Option(metavar="NAME", help="The label env")] = None,
    cluster_id: Annotated[
        Text, typer.Option(metavar="ID", help="Join a control plane of this cluster only [the certificate's, or any]")
    ] = None,
    host_id: Annotated[Text, typer.Option(metavar="ID", help="Equal for nodes on one host [detected]")] = None,
    ca: Annotated[Text, typer.Option(metavar="PATH", help="Certificates of the authorities that are trusted")] = None,
    cert: Annotated[Text, typer.Option(metavar="PATH", help="Its own certificate, of role agent")] = None,
    key: Annotated[Text, typer.Option(metavar="PATH", help="The key of that")] = None,
    join: Annotated[
        Text,
        typer.Option(
            metavar="TOKEN", help="Get a certificate by a token of `shoal token create` [env: SHOAL_JOIN_TOKEN]"
        ),
    ] = None,
    join_address: Annotated[
        Text, typer.Option(metavar="HOST[:PORT][,…]", help="Where to join [the control plane's hosts, port 8086]")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", metavar="", help="No TLS: anyone who can connect may do everything"),
    ] = None,
    standalone: Annotated[
        bool | None, typer.Option("--standalone", metavar="", help="Serve commands without a control plane")
    ] = None,
    stop_workloads_on_exit: Annotated[
        bool | None,
        typer.Option(
            "--stop-workloads-on-exit", metavar="", help="Stop the workloads first, do not leave them running"
        ),
    ] = None,
    stop_grace: Annotated[Text, typer.Option(metavar="DURATION", help="How long that may take in all [60s]")] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-env",
            metavar="NAME",
            help="Pass this variable of its environment to workloads, besides PATH, HOME, LANG and TZ; repeatable",
        ),
    ] = None,
    default_user: Annotated[
        Text, typer.Option(metavar="USER", help="Who runs workloads that name no user [the agent's own user]")
    ] = None,
    runtimes: Annotated[
        Text,
        typer.Option(
            metavar="KIND[,…]", help="Run only these kinds: process, container, compose, vm [all that are found]"
        ),
    ] = None,
    allow_privileged: Annotated[
        bool | None,
        typer.Option("--allow-privileged", metavar="", help="Run containers that ask for all rights on this machine"),
    ] = None,
    storage_pool: Annotated[
        list[str] | None,
        typer.Option(
            "--storage-pool",
            metavar="NAME=PATH:GB",
            help="A directory for disks and volumes, and how much may be reserved; repeatable",
        ),
    ] = None,
    config: Annotated[
        Text, typer.Option("--config", metavar="PATH", help="A TOML file with the same names; flags win over it")
    ] = None,
    ready_file: ReadyFile = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the agent of this machine.

    Settings come from flags, else from the environment (SHOAL_AGENT_ and the flag's name), else from --config, else
    from the defaults shown in brackets. The PERSYS_ names that Persys agents read, such as PERSYS_NODE_ID, work too, so
    that their deployments can be taken over unchanged. SIGTERM ends it gracefully and leaves its workloads running
    under their keeper; the next agent with the same data directory adopts them.
    """
    given = daemon.CommandLine(
        flags={
            "control": control,
            "node_id": node_id,
            "data_dir": data_dir,
            "grpc_host": grpc_host,
            "grpc_port": grpc_port,
            "no_listen": no_listen,
            "advertise": advertise,
            "http_host": http_host,
            "http_port": http_port,
            "slots": slots,
            "cpu": cpu,
            "memory": memory,
            "disk_gb": disk_gb,
            "workers_per_slot": workers_per_slot,
            "labels": label or None,
            "region": region,
            "environment": environment,
            "cluster_id": cluster_id,
            "host_id": host_id,
            "ca": ca,
            "cert": cert,
            "key": key,
            "join": join,
            "join_address": join_address,
            "insecure": insecure,
            "standalone": standalone,
            "stop_workloads_on_exit": stop_workloads_on_exit,
            "stop_grace": stop_grace,
            "pass_env": pass_env or None,
            "default_user": default_user,
            "runtimes": runtimes,
            "allow_privileged": allow_privileged,
            "storage_pools": storage_pool or None,
            "log_level": log_level,
        },
        config=config,
        log_format=log_format,
        ready_file=ready_file,
    )
    from shoal.cli.servers import agent_process

    agent_process.serve(given)

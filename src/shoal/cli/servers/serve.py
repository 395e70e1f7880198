"""`shoal serve`: the serving agent, by the `agent.conf` of Monolith's agents."""

from __future__ import annotations

import asyncio
import os
import shlex
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection.options import SERVERS, LogFormat, LogLevel, ReadyFile, ShownDuration, duration
from shoal.cli.connection.session import read_addresses
from shoal.cli.servers import daemon

if TYPE_CHECKING:
    from shoal.serving.config.deployment import Deployment
    from shoal.serving.server import ServeOptions, ServingAgent
    from shoal.wire.trust.access import Access

DEFAULT_DATA_DIR = "/var/lib/shoal/serving"
#: In the working directory, which a workload keeps from run to run.
WORKLOAD_DATA_DIR = "serving"
_WORKLOAD = "SHOAL_WORKLOAD_ID"
_DRAIN = ShownDuration(seconds=1)
_SESSION = ShownDuration(seconds=10)
#: How long `--check` waits for a connection to a server of the tree.
_REACH_SECONDS = 3.0
#: A control plane grants no shorter and no longer sessions.
_SHORTEST_SESSION, _LONGEST_SESSION = timedelta(seconds=1), timedelta(minutes=5)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", rich_help_panel=SERVERS)(serve)


def serve(
    *,
    conf: Annotated[str, typer.Option("--conf", metavar="PATH", help="The agent.conf to read")],
    data_dir: Annotated[
        str,
        typer.Option(
            "--data-dir",
            metavar="PATH",
            help=f"Where configurations and logs of the model servers are [{DEFAULT_DATA_DIR}; "
            "in a workload: ./serving]",
        ),
    ] = "",
    control: Annotated[
        str,
        typer.Option(
            "--control",
            metavar="HOST:PORT[,…]",
            help="Use the tree of this control plane, not ZooKeeper's [in a workload without zk_servers: its own]",
        ),
    ] = "",
    ca: Annotated[
        str,
        typer.Option("--ca", envvar="SHOAL_CA", metavar="PATH", help="For --control: the authorities that are trusted"),
    ] = "",
    cert: Annotated[
        str, typer.Option("--cert", envvar="SHOAL_CERT", metavar="PATH", help="For --control: the certificate to show")
    ] = "",
    key: Annotated[
        str, typer.Option("--key", envvar="SHOAL_KEY", metavar="PATH", help="For --control: the key of that")
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", envvar="SHOAL_INSECURE", metavar="", help="For --control: no TLS, nothing is encrypted"
        ),
    ] = False,
    agent_host: Annotated[
        str, typer.Option("--agent-host", metavar="HOST", help="Address for AgentService, which is not encrypted")
    ] = "127.0.0.1",
    on_exit: Annotated[
        str,
        typer.Option(
            "--on-exit", metavar="POLICY", help="When a model server ends: restart it, or stop-all and exit with 1"
        ),
    ] = "restart",
    drain: Annotated[
        timedelta,
        typer.Option(
            "--drain", parser=duration, metavar="DURATION", help="How long to serve on after withdrawing at the end"
        ),
    ] = _DRAIN,
    session_timeout: Annotated[
        timedelta,
        typer.Option(
            "--session-timeout",
            parser=duration,
            metavar="DURATION",
            help="How long the tree keeps the addresses of an agent that it does not hear of",
        ),
    ] = _SESSION,
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port",
            envvar="SHOAL_PORT_METRICS",
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve metrics and health here; 0 is any",
        ),
    ] = None,
    http_host: Annotated[str, typer.Option("--http-host", metavar="HOST", help="Address for that")] = "127.0.0.1",
    print_output: Annotated[
        bool,
        typer.Option(
            "--print-output",
            metavar="",
            help="Also print what model servers print [in a workload, and with MLP_POD_NAME in the environment]",
        ),
    ] = False,
    choose_versions: Annotated[
        bool,
        typer.Option(
            "--choose-versions",
            metavar="",
            help="Models with latest_once: load the newest versions now, not those that an earlier agent chose",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            metavar="",
            help="Check the file, the environment, the programs and the tree, and start nothing. A tree that cannot "
            "be reached is a warning",
        ),
    ] = False,
    ready_file: ReadyFile = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run a serving agent: model servers, the models they serve, and their places in the tree.

    The file and the environment are those of Monolith's agents: `agent_version` 1 runs the roles of `deploy_type`,
    `agent_version` 3 follows a layout. MONOLITH_TFS_BINARY, or `tfs_binary` in the file, names the model server. The
    output of model servers is kept and rotated below the data directory, in place of --tfs_log. SIGTERM withdraws
    every address, serves on for --drain, stops the model servers and exits with 0.

    As a workload it finds the tree of its control plane by itself: `identity: true` gives it a certificate, and
    `shoal grant create /BZID --to workload:GROUP` lets it register. Its named ports `agent`, `grpc`, `http`, `archon`
    and `metrics` are used, and its id stands for MY_POD_NAME.
    """
    from pathlib import Path

    from shoal.core.errors import InvalidError, problem
    from shoal.core.telemetry import setup_logging
    from shoal.serving.processes.graph import OnExit
    from shoal.serving.server import ServeOptions
    from shoal.wire.addresses import Address
    from shoal.wire.trust.access import Access

    problems = []
    if on_exit not in set(OnExit):
        problems.append(problem("--on-exit", on_exit, f"must be {' or '.join(OnExit)}"))
    if not _SHORTEST_SESSION <= session_timeout <= _LONGEST_SESSION:
        problems.append(problem("--session-timeout", str(session_timeout), "must be between 1s and 5m"))
    access = Access(ca, cert, key, insecure)
    is_workload = bool(os.environ.get(_WORKLOAD))
    is_own = is_workload and not control
    if is_own and access.is_given:  # without a certificate a workload cannot use the tree
        control = os.environ.get("SHOAL_CONTROL", "")
    if control:
        otherwise = "with files of `shoal certs issue`, or as a workload with `identity: true`"
        problems.extend(access.problems("--", otherwise=otherwise))
    if problems:
        raise InvalidError(problems)
    setup_logging(level=log_level, style=log_format)
    options = ServeOptions(
        conf,
        Path(data_dir or (WORKLOAD_DATA_DIR if is_workload else DEFAULT_DATA_DIR)).absolute(),
        agent_host=agent_host,
        on_exit=OnExit(on_exit),
        drain=drain,
        session_timeout=session_timeout,
        control=read_addresses(control) if control else (),
        prefers_zookeeper=is_own,
        http_address=None if http_port is None else str(Address(http_host, http_port)),
        choose_versions=choose_versions,
    )
    if check:
        _check(options)
        return
    prints = print_output or is_workload or bool(os.environ.get("MLP_POD_NAME"))
    daemon.run_until_told(
        lambda stop: _serve(options, access, stop, ready_file, prints=prints), service="shoal-serving"
    )


def _check(options: ServeOptions) -> None:
    from shoal.serving.config.settings import cautions
    from shoal.serving.processes.commands import find_program, find_proxy
    from shoal.serving.server import make_deployment

    deployment = make_deployment(options, os.environ)
    pairs = [
        ("agent version", str(deployment.settings.agent_version)),
        ("deploy type", deployment.deploy_type),
        ("shard", f"{deployment.shard_id} of {deployment.shard_num}"),
        ("servers", ", ".join(server.name for server in deployment.servers)),
    ]
    if deployment.settings.agent_version == 3:
        pairs.append(("layout", deployment.layout_path))
    else:
        pairs.append(("replicas below", deployment.path_prefix))
    pairs.append(("model server", shlex.join(find_program(deployment))))
    pairs.append(("proxy", shlex.join(find_proxy(deployment))))
    hosts, control = deployment.settings.zk_servers or "", options.control_of(deployment.settings)
    pairs.append(("tree", _tree(hosts, control)))
    output.facts(pairs)
    for each in cautions(deployment.settings):
        output.warn(each)
    for address in asyncio.run(_unreachable(hosts, control)):
        output.warn(f"nothing listens at {address}, or it cannot be reached from here")


def _tree(hosts: str, control: tuple[str, ...]) -> str:
    if control:
        return f"of the control plane at {', '.join(control)}"
    return f"of ZooKeeper at {hosts}" if hosts else "in this process; no other agent sees it"


async def _unreachable(hosts: str, control: tuple[str, ...]) -> list[str]:
    """Those servers of the tree to which no connection can be made."""
    from shoal.discovery.servers import parse_servers
    from shoal.wire.addresses import Address, parse_address

    async def can_connect(address: Address) -> bool:
        try:
            async with asyncio.timeout(_REACH_SECONDS):
                _, writer = await asyncio.open_connection(address.host, address.port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    asked = [parse_address(each) for each in control] or list(parse_servers(hosts).addresses if hosts else ())
    reached = await asyncio.gather(*map(can_connect, asked))
    return [str(address) for address, is_reached in zip(asked, reached, strict=True) if not is_reached]


async def _serve(
    options: ServeOptions, access: Access, stop: asyncio.Event, ready_file: str | None, *, prints: bool
) -> None:
    from shoal.serving.server import run_serving
    from shoal.wire.sockets.channel import GrpcTransport

    def ready(deployment: Deployment, agent: ServingAgent) -> None:
        servers = {server.name: server.ports.grpc for server in deployment.servers}
        shown = ", ".join(f"{name} {port}" for name, port in servers.items())
        output.words(f"serving agent ready: AgentService {agent.address}, gRPC ports: {shown}")
        daemon.write_ready_file(ready_file, {"role": "serving", "agent": agent.address, "servers": servers})

    show = output.raw if prints else None
    await run_serving(
        options,
        environ=os.environ,
        transport=GrpcTransport(),
        stop=stop,
        control_transport=GrpcTransport(security=access.security()) if options.control else None,
        on_ready=ready,
        show_output=show,
    )

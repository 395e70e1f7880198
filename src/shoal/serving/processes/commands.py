"""The command lines of model servers and of the proxy.

A setting that differs from its default becomes a flag, if there is one of its name. The flags for archon, logging and
metrics exist in one private build of TensorFlow Serving; any other ends at an unknown flag. So they are passed only to
a program that contains their names. Pure, apart from `look_at_program` and `find_program`.
"""

from __future__ import annotations

import dataclasses
import mmap
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import InvalidError, problem
from shoal.serving.config.deployment import SERVING_HOME, Deployment, Role, Server
from shoal.serving.config.settings import ModelServerSettings

DEFAULT_PROGRAM = f"{SERVING_HOME}/bin/tensorflow_model_server"
#: How often a model server looks at its configuration by itself; the agent tells it of changes at once.
CONFIG_POLL_SECONDS = 60
#: Settings that are no flags: the first belongs to the platform config file, the other would end the program.
_NO_FLAGS = frozenset({"allow_growth", "version"})
_BATCHING = frozenset({"enable_batching", "batching_parameters_file"})


@dataclass(frozen=True, slots=True)
class Program:
    """A model server that can be started."""

    command: tuple[str, ...]
    #: Whether it has the flags of the build with archon.
    has_archon: bool = False
    #: Whether its graphs call other model servers by gRPC; otherwise by archon.
    calls_by_grpc: bool = True


def find_program(deployment: Deployment) -> tuple[str, ...]:
    """The command of the model server: of the environment, else of the file, else the usual place.

    Raises `InvalidError` when there is no such program.
    """
    given = {
        "MONOLITH_TFS_BINARY": deployment.environment.model_server,
        "tfs_binary": deployment.settings.tfs_binary or "",
    }
    name, text = next(((name, text) for name, text in given.items() if text), ("tfs_binary", DEFAULT_PROGRAM))
    return checked_command(name, text)


def find_proxy(deployment: Deployment) -> tuple[str, ...]:
    """The command of the proxy; empty when there is none. Raises `InvalidError` when there is no such program."""
    return checked_command("proxy_binary", deployment.settings.proxy_binary or "") if deployment.proxy_port else ()


def checked_command(name: str, text: str) -> tuple[str, ...]:
    """The words of a command whose program exists. Raises `InvalidError`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidError([problem(name, text, f"must be a command: {error}")]) from None
    found = shutil.which(words[0]) if words else None
    if found is None:
        is_file = bool(words) and Path(words[0]).is_file()
        rule = "must name a program that can be executed" if is_file else "must name a program that exists"
        hint = "name a model server with tfs_binary in the file, or with MONOLITH_TFS_BINARY"
        raise InvalidError([problem(name, text, rule)], hint="" if name == "proxy_binary" else hint)
    return (str(Path(found).absolute()), *words[1:])


def look_at_program(command: tuple[str, ...]) -> Program:
    """Find out what a program can do by the names that it contains."""
    has_archon = _contains(Path(command[0]), b"archon_rpc_psm")
    by_grpc = not has_archon or _contains(Path(command[0]), b"PredictionServiceGrpc")
    return Program(command, has_archon=has_archon, calls_by_grpc=by_grpc)


def _contains(path: Path, name: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(name) >= 0
    except (OSError, ValueError):  # it cannot be read, or it is empty
        return False


def model_server_command(
    deployment: Deployment, server: Server, program: Program, *, config_file: str, platform_file: str = ""
) -> tuple[str, ...]:
    """The command line of a model server."""
    settings = deployment.settings
    flags = {
        "model_config_file": config_file,
        "port": server.ports.grpc,
        "rest_api_port": server.ports.http,
    }
    if settings.agent_version != 1:
        flags["model_config_file_poll_wait_seconds"] = CONFIG_POLL_SECONDS
    if program.has_archon:
        flags |= dict(_archon_flags(deployment, server, program))
    flags |= dict(_changed_settings(deployment, server, platform_file))
    return (*program.command, *(f"--{name}={_text(value)}" for name, value in flags.items()))


def _archon_flags(deployment: Deployment, server: Server, program: Program) -> Iterator[tuple[str, object]]:
    settings, environment = deployment.settings, deployment.environment
    beside_entry = deployment.deploy_type == "mixed" and server.role is not Role.ENTRY
    psm = f"{environment.psm or 'unknown'}{f'_{server.role}' if beside_entry else ''}"
    log_name = f"log4j_{server.role}.properties" if beside_entry else "log4j.properties"
    yield "archon_port", server.ports.archon
    yield "archon_rpc_psm", psm
    yield "archon_rpc_cluster", environment.cluster or "default"
    yield "metrics_namespace_prefix", environment.metric_prefix or psm
    yield "log_conf", f"conf/{log_name}"
    if server.role is Role.UNIFIED:
        yield "conf_file", "conf/service.conf"
        if not program.calls_by_grpc:
            yield "archon_entry_to_ps_rpc_timeout", settings.fetch_ps_timeout_ms
    elif server.role is not Role.PS:
        yield "archon_entry_to_ps_rpc_timeout", settings.fetch_ps_timeout_ms
        yield "archon_entry_to_ps_long_conn_num", settings.fetch_ps_long_conn_num
        yield "archon_entry_to_ps_rpc_retry", settings.fetch_ps_retry
        yield "archon_async_dispatcher_threads", settings.aio_thread_num
        if not settings.fetch_ps_long_conn_enable:
            yield "archon_entry_to_ps_long_conn_enable", False


def _changed_settings(deployment: Deployment, server: Server, platform_file: str) -> Iterator[tuple[str, object]]:
    settings = deployment.settings
    batches = settings.enable_batching and (server.role is Role.DENSE or not settings.dense_alone)
    for field in dataclasses.fields(ModelServerSettings):
        value = getattr(settings, field.name)
        if field.name == "file_system_poll_wait_seconds" and server.role is Role.PS:
            # Its parameters are kept fresh by parameter sync; new versions are not looked for.
            yield field.name, settings.file_system_poll_wait_seconds_ps
        elif field.name == "platform_config_file":
            if platform_file:
                yield field.name, platform_file
        elif field.name in _NO_FLAGS or (field.name in _BATCHING and not batches):
            continue  # beside dense services no other part batches
        elif value != field.default:
            yield field.name, value


def proxy_command(deployment: Deployment, *, conf_dir: Path) -> tuple[str, ...]:
    """The command line of the proxy beside entry. Raises `InvalidError` when its program does not exist."""
    (entry,) = deployment.servers_of(Role.ENTRY)
    command = find_proxy(deployment)
    flags = [f"--port={deployment.proxy_port}", f"--grpc_target=localhost:{entry.ports.grpc}"]
    if (conf_dir / "proxy.conf").exists():
        flags.append(f"--conf_file={conf_dir / 'proxy.conf'}")
    return (*command, *flags)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

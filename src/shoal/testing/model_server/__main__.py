"""The fake model server as a program, with the flags of `tensorflow_model_server`. An unknown flag ends it with 255.

Files named in the environment decide what differs from a good server: SHOAL_FAKE_BROKEN_MODELS lists models, one per
line, that cannot be loaded. SIGTERM ends it with 0. It ends with 1 when a model that it has from the start cannot be
loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.core.tasks import running, task_scope
from shoal.serving.models.configs import parse_config
from shoal.testing.model_server.server import FakeModelServer
from shoal.wire.sockets.channel import GrpcTransport

#: Those of a stock build that serve.
FLAGS = frozenset({
    "allow_version_labels_for_unavailable_models", "batching_parameters_file", "enable_batching",
    "enable_model_warmup", "enable_per_model_batching_parameters", "enable_profiler",
    "enable_signature_method_name_check", "file_system_poll_wait_seconds", "flush_filesystem_caches",
    "grpc_channel_arguments", "grpc_max_threads", "grpc_socket_path", "load_retry_interval_micros",
    "max_num_load_retries", "model_base_path", "model_config_file", "model_config_file_poll_wait_seconds",
    "model_name", "monitoring_config_file", "num_load_threads", "num_request_iterations_for_warmup",
    "num_tflite_interpreters_per_pool", "num_tflite_pools", "num_unload_threads", "per_process_gpu_memory_fraction",
    "platform_config_file", "port", "prefer_tflite_model", "remove_unused_fields_from_bundle_metagraph",
    "rest_api_enable_cors_support", "rest_api_num_threads", "rest_api_port", "rest_api_timeout_in_ms",
    "saved_model_tags", "ssl_config_file", "tensorflow_inter_op_parallelism", "tensorflow_intra_op_parallelism",
    "tensorflow_session_config_file", "tensorflow_session_parallelism", "thread_pool_factory_config_file",
    "use_alts_credentials", "xla_cpu_compilation_enabled",
})  # fmt: skip


def parse_flags(arguments: list[str]) -> dict[str, str]:
    """The flags by name. Raises SystemExit, as TensorFlow's own parser ends the program."""
    flags: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or name not in FLAGS:
            sys.stderr.write(f"unknown argument: {argument}\n")
            raise SystemExit(255)
        flags[name] = value
    return flags


async def serve(flags: dict[str, str]) -> None:
    """Serve until SIGTERM."""
    stopped = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stopped.set)
    server = FakeModelServer()
    config = Path(flags["model_config_file"])
    _break_models(server)
    server.models.apply(parse_config(await asyncio.to_thread(config.read_text)))
    async with task_scope("model_server") as scope:
        wait = float(flags.get("file_system_poll_wait_seconds", "1"))
        if wait > 0:
            scope.start(_look(server, wait), name="directories")
        address = f"0.0.0.0:{flags.get('port', '8500')}"
        starting_now = server.start(GrpcTransport(), address)
        async with running(starting_now, name="start") as starting, running(stopped.wait(), name="stop") as stopping:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                sys.stdout.write(f"Running gRPC ModelServer at {starting.result()} ...\n")
                sys.stdout.flush()
        wait = float(flags.get("model_config_file_poll_wait_seconds", "0"))
        if wait > 0:
            scope.start(_follow(server, config, wait), name="config")
        await stopped.wait()
    await server.stop()


async def _follow(server: FakeModelServer, config: Path, wait: float) -> None:
    while True:
        await asyncio.sleep(wait)
        found = parse_config(await asyncio.to_thread(config.read_text))
        if found != server.models.applied[-1]:
            with contextlib.suppress(ShoalError):
                await server.take(found)


async def _look(server: FakeModelServer, wait: float) -> None:
    while True:
        await asyncio.sleep(wait)
        _break_models(server)
        server.models.poll()


def _break_models(server: FakeModelServer) -> None:
    path = os.environ.get("SHOAL_FAKE_BROKEN_MODELS")
    if path and Path(path).exists():
        for name in Path(path).read_text().split():
            server.models.break_model(name)


if __name__ == "__main__":
    asyncio.run(serve(parse_flags(sys.argv[1:])))

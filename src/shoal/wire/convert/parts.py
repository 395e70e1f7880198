"""Parts of specs that several kinds of workload have ↔ `shoal.v1`: restarts, probes, stopping, files."""

from __future__ import annotations

from shoal.core.errors import Problem
from shoal.model.workloads import (
    CommandProbe,
    FileSpec,
    HttpProbe,
    Liveness,
    Readiness,
    RestartPolicy,
    StopPolicy,
)
from shoal.wire.convert.fields import duration_to_millis, path, read_duration
from shoal.wire.pb.shoal.v1 import run_pb2 as run

_RESTART = RestartPolicy()
_READINESS = Readiness()
_LIVENESS = Liveness()
_STOP = StopPolicy()


def file_from_proto(pb: run.File) -> FileSpec:
    """Read a file."""
    return FileSpec(pb.path, pb.content, pb.secret, pb.mode or FileSpec("f").mode)


def file_to_proto(file: FileSpec) -> run.File:
    """Write a file."""
    return run.File(path=file.path, content=file.content, secret=file.secret, mode=file.mode)


def restart_to_proto(restart: RestartPolicy) -> run.RestartPolicy:
    """Write a restart policy."""
    return run.RestartPolicy(
        policy=restart.policy,
        max_retries=restart.max_retries,
        delay_ms=duration_to_millis(restart.delay),
        max_delay_ms=duration_to_millis(restart.max_delay),
        healthy_after_ms=duration_to_millis(restart.healthy_after),
    )


def stop_to_proto(stop: StopPolicy) -> run.StopPolicy:
    """Write a stop policy."""
    return run.StopPolicy(signal=stop.signal, grace_ms=duration_to_millis(stop.grace))


def restart_from_proto(pb: run.RestartPolicy, at: str, problems: list[Problem]) -> RestartPolicy:
    """Read a restart policy."""
    return RestartPolicy(
        policy=pb.policy or _RESTART.policy,
        max_retries=pb.max_retries,
        delay=read_duration(pb.delay_ms, _RESTART.delay, path(at, "delay_ms"), problems),
        max_delay=read_duration(pb.max_delay_ms, _RESTART.max_delay, path(at, "max_delay_ms"), problems),
        healthy_after=read_duration(
            pb.healthy_after_ms, _RESTART.healthy_after, path(at, "healthy_after_ms"), problems
        ),
    )


def stop_from_proto(pb: run.StopPolicy, at: str, problems: list[Problem], *, default: StopPolicy = _STOP) -> StopPolicy:
    """Read a stop policy."""
    return StopPolicy(
        signal=pb.signal or default.signal,
        grace=read_duration(pb.grace_ms, default.grace, path(at, "grace_ms"), problems),
    )


def readiness_from_proto(pb: run.Readiness, at: str, problems: list[Problem]) -> Readiness:
    """Read a readiness probe."""
    return Readiness(
        tcp_port=_tcp_port(pb),
        http=_http(pb),
        command=_command(pb),
        interval=read_duration(pb.interval_ms, _READINESS.interval, path(at, "interval_ms"), problems),
        timeout=read_duration(pb.timeout_ms, _READINESS.timeout, path(at, "timeout_ms"), problems),
        deadline=read_duration(pb.deadline_ms, _READINESS.deadline, path(at, "deadline_ms"), problems),
        period=read_duration(pb.period_ms, _READINESS.period, path(at, "period_ms"), problems),
        failure_threshold=pb.failure_threshold or _READINESS.failure_threshold,
    )


def liveness_from_proto(pb: run.Liveness, at: str, problems: list[Problem]) -> Liveness:
    """Read a liveness probe."""
    return Liveness(
        tcp_port=_tcp_port(pb),
        http=_http(pb),
        command=_command(pb),
        interval=read_duration(pb.interval_ms, _LIVENESS.interval, path(at, "interval_ms"), problems),
        timeout=read_duration(pb.timeout_ms, _LIVENESS.timeout, path(at, "timeout_ms"), problems),
        failure_threshold=pb.failure_threshold or _LIVENESS.failure_threshold,
    )


def _tcp_port(pb: run.Readiness | run.Liveness) -> str | None:
    return pb.tcp_port if pb.WhichOneof("probe") == "tcp_port" else None


def _http(pb: run.Readiness | run.Liveness) -> HttpProbe | None:
    return HttpProbe(pb.http.port, pb.http.path or "/") if pb.WhichOneof("probe") == "http" else None


def _command(pb: run.Readiness | run.Liveness) -> CommandProbe | None:
    return CommandProbe(tuple(pb.command.command)) if pb.WhichOneof("probe") == "command" else None


def readiness_to_proto(readiness: Readiness) -> run.Readiness:
    """Write a readiness probe."""
    pb = run.Readiness(
        http=_http_to_proto(readiness),
        command=_command_to_proto(readiness),
        interval_ms=duration_to_millis(readiness.interval),
        timeout_ms=duration_to_millis(readiness.timeout),
        deadline_ms=duration_to_millis(readiness.deadline),
    )
    # Written only when set, so that a spec has the same bytes as in versions without these fields.
    if readiness.period != _READINESS.period:
        pb.period_ms = duration_to_millis(readiness.period)
    if readiness.failure_threshold != _READINESS.failure_threshold:
        pb.failure_threshold = readiness.failure_threshold
    if readiness.tcp_port is not None:
        pb.tcp_port = readiness.tcp_port
    return pb


def liveness_to_proto(liveness: Liveness) -> run.Liveness:
    """Write a liveness probe."""
    pb = run.Liveness(
        http=_http_to_proto(liveness),
        command=_command_to_proto(liveness),
        interval_ms=duration_to_millis(liveness.interval),
        timeout_ms=duration_to_millis(liveness.timeout),
        failure_threshold=liveness.failure_threshold,
    )
    if liveness.tcp_port is not None:
        pb.tcp_port = liveness.tcp_port
    return pb


def _http_to_proto(probe: Readiness | Liveness) -> run.HttpProbe | None:
    return run.HttpProbe(port=probe.http.port, path=probe.http.path) if probe.http is not None else None


def _command_to_proto(probe: Readiness | Liveness) -> run.CommandProbe | None:
    return run.CommandProbe(command=probe.command.command) if probe.command is not None else None

"""`shoal.v1.ProcessSpec` ↔ the model's: one message in both contracts, so nothing of a process spec is lost."""

from __future__ import annotations

from shoal.core.errors import Problem
from shoal.model.workloads import (
    CommandProbe,
    HttpProbe,
    Liveness,
    NamedPort,
    ProcessSpec,
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


def process_from_proto(pb: run.ProcessSpec, at: str, problems: list[Problem]) -> ProcessSpec:
    """Read a process spec. Only what the model cannot hold is checked here."""
    return ProcessSpec(
        command=tuple(pb.command),
        args=tuple(pb.args),
        env=dict(pb.env),
        working_dir=pb.working_dir,
        user=pb.user,
        restart=_restart_from_proto(pb.restart, path(at, "restart"), problems) if pb.HasField("restart") else _RESTART,
        readiness=_readiness_from_proto(pb.readiness, path(at, "readiness"), problems)
        if pb.HasField("readiness")
        else None,
        stop=_stop_from_proto(pb.stop, path(at, "stop"), problems) if pb.HasField("stop") else _STOP,
        ports=tuple(NamedPort(each.name, each.port) for each in pb.ports),
        clear_env=pb.clear_env,
        env_from_secrets=dict(pb.env_from_secrets),
        identity=pb.identity,
        liveness=_liveness_from_proto(pb.liveness, path(at, "liveness"), problems) if pb.HasField("liveness") else None,
    )


def process_to_proto(spec: ProcessSpec) -> run.ProcessSpec:
    """Write a process spec."""
    return run.ProcessSpec(
        command=spec.command,
        env=spec.env,
        working_dir=spec.working_dir,
        args=spec.args,
        user=spec.user,
        restart=run.RestartPolicy(
            policy=spec.restart.policy,
            max_retries=spec.restart.max_retries,
            delay_ms=duration_to_millis(spec.restart.delay),
            max_delay_ms=duration_to_millis(spec.restart.max_delay),
            healthy_after_ms=duration_to_millis(spec.restart.healthy_after),
        ),
        readiness=_readiness_to_proto(spec.readiness) if spec.readiness is not None else None,
        stop=run.StopPolicy(signal=spec.stop.signal, grace_ms=duration_to_millis(spec.stop.grace)),
        ports=[run.NamedPort(name=each.name, port=each.port) for each in spec.ports],
        clear_env=spec.clear_env,
        env_from_secrets=spec.env_from_secrets,
        identity=spec.identity,
        liveness=_liveness_to_proto(spec.liveness) if spec.liveness is not None else None,
    )


def _restart_from_proto(pb: run.RestartPolicy, at: str, problems: list[Problem]) -> RestartPolicy:
    return RestartPolicy(
        policy=pb.policy or _RESTART.policy,
        max_retries=pb.max_retries,
        delay=read_duration(pb.delay_ms, _RESTART.delay, path(at, "delay_ms"), problems),
        max_delay=read_duration(pb.max_delay_ms, _RESTART.max_delay, path(at, "max_delay_ms"), problems),
        healthy_after=read_duration(
            pb.healthy_after_ms, _RESTART.healthy_after, path(at, "healthy_after_ms"), problems
        ),
    )


def _stop_from_proto(pb: run.StopPolicy, at: str, problems: list[Problem]) -> StopPolicy:
    return StopPolicy(
        signal=pb.signal or _STOP.signal,
        grace=read_duration(pb.grace_ms, _STOP.grace, path(at, "grace_ms"), problems),
    )


def _readiness_from_proto(pb: run.Readiness, at: str, problems: list[Problem]) -> Readiness:
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


def _liveness_from_proto(pb: run.Liveness, at: str, problems: list[Problem]) -> Liveness:
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


def _readiness_to_proto(readiness: Readiness) -> run.Readiness:
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


def _liveness_to_proto(liveness: Liveness) -> run.Liveness:
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

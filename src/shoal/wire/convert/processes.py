"""`shoal.v1.ProcessSpec` ↔ the model's: one message in both contracts, so nothing of a process spec is lost."""

from __future__ import annotations

from shoal.core.errors import Problem
from shoal.model.workloads import ArtifactSpec, NamedPort, ProcessSpec, RestartPolicy, StopPolicy
from shoal.wire.convert.fields import path
from shoal.wire.convert.parts import (
    file_from_proto,
    file_to_proto,
    liveness_from_proto,
    liveness_to_proto,
    readiness_from_proto,
    readiness_to_proto,
    restart_from_proto,
    restart_to_proto,
    stop_from_proto,
    stop_to_proto,
)
from shoal.wire.pb.shoal.v1 import run_pb2 as run

_RESTART = RestartPolicy()
_STOP = StopPolicy()


def process_from_proto(pb: run.ProcessSpec, at: str, problems: list[Problem]) -> ProcessSpec:
    """Read a process spec. Only what the model cannot hold is checked here."""
    return ProcessSpec(
        command=tuple(pb.command),
        args=tuple(pb.args),
        env=dict(pb.env),
        working_dir=pb.working_dir,
        user=pb.user,
        restart=restart_from_proto(pb.restart, path(at, "restart"), problems) if pb.HasField("restart") else _RESTART,
        readiness=readiness_from_proto(pb.readiness, path(at, "readiness"), problems)
        if pb.HasField("readiness")
        else None,
        stop=stop_from_proto(pb.stop, path(at, "stop"), problems) if pb.HasField("stop") else _STOP,
        ports=tuple(NamedPort(each.name, each.port) for each in pb.ports),
        clear_env=pb.clear_env,
        env_from_secrets=dict(pb.env_from_secrets),
        identity=pb.identity,
        liveness=liveness_from_proto(pb.liveness, path(at, "liveness"), problems) if pb.HasField("liveness") else None,
        files=tuple(file_from_proto(each) for each in pb.files),
        artifacts=tuple(ArtifactSpec(each.sha256, each.path) for each in pb.artifacts),
    )


def process_to_proto(spec: ProcessSpec) -> run.ProcessSpec:
    """Write a process spec."""
    return run.ProcessSpec(
        command=spec.command,
        env=spec.env,
        working_dir=spec.working_dir,
        args=spec.args,
        user=spec.user,
        restart=restart_to_proto(spec.restart),
        readiness=readiness_to_proto(spec.readiness) if spec.readiness is not None else None,
        stop=stop_to_proto(spec.stop),
        ports=[run.NamedPort(name=each.name, port=each.port) for each in spec.ports],
        clear_env=spec.clear_env,
        env_from_secrets=spec.env_from_secrets,
        identity=spec.identity,
        liveness=liveness_to_proto(spec.liveness) if spec.liveness is not None else None,
        files=[file_to_proto(each) for each in spec.files],
        artifacts=[run.Artifact(sha256=each.sha256, path=each.path) for each in spec.artifacts],
    )

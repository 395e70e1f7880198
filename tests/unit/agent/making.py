"""Values that the tests of the agent are made of."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from shoal.agent.facts import Intent, Moment, RunRules
from shoal.core.ids import WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import (
    AgentSpec,
    CommandProbe,
    DesiredState,
    FailureReason,
    ProcessSpec,
    Readiness,
    RestartPolicy,
    WorkloadSpec,
    WorkloadType,
)
from shoal.wire.convert import agent_spec_from_control, spec_bytes, spec_sha256

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float = 0.0, *, run: str = "w.1", chance: float = 0.0) -> Moment:
    return Moment(START + timedelta(seconds=seconds), run, chance)


def intent(
    *,
    workload_id: str = "w",
    spec: str = "spec 1",
    desired: DesiredState = DesiredState.RUNNING,
    generation: int = 1,
    born: int = 1,
    attempt: int = 0,
    deleting: bool = False,
    keeps_data: bool = False,
    revision: str = "r1",
) -> Intent:
    return Intent(
        workload_id=WorkloadId(workload_id),
        type=WorkloadType.PROCESS,
        revision_id=revision,
        desired=desired,
        spec_bytes=spec.encode(),
        spec_sha256=hashlib.sha256(spec.encode()).digest(),
        generation=generation,
        born=born,
        attempt=attempt,
        created_at=START,
        updated_at=START,
        deleting=deleting,
        keeps_data=keeps_data,
    )


def rules(
    policy: str = "always",
    *,
    ready_within: float | None = None,
    at_most_one: bool = False,
    liveness: str = "",
    prepares: bool = False,
    updates: bool = False,
    late_failure: FailureReason = FailureReason.RUNTIME_ERROR,
    stays_watched: bool = True,
    **restart,
) -> RunRules:
    return RunRules(
        restart=RestartPolicy(policy=policy, **restart),
        ready_within=ready_within,
        probe="port http" if ready_within else "",
        at_most_one=at_most_one,
        liveness=liveness,
        prepares=prepares,
        updates=updates,
        late_failure=late_failure,
        stays_watched=stays_watched,
    )


def process(*command: str, **fields) -> ProcessSpec:
    return ProcessSpec(command=command or ("sleep", "60"), **fields)


def probed(**fields) -> ProcessSpec:
    """A process that is ready when a command says so: with a fake runtime, when its script says so."""
    readiness = Readiness(command=CommandProbe(("check",)), deadline=timedelta(seconds=5))
    return process(readiness=readiness, **fields)


def workload(
    spec: ProcessSpec | None = None,
    *,
    request: Resources | None = None,
    at_most_one: bool = False,
    stop_after: float = 0.0,
):
    """A spec as the agent is sent it."""
    asked = request or Resources()
    whole = WorkloadSpec(
        type=WorkloadType.PROCESS, process=spec or process(), slots=asked.slots, at_most_one=at_most_one
    )
    message = agent_spec_from_control(whole, "w")
    message.stop_after_ms = round(stop_after * 1000)
    message.reservation.cpu_millicores = asked.cpu_millicores
    message.reservation.memory_mb = asked.memory_mb
    message.reservation.disk_gb = asked.disk_gb
    return message


def order_bytes(message) -> tuple[bytes, bytes]:
    data = spec_bytes(message)
    return data, spec_sha256(data)


def agent_spec(spec: ProcessSpec | None = None, **fields) -> AgentSpec:
    return AgentSpec(type=WorkloadType.PROCESS, process=spec or process(), **fields)


def changed(base: Intent, **fields) -> Intent:
    return replace(base, **fields)

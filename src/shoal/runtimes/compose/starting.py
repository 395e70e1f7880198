"""A run request as additions to a project, and a run read back from the labels of its containers. Pure.

Everything that has to outlive the agent's own files is in the labels. Called by `shoal.runtimes.compose.runtime`.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.ids import RunId, WorkloadId, is_identifier
from shoal.model.workloads import ComposeSpec
from shoal.runtimes.base import RunRequest, port_variable
from shoal.runtimes.compose.digests import service_digests
from shoal.runtimes.compose.members import NUMBER_LABEL, PROJECT_LABEL, SERVICE_LABEL, Member, MemberState
from shoal.runtimes.compose.project import Additions, Project
from shoal.runtimes.compose.records import ComposeRun, ServiceMarks
from shoal.runtimes.container.creating import (
    AT_MOST_ONE_LABEL,
    GENERATION_LABEL,
    GRACE_LABEL,
    PORTS_LABEL,
    REVISION_LABEL,
    STOP_SIGNAL_LABEL,
    WORKLOAD_LABEL,
    Owner,
    default_ulimits,
)
from shoal.runtimes.container.records import RunEnd
from shoal.runtimes.container.states import end_of, millis

#: Not the label of a container run: the container runtime leaves the containers of projects alone.
RUN_LABEL = "shoal.compose-run"
WAVES_LABEL = "shoal.compose-waves"
#: The directory with the project's files.
FOLDER_LABEL = "shoal.compose-folder"


def marks_for(
    request: RunRequest,
    spec: ComposeSpec,
    project: Project,
    owner: Owner,
    *,
    folder: Path,
    previous: Mapping[str, ServiceMarks] | None = None,
) -> dict[str, ServiceMarks]:
    """What each service is made with. A service for which nothing changed keeps what it has."""
    labels = {
        **owner.labels,
        WORKLOAD_LABEL: request.workload_id,
        REVISION_LABEL: request.revision,
        GENERATION_LABEL: str(request.generation),
        RUN_LABEL: request.run_id,
        PORTS_LABEL: json.dumps(dict(request.ports)),
        STOP_SIGNAL_LABEL: f"SIG{spec.stop.signal or 'TERM'}",
        GRACE_LABEL: str(spec.stop.grace.total_seconds()),
        WAVES_LABEL: json.dumps(project.stop_waves),
        FOLDER_LABEL: str(folder),
        **({AT_MOST_ONE_LABEL: "1"} if request.deadline is not None else {}),
    }
    environment = {
        **request.identity,
        **{port_variable(name): str(number) for name, number in request.ports.items()},
        "SHOAL_NODE_ID": owner.node_id,
        "SHOAL_RUN_ID": request.run_id,
        "SHOAL_WORKLOAD_ID": request.workload_id,
    }
    made = {
        name: ServiceMarks(f"{digest} {request.limits}", labels, environment)
        for name, digest in service_digests(project, request.files).items()
    }
    kept = previous or {}
    return {
        name: kept[name] if name in kept and kept[name].digest == marks.digest else marks
        for name, marks in made.items()
    }


def additions_for(request: RunRequest, owner: Owner, marks: Mapping[str, ServiceMarks]) -> dict[str, Additions]:
    """What is added to each service."""
    shared = {**owner.labels, WORKLOAD_LABEL: request.workload_id}
    ceiling = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return {
        name: Additions(
            labels=each.labels,
            shared_labels=shared,
            environment=each.environment,
            limits=request.limits,
            ulimits=default_ulimits(ceiling),
        )
        for name, each in marks.items()
    }


def member_of(found: Mapping[str, Any]) -> Member:
    """A container of a project, from what the engine says of it."""
    config = found["Config"]
    labels = config.get("Labels") or {}
    return Member(
        container_id=str(found["Id"]),
        service=service_of(labels),
        number=_number(str(labels.get(NUMBER_LABEL, ""))) or 1,
        pid=int(found["State"].get("Pid") or 0),
        started_at_ms=millis(found["State"].get("StartedAt")),
        tty=bool(config.get("Tty")),
    )


def paths_of(found: Mapping[str, Any] | None) -> set[str]:
    """What a container, as the engine shows it, was made from: the directory of its project, and what it mounts."""
    if found is None:
        return set()
    labels = found["Config"].get("Labels") or {}
    mounts = {str(each.get("Source") or "") for each in found.get("Mounts") or ()}
    return {str(labels.get(FOLDER_LABEL, "")), *mounts}


def service_of(labels: Mapping[str, Any]) -> str:
    """The service of a container, by its labels."""
    return str(labels.get(SERVICE_LABEL, ""))


def state_of(member: Member, found: Mapping[str, Any] | None, *, now_ms: int, out_of_memory: bool) -> MemberState:
    """How a container is that does not run, as the engine shows it; None for one that is gone."""
    if found is not None and (found["State"].get("Running") or found["State"].get("Paused")):
        return MemberState(member, is_running=True)
    if found is None:
        return MemberState(member, is_running=False, end=RunEnd(unknown=True, ended_at_ms=now_ms))
    return MemberState(member, is_running=False, end=end_of(found["State"], now_ms, out_of_memory=out_of_memory))


def read_run(containers: Sequence[Mapping[str, str]], members: tuple[Member, ...]) -> ComposeRun | None:
    """The run that the labels of a project's containers describe; None when a service has not been started."""
    labels = max(containers, key=lambda each: _number(each.get(GENERATION_LABEL, "")))
    run_id, workload_id = labels.get(RUN_LABEL, ""), labels.get(WORKLOAD_LABEL, "")
    try:
        waves = tuple(tuple(str(name) for name in wave) for wave in json.loads(labels.get(WAVES_LABEL, "[]")))
        ports = {str(name): int(port) for name, port in json.loads(labels.get(PORTS_LABEL, "{}")).items()}
        grace = float(labels.get(GRACE_LABEL, "10"))
    except (ValueError, TypeError, AttributeError):
        return None
    services = {name for wave in waves for name in wave}
    has_all = services == {member.service for member in members if member.started_at_ms}
    if not services or not has_all or not is_identifier(run_id) or not is_identifier(workload_id):
        return None
    return ComposeRun(
        run_id=RunId(run_id),
        workload_id=WorkloadId(workload_id),
        project=labels.get(PROJECT_LABEL, ""),
        folder=labels.get(FOLDER_LABEL, ""),
        started_at_ms=min(member.started_at_ms for member in members),
        stop_signal=labels.get(STOP_SIGNAL_LABEL, "SIGTERM"),
        grace=grace,
        members=members,
        waves=waves,
        ports=ports,
        services=dict.fromkeys(services, "running"),
        at_most_one=AT_MOST_ONE_LABEL in labels,
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0

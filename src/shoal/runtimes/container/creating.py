"""A run request as the body of a create call, and back from the labels of a container. Pure.

Everything that has to outlive the agent is in the labels: which cluster, node, workload and run a container belongs to,
its ports and how it is stopped. Called by `shoal.runtimes.container.runtime`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.workloads import ContainerSpec
from shoal.runtimes.base import RunRequest, port_variable

CLUSTER_LABEL = "shoal.cluster"
NODE_LABEL = "shoal.node"
WORKLOAD_LABEL = "shoal.workload"
REVISION_LABEL = "shoal.revision"
GENERATION_LABEL = "shoal.generation"
RUN_LABEL = "shoal.run"
PORTS_LABEL = "shoal.ports"
STOP_SIGNAL_LABEL = "shoal.stop-signal"
GRACE_LABEL = "shoal.stop-grace"
#: Of a run that a guard ends at its deadline.
AT_MOST_ONE_LABEL = "shoal.at-most-one"
#: Of a container that was only made to see whether it can be, and is never started.
TRIAL_LABEL = "shoal.trial"
#: Where the files of a spec are in a container. Their paths are links to here, so each can be replaced at once.
FILES_PATH = "/run/shoal/files"

#: The engine's log of one container; the agent copies it into its own files when the run ends.
_LOG_SIZE = "10m"
_MIB = 1 << 20
#: The kernel takes no smaller weight.
_LEAST_SHARES = 2
#: Set where the spec says nothing: engines pass on what their own service has, which a sandbox may refuse.
_DEFAULT_ULIMITS = {"nofile": (1024, 524_288), "nproc": (4096, 4096)}


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose containers an agent looks at. Several agents may share one engine."""

    cluster_id: str
    node_id: NodeId

    @property
    def labels(self) -> dict[str, str]:
        """What all containers of this agent carry."""
        return {CLUSTER_LABEL: self.cluster_id, NODE_LABEL: self.node_id}

    def name_of(self, workload_id: str) -> str:
        """The name of a workload's container."""
        return f"shoal-{self.node_id}-{workload_id}"


@dataclass(frozen=True, slots=True)
class RunLabels:
    """What the labels of a container say of its run."""

    run_id: RunId
    workload_id: WorkloadId
    ports: Mapping[str, int]
    stop_signal: str
    grace: float
    at_most_one: bool = False


def create_body(
    request: RunRequest, spec: ContainerSpec, owner: Owner, *, ulimit_ceiling: int, files: str = ""
) -> dict[str, Any]:
    """The body of a create call.

    `ulimit_ceiling` is what this machine allows the default `nofile` to be, `files` the directory of the spec's files.
    """
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in spec.ports:
        key = f"{port.container_port}/{port.protocol or 'tcp'}"
        number = request.ports.get(port.name, port.host_port) if port.name else port.host_port
        bindings.setdefault(key, []).append({"HostPort": str(number) if number else ""})
    environment = {
        **spec.env,
        **request.secrets,
        **request.identity,
        **{port_variable(name): str(number) for name, number in request.ports.items()},
        "SHOAL_NODE_ID": owner.node_id,
        "SHOAL_RUN_ID": request.run_id,
        "SHOAL_WORKLOAD_ID": request.workload_id,
    }
    body: dict[str, Any] = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {**spec.labels, **_run_labels(request, spec, owner)},
        # The agent runs health checks itself: an engine without systemd never does.
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": f"SIG{spec.stop.signal or 'TERM'}",
        "ExposedPorts": {key: {} for key in bindings},
        "HostConfig": {
            "Binds": _binds(request, spec, files),
            "PortBindings": bindings,
            "Privileged": spec.privileged,
            "Init": spec.init,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_SIZE}},
            "Ulimits": _ulimits(spec, ulimit_ceiling),
            **_limits(request, spec),
        },
    }
    if spec.command or spec.args:
        body["Cmd"] = [*spec.command, *spec.args]
    if spec.user:
        body["User"] = spec.user
    if spec.working_dir:
        body["WorkingDir"] = spec.working_dir
    return body


def read_labels(labels: Mapping[str, str]) -> RunLabels | None:
    """What a container is, by its labels; None for one that is not a run of ours."""
    run_id, workload_id = labels.get(RUN_LABEL, ""), labels.get(WORKLOAD_LABEL, "")
    if not run_id or not workload_id:
        return None
    try:
        ports = {str(name): int(number) for name, number in json.loads(labels.get(PORTS_LABEL, "{}")).items()}
        grace = float(labels.get(GRACE_LABEL, "10"))
    except (ValueError, TypeError, AttributeError):
        return None
    return RunLabels(
        RunId(run_id),
        WorkloadId(workload_id),
        ports,
        labels.get(STOP_SIGNAL_LABEL, "SIGTERM"),
        grace,
        at_most_one=AT_MOST_ONE_LABEL in labels,
    )


def _binds(request: RunRequest, spec: ContainerSpec, files: str) -> list[str]:
    """Directories of the host, as `source:target[:ro]`."""
    mounts = [(mount.host_path, mount.container_path, mount.read_only) for mount in spec.volumes]
    mounts += [
        (request.volumes[volume.name], volume.mount_path, volume.is_read_only)
        for volume in spec.managed_volumes
        if volume.name in request.volumes and volume.mount_path
    ]
    if files:
        mounts.append((files, FILES_PATH, True))
    return [f"{source}:{target}{':ro' if read_only else ''}" for source, target, read_only in mounts]


def _run_labels(request: RunRequest, spec: ContainerSpec, owner: Owner) -> dict[str, str]:
    return {
        **owner.labels,
        WORKLOAD_LABEL: request.workload_id,
        REVISION_LABEL: request.revision,
        GENERATION_LABEL: str(request.generation),
        RUN_LABEL: request.run_id,
        PORTS_LABEL: json.dumps(dict(request.ports)),
        STOP_SIGNAL_LABEL: f"SIG{spec.stop.signal or 'TERM'}",
        GRACE_LABEL: str(spec.stop.grace.total_seconds()),
        **({AT_MOST_ONE_LABEL: "1"} if request.deadline is not None else {}),
    }


def _limits(request: RunRequest, spec: ContainerSpec) -> dict[str, int]:
    limits: dict[str, int] = {}
    if request.limits.cpu_millicores:
        limits["NanoCpus"] = request.limits.cpu_millicores * 1_000_000
    if request.limits.memory_mb:
        # Without swap: a limit that can be exceeded is none.
        limits["Memory"] = limits["MemorySwap"] = request.limits.memory_mb * _MIB
    if spec.cpu_shares:
        limits["CpuShares"] = max(_LEAST_SHARES, spec.cpu_shares)
    return limits


def _ulimits(spec: ContainerSpec, ceiling: int) -> list[dict[str, Any]]:
    given = {each.name: (each.soft, each.hard) for each in spec.ulimits}
    limits = {**default_ulimits(ceiling), **given}
    return [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in limits.items()]


def default_ulimits(ceiling: int) -> dict[str, tuple[int, int]]:
    """The limits of a container whose spec says nothing, none above `ceiling`."""
    return {name: (min(soft, ceiling), min(hard, ceiling)) for name, (soft, hard) in _DEFAULT_ULIMITS.items()}

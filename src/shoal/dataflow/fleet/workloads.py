"""The workloads of a dataflow job: a group of one coordinator and as many task hosts as the job is wide. Pure.

A task host has one slot and runs one subtask of every stage, so chains stay in one process; task hosts are placed
apart. The coordinator has no slot. Every spec here follows from the deployed spec and the moves alone, so that a look
at a job that is well changes nothing. Called by `shoal.dataflow.fleet.engine`.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from shoal.core.ids import GroupId
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.fleet.progress import COORDINATOR, Progress, workload_of
from shoal.dataflow.fleet.spec import DataflowSpec
from shoal.jobs.engine import Job, PlannedWorkload
from shoal.model.jobs import JOB_LABEL
from shoal.model.workloads import (
    Affinity,
    AffinityDirection,
    ArtifactSpec,
    Constraint,
    ConstraintOperator,
    FileSpec,
    NamedPort,
    PlacementRules,
    ProcessSpec,
    RestartPolicy,
    StopPolicy,
    WorkloadSpec,
    WorkloadType,
)

#: The label that tells the parts of a job apart.
PART_LABEL = "shoal.part"
TASK_HOST = "task-host"
CONTROL_PORT = "control"
SPEC_FILE = "job.json"
PLAN_FILE = "plan.json"
BUNDLE_FILE = "bundle.shoal"
#: Has the settings of a Kafka cluster, one variable for each, by its place in the sorted names.
BROKER_VARIABLE = "SHOAL_BROKER_{index}"
_SPREAD_WEIGHT = 100
_RESTART = RestartPolicy(
    delay=timedelta(milliseconds=100), max_delay=timedelta(seconds=5), healthy_after=timedelta(seconds=10)
)
_STOP = StopPolicy(grace=timedelta(seconds=2))


def plan_workloads(job: Job, progress: Progress) -> tuple[PlannedWorkload, ...]:
    """Every workload that a job is to have now."""
    if not progress.spec:
        return ()
    spec = specs.decode(progress.spec.encode())
    parts = [COORDINATOR, *(str(number) for number in range(spec.parallelism))]
    return tuple(
        PlannedWorkload(
            workload_of(job.job_id, part),
            _workload(job, spec, progress, part),
            progress.revision(part),
            GroupId(job.job_id),
        )
        for part in parts
    )


def _workload(job: Job, spec: DataflowSpec, progress: Progress, part: str) -> WorkloadSpec:
    is_coordinator = part == COORDINATOR
    return WorkloadSpec(
        type=WorkloadType.PROCESS,
        resources=spec.coordinator if is_coordinator else spec.task_host,
        slots=0 if is_coordinator else 1,
        process=_coordinator(job, spec, progress) if is_coordinator else _task_host(job, spec, progress, part),
        placement=_placement(job, spec, progress, part),
        labels={PART_LABEL: COORDINATOR if is_coordinator else TASK_HOST},
    )


def _placement(job: Job, spec: DataflowSpec, progress: Progress, part: str) -> PlacementRules:
    constraints = list(spec.constraints)
    avoid = progress.avoid_of(part)
    if avoid:
        constraints.append(Constraint("node_id", ConstraintOperator.NOT_IN, avoid))
    apart = Affinity(
        {JOB_LABEL: job.job_id, PART_LABEL: TASK_HOST},
        direction=AffinityDirection.APART,
        required=False,
        weight=_SPREAD_WEIGHT,
    )
    return PlacementRules(constraints=tuple(constraints), affinities=() if part == COORDINATOR else (apart,))


def _coordinator(job: Job, spec: DataflowSpec, progress: Progress) -> ProcessSpec:
    revision = progress.revision(COORDINATOR)
    arguments = ("--job", job.job_id, "--revision", revision, "--deployed-for", str(progress.deployed_for))
    plan = ArtifactSpec(spec.plan, PLAN_FILE)
    made = _process("coordinator", spec, arguments, (plan, ArtifactSpec(spec.bundle, BUNDLE_FILE)))
    names = sorted(spec.brokers)
    brokers = {BROKER_VARIABLE.format(index=index): spec.brokers[name] for index, name in enumerate(names)}
    # What an upgrade compares is no business of the program.
    document = specs.encode(dataclasses.replace(spec, steps={})).decode()
    return dataclasses.replace(
        made,
        ports=(NamedPort(CONTROL_PORT),),
        env_from_secrets={**made.env_from_secrets, **brokers},
        files=(FileSpec(SPEC_FILE, document),),
    )


def _task_host(job: Job, spec: DataflowSpec, progress: Progress, part: str) -> ProcessSpec:
    coordinator = workload_of(job.job_id, COORDINATOR)
    # An agent leaves a process alone whose spec is the same, and one of an earlier revision is not heard any more.
    revision = progress.revision(part)
    arguments = ("--job", job.job_id, "--revision", revision, "--number", part, "--coordinator", coordinator)
    return _process("task_host", spec, arguments, (ArtifactSpec(spec.bundle, BUNDLE_FILE),))


def _process(
    program: str, spec: DataflowSpec, arguments: tuple[str, ...], artifacts: tuple[ArtifactSpec, ...]
) -> ProcessSpec:
    # The agent's own Python: it has the program that the agent is a part of.
    run = f'exec "$SHOAL_PYTHON" -m shoal.dataflow.execution.remote.{program} "$@"'
    return ProcessSpec(
        command=("/bin/sh", "-c", run, program),
        args=arguments,
        env={**spec.env, **({"SHOAL_INSECURE": "1"} if spec.insecure else {})},
        env_from_secrets=dict(spec.secrets),
        identity=not spec.insecure,
        restart=_RESTART,
        stop=_STOP,
        artifacts=artifacts,
    )

"""Runs a plan: prepares what users wrote, plans it, writes it down, and starts its coordinator and task hosts.

`run` runs a bounded plan to its end, `start` starts one that is stopped some day. Task hosts build their tasks from the
document and from nothing else: in threads of this process, or in child processes
(`shoal.dataflow.execution.hosts.processes`). The coordinator is `shoal.dataflow.execution.coordinator.running`. Called
by `shoal.dataflow.api.streams.stream`, `shoal.dataflow.api.apps.app` and `shoal.cli`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import InvalidError, problem
from shoal.dataflow.connectors.abilities import SupportsCheckpointCheck, SupportsRunCheck
from shoal.dataflow.execution.coordinator.running import FlowMetrics, RunningFlow, RunReport
from shoal.dataflow.execution.hosts.base import Hosts, LocalHosts
from shoal.dataflow.language.functions import add_blobs
from shoal.dataflow.language.logical import Node
from shoal.dataflow.plan.physical import PhysicalPlan
from shoal.dataflow.plan.physical import plan as plan_physically
from shoal.dataflow.plan.prepare import Prepared, check_connectors, prepare
from shoal.dataflow.plan.prepared import read_prepared, write_prepared
from shoal.dataflow.settings import CheckpointSettings, FlowSettings

__all__ = [
    "FlowMetrics",
    "RunReport",
    "RunningFlow",
    "plan_and_check",
    "run",
    "run_prepared",
    "start",
    "start_prepared",
]

_JOB_RULE = "must be letters, digits, dots, dashes and underscores, and begin with a letter or a digit"
#: Child processes of one run.
_MOST_PROCESSES = 128


def run(
    plan: Sequence[Node],
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunReport:
    """Run a plan to its end. Raises what any of its tasks raised.

    With `is_look` it is a look at one stream, as `collect()` is: side outputs of process functions need no reader. With
    `processes`, tasks run in so many child processes.
    """
    return run_prepared(
        prepare(plan),
        name=name,
        parallelism=parallelism,
        settings=settings,
        clock=clock,
        is_look=is_look,
        processes=processes,
    )


def start(
    plan: Sequence[Node],
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunningFlow:
    """Start a plan, and return at once."""
    return start_prepared(
        prepare(plan),
        name=name,
        parallelism=parallelism,
        settings=settings,
        clock=clock,
        is_look=is_look,
        processes=processes,
    )


def run_prepared(
    prepared: Prepared,
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunReport:
    """The same for a plan that was prepared before."""
    flow = start_prepared(
        prepared,
        name=name,
        parallelism=parallelism,
        settings=settings,
        clock=clock,
        is_look=is_look,
        processes=processes,
    )
    try:
        return flow.wait()
    except BaseException:
        flow.abort()
        raise


def start_prepared(
    prepared: Prepared,
    *,
    name: str = "flow",
    parallelism: int = 1,
    settings: FlowSettings | None = None,
    clock: Clock | None = None,
    is_look: bool = False,
    processes: int = 0,
) -> RunningFlow:
    """The same for a plan that was prepared before. With `processes`, tasks run in so many child processes."""
    _check_name(name)
    _check_processes(processes)
    chosen = settings or FlowSettings()
    physical = plan_and_check(prepared, parallelism=parallelism, settings=chosen)
    # Tasks are built from the document and nothing else, in this process as in any other.
    document = write_prepared(prepared, physical, is_local=processes == 0)
    plan = read_prepared(document)
    time = clock or SystemClock()
    hosts: Hosts = LocalHosts(plan, time)
    if processes:
        from shoal.dataflow.execution.hosts.processes import ProcessHosts

        add_blobs(document.blobs)  # the coordinator asks users' own connectors, too: for splits, and to commit
        hosts = ProcessHosts(plan, document, processes=processes, clock=time)
    flow = RunningFlow(name, plan, chosen, time, hosts, is_look=is_look)
    flow.begin()
    return flow


def plan_and_check(prepared: Prepared, *, parallelism: int, settings: FlowSettings) -> PhysicalPlan:
    """The physical plan of a prepared one, once its connectors agree to be run so. Raises `PlanError`."""
    physical = plan_physically(prepared.sinks, parallelism=parallelism, key_groups=settings.key_groups)
    for stage in physical.stages:
        check = functools.partial(_check_run, parallelism=stage.parallelism, checkpoint=settings.checkpoint)
        check_connectors([step.node for step in stage.steps], check)
    return physical


def _check_run(connector: object, *, parallelism: int, checkpoint: CheckpointSettings | None) -> None:
    """Whether a sink can be written by so many tasks, with these checkpoints. Raises `PreconditionError`."""
    if isinstance(connector, SupportsRunCheck):
        connector.check_run(parallelism=parallelism, has_checkpoints=checkpoint is not None)
    if checkpoint is not None and isinstance(connector, SupportsCheckpointCheck):
        connector.check_checkpoints(checkpoint)


def _check_name(name: str) -> None:
    if not name or not name[0].isalnum() or not all(each.isalnum() or each in "._-" for each in name):
        raise InvalidError([problem("name", name, _JOB_RULE)], what="flow")


def _check_processes(processes: int) -> None:
    if not isinstance(processes, int) or isinstance(processes, bool) or not 0 <= processes <= _MOST_PROCESSES:
        raise InvalidError([problem("processes", processes, f"must be a whole number from 0 to {_MOST_PROCESSES}")])

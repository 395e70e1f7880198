"""Submits a prepared plan as a job of the engine `dataflow`: collects the user's code, uploads it, and stores the job.

`collect_job` reads the files of the user's modules; `submit_job` talks to the control plane. Settings of Kafka clusters
may be secret: each becomes a secret of the fleet, which the spec names. Called by `shoal.dataflow.api`
(`flow.start()`); calls `submission`, which makes the spec.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.artifacts.bundles import Bundle
from shoal.artifacts.collecting import collect_bundle, current_versions
from shoal.client import ControlPlane
from shoal.core import files
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, problem
from shoal.core.ids import IDENTIFIER_RULE, is_identifier
from shoal.core.shape import build
from shoal.dataflow.connectors.abilities import TopicConnector
from shoal.dataflow.connectors.topics.brokers import has_settings, is_kafka, settings_of
from shoal.dataflow.execution.remote.submission import Package, pack_job
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.language.logical import Node, Sink, Source, walk
from shoal.dataflow.language.settings import FlowSettings
from shoal.dataflow.plan.prepare import Prepared
from shoal.model.jobs import JobView
from shoal.model.workloads import Constraint, ResourceRequest

if TYPE_CHECKING:
    from shoal.topics.kafka import KafkaSettings

_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """What a job needs beyond the program: `App(job={…})`. The rules are those of the spec."""

    task_host: ResourceRequest = ResourceRequest()
    coordinator: ResourceRequest = ResourceRequest()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectedJob:
    """A job that is ready to be submitted."""

    package: Package = field(repr=False)
    #: The settings of Kafka clusters, by the names of the secrets that are to hold them.
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def spec(self) -> specs.DataflowSpec:
        """The spec, before it is known whether the fleet has certificates."""
        return self.package.spec


def collect_job(
    prepared: Prepared,
    *,
    name: str,
    parallelism: int,
    settings: FlowSettings,
    module: str,
    given: Mapping[str, Any] | None = None,
) -> CollectedJob:
    """Pack a plan with the code that it needs. Blocks.

    Raises `PlanError` for what cannot leave this process, `InvalidError` for a wrong setting, `PreconditionError` for a
    plan that only this machine can run.

    Args:
        prepared: the plan.
        name: what its checkpoints and transactions are called.
        parallelism: how wide it begins.
        settings: how its tasks work.
        module: the user's module that the plan was made in.
        given: what `JobNeeds` has.
    """
    needs = build(JobNeeds, dict(given or {}), what="job")
    code = _collect(module, name)
    brokers = _brokers(prepared.sinks, name)
    package = pack_job(
        prepared,
        name=name,
        parallelism=parallelism,
        settings=_absolute(settings),
        entry=code.entry,
        files=code.files,
        versions=code.versions,
        brokers={broker: secret for broker, (secret, _) in brokers.items()},
        **{each.name: getattr(needs, each.name) for each in dataclasses.fields(needs)},
    )
    specs.decode(specs.encode(package.spec))  # raises what the control plane would
    return CollectedJob(package, dict(brokers.values()))


async def submit_job(control: ControlPlane, job: CollectedJob, *, job_id: str = "") -> JobView:
    """Upload what a job needs, and store it. What is uploaded and not stored is removed by the control plane.

    Raises `PreconditionError` when a job of that id runs, and everything that the calls raise.
    """
    job_id = job_id or job.spec.name
    if not is_identifier(job_id):
        raise InvalidError([problem("job_id", job_id, IDENTIFIER_RULE)])
    for content in (job.package.plan, job.package.bundle):
        await control.upload_artifact(content)
    for name, value in job.secrets.items():
        await control.set_secret(name, value)
    spec = replace(job.spec, insecure=control.identity is None)
    view, _created = await control.submit_job(specs.ENGINE, specs.encode(spec), job_id=job_id)
    return view


def _collect(module: str, flow: str) -> Bundle:
    """The files of a module. What was typed in by hand has none, and travels with the plan."""
    search_path: Sequence[str] = [each or "." for each in sys.path]
    if module == _MAIN:
        main = sys.modules[_MAIN]
        name = getattr(getattr(main, "__spec__", None), "name", "")
        file = getattr(main, "__file__", "") or ""
        if name:  # python -m
            module = name.removesuffix(f".{_MAIN}")
        elif file and Path(file).stem.isidentifier():
            module, search_path = Path(file).stem, [str(Path(file).absolute().parent)]
        else:
            return Bundle(f"{_MAIN}:{flow}", versions=current_versions())
    try:
        return collect_bundle(f"{module}:{flow}", search_path, {})
    except NotFoundError as error:
        raise PreconditionError(
            f"the files of module {module!r} are not found, so its code cannot be sent",
            hint="submit a program that lies in a directory: a module or a package",
        ) from error


def _absolute(settings: FlowSettings) -> FlowSettings:
    """The same with checkpoints where other processes look for them."""
    checkpoint = settings.checkpoint
    if checkpoint is None or files.is_absolute(checkpoint.directory):
        return settings
    return replace(settings, checkpoint=replace(checkpoint, directory=str(Path(checkpoint.directory).absolute())))


def _brokers(sinks: Sequence[Node], job: str) -> dict[str, tuple[str, bytes]]:
    """The clusters of a plan that have settings: the name of the secret for each, and its value."""
    connectors = [node.connector for node in walk(*sinks) if isinstance(node, Source | Sink)]
    names = sorted({each.broker for each in connectors if isinstance(each, TopicConnector) and each.broker})
    relative = [name for name in names if not is_kafka(name) and not files.is_absolute(name)]
    if relative:
        raise PreconditionError(
            f"the local log {relative[0]!r} is a path of this program's directory, and a job runs elsewhere",
            hint="give App(broker=…) or App(data_dir=…) an absolute path, or use Kafka",
        )
    with_settings = [name for name in names if has_settings(name)]
    return {
        name: (f"{job}.broker-{number}", _settings_text(settings_of(name))) for number, name in enumerate(with_settings)
    }


def _settings_text(settings: KafkaSettings) -> bytes:
    body = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
    return json.dumps({**body, "client": dict(settings.client)}, sort_keys=True).encode()
